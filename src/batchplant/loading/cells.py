"""What batches need of the parts of an object on a server."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ..columns import I64
from ..storage import RemoteSource, plan_ranges

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

    def ranges(self, *, whole: bool) -> tuple[list[tuple[int, int]], bool]:
        """What to ask for now, and whether it is cut as in all processes; ``whole``: the cell in any case."""
        first = self.uses[0]
        if whole:
            return [self.bounds], True
        low, high = min(one.low for one in self.uses), max(one.high for one in self.uses)
        if sum(one.bytes for one in self.uses) >= WORTH * (high - low):
            disk = self.source.blocks[1].disk
            return ([(low, high)], False) if disk is None else ([self.bounds], True)
        return plan_ranges(first.starts, first.sizes)[0], False
