"""Reading many runs of a file at once: the native part, and how a mapped file uses it."""

import errno
import itertools
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import batchplant as bp
import processes
from batchplant import _native
from batchplant.storage import MappedSource, local, open_source

SIZE = 3 << 20
WAYS = [True, False]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("fetch") / "file"
    path.write_bytes(np.random.default_rng(0).bytes(SIZE))
    return path


@pytest.fixture
def fd(file):
    opened = os.open(file, os.O_RDONLY)
    yield opened
    os.close(opened)


def fetch(fd, starts, sizes, ring, threads=4):
    starts, sizes = np.array(starts, np.int64), np.array(sizes, np.int64)
    places = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    out = np.zeros(places[-1], np.uint8)
    failed = _native.fetch_runs(fd, starts, sizes, out, places[:-1], threads, ring)
    return failed, [out[a:b].tobytes() for a, b in itertools.pairwise(places)]


def drop(path):
    """Have the kernel forget what it holds of a file in memory."""
    with open(path, "rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# --- the native part ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ring", WAYS)
@pytest.mark.parametrize("count", [0, 1, 3, 128, 129, 1000])
def test_runs_arrive_where_they_belong(count, ring, file, fd):
    rng = np.random.default_rng(count)
    sizes = rng.integers(0, 3000, count)
    starts = rng.integers(0, SIZE - 3000, count)
    failed, actual = fetch(fd, starts, sizes, ring)
    whole = file.read_bytes()
    assert failed is None
    assert actual == [whole[a : a + n] for a, n in zip(starts, sizes, strict=True)]


@pytest.mark.parametrize("ring", WAYS)
def test_runs_longer_than_one_request(ring, file, fd):
    whole = file.read_bytes()
    failed, actual = fetch(fd, [0, 1, SIZE - 1, SIZE], [SIZE, SIZE - 1, 1, 0], ring)
    assert failed is None
    assert actual == [whole, whole[1:], whole[-1:], b""]


@pytest.mark.parametrize("ring", WAYS)
@pytest.mark.parametrize(
    ("starts", "sizes", "first"),
    [
        ([0, SIZE - 5], [10, 6], 1),
        ([SIZE], [1], 0),
        ([0, 2**60, 1, 2**61], [1, 1, 1, 1], 1),
        ([7], [SIZE], 0),
    ],
)
def test_the_first_run_behind_the_end_is_named(starts, sizes, first, ring, fd):
    assert fetch(fd, starts, sizes, ring)[0] == (first, 0)


@pytest.mark.parametrize("ring", WAYS)
def test_an_error_of_the_file_is_named(ring, tmp_path):
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        assert fetch(folder, [0, 5], [4, 4], ring)[0] == (0, errno.EISDIR)
    finally:
        os.close(folder)
    assert fetch(10**6, [0], [4], ring)[0] == (0, errno.EBADF)


@pytest.mark.parametrize(
    ("starts", "sizes", "places"),
    [
        ([-1], [1], [0]),
        ([0], [-1], [0]),
        ([0], [1], [10]),
        ([0], [11], [0]),
        ([0], [1], [-1]),
        ([2**62], [2**62], [0]),
    ],
)
def test_runs_that_do_not_fit_are_refused(starts, sizes, places, fd):
    arrays = [np.array(item, np.int64) for item in (starts, sizes, places)]
    with pytest.raises(IndexError, match="run 0"):
        _native.fetch_runs(fd, arrays[0], arrays[1], np.zeros(10, np.uint8), arrays[2])


@pytest.mark.parametrize("ring", WAYS)
def test_many_threads_fetch_at_once(ring, file, fd):
    whole = file.read_bytes()

    def work(seed):
        starts = np.random.default_rng(seed).integers(0, SIZE - 500, 200)
        failed, actual = fetch(fd, starts, [500] * 200, ring)
        return failed is None and actual == [whole[a : a + 500] for a in starts]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(40)))


# From Python 3.12 on forking a process that has threads warns.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_fetches_too(file, fd):
    fetch(fd, range(300), [100] * 300, True)
    whole = file.read_bytes()
    assert processes.in_fork(
        lambda: all(
            fetch(fd, [5, SIZE - 9], [20, 9], ring) == (None, [whole[5:25], whole[-9:]]) for ring in WAYS
        )
    )


def test_how_this_machine_fetches():
    assert _native.features()["fetch"] in ("io_uring", "threads")


