"""Bytes of files: bounds, ranges, URLs, and targets that are never half there."""

import io
import itertools
import json
import os
import signal
import subprocess
import sys

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchplant as bp
import processes
from batchplant import storage
from batchplant.storage import Partial, open_source, plan_ranges
from batchplant.testing.cases import cells, jpeg

HUGE = 2**63 - 1


@pytest.fixture(params=["local", "memory://"])
def source(request, tmp_path):
    """The bytes 0 … 255, on disk or behind a URL."""
    path = str(tmp_path / "data") if request.param == "local" else f"memory://{tmp_path.name}/data"
    with fsspec.open(path, "wb") as file:
        file.write(bytes(range(256)))
    return open_source(path)


# --- reading ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "size"), [(0, 256), (0, 0), (256, 0), (255, 1), (3, 7)])
def test_views_inside_of_the_file(source, start, size):
    assert source.view(start, size).tobytes() == bytes(range(256))[start : start + size]


@pytest.mark.parametrize(
    ("start", "size"), [(0, 257), (256, 1), (-1, 1), (0, -1), (HUGE, 1), (1, HUGE), (2**70, 1), (300, 0)]
)
def test_views_outside_of_the_file(source, start, size):
    with pytest.raises(bp.DamagedError, match="the file ends at 256") as caught:
        source.view(start, size)
    assert caught.value.path == source.path


def test_a_few_runs(source):
    assert source.peek([(3, 2), (250, 6), (0, 0), (7, 1)]) == bytes([3, 4, *range(250, 256), 7])
    assert source.peek([(3, 2)]) == bytes([3, 4])
    for runs in ([(250, 7)], [(0, 1), (-1, 1)]):
        with pytest.raises(bp.DamagedError, match="the file ends at 256"):
            source.peek(runs)


def test_a_few_runs_of_a_file_that_has_changed(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(bytes(range(256)))
    source = open_source(str(path), 16)
    # The first bytes were read when it was opened, until somebody says that nobody needs them.
    assert source.view(2, 14).tobytes() == source.peek([(2, 14)]) == bytes(range(2, 16))
    source.forget_first()
    os.truncate(path, 100)
    with pytest.raises(bp.DamagedError, match="has become shorter"):
        source.peek([(0, 1), (99, 2)])
    os.truncate(path, 256)
    (tmp_path / "other").write_bytes(b"x" * 256)
    (tmp_path / "other").rename(path)
    assert source.peek([(0, 2), (3, 1)]) == bytes([0, 1, 3])


def test_a_file_that_was_looked_at_is_not_opened_again(tmp_path):
    path = str(tmp_path / "data")
    (tmp_path / "data").write_bytes(bytes(range(256)))
    looked = open_source(path, 16)
    with storage.handing(looked):
        assert open_source(str(tmp_path / "data")) is looked
        # Whoever closes his own must not close another's.
        assert open_source(path) is not looked
    assert open_source(path) is not looked
    looked.close()
    with storage.handing(looked):
        assert open_source(path) is not looked


def test_arrays(source):
    assert source.array("<u2", 2, 2).tolist() == [0x0302, 0x0504]
    with pytest.raises(bp.DamagedError):
        source.array("<u8", 0, 2**61)


@pytest.mark.parametrize(
    ("starts", "sizes", "first"),
    [
        ([0, 255, 256], [256, 1, 0], None),
        ([0, 255], [1, 2], 1),
        ([-1], [1], 0),
        ([0], [-1], 0),
        ([HUGE], [HUGE], 0),
        ([1], [HUGE], 0),
        ([0, 0, 257], [1, 1, 0], 2),
        ([], [], None),
    ],
)
def test_the_first_run_outside(source, starts, sizes, first):
    assert source.outside(np.array(starts, np.int64), np.array(sizes, np.int64)) == first


def test_gathering_many_runs(source):
    starts, sizes = np.array([250, 3, 3, 0, 100, 256]), np.array([6, 4, 4, 0, 1, 0])
    whole = bytes(range(256))
    result = source.gather(starts, sizes)
    assert [cell.tobytes() for cell in result] == [
        whole[a : a + n] for a, n in zip(starts, sizes, strict=True)
    ]
    assert len(source.gather(starts[:0], sizes[:0])) == 0


def test_a_file_object_over_the_same_bytes(source):
    file = source.file()
    assert file.read(3) == b"\0\1\2"
    assert file.seek(-2, io.SEEK_END) == 254
    assert file.read() == b"\xfe\xff"
    assert file.read() == b""
    assert file.seek(1000) == 1000
    assert file.read(1) == b""
    with pytest.raises(OSError, match="before the start"):
        file.seek(-1)


def test_an_empty_file(tmp_path):
    (tmp_path / "a").touch()
    assert open_source(str(tmp_path / "a")).view(0, 0).size == 0


@pytest.mark.parametrize("path", ["{}/nothing", "memory://nothing/here", "{}"])
def test_what_is_not_there(path, tmp_path):
    with pytest.raises(bp.NotFoundError):
        open_source(path.format(tmp_path))


def test_urls_that_nothing_drives():
    with pytest.raises(bp.OptionError, match="nonsense"):
        open_source("nonsense://a/b")


@pytest.mark.usefixtures("_no_settings")
def test_a_file_that_shrinks_behind_a_url():
    with fsspec.open("memory://shrinks/a", "wb") as file:
        file.write(bytes(100_000))
    source = open_source("memory://shrinks/a")
    with fsspec.open("memory://shrinks/a", "wb") as file:
        file.write(bytes(90_050))
    start, size = 90_000, 10_000
    for read in (
        lambda: source.view(start, size),
        lambda: source.gather(np.array([start]), np.array([size])),
    ):
        with pytest.raises(bp.AccessError, match="50 of 10000 bytes came") as caught:
            read()
        assert caught.value.offset == start


RUNS = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 300)), max_size=40)


