"""collect: every sample once, range by range, on any engine."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ...data.reader import Reader
from ...errors import OptionError, Problem, shown
from ...schema.columns import I64, U8, Column, Columns, Masked, Ragged, end_within
from .. import scans
from ..conversion.plan import Plan
from ..engines import Engine
from ..scans import Progress
from .fields import FieldScan, FieldStats, is_hashed
from .values import Copies, Hashes, as_rows, digests, row_digests

STEP, STEP_BYTES = 4096, 32 << 20
# Hashes that are held, of all fields together: 24 bytes each.
HASHES = 1 << 23
# Rows of which one thread makes hashes.
HASHED = 64
LISTED = 10


@dataclasses.dataclass(frozen=True)
class Stats:
    """What a dataset holds. ``looked_at`` of ``samples``; ``unreadable`` of those could not be read.

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
    **options: Any,
) -> Stats:
    """Counts, means, quantiles, frequent values, resolutions, lengths and copies, field by field.

    ``source``: what ``open`` takes, or a Reader. ``fields``: only these. ``sample``: only so many samples,
    drawn with ``seed``. ``engine`` says who works: ``"threads"``, ``"processes"``, ``"dask"``, ``"ray"``, or
    one that :func:`batchplant.engines.make` gave; the result is the same. ``workers``: threads of each task.
    Images, sounds and videos are not decoded: they are what their headers say.
    """
    if sample is not None and sample < 1:
        raise OptionError(f"sample is at least 1, or None for all, not {sample}")
    by = scans.engine_of(engine)
    names = None if fields is None else tuple(fields)
    job = Job(scans.Dataset(source, format, options, names), sample, seed)
    job.dataset.check(by)
    reader = job.dataset.reader
    found = Part(job)

    def take(_: int, part: Part) -> bool:
        found.merge(part)
        return False

    work = Work(job, workers or by.threads)
    scans.in_order(by, work, job.weight, len(job.plan), take, name=job.name, progress=progress)
    remarks = [remark for one in found.fields.values() for remark in one.remarks]
    if job.drawn is not None and len(job.drawn) < len(reader):
        remarks.append(f"the samples were drawn with seed {seed}; copies are only found among them")
    return Stats(
        shown(reader.path), reader.format, len(reader), job.plan.samples, found.unreadable,
        tuple(found.problems), sum(one.size for one in found.fields.values()),
        {name: one.found() for name, one in found.fields.items()},
        None if found.rows is None else found.rows.copies(), tuple(dict.fromkeys(remarks)),
    )  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """What is looked at; it travels by its arguments."""

    dataset: scans.Dataset
    sample: int | None
    seed: int

    def __reduce__(self) -> tuple[Any, ...]:
        return Job, (self.dataset, self.sample, self.seed)

    @functools.cached_property
    def drawn(self) -> I64 | None:
        return None if self.sample is None else scans.drawn(len(self.dataset.reader), self.sample, self.seed)

    @functools.cached_property
    def plan(self) -> Plan:
        return scans.ranges(len(self.dataset.reader) if self.drawn is None else len(self.drawn))

    def weight(self, number: int) -> int:
        return len(self.plan.span(number))

    def name(self, number: int) -> str:
        span = self.plan.span(number)
        return f"looking at samples {span.start:,} to {span.stop - 1:,}"

    @functools.cached_property
    def one_in(self) -> int:
        """One in so many hashes is held: a power of two."""
        schema = self.dataset.reader.schema
        columns = sum(map(is_hashed, schema.values())) + (len(schema) > 1)
        most = HASHES // max(1, columns)
        return 1 << max(0, (self.plan.samples - 1) // most).bit_length()

    @functools.cached_property
    def sizes(self) -> I64 | None:
        found = self.dataset.reader.sizes()
        return found if found is None or self.drawn is None else found[self.drawn]

    @functools.cached_property
    def step(self) -> int:
        return scans.step(self.dataset.reader, STEP, STEP_BYTES)


class Part:
    """What was found in some ranges."""

    def __init__(self, job: Job) -> None:
        schema = job.dataset.reader.schema
        self.fields = {name: FieldScan(field, job.one_in) for name, field in schema.items()}
        self.rows = Hashes(job.one_in) if len(schema) > 1 else None
        self.unreadable = 0
        self.problems: list[Problem] = []

    def look(self, numbers: I64, columns: Columns, pool: ThreadPoolExecutor) -> None:
        parts: list[U8] = []
        for name, scan in self.fields.items():
            column = columns[name]
            scan.look(column)
            rows = as_rows(column)
            if scan.hashes is not None or rows is None:
                hashed, there = _hashed(column, rows, pool)
                if scan.hashes is not None:
                    scan.hashes.add(hashed[there], numbers[there])
                rows = hashed
            parts.append(rows)
        if self.rows is not None:
            self.rows.add(row_digests(parts), numbers)

    def merge(self, later: Part) -> None:
        for name, scan in later.fields.items():
            self.fields[name].merge(scan)
        if self.rows is not None and later.rows is not None:
            self.rows.merge(later.rows)
        self.unreadable += later.unreadable
        self.problems = [*self.problems, *later.problems][:LISTED]


def _hashed(column: Column, rows: U8 | None, pool: ThreadPoolExecutor) -> tuple[U8, Any]:
    """The digests of cells, and which of them are there."""
    if rows is not None:
        return row_digests([rows]), column.mask if isinstance(column, Masked) else slice(None)
    assert isinstance(column, Ragged)
    some = [range(at, min(at + HASHED, len(column))) for at in range(0, len(column), HASHED)]
    made = list(pool.map(lambda one: digests(column, one), some))
    there = slice(None) if column.valid is None else column.valid
    return np.concatenate([np.empty((0, 16), np.uint8), *made]), there


@dataclasses.dataclass(frozen=True)
class Work(scans.Work):
    """What a worker does for a number: one range."""

    job: Job

    def __call__(self, number: int) -> Part:
        job, span = self.job, self.job.plan.span(number)
        reader: Reader = job.dataset.reader
        part = Part(job)
        end = span.start
        with ThreadPoolExecutor(self.threads or len(os.sched_getaffinity(0))) as pool:
            while end < span.stop:
                start, end = end, end_within(job.sizes, end, min(job.step, span.stop - end), STEP_BYTES)
                some = np.arange(start, end) if job.drawn is None else job.drawn[start:end]
                problems: list[Problem] = []
                numbers, columns = reader.read_undamaged(some, problems, sys.maxsize)
                part.unreadable += len(some) - len(numbers)
                part.problems = [*part.problems, *problems][:LISTED]
                if columns is not None:
                    part.look(numbers, columns, pool)
                if self.report is not None:
                    self.report(end - span.start)
        return part
