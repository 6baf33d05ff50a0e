"""Measure a dataset in candidate formats, each read in a process of its own, in turn.

The workers of an engine may measure instead, one candidate each at a time; every row then names its machine.
Speeds that are measured side by side on one machine disturb each other. So an engine of this machine has one
worker unless more are asked for, and a row says when others may have been measured beside it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import os
import pickle
import platform
import re
import signal
import statistics
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...data.reader import Reader
from ...errors import BatchplantError, OptionError, WorkerError
from ...formats.registry import get_format
from ...jobs.engines import Engine, make, run
from ...jobs.engines.base import Inline, portable_source
from ...jobs.engines.processes import Worker
from ...jobs.scans import engine_of
from ...schema import Schema
from ...storage import is_remote, reached, split_options, uploads
from ...storage.platform import resident_memory
from ...storage.remote import totals
from ...storage.settings import NAMES as STORAGE_OPTIONS
from ...storage.work import WORK
from .. import Document
from . import timing
from .choice import Candidate, chosen, refusal
from .harness import (
    PREFIX,
    Harness,
    Staged,
    Stored,
    cool,
    mean_size,
    sample_count,
    scratch_folder,
    spread_rows,
    stage,
    warm,
)

# (steps done, total steps, label of the current step)
Progress = Callable[[int, int, str], None]
# Seconds of quick mode, and the shares of it for reading the samples and for writing them.
QUICK_SECONDS = 40.0
STAGING_SHARE, WRITING_SHARE = 0.1, 0.3
# Timed parts of a round: two epochs, two scans, single samples.
TIMED_PARTS = 5
# A step that takes so much longer than planned hangs.
PATIENCE_SECONDS = 60.0
EXIT_SECONDS = 5.0
# Asking how much memory is held takes time itself: so many seconds apart.
MEMORY_INTERVAL_SECONDS = 0.02
# For an epoch over the network to be a whole one.
REMOTE_EPOCH_SECONDS = 10.0
# Epochs that are shorter measure the start of threads and the clock.
MIN_EPOCH_SECONDS = 0.2
# A candidate may take so many times the bytes of the cells: numbers as text, headers, padding.
MAX_GROWTH = 2
LOG_BYTES = 2000
NOT_ALONE = "others were measured on the same machine at the same time: speeds are too low"
COLD, WARM = "epoch_cold", "epoch_warm"
LESS_IS_BETTER = ("open_seconds", "first_batch", "fetched", "requests")
# What a process is asked: the name of a method and its arguments.
Call = tuple[Any, ...]
# formats(reader, [candidate], …)
Measure = Callable[..., "list[Measurement]"]


# -- results --------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One row of a comparison. Speeds and times are the median of the rounds; ``best`` has the best of each.

    ``bytes``: on disk (or in the bucket), all files, of ``samples`` samples; ``data``: of their cells, the
    same for every format. ``memory``: what the reading process held at most, without Python, NumPy and the
    pages of mapped files. Rates are samples/s but for ``sequential_mb_s``, which counts bytes of cells.
    ``column_rate``: one field from start to end (``pipelines.column_of``), as a query reads it.
    ``random_rate``: ``reader[i]``, decoded. ``epoch_cold``, ``epoch_warm``: a shuffled epoch through the
    Loader, when the system holds nothing of the files in memory, and when it holds them all: the cold one
    with its start, of which ``first_batch`` are the seconds; the warm one without it. ``fetched`` and
    ``requests``: of opening and one such epoch over the network; None for local files. None elsewhere: not
    measured, and ``error`` says why, or ``remarks`` where only a part could not be. ``machine``: where the
    worker of an engine measured it; None: here.
    """

    format: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    label: str = ""
    samples: int = 0
    data: int = 0
    bytes: int | None = None
    files: int | None = None
    write_seconds: float | None = None
    write_rate: float | None = None
    open_seconds: float | None = None
    memory: int | None = None
    sequential_mb_s: float | None = None
    sequential_rate: float | None = None
    column_rate: float | None = None
    random_rate: float | None = None
    first_batch: float | None = None
    epoch_cold: float | None = None
    epoch_warm: float | None = None
    fetched: int | None = None
    requests: int | None = None
    rounds: int = 0
    best: Mapping[str, float] = dataclasses.field(default_factory=dict)
    remarks: Sequence[str] = ()
    error: str | None = None
    machine: str | None = None

    @property
    def bytes_per_sample(self) -> float | None:
        return None if self.bytes is None or not self.samples else self.bytes / self.samples

    def to_json(self) -> Document:
        return {**dataclasses.asdict(self), "bytes_per_sample": self.bytes_per_sample}


