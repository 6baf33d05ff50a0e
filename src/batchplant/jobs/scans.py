"""Scans: every sample is looked at, range by range, on any engine; what was found is put together in order.

The ranges depend on the dataset alone, so that the result does not depend on who works.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..data.reader import Reader
from ..errors import OptionError
from ..formats.registry import open as open_reader
from ..schema.columns import I64, column_runs
from .conversion.plan import Plan
from .engines import Engine, make, run
from .engines.inline import Inline
from .engines.ranks import Ranks
from .engines.sources import for_others

# Ranges of a dataset, and the samples of one.
RANGES, LEAST, MOST = 64, 256, 1 << 16

Progress = Callable[[int, int], None]
Report = Callable[[int], None]


@dataclasses.dataclass(frozen=True)
class Work:
    """What is done for a task. Where this process does it, ``report`` is told how many samples are done."""

    job: Any
    threads: int | None
    report: Report | None = None

    def __call__(self, number: int) -> Any:
        raise NotImplementedError


def engine_of(engine: str | Engine) -> Engine:
    """The engine of a scan, whose results come back to one process."""
    made = make(engine)
    if isinstance(made, Ranks):
        raise OptionError(
            "the engine ranks is for convert: here the results come back to one process; use processes, dask "
            "or ray"
        )
    return made


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """What is scanned: every process opens it by itself, once."""

    source: Any
    format: str | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fields: tuple[str, ...] | None = None
    # Where relative paths begin.
    folder: str = dataclasses.field(default_factory=lambda: os.path.abspath(os.curdir))

    def __reduce__(self) -> tuple[Any, ...]:
        # Not what was opened here.
        return _opened_there, tuple(getattr(self, one.name) for one in dataclasses.fields(self))

    def check(self, engine: Engine) -> None:
        """OptionError where the workers of an engine could not open it."""
        if not isinstance(engine, Inline):
            for_others(self.source)

    @functools.cached_property
    def reader(self) -> Reader:
        if isinstance(self.source, Reader):
            found = self.source
        else:
            found = open_reader(self.source, format=self.format, **self.options)
        return found if self.fields is None else found.select(self.fields)


def _opened_there(source: Any, format: str | None, options: Any, fields: Any, folder: str) -> Dataset:
    """In another process; its current folder may be another one, too."""
    if not isinstance(source, Reader) and os.path.abspath(os.curdir) != folder:
        source = _within(folder, source)
    return Dataset(source, format, options, fields, folder)


def _within(folder: str, source: Any) -> Any:
    if isinstance(source, list | tuple):
        return [_within(folder, one) for one in source]
    full = for_others(source)
    return full if full == os.fspath(source) else os.path.join(folder, os.fspath(source))


def drawn(length: int, count: int, seed: int) -> I64:
    """Some sample numbers, in order, none twice."""
    if count >= length:
        return np.arange(length)
    return np.sort(np.random.default_rng(seed).choice(length, count, replace=False, shuffle=False))


def ranges(count: int) -> Plan:
    """So many samples, cut."""
    return Plan(count, int(np.clip(-(-count // RANGES), LEAST, MOST)))


def step(reader: Reader, rows: int, size: int) -> int:
    """How many samples to read at once: up to ``rows``, where their sizes are unknown about ``size`` bytes.

    Where sizes are known, who reads goes by those.
    """
    if reader.sizes() is not None:
        return rows
    some = np.arange(min(4, len(reader)))
    columns = reader.read_undamaged(some, [], sys.maxsize)[1]
    found = sum(int(column_runs(column)[2].clip(0).sum()) for column in (columns or {}).values())
    return int(np.clip(size * len(some) // max(found, 1), 1, rows))


def in_order(
    engine: Engine,
    work: Work,
    weights: Callable[[int], int],
    count: int,
    take: Callable[[int, Any], bool],
    *,
    name: Callable[[int], str] = str,
    progress: Progress | None = None,
) -> None:
    """``take(number, value)`` for each of ``count`` tasks, one after another, until it says: enough.

    ``weights``: how many samples a task has, for the progress.
    """
    tally = _Tally(sum(map(weights, range(count))), progress)
    if isinstance(engine, Inline):
        work = dataclasses.replace(work, report=tally.within)
    waiting: dict[int, Any] = {}
    first = 0

    def done(number: int, value: Any) -> None:
        nonlocal first
        tally.ended(weights(number))
        waiting[number] = value
        while first in waiting:
            first += 1
            if take(first - 1, waiting.pop(first - 1)):
                raise _Enough

    with contextlib.suppress(_Enough):
        run(engine, work, range(count), done, name=name)


class _Enough(BaseException):
    """The rest need not be done."""


class _Tally:
    """How far a scan is."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total, self._progress = total, progress
        self._done = self._said = 0

    def within(self, count: int) -> None:
        """So many samples of the task that is under way are done."""
        now = self._done + count
        if self._progress is not None and now > self._said:
            self._said = now
            self._progress(now, self._total)

    def ended(self, count: int) -> None:
        self.within(count)
        self._done += count
