"""Whether rows are wanted here and there, in more row groups than the cache can hold, as a random order does.

Then a row costs the pages that it is in, not its row group. A row group that is asked for again soon, as a
quasi-random order does, is decoded whole, and kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from ....schema.columns import I64

# Of a row group of which more rows are wanted at once, all are likely to be.
FEW = 2
# What pages save, at least, to be worth it.
SAVES = 0.5
# Row groups that tell how large all are.
LOOKED_AT = 64

Runs = list[tuple[str, int, int]]


class Scattered:
    """``most``: bytes that the cache holds; ``size``: those that fields of a row group take there. ``whole``,
    ``some``: where its bytes lie in the file, and those of some of its rows."""

    def __init__(
        self,
        units: int,
        most: int,
        size: Callable[[int, Sequence[str]], int],
        whole: Callable[[int, Sequence[str]], Runs | None],
        some: Callable[[int, I64, Sequence[str]], Runs | None],
    ) -> None:
        self._most, self._size_of, self._whole, self._some = most, size, whole, some
        # How many row groups had been asked for when each was last.
        self._last = np.full(units, -(1 << 62), np.int64)
        self._asked = 0
        # Bytes of each row group that single rows took.
        self._spent = np.zeros(units, np.int64)
        self._sizes: dict[tuple[str, ...], float] = {}

    def wants(self, units: I64, rows: I64, names: tuple[str, ...]) -> bool:
        """Whether to read these rows, each of its unit, by pages."""
        used = np.unique(units)
        if not names or not len(used) or len(units) > FEW * len(used):
            return False
        size = self._size(names)
        if self.all_fit(names):
            return False
        lately = self._last[used] > self._asked - self._most / size
        if lately.mean() > 0.5:
            return False
        first = int(used[0])
        some = self._some(first, np.unique(rows[units == first]), names)
        return some is not None and _bytes(some) < SAVES * _bytes(self._whole(first, names))

    def saves(self, units: I64, rows: I64, names: tuple[str, ...]) -> bool:
        """Whether these rows by pages, and all that were read so before, take less than their row groups."""
        used = np.unique(units).tolist()
        for unit in used:
            some = _bytes(self._some(unit, np.unique(rows[units == unit]), names))
            if not names or self._spent[unit] + some >= _bytes(self._whole(unit, names)):
                return False
            self._spent[unit] += some
        return bool(used)

    def all_fit(self, names: tuple[str, ...]) -> bool:
        """Whether the cache has room for these fields of all row groups."""
        return self._size(names) * len(self._last) <= self._most

    def note(self, units: I64) -> None:
        """These are asked for now. Threads may overtake each other: then it is about so."""
        used = np.unique(units)
        self._last[used] = self._asked
        self._asked += len(used)

    def _size(self, names: tuple[str, ...]) -> float:
        if names not in self._sizes:
            looked = np.unique(np.linspace(0, len(self._last) - 1, LOOKED_AT).astype(np.int64)).tolist()
            self._sizes[names] = max(1.0, sum(self._size_of(unit, names) for unit in looked) / len(looked))
        return self._sizes[names]


def _bytes(runs: Runs | None) -> int:
    return sum(size for _, _, size in runs or ())


def by_unit(units: I64, rows: I64) -> list[tuple[int, I64, I64]]:
    """Each unit, the rows of it that are wanted, and for which places."""
    order = np.lexsort((rows, units))
    edges = np.flatnonzero(np.diff(units[order], prepend=-1))
    groups = itertools.pairwise([*edges.tolist(), len(order)])
    return [(int(units[order[a]]), rows[order[a:b]], order[a:b]) for a, b in groups]
