"""Where the images of Parquet files lie, as they are asked for: see inplace.py."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

import numpy as np

from ....schema.columns import I64
from .inplace import Cells
from .part import ParquetPart
from .picked import WINDOW_BYTES

# Where more cells of a row group are wanted, all of it is. Unless there are so many row groups that each
# would be read again and again.
FEW, SCATTERED = 4, 2 * WINDOW_BYTES


class Places:
    """Starts and sizes of the cells of a field in some files.

    A start is 0 where nobody has looked, -1 where a cell does not lie in its file as it is. ``parts``: the
    files that have the column, by number. File n has the row groups from ``firsts[n]`` on, row group g the
    rows from ``edges[g]`` on.
    """

    def __init__(self, field: str, parts: Mapping[int, ParquetPart], firsts: I64, edges: I64) -> None:
        self._field, self._parts, self._firsts, self._edges = field, parts, firsts, edges
        # Memory is taken as cells are found.
        self.starts, self.sizes = np.zeros(edges[-1], np.int64), np.zeros(edges[-1], np.int64)
        # The files of which the cache was asked.
        self._asked: set[int] = set()
        self._process, self._finding = os.getpid(), threading.Lock()

    def find(self, groups: I64) -> None:
        """Find the cells of row groups, each named as often as a cell of it is wanted."""
        # Another thread may have held the lock when the process was forked.
        if self._process != os.getpid():
            self._process, self._finding = os.getpid(), threading.Lock()
        # Batches that are made at the same time want the same row groups.
        with self._finding:
            self._find(groups)

    def _find(self, groups: I64) -> None:
        for number in np.unique(self._files_of(groups)).tolist():
            self._recall(number)
        wanted = groups[self.starts[self._edges[groups]] == 0]
        new = np.unique(wanted)
        files = self._files_of(new)
        inside = {number: new[files == number] for number in self._parts if (files == number).any()}
        whole = len(wanted) > FEW * len(new) and not self._are_scattered(inside)
        for number, some in inside.items():
            found = self._parts[number].cells((some - self._firsts[number]).tolist(), self._field, whole)
            for group, cells in zip(some.tolist(), found, strict=True):
                self._put(slice(*self._edges[group : group + 2].tolist()), cells)
            self._remember(number)
        for group in new[~np.isin(files, list(inside))].tolist():
            self._put(slice(*self._edges[group : group + 2].tolist()), None)

    def _files_of(self, groups: I64) -> I64:
        found: I64 = np.searchsorted(self._firsts, groups, side="right") - 1
        return found

    def _rows_of(self, number: int) -> slice:
        return slice(*self._edges[self._firsts[number : number + 2]].tolist())

    def _put(self, rows: slice, cells: Cells | None) -> None:
        # Last what other threads look at first.
        self.sizes[rows] = -1 if cells is None else cells[1]
        self.starts[rows] = -1 if cells is None else cells[0]

    def _recall(self, number: int) -> None:
        """Take what was found out about a file before, once."""
        if number in self._parts and number not in self._asked:
            found = self._parts[number].recalled(self._field)
            if found is not None:
                self._put(self._rows_of(number), found)
            self._asked.add(number)

    def _remember(self, number: int) -> None:
        """Keep what is known about a file once that is all, and of use."""
        rows = self._rows_of(number)
        if self.starts[rows].all() and (self.starts[rows] > 0).any():
            self._parts[number].remember(self._field, (self.starts[rows], self.sizes[rows]))

    def _are_scattered(self, groups: Mapping[int, I64]) -> bool:
        """Whether row groups are more than stay in memory until all of their cells were used."""
        return sum(self._size(number, some) for number, some in groups.items()) > SCATTERED

    def _size(self, number: int, groups: I64) -> int:
        """The bytes of the column in row groups of a file."""
        part, inside = self._parts[number], (groups - self._firsts[number]).tolist()
        return sum(size for one in inside for _, size in part.runs(one, [self._field]))
