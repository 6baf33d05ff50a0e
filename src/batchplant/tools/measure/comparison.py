"""Measure a dataset in candidate formats, each in a process of its own, in turn.

The workers of an engine may measure instead, one candidate each at a time; every row then names its machine.
Speeds that are measured side by side on one machine disturb each other. So an engine of this machine has one
worker unless more are asked for, and a row says when another one was measured beside it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import platform
import re
import statistics
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...data.reader import Reader
from ...errors import BatchplantError, OptionError, WorkerError
from ...formats.registry import get_format
from ...jobs.engines import Engine, make, run
from ...jobs.engines.base import Inline, portable_source
from ...jobs.scans import engine_of
from ...schema import Schema
from ...storage import is_remote, reached, split_options, uploads
from ...storage.work import WORK
from .choice import Candidate, chosen, refusal
from .machine import describe
from .measurement import Measurement
from .pipelines import PIPELINES
from .scratch import PREFIX, scratch_folder
from .staging import mean_size, sample_count, spread_rows, stage
from .worker import Job, Process, Round, Written

# (steps done, total steps, label of the current step)
Progress = Callable[[int, int, str], None]
# Seconds of quick mode, and the shares of it for reading the samples and for writing them.
QUICK_SECONDS = 40.0
STAGING_SHARE, WRITING_SHARE = 0.1, 0.3
# Timed parts of a round: two epochs, two scans, single samples.
TIMED_PARTS = 5
# A step that takes so much longer than planned hangs.
PATIENCE_SECONDS = 60.0
# A candidate may take so many times the bytes of the cells: numbers as text, headers, padding.
MAX_GROWTH = 2
# Measures of which less is better.
NOT_ALONE = "measured while others were on the same machine: speeds are too low"
# formats(reader, [candidate], …)
Measure = Callable[..., list[Measurement]]
LESS_IS_BETTER = ("open_seconds", "first_batch", "fetched", "requests")


@dataclasses.dataclass
class _Entry:
    """A candidate that is being measured."""

    candidate: Candidate
    process: Process
    location: str
    written: Written | None = None
    rounds: list[Round] = dataclasses.field(default_factory=list)
    error: str | None = None

    def measured(self, requested: int) -> Measurement:
        candidate = self.candidate
        row = Measurement(candidate.format, candidate.options, candidate.label, error=self.error)
        if self.written is not None:
            written = self.written
            row = dataclasses.replace(
                row, samples=written.samples, data=written.data, bytes=written.bytes, files=written.count,
                write_seconds=written.seconds, write_rate=written.samples / written.seconds,
            )  # fmt: skip
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
        medians: dict[str, Any] = {name: statistics.median(samples) for name, samples in values.items()}
        for name in ("fetched", "requests"):
            # Later rounds may find bytes in memory.
            medians |= {name: round(values[name][0])} if name in values else {}
        return dataclasses.replace(
            row,
            **medians,
            memory=max(round.memory for round in self.rounds),
            rounds=len(self.rounds),
            remarks=tuple(remarks),
            best={
                name: (min if name in LESS_IS_BETTER else max)(samples)
                for name, samples in sorted(values.items())
            },
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
    if pipeline not in PIPELINES:
        raise OptionError(f"the pipeline is one of {', '.join(PIPELINES)}, not {pipeline!r}")
    if rounds < 1 or (seconds is not None and not seconds > 0):
        raise OptionError("rounds are at least 1, and seconds more than 0")
    if remote is not None and not is_remote(remote):
        raise OptionError(f"remote is a URL, not {remote!r}")
    requested = chosen(names, reader.schema, reader.format)
    refused = {
        candidate.label: why
        for candidate in requested
        if (why := refusal(get_format(candidate.format), reader.schema))
    }
    measured = [candidate for candidate in requested if candidate.label not in refused]
    if not measured:
        raise OptionError(f"no format is left to measure: {'; '.join(refused.values())}", path=reader.path)
    mean = mean_size(reader)
    count = sample_count(reader, sample, mean, quick=seconds is not None)
    by = workers_of(engine)
    if not isinstance(by, Inline):
        rows_by_engine = measured_by(
            by, formats, reader, measured, progress, sample=count, pipeline=pipeline, size=size,
            batch_size=batch_size, workers=workers, order=order, remote=remote, scratch=_text(scratch),
            remote_options=remote_options, rounds=rounds,
            seconds=None if seconds is None else seconds / len(measured),
        )  # fmt: skip
        return _in_order(requested, {row.label: row for row in rows_by_engine}, refused)
    needed = int(mean * count * (1 + MAX_GROWTH * (1 if remote else len(measured))))
    until = None if seconds is None else began + seconds
    steps = _Steps(len(measured), rounds, progress)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(scratch_folder(_text(scratch), reader.path, needed))
        base = None if remote is None else stack.enter_context(_prefix(remote, remote_options or {}))
        entries = _start_processes(stack, measured, folder, base)
        steps.show("taking samples")
        staged = stage(
            reader, spread_rows(len(reader), count), folder / "samples",
            until=None if until is None or sample is not None else began + STAGING_SHARE * (seconds or 0),
            progress=lambda done: steps.show(f"taking samples: {done:,}"),
        )  # fmt: skip
        for entry in entries:
            format = get_format(entry.candidate.format)
            job = Job(
                entry.candidate,
                f"data{entry.candidate.suffix or ''.join(format.suffixes[:1])}",
                entry.location,
                base is not None,
                dict(remote_options or {}),
                staged,
                Schema(reader.schema),
                pipeline,
                size,
                batch_size,
                workers,
                order,
            )
            _record_errors(entry, folder, functools.partial(entry.process.begin, job))
        share = None if seconds is None or sample is not None else WRITING_SHARE * seconds / len(measured)
        _write(entries, folder, share, steps)
        _rounds(entries, folder, until, rounds, steps)
        steps.end()
        rows = {entry.candidate.label: entry.measured(staged.samples) for entry in entries}
    return _in_order(requested, rows, refused)


def _in_order(
    candidates: Iterable[Candidate], rows: Mapping[str, Measurement], refused: Mapping[str, str]
) -> list[Measurement]:
    return [
        rows.get(candidate.label)
        or Measurement(candidate.format, candidate.options, candidate.label, error=refused[candidate.label])
        for candidate in candidates
    ]


class _Steps:
    """Progress over all steps."""

    def __init__(self, candidates: int, rounds: int, progress: Progress | None) -> None:
        self._total = 1 + candidates * (1 + rounds)
        self._done = 0
        self._progress = progress

    def show(self, label: str, done: int = 0) -> None:
        self._done += done
        if self._progress is not None:
            self._progress(self._done, self._total, label)

    def end(self) -> None:
        """Report completion, also of rounds for which there was no time."""
        self.show("measured", done=self._total - self._done)


def _start_processes(
    stack: contextlib.ExitStack, candidates: list[Candidate], folder: Path, base: str | None
) -> list[_Entry]:
    """Start a process for each candidate; they end before the scratch folder is removed."""
    entries = []
    for number, candidate in enumerate(candidates):
        # Without options, which may contain any characters.
        name = f"{number:02}-{candidate.format}"
        location = str(folder / name) if base is None else f"{base}/{name}"
        if base is None:
            os.mkdir(location)
        # Pending uploads are stored in the scratch folder, too.
        process = Process(folder / f"{name}.log", **{WORK: str(folder / "uploads")})
        stack.callback(process.end)
        entries.append(_Entry(candidate, process, location))
    return entries


def _write(entries: list[_Entry], folder: Path, share: float | None, steps: _Steps) -> None:
    patience = None if share is None else share + PATIENCE_SECONDS
    for entry in entries:
        steps.show(f"writing {entry.candidate.label}", done=1)

        def write(entry: _Entry = entry) -> None:
            entry.written = entry.process.ask("write", share, patience=patience)
            count = entry.process.ask("ready", patience=patience)
            if count != entry.written.samples:
                raise WorkerError(f"{entry.written.samples:,} samples were written, and {count:,} are there")

        _record_errors(entry, folder, write)


def _rounds(entries: list[_Entry], folder: Path, until: float | None, rounds: int, steps: _Steps) -> None:
    """Measure in rounds in which all candidates take turns, so that other load hits all of them alike."""
    remaining = rounds * len(entries)
    for number in range(rounds):
        # Rotate, so that no candidate is always the first.
        turn = number % len(entries)
        for entry in entries[turn:] + entries[:turn]:
            steps.show(f"round {number + 1} of {rounds}: {entry.candidate.label}", done=1)
            alive = sum(other.error is None for other in entries)
            slot = (
                None
                if until is None
                else max(0.02, (until - time.monotonic()) / max(remaining, 1) / TIMED_PARTS)
            )
            remaining -= 1

            def turn_of(entry: _Entry = entry, slot: float | None = slot) -> None:
                patience = None if slot is None else TIMED_PARTS * slot + PATIENCE_SECONDS
                entry.rounds.append(entry.process.ask("round", slot, patience=patience))

            if entry.error is None and alive:
                _record_errors(entry, folder, turn_of)
        if until is not None and time.monotonic() > until:
            break


def _record_errors(entry: _Entry, folder: Path, work: Callable[[], Any]) -> None:
    """Run ``work``; turn an error into a row with an error."""
    if entry.error is not None:
        return
    try:
        work()
    except WorkerError as error:
        # The user does not know the scratch folder: remove its path.
        hidden = rf"{re.escape(entry.location)}/|{re.escape(str(folder))}/([^/\s]+/)?"
        entry.error = re.sub(hidden, "", error.message)
        entry.rounds.clear()


@contextlib.contextmanager
def _prefix(remote: str, options: Mapping[str, Any]) -> Iterator[str]:
    """Make a folder below a URL; its contents are removed at the end of the block."""
    url = f"{remote.rstrip('/')}/{PREFIX}{uuid.uuid4().hex[:12]}"
    try:
        yield url
    finally:
        storage_options = split_options(dict(options))[0]
        # An unreachable server must not hide the error of the block.
        with contextlib.suppress(BatchplantError):
            names = uploads.below(reached(url, storage_options))
            uploads.remove_all(reached(f"{url}/{name}", storage_options) for name in names)


def _text(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(path)


@dataclasses.dataclass(frozen=True)
class _EngineResult:
    """A row, its machine, and the time of its measurement."""

    row: Measurement
    host: str
    began: float
    ended: float

    def overlaps(self, row: _EngineResult) -> bool:
        return self.host == row.host and self.began < row.ended and row.began < self.ended


@dataclasses.dataclass(frozen=True)
class _MeasureCandidate:
    measure: Measure
    reader: Reader
    candidates: Sequence[Candidate]
    options: Mapping[str, Any]

    def __call__(self, number: int) -> _EngineResult:
        began = time.time()
        (row,) = self.measure(self.reader, [self.candidates[number]], **self.options)
        host = platform.node()
        return _EngineResult(
            dataclasses.replace(row, machine=f"{host}: {_described()}"), host, began, time.time()
        )


@functools.cache
def _described() -> str:
    return describe()


def workers_of(engine: str | Engine) -> Engine:
    """Return the engine of that name, with one worker if its workers are on this machine."""
    if isinstance(engine, str) and engine in ("processes", "dask", "ray"):
        return make(engine, workers=1)
    return engine_of(engine)


def measured_by(
    engine: Engine, measure: Measure, reader: Reader, candidates: Sequence[Candidate],
    progress: Callable[[int, int, str], None] | None, **options: Any,
) -> list[Measurement]:  # fmt: skip
    """Measure candidates with the workers of an engine."""
    work = _MeasureCandidate(measure, portable_source(reader), candidates, options)
    results: dict[int, _EngineResult] = {}

    def show(label: str) -> None:
        if progress is not None:
            progress(len(results), len(candidates), label)

    def done(number: int, row: _EngineResult) -> None:
        results[number] = row
        show(f"measured {candidates[number].label}")

    show("starting workers")
    run(engine, work, range(len(candidates)), done, name=lambda number: candidates[number].label)
    rows = []
    for number in range(len(candidates)):
        result = results[number]
        disturbed = any(
            other_row is not result and result.overlaps(other_row) for other_row in results.values()
        )
        rows.append(
            dataclasses.replace(result.row, remarks=(*result.row.remarks, NOT_ALONE))
            if disturbed
            else result.row
        )
    return rows
