"""Local files that are not in memory: read ahead of who makes batches, past the page cache or not."""

import os
import sys
import threading
import time

import numpy as np
import pytest

import batchplant as bp
import processes
from batchplant import _native, ops
from batchplant.codecs.media import audio
from batchplant.data.reader import Reader, ReaderTuning
from batchplant.errors import DecodeError
from batchplant.loading.images import locate
from batchplant.loading.prefetch import PrefetchTuning, local, make_prefetcher
from batchplant.loading.prefetch.local import LocalPrefetcher
from batchplant.storage import platform
from batchplant.storage.local import MappedSource, ReadaheadRun
from batchplant.storage.spans import BLOCK_BYTES, aligned_memory, read_spans
from batchplant.testing.cases import jpeg
from loaders import all_cold, in_thread, write_jpeg, write_raw
from processes import PATIENCE

cold = pytest.fixture(all_cold)
PIPELINE = [ops.RandomResizedCrop(8), ops.RandomHorizontalFlip()]


def dataset(kind, tmp_path):
    path = write_jpeg(tmp_path / ("data.beton" if kind == "folder" else f"data.{kind}"))
    if kind != "folder":
        return path
    (tmp_path / "folder").mkdir()
    for n, cell in enumerate(bp.open(path).read(range(20), ["image"])["image"]):
        (tmp_path / "folder" / f"{n:02}.jpg").write_bytes(bytes(cell))
    return str(tmp_path / "folder")


def batches(path, size=6, **options):
    options = {"order": "random", "seed": 3, "ids": True, "pipelines": {"image": PIPELINE}} | options
    with_close = bp.Loader(path, size, **options)
    result = [{name: np.array(value) for name, value in batch.items()} for batch in with_close]
    with_close.close()
    return result


@pytest.mark.parametrize("kind", ["beton", "tar", "folder", "lmdb", "tfrecord", "rec", "ffr", "msgpack"])
def test_the_same_batches_past_the_page_cache(kind, tmp_path, cold):
    if kind == "lmdb":
        pytest.importorskip("lmdb")
    path = dataset(kind, tmp_path)
    through = batches(path, cache="pages")
    # Files of a folder are not mapped, so they are read together in any case.
    assert (sum(cold) == 20) == (kind == "folder")
    cold.clear()
    past = batches(path, cache=False)
    # In a tar file labels are cells beside the images; elsewhere all of a sample is one record.
    # On a busy machine, a batch may be made before the thread that reads ahead comes to it.
    cells = 40 if kind == "tar" else 20
    assert cells - max(cold) <= sum(cold) <= cells
    assert len(through) == len(past) == 4
    for item, other in zip(through, past, strict=True):
        for name in item:
            np.testing.assert_array_equal(item[name], other[name])


def test_what_is_in_memory_is_not_read_again(tmp_path, monkeypatch, cold):
    monkeypatch.setattr(MappedSource, "_in_memory", lambda *_: True)
    assert len(batches(write_jpeg(tmp_path / "data.beton"), cache=False)) == 4
    assert not cold


@pytest.mark.parametrize("kind", ["beton", "lmdb"])
def test_the_kernel_is_asked_to_read_ahead(kind, tmp_path, monkeypatch, cold):
    if kind == "lmdb":
        pytest.importorskip("lmdb")
    path, asked = dataset(kind, tmp_path), []

    def noted(self, starts, sizes, thorough=False):
        if threading.current_thread().name.startswith("batchplant-readahead"):
            asked.append(len(starts))
        return int(sizes.sum())

    monkeypatch.setattr(MappedSource, "request", noted)
    assert len(batches(path, cache="pages")) == 4
    assert sum(asked) == 20


def test_raw_images_keep_their_shape(tmp_path, cold):
    path = write_raw(tmp_path / "data.beton")
    first = batches(path, cache=False, pipelines={})
    assert sum(cold) == 20
    for row, other in zip(first, batches(path, cache="pages", pipelines={}), strict=True):
        np.testing.assert_array_equal(row["image"], other["image"])


