"""One file of a conversion: every worker and every attempt writes the same bytes.

A shuffle of a large source has a first pass, whose tasks spill the samples sorted by target position.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import secrets
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from ...codecs.media import image_rules
from ...codecs.npy import map_file
from ...data.tokenized import Tokenized
from ...data.writer import Writer
from ...errors import DataError, Problem
from ...schema.columns import I64, Column, Columns, Ragged, column_runs, end_within
from ...storage import put_file
from .job import Job
from .plan import Plan

PREFETCH_BATCHES = 2
FIRST_BATCH_ROWS = 16

# Called with the number of samples of the file that are done.
Report = Callable[[int], None]
# End position, cells, and (position, problem) of samples that could not be read.
Batch = tuple[int, Columns, list[tuple[int, Problem]]]


@dataclasses.dataclass(frozen=True)
class FileResult:
    """Result of one file, as JSON can hold it; ``resumed``: samples that an earlier attempt had written."""

    digest: str
    samples: int
    written: int
    resumed: int = 0
    skipped: tuple[Problem, ...] = ()
    remarks: tuple[str, ...] = ()
    tokens: int = 0
    # By image field: the bytes of its cells in the source and in the target.
    image_bytes: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, entries: dict[str, Any]) -> FileResult:
        """Check the output of :meth:`to_json`; ValueError, TypeError or LookupError where it is damaged."""
        skipped = tuple(Problem(**problem) for problem in entries.pop("skipped"))
        image_bytes = {
            name: (before, after) for name, (before, after) in dict(entries.pop("image_bytes", {})).items()
        }
        remarks = tuple(entries.pop("remarks"))
        result = cls(**entries, skipped=skipped, remarks=remarks, image_bytes=image_bytes)
        sizes = itertools.chain.from_iterable(image_bytes.values())
        counts = (result.samples, result.written, result.resumed, result.tokens, *sizes)
        if not all(type(count) is int and count >= 0 for count in counts):
            raise ValueError("a count is no whole number")
        if not all(isinstance(text, str) for text in (result.digest, *result.remarks)):
            raise ValueError("a remark is no text")
        return result


def write_file(job: Job, writer: Writer, feed: Feed, report: Report) -> FileResult:
    """Write the samples of a feed, from the position that a suspended writer had reached."""
    span = feed.span
    start = _resume_at(writer, feed, job)
    try:
        _run(writer, feed, start, job, report)
    except DataError as error:
        # The writer counts samples as they arrive; users need the number in the source.
        if error.path == writer.path and error.sample is not None:
            error.sample, error.path = feed.source_of(error.sample)
        raise
    skipped = [problem for _, problem in feed.skipped]
    skipped += [feed.in_source(problem) for problem in writer.skipped]
    remarks = [*writer.remarks(), *image_rules.remarks(writer.schema, writer.options.images_of)]
    return FileResult(
        job.digest,
        len(span),
        writer.written,
        start - span.start,
        tuple(skipped),
        tuple(remarks),
        feed.tokens,
        writer.image_bytes,
    )


def _resume_at(writer: Writer, feed: Feed, job: Job) -> int:
    """Position to resume at: behind the writer's samples and those that could not be read."""
    extra = writer.resumed
    if extra is None:
        return feed.span.start
    try:
        job.check_same(extra["identity"])
    except BaseException:
        writer.suspend()
        raise
    position, feed.tokens = feed.span.start + writer.received, extra.get("tokens", 0)
    for unread, problem in extra["unread"]:
        if unread <= position:
            feed.skipped.append((unread, Problem(**problem)))
            position += 1
    return position


def _run(writer: Writer, feed: Feed, start: int, job: Job, report: Report) -> None:
    saved = time.monotonic()
    try:
        for end, columns, failed in feed.batches(start):
            feed.skipped += failed
            writer.append(columns)
            report(end - feed.span.start)
            if time.monotonic() - saved >= job.options.tuning.checkpoint_seconds:
                unread = [[position, dataclasses.asdict(problem)] for position, problem in feed.skipped]
                writer.checkpoint({"identity": job.identity, "unread": unread, "tokens": feed.tokens})
                saved = time.monotonic()
        writer.close()
    except BaseException:
        writer.give_up()
        raise


