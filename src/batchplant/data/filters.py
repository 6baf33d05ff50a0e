"""Row filters: the samples of a reader that a condition is true of. ``Reader.filter`` and ``open(where=)``.

A format that knows where a condition cannot be true says so in ``_prune``. Only the other samples are read,
and of those only the fields that the condition names. The index of the file stores the result of a long scan.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..errors import BatchplantError
from ..schema import Schema
from ..schema.columns import I64, Columns
from ..storage import index
from ..storage.index.progress import check_stop
from ..storage.platform import cpu_count

if TYPE_CHECKING:
    # Imported when a reader is filtered: it takes long.
    from .expressions import Bound, Condition

# Unless there are fewer cores.
MAX_THREADS = 8
# Of the rows that an index file stores.
VERSION = 1
# Attributes of Pruned that parts of a dataset add up to.
SUMS = ("units", "skipped", "bytes", "skipped_bytes", "looked_at")


@dataclasses.dataclass(frozen=True)
class ScanRun:
    """A run of samples that a scan reads at once."""

    start: int
    end: int
    read: Callable[[], Columns]


class Scannable(Protocol):
    """The part of a reader that ``scan`` uses."""

    path: str
    schema: Schema

    def __len__(self) -> int: ...
    def _scan_runs(self, fields: Sequence[str]) -> Iterator[ScanRun]: ...


@dataclasses.dataclass(frozen=True)
class Pruned:
    """The samples that a condition can be true of, as far as statistics tell.

    ``ranges``: first sample and end of each run, in order, none touching the next. ``units``: number of
    storage units (``what``: row groups, files), ``skipped``: of those in which it cannot be true.
    ``bytes``: of the cells in all of them; ``skipped_bytes``: of those that need not be read; ``looked_at``:
    of the fields in the condition that have to be.
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
        """Numbers of the samples in the ranges."""
        return numbers_in(self.ranges)

    def facts(self) -> dict[str, object]:
        return {
            f"{self.what} skipped": f"{self.skipped:,} of {self.units:,}",
            "bytes skipped": self.skipped_bytes,
        }


def numbers_in(ranges: I64) -> I64:
    """Return every number in these ranges."""
    sizes = ranges[:, 1] - ranges[:, 0]
    firsts = np.cumsum(sizes) - sizes
    return np.repeat(ranges[:, 0] - firsts, sizes) + np.arange(int(sizes.sum()))


def joined(parts: Sequence[tuple[Pruned | None, int]]) -> Pruned | None:
    """Concatenate parts, each with its number of samples; None if no part has statistics."""
    with_statistics = [pruned for pruned, _ in parts if pruned is not None]
    if not with_statistics:
        return None
    runs, first = [], 0
    for pruned, length in parts:
        part_ranges = [[0, length]] if pruned is None else pruned.ranges.tolist()
        runs += [(first + start, first + end) for start, end in part_ranges]
        first += length
    sums = (sum(getattr(pruned, name) for pruned in with_statistics) for name in SUMS)
    return Pruned(ranges_of(runs), with_statistics[0].what, *sums)


def ranges_of(runs: Sequence[tuple[int, int]]) -> I64:
    """Return these runs, in order, as ranges; merges runs that touch."""
    joined: list[list[int]] = []
    for start, end in runs:
        if joined and start == joined[-1][1]:
            joined[-1][1] = end
        elif start < end:
            joined.append([start, end])
    return np.array(joined, dtype=np.int64).reshape(-1, 2)


def within(pruned: Pruned | None, indices: I64 | None) -> Pruned | None:
    """Translate the ranges to the sample numbers of a view."""
    if pruned is None or indices is None:
        return pruned
    inside = np.searchsorted(pruned.ranges.reshape(-1), indices, side="right") % 2
    edges = np.flatnonzero(np.diff(np.concatenate([[0], inside, [0]])))
    return dataclasses.replace(pruned, ranges=edges.reshape(-1, 2))


