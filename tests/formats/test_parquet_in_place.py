"""Images of Parquet files that are used where they lie."""

import itertools
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import batchplant as bp
from batchplant import _native, ops
from batchplant.data.reader import Reader, ReaderTuning
from batchplant.errors import BatchplantError
from batchplant.formats.base.tables.parquet import ParquetFile
from batchplant.formats.parquet import CellLocations
from batchplant.loading.loader import Loader
from batchplant.storage import MappedSource, index
from batchplant.testing.cases import jpeg
from variants import in_one_test

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

IMAGES = [jpeg(30, 20 + number) for number in range(60)]
SCHEMA = {"image": bp.Image(), "label": bp.Int()}
PLAIN = {"compression": "none", "use_dictionary": False}


def written(path, images=IMAGES, *, files=False, **options):
    """As others write them: a column of bytes, or of files as Hugging Face has them."""
    kind = pa.binary()
    if files:
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        images = [{"bytes": image, "path": f"{number}.jpg"} for number, image in enumerate(images)]
    table = pa.table({"image": pa.array(images, kind), "label": np.arange(len(images))})
    pq.write_table(table, path, **{"row_group_size": 7, **PLAIN, **options})
    return path


def in_place(reader, indices):
    """The cells, from where they are said to lie."""
    spans = reader.spans("image", indices)
    assert spans is not None
    result = []
    for file, start, size in zip(spans.file.tolist(), spans.start.tolist(), spans.size.tolist(), strict=True):
        with open(spans.files[file], "rb") as opened:
            opened.seek(start)
            result.append(opened.read(size))
    return result


@in_one_test("how", [
    {}, {"files": True}, {"data_page_version": "2.0"}, {"data_page_version": "2.0", "files": True},
    {"data_page_size": 1, "write_batch_size": 1}, {"write_page_index": True, "data_page_size": 4000},
    {"column_encoding": {"image": "PLAIN", "label": "PLAIN"}},
])  # fmt: skip
def test_cells_lie_where_they_are_said_to(how, tmp_path):
    reader = bp.open(written(tmp_path / "x.parquet", **how), schema={"image": bp.Image()})
    order = np.random.default_rng(0).permutation(60)
    assert in_place(reader, order) == [IMAGES[row] for row in order]
    assert in_place(reader, [5, 5, 59]) == [IMAGES[5], IMAGES[5], IMAGES[59]]
    # What reading takes is what lies there, and of the other column what its row groups have.
    known = reader.ranges(["image"], order)
    assert np.array_equal(known.start, reader.spans("image", order).start)
    assert len(reader.ranges(["image", "label"], order)) == 60 + 9


def test_what_we_write_lies_in_place_and_needs_no_library(tmp_path, monkeypatch):
    path = tmp_path / "own.parquet"
    with bp.create(path, SCHEMA, row_group_size=4000) as out:
        for number, data in enumerate(IMAGES):
            out.append({"image": data, "label": number})
    reader = bp.open(path)
    assert len(reader._starts) > 5
    assert in_place(reader, range(60)) == IMAGES
    part = type(reader._files[0])
    load, loaded = part.load, []
    monkeypatch.setattr(part, "load", lambda self, group, names, **how: loaded.append(names) or load(
        self, group, names, **how))  # fmt: skip
    pipelines = {"image": [ops.CenterCrop(16)]}
    loader = Loader(path, 8, order="random", seed=1, ids=True, pipelines=pipelines)
    for batch in loader:
        for number, image, label in zip(*(batch[name] for name in ("ids", "image", "label")), strict=True):
            assert label == number
            if number % 7:
                continue
            [[want]] = [batch["image"] for batch in Loader(path, 1, indices=[number], pipelines=pipelines)]
            assert np.array_equal(image, want)
    assert {tuple(names) for names in loaded} == {("label",)}


@in_one_test("how", [
    {"write_page_checksum": True}, {"compression": "snappy"}, {"use_dictionary": True},
    {"compression": "zstd", "files": True},
    {"images": [None, *IMAGES]}, {"column_encoding": {"image": "DELTA_BYTE_ARRAY", "label": "PLAIN"}},
])  # fmt: skip
def test_what_does_not_lie_there_as_it_is_is_read(how, tmp_path):
    reader = bp.open(written(tmp_path / "x.parquet", **how), schema={"image": bp.Image(optional=True)})
    assert reader.spans("image", [1]) is None
    want = how.get("images", IMAGES)
    result = reader.read(range(len(reader)), ["image"])["image"]
    assert [None if item is None else item.tobytes() for item in result] == want


