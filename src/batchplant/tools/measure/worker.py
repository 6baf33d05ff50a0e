"""The process that writes and reads one candidate: what runs in it, :func:`main`, and what it answers.

Standard input brings a pickled :class:`Job`, then (method, arguments); each is answered on standard output.
Where the input ends, so does the process. It writes in a fork: the memory of writing is not that of reading.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import os
import pickle
import random
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...data.reader import Reader
from ...errors import BatchplantError, WorkerError
from ...formats.registry import create, open
from ...schema import Schema
from ...storage import reached, split_options, tree
from ...storage.remote import totals
from ...storage.settings import NAMES as STORAGE
from . import timing
from .choice import Candidate
from .pipelines import Undecoded, column_of
from .scratch import cool, warm
from .staging import Staged, size_of
from .watching import own_memory

COLD, WARM = "epoch_cold", "epoch_warm"
# Asking how much memory is held takes time itself: so many seconds apart.
NOTED = 0.02
# For an epoch over the network to be a whole one.
WHOLE_SECONDS = 10.0
# For single samples, however many there are.
RANDOM_SECONDS = 20.0


@dataclasses.dataclass(frozen=True)
class Job:
    """What one process measures. ``place``: the candidate's own folder, or its URL."""

    candidate: Candidate
    name: str
    place: str
    remote: bool
    storage: Mapping[str, Any]
    staged: Staged
    schema: Schema
    pipeline: str
    size: int
    batch_size: int
    workers: int | None
    order: str


@dataclasses.dataclass(frozen=True)
class Written:
    files: list[str]
    samples: int
    data: int
    bytes: int
    count: int
    seconds: float


@dataclasses.dataclass
class Round:
    """What one round found: values by the names of Measured."""

    values: dict[str, float] = dataclasses.field(default_factory=dict)
    remarks: list[str] = dataclasses.field(default_factory=list)
    memory: int = 0


@dataclasses.dataclass(frozen=True)
class Failed:
    """An answer: what went wrong, in one line."""

    message: str


