"""`tools.measure`: a dataset in candidate formats; rows are complete, and nothing is left behind."""

from __future__ import annotations

import io
import itertools
import mmap
import os
import shutil
import sys
import textwrap
import types
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import batchplant as bp
from batchplant.cli.bench import formats
from batchplant.formats.registry import all_formats, find
from batchplant.storage import platform
from batchplant.tools import measure
from batchplant.tools.measure import Candidate, Measurement, choice, figures, harness, pareto, timing
from variants import exhaustive

N = 48
ALWAYS = ("samples", "data", "bytes", "files", "write_seconds", "write_rate", "open_seconds", "memory")
RATES = ("sequential_mb_s", "sequential_rate", "random_rate", "epoch_cold", "epoch_warm")
QUICK: dict[str, Any] = {"seconds": 0.1, "rounds": 1, "size": 16, "sample": N}


def jpeg(seed: int, height: int = 20) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 255, (height, 24, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(out, "JPEG")
    return out.getvalue()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("measure") / "images.beton"
    fields = {"image": bp.Image(), "label": bp.Int(), "note": bp.Text(optional=True)}
    with bp.create(path, fields) as out:
        for number in range(N):
            out.append({"image": jpeg(number), "label": number, "note": "x" * number if number % 3 else None})
    return str(path)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[str]:
    """A scratch folder that is empty again, and no process is left, when the test ends."""
    (tmp_path / "scratch").mkdir()
    yield str(tmp_path / "scratch")
    assert os.listdir(tmp_path / "scratch") == []
    assert not [child for child in psutil.Process().children(recursive=True) if _measures(child)]


def _measures(process: psutil.Process) -> bool:
    try:
        return any("engines.processes" in part for part in process.cmdline())
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    from servers import s3_server

    root = tmp_path_factory.mktemp("writable")
    (root / "writes").mkdir()
    with s3_server(str(root), writable=True) as endpoint:
        yield str(root / "writes"), endpoint


@pytest.fixture
def shelf(
    _server: tuple[str, str], _no_settings: None, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], list[str]]:
    """A bucket that can be written; gives the names of what is in it. Settings lead there."""
    from servers import KEY, SECRET

    pytest.importorskip("obstore", reason="pip install 'batchplant[remote]'")
    root, endpoint = _server
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    return lambda: [name for _, _, names in os.walk(root) for name in names]


# -- candidates ---------------------------------------------------------------------------------------------


def test_every_format_is_a_candidate_or_says_why_not() -> None:
    schema = {"image": bp.Image(), "label": bp.Int()}
    taken, out = measure.candidates(schema), measure.refusals(schema)
    assert sorted([*taken, *out]) == sorted(all_formats())
    assert {"beton", "webdataset"} <= set(taken)
    assert "cannot hold image" in out["npy"]
    assert "read only" in out["tiff"]
    assert all(out.values())


def test_what_is_a_candidate_depends_on_the_schema() -> None:
    numbers = measure.candidates({"x": bp.Float()})
    assert "npy" in numbers
    assert "imagefolder" not in numbers
    assert "no field holds such" in measure.refusals({"x": bp.Float()})["imagefolder"]


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_installed", lambda package: package != "pyarrow")
    assert "beton" in measure.candidates({"x": bp.Int()})
    output = measure.refusals({"x": bp.Int()})["parquet"]
    assert output == 'pyarrow is not installed: pip install "batchplant[arrow]"'


def test_candidates_with_options_are_parsed() -> None:
    result = Candidate.parse("parquet:compression=zstd:shard_samples=10:lossless=true")
    assert result.format == "parquet"
    assert result.options == {"compression": "zstd", "shard_samples": 10, "lossless": True}
    assert result.label == "parquet:compression=zstd:shard_samples=10:lossless=True"
    with pytest.raises(bp.OptionError, match="not NAME=VALUE"):
        Candidate.parse("parquet:zstd")
    with pytest.raises(bp.OptionError, match="parquet"):
        Candidate.parse("parkett")


