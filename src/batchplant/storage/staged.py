"""Bytes of a file that were read ahead into memory of ours; asked for by their place in the file."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import numpy as np

from .. import _native
from ..schema.columns import I64, U8


class Staged:
    """Runs of a file in memory, in order: the bytes from ``starts[i]`` to ``ends[i]`` lie at ``places[i]``.

    ``used``: somebody has asked for some of them.
    """

    def __init__(self, memory: U8, starts: I64, ends: I64, places: I64) -> None:
        self.memory, self._starts, self._ends, self._places = memory, starts, ends, places
        self.used = False

    def find(self, starts: I64, sizes: I64) -> I64:
        """Where in the memory these runs begin; -1 where they are not here."""
        if not len(self._starts):
            return np.full(len(starts), -1)
        row = np.searchsorted(self._starts, starts, side="right") - 1
        here = (row >= 0) & (starts + sizes <= self._ends[row])
        found: I64 = np.where(here, starts - self._starts[row] + self._places[row], -1)
        self.used = self.used or bool(here.any())
        return found


class Shelf:
    """All that lies in memory of one file. Any thread may ask, put and drop."""

    def __init__(self) -> None:
        self._held: dict[Hashable, Staged] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def put(self, key: Hashable, one: Staged) -> None:
        self._held[key] = one

    def drop(self, key: Hashable) -> Staged | None:
        return self._held.pop(key, None)

    def view(self, start: int, size: int) -> U8 | None:
        """These bytes, if they are here."""
        found = self.placed(np.array([start]), np.array([size]))
        return None if found is None else found[0][int(found[1][0]) :][:size]

    def placed(self, starts: I64, sizes: I64) -> tuple[U8, I64] | None:
        """The memory that has all of these runs, and where in it they begin."""
        for memory, rows, places in self.parts(starts, sizes):
            return (memory, places) if len(rows) == len(starts) else None
        return None

    def parts(self, starts: I64, sizes: I64) -> Iterator[tuple[U8, I64, I64]]:
        """Those runs that are here, by the memory that they lie in: it, their rows, and where they begin."""
        left = np.arange(len(starts))
        for one in list(self._held.values()):
            places = one.find(starts[left], sizes[left])
            here = places >= 0
            if here.any():
                yield one.memory, left[here], places[here]
                left = left[~here]
            if not len(left):
                return

    def copy(self, starts: I64, sizes: I64, out: U8, out_starts: I64) -> I64:
        """Copy those runs that are here to their places in ``out``; the rows of the others."""
        missing = np.ones(len(starts), np.bool_)
        for memory, rows, places in self.parts(starts, sizes):
            _native.copy_runs(memory, places, sizes[rows], out, out_starts[rows])
            missing[rows] = False
        return np.flatnonzero(missing)