def test_some_row_groups_lie_in_place_and_others_do_not(tmp_path):
    images = [*IMAGES[:20], None, *IMAGES[21:]]
    reader = bp.open(written(tmp_path / "x.parquet", images), schema={"image": bp.Image(optional=True)})
    assert in_place(reader, [0, 13, 59]) == [IMAGES[row] for row in (0, 13, 59)]
    assert reader.spans("image", [0, 14]) is None
    assert reader.read([20, 19], ["image"])["image"][1].tobytes() == IMAGES[19]


@pytest.fixture
def asked(monkeypatch):
    """What the kernel was asked to read, and for each search whether it went past the page cache."""
    result, search = {"read": [], "past": []}, MappedSource.prefixed_sizes

    def noted(self, *runs, past):
        result["past"].append(past)
        return search(self, *runs, past=past)

    monkeypatch.setattr(MappedSource, "_in_memory", lambda *_: False)
    monkeypatch.setattr(MappedSource, "prefixed_sizes", noted)
    monkeypatch.setattr(
        MappedSource, "request", lambda self, *runs, **_: result["read"].append(np.stack(runs, 1)) or 0
    )
    return result


def test_row_groups_that_are_wanted_whole_are_read_in_order(tmp_path, asked):
    """Where a few cells of each are wanted, nothing but their sizes is read, past the page cache."""
    reader = bp.open(written(tmp_path / "x.parquet"), schema={"image": bp.Image()})
    asked["read"].clear()
    assert in_place(reader, [0, 7, 14]) == [IMAGES[row] for row in (0, 7, 14)]
    assert asked == {"read": [], "past": [True]}
    # Those that are known are not looked for again.
    assert in_place(reader, range(60)) == IMAGES
    groups = [group.chunks[0] for group in reader._files[0].footer.groups[3:]]
    assert [item.tolist() for item in asked["read"]] == [[[group.start, group.size] for group in groups]]
    assert asked["past"] == [True, False]


def test_many_row_groups_are_looked_through_however_much_of_them_is_wanted(tmp_path, asked):
    """In a random order each would be read whole again and again."""
    path = written(tmp_path / "x.parquet")
    size = sum(group.chunks[0].size for group in bp.open(path)._files[0].footer.groups)
    asked["read"].clear()
    for max_bytes in (size, size - 1):
        reader = bp.open(path, schema={"image": bp.Image()})
        parts = dict(enumerate(reader._files))
        locations = CellLocations("image", parts, reader._firsts, reader._starts, max_bytes)
        reader._locations["image"] = locations
        assert in_place(reader, range(60)) == IMAGES
    assert asked["past"] == [False, True]
    assert len(asked["read"]) == 1


def test_threads_that_want_the_same_row_groups_look_once(tmp_path, looked):
    reader = bp.open(written(tmp_path / "x.parquet"), schema={"image": bp.Image()})
    with ThreadPoolExecutor(4) as pool:
        for item in pool.map(lambda _: in_place(reader, range(60)), range(8)):
            assert item == IMAGES
    assert sorted(looked) == list(range(9))


def test_a_thread_that_looked_when_the_process_was_forked_is_not_waited_for(tmp_path):
    reader = bp.open(written(tmp_path / "x.parquet"), schema={"image": bp.Image()})
    result = reader._locations_of("image")
    result._lock.acquire()
    result._process -= 1
    assert in_place(reader, range(60)) == IMAGES


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Where things are remembered, of small files too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(index, "tuning", index.IndexTuning(min_indexed_bytes=0))
    return lambda: sorted((tmp_path / "cache").rglob("*.bpindex"))


@pytest.fixture
def looked(monkeypatch):
    """The row groups that were looked through."""
    result, cells = [], ParquetFile.cells

    def noted(self, groups, name, whole):
        result.extend(groups)
        return cells(self, groups, name, whole)

    monkeypatch.setattr(ParquetFile, "cells", noted)
    return result