def caveats(rows: Iterable[Measurement], speed: str = "epoch_warm") -> list[str]:
    """Reasons why the order of the fastest may be chance, each as a sentence; none where it is not."""
    measured = [row for row in rows if row.error is None and getattr(row, speed)]
    ordered = sorted(measured, key=lambda entry: -getattr(entry, speed))
    if len(ordered) < 2:
        return []
    sentences = []
    first = ordered[0]
    if max(row.rounds for row in ordered) < 2:
        sentences.append("Only one round was measured, so a difference may be chance: --rounds 5 tells more.")
    else:
        # How much better the best round of a format is than its median.
        spreads = [row.best[speed] / getattr(row, speed) - 1 for row in ordered if row.best.get(speed)]
        noise = max(statistics.median(spreads), 0.0) if spreads else 0.0
        near = [
            row.label for row in ordered[1:] if getattr(row, speed) >= getattr(first, speed) * (1 - noise)
        ]
        if near:
            who = f"{', '.join(near)} {'is' if len(near) == 1 else 'are'} within {noise:.0%} of {first.label}"
            sentences.append(f"{who}, and rounds of one format differ as much: take them as equally fast.")
    seconds = first.samples / getattr(first, speed)
    if speed.startswith("epoch") and seconds < MIN_EPOCH_SECONDS:
        sentences.append(
            f"An epoch of {first.samples:,} samples takes {seconds * 1e3:.0f} ms, which is too short to rank "
            "by: measure more samples (--sample, --seconds)."
        )
    return sentences


def pareto(rows: Iterable[Measurement], speed: str = "epoch_warm") -> list[Measurement]:
    """Those that no other beats: none is as small and as fast, and better in one of both. Smallest first."""
    measured = [row for row in rows if row.bytes_per_sample is not None and getattr(row, speed) is not None]
    front: list[Measurement] = []
    for row in sorted(measured, key=lambda entry: (entry.bytes_per_sample or 0, -getattr(entry, speed))):
        equal = front and (row.bytes_per_sample, getattr(row, speed)) == (
            front[-1].bytes_per_sample, getattr(front[-1], speed)
        )  # fmt: skip
        if not front or equal or getattr(row, speed) > getattr(front[-1], speed):
            front.append(row)
    return front


# -- in the process of a candidate ----------------------------------------------------------------------


@dataclasses.dataclass
class Round:
    """Result of a round: values by the names of Measurement."""

    values: dict[str, float] = dataclasses.field(default_factory=dict)
    remarks: list[str] = dataclasses.field(default_factory=list)
    memory: int = 0


