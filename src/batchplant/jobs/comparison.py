"""Comparison of two datasets, cell by cell."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..codecs.cells import cell_bytes, decode_cell
from ..data.quarantine import locate
from ..data.reader import Reader
from ..errors import BatchplantError, Problem, shown
from ..schema import Field
from ..schema.columns import I64, Column, Columns, Ragged


class Comparison:
    """Compares a range of samples with another dataset, up to a number of cells that differ."""

    def __init__(self, reader: Reader, reference: Reader, max_differences: int) -> None:
        self.reader, self.reference, self._max_differences = reader, reference, max_differences
        self._fields = [name for name in reader.schema if name in reference.schema]
        self._count = 0
        # Behind the last sample that was compared.
        self.compared = 0

    def shape_differs(self) -> Iterator[Problem]:
        """Problems of lengths, fields and classes that differ."""
        reader, reference = self.reader, self.reference
        path, other_path = reader.path, reference.path
        if len(reader) != len(reference):
            yield Problem(f"it has {len(reader)} samples, and {other_path} has {len(reference)}", path)
        if set(reader.schema) != set(reference.schema):
            names, other_names = ", ".join(reader.schema), ", ".join(reference.schema)
            yield Problem(f"its fields are {names}, and those of {other_path} are {other_names}", path)
        for name in self._fields:
            for attribute, noun in (("names", "classes"), ("ids", "class ids")):
                values = getattr(reader.schema[name], attribute, None)
                expected = getattr(reference.schema[name], attribute, None)
                # Not every format has a place for them.
                if values and expected and values != expected:
                    message = (
                        f"its {noun} are {_shown(values)}, and those of {other_path} are {_shown(expected)}"
                    )
                    yield Problem(message, path, None, name)

    def differences(self, columns: Columns, rows: I64, max_problems: int) -> Iterator[tuple[Problem, bool]]:
        """Problems, each with True where a cell differs, and False where the other dataset is damaged."""
        if self._count >= self._max_differences:
            return
        indices = rows[rows < len(self.reference)]
        damaged: list[Problem] = []
        numbers, expected = self.reference.read_undamaged(indices, damaged, max_problems)
        yield from ((problem, False) for problem in damaged)
        if expected is None:
            return
        columns = columns.take(np.searchsorted(rows, numbers))
        for row, number in enumerate(numbers.tolist()):
            self.compared = number + 1
            for name in self._fields:
                cell = self.reader.schema[name], columns[name]
                expected_cell = self.reference.schema[name], expected[name]
                if not _same(cell, expected_cell, row):
                    self._count += 1
                    path = locate(self.reader, number).path
                    yield Problem(f"it differs from {self.reference.path}", path, number, name), True
            if self._count >= self._max_differences:
                return


class DifferenceLimit:
    """Applies the limit on differing cells over all ranges, which come one after another."""

    def __init__(self, max_differences: int) -> None:
        self._max_differences = max_differences
        self._count = self._compared = 0

    def within(self, problems: list[tuple[Problem, bool]], compared: int) -> Iterator[Problem]:
        """Problems of the next range up to the limit; the range was compared up to sample ``compared``."""
        last = None
        for problem, differs in problems:
            # The limit ends with a sample: all of its cells are named.
            if differs and self._count >= self._max_differences and problem.sample != last:
                continue
            if differs:
                self._count, last = self._count + 1, problem.sample
                self._compared = (last or 0) + 1
            yield problem
        if self._count < self._max_differences:
            self._compared = max(self._compared, compared)

    def remarks(self, reader: Reader, reference: Reader) -> Iterator[str]:
        """A remark where the limit ended the comparison."""
        if self._count >= self._max_differences and self._compared < min(len(reader), len(reference)):
            samples = f"the first {self._compared:,} samples" if self._compared > 1 else "the first sample"
            cells = f"{reference.path} in {self._count:,} cells of {samples}"
            yield f"it differs from {cells}; the rest was not compared"


def _shown(values: tuple[object, ...]) -> str:
    return ", ".join(shown(str(value)) for value in values[:8]) + ", …" * (len(values) > 8)


def _same(cell: tuple[Field, Column], expected: tuple[Field, Column], row: int) -> bool:
    """True for equal bytes, or, where the two are encoded differently, equal values."""
    raw = [isinstance(column, Ragged) and bool(column.raw[row]) for _, column in (cell, expected)]
    if raw[0] == raw[1] and cell_bytes(cell[1], row) == cell_bytes(expected[1], row):
        return True
    try:
        a, b = (decode_cell(field, column, row) for field, column in (cell, expected))
    except BatchplantError:
        return False
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return bool(np.array_equal(a, b, equal_nan=True))
    return bool(a == b) or (a != a and b != b)
