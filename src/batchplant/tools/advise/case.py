"""The circumstances of advice: answers of the user, the machine, and a case of both with the facts."""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...data.reader import Reader
from ...errors import BatchplantError, OptionError
from ...formats.base.format import Format
from ...formats.base.options import own_options
from ...storage import is_remote, open_source
from ...storage.platform import O_DIRECT, cpu_count, filesystem, forget_pages, memory_limit
from .facts import Facts, fitting_size

GUIDE = "docs/choosing.md"
GOALS = ("train", "archive", "share", "analyse", "stream")
STORAGES = ("nvme", "nfs", "s3")


class Requirement(NamedTuple):
    """A capability that the format must have.

    optional: data without it may stay as it is if a conversion would be a loss.
    """

    description: str
    is_met: Callable[[Format], bool]
    optional: bool = False


# Programs that read a format which is to be shared.
MIN_PROGRAMS = 3

RANDOM = Requirement("read single samples in any order", lambda format: format.can.random_access)
COLUMNS = Requirement("read single columns", lambda format: format.can.column_pruning)
FILTERS = Requirement(
    "skip rows that a query does not want", lambda format: format.can.row_filters == "push-down"
)
APPEND = Requirement("take more samples later", lambda format: format.can.append)
WRITERS = Requirement("take samples of several writers at once", lambda format: format.can.concurrent_writers)
VERSIONS = Requirement("give older versions back", lambda format: format.can.time_travel)
RANGES = Requirement("be read from a server in parts", lambda format: format.can.remote_ranges)
SPLIT = Requirement("be split between machines", lambda format: format.can.splittable)
PACKED = Requirement("compress what it holds", lambda format: bool(format.can.compression))
SCHEMA = Requirement("keep the fields as they are", lambda format: format.can.keeps_schema)
CHECKED = Requirement("find damage by checksums", lambda format: bool(format.can.checksums))
TEXT = Requirement("be read by people", lambda format: format.can.human_readable)
SAFE = Requirement("be opened without running code", lambda format: not runs_code(format))
STREAMED = Requirement("be written without holding it in memory", lambda format: format.can.streaming_write)
KNOWN = Requirement(
    "be read by several other programs", lambda format: len(format.can.ecosystem) >= MIN_PROGRAMS
)


def runs_code(format: Format) -> bool:
    """Return whether opening such a file can run code: pickles have to be allowed."""
    return "allow_pickle" in own_options(format.reader) and not (
        format.can.random_access or format.can.memory_map
    )


class Question(NamedTuple):
    """A question of the decision guide; a yes requires something of the format.

    doc: the section that explains it. sentence: of its rule.
    """

    name: str
    text: str
    section: str
    sentence: str = ""
    requirements: tuple[Requirement, ...] = ()
    settings: Mapping[str, Any] = {}

    @property
    def doc(self) -> str:
        return f"{GUIDE}#{self.section}"


