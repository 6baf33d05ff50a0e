"""The process that writes and reads one candidate: what runs in it, :func:`main`, and what it answers.

Standard input brings a pickled :class:`Job`, then (method, arguments); each is answered on standard output.
Where the input ends, so does the process. It writes in a fork: the memory of writing is not that of reading.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any

import numpy as np

from ...data.reader import Reader
from ...errors import BatchplantError, WorkerError
from ...formats.registry import create
from ...formats.registry import open as open_reader
from ...schema import Schema
from ...storage import reached, split_options, tree
from ...storage.platform import resident_memory
from ...storage.remote import totals
from ...storage.settings import NAMES as STORAGE
from . import timing
from .choice import Candidate
from .pipelines import Undecoded, column_of
from .scratch import cool, warm
from .staging import Staged, size_of

COLD, WARM = "epoch_cold", "epoch_warm"
# Asking how much memory is held takes time itself: so many seconds apart.
MEMORY_INTERVAL_SECONDS = 0.02
# For an epoch over the network to be a whole one.
REMOTE_EPOCH_SECONDS = 10.0
# For single samples, however many there are.
RANDOM_SECONDS = 20.0
COMMAND = f"from {__name__} import main; main()"
# Seconds to end in order.
EXIT_SECONDS = 5.0
# Of what a process that died said last.
LOG_BYTES = 2000


@dataclasses.dataclass(frozen=True)
class Job:
    """Arguments of a process that measures. ``place``: the candidate's own folder, or its URL."""

    candidate: Candidate
    name: str
    location: str
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
    """Result of a round: values by the names of Measured."""

    values: dict[str, float] = dataclasses.field(default_factory=dict)
    remarks: list[str] = dataclasses.field(default_factory=list)
    memory: int = 0


@dataclasses.dataclass(frozen=True)
class Failure:
    """An answer: what went wrong, in one line."""

    message: str