def test_a_damaged_image_is_named_as_ever(tmp_path, cold):
    path = write_jpeg(tmp_path / "data.beton", damaged=[7])
    whole = {"image": [ops.Resize((8, 8))]}
    with pytest.raises(DecodeError) as result:
        batches(path, cache=False, pipelines=whole)
    assert (result.value.sample, result.value.field) == (7, "image")
    left = batches(path, cache=False, on_error="skip", pipelines=whole)
    assert sum(len(row["ids"]) for row in left) == 19


def eventually(condition):
    """Threads come to it, and stay there."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    time.sleep(0.05)
    assert condition()


class NotedShard:
    """A shard that notes which batches it is asked for."""

    def __init__(self, shard):
        self._shard, self.numbers = shard, []

    def has(self, number):
        return self._shard.has(number)

    def batch(self, number):
        self.numbers.append(number)
        return self._shard.batch(number)


def test_an_epoch_after_one_in_memory_does_not_wait_for_the_bytes_of_its_first_batch(tmp_path):
    loader = bp.Loader(write_jpeg(tmp_path / "data.beton"), 2, pipelines={"image": PIPELINE})
    first = make_prefetcher(loader._executor, None, loader._shard(0, 0))
    first.start()
    for number in range(len(loader)):
        first.wait(number)
        first.done(number)
    first.close()
    # Nothing looks for its bytes: it is not started.
    second = make_prefetcher(loader._executor, None, loader._shard(1, 0))
    try:
        in_thread(lambda: second.wait(0))
    finally:
        second.close()


def test_batches_ahead_are_read_before_any_is_made(tmp_path, cold):
    path = write_jpeg(tmp_path / "data.beton")
    loader = bp.Loader(path, 2, pipelines={"image": PIPELINE})
    shard = NotedShard(loader._shard(0, 0))
    [source] = loader.reader.spans("image").sources
    ahead = LocalPrefetcher(loader._executor, None, shard, direct=True, tuning=PrefetchTuning(local_bytes=1))
    ahead.start()
    # Nobody has asked for a batch, and three of ten are there; no more, for there is room for no more.
    eventually(lambda: len(cold) == 3)
    assert sorted(shard.numbers) == [0, 1, 2]
    ahead.wait(0)
    result = locate(loader.reader, "image", np.concatenate([shard.batch(0), shard.batch(9)]))
    # The first two of what was read ahead, the others from the file.
    assert [result.bases[base] is source.data for base in result.base] == [False, False, True, True]
    assert result.cell(1).tobytes() == bytes(loader.reader.read([1], ["image"])["image"][0])
    ahead.done(0)
    ahead.wait(3)
    assert len(cold) >= 4
    ahead.close()
    eventually(lambda: not source.buffers)
    loader.close()


def write_row_groups(path, rows=120, **options):
    """Images in row groups of 30, as pyarrow writes them."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    cells = [jpeg(30, 20 + n % 7) for n in range(rows)]
    table = pa.table({"image": pa.array(cells, pa.binary()), "label": np.arange(rows)})
    options = {"row_group_size": 30, "compression": "none", "use_dictionary": False} | options
    pq.write_table(table, path, **options)
    return str(path)


@pytest.fixture
def read(monkeypatch, cold):
    """(start, size) of all that was read together."""
    result, inner = [], local.read_spans

    def noted(spans, allocate, *, direct):
        result.extend(zip(spans.start.tolist(), spans.size.tolist(), strict=True))
        return inner(spans, allocate, direct=direct)

    monkeypatch.setattr(local, "read_spans", noted)
    return result


def column_of(path):
    chunks = [group.chunks[0] for group in bp.open(path)._files[0].footer.groups]
    return [(chunk.start, chunk.size) for chunk in chunks]


@pytest.mark.parametrize("order", ["sequential", "quasi_random", "random"])
def test_row_groups_past_the_page_cache(order, tmp_path, monkeypatch, cold):
    """Where images have to be found in row groups, those are read, and images used out of them."""
    path = write_row_groups(tmp_path / "data.parquet")
    monkeypatch.setattr(Reader, "tuning", ReaderTuning(window_bytes=2 * column_of(path)[0][1] + 1000))
    options = {"order": order, "size": 20}
    want = batches(path, cache="pages", **options)
    assert not cold
    for item, other in zip(want, batches(path, cache=False, **options), strict=True):
        for name in item:
            np.testing.assert_array_equal(item[name], other[name])
    assert cold


