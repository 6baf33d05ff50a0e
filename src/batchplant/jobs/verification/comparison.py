"""Whether two datasets hold the same, cell by cell."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...codecs.cells import cell_bytes, decode_cell
from ...data.quarantine import locate
from ...data.reader import Reader
from ...errors import BatchplantError, Problem, shown
from ...schema import Field
from ...schema.columns import I64, Column, Columns, Ragged


class Comparison:
    """Of one range with another dataset, up to a number of cells that differ."""

    def __init__(self, reader: Reader, other: Reader, most: int) -> None:
        self.reader, self.other, self._most = reader, other, most
        self._fields = [name for name in reader.schema if name in other.schema]
        self._found = 0
        # Behind the last sample that was looked at.
        self.compared = 0

    def shape_differs(self) -> Iterator[Problem]:
        mine, other = self.reader, self.other
        if len(mine) != len(other):
            yield Problem(f"it has {len(mine)} samples, and {other.path} has {len(other)}", mine.path)
        if set(mine.schema) != set(other.schema):
            these, those = ", ".join(mine.schema), ", ".join(other.schema)
            yield Problem(f"its fields are {these}, and those of {other.path} are {those}", mine.path)
        for name in self._fields:
            for part, what in (("names", "classes"), ("ids", "class ids")):
                here, there = (getattr(one.schema[name], part, None) for one in (mine, other))
                # Not every format has a place for them.
                if here and there and here != there:
                    message = f"its {what} are {_shown(here)}, and those of {other.path} are {_shown(there)}"
                    yield Problem(message, mine.path, None, name)

    def differences(self, columns: Columns, rows: I64, most: int) -> Iterator[tuple[Problem, bool]]:
        """Problems, and whether they are cells that differ; else the other dataset is damaged."""
        if self._found >= self._most:
            return
        asked = rows[rows < len(self.other)]
        damaged: list[Problem] = []
        numbers, theirs = self.other.read_undamaged(asked, damaged, most)
        yield from ((one, False) for one in damaged)
        if theirs is None:
            return
        mine = columns.take(np.searchsorted(rows, numbers))
        for row, number in enumerate(numbers.tolist()):
            self.compared = number + 1
            for name in self._fields:
                pair = (self.reader.schema[name], mine[name]), (self.other.schema[name], theirs[name])
                if not _same(*pair, row):
                    self._found += 1
                    where = locate(self.reader, number).path
                    yield Problem(f"it differs from {self.other.path}", where, number, name), True
            if self._found >= self._most:
                return


class Differences:
    """The cells that differ in all ranges, which come one after another; of those beyond the limit, none."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = self._compared = 0

    def kept(self, problems: list[tuple[Problem, bool]], compared: int) -> Iterator[Problem]:
        """The problems of the next range, which was compared up to a sample."""
        last = None
        for problem, differs in problems:
            # All cells of the sample in which the limit is reached.
            if differs and self._count >= self._most and problem.sample != last:
                continue
            if differs:
                self._count, last = self._count + 1, problem.sample
                self._compared = (last or 0) + 1
            yield problem
        if self._count < self._most:
            self._compared = max(self._compared, compared)

    def remarks(self, mine: Reader, other: Reader) -> Iterator[str]:
        """That it was given up, where it was."""
        if self._count >= self._most and self._compared < min(len(mine), len(other)):
            samples = f"the first {self._compared:,} samples" if self._compared > 1 else "the first sample"
            where = f"{other.path} in {self._count:,} cells of {samples}"
            yield f"it differs from {where}; the rest was not compared"


def _shown(values: tuple[object, ...]) -> str:
    return ", ".join(shown(str(one)) for one in values[:8]) + ", …" * (len(values) > 8)


def _same(mine: tuple[Field, Column], theirs: tuple[Field, Column], row: int) -> bool:
    """Equal bytes, or, where the two are encoded differently, equal values."""
    raw = [isinstance(column, Ragged) and bool(column.raw[row]) for _, column in (mine, theirs)]
    if raw[0] == raw[1] and cell_bytes(mine[1], row) == cell_bytes(theirs[1], row):
        return True
    try:
        one, two = (decode_cell(field, column, row) for field, column in (mine, theirs))
    except BatchplantError:
        return False
    if isinstance(one, np.ndarray) or isinstance(two, np.ndarray):
        return bool(np.array_equal(one, two, equal_nan=True))
    return bool(one == two) or (one != one and two != two)