class Task:
    """One candidate: written once, then read in rounds."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.written: Written | None = None
        self.reader: Reader | None = None
        self._memory_before = resident_memory("RssAnon")
        self._peak = 0
        self._memory_noted = 0.0
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
                    pickle.dump(_answer(lambda: self._write(seconds)), out)
            finally:
                os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.close(theirs)
        with os.fdopen(ours, "rb") as pipe:
            answer_bytes = pipe.read()
        status = os.waitpid(child, 0)[1]
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if not answer_bytes:
            raise WorkerError(
                f"the process that wrote it died ({exit_reason(os.waitstatus_to_exitcode(status))})"
            )
        result = pickle.loads(answer_bytes)
        if isinstance(result, Failure):
            raise WorkerError(result.message)
        self.written = result
        return self.written

    def _write(self, seconds: float | None) -> Written:
        job = self.job
        target = f"{job.location.rstrip('/')}/{job.name}"
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
        location = reached(job.location, split_options(job.storage)[0]) if job.remote else job.location
        sizes = [size for _, size in tree.walk(location)]
        return Written(writer.files, samples, data, sum(sizes), len(sizes), spent)

    def _rehearse(self) -> None:
        """Write a first sample for nothing: importing a library is no part of writing."""
        with tempfile.TemporaryDirectory(dir=self.job.staged.path.parent) as folder:
            target, sample = f"{folder}/{self.job.name}", next(self.job.staged.batches()).take(np.arange(1))
            options = {
                name: value for name, value in self.job.candidate.options.items() if name not in STORAGE
            }
            with create(target, self.job.schema, format=self.job.candidate.format, **options) as writer:
                writer.append(sample)

    # -- reading ---------------------------------------------------------------------------------------

    def ready(self) -> int:
        """Open it once, which also imports what that needs; how many samples there are."""
        self._open()
        assert self.reader is not None
        self._pipeline_reader()[0]
        return len(self.reader)

    def round(self, seconds: float | None) -> Round:
        """All measures once, each for so long at most (None: all samples)."""
        result = Round()
        self._close()
        local = None if self.job.remote else Path(self.job.location)
        if local is not None and not cool(local):
            result.remarks.append("cold is warm: the system keeps these files in memory")
        requests, fetched = totals()
        began = time.perf_counter()
        self._open()
        result.values["open_seconds"] = time.perf_counter() - began
        opened = totals()
        # Over the network it goes to its end, for bytes are fetched ahead of the samples.
        epoch = self._measure_epoch(
            result, COLD, None if seconds is None else max(seconds, self._min_seconds)
        )
        if self.job.remote and epoch:
            share = epoch / self._samples
            result.values["requests"] = opened[0] - requests + (totals()[0] - opened[0]) / share
            result.values["fetched"] = opened[1] - fetched + (totals()[1] - opened[1]) / share
        if local is not None:
            warm(local)
        self._measure_scans(result, seconds)
        self._measure_samples(result, seconds)
        self._measure_epoch(result, WARM, seconds)
        self._note_memory()
        result.memory = self._peak
        return result

    @property
    def _min_seconds(self) -> float:
        return REMOTE_EPOCH_SECONDS if self.job.remote else 0.0

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
        self.reader = open_reader(
            files[0] if len(files) == 1 else files, format=self.job.candidate.format, **self.job.storage
        )

    def _pipeline_reader(self) -> Reader:
        """The reader, as the pipeline wants it."""
        assert self.reader is not None
        return Undecoded(self.reader) if self.job.pipeline == "raw" else self.reader

    def _close(self) -> None:
        """Without a trace: pages that somebody has mapped stay in memory."""
        if self.reader is not None:
            self.reader.close()
        self.reader = None
        gc.collect()

    def _note_memory(self, now: bool = True) -> None:
        if now or time.perf_counter() - self._memory_noted > MEMORY_INTERVAL_SECONDS:
            self._peak = max(self._peak, resident_memory("RssAnon") - self._memory_before)
            self._memory_noted = time.perf_counter()

    def _measure_epoch(self, result: Round, name: str, seconds: float | None) -> int:
        """A shuffled epoch, or its beginning; how many samples came."""
        job, reader = self.job, self._pipeline_reader()
        settings = timing.EpochSettings(job.batch_size, job.order, job.pipeline, job.size, job.workers)
        self._seed += 1
        try:
            epoch = self._time_epoch(reader, settings, seconds, first=name == COLD)
        except BatchplantError as error:
            # The rest can be measured all the same.
            result.remarks.append(f"no epoch: {error.message}")
            return 0
        # What is fetched before the first batch is no small part of a first epoch.
        result.values[name] = epoch.rate_with_start if name == COLD else epoch.rate
        if name == COLD:
            result.values["first_batch"] = epoch.first_batch_seconds
        return epoch.samples

    def _time_epoch(
        self, reader: Reader, settings: timing.EpochSettings, seconds: float | None, first: bool
    ) -> timing.EpochTiming:
        options: dict[str, Any] = {"seed": self._seed, "on_batch": lambda: self._note_memory(now=False)}
        if seconds is None or first:
            small = settings.small_batch(reader.schema, self._sample_bytes)
            batch = settings.batch_size if seconds is None else small
            return timing.epoch(reader, settings, batch_size=batch, seconds=seconds, once=first, **options)
        epoch, self._batch = timing.quick_epoch(
            reader,
            settings,
            sample_bytes=self._sample_bytes,
            seconds=seconds,
            batch_size=self._batch,
            **options,
        )
        return epoch

    def _measure_scans(self, result: Round, seconds: float | None) -> None:
        assert self.reader is not None
        rate, size = timing.scan(self.reader, sample_bytes=self._sample_bytes, seconds=seconds)
        result.values["sequential_rate"], result.values["sequential_mb_s"] = rate, size / 1e6
        self._note_memory()
        result.values["column_rate"], _ = timing.scan(
            self.reader, sample_bytes=self._sample_bytes, seconds=seconds,
            fields=[column_of(self.reader.schema)],
        )  # fmt: skip

    def _measure_samples(self, result: Round, seconds: float | None) -> None:
        """One decoded sample after the other."""
        reader, rng = self._pipeline_reader(), random.Random(self._seed)
        order = rng.sample(range(len(reader)), len(reader))
        began = time.perf_counter()
        done = 0
        # A few samples again and again: one pass alone would measure the clock.
        for row in order if seconds is None else itertools.cycle(order):
            reader[row]
            done += 1
            if time.perf_counter() - began > (RANDOM_SECONDS if seconds is None else seconds):
                break
        result.values["random_rate"] = done / (time.perf_counter() - began)
        self._note_memory()


def _stop(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def exit_reason(code: int) -> str:
    """Describe the end of a process by its exit code."""
    if code >= 0:
        return f"exit code {code}"
    names = {number.value: number.name for number in signal.Signals}
    return names.get(-code, f"signal {-code}")


def _answer(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except BatchplantError as error:
        return Failure(str(error))
    except MemoryError:
        return Failure("out of memory")
    except Exception as error:
        return Failure(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


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
            pickle.dump(_answer(lambda: method(*arguments)), out)  # noqa: B023 -- called at once
            out.flush()
    except (EOFError, BrokenPipeError):
        # Nobody waits for threads that libraries started.
        os._exit(0)


class Process:
    """A process of its own, and all that it starts; ``end`` leaves none of them."""

    def __init__(self, log: Path, **environment: str) -> None:
        self._log = log
        with open(log, "wb") as log_file:
            self._process = subprocess.Popen(
                # What our own folder holds must not stand in for a module of Python.
                [sys.executable, "-P", "-c", COMMAND],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log_file, start_new_session=True,
                # It finds the same modules as we do.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment},
            )  # fmt: skip

    def begin(self, job: Job) -> None:
        self._send(job)

    def ask(self, method: str, *arguments: Any, patience: float | None = None) -> Any:
        """Call a method in the process; WorkerError where it failed, died or took too long."""
        self._send((method, arguments))
        answers = self._out(self._process.stdout)
        if patience is not None and not wait([answers.fileno()], patience):
            self.end()
            raise WorkerError(f"it took more than {patience:,.0f} s")
        try:
            answer = pickle.load(answers)
        except (EOFError, pickle.UnpicklingError):
            raise WorkerError(self._failure()) from None
        if isinstance(answer, Failure):
            raise WorkerError(answer.message)
        return answer

    def _send(self, message: Any) -> None:
        pipe = self._out(self._process.stdin)
        try:
            pipe.write(pickle.dumps(message))
            pipe.flush()
        except BrokenPipeError:
            raise WorkerError(self._failure()) from None

    @staticmethod
    def _out(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None
        return pipe

    def _failure(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_SECONDS)
        self.end()
        # The last line of a traceback says what it was.
        lines = self._log.read_bytes()[-LOG_BYTES:].decode("utf-8", "replace").strip().splitlines()
        reason = exit_reason(self._process.returncode)
        return f"its process died ({reason}){f': {lines[-1]}' if lines else ''}"

    def end(self) -> None:
        """With whatever it started. Who is writing gets a moment to take back what it sent to a server."""
        with contextlib.suppress(BrokenPipeError):
            self._out(self._process.stdin).close()
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
