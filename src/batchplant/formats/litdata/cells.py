"""The cells of a field to the bytes of its value and back."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ...codecs import npy
from ...codecs.arrays import check_bytes
from ...errors import DecodeError
from ...schema import Field, Tensor
from ...schema.columns import I64, U8, Column, Ragged, as_bytes, dense_of
from ..base.shards import Inner, numbers_at, pil, wrong
from . import nested
from .encodings import NUMBERS, Encoding, stored_dtype


def looks(encoding: Encoding) -> bool:
    """True if cells have to be read to know where those of the field lie in them."""
    return encoding.form in ("array", "pil", "json")


def inner(encoding: Encoding, field: Field, data: U8 | None, starts: I64, sizes: I64) -> Inner | None:
    """The runs that are the field's cells as they are; None where they have to be made.

    What is wrong with a cell is an error whose ``sample`` is the row.
    """
    if data is None:
        if encoding.form in NUMBERS:
            _check_numbers(encoding, sizes)
            return Inner(starts, sizes) if _is_same(encoding, field) else None
        check_bytes(field, starts, sizes)
        return Inner(starts, sizes)
    if encoding.form == "pil":
        return pil.inner(data, starts, sizes)
    if encoding.form == "json":
        wrong(sizes == 0, "it is empty, and no JSON")
        return Inner(starts, sizes) if (data[starts] > nested.TAGS).all() else None
    if not isinstance(field, Tensor):
        return Inner(starts, sizes)
    heads, _ = _shapes(encoding, field, data, starts, sizes)
    # An array of one shape is its values, also where it has none.
    return Inner(starts + heads, sizes - heads) if field.flat or field.cell is not None else None


def made(encoding: Encoding, field: Field, cells: Ragged) -> Ragged:
    """The cells of a field of which :func:`inner` knows no place."""
    if encoding.form in NUMBERS:
        return _narrowed(encoding, field, cells)
    if encoding.form == "json":
        return Ragged.from_cells([_document(cell, row) for row, cell in enumerate(cells)])
    assert isinstance(field, Tensor)
    head, shapes = _shapes(encoding, field, cells.data, cells.starts, cells.sizes)
    dtype = np.dtype(field.dtype)
    whole = []
    for row, cell in enumerate(cells):
        assert cell is not None
        whole.append(npy.header_bytes(dtype, tuple(shapes[row].tolist())) + cell[head:].tobytes())
    return Ragged.from_cells(whole)


def _is_same(encoding: Encoding, field: Field) -> bool:
    dense = dense_of(field)
    assert dense is not None
    return dense[0].itemsize == np.dtype(str(encoding.dtype)).itemsize


def _check_numbers(encoding: Encoding, sizes: I64) -> None:
    size = np.dtype(str(encoding.dtype)).itemsize
    wrong(sizes != size, f"it has not the {size} bytes of {encoding.text}")


def _narrowed(encoding: Encoding, field: Field, cells: Ragged) -> Ragged:
    """The numbers of a field that has a smaller dtype than LitData."""
    dense = dense_of(field)
    assert dense is not None
    _check_numbers(encoding, cells.sizes)
    wide = cells.data.view(str(encoding.dtype))
    with np.errstate(over="ignore"):
        found = wide.astype(dense[0])
    if dense[0].kind in "iu":
        wrong(found != wide, f"it is no {dense[0]}")
    return Ragged(as_bytes(found), np.arange(len(found) + 1, dtype=np.int64) * dense[0].itemsize)


def _document(cell: U8 | None, row: int) -> bytes:
    assert cell is not None
    data = cell.tobytes()
    try:
        return data if data[0] > nested.TAGS else nested.text_of(data)
    except DecodeError as error:
        error.sample = row
        raise


def _shapes(
    encoding: Encoding, field: Tensor, data: U8, starts: I64, sizes: I64
) -> tuple[int, npt.NDArray[np.int64]]:
    """Return header size and shape of each array, checked against the field and the sizes."""
    stored = stored_dtype(np.dtype(field.dtype))
    assert stored is not None
    axes = len(field.shape)
    head = 8 + 4 * axes
    wrong(sizes < 8, "it is too short for an array")
    codes, found = numbers_at(data, starts, 2, encoding.order + "u4").T
    known = [code for code, name in enumerate(encoding.codes) if name == stored]
    wrong(~np.isin(codes, known), f"its values are not {stored}")
    wrong(found != axes, f"it has another number of axes than {axes}")
    wrong(sizes < head, "it is too short for its shape")
    shapes = numbers_at(data, starts + 8, axes, encoding.order + "u4").astype(np.int64)
    for axis, size in enumerate(field.shape):
        if size is not None:
            wrong(shapes[:, axis] != size, f"its shape does not fit {field}")
    # Numbers of 32 bits, whose product fits only into a real.
    values = np.prod(shapes.astype(np.float64), axis=1) * np.dtype(stored).itemsize
    wrong(values != sizes - head, "its values are more or fewer than its shape says")
    return head, shapes


def packed(encoding: Encoding, field: Field, column: Column) -> Ragged:
    """The bytes of a field's cells as values; those that are missing are what stands for nothing."""
    if isinstance(column, Ragged) and column.valid is not None and not column.valid.all():
        column = _filled(encoding, field, column)
    if encoding.form in NUMBERS:
        return _widened(encoding, field, column)
    if encoding.form == "array" and isinstance(field, Tensor):
        return _with_heads(encoding, field, column)
    if not isinstance(column, Ragged):
        width = column.dtype.itemsize * math.prod(column.shape[1:])
        return Ragged(as_bytes(column), np.arange(len(column) + 1, dtype=np.int64) * width)
    if encoding.form == "json":
        return _as_text(column)
    return pil.packed(column) if encoding.form == "pil" else column


