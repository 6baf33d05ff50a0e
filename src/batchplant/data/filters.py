"""Row filters: which samples of a reader a condition is true of. ``Reader.filter`` and ``open(where=)``.

A format that knows where a condition cannot be true says so in ``_prune``; only the rest is looked at, and of
that only the fields that the condition names. What had to be read is remembered in the index of the file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BatchplantError, OptionError, SchemaError
from ..schema.columns import I64, Columns, end_within
from ..storage import index
from ..storage.index.progress import check_stop
from .origin import remembered

if TYPE_CHECKING:
    # Imported when something is filtered: there are many kinds of conditions.
    from .expressions import Bound, Condition
    from .reader import Reader

# Samples, and bytes of them where their sizes are known, that are looked at together.
ROWS, ROWS_BYTES = 1 << 14, 64 << 20
# Threads that look, unless there are fewer cores.
THREADS = 8
# Reading less than this again is quicker than looking after another file.
SMALL = 8 << 20
# That of what is remembered.
VERSION = 1
# What parts of a dataset add up to.
SUMS = ("units", "skipped", "bytes", "skipped_bytes", "looked_at")


@dataclasses.dataclass(frozen=True)
class Pruned:
    """Where a condition can be true.

    ``ranges``: first sample and end of each run, in order, none touching the next. ``units``: how many
    storage units (``what``: row groups, files) there are, ``skipped``: in how many of them it cannot be true.
    ``bytes``: of the cells in all of them; ``skipped_bytes``: those that need not be read; ``looked_at``:
    those of the fields in the condition that have to be.
    """

    ranges: I64
    what: str
    units: int
    skipped: int
    bytes: int
    skipped_bytes: int
    looked_at: int

    @property
    def rows(self) -> I64:
        """The samples in the ranges."""
        return numbers_in(self.ranges)

    def facts(self) -> dict[str, Any]:
        return {
            f"{self.what} skipped": f"{self.skipped:,} of {self.units:,}",
            "bytes skipped": self.skipped_bytes,
        }


def numbers_in(ranges: I64) -> I64:
    """Every number in these ranges."""
    sizes = ranges[:, 1] - ranges[:, 0]
    firsts = np.cumsum(sizes) - sizes
    return np.repeat(ranges[:, 0] - firsts, sizes) + np.arange(int(sizes.sum()))


def joined(parts: Sequence[tuple[Pruned | None, int]]) -> Pruned | None:
    """That of parts one after another, each with how many samples it has; None where none tells anything."""
    known = [pruned for pruned, _ in parts if pruned is not None]
    if not known:
        return None
    runs, first = [], 0
    for pruned, length in parts:
        own = [[0, length]] if pruned is None else pruned.ranges.tolist()
        runs += [(first + start, first + end) for start, end in own]
        first += length
    sums = (sum(getattr(one, name) for one in known) for name in SUMS)
    return Pruned(ranges_of(runs), known[0].what, *sums)


def ranges_of(runs: Sequence[tuple[int, int]]) -> I64:
    """Ranges of these runs in order, those that touch as one."""
    joined: list[list[int]] = []
    for start, end in runs:
        if joined and start == joined[-1][1]:
            joined[-1][1] = end
        elif start < end:
            joined.append([start, end])
    return np.array(joined, dtype=np.int64).reshape(-1, 2)


def within(pruned: Pruned | None, indices: I64 | None) -> Pruned | None:
    """The same for a view of these samples, by their numbers there."""
    if pruned is None or indices is None:
        return pruned
    inside = np.searchsorted(pruned.ranges.reshape(-1), indices, side="right") % 2
    edges = np.flatnonzero(np.diff(np.concatenate([[0], inside, [0]])))
    return dataclasses.replace(pruned, ranges=edges.reshape(-1, 2))


@dataclasses.dataclass(frozen=True)
class Filtered:
    """What a view tells of the filter that made it."""

    where: str
    samples: int
    skipped: dict[str, Any]

    def facts(self) -> dict[str, Any]:
        return {"filter": self.where, "filtered from": self.samples, **self.skipped}


Matches = tuple[I64, Pruned | None]
_LOCAL = threading.local()


@contextlib.contextmanager
def watching(told: Callable[[int, int], None]) -> Iterator[None]:
    """Within it, filters in this thread tell how many samples they have looked at, of how many.

    What it raises ends the filter.
    """
    _LOCAL.told = told
    try:
        yield
    finally:
        _LOCAL.told = None


def as_where(given: str | Condition) -> Condition:
    """A condition, or the text of one."""
    from .expressions import as_condition, check_depth, parse

    return parse(given) if isinstance(given, str) else check_depth(as_condition(given))


class Filterable:
    """The part of :class:`~batchplant.data.reader.Reader` that filters samples."""

    # -- what a format implements ----------------------------------------------------------------------

    def _prune(self, bound: Bound) -> Pruned | None:
        """Where a condition can be true, as far as something tells without reading cells; else None."""
        return None

    def _picked(self, rows: I64) -> Reader | None:
        """These samples, in ascending order, by a reader that reads nothing else; None: this one does."""
        return None

    def _scan_runs(self: Reader, fields: Sequence[str]) -> Iterator[tuple[int, int]]:  # type: ignore[misc]
        """Runs of samples, all of them in order, each of which :meth:`_scan_run` reads well at once."""
        sizes, end = self.sizes(), 0
        while end < len(self):
            start, end = end, end_within(sizes, end, min(ROWS, len(self) - end), ROWS_BYTES)
            yield start, end

    def _scan_run(self: Reader, start: int, end: int, fields: Sequence[str]) -> Columns:  # type: ignore[misc]
        """The cells of a run."""
        return self._read(np.arange(start, end), fields)

    def _matches(self: Reader, bound: Bound, text: str) -> Matches:  # type: ignore[misc]
        """The samples that a condition is true of, in ascending order, and what was skipped to find them."""
        return matches(self, bound, text)

    # -- what everybody uses ---------------------------------------------------------------------------

    def filter(self: Reader, where: str | Condition) -> Reader:  # type: ignore[misc]
        """The samples that a condition is true of: ``reader.filter("label == 'cat' and width >= 224")``.

        The condition is text or made of :func:`batchplant.col`. What compares a missing cell is never true,
        nor is its opposite; ``x is null`` finds it. What cannot match is skipped by the format's statistics,
        where it has some; ``facts()`` of the result says how much.
        """
        from .expressions import bind

        condition = as_where(where)
        text = str(condition)
        try:
            rows, pruned = self._matches(bind(condition, self.schema), text)
        except (SchemaError, OptionError) as error:
            raise error.at(path=self.path) from None
        return self._filtered(rows, Filtered(text, len(self), {} if pruned is None else pruned.facts()))

    def _filtered(self, rows: I64, told: Filtered) -> Reader:
        raise NotImplementedError


def matches(reader: Reader, bound: Bound, text: str) -> Matches:
    """The samples that match: what can be skipped is, and the rest is read."""
    from .expressions import fields_of

    fields = fields_of(bound)
    pruned = reader._prune(bound)
    if pruned is not None and not len(pruned.ranges):
        return np.empty(0, dtype=np.int64), pruned
    whole = pruned is None or pruned.ranges.tolist() == [[0, len(reader)]]
    looked = None if whole or pruned is None else pruned.rows

    def look(base: Reader) -> I64:
        reads = base if looked is None else base._picked(looked) or base.subset(looked)
        try:
            found = scan(reads, bound, fields)
        except BatchplantError as error:
            if error.sample is not None and looked is not None and error.sample < len(looked):
                error.sample = int(looked[error.sample])
            raise
        return found if looked is None else looked[found]

    # What few bytes told is told as quickly again.
    if pruned is not None and pruned.looked_at <= SMALL:
        return look(reader), pruned
    return _remembered(reader, fields, text, look), pruned


def scan(reader: Reader, bound: Bound, fields: Sequence[str]) -> I64:
    """The samples that match, all of them read; side by side where there are several runs."""
    from .expressions import matching

    runs = list(reader._scan_runs(fields))

    def look(run: tuple[int, int]) -> I64:
        check_stop()
        start, end = run
        columns = reader._scan_run(start, end, fields)
        try:
            return start + np.flatnonzero(matching(bound, reader.schema, columns))
        except BatchplantError as error:
            if error.sample is not None:
                error.sample += start
            raise error.at(path=reader.path) from None

    told = getattr(_LOCAL, "told", None) or (lambda done, of: None)
    parts = [np.empty(0, dtype=np.int64)]
    with contextlib.closing(_each(look, runs)) as found:
        for run, part in zip(runs, found, strict=True):
            parts.append(part)
            told(run[1], len(reader))
    return np.concatenate(parts)


def _each(look: Callable[[tuple[int, int]], I64], runs: list[tuple[int, int]]) -> Generator[I64, None, None]:
    """What is found in each run; after an error no more of them are begun than are waiting already."""
    threads = min(THREADS, len(os.sched_getaffinity(0)), len(runs))
    if threads < 2:
        yield from map(look, runs)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="batchplant-filter") as pool:
        ahead = 4 * threads
        waiting = [pool.submit(look, run) for run in runs[:ahead]]
        try:
            for number in range(len(runs)):
                yield waiting[number].result()
                if number + ahead < len(runs):
                    waiting.append(pool.submit(look, runs[number + ahead]))
        finally:
            for task in waiting:
                task.cancel()


def _remembered(reader: Reader, fields: Sequence[str], text: str, look: Callable[[Reader], I64]) -> I64:
    """What ``look`` finds, or found the last time: as ranges, or a bit for each sample where that is less."""

    def make(looks: Reader) -> tuple[index.Arrays, index.Facts]:
        return _packed(look(looks), len(reader)), {"samples": len(reader)}

    def check(found: index.Index) -> bool:
        return found.facts["samples"] == len(reader) and _unpacked(found.arrays, len(reader)) is not None

    made = remembered(reader, fields, "filter", text, make, version=VERSION, check=check)
    if made is None:
        return look(reader)
    found = _unpacked(made.arrays, len(reader))
    assert found is not None
    return found


def _packed(rows: I64, length: int) -> index.Arrays:
    breaks = np.flatnonzero(np.diff(rows) != 1)
    starts = np.concatenate([rows[:1], rows[breaks + 1]])
    ends = np.concatenate([rows[breaks], rows[-1:]]) + 1
    if 16 * len(starts) <= length // 8:
        return {"ranges": np.stack([starts, ends], axis=1)}
    bits = np.zeros(length, dtype=np.bool_)
    bits[rows] = True
    return {"bits": np.packbits(bits)}


def _unpacked(arrays: index.Arrays, length: int) -> I64 | None:
    """The samples; None where the arrays are not what was written."""
    if "bits" in arrays:
        bits = arrays["bits"]
        whole = bits.dtype == np.uint8 and bits.shape == ((length + 7) // 8,)
        return np.flatnonzero(np.unpackbits(bits, count=length)) if whole else None
    ranges = arrays.get("ranges")
    if ranges is None or ranges.dtype != np.int64 or ranges.ndim != 2 or ranges.shape[1] != 2:
        return None
    flat = ranges.reshape(-1)
    ordered = not len(flat) or (flat[0] >= 0 and flat[-1] <= length and (np.diff(flat) > 0).all())
    return numbers_in(ranges) if ordered else None
