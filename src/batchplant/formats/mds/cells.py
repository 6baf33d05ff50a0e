"""The cells of a field to the bytes of its column and back."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ...codecs import npy
from ...columns import I64, U8, Column, Ragged, as_bytes, dense_of, starts_of
from ...errors import BatchplantError, DecodeError
from ...schema import Bool, Field, Float, Int, Tensor
from .encodings import CHANNELS, DIGITS, DTYPES, MODES, MOST_SIZE, Encoding, stored_dtype


@dataclasses.dataclass(frozen=True)
class Inner:
    """Where the cells of a field lie inside of those of its column, and the shapes of raw pixels."""

    starts: I64
    sizes: I64
    shape: npt.NDArray[np.int32] | None = None


def inner(encoding: Encoding, field: Field, data: U8, starts: I64, sizes: I64) -> Inner | None:
    """The runs that are the field's cells as they are; None where they have to be made.

    What is wrong with a cell is an error whose ``sample`` is the row.
    """
    if encoding.text == "pil":
        return _pixels(data, starts, sizes)
    if encoding.text in DIGITS:
        return None
    if not encoding.varies:
        return Inner(starts, sizes)
    if not (isinstance(field, Tensor) and field.flat):
        return None
    heads, _ = _shapes(encoding, field, data, starts, sizes)
    return Inner(starts + heads, sizes - heads)


def numbers_at(data: U8, starts: I64, count: int, width: int) -> npt.NDArray[Any]:
    """``count`` unsigned numbers of so many bytes at each start: (starts, count)."""
    found = data[starts[:, None] + np.arange(count * width)]
    return np.ascontiguousarray(found).view(f"<u{width}")


def _wrong(bad: npt.NDArray[np.bool_], message: str) -> None:
    if bad.any():
        raise DecodeError(message, sample=int(np.argmax(bad)))


def _pixels(data: U8, starts: I64, sizes: I64) -> Inner:
    _wrong(sizes < 12, "it is too short for a picture of Pillow")
    width, height, length = numbers_at(data, starts, 3, 4).astype(np.int64).T
    _wrong(length > np.minimum(sizes - 12, 16), "it is too short for a picture of Pillow")
    channels = np.zeros(len(starts), dtype=np.int64)
    for row, (start, count) in enumerate(zip((starts + 12).tolist(), length.tolist(), strict=True)):
        mode = data[start : start + count].tobytes().decode("latin1")
        if mode not in CHANNELS:
            raise DecodeError(f"pixels of Pillow's mode {mode!r} are not read here", sample=row)
        channels[row] = CHANNELS[mode]
    head = 12 + length
    left = sizes - head
    # Two numbers of 32 bits; with the channels, the product stays below 2**63 only as a real.
    _wrong(width.astype(np.float64) * height * channels != left, "its pixels are more or fewer than it says")
    shape = np.stack([height, width, channels], axis=1)
    _wrong(np.maximum(height, width) > 0x7FFFFFFF, "it is too large for a picture")
    return Inner(starts + head, left, shape.astype(np.int32))


def _shapes(
    encoding: Encoding, field: Tensor, data: U8, starts: I64, sizes: I64
) -> tuple[I64, npt.NDArray[np.int64]]:
    """How long the head of each array is, and its shape; checked against the field and the cell's size."""
    stored = stored_dtype(np.dtype(field.dtype))
    assert stored is not None
    extra = int(encoding.dtype is None)
    _wrong(sizes <= extra, "it is too short for an array")
    if extra:
        code = next(key for key, one in DTYPES.items() if one == stored[0])
        _wrong(data[starts] != code, f"its values are not {stored[0]}")
    first = data[starts + extra].astype(np.int64)
    axes = len(field.shape) + len(stored[1])
    _wrong(first >> 2 != axes, f"it has another number of axes than {axes}")
    widths = np.left_shift(1, first & 3)
    heads = extra + 1 + axes * widths
    _wrong(heads > sizes, "it is too short for its shape")
    shapes = np.zeros((len(starts), axes), dtype=np.int64)
    for width in (1, 2, 4, 8):
        rows = np.flatnonzero(widths == width)
        if len(rows):
            found = numbers_at(data, starts[rows] + extra + 1, axes, width)
            shapes[rows] = np.minimum(found, np.array(MOST_SIZE, found.dtype) if width == 8 else found)
    want = (*field.shape, *stored[1])
    for axis, size in enumerate(want):
        if size is not None:
            _wrong(shapes[:, axis] != size, f"its shape does not fit {field}")
    values = np.full(len(starts), np.dtype(stored[0]).itemsize, dtype=np.float64)
    for axis in range(axes):
        values = values * shapes[:, axis]
    _wrong(values != sizes - heads, "its values are more or fewer than its shape says")
    return heads, shapes


