"""One file of a conversion: every worker and every attempt writes the same bytes."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from ...codecs.media import image_rules
from ...data.tokenized import Tokenized
from ...data.writer import Writer
from ...errors import DataError, Problem
from ...schema.columns import Columns, column_runs, end_within
from .job import Job

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