@dataclasses.dataclass
class Task:
    """One candidate: written once, by a process that writes all of them, then read in rounds in its own.

    A worker calls it with the name of a method and its arguments.
    """

    candidate: Candidate
    location: str
    folder: str
    storage: Document
    staged: Staged
    schema: Schema
    settings: timing.EpochSettings

    def __call__(self, call: Call) -> object:
        """Call a method; no error but WorkerError."""
        method, *arguments = call
        try:
            return getattr(self, method)(*arguments)
        except MemoryError:
            raise WorkerError("out of memory") from None
        except BatchplantError as error:
            raise WorkerError(str(error)) from None
        except Exception as error:
            raise WorkerError(f"{type(error).__name__}: {error}".removesuffix(": ")) from None

    @property
    def remote(self) -> bool:
        return is_remote(self.location)

    def write(self, seconds: float | None) -> Stored:
        """Write the samples; after ``seconds`` those that are written by then."""
        # A writer that is stopped takes back what it sent to a server.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        sample = next(self.staged.batches()).take(np.arange(1))
        options = {
            name: value for name, value in self.candidate.options.items() if name not in STORAGE_OPTIONS
        }
        # Write a sample for nothing: importing a library is no part of writing.
        local, folder = Harness(str(self.staged.path.parent)), f"{self.folder}-rehearsal"
        local.store([sample], self.schema, dataclasses.replace(self.candidate, options=options), folder)
        local.remove(folder)
        target, staged, workers = Harness(self.location, self.storage), self.staged, self.settings.workers
        return target.store(
            staged.batches(), self.schema, self.candidate, self.folder, staged.samples, workers, seconds
        )

    def begin(self, stored: Stored) -> int:
        """Open it once, which also imports what that needs; return how many samples there are."""
        self.stored, self.harness = stored, Harness(self.location, self.storage)
        self._first_memory = resident_memory("RssAnon")
        self._peak = self._batch = self._seed = 0
        self._memory_noted = 0.0
        self.reader: Reader | None = self.harness.open(stored)
        return len(self.reader)

    def round(self, seconds: float | None) -> Round:
        """All measures once, each for so long at most (None: all samples)."""
        result = Round()
        # Pages that a reader has mapped stay in memory.
        if self.reader is not None:
            self.reader.close()
        self.reader = None
        gc.collect()
        local = None if self.remote else Path(self.location, self.folder)
        if local is not None and not cool(local):
            result.remarks.append("cold is warm: the system keeps these files in memory")
        requests, fetched = totals()
        began = time.perf_counter()
        reader = self.reader = self.harness.open(self.stored)
        result.values["open_seconds"] = time.perf_counter() - began
        opened = totals()
        # Over the network it goes to its end, for bytes are fetched ahead of the samples.
        least = REMOTE_EPOCH_SECONDS if self.remote else 0.0
        epoch = self._measure_epoch(result, COLD, None if seconds is None else max(seconds, least))
        if self.remote and epoch:
            share = epoch / self.stored.samples
            result.values["requests"] = opened[0] - requests + (totals()[0] - opened[0]) / share
            result.values["fetched"] = opened[1] - fetched + (totals()[1] - opened[1]) / share
        if local is not None:
            warm(local)
        rate, size = self.harness.scan_rates(reader, sample_bytes=self._sample_bytes, seconds=seconds)
        result.values["sequential_rate"], result.values["sequential_mb_s"] = rate, size / 1e6
        self._note_memory()
        result.values["column_rate"], _ = self.harness.scan_rates(
            reader, sample_bytes=self._sample_bytes, seconds=seconds, field=timing.column_of(reader.schema)
        )
        result.values["random_rate"] = self.harness.sample_rate(
            self._pipeline_reader(), seconds=seconds, seed=self._seed
        )
        self._note_memory()
        self._measure_epoch(result, WARM, seconds)
        self._note_memory()
        result.memory = self._peak
        return result

    @property
    def _sample_bytes(self) -> float:
        return self.stored.data / max(self.stored.samples, 1)

    def _pipeline_reader(self) -> Reader:
        """The reader, as the pipeline wants it."""
        assert self.reader is not None
        return timing.Undecoded(self.reader) if self.settings.pipeline == "raw" else self.reader

    def _note_memory(self, now: bool = True) -> None:
        if now or time.perf_counter() - self._memory_noted > MEMORY_INTERVAL_SECONDS:
            self._peak = max(self._peak, resident_memory("RssAnon") - self._first_memory)
            self._memory_noted = time.perf_counter()

    def _measure_epoch(self, result: Round, name: str, seconds: float | None) -> int:
        """A shuffled epoch, or its beginning; return how many samples came."""
        reader, settings = self._pipeline_reader(), self.settings
        self._seed += 1
        options: Document = {"seed": self._seed, "on_batch": lambda: self._note_memory(now=False)}
        try:
            if name == COLD or seconds is None:
                small = settings.small_batch(reader.schema, self._sample_bytes)
                batch = settings.batch_size if seconds is None else small
                epoch = timing.epoch(
                    reader, settings, batch_size=batch, seconds=seconds, once=name == COLD, **options
                )
            else:
                epoch, self._batch = timing.quick_epoch(
                    reader, settings, sample_bytes=self._sample_bytes, seconds=seconds,
                    batch_size=self._batch, **options,
                )  # fmt: skip
        except BatchplantError as error:
            # All else can be measured.
            result.remarks.append(f"no epoch: {error.message}")
            return 0
        # What is fetched before the first batch is no small part of a first epoch.
        result.values[name] = epoch.rate_with_start if name == COLD else epoch.rate
        if name == COLD:
            result.values["first_batch"] = epoch.first_batch_seconds
        return epoch.samples