# A seccomp filter that answers io_uring_setup with EPERM, as containers do.
_FORBIDDEN = """
import ctypes, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
code = struct.pack("HBBI", 0x20, 0, 0, 0) + struct.pack("HBBI", 0x15, 0, 1, 425)
code += struct.pack("HBBI", 0x06, 0, 0, 0x00050001) + struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)
buffer = ctypes.create_string_buffer(code)
program = struct.pack("HxxxxxxP", 4, ctypes.addressof(buffer))
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program, 0, 0):
    sys.exit(77)
import os
import numpy as np
from batchplant import _native
fd = os.open(sys.argv[1], os.O_RDONLY)
out = np.zeros(400, np.uint8)
starts = np.arange(4) * 1000
assert _native.fetch_runs(fd, starts, np.full(4, 100), out, np.arange(4) * 100) is None
whole = open(sys.argv[1], "rb").read()
assert out.tobytes() == b"".join(whole[a : a + 100] for a in starts)
assert _native.features()["fetch"] == "threads"
"""


def test_where_the_ring_is_forbidden(file):
    done = processes.run([sys.executable, "-c", _FORBIDDEN, str(file)], capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("no seccomp filter can be set here")
    assert done.returncode == 0, done.stderr


# --- what is in memory --------------------------------------------------------------------------------------


def test_what_is_in_memory_is_told(file, fd):
    mapping = _native.map_file(fd)
    starts, sizes = np.arange(0, SIZE - 4096, 4096), np.full(SIZE // 4096 - 1, 4096)
    starts = starts[: len(sizes)]
    mapping.sum()
    assert _native.resident_fraction(mapping, starts, sizes) == 1
    assert _native.cached_fraction(fd, starts, sizes) in (1, -1)
    assert _native.resident_fraction(mapping, starts[:0], sizes[:0]) == 1
    _native.will_need(mapping, starts, sizes)
    with pytest.raises(IndexError, match="run 0"):
        _native.resident_fraction(mapping, np.array([SIZE]), np.array([1]))
    with pytest.raises(IndexError, match="run 1"):
        _native.will_need(mapping, np.array([0, 1]), np.array([1, SIZE]))


def test_what_is_not_in_memory_is_told(tmp_path):
    path = tmp_path / "cold"
    path.write_bytes(bytes(1 << 20))
    drop(path)
    opened = open_source(str(path))
    starts, sizes = np.arange(0, 1 << 20, 1 << 16), np.full(16, 1000)
    if _native.resident_fraction(opened.data, starts, sizes) == 1:
        pytest.skip("this file system keeps every file in memory")
    assert _native.resident_fraction(opened.data, starts, sizes) < 1
    opened.request(starts, sizes)
    opened.gather(starts, sizes)
    opened.data.sum()
    assert _native.resident_fraction(opened.data, starts, sizes) == 1


def test_one_run_of_many_that_is_not_in_memory_is_seen(tmp_path):
    """A few pages do not tell of it; a page of each run does."""
    path = tmp_path / "cold"
    path.write_bytes(bytes(1 << 20))
    drop(path)
    opened = open_source(str(path))
    starts, sizes = np.arange(0, 1 << 20, 1 << 16), np.full(16, 1000)
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for start in np.delete(starts, 13).tolist():
            os.pread(file.fileno(), 1, start)
    if _native.resident_fraction(opened.data, starts[13:14], sizes[13:14]) == 1:
        pytest.skip("this file system keeps every file in memory, or reads around what is asked for")
    assert opened.in_memory(starts, sizes)
    assert not opened.in_memory(starts, sizes, each=True)
    assert _native.resident_fraction(opened.data, starts, sizes, each=True) == 15 / 16


def test_mapping_a_file(file, tmp_path):
    with open(file, "rb") as opened:
        mapping = _native.map_file(opened.fileno())
    assert mapping.tobytes() == file.read_bytes()
    assert not mapping.flags.writeable
    (tmp_path / "empty").touch()
    with open(tmp_path / "empty", "rb") as opened:
        assert len(_native.map_file(opened.fileno())) == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        _native.map_file(10**6)


# --- a mapped file ------------------------------------------------------------------------------------------

STARTS, SIZES = np.arange(20) * 5000, np.arange(20) * 37


@pytest.fixture
def counted(monkeypatch):
    """Counts the calls of fetch_runs."""
    calls = []
    real = _native.fetch_runs

    class Counting:
        def __getattr__(self, name):
            return getattr(_native, name)

        def fetch_runs(self, *args):
            calls.append(args)
            return real(*args)

        def resident_fraction(self, *args):
            return 0.5

        def gather_runs(self, data, starts, sizes, if_resident):
            return None if if_resident else _native.gather_runs(data, starts, sizes)

        def gather_runs_crc32(self, *args):
            return None

    monkeypatch.setattr(local, "_native", Counting())
    return calls


def expected(file):
    whole = file.read_bytes()
    return [whole[a : a + n] for a, n in zip(STARTS, SIZES, strict=True)]


def test_what_is_not_in_memory_is_fetched(file, counted):
    opened = open_source(str(file))
    assert [item.tobytes() for item in opened.gather(STARTS, SIZES)] == expected(file)
    sums, which = (
        np.array([_native.crc32(value) for value in expected(file)], np.uint32),
        np.arange(len(STARTS)),
    )
    records, bad = opened.gather_checked(STARTS, SIZES, sums, which)
    assert [record.tobytes() for record in records] == expected(file)
    assert bad == -1
    sums[7] += 1
    assert opened.gather_checked(STARTS, SIZES, sums, which)[1] == 7
    assert len(counted) == 3
    opened.gather(STARTS[:3], SIZES[:3])
    assert len(counted) == 3


def test_a_few_runs_tell_nothing_of_the_rest(file, counted):
    """Nobody asks where two runs are, so the next are looked for."""
    opened = open_source(str(file))
    opened.gather(STARTS[:2], SIZES[:2])
    assert not opened.was_warm
    opened.gather(STARTS, SIZES)
    assert len(counted) == 1


def test_what_is_in_memory_is_copied(file, monkeypatch):
    opened = open_source(str(file))
    opened.data.sum()
    monkeypatch.setattr(opened, "_fetch", lambda *_: pytest.fail("it is in memory"))
    assert [item.tobytes() for item in opened.gather(STARTS, SIZES)] == expected(file)
    sums, which = (
        np.array([_native.crc32(value) for value in expected(file)], np.uint32),
        np.arange(len(STARTS)),
    )
    records, bad = opened.gather_checked(STARTS, SIZES, sums, which)
    assert [record.tobytes() for record in records] == expected(file)
    assert bad == -1
    sums[7] += 1
    assert opened.gather_checked(STARTS, SIZES, sums, which)[1] == 7


@pytest.mark.parametrize(("cached", "fetches"), [(1, 0), (0.9, 1), (-1, 1)])
def test_a_file_that_others_own(cached, fetches, file, counted, monkeypatch):
    """The kernel does not say what of the mapping is in memory; reading without waiting may tell."""
    opened = open_source(str(file))
    opened._residency_known = False
    monkeypatch.setattr(local._native, "cached_fraction", lambda *_: cached, raising=False)
    assert [item.tobytes() for item in opened.gather(STARTS, SIZES)] == expected(file)
    assert len(counted) == fetches
    opened.request(STARTS, SIZES)


def test_a_file_that_became_shorter(tmp_path, counted):
    path = tmp_path / "a"
    path.write_bytes(bytes(100_000))
    opened = open_source(str(path))
    os.truncate(path, 40_000)
    with pytest.raises(bp.DamagedError, match="become shorter") as caught:
        opened.gather(STARTS, SIZES)
    assert caught.value.offset == 40_000
    assert caught.value.path == str(path)


@pytest.mark.parametrize("how", ["replaced", "removed"])
def test_a_file_that_is_another_by_now(how, tmp_path, counted):
    path = tmp_path / "a"
    path.write_bytes(b"old" * 50_000)
    opened = open_source(str(path))
    if how == "removed":
        path.unlink()
    else:
        (tmp_path / "b").write_bytes(b"new" * 50_000)
        os.replace(tmp_path / "b", path)
    result = opened.gather(STARTS, SIZES)
    assert set(result.data.tobytes()) == set(b"old")
    assert counted == []


def test_missing_cells_are_not_called_for(file, monkeypatch):
    opened = open_source(str(file))
    opened._residency_known = False
    asked = []
    monkeypatch.setattr(
        local._native, "will_need", lambda data, *runs: asked.append([run.tolist() for run in runs])
    )
    opened.request(np.array([7, 300]), np.array([-1, 100]))
    assert asked == [[[7, 300], [0, 100]]]
    monkeypatch.undo()
    # Of the kernel itself, which would refuse a run before the file's begin.
    opened.request(np.array([0, 300]), np.array([-1, 100]))
    assert opened.view(300, 100).tobytes() == file.read_bytes()[300:400]


def test_more_files_than_a_process_may_open(tmp_path):
    script = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from batchplant.storage import open_source
import numpy as np
files = [open_source(f"{tmp_path}/{{number}}") for number in range(200)]
starts = np.arange(4) * 10
for number, file in enumerate(files):
    file._residency_known = False
    assert file.gather(starts, np.full(4, 3)).data.tobytes() == bytes([number]) * 12
"""
    for number in range(200):
        (tmp_path / str(number)).write_bytes(bytes([number]) * 100)
    done = processes.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_closed_is_closed(file):
    opened = MappedSource(str(file))
    opened.close()
    with pytest.raises(bp.OptionError, match="was closed"):
        opened.view(0, 1)