def test_a_row_group_is_read_once_for_the_batches_that_share_it(tmp_path, read):
    path = write_row_groups(tmp_path / "data.parquet")
    column = column_of(path)
    loader = bp.Loader(path, 12, pipelines={"image": PIPELINE})
    shard = NotedShard(loader._shard(0, 0))
    [source] = loader.reader.ranges(["image"], [0]).sources
    ahead = LocalPrefetcher(loader._executor, None, shard, direct=True, tuning=PrefetchTuning(local_bytes=1))
    ahead.start()
    # Batches of 12, in order: the third needs the second row group.
    eventually(lambda: len(read) == 2)
    assert sorted(shard.numbers) == [0, 1, 2]
    assert sorted(read) == column[:2]
    for number in range(3):
        result = locate(loader.reader, "image", shard.batch(number))
        assert not any(result.bases[base] is source.data for base in result.base)
    ahead.done(0)
    ahead.done(1)
    # The third needs the first row group too.
    assert source.buffers.view(column[0][0], 10) is not None
    ahead.done(2)
    assert source.buffers.view(column[0][0], 10) is None
    ahead.close()
    eventually(lambda: not source.buffers)
    loader.close()


def test_images_of_row_groups_beside_those_of_files(tmp_path, monkeypatch, cold):
    """Of some, a part is held already; the others, which nobody has mapped, are asked for by sample."""
    path = write_row_groups(tmp_path / "data.parquet")
    (tmp_path / "folder").mkdir()
    for n in range(120):
        (tmp_path / "folder" / f"{n:03}.jpg").write_bytes(jpeg(30, 20 + n % 5))
    files = bp.open(tmp_path / "folder").rename({"image": "file"})
    pipelines = {"image": PIPELINE, "file": PIPELINE}
    use, partly = local.SharedReads.use, []

    def every_second(self, number, spans):
        missing = use(self, number, spans)
        partly.append(len(missing) < len(spans))
        return np.union1d(missing, np.arange(0, len(spans), 2))

    monkeypatch.setattr(local.SharedReads, "use", every_second)
    for order in ("sequential", "quasi_random"):
        result = [
            batches(bp.join([bp.open(path), files]), 20, order=order, cache=cache, pipelines=pipelines)
            for cache in ("pages", False)
        ]
        for item, other in zip(*result, strict=True):
            for name in item:
                np.testing.assert_array_equal(item[name], other[name])
    assert any(partly)


@pytest.mark.parametrize(("memory", "shared"), [(1 << 40, True), (100_000, False)])
def test_row_groups_that_are_much_of_the_memory_go_through_the_page_cache(
    memory, shared, tmp_path, monkeypatch, read
):
    monkeypatch.setattr(local, "available_memory", lambda: memory)
    path = write_row_groups(tmp_path / "data.parquet")
    column = column_of(path)
    want = batches(path, 20, order="sequential", cache="pages")
    for row, other in zip(want, batches(path, 20, order="sequential", cache=False), strict=True):
        assert np.array_equal(row["image"], other["image"])
    assert (not set(read).isdisjoint(column)) == shared


@pytest.mark.parametrize("first", ["snappy", "none"])
def test_row_groups_that_nobody_finds_images_in_are_left_to_who_reads_them(first, tmp_path, read):
    """What was read ahead in vain is not read again."""
    paths = [
        write_row_groups(tmp_path / f"{number}.parquet", compression=how)
        for number, how in enumerate((first, "snappy"))
    ]
    how = {"order": "sequential", "size": 20, "pipelines": {"image": [ops.Resize((8, 8))]}}
    want = batches(str(tmp_path), cache="pages", **how)
    got = batches(str(tmp_path), cache=False, **how)
    for row, other in zip(want, got, strict=True):
        assert row["ids"].tolist() == other["ids"].tolist()
        assert np.array_equal(row["image"], other["image"])
    # Of the second file no more than the first batches that had begun.
    assert len(set(read).intersection(column_of(paths[1]))) <= (3 if first == "none" else 0)