def unpacked(encoding: Encoding, field: Field, cells: Ragged) -> Column:
    """The cells of a field of which :func:`inner` knows no place."""
    assert isinstance(field, Tensor | Int | Float)
    if encoding.text in DIGITS:
        return _numbers(field, cells)
    assert isinstance(field, Tensor)
    heads, shapes = _shapes(encoding, field, cells.data, cells.starts, cells.sizes)
    axes, dtype, made = len(field.shape), np.dtype(field.dtype), []
    for row in range(len(cells)):
        cell = cells[row]
        shape = tuple(shapes[row, :axes].tolist())
        made.append(None if cell is None else npy.header_bytes(dtype, shape) + cell[heads[row] :].tobytes())
    return Ragged.from_cells(made)


def _numbers(field: Field, cells: Ragged) -> npt.NDArray[Any]:
    dense = dense_of(field)
    assert dense is not None
    made = np.zeros(len(cells), dtype=dense[0])
    for row, cell in enumerate(cells):
        assert cell is not None
        try:
            # Python gives up on more digits by itself, and says so at length.
            text = cell[:400].tobytes().decode()
            made[row] = int(text) if dense[0].kind == "i" else float(text)
        except (ValueError, OverflowError):
            raise DecodeError(f"{text[:40]!r} is no {dense[0]}", sample=row) from None
    return made


def packed(encoding: Encoding, field: Field, column: Column) -> Ragged:
    """The bytes of a field's cells in a column; those that are missing are what stands for nothing."""
    if isinstance(column, Ragged) and column.valid is not None and not column.valid.all():
        column = _filled(encoding, field, column)
    if encoding.text in DIGITS:
        assert not isinstance(column, Ragged)
        return Ragged.from_cells([str(one).encode() for one in column.tolist()])
    if not isinstance(column, Ragged):
        width = column.dtype.itemsize * math.prod(column.shape[1:])
        return Ragged(as_bytes(column), np.arange(len(column) + 1, dtype=np.int64) * width)
    if encoding.text == "pil":
        return _packed_pixels(column)
    return _packed_arrays(encoding, field, column) if encoding.varies else column


def _filled(encoding: Encoding, field: Field, column: Ragged) -> Ragged:
    empty = {"json": b"null"}.get(encoding.text, bytes(encoding.size or 0))
    if encoding.varies:
        assert isinstance(field, Tensor)
        zeros = np.zeros([size or 0 for size in field.shape], field.dtype)
        empty = zeros.tobytes() if field.flat else npy.write(zeros)
    cells = [empty if cell is None else cell for cell in column]
    return Ragged.from_cells(cells, [] if column.shape is None else list(map(tuple, column.shape.tolist())))


def _packed_pixels(column: Ragged) -> Ragged:
    made = []
    for row, cell in enumerate(column):
        assert cell is not None
        assert column.shape is not None
        height, width, channels = column.shape[row].tolist()
        mode = MODES[channels].encode()
        made.append(np.array([width, height, len(mode)], "<u4").tobytes() + mode + cell.tobytes())
    return Ragged.from_cells(made)


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


def dense(field: Field, cells: Ragged, valid: npt.NDArray[np.bool_] | None) -> Column:
    """The column of these cells: one array where all are alike; where some are missing, only the others."""
    if valid is not None:
        sizes = np.where(valid, cells.sizes, 0)
        cells = cells if (cells.sizes == sizes).all() else cells.take(valid)
        shape = cells.shape
        return Ragged(cells.data, starts_of(sizes), shape, None if valid.all() else valid)
    if field.cell is None:
        return cells
    dtype, shape_ = field.cell
    if isinstance(field, Bool):
        return np.asarray(cells.data != 0)
    return np.asarray(cells.data.view(dtype).reshape(len(cells), *shape_))


def placed(error: BatchplantError, indices: I64, path: str, field: str) -> BatchplantError:
    """An error in a row as one in a sample."""
    error.sample = None if error.sample is None else int(indices[error.sample])
    return error.at(path=path, field=field)