def _perform(call: Call) -> object:
    """Call a task with the rest of the arguments."""
    task, *arguments = call
    return task(tuple(arguments))


# -- the comparison -------------------------------------------------------------------------------------


class _Process:
    """A process that calls a function with what it is asked; it starts when it is needed."""

    def __init__(self, function: Callable[[Call], object], log: Path) -> None:
        self._function, self._log = function, log
        self._worker: Worker | None = None
        self._is_busy = False

    def ask(self, *arguments: object, patience: float | None) -> Any:
        """Call the function in the process; WorkerError where that fails, dies or takes too long."""
        if self._worker is None:
            with open(self._log, "ab") as log:
                # Pending uploads are stored in the scratch folder, too; modules of the current folder must
                # not stand in for those of Python.
                environment = {WORK: str(self._log.parent / "uploads"), "PYTHONSAFEPATH": "1"}
                self._worker = Worker(pickle.dumps(self._function), log, **environment)
        self._worker.submit(arguments)
        self._is_busy = True
        if patience is not None and not self._worker.connection.poll(patience):
            self.end()
            raise WorkerError(f"it took more than {patience:,.0f} s")
        value = self._worker.result()
        self._is_busy = False
        if not isinstance(value, Exception):
            return value
        if not self._worker.alive:
            # The last line of a traceback says what it was.
            lines = self._log.read_bytes()[-LOG_BYTES:].decode("utf-8", "replace").strip().splitlines()
            value = WorkerError(": ".join([str(value), *lines[-1:]]))
            self.end()
        raise value

    def end(self) -> None:
        """End the process; one that is writing gets a moment to take back what it sent to a server."""
        if self._worker is not None:
            self._worker.end(EXIT_SECONDS if self._is_busy else 0.0)
        self._worker = None


class _Entry:
    """A candidate that is being measured: its task, its process and its results."""

    def __init__(self, task: Task, folder: Path) -> None:
        self.task = task
        self._scratch, self._process = folder, _Process(task, folder / f"{task.folder}.log")
        self.end = self._process.end
        self.stored: Stored | None = None
        self.rounds: list[Round] = []
        self.error: str | None = None

    def attempt(self, work: Callable[[], None]) -> None:
        """Run ``work`` unless an earlier step failed; its failure is the error of the row."""
        if self.error is not None:
            return
        try:
            work()
        except WorkerError as error:
            # The user does not know the scratch folder: remove its path.
            location, folder = re.escape(self.task.location), re.escape(str(self._scratch))
            self.error = re.sub(rf"{location}/([^/\s]+/)?|{folder}/([^/\s]+/)?", "", error.message)
            self.rounds.clear()

    def write(self, writer: _Process, share: float | None) -> None:
        patience = None if share is None else share + PATIENCE_SECONDS
        self.stored = stored = writer.ask(self.task, "write", share, patience=patience)
        count = self._process.ask("begin", stored, patience=patience)
        if count != stored.samples:
            raise WorkerError(f"{stored.samples:,} samples were written, and {count:,} are there")

    def read(self, slot: float | None) -> None:
        patience = None if slot is None else TIMED_PARTS * slot + PATIENCE_SECONDS
        self.rounds.append(self._process.ask("round", slot, patience=patience))

    def measurement(self, requested: int) -> Measurement:
        candidate, stored = self.task.candidate, self.stored
        row = Measurement(candidate.format, candidate.options, candidate.label, error=self.error)
        if stored is not None:
            counts = {name: getattr(stored, name) for name in ("samples", "data", "bytes", "files")}
            row = dataclasses.replace(row, **counts)
            rate = stored.samples / stored.seconds
            row = dataclasses.replace(row, write_seconds=stored.seconds, write_rate=rate)
        if not self.rounds:
            return row
        names = {name for round in self.rounds for name in round.values}
        values = {
            name: [round.values[name] for round in self.rounds if name in round.values] for name in names
        }
        # Only one remark of a kind: other rounds concern other samples.
        latest = {text.partition(":")[0]: text for round in self.rounds[::-1] for text in round.remarks[::-1]}
        remarks = list(latest.values())
        if row.samples < requested:
            remarks.append(f"{row.samples:,} of {requested:,} samples: writing more takes too long")
        medians: Document = {name: statistics.median(samples) for name, samples in values.items()}
        for name in ("fetched", "requests"):
            # Later rounds may find bytes in memory.
            medians |= {name: round(values[name][0])} if name in values else {}
        best = {
            name: (min if name in LESS_IS_BETTER else max)(samples)
            for name, samples in sorted(values.items())
        }
        return dataclasses.replace(
            row,
            **medians,
            memory=max(round.memory for round in self.rounds),
            rounds=len(self.rounds),
            remarks=tuple(remarks),
            best=best,
        )


