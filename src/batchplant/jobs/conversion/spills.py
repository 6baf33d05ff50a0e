"""Shuffling in two passes, for sources that are slow to read at random: :class:`Spills`.

The first pass reads the source from end to end. Each run of samples that fits into memory is sorted by where
its samples go, and spilled. So what one target file needs of a run lies together, and the second pass reads
large pieces, too. The order is the same as without, and so is every byte of the result.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import Problem
from ...schema.columns import I64, Column, Columns, Ragged
from ...storage import put_file
from .job import Job
from .plan import Plan
from .task import Batch, Feed, Report

# Bytes of a run, which is in memory as a whole (twice, when it is sorted), and of what the second pass reads.
RUN = 128 << 20
READ = 32 << 20
# Below a hidden folder.
SPILLS = "spills"
NOTE = "run.json"
POSITIONS = "positions.npy"


@dataclasses.dataclass(frozen=True, eq=False)
class Spills:
    """The runs of a job below a folder."""

    job: Job
    folder: str
    # How far the run at work is; only where that is in this process.
    report: Report | None = None

    @functools.cached_property
    def plan(self) -> Plan:
        """Which samples are in which run."""
        return Plan(len(self.job.reader), max(1, RUN // self.job.mean_size))

    def __reduce__(self) -> tuple[Any, ...]:
        return Spills, (self.job, self.folder)

    def __call__(self, number: int) -> int:
        """Make a run."""
        return self.spill(number, self.report or (lambda count: None))

    def path(self, number: int) -> Path:
        return Path(self.folder, f"run-{number:06}")

    def done(self, number: int) -> bool:
        try:
            said = json.loads((self.path(number) / NOTE).read_bytes())
            return bool(said["digest"] == self.job.digest)
        except (OSError, ValueError, LookupError, TypeError):
            return False

    def spill(self, number: int, report: Report) -> int:
        """Make a run, unless it is there; how many samples it has."""
        span = self.plan.span(number)
        if self.done(number):
            return len(span)
        os.makedirs(self.folder, exist_ok=True)
        made = Path(self.folder, f".run-{number:06}-{secrets.token_hex(4)}")
        made.mkdir()
        try:
            self._write(made, span, report)
            shutil.rmtree(self.path(number), ignore_errors=True)
            try:
                os.rename(made, self.path(number))
            except OSError:
                # Another worker, which was taken for dead, came before.
                if not self.done(number):
                    raise
        finally:
            shutil.rmtree(made, ignore_errors=True)
        return len(span)

    def _write(self, folder: Path, span: range, report: Report) -> None:
        job = self.job
        feed = Feed(job.replace(shuffle=False, limit=None), span, rename=False)
        parts, failed = [], []
        for end, columns, lost in feed.batches(span.start):
            parts.append(columns)
            failed += lost
            report(end - span.start)
        gone = np.array([at for at, _ in failed], dtype=np.int64)
        samples = np.setdiff1d(np.arange(span.start, span.stop), gone, assume_unique=True)
        positions = job.order.find(samples)
        # With a limit, some are not wanted.
        wanted = np.flatnonzero(positions < len(job.order))
        turn = wanted[np.argsort(positions[wanted])]
        columns = Columns.concat(parts) if parts else job.reader.read([], tuple(job.chosen))
        _save(folder, columns.take(turn))
        np.save(folder / POSITIONS, positions[turn])
        places = zip(job.order.find(gone).tolist(), failed, strict=True)
        unread = [[at, dataclasses.asdict(one[1])] for at, one in places if at < len(job.order)]
        put_file(folder / NOTE, json.dumps({"digest": job.digest, "unread": unread}).encode())


class SpilledFeed(Feed):
    """Samples at some positions, out of the runs."""

    batch_bytes = READ

    def __init__(self, job: Job, span: range, spills: Spills) -> None:
        super().__init__(job, span)
        self._sizes = None
        self._runs = [_Run(spills.path(number)) for number in range(len(spills.plan))]

    def _read(self, start: int, end: int) -> Batch:
        parts, positions = [], []
        failed: list[tuple[int, Problem]] = []
        for run in self._runs:
            low, high = np.searchsorted(run.positions, [start, end]).tolist()
            if low < high:
                positions.append(run.positions[low:high])
                parts.append(Columns((name, run.column(name, low, high)) for name in self.fields))
            failed += [(at, problem) for at, problem in run.unread if start <= at < end]
        if not parts:
            return end, self._renamed(self.reader.read([], self.fields)), sorted(failed, key=_place)
        turn: I64 = np.argsort(np.concatenate(positions))
        return end, self._renamed(Columns.concat(parts).take(turn)), sorted(failed, key=_place)


def _place(one: tuple[int, Problem]) -> int:
    return one[0]


class _Run:
    """One run, mapped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.positions: I64 = np.load(folder / POSITIONS, mmap_mode="r")
        said = json.loads((folder / NOTE).read_bytes())
        self.unread = [(at, Problem(**problem)) for at, problem in said["unread"]]
        self._arrays: dict[str, Any] = {}

    def _array(self, name: str) -> Any:
        if name not in self._arrays:
            path = self._folder / f"{name}.npy"
            self._arrays[name] = np.load(path, mmap_mode="r") if path.exists() else None
        return self._arrays[name]

    def column(self, name: str, low: int, high: int) -> Column:
        plain = self._array(f"{_quoted(name)}.values")
        if plain is not None:
            found: Column = plain[low:high]
            return found
        parts = [self._array(f"{_quoted(name)}.{part}") for part in ("data", "offsets", "shape", "valid")]
        return Ragged(*parts).take(slice(low, high))


def _save(folder: Path, columns: Columns) -> None:
    for name, column in columns.items():
        where = folder / _quoted(name)
        if isinstance(column, Ragged):
            for part in Ragged.__slots__:
                value = getattr(column, part)
                if value is not None:
                    np.save(f"{where}.{part}.npy", value)
        else:
            np.save(f"{where}.values.npy", column)


def _quoted(name: str) -> str:
    """A name of a field as that of a file."""
    return name.encode().hex()