# -- the front, the sample, the names of a figure -----------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), max_size=12))
def test_the_front_is_what_no_other_beats(points: list[tuple[int, int]]) -> None:
    rows = [
        Measurement("x", label=str(number), samples=1, bytes=size, epoch_warm=float(speed))
        for number, (size, speed) in enumerate(points)
    ]
    expected = {
        str(number)
        for number, (size, speed) in enumerate(points)
        if not any(a <= size and b >= speed and (a, b) != (size, speed) for a, b in points)
    }
    result = pareto(rows)
    assert {item.label for item in result} == expected
    sizes = [item.bytes_per_sample for item in result]
    assert sizes == sorted(sizes)


def test_what_was_not_measured_is_on_no_front() -> None:
    assert pareto([Measurement("a", samples=1, bytes=1), Measurement("b", epoch_warm=3.0)]) == []


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_samples_are_spread_over_the_dataset(length: int, count: int) -> None:
    rows = harness.spread_rows(length, count)
    assert len(rows) == min(length, count)
    assert (np.diff(rows) > 0).all()
    assert rows[0] == 0
    assert rows[-1] < length
    if count > 2 * harness.RUN_SAMPLES < length:
        assert rows[-1] > length - 2 * harness.RUN_SAMPLES


def test_no_name_in_a_figure_lies_on_another() -> None:
    text = pytest.importorskip("matplotlib.text")
    rows = [
        Measurement("x", label=f"format{number}", samples=1, bytes=size, epoch_warm=20.0 + number % 2)
        for number, size in enumerate((10_000, 10_200, 10_400, 50_000, 50_100, 99_000))
    ]
    about = formats.About("x", "beton", 1, 1, "samples", "how", "machine", 1.0)
    figure = formats.draw(rows, about)
    renderer = figures.renderer(figure)
    boxes = [text.Text.get_window_extent(name, renderer) for name in figure.axes[0].texts]
    frame = figure.axes[0].get_window_extent(renderer)
    assert len(boxes) == len(rows)
    assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 for box in boxes)
    assert not any(combination.overlaps(two) for combination, two in itertools.combinations(boxes, 2))


def test_staged_samples_are_the_same(dataset: str, tmp_path: Path) -> None:
    with bp.open(dataset) as reader:
        rows = harness.spread_rows(len(reader), 40)
        staged = harness.stage(reader, rows, tmp_path / "x", until=None, progress=lambda done: None)
        back = bp.Columns.concat(list(staged.batches()))
        expected = reader.read(rows)
    assert staged.samples == back.rows == 40
    assert [bytes(item) for item in back["image"]] == [bytes(value) for value in expected["image"]]
    assert back["label"].tolist() == expected["label"].tolist()
    assert [item is None for item in back["note"]] == [value is None for value in expected["note"]]


# -- files in and out of memory -----------------------------------------------------------------------------


@pytest.mark.linux
def test_files_are_made_cold_and_warm(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(os.urandom(1 << 20))
    if platform.filesystem(tmp_path) in harness.IN_MEMORY:
        pytest.skip("the temporary folder is in memory")
    with open(path, "rb", buffering=0) as file:
        assert harness.cool(tmp_path)
        assert set(platform.resident_pages(file.fileno())) == {0}
        harness.warm(tmp_path)
        assert set(platform.resident_pages(file.fileno())) == {1}
        # Who has a file mapped keeps it in memory, and it is told.
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            assert sum(view[::4096]) >= 0
            assert not harness.cool(tmp_path)


def test_a_folder_in_memory_is_never_cold() -> None:
    if platform.filesystem("/dev/shm") not in harness.IN_MEMORY or not os.access("/dev/shm", os.W_OK):
        pytest.skip("no folder in memory")
    with harness.scratch_folder("/dev/shm", "", 0) as folder:
        (folder / "x").write_bytes(bytes(1 << 16))
        assert not harness.cool(folder)
    assert not folder.exists()


def test_a_disk_that_is_too_small_is_refused(
    dataset: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, 10_000))
    with bp.open(dataset) as reader, pytest.raises(bp.OptionError, match=r"scratch space.*--sample"):
        measure.formats(reader, ["beton"], scratch=place)
    with bp.open(dataset) as reader, pytest.raises(bp.OptionError, match="--scratch with a larger disk"):
        measure.formats(reader, ["beton"])