@given(RUNS, st.integers(0, 500), st.integers(1, 2000))
def test_planned_ranges_hold_every_run_and_are_few_and_bounded(runs, gap, most):
    starts = np.array([start for start, _ in runs], dtype=np.int64)
    sizes = np.array([size for _, size in runs], dtype=np.int64)
    ranges, where = plan_ranges(starts, sizes, gap=gap, most=most)
    for start, size, number in zip(starts, sizes, where, strict=True):
        first, end = ranges[number]
        assert first <= start
        assert start + size <= end
    # Together they reach over nothing but runs and gaps that are worth reading.
    largest = max(sizes.tolist(), default=0)
    assert all(end - first <= max(most, largest) for first, end in ranges)
    edges = sorted(ranges)
    for (first, end), (start, after) in itertools.pairwise(edges):
        assert start > end + gap or max(end, after) - first > most
    assert len(ranges) <= len(runs)


@pytest.mark.parametrize("suffix", [".beton", ".npz", ".npy"])
def test_datasets_behind_urls(suffix, tmp_path):
    schema = {"n": bp.Int(), "x": bp.Tensor("float32", (3,))}
    if suffix != ".npy":
        schema |= {"image": bp.Image(), "text": bp.Text(optional=True)}
    values = [
        {
            "n": n,
            "x": np.full(3, n, np.float32),
            "image": jpeg(8, 8 + n % 3),
            "text": "ä" * n if n % 4 else None,
        }
        for n in range(30)
    ]
    with bp.create(tmp_path / f"a{suffix}", schema) as out:
        for value in values:
            out.append({name: value[name] for name in schema})
    url = f"memory://{tmp_path.name}/a{suffix}"
    with fsspec.open(url, "wb") as file:
        file.write((tmp_path / f"a{suffix}").read_bytes())
    with bp.open(url) as there, bp.open(tmp_path / f"a{suffix}") as here:
        assert there.schema == here.schema
        assert cells(there) == cells(here)
        assert there[7]["n"] == 7
        order = [29, 3, 3, 0]
        assert cells(there.subset(order)) == cells(here.subset(order))
    assert bp.verify(url, decode=True, against=tmp_path / f"a{suffix}").problems == []
    bp.convert(url, tmp_path / "copy.npz")
    assert bp.verify(tmp_path / "copy.npz", against=url).problems == []


def test_shards_behind_urls(tmp_path):
    for number in range(3):
        with fsspec.open(f"memory://{tmp_path.name}/part-{number:02}.npy", "wb") as file:
            np.save(file, np.arange(number * 5, number * 5 + 5))
    with bp.open(f"memory://{tmp_path.name}/part-{{00..02}}.npy") as reader:
        assert [sample["data"] for sample in reader] == list(range(15))


# --- writing ------------------------------------------------------------------------------------------


def test_the_target_appears_when_it_is_complete(tmp_path):
    target = tmp_path / "new" / "a.bin"
    partial = Partial(str(target))
    spool = partial.spool("data")
    spool.write(b"hello")
    spool.write_at(b"J", 0)
    spool.write(np.array([[1, 2]], np.uint8))
    assert spool.read_at(5, 0) == b"Jello"
    assert not target.exists()
    assert os.listdir(tmp_path / "new") == [".a.bin.partial"]
    partial.spool("beside").write(b"sums")
    partial.spool("other").write(b"0")
    partial.commit("data", [("beside", "{name}.crc"), ("other", "{stem}.idx")])
    assert target.read_bytes() == b"Jello\1\2"
    assert sorted(os.listdir(tmp_path / "new")) == ["a.bin", "a.bin.crc", "a.idx"]