@pytest.mark.parametrize(("kind", "most"), [("beton", 1 << 40), ("parquet", 1), ("parquet", 1 << 40)])
def test_what_is_in_memory_is_looked_at_now_and_then(kind, most, tmp_path, monkeypatch):
    """Of row groups after many bytes, or batches: a few may have been read for the first of them."""
    monkeypatch.setattr(MappedSource, "_in_memory", lambda *_: True)
    path = tmp_path / f"data.{kind}"
    path = write_jpeg(path, 600) if kind == "beton" else write_row_groups(path, rows=600)
    loader = bp.Loader(path, 5, pipelines={"image": PIPELINE})
    shard = NotedShard(loader._shard(0, 0))
    tuning = PrefetchTuning(max_local_read_bytes=most, local_threads=1)
    ahead = LocalPrefetcher(loader._executor, None, shard, direct=True, tuning=tuning)
    ahead.start()
    for number in range(110):
        ahead.wait(number)
        ahead.done(number)
    ahead.close()
    loader.close()
    sure = tuning.max_local_batches if (kind, most) == ("parquet", 1 << 40) else tuning.resident_batches
    step = tuning.resident_check_interval
    expected = [*range(sure), *range(-(-sure // step) * step, 110, step)]
    assert shard.numbers[: len(expected)] == expected


def test_more_than_memory_is_read_past_the_page_cache(tmp_path, monkeypatch):
    assert 0 < platform.available_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    loader = bp.Loader(write_jpeg(tmp_path / "data.beton"), 2)
    shard = loader._shard(0, 0)

    def is_direct(memory, page_cache=None):
        monkeypatch.setattr(local, "available_memory", lambda: memory)
        return make_prefetcher(loader._executor, None, shard, page_cache=page_cache).direct

    size = int(loader.reader.spans("image").size.sum())
    assert [is_direct(size // 4), is_direct(10 * size)] == [True, False]
    assert [is_direct(size // 4, True), is_direct(10 * size, False)] == [False, True]
    loader.close()


def test_what_parquet_takes_is_told_by_its_footer(tmp_path, monkeypatch):
    """Nobody looks for images all over a file to find out how large they are."""
    pytest.importorskip("pyarrow")
    loader = bp.Loader(write_jpeg(tmp_path / "data.parquet"), 2)
    shard = loader._shard(0, 0)
    size = sum(chunk.size for group in loader.reader._files[0].footer.groups for chunk in group.chunks)
    for indices, needed in ((None, size), (np.arange(5), size / 4)):
        for memory, direct in ((needed, True), (2 * needed, False)):
            monkeypatch.setattr(local, "available_memory", lambda memory=memory: memory)
            assert make_prefetcher(loader._executor, indices, shard).direct is direct
    loader.close()


EPOCH = """
import functools
import sys
import batchplant as bp
from batchplant.loading import epoch
from batchplant.loading.prefetch import PrefetchTuning

# However slow the batches are made.
epoch.make_prefetcher = functools.partial(epoch.make_prefetcher, tuning=PrefetchTuning(local_bytes=2 << 20))

def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))

loader = bp.Loader(sys.argv[1], 8, order="random", cache=False, workers=1)
seen = []
for _ in range(2):
    for batch in loader:
        seen.append(anonymous())
        del batch
print(max(seen[12:]) - max(seen[:12]))
"""


def test_memory_is_bounded_and_the_page_cache_left_alone(tmp_path):
    path = write_raw(tmp_path / "data.beton", 320, 128, 256)
    with open(path, "rb") as file:
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    data = np.memmap(path, np.uint8, "r")
    starts = np.arange(0, len(data) - BLOCK_BYTES, 64 * BLOCK_BYTES)
    one = np.ones(1, dtype=np.int64)

    def resident():
        return np.mean([_native.resident_fraction(data, one * start, one) for start in starts])

    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("the file system has no reads past the page cache")
    if resident() > 0.1:
        pytest.skip("the file system keeps pages")
    grown = processes.run([sys.executable, "-c", EPOCH, path], capture_output=True, check=True)
    # 31 MB are read twice, by batches of 0.8 MB.
    assert int(grown.stdout) < 8 << 20
    # To open it takes what the disk reads around the table.
    assert resident() < 0.6


def write_arrays(path, count=60):
    rng = np.random.default_rng(0)
    with bp.create(path, {"a": bp.Tensor("uint8", (128, 1024)), "label": bp.Int()}) as out:
        for n in range(count):
            out.append({"a": rng.integers(0, 256, (128, 1024), np.uint8), "label": n})
    return str(path)


STAGING = ["tar", "lmdb", "beton", "tfrecord", "rec", "ffr", "npy", "csv", "arrow", "h5"]


@pytest.mark.parametrize("kind", STAGING)
def test_arrays_come_past_the_page_cache(kind, tmp_path, cold, monkeypatch):
    needs = {"arrow": "pyarrow", "h5": "h5py"}.get(kind, kind)
    if needs in ("lmdb", "pyarrow", "h5py"):
        pytest.importorskip(needs)
    path = write_arrays(tmp_path / f"data.{kind}")
    want = batches(path, pipelines={}, cache="pages")
    assert not cold
    copied, copy_runs = [0], _native.copy_runs

    def noted(data, starts, sizes, *rest):
        copied[0] += int(sizes.sum()) if len(data) > 40 * 128 * 1024 else 0
        return copy_runs(data, starts, sizes, *rest)

    monkeypatch.setattr(_native, "copy_runs", noted)
    # Twice: nobody may miss what was read by the first.
    for _ in range(2):
        cold.clear()
        got = batches(path, pipelines={}, cache=False)
        assert len(cold) == 10
        for row, other in zip(want, got, strict=True):
            assert row["ids"].tolist() == other["ids"].tolist()
            assert np.array_equal(row["a"], other["a"])
            assert np.array_equal(row["label"], other["label"])
    # Numbers, at most, come out of the mapping.
    assert copied[0] < 100_000


def test_who_looks_into_files_by_itself_is_left_alone(tmp_path, cold):
    """What was read ahead in vain is not read again."""
    path = write_arrays(tmp_path / "data.npz")
    want = batches(path, pipelines={}, cache="pages")
    got = batches(path, pipelines={}, cache=False)
    for row, other in zip(want, got, strict=True):
        assert np.array_equal(row["a"], other["a"])
    assert 0 < len(cold) < 10


@pytest.mark.parametrize("kind", ["sounds", "zarr", "patches"])
def test_files_that_nobody_has_mapped_are_left_to_who_reads_them(kind, tmp_path, cold):
    """No images, and not mapped: nobody would look for what was read ahead."""
    rng = np.random.default_rng(0)
    options = {"pipelines": {}}
    if kind == "sounds":
        for n in range(20):
            sound = audio.encode(rng.integers(-9000, 9000, (500, 1)).astype(np.int16), 8000, "wav")
            (tmp_path / f"{n:02}.wav").write_bytes(sound)
        data, options = tmp_path, {"pipelines": {"audio": [ops.DecodeAudio(frames=400, workers=1)]}}
    else:
        pytest.importorskip("zarr")
        data = write_arrays(tmp_path / "data.zarr", count=20)
        if kind == "patches":
            data = bp.Patches(data, ["a"], size=(1, 128, 1024))
    want = batches(data, cache="pages", **options)
    got = batches(data, cache=False, **options)
    # A thread that fails is an error of the test.
    for item, other in zip(want, got, strict=True):
        for name in item:
            np.testing.assert_array_equal(item[name], other[name])


@pytest.mark.parametrize(
    ("kind", "past"), [("tar", ["a", "label"]), ("lmdb", ["a", "label"]), ("parquet", [])]
)
def test_what_samples_share_stays(kind, past, tmp_path, monkeypatch):
    """Several samples lie in a chunk or a group of rows: the next batch needs it again."""
    pytest.importorskip({"tar": "numpy", "parquet": "pyarrow"}.get(kind, kind))
    loader = bp.Loader(write_arrays(tmp_path / f"data.{kind}"), 4)
    shard = loader._shard(0, 0)

    def made(page_cache, memory=1 << 40):
        monkeypatch.setattr(local, "available_memory", lambda: memory)
        return list(make_prefetcher(loader._executor, None, shard, page_cache=page_cache).direct_fields)

    assert [made(None), made(True), made(False)] == [[], [], past]
    assert [made(None, memory=1000), made(True, memory=1000)] == [past, []]
    loader.close()


def test_a_table_is_read_through_the_page_cache(tmp_path):
    """Cells that lie side by side: a page has those of many samples."""
    path = tmp_path / "data.beton"
    with bp.create(path, {"a": bp.Tensor("float32", (10,)), "label": bp.Int()}) as out:
        for n in range(100):
            out.append({"a": np.full(10, n, np.float32), "label": n})
    loader = bp.Loader(path, 4)
    result = make_prefetcher(loader._executor, None, loader._shard(0, 0), page_cache=False)
    assert (list(result.direct_fields), result.direct) == ([], False)
    loader.close()


@pytest.mark.parametrize("kind", ["tfrecord", "ffr", "lmdb", "tar"])
def test_damage_is_told_as_ever(kind, tmp_path, cold):
    """Path, sample, field and offset in the file, though the record lies in other memory."""
    if kind == "lmdb":
        pytest.importorskip("lmdb")
    path = write_arrays(tmp_path / f"data.{kind}", count=20)
    ranges = bp.open(path).ranges(["a", "label"], [11])
    middle = int(ranges.start[0] + (3 if kind == "lmdb" else ranges.size[0] // 2 if kind != "tar" else 8))
    with open(ranges.files[0], "r+b") as file:
        file.seek(middle)
        file.write(b"\xff" * 40)
    told = []
    for cache in ("pages", False):
        with pytest.raises(bp.DataError) as result:
            batches(path, pipelines={}, cache=cache)
        told.append(result.value)
    assert cold
    one, other = told
    assert one.sample == 11
    assert str(one) == str(other)
    assert (one.sample, one.field, one.offset) == (other.sample, other.field, other.offset)


def staged_of(source, *runs):
    """These runs (start, end), read ahead."""
    starts, ends = np.array(runs, dtype=np.int64).T
    places = np.cumsum(ends - starts) - (ends - starts) + 3
    memory = np.zeros(int((ends - starts).sum()) + 3, np.uint8)
    for (start, end), place in zip(runs, places.tolist(), strict=True):
        # Not what the file has there: so it is seen who was asked.
        memory[place : place + end - start] = ~source.data[start:end]
    return ReadaheadRun(memory, starts, ends, places)


def test_what_was_read_ahead_is_found_by_its_place(tmp_path):
    path = tmp_path / "data"
    want = np.random.default_rng(0).integers(0, 256, 5000, np.uint8)
    path.write_bytes(want.tobytes())
    source = MappedSource(str(path))
    first, second = staged_of(source, (100, 200), (1000, 2000)), staged_of(source, (2000, 2100))
    source.buffers.add(first)
    source.buffers.add(second)
    ahead = np.zeros(5000, bool)
    for start, end in ((100, 200), (1000, 2000), (2000, 2100)):
        ahead[start:end] = True
    seen = np.where(ahead, ~want, want)
    assert not first.used
    for start, size in ((100, 100), (150, 10), (1000, 1000), (1999, 1), (2000, 100)):
        assert np.array_equal(source.view(start, size), seen[start : start + size])
    assert first.used
    assert second.used
    # Not all of it is there, in one place: then it is the file's.
    for start, size in ((99, 2), (199, 2), (1900, 150), (2050, 51), (0, 5000), (3000, 10)):
        assert np.array_equal(source.view(start, size), want[start : start + size])
    starts, sizes = np.array([3000, 1500, 150, 2000, 199]), np.array([7, 20, 0, 50, 2])
    parts = [want[3000:3007], seen[1500:1520], want[:0], seen[2000:2050], want[199:201]]
    assert np.array_equal(source.gather(starts, sizes).data, np.concatenate(parts))
    rows = source.gather_rows(1000, 100, 30, np.array([0, 9, 20]))
    assert np.array_equal(rows, np.stack([seen[1000:1030], seen[1900:1930], want[3000:3030]]))
    memory, places = source.placed(np.array([1100, 120]), np.array([5, 6]))
    assert memory is first.memory
    assert np.array_equal(memory[places[1] : places[1] + 6], seen[120:126])
    data, places = source.placed(starts, sizes)
    assert data is source.data
    assert places is starts
    for run in (first, second, first):
        source.buffers.remove(run)
    assert not source.buffers
    assert np.array_equal(source.view(1000, 1000), want[1000:2000])
    source.close()


def test_cells_of_several_files_are_read_spans(tmp_path):
    contents = [np.random.default_rng(n).bytes(20_000 + n) for n in range(3)]
    paths = []
    for number, content in enumerate(contents):
        paths.append(str(tmp_path / f"{number}"))
        (tmp_path / f"{number}").write_bytes(content)
    # Out of order, one next to another, one twice, one to the end of its file, one missing, one empty.
    cells = [
        (2, 19_000, 1_002),
        (0, 5, 100),
        (0, 105, 50),
        (1, 12_000, 8_001),
        (0, 5, 100),
        (2, 7, -1),
        (1, 9, 0),
    ]
    spans = bp.Spans(
        paths, *(np.array([cell[n] for cell in cells], dtype=np.int64) for n in (1, 2)),
        np.array([cell[0] for cell in cells], dtype=np.int32),
    )  # fmt: skip
    for direct in (False, True):
        read = read_spans(spans, aligned_memory, direct=direct)
        if read is None:
            assert direct
            pytest.skip("the file system has no reads past the page cache")
        memory, places, _ = read
        for (file, start, size), place in zip(cells, places.tolist(), strict=True):
            size = max(size, 0)
            assert memory[place : place + size].tobytes() == contents[file][start : start + size]


def test_cells_that_are_not_there_are_left_to_who_reads_them(tmp_path):
    path = tmp_path / "short"
    path.write_bytes(bytes(5000))
    for start, size in ((4000, 1001), (-1, 5), (1 << 50, 5)):
        spans = bp.Spans([str(path)], np.array([start]), np.array([size]))
        assert read_spans(spans, aligned_memory, direct=False) is None
    gone = bp.Spans([str(tmp_path / "gone")], np.array([0]), np.array([1]))
    assert read_spans(gone, aligned_memory, direct=False) is None


@pytest.mark.parametrize("ring", [True, False])
def test_native_reads_of_several_files(tmp_path, ring):
    fds = []
    for number in range(2):
        (tmp_path / f"{number}").write_bytes(bytes([number + 1]) * 6000)
        fds.append(os.open(tmp_path / f"{number}", os.O_RDONLY))
    array = np.array
    try:
        out = np.zeros(12_288, dtype=np.uint8)

        def fetch(file, starts, sizes, least):
            return _native.fetch_spans(
                array(fds, np.int32), array(file, np.int32), array(starts), array(sizes), array(least), out,
                array([0, 8192]), _ring=ring,
            )  # fmt: skip

        # The second run ends behind its file, and need not come whole.
        assert fetch([1, 0], [0, 4096], [4096, 4096], [4096, 1904]) is None
        assert (out[:4096] == 2).all()
        assert (out[8192 : 8192 + 1904] == 1).all()
        assert fetch([1, 0], [0, 4096], [4096, 4096], [4096, 1905]) == (1, 0)
        for file, least in (([0, 2], [1, 1]), ([0, -1], [1, 1]), ([0, 0], [1, 4097])):
            with pytest.raises(IndexError):
                fetch(file, [0, 0], [4096, 4096], least)
        with pytest.raises(ValueError, match="file"):
            fetch([0], [0, 0], [1, 1], [1, 1])
    finally:
        for fd in fds:
            os.close(fd)