def test_wrong_arguments_are_told_before_anything_is_written(dataset: str, place: str) -> None:
    with bp.open(dataset) as reader:
        for names, options, text in (
            (["beton"], {"pipeline": "x"}, "pipeline is one of"),
            (["beton"], {"rounds": 0}, "rounds"),
            (["beton"], {"seconds": 0}, "seconds"),
            (["beton"], {"sample": 0}, "at least 1"),
            (["beton"], {"remote": "/x"}, "URL"),
            ([], {}, "no format"),
            (["npy", "tiff"], {}, "npy cannot hold image fields; tiff is read only"),
        ):
            with pytest.raises(bp.OptionError, match=text):
                measure.formats(reader, names, scratch=place, **options)
        with pytest.raises(bp.NotFoundError, match="scratch"):
            measure.formats(reader, ["beton"], scratch=place + "/nowhere")
        with pytest.raises(bp.OptionError, match="no samples"):
            measure.formats(reader.subset([]), ["beton"], scratch=place)


# -- timing -------------------------------------------------------------------------------------------------


class Noted(bp.Reader):
    """A reader that notes what is asked of it."""

    def __init__(self, base: bp.Reader) -> None:
        self.base, self.path, self.schema, self.length = base, base.path, base.schema, len(base)
        self.asked: list[list[int]] = []

    def _read(self, indices: Any, fields: Any) -> Any:
        self.asked.append(indices.tolist())
        return self.base._read(indices, fields)


def numbers(count: int = 100) -> Noted:
    return Noted(bp.open({"x": np.arange(count)}))


def test_a_first_epoch_has_every_sample_once() -> None:
    reader = numbers()
    for seconds in (None, 60.0):
        reader.asked.clear()
        result = timing.epoch(reader, timing.EpochSettings(256), batch_size=256, seconds=seconds, once=True)
        assert sorted(itertools.chain(*reader.asked)) == list(range(100))
        # A batch of all would be the whole epoch, and its start.
        assert len(reader.asked) == timing.MIN_BATCHES
        assert result.samples == 100
        assert result.first_batch_seconds > 0
        assert result.rate_with_start > 0


def test_a_short_epoch_goes_on_until_enough_batches_came() -> None:
    """However few samples there are, and however short the time; the batches are as large as asked."""
    reader = numbers(3)
    result = timing.epoch(reader, timing.EpochSettings(64), batch_size=64, seconds=0.0)
    assert {len(item) for item in reader.asked} == {64}
    assert result.samples >= 64 * timing.MIN_COUNTED_BATCHES
    assert result.rate > 0
    # Another one: a thread may still be at a batch of the first.
    reader = numbers(3)
    only = timing.epoch(reader, timing.EpochSettings(2), batch_size=2, seconds=0.0, indices=np.array([1, 2]))
    assert set(itertools.chain(*reader.asked)) == {1, 2}
    assert only.rate > 0


