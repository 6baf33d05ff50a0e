"""What batches need of the parts of an object on a server."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from ..schema.columns import I64, Spans
from ..storage import RemoteSource, plan_ranges
from ..storage.remote.cells import PART

# A cell of which this share is needed is fetched whole.
WORTH = 0.5


class Use(NamedTuple):
    """What a batch needs of a cell: from ``low`` to ``high``, ``bytes`` in between."""

    batch: int
    low: int
    high: int
    bytes: int
    starts: I64
    sizes: I64

    def within(self, start: int, end: int) -> int:
        """The bytes that it needs from ``start`` to ``end``."""
        if self.high <= start or self.low >= end:
            return 0
        if start <= self.low and self.high <= end:
            return self.bytes
        if len(self.starts) == 1:
            return min(self.high, end) - max(self.low, start)
        parts = np.minimum(self.starts + self.sizes, end) - np.maximum(self.starts, start)
        return int(parts[parts > 0].sum())

    def runs(self) -> list[tuple[int, int]]:
        """Its samples, from where to where."""
        return list(zip(self.starts.tolist(), (self.starts + self.sizes).tolist(), strict=True))


def uses_of(batch: int, spans: Spans) -> list[tuple[int, int, Use]]:
    """What a batch needs: (file, cell, use). Beside threads that make batches, Python is dear."""
    order = np.lexsort((spans.start, spans.file))
    order = order[spans.size[order] > 0]
    if not len(order):
        return []
    start, size, file = spans.start[order], spans.size[order], spans.file[order]
    places = start // PART
    edges = np.flatnonzero((np.diff(places) != 0) | (np.diff(file) != 0)) + 1
    first = np.append(0, edges)
    high, total = np.maximum.reduceat(start + size, first), np.add.reduceat(size, first)
    each = zip(
        *(one.tolist() for one in (file[first], places[first], start[first], high, total)),
        np.split(start, edges), np.split(size, edges), strict=True,
    )  # fmt: skip
    return [(number, place, Use(batch, *found)) for number, place, *found in each]


class Cell:
    """A part of an object, and the batches that need it, as far as they are foreseen."""

    def __init__(self, source: RemoteSource, number: int) -> None:
        self.source, self.number = source, number
        self.uses: deque[Use] = deque()
        # From where to where it was asked for, in one piece.
        self.asked = 0, 0

    def has_all(self) -> bool:
        """Whether all that is needed of it was asked for."""
        low, high = self.asked
        return all(low <= one.low and one.high <= high for one in self.uses)

    @property
    def bounds(self) -> tuple[int, int]:
        """From where to where it goes in the object."""
        return self.source.blocks[1].cell(self.number)

    def ranges(self, batch: int, *, whole: bool) -> tuple[list[tuple[int, int]], bool]:
        """What to ask for a batch now, and whether it is cut as in all processes; ``whole``: all of it."""
        if whole:
            return [self.bounds], True
        low, high = min(one.low for one in self.uses), max(one.high for one in self.uses)
        if sum(one.bytes for one in self.uses) >= WORTH * (high - low):
            disk = self.source.blocks[1].disk
            return ([(low, high)], False) if disk is None else ([self.bounds], True)
        # Batches before it may not be made yet, and theirs was asked for.
        own = next((one for one in self.uses if one.batch == batch), self.uses[0])
        return plan_ranges(own.starts, own.sizes)[0], False
