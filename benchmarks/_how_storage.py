"""How bytes come from a disk, for how_loading_works.py: reads, readahead, queue and epochs."""

from __future__ import annotations

import mmap
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import batchplant as bp

MIB = 1 << 20
Found = dict[str, Any]


def make_file(path: Path, size: int) -> None:
    """Bytes that no file system can shrink, on the disk and not only in memory."""
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        for _ in range(0, size, MIB):
            file.write(rng.bytes(MIB))
        os.fsync(file.fileno())


def forget(path: Path) -> None:
    """Empty the page cache of a file; whoever maps it has to let go of it first."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def from_disk() -> int:
    """Bytes that the disk gave this process so far."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    return 0


def watched(work: Callable[[], int]) -> Found:
    """Seconds, bytes that were asked for, bytes from the disk, and faults that had to wait for it."""
    disk, faults = from_disk(), resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    began = time.perf_counter()
    wanted = work()
    seconds = time.perf_counter() - began
    now = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    return {
        "seconds": seconds,
        "bytes": wanted,
        "from disk": from_disk() - disk,
        "waits": now - faults,
    }


@contextmanager
def mapped(path: Path, advice: int = mmap.MADV_NORMAL) -> Iterator[memoryview]:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        mapping.madvise(advice)
        with memoryview(mapping) as view:
            yield view


def copy_out(view: memoryview, places: list[int], size: int) -> int:
    """What a loader does with a record: copy it, or decode it, to where the batch is."""
    target = bytearray(size)
    for place in places:
        target[:] = view[place : place + size]
    return len(places) * size


def read_out(path: Path, places: list[int], size: int) -> int:
    target = bytearray(size)
    number = os.open(path, os.O_RDONLY)
    try:
        for place in places:
            os.preadv(number, [target], place)
    finally:
        os.close(number)
    return len(places) * size


def median_of(runs: list[Found]) -> Found:
    result = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    result["best seconds"] = min(run["seconds"] for run in runs)
    return result


def reads(folder: Path, rounds: int, size: int) -> Found:
    path = folder / "records"
    make_file(path, size)
    result: Found = {"file": size, "read ahead by the system": read_ahead(path)}
    for record, count in ((4096, 2048), (65536, 512)):
        rng = np.random.default_rng(record)
        places = (rng.choice(size // record, min(count, size // record), replace=False) * record).tolist()
        result[str(record)] = reads_of(path, places, record, rounds)
    path.unlink()
    return result


def reads_of(path: Path, places: list[int], record: int, rounds: int) -> Found:
    runs: dict[str, list[Found]] = {}

    def note(name: str, work: Callable[[], int]) -> None:
        runs.setdefault(name, []).append(watched(work))

    for _ in range(rounds):
        forget(path)
        note("disk, read()", lambda: read_out(path, places, record))
        for name, advice in (("mapped", mmap.MADV_NORMAL), ("mapped, random", mmap.MADV_RANDOM)):
            forget(path)
            with mapped(path, advice) as view:
                note(f"disk, {name}", lambda view=view: copy_out(view, places, record))
        # From here on every page of the file is in the page cache.
        read_out(path, list(range(0, path.stat().st_size, MIB)), MIB)
        note("memory, read()", lambda: read_out(path, places, record))
        with mapped(path) as view:
            note("memory, mapped, first time", lambda: copy_out(view, places, record))
            note("memory, mapped, again", lambda: copy_out(view, places, record))
    return {
        name: {**median_of(each), "records/s": len(places) / median_of(each)["seconds"]}
        for name, each in runs.items()
    }


def read_ahead(path: Path) -> int | None:
    """How many bytes the system reads ahead of a file that is read in order, if the disk says so."""
    device = path.stat().st_dev
    try:
        text = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/queue/read_ahead_kb").read_text()
    except OSError:
        return None
    return int(text) * 1024


def readahead(folder: Path, rounds: int, size: int) -> Found:
    path = folder / "stream"
    make_file(path, size)
    places = list(range(0, size, 65536))
    runs: dict[str, list[Found]] = {}
    ways = {"mapped, read ahead": mmap.MADV_NORMAL, "mapped, not ahead": mmap.MADV_RANDOM}
    for _ in range(rounds):
        for name, advice in ways.items():
            forget(path)
            with mapped(path, advice) as view:
                runs.setdefault(name, []).append(watched(lambda view=view: copy_out(view, places, 65536)))
        forget(path)
        runs.setdefault("read()", []).append(watched(lambda: read_out(path, places, 65536)))
        runs.setdefault("page cache", []).append(watched(lambda: read_out(path, places, 65536)))
    path.unlink()
    return {
        name: {**median_of(each), "MB/s": size / median_of(each)["seconds"] / 1e6}
        for name, each in runs.items()
    }


def queue_depth(folder: Path, rounds: int, size: int) -> Found:
    path, record = folder / "queue", 16384
    make_file(path, size)
    rng = np.random.default_rng(1)
    places = (rng.choice(size // record, min(1024, size // record), replace=False) * record).tolist()
    runs: dict[int, list[float]] = {}
    for _ in range(rounds):
        for threads in (1, 2, 4, 8, 16, 32):
            forget(path)
            with ThreadPoolExecutor(threads) as pool:
                parts = [places[k::threads] for k in range(threads)]
                began = time.perf_counter()
                list(pool.map(lambda part: read_out(path, part, record), parts))
                runs.setdefault(threads, []).append(time.perf_counter() - began)
    path.unlink()
    return {
        "record": record,
        "reads/s": {str(n): len(places) / statistics.median(each) for n, each in runs.items()},
    }


def epoch_of(path: Path, name: str, options: Found) -> Found:
    def epoch() -> int:
        with bp.open(path) as reader:
            loader = bp.Loader(reader, 64, order=bp.order.by_name(name, **options))
            total = sum(batch["x"].nbytes for batch in loader)
            loader.close()
        return total

    return watched(epoch)


def epochs(folder: Path, rounds: int, size: int) -> Found:
    path, record = folder / "epochs.beton", 16384
    rng = np.random.default_rng(2)
    with bp.create(path, {"x": bp.Tensor("uint8", (record,))}) as out:
        for _ in range(size // record):
            out.append({"x": rng.integers(0, 256, record, dtype=np.uint8)})
    runs: dict[str, dict[str, list[Found]]] = {}
    for _ in range(rounds):
        for name, options in (("sequential", {}), ("quasi_random", {"window": 4}), ("random", {})):
            forget(path)
            for state in ("disk", "memory"):
                runs.setdefault(name, {}).setdefault(state, []).append(epoch_of(path, name, options))
    path.unlink()
    return {
        "record": record,
        "samples": size // record,
        "orders": {
            name: {
                state: {**median_of(each), "samples/s": size // record / median_of(each)["seconds"]}
                for state, each in states.items()
            }
            for name, states in runs.items()
        },
    }
