"""Cells in memory: Ragged and Columns. Pure NumPy, no files.

A cell is a run of bytes. :class:`Ragged` holds the cells of one field for a few samples, one after
another, in Arrow's binary layout. It may carry two things beside the bytes, and so may Spans
(storage/spans.py), which say where cells lie in files:

- ``shape`` (images only): one row (height, width, channels) per cell that is raw pixels; a row of zeros
  for a cell that is an encoded file.
- a missing cell (of an optional field): ``valid[i]`` is False, or the span's size is -1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from ..errors import BatchplantError, DamagedError, DecodeError, OptionError, SampleIndexError, SchemaError
from . import Field, Schema, Tensor

U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
# Where any dtype will do.
AnyArray = npt.NDArray[Any]
AnyDType = np.dtype[Any]


def as_bytes(data: Any) -> U8:
    """Return a flat uint8 view of any contiguous buffer, without a copy."""
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return np.frombuffer(data, dtype=np.uint8)


def starts_of(sizes: I64) -> I64:
    """Return the n+1 offsets of runs of these sizes, one after another."""
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def end_within(sizes: I64 | None, start: int, rows: int, max_bytes: int) -> int:
    """Return the end of up to ``rows`` samples from ``start`` on that have up to ``max_bytes`` in all.

    The first sample counts however large it is; without sizes all do.
    """
    if sizes is None:
        return start + rows
    return start + max(1, int(np.searchsorted(np.cumsum(sizes[start : start + rows]), max_bytes, "right")))


def sample_numbers(indices: Any, length: int) -> I64:
    """Return numbers of samples out of ``length`` as int64, none negative, none out of range."""
    array: AnyArray = np.asarray(indices)
    if array.ndim != 1:
        raise OptionError(f"a list of sample numbers is needed, not {indices!r}")
    if array.dtype == np.bool_ and len(array) == length:
        return np.flatnonzero(array)
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.dtype.kind not in "iu":
        raise OptionError(f"sample numbers are integers, not {array.dtype}")
    numbers = array.astype(np.int64, copy=False)
    if _native.are_below(np.ascontiguousarray(numbers), length):
        return numbers
    numbers = numbers.copy()
    if array.dtype == np.uint64:
        # Beyond int64 there is no sample, whatever the number would wrap around to.
        numbers[numbers < 0] = np.iinfo(np.int64).max
    numbers = np.where(numbers < 0, numbers + length, numbers)
    bad = (numbers < 0) | (numbers >= length)
    if bad.any():
        wrong = int(array[int(np.argmax(bad))])
        raise SampleIndexError(f"there is no sample {wrong}; there are {length}")
    return numbers


class Ragged:
    """Cells of differing length: ``data[offsets[i]:offsets[i + 1]]`` is cell i.

    shape: (height, width, channels) of each cell that is raw pixels, zeros for the others; None: no cell is.
    valid: flags of the cells that are not missing; None: no cell is missing.
    """

    __slots__ = ("data", "offsets", "shape", "valid")

    def __init__(self, data: U8, offsets: I64, shape: I32 | None = None, valid: Flags | None = None) -> None:
        self.data = data
        self.offsets = offsets
        self.shape = shape
        self.valid = valid

    @classmethod
    def from_cells(cls, cells: Sequence[Any], shapes: Sequence[tuple[int, ...] | None] = ()) -> Ragged:
        """Return bytes-like objects joined; None is a missing cell. ``shapes``: of cells of raw pixels."""
        views: Sequence[Any] = [b"" if cell is None else cell for cell in cells]
        if all(type(view) is bytes for view in views):
            # Much faster for many small ones.
            data = np.frombuffer(bytearray().join(views), dtype=np.uint8)
        else:
            views = [as_bytes(view) for view in views]
            data = np.concatenate(views)
        offsets = starts_of(np.fromiter(map(len, views), dtype=np.int64, count=len(views)))
        valid = None
        if any(cell is None for cell in cells):
            valid = np.fromiter((cell is not None for cell in cells), dtype=np.bool_, count=len(cells))
        shape = None
        if any(shapes):
            shape = np.zeros((len(views), 3), dtype=np.int32)
            for row, pixels in enumerate(shapes):
                if pixels:
                    shape[row] = pixels
        return cls(data, offsets, shape, valid)

    @property
    def starts(self) -> I64:
        return self.offsets[:-1]

    @property
    def sizes(self) -> I64:
        return np.diff(self.offsets)

    @property
    def raw(self) -> Flags:
        """Flags of the cells that are raw pixels."""
        if self.shape is None:
            return np.zeros(len(self), dtype=np.bool_)
        return np.asarray(self.shape.any(axis=1))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> U8 | None:
        """Return the bytes of one cell, a view; None if it is missing."""
        if self.valid is not None and not self.valid[row]:
            return None
        row = range(len(self))[row]
        return self.data[self.offsets[row] : self.offsets[row + 1]]

    def __iter__(self) -> Iterator[U8 | None]:
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        return f"<Ragged: {len(self)} cells, {int(self.offsets[-1] - self.offsets[0])} bytes>"

    def take(self, rows: Any) -> Ragged:
        """Return these rows (a slice, which is a view where it can be, or an array of indices)."""
        shape = None if self.shape is None else self.shape[rows]
        valid = None if self.valid is None else self.valid[rows]
        if isinstance(rows, slice):
            first, last, step = rows.indices(len(self))
            if step == 1:
                last = max(first, last)
                base = self.offsets[first]
                data = self.data[base : self.offsets[last]]
                return Ragged(data, self.offsets[first : last + 1] - base, shape, valid)
            # Not arange, which has no number for a step beyond 64 bits.
            rows = np.fromiter(range(first, last, step), dtype=np.int64)
        rows = np.asarray(rows)
        if rows.dtype == np.bool_:
            rows = np.flatnonzero(rows)
        sizes = self.sizes[rows]
        offsets = starts_of(sizes)
        data = np.empty(offsets[-1], dtype=np.uint8)
        _native.copy_runs(self.data, self.starts[rows], sizes, data, offsets[:-1])
        return Ragged(data, offsets, shape, valid)

    @classmethod
    def concat(cls, parts: Sequence[Ragged]) -> Ragged:
        """Return the cells of several, one after another."""
        if len(parts) == 1:
            return parts[0]
        sizes = np.concatenate([part.sizes for part in parts])
        packed = [part.data[part.offsets[0] : part.offsets[-1]] for part in parts]
        shape = valid = None
        if any(part.shape is not None for part in parts):
            shape = np.concatenate(
                [np.zeros((len(p), 3), np.int32) if p.shape is None else p.shape for p in parts]
            )
        if any(part.valid is not None for part in parts):
            valid = np.concatenate([np.ones(len(p), np.bool_) if p.valid is None else p.valid for p in parts])
        return cls(np.concatenate(packed), starts_of(sizes), shape, valid)


class Masked(Ragged):
    """Numbers, or arrays of one shape, some of which may be missing: ``values``, and ``mask`` beside them.

    The cells are ragged (a missing one has no bytes); the array is made when it is asked for. dtype: type of
    the numbers. row: shape of one value; empty for single numbers.
    """

    __slots__ = ("_values", "dtype", "row")

    def __init__(self, cells: Ragged, dtype: AnyDType, row: tuple[int, ...] = ()) -> None:
        super().__init__(cells.data, cells.offsets, cells.shape, cells.valid)
        self.dtype, self.row = dtype, row
        self._values: AnyArray | None = None

    @property
    def mask(self) -> Flags:
        """Flags of the values that are not missing."""
        return np.ones(len(self), dtype=np.bool_) if self.valid is None else self.valid

    @property
    def values(self) -> AnyArray:
        """All values as one array. A missing value is NaN or NaT where the dtype has them, else 0."""
        if self._values is None:
            mask, width = self.mask, self.dtype.itemsize * math.prod(self.row)
            wrong = self.sizes != np.where(mask, width, 0)
            if wrong.any():
                row = int(np.argmax(wrong))
                raise DecodeError(f"{self.sizes[row]} bytes are no {self.dtype} {self.row}", sample=row)
            packed = self.data[self.offsets[0] : self.offsets[-1]]
            if not mask.all():
                values = np.full((len(self), *self.row), missing_value(self.dtype), dtype=self.dtype)
                values[mask] = np.ascontiguousarray(packed).view(self.dtype).reshape(-1, *self.row)
            elif width:
                values = np.ascontiguousarray(packed).view(self.dtype).reshape(-1, *self.row)
            else:
                values = np.empty((len(self), *self.row), dtype=self.dtype)
            self._values = values
        return self._values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> AnyArray:
        return np.array(self.values, dtype=dtype) if copy else np.asarray(self.values, dtype=dtype)

    def __repr__(self) -> str:
        return f"<Masked: {len(self)} of {self.dtype} {self.row}, {int((~self.mask).sum())} missing>"

    def take(self, rows: Any) -> Masked:
        return Masked(super().take(rows), self.dtype, self.row)


def missing_value(dtype: AnyDType) -> Any:
    """Return the value that stands for a missing one in an array."""
    return np.array("NaT" if dtype.kind in "mM" else np.nan if dtype.kind in "fc" else 0, dtype=dtype)


def dense_of(field: Field) -> tuple[AnyDType, tuple[int, ...]] | None:
    """Return the dtype and shape that all cells of a field have, even if some may be missing; else None."""
    if isinstance(field, Tensor) and field.optional and not field.flat:
        # Its cells store their shape.
        return None
    return dataclasses.replace(field, optional=False).cell


def masked(schema: Schema, columns: Columns) -> Columns:
    """Turn the columns of optional numbers and of optional arrays of one shape into :class:`Masked`."""
    for name, column in columns.items():
        dense = dense_of(schema[name]) if schema[name].optional else None
        if dense is not None and isinstance(column, Ragged):
            columns[name] = Masked(column, *dense)
    return columns


Column = AnyArray | Ragged


class Columns(dict[str, Column]):
    """Encoded cells by field name, every column equally long: ``Columns(label=array, image=ragged)``."""

    @property
    def rows(self) -> int:
        return len(next(iter(self.values()))) if self else 0

    def check(self, schema: Schema) -> None:
        """Raise SchemaError unless the columns are exactly what the schema says."""
        if set(self) != set(schema):
            raise SchemaError(f"the fields are {', '.join(schema)}, but columns {', '.join(self)} were given")
        rows = self.rows
        for name, field in schema.items():
            column = self[name]
            if len(column) != rows:
                raise SchemaError(f"{len(column)} cells where other columns have {rows}", field=name)
            if field.cell is None:
                if not isinstance(column, Ragged):
                    raise SchemaError(f"{field} needs a Ragged column", field=name)
                if column.valid is not None and not field.optional and not column.valid.all():
                    row = int(np.argmin(column.valid))
                    raise SchemaError(
                        "a cell is missing, and the field is not optional", field=name, sample=row
                    )
            else:
                dtype, shape = field.cell
                if isinstance(column, Ragged) or column.dtype != dtype or column.shape[1:] != shape:
                    have = "ragged" if isinstance(column, Ragged) else f"{column.dtype} {column.shape[1:]}"
                    raise SchemaError(f"{field} needs {dtype} {shape} per sample, not {have}", field=name)

    def ragged(self, name: str) -> Ragged:
        """Return a column of cells of differing sizes, such as texts or images."""
        column = self[name]
        assert isinstance(column, Ragged)
        return column

    def take(self, rows: Any) -> Columns:
        """Return the columns of these rows."""
        return Columns((name, take_cells(column, rows)) for name, column in self.items())

    @classmethod
    def read(cls, fields: Iterable[str], read: Callable[[str], Column], path: str | None = None) -> Columns:
        """Return the columns that ``read(name)`` gives for each field; errors get the field and the path."""
        columns = cls()
        for name in fields:
            try:
                columns[name] = read(name)
            except BatchplantError as error:
                raise error.at(path=path, field=name) from None
            except MemoryError:
                message = "its cells do not fit into memory"
                raise DamagedError(message, path=path, field=name) from None
        return columns

    @classmethod
    def concat(cls, parts: Sequence[Mapping[str, Column]]) -> Columns:
        """Return columns one after another; all parts have the same fields."""
        if len(parts) == 1:
            return cls(parts[0])
        return cls((name, concat_columns([part[name] for part in parts])) for name in parts[0])


def take_cells(column: Column, rows: Any) -> Column:
    return column.take(rows) if isinstance(column, Ragged) else column[rows]


def concat_columns(parts: Iterable[Column]) -> Column:
    parts = list(parts)
    ragged = [part for part in parts if isinstance(part, Ragged)]
    if ragged:
        joined, first = Ragged.concat(ragged), ragged[0]
        return Masked(joined, first.dtype, first.row) if isinstance(first, Masked) else joined
    return np.concatenate([part for part in parts if not isinstance(part, Ragged)])


def column_runs(column: Column) -> tuple[U8, I64, I64]:
    """Return the data, and the start and size of every cell in it; a missing cell has size -1."""
    if isinstance(column, Ragged):
        sizes = column.sizes
        if column.valid is not None:
            sizes = np.where(column.valid, sizes, -1)
        return column.data, np.ascontiguousarray(column.starts), sizes
    width = column.dtype.itemsize * int(np.prod(column.shape[1:]))
    starts = np.arange(len(column), dtype=np.int64) * width
    return as_bytes(column), starts, np.full(len(column), width, dtype=np.int64)
