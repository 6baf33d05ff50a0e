"""Tables of plain text, which know no quotes: columns that lie between delimiters, found by NumPy alone."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from ...codecs import text
from ...data.reader import Reader
from ...errors import DamagedError
from ...schema import Field, Schema, Text
from ...schema.columns import I64, U8, AnyArray, Columns, Ragged
from ...storage import open_source

NEWLINE, RETURN, SPACE, TAB = b"\n\r \t"


def read_bytes(path: str) -> U8:
    """Return all bytes of a file of text, with a newline at its end; DamagedError if it is no UTF-8."""
    with contextlib.closing(open_source(path)) as source:
        data = source.view(0, source.size).copy()
    try:
        data.tobytes().decode()
    except UnicodeDecodeError as error:
        raise DamagedError(f"not text: {error}", path=path) from None
    return data if not len(data) or data[-1] == NEWLINE else np.append(data, np.uint8(NEWLINE))


def line_ends(data: U8) -> tuple[I64, I64]:
    """Return where lines begin and end, without the bytes that end them."""
    stops = np.flatnonzero(data == NEWLINE)
    starts = np.concatenate([[0], stops[:-1] + 1]) if len(stops) else stops
    return starts, stops - ((stops > starts) & (data[stops - 1] == RETURN))


def split_cells(path: str, delimiter: int = TAB) -> tuple[list[str], list[text.Texts]]:
    """Return the names in the header of a file, and its columns below."""
    data = read_bytes(path)
    starts, stops = line_ends(data)
    header = data[: stops[0]].tobytes().decode().split(chr(delimiter)) if len(stops) else []
    # A delimiter may not be the end of a line that ends with CR.
    inner = np.flatnonzero(data == delimiter)
    counts = np.searchsorted(inner, stops) - np.searchsorted(inner, starts) + 1
    wrong = np.flatnonzero(counts != len(header))
    if len(wrong):
        row = int(wrong[0])
        message = f"line {row + 1} has {counts[row]} columns of {len(header)}"
        raise DamagedError(message, path=path, sample=row - 1, offset=int(starts[row]))
    cuts = inner.reshape(len(starts), max(len(header) - 1, 0))[1:]
    begins = np.column_stack([starts[1:], cuts + 1])
    ends = np.column_stack([cuts, stops[1:]])
    return header, [text.Texts(data, begins[:, n], (ends - begins)[:, n]) for n in range(len(header))]


class NamedLines:
    """A file whose lines are a name, and what it has behind white space."""

    def __init__(self, path: str) -> None:
        self.path = path
        data = read_bytes(path)
        data[data == TAB] = SPACE
        starts, stops = line_ends(data)
        starts, stops = starts[stops > starts], stops[stops > starts]
        spaces = np.flatnonzero(data == SPACE)
        first = np.append(spaces, len(data))[np.searchsorted(spaces, starts)]
        middle = np.minimum(first, stops)
        # White space around a value is none of it.
        solid = np.flatnonzero((data != SPACE) & (data != NEWLINE) & (data != RETURN))
        after = np.append(solid, len(data))[np.searchsorted(solid, middle)]
        begin = np.minimum(after, stops)
        last = np.append(solid, -1)[np.searchsorted(solid, stops) - 1] + 1
        self.names = text.Texts(data, starts, middle - starts)
        self.values = text.Texts(data, begin, np.maximum(last - begin, 0))
        self._cells = self.cells(self.names)
        if (middle == starts).any():
            raise DamagedError("a line has no name", path=path)

    def __len__(self) -> int:
        return len(self.names.starts)

    @staticmethod
    def cells(texts: text.Texts) -> Ragged:
        """Return texts as a column."""
        column = text.column(Text(), texts)
        assert isinstance(column, Ragged)
        return column

    @functools.cached_property
    def places(self) -> dict[bytes, int]:
        """The line of each name; DamagedError if two have one name."""
        places = dict(zip(_slices(self._cells), range(len(self)), strict=True))
        if len(places) < len(self):
            raise DamagedError("two lines have one name", path=self.path)
        return places

    def listed(self) -> list[bytes]:
        """Return the values."""
        return _slices(self.cells(self.values))

    def of(self, names: NamedLines) -> text.Texts:
        """Return the values of other names, in their order; missing where there is none."""
        data, starts, sizes = self.values
        # Mostly, both files are sorted, and of the same names.
        same = len(self) == len(names) and bool(
            np.array_equal(self._cells.offsets, names._cells.offsets)
            and np.array_equal(self._cells.data, names._cells.data)
        )
        if same:
            return self.values
        places = self.places
        rows = np.array([places.get(name, -1) for name in _slices(names._cells)], dtype=np.int64)
        # A row of -1 is what is appended here.
        return text.Texts(data, np.append(starts, 0)[rows], np.append(sizes, -1)[rows])


def _slices(cells: Ragged) -> list[bytes]:
    data, ends = cells.data.tobytes(), cells.offsets.tolist()
    return [data[first:last] for first, last in itertools.pairwise(ends)]


class TextTable(Reader):
    """Columns of text that is parsed where a sample needs it, and columns of numbers."""

    def __init__(self, path: str, columns: Mapping[str, tuple[Field, text.Texts | AnyArray]]) -> None:
        self.path, self._columns = path, {name: cells for name, (_, cells) in columns.items()}
        self.schema = Schema({name: field for name, (field, _) in columns.items()})
        first = next(iter(self._columns.values()))
        self.length = len(first.starts if isinstance(first, text.Texts) else first)

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        columns = Columns()
        for name in fields:
            cells = self._columns[name]
            if isinstance(cells, text.Texts):
                part = text.Texts(cells.data, cells.starts[indices], cells.sizes[indices])
                columns[name] = text.column(self.schema[name], part)
            else:
                columns[name] = cells[indices]
        return columns
