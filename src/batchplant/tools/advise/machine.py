"""The machine: cores, memory, GPUs, and how fast the dataset's own disk or link is, tried for a moment."""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ...data.reader import Reader
from ...errors import BatchplantError
from ...storage import is_remote, open_source

MEASURE_SECONDS = 0.8
# What a disk or server is asked for at a time.
PIECE = 1 << 20
LINK_PIECE = 8 << 20
MOST_PIECES = 256
PAGE = 4096
LEAST = 128 << 10
FILES_TRIED = 64
# Orders of magnitude for a place that is not here, by storage: MB/s of one machine, ms of a request.
ASSUMED = {"nvme": (2000.0, 0.1), "nfs": (300.0, 2.0), "s3": (400.0, 30.0)}
NETWORK = ("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "ceph", "glusterfs", "beegfs")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """What the advice counts with. ``read_mb_s`` and ``latency_ms`` are those of ``storage``.

    measured: whether they were tried on the dataset's own files; else they are an assumption.
    """

    cores: int
    memory: int
    gpus: tuple[str, ...] = ()
    storage: str = "nvme"
    read_mb_s: float = ASSUMED["nvme"][0]
    latency_ms: float = ASSUMED["nvme"][1]
    measured: bool = False


def machine(reader: Reader | None = None, storage: str | None = None) -> Machine:
    """This machine. ``reader``: whose files tell the speed; ``storage``: where else the data will lie."""
    here = place(reader.path) if reader is not None else "nvme"
    storage = storage or here
    speed = measured_speed(reader) if reader is not None and storage == here else None
    mb_s, latency = speed or ASSUMED[storage]
    return Machine(
        cores=len(os.sched_getaffinity(0)), memory=memory(), gpus=tuple(gpus()), storage=storage,
        read_mb_s=mb_s, latency_ms=latency, measured=speed is not None,
    )  # fmt: skip


def memory() -> int:
    """Bytes that this process may use: the machine's, or what its container was given."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            found = min(found, int(Path("/sys/fs/cgroup", name).read_text()))
    return found


def gpus(root: str = "/proc/driver/nvidia/gpus") -> Iterator[str]:
    """The names of NVIDIA's GPUs, as the driver tells them."""
    with contextlib.suppress(OSError):
        for info in sorted(Path(root).glob("*/information")):
            lines = dict(line.partition(":")[::2] for line in info.read_text().splitlines())
            yield lines.get("Model", "GPU").strip()


def place(path: str, mounts: str = "/proc/mounts") -> str:
    """What a path lies on: s3 for every URL, nfs for every file system behind a network."""
    if is_remote(path):
        return "s3"
    real = os.path.realpath(path)
    best, kind = "", ""
    with contextlib.suppress(OSError):
        for line in Path(mounts).read_text().splitlines():
            _, at, system, *_ = line.split(" ")
            inside = real == at or real.startswith(at.rstrip("/") + "/")
            if inside and len(at) >= len(best):
                best, kind = at, system
    return "nfs" if kind in NETWORK else "nvme"


def measured_speed(reader: Reader, seconds: float = MEASURE_SECONDS) -> tuple[float, float] | None:
    """MB/s and ms of a request, from the dataset's own files, past the page cache; None: unknown."""
    rows = np.unique(np.linspace(0, max(len(reader) - 1, 0), FILES_TRIED).astype(np.int64))[: len(reader)]
    with contextlib.suppress(OSError, ValueError, BatchplantError):
        files = list(dict.fromkeys(reader.where(int(row)) for row in rows))
        if files and is_remote(files[0]):
            return _link_speed(files[0], seconds)
        # Of a smaller file the time is that of opening it.
        return _disk_speed(
            [one for one in files if os.path.isfile(one) and os.path.getsize(one) >= LEAST], seconds
        )
    return None


def _disk_speed(files: list[str], seconds: float) -> tuple[float, float] | None:
    """Pieces of files that the system does not hold, or that it is told to let go."""
    pieces = [(one, start) for one in files for start in range(0, max(os.path.getsize(one), 1), PIECE)]
    order = np.random.default_rng(0).permutation(len(pieces))[:MOST_PIECES]
    size, took, small = 0, 0.0, []
    room = mmap.mmap(-1, PIECE)
    with memoryview(room) as whole, whole[:PAGE] as page:
        for name, start in (pieces[number] for number in order):
            with _uncached(name) as file:
                began = time.perf_counter()
                os.preadv(file, [page], start)
                between = time.perf_counter()
                size += os.preadv(file, [whole], start)
                small.append(between - began)
                took += time.perf_counter() - between
            if took + sum(small) > seconds:
                break
    room.close()
    return (size / 1e6 / max(took, 1e-9), 1e3 * float(np.median(small))) if size >= PAGE else None


@contextlib.contextmanager
def _uncached(path: str) -> Iterator[int]:
    """A file that is read past the system's memory where its file system allows that."""
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0))
    except OSError:
        file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        yield file
    finally:
        os.close(file)


def _link_speed(path: str, seconds: float) -> tuple[float, float] | None:
    source = open_source(path)
    began = time.perf_counter()
    source.view(max(0, source.size - 4096), min(source.size, 4096))
    latency = time.perf_counter() - began
    began, done = time.perf_counter(), 0
    for start in range(0, source.size - 4096, LINK_PIECE):
        done += len(source.view(start, min(LINK_PIECE, source.size - 4096 - start)))
        if time.perf_counter() - began > seconds:
            break
    took = time.perf_counter() - began
    return (done / 1e6 / took, latency * 1e3) if done > PIECE else None