def test_discarding_leaves_nothing(tmp_path):
    partial = Partial(str(tmp_path / "a"))
    partial.spool("data").write(b"x")
    partial.discard()
    assert os.listdir(tmp_path) == []


def test_a_target_that_appeared_meanwhile_is_not_touched(tmp_path):
    partial = Partial(str(tmp_path / "a"))
    partial.spool("data").write(b"new")
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(bp.ExistsError):
        partial.commit("data")
    assert (tmp_path / "a").read_bytes() == b"old"
    partial.discard()


@pytest.mark.parametrize("target", ["/", ".", ""])
def test_targets_without_a_name(target):
    with pytest.raises(bp.OptionError, match="needs a name"):
        Partial(target, overwrite=True)


def test_resuming_goes_back_to_the_checkpoint(tmp_path):
    partial = Partial(str(tmp_path / "a"))
    partial.spool("data").write(b"kept")
    partial.checkpoint({"own": 7})
    partial.spool("data").write(b" and lost")
    partial.spool("later").write(b"lost")
    partial.suspend()
    again = Partial(str(tmp_path / "a"), resume=True)
    assert again.state["own"] == 7
    assert again.spool("data").size == 4
    assert again.spool("later").size == 0
    again.spool("data").write(b"!")
    again.commit("data")
    assert (tmp_path / "a").read_bytes() == b"kept!"


@pytest.mark.parametrize("resume", [False, True])
def test_without_a_checkpoint_there_is_nothing_to_resume(resume, tmp_path):
    partial = Partial(str(tmp_path / "a"))
    partial.spool("data").write(b"lost")
    (partial.folder / "folder").mkdir()
    partial.suspend()
    again = Partial(str(tmp_path / "a"), resume=resume)
    assert again.state is None
    assert os.listdir(again.folder) == ["lock"]
    again.discard()


def drop(folder):
    (folder / "data").unlink()


def shorten(folder):
    os.truncate(folder / "data", 1)


def write_state(text):
    def write(folder):
        (folder / "state.json").write_text(text)

    return write


def change_state(folder):
    text = (folder / "state.json").read_text()
    (folder / "state.json").write_text(text.replace('"data": 4', '"data": 3'))


@pytest.mark.parametrize(
    "spoil",
    [drop, shorten, change_state, write_state("{"), write_state("[]"), write_state("{}"),
     write_state('{"spools": 5}'), write_state('{"spools": {"data": "x"}}')],
)  # fmt: skip
def test_a_checkpoint_that_is_not_whole_is_begun_anew(spoil, tmp_path):
    partial = Partial(str(tmp_path / "a"))
    partial.spool("data").write(b"kept")
    partial.checkpoint({})
    partial.suspend()
    spoil(partial.folder)
    again = Partial(str(tmp_path / "a"), resume=True)
    assert again.state is None
    assert again.spool("data").size == 0
    again.discard()


def test_two_writers_in_one_process(tmp_path):
    first = Partial(str(tmp_path / "a"))
    with pytest.raises(bp.BusyError, match="another process is writing it"):
        Partial(str(tmp_path / "a"))
    first.discard()
    Partial(str(tmp_path / "a")).discard()


HOLD = """
import sys
import batchplant as bp
out = bp.create(sys.argv[1], {"n": bp.Int()})
out.append({"n": 1})
out.checkpoint({})
print("writing", flush=True)
sys.stdin.read()
"""


def test_another_process_that_is_killed(tmp_path):
    target = tmp_path / "a.npz"
    command = [sys.executable, "-c", HOLD, str(target)]
    with processes.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "writing\n"
        with pytest.raises(bp.BusyError):
            bp.create(target, {"n": bp.Int()})
        assert os.listdir(tmp_path) == [".a.npz.partial"]
    assert other.returncode == -signal.SIGKILL
    assert os.listdir(tmp_path) == [".a.npz.partial"]
    state = json.loads((tmp_path / ".a.npz.partial" / "state.json").read_text().splitlines()[0])
    assert state["written"] == 1
    with bp.create(target, {"n": bp.Int()}) as out:
        out.append({"n": 2})
    assert os.listdir(tmp_path) == ["a.npz"]
    assert list(bp.open(target)) == [{"n": 2}]
