"""Cells to the bytes of members and back: whole numbers are decimal text, all else NPY files."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _native
from ...codecs import npy
from ...codecs.npy import check_bytes
from ...errors import BatchplantError, DamagedError, DecodeError
from ...schema import Bool, Field, Float, Int, Tensor
from ...schema.columns import AnyArray, AnyDType, Column, Ragged, as_bytes, starts_of

# No number is longer: uint64 has 20 digits, and there may be blanks around it; reals have more.
MAX_NUMBER_CHARS = 64


def packed(field: Field, column: Column) -> Ragged:
    """The bytes of the members; what is missing stays so."""
    if not isinstance(field, Int | Float | Bool | Tensor):
        assert isinstance(column, Ragged)
        return column
    if _varies(field):
        assert isinstance(column, Ragged)
        assert isinstance(field, Tensor)
        return _packed_arrays(field, column) if field.flat else column
    dtype, shape = _number(field)
    valid = column.valid if isinstance(column, Ragged) else None
    values = column if not isinstance(column, Ragged) else _values(column, dtype, shape)
    cells = _decimals(values) if isinstance(field, Int) else _npy_files(values, dtype, shape)
    return cells if valid is None else _spread(cells, valid)


def _varies(field: Field) -> bool:
    """True if a cell is more, or less, than the values of an array of one known shape."""
    return isinstance(field, Tensor) and (None in field.shape or (field.optional and not field.flat))


def _number(field: Field) -> tuple[AnyDType, tuple[int, ...]]:
    shape = tuple(size or 0 for size in field.shape) if isinstance(field, Tensor) else ()
    return np.dtype(getattr(field, "dtype", "bool")), shape


def _values(cells: Ragged, dtype: AnyDType, shape: tuple[int, ...]) -> AnyArray:
    present = cells if cells.valid is None else cells.take(cells.valid)
    data = present.data[present.offsets[0] : present.offsets[-1]]
    return data.view(dtype).reshape(len(present), *shape)


def _decimals(values: AnyArray) -> Ragged:
    text = values.astype("S21").reshape(-1, 1).view(np.uint8)
    used = text != 0
    return Ragged(text[used], starts_of(used.sum(axis=1)))


def _npy_files(values: AnyArray, dtype: AnyDType, shape: tuple[int, ...]) -> Ragged:
    header = np.frombuffer(npy.header_bytes(dtype, shape), np.uint8)
    width = dtype.itemsize * int(np.prod(shape))
    files = np.empty((len(values), len(header) + width), np.uint8)
    files[:, : len(header)] = header
    files[:, len(header) :] = as_bytes(values).reshape(len(values), width)
    return Ragged(files.reshape(-1), np.arange(len(values) + 1, dtype=np.int64) * files.shape[1])


def _spread(cells: Ragged, valid: npt.NDArray[np.bool_]) -> Ragged:
    """Cells to the rows where they are; the others are missing."""
    sizes = np.zeros(len(valid), dtype=np.int64)
    sizes[valid] = cells.sizes
    return Ragged(cells.data, starts_of(sizes), valid=None if valid.all() else valid)


def _packed_arrays(field: Tensor, column: Ragged) -> Ragged:
    """Bare values whose first size varies, each behind the header for its size."""
    dtype, inner = np.dtype(field.dtype), tuple(size or 0 for size in field.shape[1:])
    width = dtype.itemsize * int(np.prod(inner))
    headers: dict[int, bytes] = {}
    files: list[bytes | None] = []
    for cell in column:
        if cell is None:
            files.append(None)
            continue
        first = cell.size // width
        if first not in headers:
            headers[first] = npy.header_bytes(dtype, (first, *inner))
        files.append(headers[first] + cell.tobytes())
    return Ragged.from_cells(files)


def unpacked(field: Field, cells: Ragged) -> Column:
    """The cells of a field from the bytes of its members; an error has the row as its ``sample``."""
    if not isinstance(field, Int | Float | Bool | Tensor):
        return cells
    if _varies(field):
        return _unpacked_arrays(field, cells)
    dtype, shape = _number(field)
    rows = np.arange(len(cells)) if cells.valid is None else np.flatnonzero(cells.valid)
    present = cells if cells.valid is None else cells.take(rows)
    try:
        values = _parsed(field, present, dtype, shape)
    except BatchplantError as error:
        if error.sample is not None:
            error.sample = int(rows[error.sample])
        raise
    if field.cell is not None:
        return values
    result = Ragged(as_bytes(values), np.arange(len(values) + 1, dtype=np.int64) * values[:1].nbytes)
    return _spread(result, np.ones(len(cells), np.bool_) if cells.valid is None else cells.valid)


def _parsed(field: Field, cells: Ragged, dtype: AnyDType, shape: tuple[int, ...]) -> AnyArray:
    if not len(cells):
        return np.empty((0, *shape), dtype)
    head = cells.data[cells.offsets[0] : cells.offsets[1]]
    if head[: len(npy.MAGIC)].tobytes() == npy.MAGIC:
        return _from_npy(field, cells, dtype, shape)
    if isinstance(field, Tensor):
        _check_bare(field, cells)
        return cells.data[cells.offsets[0] : cells.offsets[-1]].view(dtype).reshape(len(cells), *shape)
    if isinstance(field, Float):
        return _from_text(field, cells, np.dtype(np.float64)).astype(dtype)
    # Bool, too: 0 or 1.
    limits = np.iinfo(dtype) if isinstance(field, Int) else None
    smallest, limit = (limits.min, limits.max) if limits is not None else (0, 1)
    numbers = _from_text(field, cells, np.dtype(np.uint64 if dtype == np.uint64 else np.int64))
    bad = (numbers < smallest) | (numbers > limit)
    if bad.any():
        row = int(np.argmax(bad))
        raise DecodeError(f"{numbers[row]} is out of range for {field}", sample=row)
    return numbers.astype(dtype)


def decimals(cells: Ragged, dtype: AnyDType) -> AnyArray:
    """Numbers written as text; ValueError or OverflowError where one is not."""
    sizes = cells.sizes
    width = int(sizes.max(initial=1))
    if width > MAX_NUMBER_CHARS:
        raise ValueError("it is too long")
    grid = np.zeros((len(cells), max(width, 1)), dtype=np.uint8)
    places = np.arange(len(cells), dtype=np.int64) * grid.shape[1]
    _native.copy_runs(cells.data, np.ascontiguousarray(cells.starts), sizes, grid.reshape(-1), places)
    return grid.view(f"S{grid.shape[1]}")[:, 0].astype(dtype)


def _from_text(field: Field, cells: Ragged, dtype: AnyDType) -> AnyArray:
    try:
        return decimals(cells, dtype)
    except (ValueError, OverflowError) as error:
        for row in range(len(cells)):
            try:
                decimals(cells.take(slice(row, row + 1)), dtype)
            except (ValueError, OverflowError):
                raise DecodeError(f"not {field}: {error}", sample=row) from None
        raise DecodeError(f"not {field}: {error}") from None


def _from_npy(field: Field, cells: Ragged, dtype: AnyDType, shape: tuple[int, ...]) -> AnyArray:
    """Arrays of one dtype and shape. Where all have the header of the first, nothing else is looked at."""
    data = cells.data[cells.offsets[0] : cells.offsets[-1]]
    sizes = cells.sizes
    if (sizes == sizes[0]).all() and sizes[0]:
        table = data.reshape(len(cells), int(sizes[0]))
        header = _header(table[0], 0)
        plain = not header.fortran or len(header.shape) < 2
        fits = (header.dtype, header.shape) == (dtype, shape) and header.start + header.size == sizes[0]
        if plain and fits and (table[:, : header.start] == table[0, : header.start]).all():
            return np.ascontiguousarray(table[:, header.start :]).view(dtype).reshape(len(cells), *shape)
    values = np.empty((len(cells), *shape), dtype)
    for row in range(len(cells)):
        array = _array(cells, row)
        if array.dtype.newbyteorder("=") != dtype or array.shape != shape:
            raise DecodeError(f"an array {array.dtype} {array.shape} is not {field}", sample=row)
        values[row] = array
    return values


def _check_bare(field: Tensor, cells: Ragged, first: int = 0) -> None:
    """That cells which are no NPY files are bare values, as the user says."""
    try:
        check_bytes(field, cells.starts, cells.sizes)
    except DecodeError as error:
        # A place in these cells is none in the archive.
        row = first + (error.sample or 0)
        raise DecodeError(f"it is no NPY file: {error.message}", sample=row) from None


def _header(data: Any, row: int) -> npy.Header:
    try:
        return npy.parse_header(data[: npy.MAX_HEADER_BYTES + 12].tobytes())
    except DamagedError as error:
        raise DecodeError(error.message, sample=row) from None


def _array(cells: Ragged, row: int) -> AnyArray:
    cell = cells[row]
    assert cell is not None
    try:
        return npy.read(cell)
    except DamagedError as error:
        raise DecodeError(error.message, sample=row) from None


def _unpacked_arrays(field: Field, cells: Ragged) -> Ragged:
    assert isinstance(field, Tensor)
    dtype = np.dtype(field.dtype)
    arrays: list[bytes | None] = []
    for row in range(len(cells)):
        if cells.valid is not None and not cells.valid[row]:
            arrays.append(None)
            continue
        cell = cells[row]
        assert cell is not None
        if field.flat and cell[: len(npy.MAGIC)].tobytes() != npy.MAGIC:
            _check_bare(field, cells.take(slice(row, row + 1)), row)
            arrays.append(cell.tobytes())
            continue
        array = _array(cells, row)
        if array.dtype.newbyteorder("=") != dtype or not field.fits(array.shape):
            raise DecodeError(f"an array {array.dtype} {array.shape} is not {field}", sample=row)
        array = array.astype(dtype, copy=False)
        arrays.append(array.tobytes() if field.flat else npy.write(array))
    return Ragged.from_cells(arrays)