@dataclasses.dataclass(frozen=True)
class FilterSummary:
    """The filter that made a view, for its ``facts()``."""

    where: str
    samples: int
    skipped: dict[str, Any]

    def facts(self) -> dict[str, object]:
        return {"filter": self.where, "filtered from": self.samples, **self.skipped}


Matches = tuple[I64, Pruned | None]
_LOCAL = threading.local()


@contextlib.contextmanager
def watching(progress: Callable[[int, int], None]) -> Iterator[None]:
    """Report the progress of filters in this thread: samples scanned, and samples in all.

    An exception of ``progress`` ends the filter.
    """
    _LOCAL.progress = progress
    try:
        yield
    finally:
        _LOCAL.progress = None


def parse_condition(where: str | Condition) -> Condition:
    """Return a condition, parsed if it is text."""
    from .expressions import as_condition, check_depth, parse

    return parse(where) if isinstance(where, str) else check_depth(as_condition(where))


def scan(reader: Scannable, bound: Bound, fields: Sequence[str]) -> I64:
    """Read all samples, runs of them in parallel, and return those that match."""
    from .expressions import matching

    runs = list(reader._scan_runs(fields))

    def match_run(run: ScanRun) -> I64:
        check_stop()
        columns = run.read()
        try:
            return run.start + np.flatnonzero(matching(bound, reader.schema, columns))
        except BatchplantError as error:
            if error.sample is not None:
                error.sample += run.start
            raise error.at(path=reader.path) from None

    progress = getattr(_LOCAL, "progress", None) or (lambda done, total: None)
    parts = [np.empty(0, dtype=np.int64)]
    with contextlib.closing(_map_runs(match_run, runs)) as run_matches:
        for run, rows in zip(runs, run_matches, strict=True):
            parts.append(rows)
            progress(run.end, len(reader))
    return np.concatenate(parts)


def _map_runs(match_run: Callable[[ScanRun], I64], runs: list[ScanRun]) -> Generator[I64, None, None]:
    """Yield the matches of each run, in order; after an error, start no run that was not submitted yet."""
    threads = min(MAX_THREADS, cpu_count(), len(runs))
    if threads < 2:
        yield from map(match_run, runs)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="batchplant-filter") as pool:
        submitted_ahead = 4 * threads
        tasks = [pool.submit(match_run, run) for run in runs[:submitted_ahead]]
        try:
            for number in range(len(runs)):
                yield tasks[number].result()
                if number + submitted_ahead < len(runs):
                    tasks.append(pool.submit(match_run, runs[number + submitted_ahead]))
        finally:
            for task in tasks:
                task.cancel()


def pack_rows(rows: I64, length: int) -> index.Arrays:
    """Pack ascending sample numbers for an index file: as ranges, or as a bitmap where that is smaller."""
    breaks = np.flatnonzero(np.diff(rows) != 1)
    starts = np.concatenate([rows[:1], rows[breaks + 1]])
    ends = np.concatenate([rows[breaks], rows[-1:]]) + 1
    if 16 * len(starts) <= length // 8:
        return {"ranges": np.stack([starts, ends], axis=1)}
    bits = np.zeros(length, dtype=np.bool_)
    bits[rows] = True
    return {"bits": np.packbits(bits)}


def unpack_rows(arrays: index.Arrays, length: int) -> I64 | None:
    """Return the sample numbers that ``pack_rows`` packed; None if the arrays are not valid."""
    if "bits" in arrays:
        bits = arrays["bits"]
        complete = bits.dtype == np.uint8 and bits.shape == ((length + 7) // 8,)
        return np.flatnonzero(np.unpackbits(bits, count=length)) if complete else None
    ranges = arrays.get("ranges")
    if ranges is None or ranges.dtype != np.int64 or ranges.ndim != 2 or ranges.shape[1] != 2:
        return None
    flat = ranges.reshape(-1)
    ordered = not len(flat) or (flat[0] >= 0 and flat[-1] <= length and (np.diff(flat) > 0).all())
    return numbers_in(ranges) if ordered else None
