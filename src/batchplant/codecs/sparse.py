"""Rows of sparse matrices as cells: the numbers of the columns, then the values, little-endian."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import _native
from ..errors import DecodeError, SchemaError
from ..schema import Sparse
from ..schema.columns import I64, U8, AnyArray, Ragged, as_bytes, starts_of


class SparseRow(NamedTuple):
    """A row of a sparse matrix: the numbers of the columns that have a value, and the values."""

    indices: AnyArray
    values: AnyArray


def pack_row(field: Sparse, value: Any) -> bytes:
    """Return the cell of (indices, values), a sparse matrix of one row, or an array of all columns.

    Bytes are a cell already.
    """
    if isinstance(value, bytes):
        unpack_row(field, np.frombuffer(value, np.uint8))
        return value
    if hasattr(value, "tocsr"):
        if value.shape not in (field.shape, (1, *field.shape)):
            raise SchemaError(f"a matrix of shape {value.shape} does not fit {field}")
        matrix = value.tocsr()
        value = matrix.indices, matrix.data
    elif not isinstance(value, tuple):
        dense = np.asarray(value)
        if dense.shape != field.shape:
            raise SchemaError(f"an array of shape {dense.shape} does not fit {field}")
        value = np.flatnonzero(dense), dense[dense != 0]
    indices, values = map(np.asarray, value)
    index, dtype = field.item["index"], field.item["value"]
    if (
        indices.ndim != 1
        or indices.shape != values.shape
        or (indices.size and indices.dtype.kind not in "iu")
    ):
        raise SchemaError("a row is as many numbers of columns as values: (indices, values)")
    if values.size and not np.can_cast(values.dtype, dtype, "safe"):
        raise SchemaError(f"{values.dtype} values do not fit {dtype} exactly; convert them first")
    if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < field.shape[0]:
        raise SchemaError(f"columns are numbers from 0 to {field.shape[0] - 1}")
    return indices.astype(index).tobytes() + values.astype(dtype).tobytes()


def unpack_row(field: Sparse, data: U8) -> SparseRow:
    """Return the value of a cell."""
    cells = Ragged(data, np.array([0, data.size]))
    (_, indices, values), bad = unpack_rows(field, cells)
    if bad:
        raise DecodeError(bad[0])
    return SparseRow(indices, values)


class SparseCells(Ragged):
    """Cells of rows whose arrays are at hand; their bytes are made when they are first asked for.

    A batch takes the arrays. The columns are known to be those of the field.
    """

    __slots__ = ("_counts", "_field", "indices", "values")

    def __init__(self, field: Sparse, counts: I64, indices: AnyArray, values: AnyArray) -> None:
        # Without data: __getattr__ makes it.
        self.offsets, self.shape, self.valid = starts_of(counts) * field.item.itemsize, None, None
        self._field, self._counts = field, counts
        self.indices = indices.astype(field.item["index"], copy=False)
        self.values = values.astype(field.item["value"], copy=False)

    def __getattr__(self, name: str) -> U8:
        if name != "data":
            raise AttributeError(name)
        self.data = np.empty(self.offsets[-1], np.uint8)
        firsts = starts_of(self._counts)[:-1]
        for array, dtype, starts in _parts(self._field, self, self.indices, self.values):
            size = dtype.itemsize
            _native.copy_runs(as_bytes(array), firsts * size, self._counts * size, self.data, starts)
        return self.data


def unpack_rows(
    field: Sparse, cells: Ragged, *, copy: bool = True
) -> tuple[tuple[I64, AnyArray, AnyArray], dict[int, str]]:
    """Return (indptr, indices, values) of cells, and what is wrong with some of them.

    ``copy``: the arrays belong to the caller; else they may be those of SparseCells.
    """
    if isinstance(cells, SparseCells):
        arrays = cells.indices, cells.values
        if copy or not all(array.flags.writeable for array in arrays):
            arrays = arrays[0].copy(), arrays[1].copy()
        return (starts_of(cells.sizes // field.item.itemsize), *arrays), {}
    width = field.item.itemsize
    bad = {
        row: f"{cells.sizes[row]} bytes are not {field}"
        for row in np.flatnonzero(cells.sizes % width).tolist()
    }
    counts = cells.sizes // width
    offsets = starts_of(counts)
    indices, values = (np.empty(offsets[-1], field.item[name]) for name in ("index", "value"))
    for array, dtype, starts in _parts(field, cells, indices, values):
        size = dtype.itemsize
        _native.copy_runs(cells.data, starts, counts * size, as_bytes(array), offsets[:-1] * size)
    for row in rows_outside(indices, offsets, field.shape[0]):
        bad[row] = f"a column is none of {field.shape[0]}"
    return (offsets, indices, values), bad


def rows_outside(indices: AnyArray, indptr: I64, columns: int) -> list[int]:
    """Return the rows that have a number which is none of a column."""
    # A negative number is a large one.
    unsigned = indices.view(f"u{indices.itemsize}")
    if not indices.size or int(unsigned.max()) < columns:
        return []
    rows = np.searchsorted(indptr, np.flatnonzero(unsigned >= columns), "right") - 1
    return [int(row) for row in np.unique(rows)]


def _parts(field: Sparse, cells: Ragged, indices: AnyArray, values: AnyArray) -> list[Any]:
    """Indices and values, the dtype of each, and where they start in the cells."""
    index, value = field.item["index"], field.item["value"]
    before_values = cells.sizes // field.item.itemsize * index.itemsize
    return [(indices, index, cells.starts), (values, value, cells.starts + before_values)]