def test_the_start_of_an_epoch_is_told_and_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of our own, on which the first batches take long and the others a second each."""
    reader, now = numbers(1000), [0.0]
    monkeypatch.setattr(
        timing, "time", types.SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: 0.0)
    )

    class Slow(timing.Loader):
        def __iter__(self) -> Iterator[Any]:
            for number, batch in enumerate(super().__iter__()):
                now[0] += 100.0 if number < 5 else 1.0
                yield batch

    monkeypatch.setattr(timing, "Loader", Slow)
    result = timing.epoch(reader, timing.EpochSettings(10), batch_size=10, seconds=None)
    assert result.first_batch_seconds == 100
    assert result.rate == pytest.approx(10)
    assert result.rate_with_start == pytest.approx(1000 / 595)


@pytest.mark.parametrize(
    ("asked", "sample_bytes", "rate", "wanted"),
    [
        # As asked, unless such a batch takes long or would be large.
        (256, 8, 1.0, 256),
        (100, 8, 1.0, 100),
        (256, 1 << 20, 1.0, 4),
        (256, 1 << 20, 400.0, 4),
        (256, 1 << 20, 1e9, 8),
        (256, 1 << 14, 400.0, 256),
        (1024, 1 << 14, 24_000.0, 256),
        (256, 1 << 30, 1e9, 1),
    ],
)
def test_batches_where_the_time_is_short(
    asked: int, sample_bytes: int, rate: float, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []

    def epoch(*_: Any, batch_size: int, **more: Any) -> timing.EpochTiming:
        used.append(batch_size)
        return timing.EpochTiming(0, 0.0, rate, rate, {})

    monkeypatch.setattr(timing, "epoch", epoch)
    how: Any = {"settings": timing.EpochSettings(asked), "sample_bytes": sample_bytes, "seconds": 0.1}
    assert timing.quick_epoch(numbers(), **how)[1] == wanted == used[-1]
    # The next begins with it.
    used.clear()
    assert timing.quick_epoch(numbers(), **how, batch_size=wanted)[1] == wanted
    assert used == [wanted]


def test_a_scan_counts_whole_passes() -> None:
    reader = numbers(100)
    assert min(timing.scan(reader, sample_bytes=8, seconds=None)) > 0
    # Once for nothing, and once.
    assert reader.asked == [list(range(100))] * 2
    reader.asked.clear()
    timing.scan(reader, sample_bytes=8, seconds=0.0, fields=["x"])
    assert all(item == list(range(100)) for item in reader.asked)


def test_a_candidate_is_written_with_its_own_suffix(tmp_path: Path) -> None:
    """It says how files are compressed."""
    reader = bp.open({"x": np.arange(4)})
    for suffix in (".tar.gz", None):
        stored = harness.Harness(str(tmp_path)).store(
            reader.scan(), reader.schema, Candidate("webdataset", {}, suffix), str(suffix)
        )
        assert [Path(path).name for path in stored.paths] == [f"data{suffix or '.tar'}"]
        assert (stored.samples, stored.data, stored.files > 0) == (4, 32, True)


# -- measuring ----------------------------------------------------------------------------------------------


PLUG_IN = """
    import os, signal
    import batchplant as bp
    from batchplant.formats.msgpack import FORMAT as base
    import dataclasses

    class Dies(base.writer):
        def _begin(self, state):
            os.kill(os.getpid(), signal.SIGKILL)

    class Fails(base.writer):
        def _write(self, columns):
            raise bp.EncodeError("not with me", path=self.path)

    class Broken(base.reader):
        def _read(self, indices, fields):
            if len(indices) == 1:
                return super()._read(indices, fields)
            print("going down", flush=True)
            os._exit(3)

    def made(name, reader, writer):
        reader = type(reader.__name__, (reader,), {})
        writer = type(writer.__name__, (writer,), {})
        return dataclasses.replace(base, name=name, suffixes=("." + name,), reader=reader, writer=writer)

    DIES = made("dies", base.reader, Dies)
    FAILS = made("fails", base.reader, Fails)
    BREAKS = made("breaks", Broken, base.writer)
"""


@pytest.fixture
def odd_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Formats of another package that fail in every way; the processes find them too."""
    folder = tmp_path / "packages"
    (folder / "odd-1.dist-info").mkdir(parents=True)
    (folder / "odd_formats.py").write_text(textwrap.dedent(PLUG_IN))
    entries = "".join(f"{name} = odd_formats:{name.upper()}\n" for name in ("dies", "fails", "breaks"))
    (folder / "odd-1.dist-info" / "entry_points.txt").write_text(f"[batchplant.formats]\n{entries}")
    (folder / "odd-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1\n")
    monkeypatch.syspath_prepend(str(folder))
    find.plug_ins.cache_clear()
    yield ["dies", "fails", "breaks"]
    find.plug_ins.cache_clear()
    sys.modules.pop("odd_formats", None)


