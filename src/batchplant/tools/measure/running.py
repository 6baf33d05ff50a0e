"""Measure a dataset in candidate formats, each in a process of its own, in turn."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import statistics
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...data.reader import Reader
from ...errors import BatchplantError, OptionError, WorkerError
from ...formats.registry import get_format
from ...jobs.engines import Engine
from ...jobs.engines.inline import Inline
from ...schema import Schema
from ...storage import is_remote, reached, split_options, uploads
from ...storage.work import WORK
from .choice import Candidate, chosen, refusal
from .measured import Measured
from .pipelines import PIPELINES
from .process import Process
from .scratch import PREFIX, scratch_folder
from .spread import measured_by, workers_of
from .staging import how_many, mean_size, picked, stage
from .worker import Job, Round, Written

# (steps done, steps in all, what is under way)
Progress = Callable[[int, int, str], None]
# Seconds of quick mode, and the shares of it for taking the samples and for writing them.
QUICK = 40.0
STAGING, WRITING = 0.1, 0.3
# Measures of a round that take their time: two epochs, two scans, single samples.
TIMED = 5
# What a step may take beyond its time; only what hangs takes longer.
PATIENCE = 60.0
# A candidate may take more room than the cells themselves: numbers as text, headers, padding.
GROWTH = 2
# Where less is better.
COSTS = ("open_seconds", "first_batch", "fetched", "requests")


@dataclasses.dataclass
class _Entry:
    """A candidate under way."""

    candidate: Candidate
    process: Process
    place: str
    written: Written | None = None
    rounds: list[Round] = dataclasses.field(default_factory=list)
    error: str | None = None

    def measured(self, asked: int) -> Measured:
        which = self.candidate
        found = Measured(which.format, which.options, which.label, error=self.error)
        if self.written is not None:
            one = self.written
            found = dataclasses.replace(
                found, samples=one.samples, data=one.data, bytes=one.bytes, files=one.count,
                write_seconds=one.seconds, write_rate=one.samples / one.seconds,
            )  # fmt: skip
        if not self.rounds:
            return found
        names = {name for one in self.rounds for name in one.values}
        values = {name: [one.values[name] for one in self.rounds if name in one.values] for name in names}
        # One of a sort: another round meets another sample.
        sorts = {text.partition(":")[0]: text for one in self.rounds[::-1] for text in one.remarks[::-1]}
        remarks = list(sorts.values())
        if found.samples < asked:
            remarks.append(f"{found.samples:,} of {asked:,} samples: writing more takes too long")
        middle: dict[str, Any] = {name: statistics.median(some) for name, some in values.items()}
        for name in ("fetched", "requests"):
            # Later rounds may find something in memory.
            middle |= {name: round(values[name][0])} if name in values else {}
        return dataclasses.replace(
            found, **middle, memory=max(one.memory for one in self.rounds), rounds=len(self.rounds),
            remarks=tuple(remarks),
            best={name: (min if name in COSTS else max)(some) for name, some in sorted(values.items())},
        )  # fmt: skip


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
    seconds: float | None = QUICK,
    rounds: int = 3,
    engine: str | Engine = "threads",
    progress: Progress | None = None,
) -> list[Measured]:
    """Write some samples in each format, and measure what reading them costs; one row for each candidate.

    names: formats, also with options, as ``"parquet:compression=zstd"`` or a :class:`Candidate`; None:
    :func:`candidates` of the schema, and the format of the source. sample: how many samples (None: as many as
    the time allows). pipeline, size: what the Loader does to images (``train``, ``val``, ``none``,
    ``raw``). remote: a URL below which they are written and read back, in a folder of their own that is
    removed. scratch: the folder for local files (None: a temporary one where there is room). seconds: about
    how long it may take; None: all samples, however long. A format that fails is a row with an ``error``.
    engine: who measures; the workers of ``processes``, ``dask`` or ``ray`` do one candidate each at a time,
    and a name alone means one worker of this machine.
    """
    began = time.monotonic()
    if pipeline not in PIPELINES:
        raise OptionError(f"the pipeline is one of {', '.join(PIPELINES)}, not {pipeline!r}")
    if rounds < 1 or (seconds is not None and not seconds > 0):
        raise OptionError("rounds are at least 1, and seconds more than 0")
    if remote is not None and not is_remote(remote):
        raise OptionError(f"remote is a URL, not {remote!r}")
    wanted = chosen(names, reader.schema, reader.format)
    refused = {one.label: why for one in wanted if (why := refusal(get_format(one.format), reader.schema))}
    taken = [one for one in wanted if one.label not in refused]
    if not taken:
        raise OptionError(f"no format is left to measure: {'; '.join(refused.values())}", path=reader.path)
    mean = mean_size(reader)
    count = how_many(reader, sample, mean, quick=seconds is not None)
    by = workers_of(engine)
    if not isinstance(by, Inline):
        there = measured_by(
            by, formats, reader, taken, progress, sample=count, pipeline=pipeline, size=size,
            batch_size=batch_size, workers=workers, order=order, remote=remote, scratch=_text(scratch),
            remote_options=remote_options, rounds=rounds,
            seconds=None if seconds is None else seconds / len(taken),
        )  # fmt: skip
        return _in_order(wanted, {one.label: one for one in there}, refused)
    needed = int(mean * count * (1 + GROWTH * (1 if remote else len(taken))))
    until = None if seconds is None else began + seconds
    steps = _Steps(len(taken), rounds, progress)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(scratch_folder(_text(scratch), reader.path, needed))
        base = None if remote is None else stack.enter_context(_prefix(remote, remote_options or {}))
        entries = _started(stack, taken, folder, base)
        steps.at("taking samples")
        staged = stage(
            reader, picked(len(reader), count), folder / "samples",
            until=None if until is None or sample is not None else began + STAGING * (seconds or 0),
            progress=lambda done: steps.at(f"taking samples: {done:,}"),
        )  # fmt: skip
        for one in entries:
            found = get_format(one.candidate.format)
            job = Job(
                one.candidate, f"data{one.candidate.suffix or ''.join(found.suffixes[:1])}", one.place,
                base is not None, dict(remote_options or {}), staged, Schema(reader.schema), pipeline, size,
                batch_size, workers, order,
            )  # fmt: skip
            _guarded(one, folder, lambda job=job, one=one: one.process.begin(job))  # type: ignore[misc]
        share = None if seconds is None or sample is not None else WRITING * seconds / len(taken)
        _write(entries, folder, share, steps)
        _rounds(entries, folder, until, rounds, steps)
        steps.end()
        rows = {one.candidate.label: one.measured(staged.samples) for one in entries}
    return _in_order(wanted, rows, refused)


def _in_order(
    wanted: Iterable[Candidate], rows: Mapping[str, Measured], refused: Mapping[str, str]
) -> list[Measured]:
    return [
        rows.get(one.label) or Measured(one.format, one.options, one.label, error=refused[one.label])
        for one in wanted
    ]


class _Steps:
    """What is done, of all there is to do."""

    def __init__(self, candidates: int, rounds: int, progress: Progress | None) -> None:
        self._total = 1 + candidates * (1 + rounds)
        self._done = 0
        self._progress = progress

    def at(self, what: str, done: int = 0) -> None:
        self._done += done
        if self._progress is not None:
            self._progress(self._done, self._total, what)

    def end(self) -> None:
        """Rounds for which there was no time are not missing."""
        self.at("measured", done=self._total - self._done)


def _started(
    stack: contextlib.ExitStack, taken: list[Candidate], folder: Path, base: str | None
) -> list[_Entry]:
    """A process for each candidate; they start while samples are taken, and end before the folder goes."""
    entries = []
    for number, one in enumerate(taken):
        # Options are no part of a name: they may hold anything.
        name = f"{number:02}-{one.format}"
        place = str(folder / name) if base is None else f"{base}/{name}"
        if base is None:
            os.mkdir(place)
        # What waits for its upload lies in the scratch folder too.
        process = Process(folder / f"{name}.log", **{WORK: str(folder / "uploads")})
        stack.callback(process.end)
        entries.append(_Entry(one, process, place))
    return entries


def _write(entries: list[_Entry], folder: Path, share: float | None, steps: _Steps) -> None:
    patience = None if share is None else share + PATIENCE
    for one in entries:
        steps.at(f"writing {one.candidate.label}", done=1)

        def write(one: _Entry = one) -> None:
            one.written = one.process.ask("write", share, patience=patience)
            there = one.process.ask("ready", patience=patience)
            if there != one.written.samples:
                raise WorkerError(f"{one.written.samples:,} samples were written, and {there:,} are there")

        _guarded(one, folder, write)


def _rounds(entries: list[_Entry], folder: Path, until: float | None, rounds: int, steps: _Steps) -> None:
    """All candidates take turns, so that what else the machine does meets them alike."""
    left = rounds * len(entries)
    for number in range(rounds):
        # None is always the first.
        turn = number % len(entries)
        for one in entries[turn:] + entries[:turn]:
            steps.at(f"round {number + 1} of {rounds}: {one.candidate.label}", done=1)
            alive = sum(each.error is None for each in entries)
            slot = None if until is None else max(0.02, (until - time.monotonic()) / max(left, 1) / TIMED)
            left -= 1

            def turn_of(one: _Entry = one, slot: float | None = slot) -> None:
                patience = None if slot is None else TIMED * slot + PATIENCE
                one.rounds.append(one.process.ask("round", slot, patience=patience))

            if one.error is None and alive:
                _guarded(one, folder, turn_of)
        if until is not None and time.monotonic() > until:
            break


def _guarded(one: _Entry, folder: Path, work: Callable[[], Any]) -> None:
    """A candidate that fails is a row with an error, and not the end of the others."""
    if one.error is not None:
        return
    try:
        work()
    except WorkerError as error:
        # Nobody knows the scratch folder and what is in it.
        hidden = rf"{re.escape(one.place)}/|{re.escape(str(folder))}/([^/\s]+/)?"
        one.error = re.sub(hidden, "", error.message)
        one.rounds.clear()


@contextlib.contextmanager
def _prefix(remote: str, options: Mapping[str, Any]) -> Iterator[str]:
    """A folder of our own below a URL; what is in it at the end of the block is removed."""
    url = f"{remote.rstrip('/')}/{PREFIX}{uuid.uuid4().hex[:12]}"
    try:
        yield url
    finally:
        how = split_options(dict(options))[0]
        # A server that is gone must not hide why the rest failed.
        with contextlib.suppress(BatchplantError):
            there = uploads.below(reached(url, how))
            uploads.remove_all(reached(f"{url}/{name}", how) for name in there)


def _text(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(path)
