"""What is verified, and its tasks: the structure of some files, the cells of some samples."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from ...codecs.cells import decode_cell
from ...data.concat import Concat, shifted
from ...data.quarantine import locate
from ...data.reader import Reader
from ...data.tensors import is_tensors, text_of
from ...errors import BatchplantError, DataError, Problem
from ...schema import Audio, Video
from ...schema.columns import I64, Columns, end_within
from .. import scans
from ..conversion.plan import Plan
from .comparison import Comparison
from .sums import Sums, side_car, wrong_sums

STEP = 256
# Of samples that are drawn.
DRAWN_STEP = 16
STEP_BYTES = 64 << 20
# Tasks that look at the structure of files.
FILE_TASKS = 1024


class Found(NamedTuple):
    """What came of a task: each problem, and whether it is a cell that differs from another dataset's.

    ``compared``: up to which sample cells were compared.
    """

    problems: list[tuple[Problem, bool]]
    compared: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """The arguments of ``verify`` that say what is checked. Those of a range are its own."""

    dataset: scans.Dataset
    other: scans.Dataset | None
    decode: bool
    most: int
    differences: int
    sample: int | None
    seed: int

    def __reduce__(self) -> tuple[Any, ...]:
        return Job, tuple(getattr(self, one.name) for one in dataclasses.fields(self))

    @property
    def reader(self) -> Reader:
        return self.dataset.reader

    @functools.cached_property
    def drawn(self) -> I64 | None:
        return None if self.sample is None else scans.drawn(len(self.reader), self.sample, self.seed)

    @functools.cached_property
    def plan(self) -> Plan:
        return scans.ranges(len(self.reader) if self.drawn is None else len(self.drawn))

    @functools.cached_property
    def files(self) -> list[list[tuple[Reader, int]]]:
        """For each task that looks at structure: files, each with the number of its first sample."""
        if self.drawn is not None:
            return []
        whole = self.reader
        if not isinstance(whole, Concat) or is_tensors(whole.schema):
            return [[(whole, 0)]]
        firsts = itertools.accumulate((len(one) for one in whole.readers), initial=0)
        pairs = list(zip(whole.readers, firsts, strict=False))
        each = -(-len(pairs) // FILE_TASKS)
        return [pairs[at : at + each] for at in range(0, len(pairs), each)]

    def __len__(self) -> int:
        """How many tasks there are: those of files, then those of samples."""
        return len(self.files) + len(self.plan)

    def weight(self, number: int) -> int:
        return 0 if number < len(self.files) else len(self.plan.span(number - len(self.files)))

    def name(self, number: int) -> str:
        if number < len(self.files):
            return f"the structure of {self.files[number][0][0].path}"
        span = self.plan.span(number - len(self.files))
        return f"checking samples {span.start:,} to {span.stop - 1:,}"

    @functools.cached_property
    def side_car(self) -> tuple[Sums | None, list[Problem]]:
        """The checksums beside the dataset, and what is wrong with them."""
        problems: list[Problem] = []
        return side_car(self.reader, problems), problems

    @functools.cached_property
    def sizes(self) -> I64 | None:
        found = self.reader.sizes()
        return found if found is None or self.drawn is None else found[self.drawn]

    @functools.cached_property
    def step(self) -> int:
        return scans.step(self.reader, STEP, STEP_BYTES) if self.drawn is None else DRAWN_STEP

    def comparison(self) -> Comparison | None:
        if self.other is None:
            return None
        return Comparison(self.reader, self.other.reader, self.differences)


@dataclasses.dataclass(frozen=True)
class Work(scans.Work):
    """What a worker does for a number."""

    job: Job

    def __call__(self, number: int) -> Found:
        job = self.job
        if number >= len(job.files):
            return self._samples(job.plan.span(number - len(job.files)))
        found = (one for reader, first in job.files[number] for one in _structure(reader, first))
        return Found([(one, False) for one in itertools.islice(found, job.most)])

    def _samples(self, span: range) -> Found:
        job, reader = self.job, self.job.reader
        comparison, sums = job.comparison(), job.side_car[0]
        found: list[tuple[Problem, bool]] = []
        end = span.start
        with ThreadPoolExecutor(self.threads or len(os.sched_getaffinity(0))) as pool:
            while end < span.stop and len(found) < job.most:
                start, end = end, end_within(job.sizes, end, min(job.step, span.stop - end), STEP_BYTES)
                problems: list[Problem] = []
                some = np.arange(start, end) if job.drawn is None else job.drawn[start:end]
                rows, columns = reader.read_undamaged(some, problems, job.most - len(found))
                if columns is not None and sums is not None:
                    problems += wrong_sums(reader, columns, rows, sums)
                if columns is not None and job.decode:
                    jobs = [
                        pool.submit(_undecodable, reader, columns, row, int(sample))
                        for row, sample in enumerate(rows)
                    ]
                    problems += [problem for one in jobs for problem in one.result()]
                found += [(problem, False) for problem in problems]
                if columns is not None and comparison is not None:
                    found += comparison.differences(columns, rows, job.most)
                if self.report is not None:
                    self.report(end - span.start)
        return Found(found[: job.most], 0 if comparison is None else comparison.compared)


def _structure(reader: Reader, first: int) -> Iterator[Problem]:
    """What is wrong with a file, before which there are ``first`` samples."""
    try:
        yield from (shifted(problem, first) for problem in reader._verify())
        if is_tensors(reader.schema):
            yield from _same_names(reader)
    except DataError as error:
        yield shifted(Problem.of(error.at(path=reader.path)), first)


def _same_names(reader: Reader) -> Iterator[Problem]:
    """Tensors that have the name of another."""
    seen: set[str] = set()
    row = 0
    for columns in reader.scan(4096, ["name"]):
        for at in range(columns.rows):
            name = text_of(columns["name"], at)
            if name in seen:
                yield Problem(f"two tensors are called {name[:200]!r}", locate(reader, row).path, row, "name")
            seen.add(name)
            row += 1


def _undecodable(reader: Reader, columns: Columns, row: int, sample: int) -> list[Problem]:
    found = []
    for name, field in reader.schema.items():
        try:
            value = decode_cell(field, columns[name], row)
            # Sounds and films are decoded when they are asked for.
            if isinstance(field, Audio | Video) and hasattr(value, "check"):
                value.check()
        except BatchplantError as error:
            path, offset = locate(reader, sample).path, error.offset
            if offset is None and error.path is None:
                offset = _start(reader, name, sample, path)
            found.append(Problem.of(error.at(path=path, sample=sample, field=name, offset=offset)))
    return found


def _start(reader: Reader, field: str, sample: int, path: str) -> int | None:
    """Where a cell begins in the file of its dataset; None where it is in another, or no run of bytes."""
    try:
        spans = reader.spans(field, [sample])
    except BatchplantError:
        return None
    return int(spans.start[0]) if spans is not None and spans.files[int(spans.file[0])] == path else None