@pytest.mark.linux
def test_every_row_is_complete_and_a_failure_is_a_row(
    dataset: str, place: str, odd_formats: list[str]
) -> None:
    seen: list[tuple[int, int, str]] = []
    names = ["webdataset", "npz:shard_samples=20", "npy", *odd_formats]
    with bp.open(dataset) as reader:
        rows = measure.formats(
            reader, names, scratch=place, progress=lambda *item: seen.append(item), **{**QUICK, "rounds": 2}
        )
        data = harness.size_of(reader.read(range(N)))
    assert [row.label for row in rows] == names
    tar, shards, npy, dies, fails, breaks = rows
    for item in (tar, shards):
        assert item.error is None
        for name in ALWAYS:
            assert getattr(item, name) > 0, name
        for name in RATES:
            assert 0 < getattr(item, name) <= item.best[name], name
        assert item.best["open_seconds"] <= item.open_seconds
        assert (item.samples, item.data) == (N, data)
        assert item.bytes > data / 2
        assert item.fetched is item.requests is None
        assert 1 <= item.rounds <= 2
    assert tar.files >= 1
    assert shards.files >= 3
    assert npy.error == "npy cannot hold image fields"
    assert "a worker process died: signal 9 (SIGKILL) ended it" in dies.error
    assert fails.error == "data.fails: not with me"
    assert breaks.error == "a worker process died: it ended with exit code 3: going down"
    assert breaks.rounds == 0
    assert seen[0][:2] == (0, seen[-1][1])
    assert [done for done, *_ in seen] == sorted(done for done, *_ in seen)
    assert seen[-1][0] == seen[-1][1]


def test_all_samples_once_where_time_is_no_matter(dataset: str, place: str) -> None:
    with bp.open(dataset) as reader:
        (one,) = measure.formats(
            reader.select(["label"]), ["npy"], scratch=place, seconds=None, rounds=1, pipeline="raw"
        )
    assert one.samples == N
    assert one.data == N * 8
    assert one.error is None
    assert one.rounds == 1


def test_what_the_loader_cannot_do_is_a_remark(place: str, tmp_path: Path) -> None:
    """Images of several sizes, and no pipeline that makes them one: all else is measured."""
    images = [{"image": jpeg(number, 20 + number)} for number in range(8)]
    with bp.create(tmp_path / "x.beton", {"image": bp.Image()}) as out:
        for image in images:
            out.append(image)
    with bp.open(tmp_path / "x.beton") as reader:
        (result,) = measure.formats(reader, ["webdataset"], scratch=place, pipeline="none", **QUICK)
    assert result.error is None
    assert result.random_rate > 0
    assert result.epoch_cold is result.epoch_warm is None
    assert result.remarks[0].startswith("no epoch: ")


@pytest.mark.parametrize("moment", ["round", *exhaustive("taking", "writing")])
def test_an_interrupt_leaves_nothing(dataset: str, place: str, moment: str) -> None:
    def stop(done: int, total: int, what: str) -> None:
        if what.startswith(moment):
            assert os.listdir(place)
            raise KeyboardInterrupt

    with bp.open(dataset) as reader, pytest.raises(KeyboardInterrupt):
        measure.formats(reader, ["webdataset"], scratch=place, progress=stop, **QUICK)


@pytest.mark.exhaustive
def test_a_bucket_counts_bytes_and_is_empty_again(
    dataset: str, place: str, shelf: Callable[[], list[str]]
) -> None:
    with bp.open(dataset) as reader:
        rows = measure.formats(
            reader, ["beton", "webdataset"], scratch=place, remote="s3://writes/tries/", **QUICK
        )
    for row in rows:
        assert row.error is None
        assert row.data <= row.fetched <= 2 * row.bytes
        assert row.requests >= 1
        assert row.epoch_cold > 0
    assert shelf() == []


def test_an_interrupt_leaves_nothing_in_a_bucket(
    dataset: str, place: str, shelf: Callable[[], list[str]]
) -> None:
    def stop(done: int, total: int, what: str) -> None:
        if what.startswith("round"):
            assert shelf()
            raise KeyboardInterrupt

    with bp.open(dataset) as reader, pytest.raises(KeyboardInterrupt):
        measure.formats(reader, ["webdataset"], scratch=place, remote="s3://writes", progress=stop, **QUICK)
    assert shelf() == []
