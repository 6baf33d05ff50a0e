"""Shuffling in two passes, for sources that are slow to read at random: :class:`Spills`.

The first pass reads the source from end to end, sorts each run of samples that fits into memory by target
position, and spills it. The samples of one target file are then contiguous in every run, so the second pass
reads long stretches as well. The order is that of a shuffle in one pass, and so is every byte of the result.
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

from ...codecs.npy import map_file
from ...errors import Problem
from ...schema.columns import I64, Column, Columns, Ragged
from ...storage import put_file
from .job import Job
from .plan import Plan
from .task import Batch, Feed, Report

# Below a staging directory.
SPILLS_FOLDER = "spills"
METADATA_FILE = "run.json"
POSITIONS_FILE = "positions.npy"


@dataclasses.dataclass(frozen=True, eq=False)
class Spills:
    """Runs of a job below a folder. Called with a number, writes that run."""

    job: Job
    folder: str
    # Progress of the current run; only where this process writes it.
    report: Report | None = None

    @functools.cached_property
    def plan(self) -> Plan:
        """Samples of each run."""
        run_bytes = self.job.options.tuning.spill_run_bytes
        return Plan(len(self.job.reader), max(1, run_bytes // self.job.mean_size))

    def __reduce__(self) -> tuple[Any, ...]:
        return Spills, (self.job, self.folder)

    def path(self, number: int) -> Path:
        return Path(self.folder, f"run-{number:06}")

    def done(self, number: int) -> bool:
        try:
            metadata = json.loads((self.path(number) / METADATA_FILE).read_bytes())
            return bool(metadata["digest"] == self.job.digest)
        except (OSError, ValueError, LookupError, TypeError):
            return False

    def __call__(self, number: int) -> int:
        """Write a run unless it exists; return the number of its samples."""
        span = self.plan.span(number)
        if self.done(number):
            return len(span)
        os.makedirs(self.folder, exist_ok=True)
        staging = Path(self.folder, f".run-{number:06}-{secrets.token_hex(4)}")
        staging.mkdir()
        try:
            self._write(staging, span)
            shutil.rmtree(self.path(number), ignore_errors=True)
            try:
                os.rename(staging, self.path(number))
            except OSError:
                # Another worker, which the engine had given up, finished first.
                if not self.done(number):
                    raise
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return len(span)

    def _write(self, folder: Path, span: range) -> None:
        job = self.job
        unlimited = dataclasses.replace(job.options, limit=None)
        feed = Feed(job.replace(shuffle=False, options=unlimited), span, rename=False)
        parts, failed = [], []
        for end, columns, batch_failed in feed.batches(span.start):
            parts.append(columns)
            failed += batch_failed
            if self.report is not None:
                self.report(end - span.start)
        unreadable = np.array([sample for sample, _ in failed], dtype=np.int64)
        samples = np.setdiff1d(np.arange(span.start, span.stop), unreadable, assume_unique=True)
        positions = job.order.find(samples)
        # A limit leaves out positions beyond it.
        rows = np.flatnonzero(positions < len(job.order))
        rows = rows[np.argsort(positions[rows])]
        columns = Columns.concat(parts) if parts else job.reader.read([], tuple(job.chosen))
        _save(folder, columns.take(rows))
        np.save(folder / POSITIONS_FILE, positions[rows])
        unread = [
            [position, dataclasses.asdict(problem)]
            for position, (_, problem) in zip(job.order.find(unreadable).tolist(), failed, strict=True)
            if position < len(job.order)
        ]
        put_file(folder / METADATA_FILE, json.dumps({"digest": job.digest, "unread": unread}).encode())


class SpilledFeed(Feed):
    """Samples at some positions, read from the runs."""

    def __init__(self, job: Job, span: range, spills: Spills) -> None:
        super().__init__(job, span)
        self.batch_bytes = job.options.tuning.spill_read_bytes
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
            failed += [(position, problem) for position, problem in run.unread if start <= position < end]
        failed.sort(key=lambda failure: failure[0])
        if not parts:
            return end, self._rename(self.reader.read([], self.fields)), failed
        rows: I64 = np.argsort(np.concatenate(positions))
        return end, self._rename(Columns.concat(parts).take(rows)), failed


class _Run:
    """A run, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.positions: I64 = map_file(folder / POSITIONS_FILE)
        metadata = json.loads((folder / METADATA_FILE).read_bytes())
        self.unread = [(position, Problem(**problem)) for position, problem in metadata["unread"]]
        self._arrays: dict[str, Any] = {}

    def _array(self, name: str) -> Any:
        if name not in self._arrays:
            path = self._folder / f"{name}.npy"
            self._arrays[name] = map_file(path) if path.exists() else None
        return self._arrays[name]

    def column(self, name: str, low: int, high: int) -> Column:
        values = self._array(f"{_file_name(name)}.values")
        if values is not None:
            return values[low:high]
        parts = [self._array(f"{_file_name(name)}.{part}") for part in ("data", "offsets", "shape", "valid")]
        return Ragged(*parts).take(slice(low, high))


def _save(folder: Path, columns: Columns) -> None:
    for name, column in columns.items():
        path = folder / _file_name(name)
        if isinstance(column, Ragged):
            for part in Ragged.__slots__:
                value = getattr(column, part)
                if value is not None:
                    np.save(f"{path}.{part}.npy", value)
        else:
            np.save(f"{path}.values.npy", column)


def _file_name(field: str) -> str:
    return field.encode().hex()
