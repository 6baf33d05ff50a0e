"""Scans: look at every sample, range by range, on any engine, and combine the results in order.

The ranges depend on the dataset alone, so the result is the same on every engine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from ..data.reader import Reader
from ..errors import OptionError
from ..formats.registry import open as open_reader
from ..schema.columns import I64, column_runs, end_within
from .conversion.plan import Plan
from .engines import Engine, make, run
from .engines.base import Inline, Ranks, portable_source

RANGES_PER_DATASET = 64
MIN_RANGE_SAMPLES, MAX_RANGE_SAMPLES = 256, 1 << 16
# Samples that are read to estimate sizes.
PROBED_SAMPLES = 4

Progress = Callable[[int, int], None]
Report = Callable[[int], None]


@dataclasses.dataclass(frozen=True)
class ScanTask:
    """Function of a scan's workers. ``report``, given in this process, gets the number of samples done."""

    job: Any
    threads: int | None
    report: Report | None = None

    def __call__(self, number: int) -> Any:
        raise NotImplementedError


def engine_of(engine: str | Engine) -> Engine:
    """Make the engine of a scan, whose results come back to one process."""
    runner = make(engine)
    if isinstance(runner, Ranks):
        raise OptionError(
            "the engine ranks is for convert: here the results come back to one process; use processes, dask "
            "or ray"
        )
    return runner


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """The dataset of a scan: every process opens it by itself, once."""

    source: Any
    format: str | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fields: tuple[str, ...] | None = None
    # Relative paths begin here.
    folder: str = dataclasses.field(default_factory=lambda: os.path.abspath(os.curdir))

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the open reader.
        return _restore_dataset, tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    def check(self, engine: Engine) -> None:
        """Raise an OptionError where the workers of an engine could not open it."""
        if not isinstance(engine, Inline):
            portable_source(self.source)

    @functools.cached_property
    def reader(self) -> Reader:
        reader = self.source
        if not isinstance(reader, Reader):
            reader = open_reader(reader, format=self.format, **self.options)
        return reader if self.fields is None else reader.select(self.fields)


def _restore_dataset(source: Any, format: str | None, options: Any, fields: Any, folder: str) -> Dataset:
    """Restore a dataset in another process, whose current folder may be another one."""
    if not isinstance(source, Reader) and os.path.abspath(os.curdir) != folder:
        source = _within(folder, source)
    return Dataset(source, format, options, fields, folder)


def _within(folder: str, source: Any) -> Any:
    if isinstance(source, list | tuple):
        return [_within(folder, path) for path in source]
    full = portable_source(source)
    return full if full == os.fspath(source) else os.path.join(folder, os.fspath(source))


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ScanJob:
    """Samples of a dataset to look at, all or ``sample`` drawn with ``seed``; it travels by its arguments."""

    max_batch_rows: ClassVar[int]
    batch_bytes: ClassVar[int]

    dataset: Dataset
    sample: int | None = None
    seed: int = 0

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return functools.partial(type(self), **arguments), ()

    @property
    def reader(self) -> Reader:
        return self.dataset.reader

    @functools.cached_property
    def drawn(self) -> I64 | None:
        return None if self.sample is None else draw_samples(len(self.reader), self.sample, self.seed)

    @functools.cached_property
    def plan(self) -> Plan:
        return ranges(len(self.reader) if self.drawn is None else len(self.drawn))

    @functools.cached_property
    def _sizes(self) -> I64 | None:
        sizes = self.reader.sizes()
        return sizes if sizes is None or self.drawn is None else sizes[self.drawn]

    @functools.cached_property
    def _batch_rows(self) -> int:
        return batch_rows(self.reader, self.max_batch_rows, self.batch_bytes)

    def batches(self, span: range) -> Iterator[tuple[int, I64]]:
        """Yield the samples of a range in batches, each with the number that are done after it."""
        end = span.start
        while end < span.stop:
            rows = min(self._batch_rows, span.stop - end)
            start, end = end, end_within(self._sizes, end, rows, self.batch_bytes)
            yield end - span.start, np.arange(start, end) if self.drawn is None else self.drawn[start:end]


def draw_samples(length: int, count: int, seed: int) -> I64:
    """Draw sample numbers without repetition, in order."""
    if count >= length:
        return np.arange(length)
    return np.sort(np.random.default_rng(seed).choice(length, count, replace=False, shuffle=False))


def ranges(count: int) -> Plan:
    """Plan the ranges of so many samples."""
    range_samples = np.clip(-(-count // RANGES_PER_DATASET), MIN_RANGE_SAMPLES, MAX_RANGE_SAMPLES)
    return Plan(count, int(range_samples))


def batch_rows(reader: Reader, max_rows: int, size: int) -> int:
    """Samples to read at once: up to ``max_rows``; where sizes are unknown, about ``size`` bytes.

    Where sizes are known, the caller limits batches by them.
    """
    if reader.sizes() is not None:
        return max_rows
    probed = np.arange(min(PROBED_SAMPLES, len(reader)))
    columns = reader.read_undamaged(probed, [], sys.maxsize)[1]
    probed_bytes = sum(int(column_runs(column)[2].clip(0).sum()) for column in (columns or {}).values())
    return int(np.clip(size * len(probed) // max(probed_bytes, 1), 1, max_rows))


def in_order(
    engine: Engine,
    task: ScanTask,
    weights: Callable[[int], int],
    count: int,
    take: Callable[[int, Any], bool],
    *,
    name: Callable[[int], str] = str,
    progress: Progress | None = None,
) -> None:
    """Call ``take(number, value)`` for the tasks in order, until it returns True or all are done.

    ``weights``: samples of a task, for the progress.
    """
    tally = _ScanProgress(sum(map(weights, range(count))), progress)
    if isinstance(engine, Inline):
        task = dataclasses.replace(task, report=tally.show)
    waiting: dict[int, Any] = {}
    first = 0

    def finish(number: int, value: Any) -> None:
        nonlocal first
        tally.finish(weights(number))
        waiting[number] = value
        while first in waiting:
            first += 1
            if take(first - 1, waiting.pop(first - 1)):
                raise _Enough

    with contextlib.suppress(_Enough):
        run(engine, task, range(count), finish, name=name)


class _Enough(BaseException):
    """Ends a scan early."""


class _ScanProgress:
    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total, self._progress = total, progress
        self._done = self._shown = 0

    def show(self, count: int) -> None:
        """Report that so many samples of the current task are done."""
        samples = self._done + count
        if self._progress is not None and samples > self._shown:
            self._shown = samples
            self._progress(samples, self._total)

    def finish(self, count: int) -> None:
        self.show(count)
        self._done += count