def test_where_the_cells_of_a_file_lie_is_remembered(cache, looked, tmp_path):
    path, how = written(tmp_path / "x.parquet"), {"schema": {"image": bp.Image()}}
    reader = bp.open(path, **how)
    assert in_place(reader, range(50)) == IMAGES[:50]
    # Not before all of it is known.
    assert cache() == []
    assert in_place(reader, [59]) == IMAGES[59:]
    assert len(cache()) == 1
    assert looked == list(range(9))
    assert in_place(bp.open(path, **how), range(60)) == IMAGES
    assert looked == list(range(9))
    # Of another file by that name nothing is known.
    written(path, IMAGES[::-1])
    assert in_place(bp.open(path, **how), range(60)) == IMAGES[::-1]
    assert looked == 2 * list(range(9))


def test_row_groups_that_do_not_lie_in_place_are_remembered_too(cache, looked, tmp_path):
    images = [*IMAGES[:20], None, *IMAGES[21:]]
    path, how = written(tmp_path / "x.parquet", images), {"schema": {"image": bp.Image(optional=True)}}
    assert bp.open(path, **how).spans("image") is None
    assert len(cache()) == 1
    again = bp.open(path, **how)
    assert again.spans("image", [20]) is None
    assert in_place(again, [0, 59]) == [IMAGES[0], IMAGES[59]]
    assert looked == list(range(9))
    # Where nothing lies in place, there is nothing to remember.
    assert bp.open(written(tmp_path / "y.parquet", compression="zstd"), **how).spans("image") is None
    assert len(cache()) == 1


@pytest.mark.parametrize("wrong", [
    {"starts": -2}, {"starts": 0}, {"starts": 1 << 40}, {"sizes": -1}, {"sizes": 1 << 62},
    {"starts": "short"}, {"sizes": "float"},
])  # fmt: skip
def test_what_is_remembered_and_cannot_be_is_found_anew(wrong, cache, looked, tmp_path):
    path, how = written(tmp_path / "x.parquet"), {"schema": {"image": bp.Image()}}
    reader = bp.open(path, **how)
    spans = reader.spans("image")
    [kept] = cache()
    kept.unlink()
    cells = {"starts": spans.start.copy(), "sizes": spans.size.copy()}
    for name, value in wrong.items():
        if value == "short":
            cells[name] = cells[name][1:]
        elif value == "float":
            cells[name] = cells[name].astype(np.float64)
        else:
            cells[name][7] = value
    reader._files[0].remember("image", (cells["starts"], cells["sizes"]))
    assert len(cache()) == 1
    looked.clear()
    assert in_place(bp.open(path, **how), range(60)) == IMAGES
    assert looked == list(range(9))


def test_folders_filters_and_columns_that_are_numbers(tmp_path):
    for number in range(3):
        written(tmp_path / f"part-{number}.parquet", IMAGES[20 * number : 20 * number + 20])
    how = {"schema": {"image": bp.Image()}}
    reader = bp.open(tmp_path, **how)
    assert in_place(reader, [59, 0, 25]) == [IMAGES[59], IMAGES[0], IMAGES[25]]
    assert len(reader.spans("image", [59]).files) == 1
    assert reader.spans("label") is None
    result = bp.open(tmp_path, where="label >= 5 and label < 9", **how)
    want = [IMAGES[20 * part + row] for part in range(3) for row in range(5, 9)]
    assert in_place(result, range(12)) == want
    assert in_place(result.subset([11, 2]), [0, 1]) == [want[11], want[2]]


def test_no_flipped_byte_leads_out_of_the_file(tmp_path):
    """A row group whose sizes do not add up is read as usual, which says what is wrong."""
    data = written(tmp_path / "x.parquet", [image[:40] for image in IMAGES]).read_bytes()
    rng = np.random.default_rng(3)
    path, others = tmp_path / "flipped.parquet", 0
    for _ in range(45):
        bad = bytearray(data)
        bad[rng.integers(4, 60 * 46)] ^= 1 << int(rng.integers(8))
        path.write_bytes(bad)
        try:
            with bp.open(path, schema={"image": bp.Bytes()}) as reader:
                kind = {"image": bp.Image()}
                with bp.open(path, schema=kind) as images:
                    spans = images.spans("image")
                if spans is None:
                    others += 1
                    continue
                assert spans.start.min() > 0
                assert (spans.start + spans.size).max() <= len(data)
                # Where the library reads it, it finds the same.
                whole = reader.read(range(60), ["image"])["image"]
                assert [item.tobytes() for item in whole] == [
                    bytes(bad[start : start + size])
                    for start, size in zip(spans.start.tolist(), spans.size.tolist(), strict=True)
                ]
        except BatchplantError:
            others += 1
    assert others > 5


