"""The cache of blocks on disk: right bytes or none, never over its limit, whoever is killed or stopped."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import multiprocessing
import os
import random
import shutil
import signal
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

import processes
from batchplant.errors import AccessError, BusyError, OptionError
from batchplant.storage.remote import disk
from batchplant.storage.remote.disk import DiskCache, open_cache
from batchplant.testing.cases import EXHAUSTIVE

hypothesis = pytest.importorskip("hypothesis")
st = pytest.importorskip("hypothesis.strategies")

URL = "s3://bucket/train/a.tar"
FORK = multiprocessing.get_context("fork")


def key_of(name: object) -> str:
    return hashlib.sha256(str(name).encode()).hexdigest()


KEY = key_of(URL)


def bytes_of(name: object, start: int, size: int) -> np.ndarray:
    """What a block holds; no two have the same."""
    seed = int(hashlib.sha256(f"{name} {start}".encode()).hexdigest()[:8], 16)
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def blocks_in(folder: Path) -> dict[str, Path]:
    return {path.name: path for path in folder.glob("??/[!.]*")}


def drafts_in(folder: Path) -> list[Path]:
    return list(folder.glob("??/.*"))


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """As another process would hold the lock."""
    with open(folder / disk.FILE_NAME, "rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def taken(folder: Path) -> int:
    """What du would say, in a moment when nobody adds or removes anything."""
    with locked(folder):
        result = [os.lstat(folder)]
        for place, folders, files in os.walk(folder):
            for name in [*folders, *files]:
                # A damaged block goes without the lock.
                with contextlib.suppress(FileNotFoundError):
                    result.append(os.lstat(os.path.join(place, name)))
    # Those who wait for the lock shall get it.
    time.sleep(0.005)
    return sum(item.st_blocks * 512 for item in result)


def check_total(folder: Path) -> None:
    """The total is not lower than what it counts."""
    with locked(folder):
        cache = disk.CacheFolder.__new__(disk.CacheFolder)
        cache.folder, cache._unit = str(folder), disk.MIN_FILE_BYTES
        counted = cache.count()[0]
        data = (folder / disk.FILE_NAME).read_bytes()
    output = disk.RECORD.unpack(data[: disk.RECORD.size])[1]
    assert output >= counted


# --- one process ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 300_000])
def test_what_was_put_comes_back(tmp_path: Path, size: int) -> None:
    cache = DiskCache(tmp_path / "cache", 1 << 20)
    data = bytes_of("a", 7, size)
    assert cache.get(KEY, 7, size) is None
    cache.put(KEY, 7, data)
    for reader in (cache, DiskCache(tmp_path / "cache", 1 << 20)):
        result = reader.get(KEY, 7, size)
        assert result is not None
        assert result.dtype == np.uint8
        assert np.array_equal(result, data)
        assert not result.flags.writeable
    assert cache.get(KEY, 8, size) is None
    assert cache.get(KEY, 7, size + 1) is None
    assert cache.get(key_of("b"), 7, size) is None
    assert (cache.hits, cache.misses, cache.added, cache.failed) == (1, 4, 1, 0)
    assert stat.S_IMODE(os.stat(tmp_path / "cache").st_mode) == 0o700
    assert {stat.S_IMODE(value.stat().st_mode) for value in blocks_in(tmp_path / "cache").values()} == {0o600}


def test_strided_data_is_kept(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1 << 20)
    data = bytes_of("a", 0, 2000)
    cache.put(KEY, 0, data[::2])
    assert np.array_equal(cache.get(KEY, 0, 1000), data[::2])


def test_one_cache_for_a_process_and_folder(tmp_path: Path) -> None:
    assert open_cache(tmp_path, 1000) is open_cache(str(tmp_path), 1000)
    assert open_cache(tmp_path, 1000) is not open_cache(tmp_path / "other", 1000)


def test_a_block_is_checked_once(tmp_path: Path) -> None:
    writer, reader = DiskCache(tmp_path, 1 << 20), DiskCache(tmp_path, 1 << 20)
    writer.put(KEY, 0, bytes_of("a", 0, 100))
    with mock.patch.object(disk, "_is_intact", wraps=disk._is_intact) as check:
        for _ in range(3):
            assert reader.get(KEY, 0, 100) is not None
            # Who wrote it knows.
            assert writer.get(KEY, 0, 100) is not None
        assert check.call_count == 1
        # Another file under the same name is checked again.
        (path,) = blocks_in(tmp_path).values()
        path.with_name("copy").write_bytes(path.read_bytes())
        path.with_name("copy").rename(path)
        assert reader.get(KEY, 0, 100) is not None
        assert check.call_count == 2


def damaged(whole: bytes) -> Iterator[tuple[str, bytes]]:
    for number in range(len(whole)):
        flipped = bytearray(whole)
        flipped[number] ^= 1 << number % 8
        yield f"byte {number} flipped", bytes(flipped)
        yield f"cut at {number}", whole[:number]
    yield "a byte more", whole + b"\0"
    yield "zeros", bytes(len(whole))


def test_damage_is_a_miss_and_goes(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1 << 20)
    cache.describe(KEY, URL, "tag", 1000)
    data = bytes_of("a", 0, 40)
    cache.put(KEY, 0, data)
    (path,) = blocks_in(tmp_path).values()
    whole = path.read_bytes()
    for what, bad in damaged(whole):
        reader = DiskCache(tmp_path, 1 << 20)
        path.write_bytes(bad)
        assert reader.get(KEY, 0, 40) is None, what
        assert reader.damaged == 1, what
        assert not path.exists(), what
    cache.put(KEY, 0, data)
    assert np.array_equal(cache.get(KEY, 0, 40), data)
    # Who has found it whole sees that it is shorter: a mapping must not end before its bytes do.
    path.write_bytes(path.read_bytes()[:-1])
    assert cache.get(KEY, 0, 40) is None


def test_a_block_under_another_name_is_damage(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1 << 20)
    cache.put(KEY, 0, bytes_of("a", 0, 40))
    (path,) = blocks_in(tmp_path).values()
    path.rename(path.with_name(f"{KEY}-40-40"))
    assert cache.get(KEY, 40, 40) is None
    assert cache.damaged == 1


def test_a_block_larger_than_the_limit_is_not_kept(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 100_000)
    cache.put(KEY, 0, bytes_of("a", 0, 1000))
    cache.put(KEY, 5, bytes_of("a", 5, 100_000))
    assert cache.get(KEY, 5, 100_000) is None
    assert cache.get(KEY, 0, 1000) is not None
    assert (cache.refused, cache.space.evicted) == (1, 0)
    nothing = DiskCache(tmp_path / "none", 0)
    nothing.put(KEY, 0, bytes_of("a", 0, 10))
    assert not blocks_in(tmp_path / "none")


@pytest.mark.parametrize("key", ["", "../../etc", "ab", "ABCDEF01", "0123456g", "01234567/x"])
def test_a_key_is_a_hash(tmp_path: Path, key: str) -> None:
    cache = DiskCache(tmp_path, 1 << 20)
    for call in (
        lambda: cache.get(key, 0, 1),
        lambda: cache.put(key, 0, bytes_of("a", 0, 1)),
        lambda: cache.expect(key, [(0, 1, 0.0)]),
        lambda: cache.describe(key, URL, "", 1),
    ):
        with pytest.raises(OptionError, match="hexadecimal"):
            call()


# --- what goes first --------------------------------------------------------------------------------


class Clock(SimpleNamespace):
    """Stands in for the module ``time``."""

    def __init__(self) -> None:
        super().__init__(now=2_000_000_000.0, sleep=time.sleep)

    def time(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return int(self.now * 1e9)

    monotonic = time


@pytest.fixture
def clock() -> Iterator[Clock]:
    with clocked() as result:
        yield result


@contextlib.contextmanager
def clocked() -> Iterator[Clock]:
    clock = Clock()
    with mock.patch.object(disk, "time", clock):
        yield clock


def fill(cache: DiskCache, clock: Clock, count: int, size: int = 20_000, due: object = None) -> list[int]:
    """Put blocks 0, 1, …, ten seconds apart; gives those that are there then."""
    for number in range(count):
        clock.now += 10
        cache.put(KEY, number, bytes_of("a", number, size), due(number) if callable(due) else None)
    return kept(cache)


def kept(cache: DiskCache) -> list[int]:
    return sorted(int(name.split("-")[1]) for name in blocks_in(Path(cache.folder)))


def test_least_recently_used_goes_first(tmp_path: Path, clock: Clock) -> None:
    cache = DiskCache(tmp_path, 300_000)
    assert fill(cache, clock, 10) == list(range(10))
    clock.now += 10
    for number in (0, 3):
        cache.get(KEY, number, 20_000)
    clock.now += 10
    cache.put(KEY, 50, bytes_of("a", 50, 100_000))
    left = kept(cache)
    assert {0, 3, 50} <= set(left)
    gone = set(range(10)) - set(left)
    assert gone == set([number for number in range(10) if number not in (0, 3)][: len(gone)])
    assert gone


def test_what_is_needed_latest_goes_first(tmp_path: Path, clock: Clock) -> None:
    cache = DiskCache(tmp_path, 300_000)
    begin = clock.now
    assert len(fill(cache, clock, 10, due=lambda number: begin + 1000 + (number * 7) % 10)) == 10
    cache.put(KEY, 50, bytes_of("a", 50, 100_000), begin + 999)
    by_need = sorted(range(10), key=lambda number: (number * 7) % 10)
    left = [item for item in kept(cache) if item != 50]
    assert sorted(by_need[: len(left)]) == left
    assert len(left) < 10


def test_expect_changes_the_plan(tmp_path: Path, clock: Clock) -> None:
    cache = DiskCache(tmp_path, 300_000)
    fill(cache, clock, 10)
    # The ones used last are needed last, one used long ago is needed soon.
    cache.expect(KEY, [(number, 20_000, clock.now + 5000 + number) for number in (7, 8, 9)])
    cache.expect(KEY, [(99, 20_000, clock.now + 5), (0, 20_000, clock.now + 3)])
    cache.put(KEY, 50, bytes_of("a", 50, 90_000))
    assert set(range(10)) - set(kept(cache)) >= {8, 9}
    assert {0, 50, 2} <= set(kept(cache))


def test_an_earlier_need_of_another_process_stays(tmp_path: Path, clock: Clock) -> None:
    cache = DiskCache(tmp_path, 300_000)
    cache.put(KEY, 0, bytes_of("a", 0, 100), clock.now + 1000)
    (path,) = blocks_in(tmp_path).values()

    def due() -> int:
        return round(path.stat().st_mtime - clock.now)

    with mock.patch.object(os, "getpid", return_value=os.getpid() + 1):
        cache.expect(KEY, [(0, 100, clock.now + 5000)])
        assert due() == 1000
        cache.expect(KEY, [(0, 100, clock.now + 500)])
        assert due() == 500
    # Its own plan a process changes as it likes; one that has passed is nobody's.
    cache.expect(KEY, [(0, 100, clock.now + 200)])
    cache.expect(KEY, [(0, 100, clock.now + 3000)])
    assert due() == 3000
    clock.now += 4000
    with mock.patch.object(os, "getpid", return_value=os.getpid() + 1):
        cache.expect(KEY, [(0, 100, clock.now + 9000)])
    assert due() == 9000


@pytest.mark.parametrize("due", [float("inf"), float("nan"), -5.0, 1e300])
def test_any_time_will_do(tmp_path: Path, due: float) -> None:
    cache = DiskCache(tmp_path, 300_000)
    cache.put(KEY, 0, bytes_of("a", 0, 100), due)
    cache.expect(KEY, [(0, 100, due)])
    assert cache.get(KEY, 0, 100) is not None
    assert cache.failed == 0


def test_using_a_block_is_noted_but_not_every_time(tmp_path: Path, clock: Clock) -> None:
    cache = DiskCache(tmp_path, 300_000)
    cache.put(KEY, 0, bytes_of("a", 0, 100))
    with mock.patch.object(os, "utime", wraps=os.utime) as touched:
        for _ in range(20):
            clock.now += 1
            cache.get(KEY, 0, 100)
    assert 2 <= touched.call_count <= 4
    # A plan stays.
    cache.expect(KEY, [(0, 100, clock.now + 100)])
    with mock.patch.object(os, "utime", wraps=os.utime) as touched:
        cache.get(KEY, 0, 100)
    assert touched.call_count == 0


NUMBERS = st.integers(0, 11)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), NUMBERS, st.none() | st.integers(1, 500)),
        st.tuples(st.just("get"), NUMBERS, st.none()),
        st.tuples(st.just("expect"), NUMBERS, st.integers(1, 500)),
    ),
    min_size=10,
    max_size=60,
)


@hypothesis.given(steps=STEPS, seed=st.integers(0, 1000))
def test_eviction_is_what_a_simple_model_says(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int | None]], seed: int
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    most = 160_000
    rng = random.Random(seed)
    sizes = [rng.randrange(1000, 50_000) for _ in range(12)]
    planned: dict[int, float] = {}
    used: dict[int, float] = {}

    with clocked() as clock:
        cache = DiskCache(folder, most)

        def need(number: int) -> float:
            if planned.get(number, 0) > clock.now:
                return planned[number]
            last = max(used[number], planned.get(number, 0))
            return 2 * clock.now - last

        for what, number, due in steps:
            # Longer than the time in which a use is not noted again, and no two needs at the same moment.
            clock.now += rng.randrange(6, 40) + rng.random()
            there = set(kept(cache))
            size = sizes[number]
            when = None if due is None else clock.now + due + rng.random()
            if what == "get":
                result = cache.get(KEY, number, size)
                assert (result is not None) == (number in there)
                if result is not None:
                    assert np.array_equal(result, bytes_of("a", number, size))
                    # A plan that is still to come stays.
                    if planned.get(number, 0) <= clock.now:
                        used[number] = clock.now
                continue
            if what == "expect":
                cache.expect(KEY, [(number, size, when)])
                if number in there:
                    planned[number] = when
                continue
            before = cache.space._total.read()
            cache.put(KEY, number, bytes_of("a", number, size), when)
            if when is not None:
                planned[number] = when
            if number in there:
                assert set(kept(cache)) == there
                continue
            used[number] = clock.now
            if when is None:
                planned.pop(number, None)
            left = set(kept(cache)) - {number}
            gone = there - left
            assert number in kept(cache)
            assert left <= there
            if gone:
                assert max(map(need, left), default=0) <= min(map(need, gone)) + 0.01
                # Neither without need nor more than a share of the limit.
                cost = cache.space.cost(size)
                assert before[0] + cost > most - 10_000
                last = min(gone, key=need)
                now = cache.space.count()[0]
                assert now + cache.space.cost(sizes[last]) > most - most // disk.EVICTED_SHARE - 1000
            assert taken(folder) <= most
    shutil.rmtree(folder)


# --- the limit --------------------------------------------------------------------------------------


def test_never_over_the_limit_at_any_moment(tmp_path: Path) -> None:
    most = 600_000
    caches = [DiskCache(tmp_path, most) for _ in range(3)]
    stop, seen, wrong = threading.Event(), [], []

    def watch() -> None:
        while not stop.is_set():
            seen.append(taken(tmp_path))

    def work(cache: DiskCache, seed: int) -> None:
        try:
            rng = random.Random(seed)
            for _ in range(150):
                number, size = rng.randrange(60), 1 + rng.randrange(60) * 1000
                cache.put(key_of(number), number, bytes_of(number, number, size))
                result = cache.get(key_of(number), number, size)
                assert result is None or np.array_equal(result, bytes_of(number, number, size))
        except BaseException as error:
            wrong.append(error)

    for cache in caches:
        cache.wait = processes.PATIENCE
    watcher = threading.Thread(target=watch)
    workers = [threading.Thread(target=work, args=(cache, seed)) for seed, cache in enumerate(caches)]
    for item in (watcher, *workers):
        item.start()
    for worker in workers:
        worker.join()
    stop.set()
    watcher.join()
    assert not wrong
    assert sum(cache.space.evicted for cache in caches) > 10
    assert max(seen) <= most
    # It is used, too.
    assert max(seen) > most * 0.7
    check_total(tmp_path)


def test_each_keeps_to_its_own_limit(tmp_path: Path) -> None:
    large, small = DiskCache(tmp_path, 600_000), DiskCache(tmp_path, 150_000)
    for number in range(10):
        large.put(key_of(number), 0, bytes_of(number, 0, 40_000))
    assert taken(tmp_path) > 400_000
    small.put(KEY, 0, bytes_of("a", 0, 40_000))
    assert small.get(KEY, 0, 40_000) is not None
    assert taken(tmp_path) <= 150_000
    assert small.info().limit == 150_000


def test_a_total_that_is_too_high_is_corrected(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 200_000)
    cache.put(KEY, 0, bytes_of("a", 0, 40_000))
    with cache.space._total.locked(0):
        cache.space._total.write(199_999)
    cache.put(KEY, 1, bytes_of("a", 1, 40_000))
    assert cache.space.evicted == 0
    assert kept(cache) == [0, 1]


@pytest.mark.parametrize("data", [b"", b"\0" * 44, b"x" * 5, b"y" * 100])
def test_a_total_that_is_damaged_is_counted_anew(tmp_path: Path, data: bytes) -> None:
    cache = DiskCache(tmp_path, 200_000)
    cache.put(KEY, 0, bytes_of("a", 0, 150_000))
    (tmp_path / disk.FILE_NAME).write_bytes(data)
    cache.put(KEY, 1, bytes_of("a", 1, 150_000))
    assert kept(cache) == [1]
    assert taken(tmp_path) <= 200_000


def test_a_total_from_before_a_power_cut_is_counted_anew(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 200_000)
    cache.put(KEY, 0, bytes_of("a", 0, 150_000))
    with (
        cache.space._total.locked(0),
        mock.patch.object(disk, "current_boot_id", return_value=bytes(15) + b"x"),
    ):
        cache.space._total.write(10)
    cache.put(KEY, 1, bytes_of("a", 1, 150_000))
    assert kept(cache) == [1]


def test_a_disk_that_fills_up_takes_blocks_from_the_cache(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 10 << 20)
    for number in range(20):
        cache.put(key_of(number), 0, bytes_of(number, 0, 40_000))
    whole = os.statvfs(tmp_path)

    def in_files() -> int:
        return sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*"))

    before = in_files()

    def nearly_full(path: object) -> SimpleNamespace:
        """Another program has taken all but a little of what shall stay free."""
        free = disk.MIN_FREE_BYTES + 30_000 + before - in_files()
        return SimpleNamespace(f_bavail=free // 4096, f_blocks=whole.f_blocks, f_frsize=4096)

    with mock.patch.object(os, "statvfs", nearly_full):
        cache.put(KEY, 0, bytes_of("a", 0, 60_000))
    assert cache.space.evicted >= 1
    assert cache.get(KEY, 0, 60_000) is not None


@pytest.mark.parametrize("call", ["write", "open", "mkdir", "rename"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EIO, errno.EMFILE])
def test_a_block_that_cannot_be_written_is_told_once(tmp_path: Path, call: str, code: int) -> None:
    cache = DiskCache(tmp_path, 1 << 20)

    def fail(*args: object, **how: object) -> None:
        raise OSError(code, os.strerror(code))

    with mock.patch.object(os, call, fail):
        with pytest.warns(RuntimeWarning, match=f"cannot be cached: {os.strerror(code)}"):
            cache.put(KEY, 0, bytes_of("a", 0, 1000))
        # Nor is it tried with every block.
        cache.put(KEY, 1, bytes_of("a", 1, 1000))
        assert cache.failed == 1
        cache._pause_until = 0
        cache.put(KEY, 2, bytes_of("a", 2, 1000))
        assert cache.failed == 2
    cache._pause_until = 0
    cache.put(KEY, 0, bytes_of("a", 0, 1000))
    assert np.array_equal(cache.get(KEY, 0, 1000), bytes_of("a", 0, 1000))
    assert not drafts_in(tmp_path)


# --- the folder -------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OptionError, match="has to be a folder"):
            DiskCache(path, 1000)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / disk.FILE_NAME).symlink_to(tmp_path / "file")
    with pytest.raises(AccessError, match="cannot be used"):
        DiskCache(tmp_path / "linked", 1000)
    assert (tmp_path / "file").read_bytes() == b"mine"
    for where, call, code in ((os, "makedirs", errno.EACCES), (fcntl, "flock", errno.ENOLCK)):
        output = os.strerror(code)
        failing = mock.patch.object(where, call, side_effect=OSError(code, output))
        with failing, pytest.raises(AccessError, match=f"cannot be used: {output}"):
            DiskCache(tmp_path / "other", 1000)


def test_links_and_odd_names_in_the_folder_are_nobodys(tmp_path: Path) -> None:
    folder, outside = tmp_path / "cache", tmp_path / "outside"
    cache = DiskCache(folder, 200_000)
    other = key_of("other")
    assert other[:2] != KEY[:2]
    # A whole block elsewhere, which a link leads to: as a file, and as a folder.
    elsewhere = DiskCache(outside, 1 << 20)
    for key in (KEY, other):
        elsewhere.put(key, 0, bytes_of("a", 0, 40))
    (folder / KEY[:2]).mkdir()
    (folder / KEY[:2] / f"{KEY}-0-40").symlink_to(outside / KEY[:2] / f"{KEY}-0-40")
    (folder / other[:2]).symlink_to(outside / other[:2])
    os.mkfifo(folder / KEY[:2] / f"{KEY}-1-40")
    (folder / KEY[:2] / f"{KEY}-2-40").mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / KEY[:2] / "notes.txt").write_text("mine")
    (folder / "00" if KEY[:2] != "00" else folder / "01").write_text("a file where a folder should be")
    (folder / KEY[:2] / f"{KEY}-007-40").write_text("zeros in front")
    for number in range(3):
        assert cache.get(KEY, number, 40) is None
        cache.expect(KEY, [(number, 40, 5.0)])
    assert cache.get(other, 0, 40) is None
    before = {path: path.lstat().st_mtime_ns for path in outside.glob("??/*")}
    for number in range(20):
        name = key_of(number)
        cache.put(name, 0, bytes_of(number, 0, 30_000))
    assert cache.space.evicted > 0
    assert cache.info().blocks == len(
        [value for value in blocks_in(folder).values() if value.stat().st_size > 20_000]
    )
    cache.clear()
    assert before == {path: path.lstat().st_mtime_ns for path in outside.glob("??/*")}
    assert np.array_equal(elsewhere.get(KEY, 0, 40), bytes_of("a", 0, 40))
    left = sorted(path.name for path in folder.glob("??/*") if path.parent.name == KEY[:2])
    assert left == sorted([f"{KEY}-0-40", f"{KEY}-007-40", f"{KEY}-1-40", f"{KEY}-2-40", "notes.txt"])
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_folder_that_is_removed_is_made_anew(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", 1 << 20)
    cache.put(KEY, 0, bytes_of("a", 0, 1000))
    held = cache.get(KEY, 0, 1000)
    shutil.rmtree(tmp_path / "cache")
    assert cache.get(KEY, 0, 1000) is None
    cache.expect(KEY, [(0, 1000, 5.0)])
    cache.put(KEY, 0, bytes_of("a", 0, 1000))
    assert np.array_equal(cache.get(KEY, 0, 1000), bytes_of("a", 0, 1000))
    assert np.array_equal(held, bytes_of("a", 0, 1000))


# --- what it holds ----------------------------------------------------------------------------------


def test_info_and_clear(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1 << 20)
    urls = [URL, "s3://bucket/train/b.tar", "s3://bucket/training.tar", "https://host/data.bin"]
    for url in urls:
        cache.describe(key_of(url), url, "tag-1", 123_456)
        for number in range(3):
            cache.put(key_of(url), number * 1000, bytes_of(url, number, 1000))
    cache.put(key_of("unknown"), 0, bytes_of("unknown", 0, 10))
    result = DiskCache(tmp_path, 1 << 20).info()
    assert (result.folder, result.limit, result.blocks) == (str(tmp_path), 1 << 20, 13)
    assert taken(tmp_path) <= result.bytes < 2 * taken(tmp_path)
    assert [item.url for item in result.objects] == [*sorted(urls), None]
    assert result.objects[1] == disk.CachedObject(KEY, URL, "tag-1", 123_456, 3000, 3)
    held = cache.get(KEY, 0, 1000)
    assert cache.clear("s3://bucket/train/") > 0
    assert [item.url for item in cache.info().objects] == [
        "https://host/data.bin",
        "s3://bucket/training.tar",
        None,
    ]
    for nothing in ("s3://bucket/nothing", "s3://bucket/train", "s3://bucket/train*.zip", []):
        assert cache.clear(nothing) == 0
    assert cache.clear(["s3://bucket/*.tar", "s3://other"]) > 0
    assert [item.url for item in cache.info().objects] == [urls[3], None]
    assert cache.clear("https://host/data.bin?token=1") > 0
    assert cache.clear() > 0
    assert cache.info().objects == ()
    assert np.array_equal(held, bytes_of(URL, 0, 1000))
    check_total(tmp_path)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://user:secret@host/a?X-Signature=secret", "https://host/a"),
        ("https://secret@host/a#x", "https://host/a#x"),
        (
            "abfs://container@account.dfs.core.windows.net/a",
            "abfs://container@account.dfs.core.windows.net/a",
        ),
        ("s3://bucket/a@b/c", "s3://bucket/a@b/c"),
    ],
)
def test_secrets_of_a_url_are_not_noted(tmp_path: Path, url: str, message: str) -> None:
    cache = DiskCache(tmp_path, 1 << 20)
    cache.describe(KEY, url, "tag", 10)
    cache.put(KEY, 0, bytes_of("a", 0, 10))
    assert cache.info().objects[0].url == message
    assert not any(b"secret" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_a_note_that_is_damaged_or_too_long_is_none(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1 << 20)
    cache.describe(KEY, "s3://" + "x" * 10_000, "tag", 10)
    cache.put(KEY, 0, bytes_of("a", 0, 10))
    assert cache.info().objects == (disk.CachedObject(KEY, None, None, None, 10, 1),)
    (path,) = blocks_in(tmp_path).values()
    for bad in (b'{"url": 5, "tag": [], "size": "x"}', b"[]", b"{", b"\xff" * 10):
        path.write_bytes(bytes(10) + bad + bytes(disk.FOOTER.size))
        assert cache.info().objects == (disk.CachedObject(KEY, None, None, None, 10, 1),)


# --- several processes ------------------------------------------------------------------------------

KEYS, SIZES = 6, (900, 5000, 30_000)
LIMIT = 250_000


def busy(folder: Path, seed: int, steps: int, done: np.ndarray, me: int) -> None:
    """Use a cache as a loader would, and leave at the first wrong byte."""
    code = 1
    try:
        cache = open_cache(folder, LIMIT)
        cache.wait = processes.PATIENCE
        rng = random.Random(seed)
        for step in range(steps):
            name, size = rng.randrange(KEYS), rng.choice(SIZES)
            start = rng.randrange(5) * 100_000
            result = cache.get(key_of(name), start, size)
            if result is None:
                due = time.time() + rng.randrange(100) if rng.random() < 0.5 else None
                cache.put(key_of(name), start, bytes_of(name, start, size), due)
            else:
                assert np.array_equal(result, bytes_of(name, start, size))
                if rng.random() < 0.5:
                    cache.expect(key_of(name), [(start, size, time.time() + rng.randrange(100))])
            done[me] = step + 1
        assert cache.failed == 0
        assert cache.damaged == 0
        code = 0
    finally:
        os._exit(code)


def counters(count: int) -> np.ndarray:
    """Numbers that forks share."""
    import mmap

    return np.frombuffer(mmap.mmap(-1, 8 * count), dtype=np.int64)


def check_all(folder: Path) -> None:
    """Every block is whole and right."""
    cache = DiskCache(folder, LIMIT)
    names = {key_of(name): name for name in range(KEYS)}
    for item in blocks_in(folder):
        key, start, size = item.split("-")
        result = cache.get(key, int(start), int(size))
        assert result is not None
        assert np.array_equal(result, bytes_of(names[key], int(start), int(size)))


def test_several_processes_at_once(tmp_path: Path) -> None:
    DiskCache(tmp_path, LIMIT)
    done = counters(4)
    children = [FORK.Process(target=busy, args=(tmp_path, seed, 200, done, seed)) for seed in range(4)]
    with processes.started(*children):
        while any(child.is_alive() for child in children):
            assert taken(tmp_path) <= LIMIT
    assert [child.exitcode for child in children] == [0] * 4
    check_all(tmp_path)
    check_total(tmp_path)
    assert not drafts_in(tmp_path)


@pytest.mark.parametrize("seed", range(50 if EXHAUSTIVE else 2))
def test_one_of_four_processes_is_killed(tmp_path: Path, seed: int) -> None:
    DiskCache(tmp_path, LIMIT)
    rng = random.Random(seed)
    steps, after, victim = 80, rng.randrange(60), rng.randrange(4)
    done = counters(4)
    children = [
        FORK.Process(target=busy, args=(tmp_path, 1000 * seed + number, steps, done, number))
        for number in range(4)
    ]
    killed = False
    with processes.started(*children):
        while any(child.is_alive() for child in children):
            if not killed and done[victim] >= after:
                # Anywhere in its next step.
                time.sleep(rng.random() * 0.003)
                children[victim].kill()
                killed = True
            assert taken(tmp_path) <= LIMIT
    assert killed
    assert [child.exitcode for child in children if child is not children[victim]] == [0] * 3
    assert children[victim].exitcode in (-signal.SIGKILL, 0)
    check_total(tmp_path)
    check_all(tmp_path)
    # What it left is cleared away by who counts next, and the room is used again.
    cache = DiskCache(tmp_path, LIMIT)
    cache.put(KEY, 0, bytes_of("a", 0, 200_000))
    assert cache.get(KEY, 0, 200_000) is not None
    assert not drafts_in(tmp_path)
    assert taken(tmp_path) <= LIMIT


def forked(work: object, *args: object) -> int:
    """A child of ours that does this and ends; the caller waits for it, or kills it."""
    child = os.fork()
    if child == 0:
        try:
            work(*args)  # type: ignore[operator]
        finally:
            os._exit(9)
    return child


@contextlib.contextmanager
def killed_at_the_end(*children: int) -> Iterator[None]:
    try:
        yield
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def test_a_draft_of_a_killed_writer_goes(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 200_000)

    def die() -> None:
        draft = cache.space.reserve(KEY, 100_000, 1.0)
        os.write(draft.fd, bytes(50_000))
        os.kill(os.getpid(), signal.SIGKILL)

    os.waitpid(forked(die), 0)
    assert len(drafts_in(tmp_path)) == 1
    cache.put(KEY, 0, bytes_of("a", 0, 150_000))
    assert cache.get(KEY, 0, 150_000) is not None
    assert not drafts_in(tmp_path)


def test_a_draft_that_is_being_written_stays_and_counts_whole(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 200_000)
    draft = cache.space.reserve(KEY, 100_000, 1.0)
    os.write(draft.fd, bytes(10))
    other = DiskCache(tmp_path, 200_000)
    other.put(KEY, 0, bytes_of("a", 0, 150_000))
    assert other.refused == 1
    assert len(drafts_in(tmp_path)) == 1
    cache.space.drop(draft)
    os.close(draft.fd)
    other.put(KEY, 0, bytes_of("a", 0, 150_000))
    assert other.get(KEY, 0, 150_000) is not None


def test_no_file_appears_while_somebody_counts(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 200_000)
    draft = cache.space.reserve(KEY, 10_000, 1.0)
    with locked(tmp_path), pytest.raises(BusyError):
        cache.space.keep(draft, "name", 0)
    assert not blocks_in(tmp_path)
    cache.space.keep(draft, "name", processes.PATIENCE)
    os.close(draft.fd)
    assert list(blocks_in(tmp_path)) == ["name"]


def test_a_stopped_process_stops_nobody(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1 << 20)
    cache.put(KEY, 0, bytes_of("a", 0, 1000))

    def stop() -> None:
        with cache.space._total.locked(processes.PATIENCE):
            os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)

    child = forked(stop)
    with killed_at_the_end(child):
        assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
        cache.wait = 0.05
        with pytest.warns(RuntimeWarning, match="cannot be cached: another process holds its lock"):
            cache.put(KEY, 1, bytes_of("a", 1, 1000))
        assert cache.get(KEY, 1, 1000) is None
        assert cache.get(KEY, 0, 1000) is not None
        # Nobody waits a second time.
        cache._pause_until, cache.wait = 0, processes.PATIENCE
        cache.put(KEY, 1, bytes_of("a", 1, 1000))
        assert cache.failed == 2
        cache.wait = 0.05
        with pytest.raises(BusyError, match="lock"):
            cache.clear()
        os.kill(child, signal.SIGCONT)
        assert os.waitpid(child, 0)[1] == 0
        cache._pause_until = 0
        cache.put(KEY, 1, bytes_of("a", 1, 1000))
        assert cache.get(KEY, 1, 1000) is not None


@pytest.mark.parametrize(("touches", "waited"), [(0, 10), (3, 40), (1000, 10 * disk.MAX_WAIT_FACTOR)])
def test_who_holds_the_lock_for_long_shows_that_it_lives(tmp_path: Path, touches: int, waited: int) -> None:
    cache = DiskCache(tmp_path, 1 << 20)
    clock = Clock()
    begin, pauses = clock.now, 0

    def sleep(seconds: float) -> None:
        nonlocal pauses
        clock.now += 5
        pauses += 1
        # The holder gives a sign every ten seconds.
        if pauses % 2 == 0 and pauses <= 2 * touches:
            os.utime(tmp_path / disk.FILE_NAME, (pauses, pauses))

    clock.sleep = sleep
    waiting = cache.space._total.locked(10)
    with locked(tmp_path), mock.patch.object(disk, "time", clock), pytest.raises(BusyError), waiting:
        pass
    assert clock.now - begin == waited


def test_counting_shows_that_it_lives(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 300_000)
    for number in range(8):
        cache.put(key_of(number), 0, bytes_of(number, 0, 30_000))
    with mock.patch.object(cache.space._total, "touch") as touched:
        cache.put(KEY, 0, bytes_of("a", 0, 90_000))
    assert cache.space.evicted
    assert touched.call_count >= 8
    before = os.stat(tmp_path / disk.FILE_NAME).st_mtime_ns
    os.utime(tmp_path / disk.FILE_NAME, (1, 1))
    cache.space._total.touch()
    assert os.stat(tmp_path / disk.FILE_NAME).st_mtime_ns >= before


def test_a_fork_goes_on_with_the_cache(tmp_path: Path) -> None:
    cache = open_cache(tmp_path, 1 << 20)
    cache.put(KEY, 0, bytes_of("a", 0, 1000))

    def work() -> bool:
        mine = open_cache(tmp_path, 1 << 20)
        mine.put(KEY, 1, bytes_of("a", 1, 1000))
        return all(
            np.array_equal(mine.get(KEY, number, 1000), bytes_of("a", number, 1000)) for number in (0, 1)
        )

    # Also while another thread of the parent is counting: the fork's lock is its own.
    assert processes.in_fork(work)
    cache.clear()
    cache.put(KEY, 0, bytes_of("a", 0, 1000))
    holding, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with cache.space._total.locked(processes.PATIENCE):
            holding.set()
            let_go.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        holding.wait()
        cache.wait = 0.01

        def busy_now() -> bool:
            cache._warned = True
            cache.put(KEY, 2, bytes_of("a", 2, 1000))
            return cache.failed == 1 and cache.get(KEY, 0, 1000) is not None

        assert processes.in_fork(busy_now)
    finally:
        let_go.set()
        thread.join()
    cache.wait = processes.PATIENCE
    assert processes.in_fork(work)


def test_a_fork_does_not_keep_the_lock_of_a_killed_parent(tmp_path: Path) -> None:
    DiskCache(tmp_path, 1 << 20)
    reading, writing = os.pipe()

    def parent() -> None:
        cache = open_cache(tmp_path, 1 << 20)
        with cache.space._total.locked(processes.PATIENCE):
            grandchild = os.fork()
            if grandchild == 0:
                signal.pause()
                os._exit(0)
            os.write(writing, grandchild.to_bytes(8, "little"))
            signal.pause()

    child = forked(parent)
    grandchild = 0
    try:
        grandchild = int.from_bytes(os.read(reading, 8), "little")
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        cache = DiskCache(tmp_path, 1 << 20)
        cache.put(KEY, 0, bytes_of("a", 0, 1000))
        assert cache.get(KEY, 0, 1000) is not None
    finally:
        for item in (child, grandchild):
            with contextlib.suppress(ProcessLookupError):
                os.kill(item, signal.SIGKILL) if item else None
        os.close(reading)
        os.close(writing)


def test_clear_while_others_read(tmp_path: Path) -> None:
    DiskCache(tmp_path, LIMIT)
    done = counters(2)
    children = [FORK.Process(target=busy, args=(tmp_path, seed, 150, done, seed)) for seed in range(2)]
    cache = DiskCache(tmp_path, LIMIT)
    cache.wait = processes.PATIENCE
    with processes.started(*children):
        while any(child.is_alive() for child in children):
            cache.clear()
            assert taken(tmp_path) <= LIMIT
    assert [child.exitcode for child in children] == [0, 0]
    check_total(tmp_path)