def _as_text(column: Ragged) -> Ragged:
    """JSON may begin with a space, which LitData would take for a tag."""
    starts = column.starts[column.sizes > 0]
    if (column.data[starts] > nested.TAGS).all():
        return column
    return Ragged.from_cells([b"" if cell is None else cell.tobytes().strip() for cell in column])


def _filled(encoding: Encoding, field: Field, column: Ragged) -> Ragged:
    empty = b"null" if encoding.form == "json" else b""
    dense = dense_of(field)
    if isinstance(field, Tensor):
        zeros = np.zeros([size or 0 for size in field.shape], field.dtype)
        empty = zeros.tobytes() if field.flat else npy.write(zeros)
    elif dense is not None:
        empty = bytes(dense[0].itemsize)
    return Ragged.from_cells([empty if cell is None else cell for cell in column])


def _widened(encoding: Encoding, field: Field, column: Column) -> Ragged:
    dense = dense_of(field)
    assert dense is not None
    wide = np.dtype(str(encoding.dtype))
    cells = column
    if isinstance(cells, Ragged):
        cells = cells.data[cells.offsets[0] : cells.offsets[-1]].view(dense[0])
    # Counts of a unit of time are numbers.
    values = cells.view("int64") if cells.dtype.kind in "mM" else cells.astype(wide)
    return Ragged(as_bytes(values), np.arange(len(values) + 1, dtype=np.int64) * wide.itemsize)


def _with_heads(encoding: Encoding, field: Tensor, column: Column) -> Ragged:
    dtype = np.dtype(field.dtype)
    stored = stored_dtype(dtype)
    # Of torch's two numbers for a dtype, LitData writes the second.
    code = max(code for code, name in enumerate(encoding.codes) if name == stored)
    width = dtype.itemsize * math.prod(size or 0 for size in field.shape[1:])
    heads: dict[tuple[int, ...], bytes] = {}
    whole = []
    shape: tuple[int, ...]
    for cell in column:
        assert cell is not None
        if not isinstance(column, Ragged):
            shape, values = cell.shape, cell.tobytes()
        elif field.flat:
            rest = tuple(size or 0 for size in field.shape[1:])
            shape, values = (cell.size // width, *rest) if field.shape else (), cell.tobytes()
        else:
            array = npy.read(cell)
            shape, values = array.shape, array.tobytes()
        if shape not in heads:
            heads[shape] = np.array([code, len(shape), *shape], encoding.order + "u4").tobytes()
        whole.append(heads[shape] + values)
    return Ragged.from_cells(whole)