runs = st.tuples(st.lists(st.binary(max_size=9), max_size=9), st.binary(max_size=5), st.integers(0, 12))


@given(st.lists(runs, max_size=5), st.sampled_from([1, 3]))
@settings(deadline=None)
def test_sizes_of_cells_behind_their_sizes(runs, threads):
    """A run is told to be so where its cells fill it, whatever is before and behind it."""
    pieces = [
        b"".join(len(cell).to_bytes(4, "little") + cell for cell in cells) + rest for cells, rest, _ in runs
    ]
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    counts = np.minimum([count for _, _, count in runs], sizes // 4).astype(np.int64)
    starts = 3 + np.cumsum(sizes) - sizes
    with tempfile.TemporaryFile() as file:
        file.write(b"xyz" + b"".join(pieces))
        file.flush()
        result, good = _native.prefixed_sizes(file.fileno(), starts, sizes, counts, threads=threads)
        file.seek(0)
        memory = np.frombuffer(file.read(), np.uint8)
        in_memory, well = _native.prefixed_sizes_in(memory, starts, sizes, counts)
        with pytest.raises(IndexError):
            _native.prefixed_sizes_in(memory, *np.array([[len(memory)], [4], [1]]))
        with pytest.raises(IndexError):
            _native.prefixed_sizes(file.fileno(), *np.array([[0], [7], [2]]))
        # A file that is shorter than it was.
        assert _native.prefixed_sizes(file.fileno(), *np.array([[1 << 20], [8], [2]]))[1].tolist() == [0]
    each = np.split(result, np.cumsum(counts)[:-1]) if runs else []
    same = np.split(in_memory, np.cumsum(counts)[:-1]) if runs else []
    assert well.tolist() == good.tolist()
    for (cells, rest, _), some, other, right in zip(runs, each, same, good, strict=True):
        assert not right or np.array_equal(some, other)
        if not rest and len(some) == len(cells):
            assert right
            assert some.tolist() == [len(cell) for cell in cells]
        elif right:
            assert int(some.sum()) + 4 * len(some) == sum(4 + len(cell) for cell in cells) + len(rest)


@pytest.mark.parametrize("size", [5000, 90_000, 1_500_000])
def test_sizes_of_cells_that_are_not_in_memory(size, tmp_path):
    rng = np.random.default_rng(size)
    want = rng.integers(0, 2 * size, 3_000_000 // size)
    path = tmp_path / "cells"
    path.write_bytes(b"begin" + b"".join(int(item).to_bytes(4, "little") + bytes(int(item)) for item in want))
    for past, threads in itertools.product((True, False), (1, 4)):
        with open(path, "rb") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            about = np.array([[5, 5], [4 * len(want) + want.sum(), 4], [len(want), 1]])
            result, good = _native.prefixed_sizes(file.fileno(), *about, past, threads)
        assert result[:-1].tolist() == want.tolist()
        assert good.tolist() == [1, 0]


def test_large_row_groups_are_shuffled_few_at_a_time(tmp_path, monkeypatch):
    path = written(tmp_path / "x.parquet", compression="snappy")
    assert bp.open(path).window is None
    size = pq.read_metadata(path).row_group(0).total_byte_size
    monkeypatch.setattr(Reader, "tuning", ReaderTuning(window_bytes=3 * size))
    assert bp.open(path).window in (2, 3)
    monkeypatch.setattr(Reader, "tuning", ReaderTuning(window_bytes=1))
    reader = bp.open(path, where="label >= 0", fields=["label"])
    assert reader.window == 1
    ids = [batch["ids"] for batch in Loader(reader, 7, order="quasi_random", seed=2, ids=True)]
    assert all(len(set(some // 7)) == 1 for some in ids[:4])
