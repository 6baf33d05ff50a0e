"""One harness for all measurements of storage: write candidates to a scratch folder, time how they are read.

`bench chunks` and `advise` use a :class:`Harness` in their own process; `bench formats` has one in a process
of each candidate. All write samples that were read from the dataset once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import pickle
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...data.reader import Reader
from ...errors import BatchplantError, NotFoundError, OptionError
from ...formats.registry import create, get_format
from ...formats.registry import open as open_reader
from ...schema import Schema
from ...schema.columns import I64, Columns, column_runs
from ...storage import is_remote, reached, split_options, tree
from ...storage.platform import filesystem, forget_pages, resident_pages
from . import timing
from .choice import Candidate

# Consecutive samples of a run: neighbours compress well together.
RUN_SAMPLES = 32
# Limits of quick mode, whatever the time.
QUICK_BYTES = 64 << 20
QUICK_SAMPLES = 50_000
# Samples that are read to estimate their size.
PROBED_SAMPLES = 16
BATCH_BYTES = 4 << 20
PREFIX = "batchplant-formats-"
# Bytes that stay free for other programs.
SPARE_BYTES = 256 << 20
# File systems in memory, whose files are never cold.
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
# Pages that are looked up, to see whether files are in memory.
MAX_LOOKED_UP_PAGES = 1 << 16
WARM_READ_BYTES = 1 << 20
# Limit for single samples where all are read.
SINGLES_SECONDS = 20.0


# -- samples --------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Staged:
    """Samples in a file of the scratch folder: pickled batches of cells."""

    path: Path
    samples: int
    data: int

    def batches(self) -> Iterator[Columns]:
        with open(self.path, "rb") as file:
            while file.peek(1):
                yield pickle.load(file)


def mean_size(reader: Reader) -> float:
    """Return the mean bytes of a sample's cells, from a few samples."""
    rows = np.unique(np.linspace(0, len(reader) - 1, min(PROBED_SAMPLES, len(reader))).astype(np.int64))
    return size_of(reader.read(rows)) / len(rows) if len(rows) else 0.0


def size_of(columns: Columns) -> int:
    return sum(int(column_runs(column)[2].clip(0).sum()) for column in columns.values())


