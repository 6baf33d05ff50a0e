"""The machine: cores, memory, GPUs, and the measured speed of the dataset's disk or link."""

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
from ...storage.platform import O_DIRECT, cpu_count, filesystem, forget_pages, memory_limit

MEASURE_SECONDS = 0.8
# Bytes of a read from a disk, and of a request to a server.
READ_BYTES = 1 << 20
REQUEST_BYTES = 8 << 20
MAX_READS = 256
PAGE_BYTES = 4096
MIN_FILE_BYTES = 128 << 10
MAX_FILES = 64
# Typical values for storage that cannot be measured: MB/s of one machine, ms of a request.
ASSUMED = {"nvme": (2000.0, 0.1), "nfs": (300.0, 2.0), "s3": (400.0, 30.0)}
NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "ceph", "glusterfs", "beegfs")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine of a prediction. ``read_mb_s`` and ``latency_ms`` are those of ``storage``.

    measured: whether they were measured on the dataset's files; else they are typical values.
    """

    cores: int
    memory: int
    gpus: tuple[str, ...] = ()
    storage: str = "nvme"
    read_mb_s: float = ASSUMED["nvme"][0]
    latency_ms: float = ASSUMED["nvme"][1]
    measured: bool = False


def machine(reader: Reader | None = None, storage: str | None = None) -> Machine:
    """Describe this machine. ``reader``: its files are timed; ``storage``: the future storage of the data."""
    current = storage_of(reader.path) if reader is not None else "nvme"
    storage = storage or current
    speed = measured_speed(reader) if reader is not None and storage == current else None
    mb_s, latency = speed or ASSUMED[storage]
    return Machine(
        cores=cpu_count(), memory=memory_limit(), gpus=tuple(gpus()), storage=storage,
        read_mb_s=mb_s, latency_ms=latency, measured=speed is not None,
    )  # fmt: skip


def gpus(root: str = "/proc/driver/nvidia/gpus") -> Iterator[str]:
    """Yield the names of NVIDIA GPUs from the driver."""
    with contextlib.suppress(OSError):
        for info in sorted(Path(root).glob("*/information")):
            lines = dict(line.partition(":")[::2] for line in info.read_text().splitlines())
            yield lines.get("Model", "GPU").strip()


def storage_of(path: str, mounts: str = "self/mounts") -> str:
    """Return the storage of a path: s3 for every URL, nfs for every network file system."""
    if is_remote(path):
        return "s3"
    return "nfs" if filesystem(path, mounts) in NETWORK_FILE_SYSTEMS else "nvme"


def measured_speed(reader: Reader, seconds: float = MEASURE_SECONDS) -> tuple[float, float] | None:
    """Measure MB/s and ms per request on the dataset's files, without the page cache; None: unknown."""
    rows = np.unique(np.linspace(0, max(len(reader) - 1, 0), MAX_FILES).astype(np.int64))[: len(reader)]
    with contextlib.suppress(OSError, ValueError, BatchplantError):
        files = list(dict.fromkeys(reader.where(int(row)) for row in rows))
        if files and is_remote(files[0]):
            return _link_speed(files[0], seconds)
        # The time of a smaller file is that of opening it.
        return _disk_speed(
            [file for file in files if os.path.isfile(file) and os.path.getsize(file) >= MIN_FILE_BYTES],
            seconds,
        )
    return None


def _disk_speed(files: list[str], seconds: float) -> tuple[float, float] | None:
    """Read random parts of files that are not in the page cache."""
    pieces = [
        (path, start) for path in files for start in range(0, max(os.path.getsize(path), 1), READ_BYTES)
    ]
    order = np.random.default_rng(0).permutation(len(pieces))[:MAX_READS]
    size, read_seconds, latencies = 0, 0.0, []
    pages = mmap.mmap(-1, READ_BYTES)
    with memoryview(pages) as buffer, buffer[:PAGE_BYTES] as page:
        for name, start in (pieces[number] for number in order):
            with _uncached(name) as file:
                began = time.perf_counter()
                os.preadv(file, [page], start)
                between = time.perf_counter()
                size += os.preadv(file, [buffer], start)
                latencies.append(between - began)
                read_seconds += time.perf_counter() - between
            if read_seconds + sum(latencies) > seconds:
                break
    pages.close()
    return (
        (size / 1e6 / max(read_seconds, 1e-9), 1e3 * float(np.median(latencies)))
        if size >= PAGE_BYTES
        else None
    )


@contextlib.contextmanager
def _uncached(path: str) -> Iterator[int]:
    """Open a file without the page cache where its file system allows that."""
    try:
        file = os.open(path, os.O_RDONLY | O_DIRECT)
    except OSError:
        file = os.open(path, os.O_RDONLY)
    try:
        forget_pages(file)
        yield file
    finally:
        os.close(file)


def _link_speed(path: str, seconds: float) -> tuple[float, float] | None:
    source = open_source(path)
    began = time.perf_counter()
    source.view(max(0, source.size - 4096), min(source.size, 4096))
    latency = time.perf_counter() - began
    began, done = time.perf_counter(), 0
    for start in range(0, source.size - 4096, REQUEST_BYTES):
        done += len(source.view(start, min(REQUEST_BYTES, source.size - 4096 - start)))
        if time.perf_counter() - began > seconds:
            break
    elapsed = time.perf_counter() - began
    return (done / 1e6 / elapsed, latency * 1e3) if done > READ_BYTES else None