QUESTIONS = (
    Question("analytics", "Will people query single columns, or some of the rows?", "analytics",
             "Queries need columns that are stored apart, and bounds by which rows are skipped.",
             (COLUMNS, FILTERS)),
    Question("mutable", "Will samples be added later?", "mutable-data",
             "Data that grows needs a format that takes samples without writing the old ones again.",
             (APPEND,)),
    Question("many-writers", "Will several jobs add samples at once?", "mutable-data",
             "Several writers at once need transactions.", (APPEND, WRITERS)),
    Question("versions", "Must older versions stay readable?", "schema-changes",
             "Older versions stay readable only in tables with versions.", (VERSIONS,)),
    Question("random-access", "Will single samples be read in any order?", "random-access",
             "Single samples need an index or fixed places.", (RANDOM,)),
    Question("cloud", "Will it be read from a bucket?", "cloud",
             "Behind a bucket, only the bytes of the wanted samples should come over the network.",
             (RANGES,)),
    Question("streaming", "Is it read from start to end, by several machines?", "streaming",
             "Several machines that read one stream each take their own part of it.", (STREAMED, SPLIT)),
    Question("small", "Is disk space dearer than time?", "compression",
             "Where space is dear, the format itself must compress.", (PACKED,), {"compress": "small"}),
    Question("schema", "Must the fields come back exactly as they were?", "schema-changes",
             "Fields that must come back exactly need a format that stores their kinds.", (SCHEMA,)),
    Question("safety", "Must damage be found by checksums?", "safety",
             "Damage that nobody notices is found by checksums only.", (CHECKED,)),
    Question("readable", "Must people read it in a text editor?", "interop",
             "People read text, and nothing else, without a program.", (TEXT,)),
    Question("lossless", "Must images stay exactly as they are?", "images"),
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answers:
    """The goal and its circumstances.

    storage: where it will be read from, None: where it is now. step_ms: GPU time of a batch of
    ``batch_size``. size: of images in a batch, None: 224, or less where they are smaller. interop: a program
    that must read it. yes: the questions (:data:`QUESTIONS`) answered with yes. formats: try only these.
    """

    goal: str = "train"
    storage: str | None = None
    gpus: int = 1
    step_ms: float | None = None
    batch_size: int = 256
    size: int | None = None
    interop: str | None = None
    yes: frozenset[str] = frozenset()
    formats: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.goal not in GOALS:
            raise OptionError(f"the goal is one of {', '.join(GOALS)}, not {self.goal!r}")
        if self.storage is not None and self.storage not in STORAGES:
            raise OptionError(f"the storage is one of {', '.join(STORAGES)}, not {self.storage!r}")
        if min(self.gpus, self.batch_size, self.size or 1) < 1 or self.size == 0:
            raise OptionError("gpus, batch_size and size are at least 1")
        if self.step_ms is not None and not self.step_ms > 0:
            raise OptionError(f"step_ms is more than 0, not {self.step_ms}")
        unknown = self.yes.difference(question.name for question in QUESTIONS)
        if unknown:
            raise OptionError(f"there is no question {sorted(unknown)[0]!r}")

    @property
    def needed(self) -> float | None:
        """Samples/s that all GPUs consume together, if the time of a step is known."""
        return None if self.step_ms is None else self.gpus * self.batch_size * 1000 / self.step_ms


# -- the machine ---------------------------------------------------------------------------------------

MEASURE_SECONDS = 0.8
# Bytes of a read from a disk, and of a request to a server.
READ_BYTES = 1 << 20
REQUEST_BYTES = 8 << 20
MAX_READS = 256
PAGE_BYTES = 4096
MIN_FILE_BYTES = 128 << 10
MAX_TIMED_FILES = 64
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
    rows = np.unique(np.linspace(0, max(len(reader) - 1, 0), MAX_TIMED_FILES).astype(np.int64))[: len(reader)]
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
    chunks = [
        (path, start) for path in files for start in range(0, max(os.path.getsize(path), 1), READ_BYTES)
    ]
    order = np.random.default_rng(0).permutation(len(chunks))[:MAX_READS]
    size, read_seconds, latencies = 0, 0.0, []
    pages = mmap.mmap(-1, READ_BYTES)
    with memoryview(pages) as buffer, buffer[:PAGE_BYTES] as page:
        for name, start in (chunks[number] for number in order):
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


@dataclasses.dataclass(frozen=True)
class Case:
    """The input of a rule."""

    facts: Facts
    machine: Machine
    answers: Answers

    @property
    def goal(self) -> str:
        return self.answers.goal

    @property
    def storage(self) -> str:
        return self.answers.storage or self.machine.storage

    @property
    def size(self) -> int:
        """Side of the crop: the requested size, or one that fits the images."""
        return self.answers.size or fitting_size(self.facts)

    @property
    def moves(self) -> bool:
        """True if the data will move to a bucket, so that it cannot be tried there."""
        return self.storage == "s3" and not self.facts.remote

    @property
    def loads(self) -> bool:
        """True if samples go into a training loop."""
        return self.goal in ("train", "stream")

    @property
    def larger_than_memory(self) -> bool:
        return (self.facts.bytes or 0) > 0.7 * self.machine.memory