def formats(
    reader: Reader,
    names: Iterable[str | Candidate] | None = None,
    *,
    sample: int | None = None,
    pipeline: str = "train",
    size: int = 224,
    batch_size: int = 256,
    workers: int | None = None,
    order: str = "random",
    remote: str | None = None,
    remote_options: Mapping[str, Any] | None = None,
    scratch: str | os.PathLike[str] | None = None,
    seconds: float | None = QUICK_SECONDS,
    rounds: int = 3,
    engine: str | Engine = "threads",
    progress: Progress | None = None,
) -> list[Measurement]:
    """Write some samples in each format and time reading them; return a row for each candidate.

    names: formats, also with options, as ``"parquet:compression=zstd"`` or a :class:`Candidate`; None:
    :func:`candidates` of the schema, and the format of the source. sample: how many samples (None: as many as
    the time allows). pipeline, size: what the Loader does to images (``train``, ``val``, ``none``,
    ``raw``). remote: a URL below which they are written and read back, in a folder of their own that is
    removed. scratch: the folder for local files (None: a temporary one where there is room). seconds: about
    how long it may take; None: all samples, however long. A format that fails is a row with an ``error``.
    engine: its workers measure; those of ``processes``, ``dask`` or ``ray`` measure one candidate each at a
    time, and a name alone means one worker of this machine.
    """
    began = time.monotonic()
    if pipeline not in timing.PIPELINES:
        raise OptionError(f"the pipeline is one of {', '.join(timing.PIPELINES)}, not {pipeline!r}")
    if rounds < 1 or (seconds is not None and not seconds > 0):
        raise OptionError("rounds are at least 1, and seconds more than 0")
    if remote is not None and not is_remote(remote):
        raise OptionError(f"remote is a URL, not {remote!r}")
    requested = chosen(names, reader.schema, reader.format)
    rows = {
        candidate.label: Measurement(candidate.format, candidate.options, candidate.label, error=why)
        for candidate in requested
        if (why := refusal(get_format(candidate.format), reader.schema))
    }
    measured = [candidate for candidate in requested if candidate.label not in rows]
    if not measured:
        reasons = "; ".join(str(row.error) for row in rows.values())
        raise OptionError(f"no format is left to measure: {reasons}", path=reader.path)
    mean = mean_size(reader)
    count = sample_count(reader, sample, mean, quick=seconds is not None)
    by = workers_of(engine)
    if isinstance(by, Inline):
        settings = timing.EpochSettings(batch_size, order, pipeline, size, workers)
        needed = int(mean * count * (1 + MAX_GROWTH * (1 if remote else len(measured))))
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(
                scratch_folder(None if scratch is None else os.fspath(scratch), reader.path, needed)
            )
            storage = dict(remote_options or {})
            location = str(folder) if remote is None else stack.enter_context(_prefix(remote, storage))
            steps = _Steps(len(measured), rounds, progress)
            steps.show("taking samples")
            # Samples that are asked for are all taken and written.
            limit = seconds if sample is None else None
            staged = stage(
                reader, spread_rows(len(reader), count), folder / "samples",
                until=None if limit is None else began + STAGING_SHARE * limit,
                progress=lambda done: steps.show(f"taking samples: {done:,}"),
            )  # fmt: skip
            entries = []
            for number, candidate in enumerate(measured):
                # Without options, which may contain any characters.
                name = f"{number:02}-{candidate.format}"
                task = Task(candidate, location, name, storage, staged, Schema(reader.schema), settings)
                entries.append(_Entry(task, folder))
                stack.callback(entries[-1].end)
            # The memory of writing is not that of reading: another process writes.
            writer = _Process(_perform, folder / "writing.log")
            stack.callback(writer.end)
            for entry in entries:
                steps.show(f"writing {entry.task.candidate.label}", done=1)
                share = None if limit is None else WRITING_SHARE * limit / len(measured)
                entry.attempt(functools.partial(entry.write, writer, share))
            writer.end()
            _measure_rounds(entries, None if seconds is None else began + seconds, rounds, steps)
            measurements = [entry.measurement(staged.samples) for entry in entries]
    else:
        measurements = measured_by(
            by, formats, reader, measured, progress, sample=count, pipeline=pipeline, size=size,
            batch_size=batch_size, workers=workers, order=order, remote=remote, scratch=scratch,
            remote_options=remote_options, rounds=rounds,
            seconds=None if seconds is None else seconds / len(measured),
        )  # fmt: skip
    rows |= {row.label: row for row in measurements}
    return [rows[candidate.label] for candidate in requested]


