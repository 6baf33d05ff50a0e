"""One cell: its bytes and its value, read when they are asked for."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ....codecs.cells import decode_cell
from ....errors import BatchplantError
from ....loading.locate import Located
from ....schema.columns import U8, Column, Ragged, as_bytes, dense_of
from ....schema.kinds import Audio, Bytes, Field, Image, Tensor, Video

if TYPE_CHECKING:
    from ..session import Side

# A cell of one size that has more bytes than this is not read to tell of it in short.
LARGE = 1 << 16
# Numbers in a row of a cell whose count of rows differs, to be read with the other cells of a sample.
MAX_ROW_NUMBERS = 256


class Cell:
    """A field of a sample. ``value()`` and ``data`` raise what is wrong with it, with its place."""

    __slots__ = ("_column", "_row", "kind", "name", "sample", "shows", "side")

    def __init__(
        self, side: Side, sample: int, name: str, shows: str, column: Column | None = None, row: int = 0
    ) -> None:
        self.side, self.sample, self.name, self.shows = side, sample, name, shows
        self.kind: Field = side.reader.schema[name]
        self._column, self._row = column, row

    @property
    def loaded(self) -> bool:
        """Whether its bytes are in memory."""
        return self._column is not None

    @property
    def large(self) -> bool:
        """Whether it is known to have many bytes: an array of a size that is always the same."""
        return _size(self.kind) > LARGE

    @property
    def column(self) -> Column:
        """The column that it is in, at :attr:`row`; read if it is not there."""
        if self._column is None:
            reader = self.side.reader
            try:
                self._column, self._row = reader.read([self.sample], [self.name])[self.name], 0
            except BatchplantError as error:
                raise error.at(path=reader.path, sample=self.sample, field=self.name) from None
        return self._column

    @property
    def row(self) -> int:
        return self._row

    @property
    def missing(self) -> bool:
        if not self.kind.optional or (self.large and not self.loaded):
            return False
        column = self.column
        return isinstance(column, Ragged) and column.valid is not None and not column.valid[self._row]

    @property
    def data(self) -> U8:
        """Its bytes as they are stored; none where it is missing."""
        column = self.column
        if not isinstance(column, Ragged):
            return as_bytes(column[self._row : self._row + 1])
        found = column[self._row]
        return np.empty(0, np.uint8) if found is None else found

    @property
    def pixels_shape(self) -> tuple[int, int, int] | None:
        """Height, width and channels, where the bytes are raw pixels."""
        column = self.column
        if not isinstance(column, Ragged) or column.shape is None or not column.shape[self._row].any():
            return None
        height, width, channels = (int(size) for size in column.shape[self._row])
        return height, width, channels

    def beside(self, name: str) -> Cell:
        """Another field of the same sample."""
        return Cell(self.side, self.sample, name, self.side.shows[name])

    def value(self) -> Any:
        """Its value, decoded; None where it is missing."""
        column = self.column
        try:
            return decode_cell(self.kind, column, self._row)
        except BatchplantError as error:
            raise error.at(path=self.side.reader.path, sample=self.sample, field=self.name) from None


def _size(kind: Field) -> int:
    dense = dense_of(kind)
    return 0 if dense is None else dense[0].itemsize * math.prod(dense[1])


def cells_of(side: Side, samples: list[int], fields: Iterable[str]) -> list[dict[str, Cell]]:
    """The cells of these samples by field, as much of them in memory as one pass gives cheaply.

    What cannot be read together (damage in one sample) is read cell by cell when it is asked for.
    """
    found: list[dict[str, Cell]] = [{} for _ in samples]
    ids = np.array(samples, dtype=np.int64)
    together: list[str] = []
    for name in fields:
        kind = side.reader.schema[name]
        columns: list[Column] | None = None
        if isinstance(kind, Image | Audio | Video | Bytes | Tensor) and dense_of(kind) is None:
            columns = _in_place(side, name, ids)
            if columns is None and _is_row_of_numbers(kind):
                together.append(name)
        elif _size(kind) <= LARGE:
            together.append(name)
        for row, sample in enumerate(samples):
            column = None if columns is None else columns[row]
            found[row][name] = Cell(side, sample, name, side.shows[name], column)
    try:
        read = side.reader.read(ids, together) if together else {}
    except (BatchplantError, OSError, MemoryError):
        return found
    for name, whole in read.items():
        for row, cells in enumerate(found):
            cells[name] = Cell(side, samples[row], name, side.shows[name], whole, row)
    return found


def _is_row_of_numbers(kind: Field) -> bool:
    """Whether cells are as long as a sample has objects, and each row is short: boxes, labels, keypoints."""
    if not isinstance(kind, Tensor) or kind.shape[:1] != (None,) or None in kind.shape[1:]:
        return False
    return math.prod(size or 0 for size in kind.shape[1:]) <= MAX_ROW_NUMBERS


def _in_place(side: Side, name: str, ids: np.ndarray[Any, np.dtype[np.int64]]) -> list[Column] | None:
    """A column for each cell, of bytes where they lie in mapped files; None where they have to be read."""
    try:
        if side.reader.spans(name, ids) is None:
            return None
        located: Located = side.locator.find(name, ids)
    except (BatchplantError, OSError, MemoryError):
        return None
    made: list[Column] = []
    for row, size in enumerate(located.size.tolist()):
        there = size >= 0
        data = located.cell(row) if there else np.empty(0, np.uint8)
        shape = None if located.shape is None else located.shape[row : row + 1]
        valid = None if there else np.zeros(1, np.bool_)
        made.append(Ragged(data, np.array([0, max(size, 0)]), shape, valid))
    return made
