"""Collect statistics of every sample, range by range, on any engine."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ...errors import OptionError, Problem, shown
from ...schema.columns import I64, U8, Column, Columns, Masked, Ragged
from ...storage.platform import cpu_count
from .. import scans
from ..engines import Engine
from ..scans import Progress
from .fields import FieldScan, FieldStats, is_hashed
from .values import Copies, Hashes, as_rows, digests, row_digests

# Of all fields together, 24 bytes each.
MAX_HASHES = 1 << 23
# Rows that a thread hashes at a time.
HASHED_ROWS = 64
LISTED_PROBLEMS = 10


@dataclasses.dataclass(frozen=True)
class Stats:
    """Statistics of a dataset: ``looked_at`` of ``samples``; ``unreadable`` of those could not be read.

    ``copies``: samples that equal an earlier one in all fields; None where there is only one field.
    """

    path: str
    format: str
    samples: int
    looked_at: int
    unreadable: int
    problems: tuple[Problem, ...]
    bytes: int
    fields: dict[str, FieldStats]
    copies: Copies | None
    remarks: tuple[str, ...] = ()


def collect(
    source: Any,
    *,
    fields: Iterable[str] | None = None,
    sample: int | None = None,
    seed: int = 0,
    engine: str | Engine = "threads",
    workers: int | None = None,
    progress: Progress | None = None,
    format: str | None = None,
    max_hashes: int = MAX_HASHES,
    **options: Any,
) -> Stats:
    """Collect counts, means, quantiles, frequent values, resolutions, lengths and copies, field by field.

    ``source``: a Reader, or an argument of ``open``. ``fields``: only these. ``sample``: only so many
    samples, drawn with ``seed``. ``engine``: ``"threads"``, ``"processes"``, ``"dask"``, ``"ray"``, or the
    result of :func:`batchplant.engines.make`; the statistics are the same. ``workers``: threads of each task.
    Images, sounds and videos are not decoded; their headers are read.
    """
    if sample is not None and sample < 1:
        raise OptionError(f"sample is at least 1, or None for all, not {sample}")
    runner = scans.engine_of(engine)
    names = None if fields is None else tuple(fields)
    job = Job(
        dataset=scans.Dataset(source, format, options, names), sample=sample, seed=seed, max_hashes=max_hashes
    )
    job.dataset.check(runner)
    reader = job.reader
    total = PartialStats(job)

    def take(_: int, part: PartialStats) -> bool:
        total.merge(part)
        return False

    task = StatsTask(job, workers or runner.threads)
    scans.in_order(runner, task, job.weight, len(job.plan), take, name=job.name, progress=progress)
    remarks = [remark for field in total.fields.values() for remark in field.remarks]
    if job.drawn is not None and len(job.drawn) < len(reader):
        remarks.append(f"the samples were drawn with seed {seed}; copies are only found among them")
    return Stats(
        shown(reader.path),
        reader.format,
        len(reader),
        job.plan.samples,
        total.unreadable,
        tuple(total.problems),
        sum(field.size for field in total.fields.values()),
        {name: field.stats() for name, field in total.fields.items()},
        None if total.rows is None else total.rows.copies(),
        tuple(dict.fromkeys(remarks)),
    )


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Job(scans.ScanJob):
    """Arguments of ``collect`` that describe the work."""

    max_batch_rows = 4096
    batch_bytes = 32 << 20

    max_hashes: int = MAX_HASHES

    def weight(self, number: int) -> int:
        return len(self.plan.span(number))

    def name(self, number: int) -> str:
        span = self.plan.span(number)
        return f"looking at samples {span.start:,} to {span.stop - 1:,}"

    @functools.cached_property
    def one_in(self) -> int:
        """Sampling rate of the hashes, a power of two."""
        schema = self.dataset.reader.schema
        columns = sum(map(is_hashed, schema.values())) + (len(schema) > 1)
        column_hashes = self.max_hashes // max(1, columns)
        return 1 << max(0, (self.plan.samples - 1) // column_hashes).bit_length()


class PartialStats:
    """Statistics of some ranges."""

    def __init__(self, job: Job) -> None:
        schema = job.reader.schema
        self.fields = {name: FieldScan(field, job.one_in) for name, field in schema.items()}
        self.rows = Hashes(job.one_in) if len(schema) > 1 else None
        self.unreadable = 0
        self.problems: list[Problem] = []

    def add(self, numbers: I64, columns: Columns, pool: ThreadPoolExecutor) -> None:
        parts: list[U8] = []
        for name, scan in self.fields.items():
            column = columns[name]
            scan.add(column)
            rows = as_rows(column)
            if scan.hashes is not None or rows is None:
                hashes, valid = _hash_cells(column, rows, pool)
                if scan.hashes is not None:
                    scan.hashes.add(hashes[valid], numbers[valid])
                rows = hashes
            parts.append(rows)
        if self.rows is not None:
            self.rows.add(row_digests(parts), numbers)

    def merge(self, later: PartialStats) -> None:
        for name, scan in later.fields.items():
            self.fields[name].merge(scan)
        if self.rows is not None and later.rows is not None:
            self.rows.merge(later.rows)
        self.unreadable += later.unreadable
        self.problems = [*self.problems, *later.problems][:LISTED_PROBLEMS]


def _hash_cells(column: Column, rows: U8 | None, pool: ThreadPoolExecutor) -> tuple[U8, Any]:
    """Digests of cells, and the index of those that are not missing."""
    if rows is not None:
        return row_digests([rows]), column.mask if isinstance(column, Masked) else slice(None)
    assert isinstance(column, Ragged)
    ranges = [range(i, min(i + HASHED_ROWS, len(column))) for i in range(0, len(column), HASHED_ROWS)]
    hashes = list(pool.map(lambda rows: digests(column, rows), ranges))
    valid = slice(None) if column.valid is None else column.valid
    return np.concatenate([np.empty((0, 16), np.uint8), *hashes]), valid


@dataclasses.dataclass(frozen=True)
class StatsTask(scans.ScanTask):
    """Function of a worker: collects one range."""

    job: Job

    def __call__(self, number: int) -> PartialStats:
        job, span = self.job, self.job.plan.span(number)
        part = PartialStats(job)
        with ThreadPoolExecutor(self.threads or cpu_count()) as pool:
            for done, indices in job.batches(span):
                problems: list[Problem] = []
                numbers, columns = job.reader.read_undamaged(indices, problems, sys.maxsize)
                part.unreadable += len(indices) - len(numbers)
                part.problems = [*part.problems, *problems][:LISTED_PROBLEMS]
                if columns is not None:
                    part.add(numbers, columns, pool)
                if self.report is not None:
                    self.report(done)
        return part
