"""The cells of a field to the bytes of its column and back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ...codecs import npy
from ...errors import DecodeError, EncodeError
from ...schema import Field, Float, Int, Tensor
from ...schema.columns import I64, U8, Column, Ragged, as_bytes, dense_of
from ..base.shards import Inner, numbers_at, pil, wrong
from .encodings import DIGITS, DTYPES, MOST_DIGITS, MOST_SIZE, Encoding, stored_dtype


def inner(encoding: Encoding, field: Field, data: U8, starts: I64, sizes: I64) -> Inner | None:
    """Locate the pixels of images and the values of arrays with shapes; None: decode them."""
    if encoding.text == "pil":
        return pil.inner(data, starts, sizes)
    if not (isinstance(field, Tensor) and field.flat):
        return None
    heads, _ = _shapes(encoding, field, data, starts, sizes)
    return Inner(starts + heads, sizes - heads)


def _shapes(
    encoding: Encoding, field: Tensor, data: U8, starts: I64, sizes: I64
) -> tuple[I64, npt.NDArray[np.int64]]:
    """Return header size and shape of each array, checked against the field and the cell's size."""
    stored = stored_dtype(np.dtype(field.dtype))
    assert stored is not None
    extra = int(encoding.dtype is None)
    wrong(sizes <= extra, "it is too short for an array")
    if extra:
        code = next(key for key, one in DTYPES.items() if one == stored[0])
        wrong(data[starts] != code, f"its values are not {stored[0]}")
    first = data[starts + extra].astype(np.int64)
    axes = len(field.shape) + len(stored[1])
    wrong(first >> 2 != axes, f"it has another number of axes than {axes}")
    widths = np.left_shift(1, first & 3)
    heads = extra + 1 + axes * widths
    wrong(heads > sizes, "it is too short for its shape")
    shapes = np.zeros((len(starts), axes), dtype=np.int64)
    for width in (1, 2, 4, 8):
        rows = np.flatnonzero(widths == width)
        if len(rows):
            found = numbers_at(data, starts[rows] + extra + 1, axes, f"<u{width}")
            shapes[rows] = np.minimum(found, np.array(MOST_SIZE, found.dtype) if width == 8 else found)
    want = (*field.shape, *stored[1])
    for axis, size in enumerate(want):
        if size is not None:
            wrong(shapes[:, axis] != size, f"its shape does not fit {field}")
    values = np.full(len(starts), np.dtype(stored[0]).itemsize, dtype=np.float64)
    for axis in range(axes):
        values = values * shapes[:, axis]
    wrong(values != sizes - heads, "its values are more or fewer than its shape says")
    return heads, shapes


def unpacked(encoding: Encoding, field: Field, cells: Ragged) -> Ragged:
    """The cells of a field of which :func:`inner` knows no place."""
    assert isinstance(field, Tensor | Int | Float)
    if encoding.text in DIGITS:
        made = _numbers(field, cells)
        return Ragged(as_bytes(made), np.arange(len(made) + 1) * made.itemsize)
    assert isinstance(field, Tensor)
    heads, shapes = _shapes(encoding, field, cells.data, cells.starts, cells.sizes)
    axes, dtype, whole = len(field.shape), np.dtype(field.dtype), []
    for row in range(len(cells)):
        cell = cells[row]
        shape = tuple(shapes[row, :axes].tolist())
        whole.append(None if cell is None else npy.header_bytes(dtype, shape) + cell[heads[row] :].tobytes())
    return Ragged.from_cells(whole)


def _numbers(field: Field, cells: Ragged) -> npt.NDArray[Any]:
    dense = dense_of(field)
    assert dense is not None
    made = np.zeros(len(cells), dtype=dense[0])
    for row, cell in enumerate(cells):
        assert cell is not None
        try:
            text = cell[:MOST_DIGITS].tobytes().decode()
            made[row] = int(text) if dense[0].kind in "iu" else float(text)
        except OverflowError:
            said = (
                f'{text[:40]} does not fit into {dense[0]}; open the column as text: schema={{NAME: "text"}}'
            )
            raise DecodeError(said, sample=row) from None
        except ValueError:
            raise DecodeError(f"{text[:40]!r} is no {dense[0]}", sample=row) from None
    return made


def packed(encoding: Encoding, field: Field, column: Column) -> Ragged:
    """The bytes of a field's cells in a column; those that are missing are what stands for nothing."""
    if isinstance(column, Ragged) and column.valid is not None and not column.valid.all():
        column = _filled(encoding, field, column)
    if encoding.text in DIGITS:
        if isinstance(column, Ragged):
            return _checked_digits(encoding, column)
        return Ragged.from_cells([str(one).encode() for one in column.tolist()])
    if not isinstance(column, Ragged):
        width = column.dtype.itemsize * math.prod(column.shape[1:])
        return Ragged(as_bytes(column), np.arange(len(column) + 1, dtype=np.int64) * width)
    if encoding.text == "pil":
        return pil.packed(column)
    return _packed_arrays(encoding, field, column) if encoding.varies else column


def _checked_digits(encoding: Encoding, column: Ragged) -> Ragged:
    """Text that Streaming takes for numbers."""
    number: Any = int if encoding.text == "str_int" else float
    for row, cell in enumerate(column):
        try:
            number(b"" if cell is None else cell[:MOST_DIGITS].tobytes())
        except ValueError:
            raise EncodeError(f"a column of {encoding.text} holds numbers", sample=row) from None
    return column


def _filled(encoding: Encoding, field: Field, column: Ragged) -> Ragged:
    empty = {"json": b"null"}.get(encoding.text, bytes(encoding.size or 0))
    if encoding.varies:
        assert isinstance(field, Tensor)
        zeros = np.zeros([size or 0 for size in field.shape], field.dtype)
        empty = zeros.tobytes() if field.flat else npy.write(zeros)
    cells = [empty if cell is None else cell for cell in column]
    return Ragged.from_cells(cells, [] if column.shape is None else list(map(tuple, column.shape.tolist())))


def _packed_arrays(encoding: Encoding, field: Field, column: Ragged) -> Ragged:
    assert isinstance(field, Tensor)
    dtype = np.dtype(field.dtype)
    stored = stored_dtype(dtype)
    assert stored is not None
    code = b"" if encoding.dtype else bytes([next(key for key, one in DTYPES.items() if one == stored[0])])
    width = dtype.itemsize * math.prod(size or 0 for size in field.shape[1:])
    heads: dict[tuple[int, ...], bytes] = {}
    made = []
    shape: tuple[int, ...]
    for cell in column:
        assert cell is not None
        if field.flat:
            rest = (size or 0 for size in field.shape[1:])
            shape, values = (cell.size // width, *rest), cell.tobytes()
        else:
            array = npy.read(cell)
            shape, values = array.shape, array.tobytes()
        if shape not in heads:
            heads[shape] = code + _head((*shape, *stored[1]))
        made.append(heads[shape] + values)
    return Ragged.from_cells(made)


def _head(shape: tuple[int, ...]) -> bytes:
    width = next(power for power in range(4) if max(shape) < 1 << (8 << power))
    return bytes([len(shape) << 2 | width]) + np.array(shape, f"<u{1 << width}").tobytes()