class Task:
    """One candidate: written once, then read in rounds."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.written: Written | None = None
        self.reader: Reader | None = None
        self._before = own_memory()
        self._peak = 0
        self._noted = 0.0
        self._batch = 0
        self._seed = 0

    # -- writing ---------------------------------------------------------------------------------------

    def write(self, seconds: float | None) -> Written:
        """Write the samples, in a process that ends with it; after ``seconds`` those that are written."""
        ours, theirs = os.pipe()
        # The writer is the one to stop in order; we end with it.
        signal.signal(signal.SIGTERM, _stop)
        with warnings.catch_warnings():
            # Nothing has run here that a fork could lose.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            os.close(ours)
            try:
                with os.fdopen(theirs, "wb") as out:
                    pickle.dump(_tried(lambda: self._write(seconds)), out)
            finally:
                os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.close(theirs)
        with os.fdopen(ours, "rb") as answer:
            said = answer.read()
        status = os.waitpid(child, 0)[1]
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if not said:
            raise WorkerError(f"the process that wrote it died ({died(os.waitstatus_to_exitcode(status))})")
        found = pickle.loads(said)
        if isinstance(found, Failed):
            raise WorkerError(found.message)
        self.written = found
        return self.written

    def _write(self, seconds: float | None) -> Written:
        job = self.job
        target = f"{job.place.rstrip('/')}/{job.name}"
        samples = data = 0
        self._rehearse()
        began = time.perf_counter()
        writer = create(
            target, job.schema, format=job.candidate.format, length=job.staged.samples, workers=job.workers,
            **{**job.storage, **job.candidate.options},
        )  # fmt: skip
        spent = time.perf_counter() - began
        with writer:
            for columns in job.staged.batches():
                began = time.perf_counter()
                writer.append(columns)
                spent += time.perf_counter() - began
                samples += columns.rows
                data += size_of(columns)
                if seconds is not None and spent > seconds:
                    break
            began = time.perf_counter()
        spent += time.perf_counter() - began
        place = reached(job.place, split_options(job.storage)[0]) if job.remote else job.place
        sizes = [size for _, size in tree.walk(place)]
        return Written(writer.files, samples, data, sum(sizes), len(sizes), spent)

    def _rehearse(self) -> None:
        """Write a first sample for nothing: importing a library is no part of writing."""
        with tempfile.TemporaryDirectory(dir=self.job.staged.path.parent) as folder:
            target, some = f"{folder}/{self.job.name}", next(self.job.staged.batches()).take(np.arange(1))
            options = {name: one for name, one in self.job.candidate.options.items() if name not in STORAGE}
            with create(target, self.job.schema, format=self.job.candidate.format, **options) as writer:
                writer.append(some)

    # -- reading ---------------------------------------------------------------------------------------

    def ready(self) -> int:
        """Open it once, which also imports what that needs; how many samples there are."""
        self._open()
        assert self.reader is not None
        self._seen()[0]
        return len(self.reader)

    def round(self, seconds: float | None) -> Round:
        """All measures once, each for so long at most (None: all samples)."""
        found = Round()
        self._close()
        local = None if self.job.remote else Path(self.job.place)
        if local is not None and not cool(local):
            found.remarks.append("cold is warm: the system keeps these files in memory")
        requests, fetched = totals()
        began = time.perf_counter()
        self._open()
        found.values["open_seconds"] = time.perf_counter() - began
        opened = totals()
        # Over the network it goes to its end, for bytes are fetched ahead of the samples.
        epoch = self._epoch(found, COLD, None if seconds is None else max(seconds, self._least))
        if self.job.remote and epoch:
            share = epoch / self._samples
            found.values["requests"] = opened[0] - requests + (totals()[0] - opened[0]) / share
            found.values["fetched"] = opened[1] - fetched + (totals()[1] - opened[1]) / share
        if local is not None:
            warm(local)
        self._scans(found, seconds)
        self._random(found, seconds)
        self._epoch(found, WARM, seconds)
        self._note()
        found.memory = self._peak
        return found

    @property
    def _least(self) -> float:
        return WHOLE_SECONDS if self.job.remote else 0.0

    @property
    def _sample_bytes(self) -> float:
        assert self.written is not None
        return self.written.data / max(self.written.samples, 1)

    @property
    def _samples(self) -> int:
        assert self.written is not None
        return self.written.samples

    def _open(self) -> None:
        assert self.written is not None
        files = self.written.files
        self.reader = open(
            files[0] if len(files) == 1 else files, format=self.job.candidate.format, **self.job.storage
        )

    def _seen(self) -> Reader:
        """The reader, as the pipeline wants it."""
        assert self.reader is not None
        return Undecoded(self.reader) if self.job.pipeline == "raw" else self.reader

    def _close(self) -> None:
        """Without a trace: pages that somebody has mapped stay in memory."""
        if self.reader is not None:
            self.reader.close()
        self.reader = None
        gc.collect()

    def _note(self, now: bool = True) -> None:
        if now or time.perf_counter() - self._noted > NOTED:
            self._peak = max(self._peak, own_memory() - self._before)
            self._noted = time.perf_counter()

    def _epoch(self, found: Round, name: str, seconds: float | None) -> int:
        """A shuffled epoch, or its beginning; how many samples came."""
        job, seen = self.job, self._seen()
        how = timing.How(job.batch_size, job.order, job.pipeline, job.size, job.workers)
        self._seed += 1
        try:
            timed = self._timed(seen, how, seconds, first=name == COLD)
        except BatchplantError as error:
            # The rest can be measured all the same.
            found.remarks.append(f"no epoch: {error.message}")
            return 0
        # What is fetched before the first batch is no small part of a first epoch.
        found.values[name] = timed.whole if name == COLD else timed.rate
        if name == COLD:
            found.values["first_batch"] = timed.first
        return timed.samples

    def _timed(self, seen: Reader, how: timing.How, seconds: float | None, first: bool) -> timing.Timed:
        given: dict[str, Any] = {"seed": self._seed, "note": lambda: self._note(now=False)}
        if seconds is None or first:
            small = how.small_batch(seen.schema, self._sample_bytes)
            batch = how.batch_size if seconds is None else small
            return timing.epoch(seen, how, batch=batch, seconds=seconds, once=first, **given)
        timed, self._batch = timing.quick_epoch(
            seen, how, sample_bytes=self._sample_bytes, seconds=seconds, batch=self._batch, **given
        )
        return timed

    def _scans(self, found: Round, seconds: float | None) -> None:
        assert self.reader is not None
        rate, size = timing.scan(self.reader, sample_bytes=self._sample_bytes, seconds=seconds)
        found.values["sequential_rate"], found.values["sequential_mb_s"] = rate, size / 1e6
        self._note()
        found.values["column_rate"], _ = timing.scan(
            self.reader, sample_bytes=self._sample_bytes, seconds=seconds,
            fields=[column_of(self.reader.schema)],
        )  # fmt: skip

    def _random(self, found: Round, seconds: float | None) -> None:
        """One decoded sample after the other."""
        seen, draw = self._seen(), random.Random(self._seed)
        order = draw.sample(range(len(seen)), len(seen))
        began = time.perf_counter()
        done = 0
        # A few samples again and again: one pass alone would measure the clock.
        for row in order if seconds is None else itertools.cycle(order):
            seen[row]
            done += 1
            if time.perf_counter() - began > (RANDOM_SECONDS if seconds is None else seconds):
                break
        found.values["random_rate"] = done / (time.perf_counter() - began)
        self._note()


def _stop(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def died(code: int) -> str:
    """How a process ended, from its exit code."""
    if code >= 0:
        return f"exit code {code}"
    known = {one.value: one.name for one in signal.Signals}
    return known.get(-code, f"signal {-code}")


def _tried(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except BatchplantError as error:
        return Failed(str(error))
    except MemoryError:
        return Failed("out of memory")
    except Exception as error:
        return Failed(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def main() -> None:
    # Ctrl-C is the parent's, who ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.fdopen(os.dup(1), "wb")
    # Whatever a library prints is no answer.
    os.dup2(2, 1)
    commands = sys.stdin.buffer
    try:
        task = Task(pickle.load(commands))
        while True:
            name, arguments = pickle.load(commands)
            method = getattr(task, name)
            pickle.dump(_tried(lambda: method(*arguments)), out)  # noqa: B023 -- called at once
            out.flush()
    except (EOFError, BrokenPipeError):
        # Nobody waits for threads that libraries started.
        os._exit(0)
