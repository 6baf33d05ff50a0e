"""One file of a conversion: whoever does it, and however often, the same file comes out."""

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

CHECKPOINT_SECONDS = 2.0
BATCH_BYTES = 4 << 20
# Rows of a table are small, and each batch costs something by itself.
BATCH_ROWS = 16384
# Batches read ahead of the one being written.
AHEAD = 2

# How many samples of the file are done.
Report = Callable[[int], None]
# Where it ends, its cells, and (position, why) of what could not be read.
Batch = tuple[int, Columns, list[tuple[int, Problem]]]


@dataclasses.dataclass(frozen=True)
class Done:
    """What became of one file, as JSON can hold it; ``resumed``: samples that an earlier try had done."""

    digest: str
    samples: int
    written: int
    resumed: int = 0
    skipped: tuple[Problem, ...] = ()
    remarks: tuple[str, ...] = ()
    tokens: int = 0
    # By image field: the bytes of its cells in the source, and as they are stored.
    image_bytes: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> Done:
        """Check what :meth:`to_json` gave; ValueError, TypeError or LookupError where it is damaged."""
        skipped = tuple(Problem(**one) for one in said.pop("skipped"))
        image_bytes = {
            name: (before, after) for name, (before, after) in dict(said.pop("image_bytes", {})).items()
        }
        remarks = tuple(said.pop("remarks"))
        done = cls(**said, skipped=skipped, remarks=remarks, image_bytes=image_bytes)
        sizes = itertools.chain.from_iterable(image_bytes.values())
        counts = (done.samples, done.written, done.resumed, done.tokens, *sizes)
        if not all(type(count) is int and count >= 0 for count in counts):
            raise ValueError("a count is no whole number")
        if not all(isinstance(text, str) for text in (done.digest, *done.remarks)):
            raise ValueError("a remark is no text")
        return done


def write_file(job: Job, writer: Writer, feed: Feed, report: Report) -> Done:
    """Write the samples of a feed, from where a writer that was stopped had come to."""
    span = feed.span
    start = _resume_at(writer, feed, job)
    try:
        _run(writer, feed, start, job, report)
    except DataError as error:
        # The writer counts what it was handed; a person wants the sample of the source.
        if error.path == writer.path and error.sample is not None:
            error.sample, error.path = feed.source_of(error.sample)
        raise
    skipped = [problem for _, problem in feed.skipped] + [feed.named(one) for one in writer.skipped]
    remarks = [*writer.remarks(), *image_rules.remarks(writer.schema, writer.options.images_of)]
    return Done(
        job.digest, len(span), writer.written, start - span.start, tuple(skipped), tuple(remarks),
        feed.tokens, writer.image_bytes,
    )  # fmt: skip


def _resume_at(writer: Writer, feed: Feed, job: Job) -> int:
    """The position to go on from: as many samples as the writer has, and those that could not be read."""
    extra = writer.resumed
    if extra is None:
        return feed.span.start
    try:
        job.check_same(extra["identity"])
    except BaseException:
        writer.suspend()
        raise
    position, feed.tokens = feed.span.start + writer.received, extra.get("tokens", 0)
    for at, problem in extra["unread"]:
        if at <= position:
            feed.skipped.append((at, Problem(**problem)))
            position += 1
    return position


def _run(writer: Writer, feed: Feed, start: int, job: Job, report: Report) -> None:
    saved = time.monotonic()
    try:
        for end, columns, failed in feed.batches(start):
            feed.skipped += failed
            writer.append(columns)
            report(end - feed.span.start)
            if time.monotonic() - saved >= CHECKPOINT_SECONDS:
                unread = [[at, dataclasses.asdict(problem)] for at, problem in feed.skipped]
                writer.checkpoint({"identity": job.identity, "unread": unread, "tokens": feed.tokens})
                saved = time.monotonic()
        writer.close()
    except BaseException:
        writer.give_up()
        raise


class Feed:
    """The samples at some positions of the order, in batches that are read ahead."""

    # Of what is read at a time; by default BATCH_BYTES.
    batch_bytes: int | None = None

    def __init__(self, job: Job, span: range, *, rename: bool = True) -> None:
        self.reader, self.order, self.span = job.reader, job.order, span
        self.fields, self.names = tuple(job.chosen), job.names if rename else {}
        self.skip = job.on_error == "skip"
        self.skipped: list[tuple[int, Problem]] = []
        # Ids that were made so far, where text is tokenized.
        self.tokens = 0
        sizes = self.reader.sizes()
        self._sizes = None if sizes is None else sizes[self.order[span.start : span.stop]]

    def batches(self, start: int) -> Iterator[Batch]:
        """What is there from position ``start`` on."""
        rows, position = 16, start
        waiting: deque[Future[Batch]] = deque()
        with ThreadPoolExecutor(1, thread_name_prefix="batchplant-read") as pool:
            try:
                while position < self.span.stop or waiting:
                    while position < self.span.stop and len(waiting) < AHEAD:
                        end = self._end(position, min(position + rows, self.span.stop))
                        waiting.append(pool.submit(self._read, position, end))
                        position = end
                    done = waiting.popleft().result()
                    size = sum(int(column_runs(column)[2].clip(0).sum()) for column in done[1].values())
                    rows = int(
                        np.clip(
                            (self.batch_bytes or BATCH_BYTES) * done[1].rows // max(size, 1), 1, BATCH_ROWS
                        )
                    )
                    if isinstance(self.reader, Tokenized):
                        self.tokens += self.reader.tokens_in(done[1], self.names)
                    yield done
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _end(self, position: int, end: int) -> int:
        first = self.span.start
        return first + end_within(
            self._sizes, position - first, end - position, self.batch_bytes or BATCH_BYTES
        )

    def _read(self, start: int, end: int) -> Batch:
        indices = self.order[start:end]
        try:
            return end, self._renamed(self.reader.read(indices, self.fields)), []
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
        return end, self._renamed(Columns.concat(parts) if parts else empty), failed

    def source_of(self, received: int) -> tuple[int, str]:
        """The number and the file of the sample that was the n-th handed to the writer."""
        position = self.span.start + received
        for at in sorted(at for at, _ in self.skipped):
            position += at <= position
        sample = int(self.order[position])
        return sample, self.reader.where(sample)

    def named(self, problem: Problem) -> Problem:
        if problem.sample is None:
            return problem
        sample, path = self.source_of(problem.sample)
        return dataclasses.replace(problem, sample=sample, path=path)

    def _renamed(self, columns: Columns) -> Columns:
        return Columns((self.names.get(name, name), column) for name, column in columns.items())