class Feed:
    """Samples at some positions of the order, in batches that are prefetched."""

    def __init__(self, job: Job, span: range, *, rename: bool = True) -> None:
        self.reader, self.order, self.span = job.reader, job.order, span
        self.fields, self.names = tuple(job.chosen), job.names if rename else {}
        self.skip = job.on_error == "skip"
        self.skipped: list[tuple[int, Problem]] = []
        self.batch_bytes = job.options.tuning.batch_bytes
        self._max_rows = job.options.tuning.max_batch_rows
        # Token ids so far, where text is tokenized.
        self.tokens = 0
        sizes = self.reader.sizes()
        self._sizes = None if sizes is None else sizes[self.order[span.start : span.stop]]

    def batches(self, start: int) -> Iterator[Batch]:
        """Batches from position ``start`` on."""
        rows, position = FIRST_BATCH_ROWS, start
        waiting: deque[Future[Batch]] = deque()
        with ThreadPoolExecutor(1, thread_name_prefix="batchplant-read") as pool:
            try:
                while position < self.span.stop or waiting:
                    while position < self.span.stop and len(waiting) < PREFETCH_BATCHES:
                        first = self.span.start
                        row_limit = min(rows, self.span.stop - position)
                        end = first + end_within(self._sizes, position - first, row_limit, self.batch_bytes)
                        waiting.append(pool.submit(self._read, position, end))
                        position = end
                    batch = waiting.popleft().result()
                    columns = batch[1]
                    size = sum(int(column_runs(column)[2].clip(0).sum()) for column in columns.values())
                    rows = int(np.clip(self.batch_bytes * columns.rows // max(size, 1), 1, self._max_rows))
                    if isinstance(self.reader, Tokenized):
                        self.tokens += self.reader.tokens_in(columns, self.names)
                    yield batch
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _read(self, start: int, end: int) -> Batch:
        indices = self.order[start:end]
        try:
            return end, self._rename(self.reader.read(indices, self.fields)), []
        except DataError as error:
            if not self.skip:
                raise error.at(path=self.reader.path) from None
        parts, failed = [], []
        for position, index in enumerate(indices, start):
            try:
                parts.append(self.reader.read([index], self.fields))
            except DataError as error:
                failed.append((position, Problem.of(error.at(path=self.reader.path, sample=int(index)))))
        empty = self.reader.read([], self.fields)
        return end, self._rename(Columns.concat(parts) if parts else empty), failed

    def source_of(self, received: int) -> tuple[int, str]:
        """Number and file of the sample that was the n-th handed to the writer."""
        position = self.span.start + received
        for skipped in sorted(skipped for skipped, _ in self.skipped):
            position += skipped <= position
        sample = int(self.order[position])
        return sample, self.reader.where(sample)

    def in_source(self, problem: Problem) -> Problem:
        """A problem of the writer with the sample's number and file in the source."""
        if problem.sample is None:
            return problem
        sample, path = self.source_of(problem.sample)
        return dataclasses.replace(problem, sample=sample, path=path)

    def _rename(self, columns: Columns) -> Columns:
        return Columns((self.names.get(name, name), column) for name, column in columns.items())


# Below a staging directory.
SPILLS_FOLDER = "spills"
METADATA_FILE = "run.json"
POSITIONS_FILE = "positions.npy"


@dataclasses.dataclass(frozen=True, eq=False)
class Spills:
    """Runs of a job below a folder, for shuffling sources that are slow to read at random.

    Called with a number, it writes that run: samples that fit into memory, sorted by target position. The
    samples of one target file are then contiguous in every run, so the second pass reads long stretches.
    """

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