def sample_count(reader: Reader, sample: int | None, size: float, *, quick: bool) -> int:
    """Return how many samples to measure."""
    if not len(reader):
        raise OptionError("there are no samples", path=reader.path)
    if sample is not None and sample < 1:
        raise OptionError(f"a sample has at least 1, not {sample}")
    if sample is not None or not quick:
        return min(len(reader), sample or len(reader))
    return int(min(len(reader), QUICK_SAMPLES, max(RUN_SAMPLES, QUICK_BYTES // max(size, 1))))


def spread_rows(length: int, count: int) -> I64:
    """Return ``count`` samples in runs that are spread evenly over the dataset."""
    if count >= length:
        return np.arange(length)
    runs = -(-count // RUN_SAMPLES)
    starts = np.linspace(0, max(0, length - RUN_SAMPLES), runs).astype(np.int64)
    rows = np.unique((starts[:, None] + np.arange(min(RUN_SAMPLES, length))).ravel())
    if len(rows) < count:
        # Runs overlap: fill up.
        unused = np.setdiff1d(np.arange(length), rows, assume_unique=True)[: count - len(rows)]
        rows = np.sort(np.concatenate([rows, unused]))
    return rows[:count]


def stage(
    reader: Reader, rows: I64, path: Path, *, until: float | None, progress: Callable[[int], object]
) -> Staged:
    """Copy these samples into a file, until a deadline (time.monotonic) at the latest."""
    done = data = 0
    size = RUN_SAMPLES
    with open(path, "wb") as file:
        while done < len(rows) and (not done or until is None or time.monotonic() < until):
            batch = rows[done : done + size]
            # Copy: a column may be a view of a mapped file.
            columns = reader.read(batch).take(np.arange(len(batch)))
            pickle.dump(columns, file, protocol=5)
            done += len(batch)
            data += size_of(columns)
            size = int(np.clip(BATCH_BYTES * done // max(data, 1), RUN_SAMPLES, 16384))
            progress(done)
    return Staged(path, done, data)


# -- the harness ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Stored:
    """A candidate that was written: its paths as ``open`` takes them, and what writing it took.

    data: bytes of the cells; bytes, files: of the dataset, with its side-cars.
    """

    candidate: Candidate
    paths: list[str]
    samples: int
    data: int
    bytes: int
    files: int
    seconds: float


class Harness:
    """Writes candidates below a folder or a URL and times reads of them, in this process.

    options: those of storage. busy: other processes compete for the cores, and times are estimates of those
    that there would be without them.
    """

    def __init__(
        self, location: str, options: Mapping[str, Any] | None = None, *, busy: bool = False
    ) -> None:
        self.location, self.options, self.busy = location.rstrip("/"), dict(options or {}), busy

    # -- writing ---------------------------------------------------------------------------------------

    def store(
        self,
        batches: Iterable[Columns],
        schema: Schema,
        candidate: Candidate,
        folder: str,
        length: int | None = None,
        workers: int | None = None,
        seconds: float | None = None,
    ) -> Stored:
        """Write batches of samples in a new folder of this name; after ``seconds`` what is written by then.

        Taking the batches counts for nothing.
        """
        location = f"{self.location}/{folder}"
        suffix = candidate.suffix or "".join(get_format(candidate.format).suffixes[:1])
        if not is_remote(location):
            os.mkdir(location)
        samples = data = 0
        cores = timing.core_seconds()
        began = time.perf_counter()
        writer = create(
            f"{location}/data{suffix}", schema, format=candidate.format, length=length, workers=workers,
            **self.options, **candidate.options,
        )  # fmt: skip
        spent = time.perf_counter() - began
        with writer:
            for columns in batches:
                began = time.perf_counter()
                writer.append(columns)
                spent += time.perf_counter() - began
                samples += columns.rows
                data += size_of(columns)
                if seconds is not None and spent > seconds:
                    break
            began = time.perf_counter()
        spent += time.perf_counter() - began
        if self.busy:
            spent *= timing.core_share(cores)
        if is_remote(location):
            location = reached(location, split_options(self.options)[0])
        sizes = [size for _, size in tree.walk(location)]
        return Stored(candidate, writer.files, samples, data, sum(sizes), len(sizes), spent)

    def remove(self, folder: str) -> None:
        """Delete what :meth:`store` wrote in a local folder."""
        shutil.rmtree(f"{self.location}/{folder}", ignore_errors=True)

    # -- reading ---------------------------------------------------------------------------------------

    def open(self, stored: Stored, **options: Any) -> Reader:
        paths = stored.paths[0] if len(stored.paths) == 1 else stored.paths
        return open_reader(paths, format=stored.candidate.format, **self.options, **options)

    def open_seconds(self, paths: str | Sequence[str], format: str) -> float:
        """Return the seconds to open files again; 0 if they cannot be opened by their path."""
        began, cores = time.perf_counter(), timing.core_seconds()
        with contextlib.suppress(BatchplantError, OSError):
            open_reader(paths, format=format).close()
            return (time.perf_counter() - began) * (timing.core_share(cores) if self.busy else 1.0)
        return 0.0

    def scan_rates(
        self, reader: Reader, *, sample_bytes: float, seconds: float | None, field: str | None = None
    ) -> tuple[float, float]:
        """Return samples/s and bytes/s of passes from start to end, over all fields or one."""
        cores = timing.core_seconds()
        fields = None if field is None else [field]
        rates = timing.scan(reader, sample_bytes=sample_bytes, seconds=seconds, fields=fields)
        share = timing.core_share(cores) if self.busy else 1.0
        return rates[0] / share, rates[1] / share

    def sample_rate(self, reader: Reader, *, seconds: float | None, seed: int) -> float:
        """Return the samples/s of ``reader[i]``, one decoded sample after the other in random order."""
        order = random.Random(seed).sample(range(len(reader)), len(reader))
        limit = SINGLES_SECONDS if seconds is None else seconds
        began = time.perf_counter()
        done = 0
        # A few samples again and again: one pass alone would measure the clock.
        for row in order if seconds is None else itertools.cycle(order):
            reader[row]
            done += 1
            if time.perf_counter() - began > limit:
                break
        return done / (time.perf_counter() - began)


# -- files ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def scratch_folder(
    where: str | None,
    beside: str,
    needed: int,
    *,
    what: str = "the candidates take",
    less: str = "fewer samples (--sample), fewer --formats",
) -> Iterator[Path]:
    """A new folder with room for so many bytes; it is gone at the end of the block, whatever ends it.

    ``what`` takes that room, and what makes it ``less``, is for the error where there is none.
    """
    places = [where] if where is not None else _places(beside)
    parent = _with_room(
        places, needed, what, f"{less}, or {'another --scratch' if where else '--scratch with a larger disk'}"
    )
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    try:
        yield folder
    finally:
        remove(folder)


def remove(folder: Path) -> None:
    """Once more after a Ctrl-C that comes amid it: impatient people press it twice."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _places(beside: str) -> list[str]:
    """Folders that may do, best first; those in memory last, for there is no cold cache in them."""
    near = os.path.dirname(os.path.abspath(beside)) if "://" not in beside else ""
    folders = [
        folder
        for folder in (tempfile.gettempdir(), near, os.getcwd())
        if folder and os.access(folder, os.W_OK)
    ]
    return sorted(dict.fromkeys(folders), key=lambda candidate: filesystem(candidate) in IN_MEMORY)


def _with_room(places: list[str], needed: int, what: str, less: str) -> str:
    reasons = []
    for folder in places:
        if not os.path.isdir(folder):
            raise NotFoundError("there is no such folder for scratch files", path=folder)
        free = shutil.disk_usage(folder).free
        if free >= needed + SPARE_BYTES:
            return folder
        reasons.append(f"{folder} has {free / 1e9:,.1f} GB free")
    raise OptionError(
        f"{what} up to {needed / 1e9:,.1f} GB of scratch space, and {', '.join(reasons)}: use {less}"
    )


def files_in(folder: Path) -> list[Path]:
    return [Path(top, name) for top, _, names in os.walk(folder) for name in names]


def cool(folder: Path) -> bool:
    """Let the system forget the files of a folder; whether it did. Nobody may have them mapped."""
    pages = resident = 0
    for path in files_in(folder):
        with contextlib.suppress(FileNotFoundError), open(path, "rb", buffering=0) as file:
            # Pages that wait to be written are not forgotten.
            getattr(os, "fdatasync", os.fsync)(file.fileno())
            forget_pages(file.fileno())
            # The first files of a large folder tell enough.
            if pages < MAX_LOOKED_UP_PAGES:
                states = resident_pages(file.fileno())
                pages += len(states)
                resident += states.count(1)
    return resident <= pages // 10


def warm(folder: Path) -> None:
    """Read every file once."""
    buffer = bytearray(WARM_READ_BYTES)
    for path in files_in(folder):
        with contextlib.suppress(FileNotFoundError), open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