class _Steps:
    """Progress over all steps."""

    def __init__(self, candidates: int, rounds: int, progress: Progress | None) -> None:
        self.total = 1 + candidates * (1 + rounds)
        self.done = 0
        self._progress = progress

    def show(self, label: str, done: int = 0) -> None:
        self.done += done
        if self._progress is not None:
            self._progress(self.done, self.total, label)


def _measure_rounds(entries: list[_Entry], until: float | None, rounds: int, steps: _Steps) -> None:
    """Measure in rounds in which all candidates take turns, so that other load hits all of them alike."""
    remaining = rounds * len(entries)
    for number in range(rounds):
        # Rotate, so that no candidate is always the first.
        turn = number % len(entries)
        for entry in entries[turn:] + entries[:turn]:
            steps.show(f"round {number + 1} of {rounds}: {entry.task.candidate.label}", done=1)
            slot = None
            if until is not None:
                slot = max(0.02, (until - time.monotonic()) / remaining / TIMED_PARTS)
            remaining -= 1
            entry.attempt(functools.partial(entry.read, slot))
        if until is not None and time.monotonic() > until:
            break
    # Report completion, also of rounds for which there was no time.
    steps.show("measured", done=steps.total - steps.done)


@contextlib.contextmanager
def _prefix(remote: str, options: Document) -> Iterator[str]:
    """Make a folder below a URL; its contents are removed at the end of the block."""
    url = f"{remote.rstrip('/')}/{PREFIX}{uuid.uuid4().hex[:12]}"
    try:
        yield url
    finally:
        storage_options = split_options(options)[0]
        # An unreachable server must not hide the error of the block.
        with contextlib.suppress(BatchplantError):
            names = uploads.below(reached(url, storage_options))
            uploads.remove_all(reached(f"{url}/{name}", storage_options) for name in names)


# -- the workers of an engine ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _MeasureCandidate:
    measure: Measure
    reader: Reader
    candidates: Sequence[Candidate]
    options: Mapping[str, Any]

    def __call__(self, number: int) -> Measurement:
        (row,) = self.measure(self.reader, [self.candidates[number]], **self.options)
        return dataclasses.replace(row, machine=f"{platform.node()}: {timing.describe()}")


def workers_of(engine: str | Engine) -> Engine:
    """Return the engine of that name, with one worker if its workers are on this machine."""
    if isinstance(engine, str) and engine in ("processes", "dask", "ray"):
        return make(engine, workers=1)
    return engine_of(engine)


def measured_by(
    engine: Engine,
    measure: Measure,
    reader: Reader,
    candidates: Sequence[Candidate],
    progress: Progress | None,
    **options: Any,
) -> list[Measurement]:
    """Measure candidates with the workers of an engine."""
    work = _MeasureCandidate(measure, portable_source(reader), candidates, options)
    rows: dict[int, Measurement] = {}

    def show(label: str) -> None:
        if progress is not None:
            progress(len(rows), len(candidates), label)

    def done(number: int, row: Measurement) -> None:
        rows[number] = row
        show(f"measured {candidates[number].label}")

    show("starting workers")
    run(engine, work, range(len(candidates)), done, name=lambda number: candidates[number].label)
    machines = Counter(row.machine for row in rows.values())
    for number, row in rows.items():
        if engine.width > 1 and machines[row.machine] > 1:
            rows[number] = dataclasses.replace(row, remarks=(*row.remarks, NOT_ALONE))
    return [rows[number] for number in range(len(candidates))]
