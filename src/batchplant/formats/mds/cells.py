"""The cells of a field to the bytes of its column and back."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import DamagedError, DecodeError, EncodeError
from ...schema import Bytes, Decimal, Field, Float, Image, Int, Json, Tensor, Text
from ...schema.columns import I64, U8, AnyArray, AnyDType, Column, Ragged, dense_of
from ..base.shards.cells import (
    bare_cells,
    check_shapes,
    image_field,
    pillow_cells,
    pillow_field,
    pillow_pixels,
    with_heads,
    without_heads,
    zero_cell,
)
from ..base.shards.reader import Inner, numbers_at, wrong

# -- encodings ----------------------------------------------------------------------------------------
# Columns of MDS: which encoding a field has, and which field an encoding tells.
#
# ===================== ========================================= ======================================
# encoding              bytes                                     kind, unless another is declared
# ===================== ========================================= ======================================
# int, int8 … float64   the number (int is int64)                 Int, Float
# ndarray:D:2,3         the values                                Tensor(D, (2, 3))
# ndarray:D             shape, values                             Tensor(D, (None, …)), as the first has
# ndarray               u8 dtype, shape, values                   the same
# str, str_decimal      UTF-8                                     Text
# str_int               decimal digits                            Int; uint64 or Text as the first have
# str_float             decimal digits                            Float
# json                  JSON text                                 Json
# jpeg, png             the file                                  Image, by what the first cells are
# pil                   u32 width, height, length; mode; pixels   Image, raw
# all others            their own                                 Bytes
# ===================== ========================================= ======================================
#
# A shape is a byte, the number of sizes times four plus 0 to 3 for sizes of 1, 2, 4 or 8 bytes, and the
# sizes.

INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")
# The numbers that stand for dtypes: bits, and 0, 1 or 2 for unsigned, signed and real.
DTYPES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32",
    34: "float32", 64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
TEXTS = ("str", "str_decimal")
IMAGE_ENCODINGS = ("jpeg", "png")
DIGITS = {"str_int": "int64", "str_float": "float64"}
# Python gives up on more digits by itself, and says so at length.
MAX_DIGITS = 400
# Those whose cells we hand on as they are. A pickle would run code: it stays bytes.
OPAQUE = ("bytes", "pkl", "jpeg_array", "jpegarray", "list[jpeg]", "list[png]", "list[pil]")
PLAIN = (*OPAQUE, *TEXTS, *IMAGE_ENCODINGS, "json")
MAX_AXES = 63
# No size of an array that fits into a shard is larger.
MAX_AXIS_SIZE = 1 << 40

_ARRAY = re.compile(r"ndarray(?::(\w+)(?::(\d+(?:,\d+)*))?)?")


@dataclasses.dataclass(frozen=True)
class Encoding:
    """An encoding, taken apart. ``dtype``, ``shape``: of numbers and arrays, where all cells share them."""

    text: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    array: bool = False

    @property
    def size(self) -> int | None:
        """The bytes of every cell; None where they vary."""
        if self.dtype is None or self.shape is None:
            return None
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)

    @property
    def varies(self) -> bool:
        """True if cells are arrays that say their shape."""
        return self.array and self.shape is None

    @property
    def form(self) -> tuple[Any, ...]:
        """Return the common part of two encodings whose cells have the same bytes."""
        if self.text in PLAIN:
            return ("plain",)
        return (self.text,) if self.dtype is None and not self.array else (self.dtype, self.shape)


@functools.lru_cache(1024)
def parse_encoding(text: str) -> Encoding | None:
    """The encoding of that name; None where there is none."""
    if text in INTS + FLOATS or text == "int":
        return Encoding(text, "int64" if text == "int" else text, ())
    if text in PLAIN or text in DIGITS or text == "pil":
        return Encoding(text)
    match = _ARRAY.fullmatch(text)
    if match is None or match[1] not in (None, *DTYPES.values()):
        return None
    shape = None if match[2] is None else tuple(map(int, match[2].split(",")))
    if shape is not None and (0 in shape or len(shape) > MAX_AXES or math.prod(shape) > MAX_AXIS_SIZE):
        return None
    return Encoding(text, match[1], shape, array=True)


def stored_dtype(dtype: AnyDType) -> tuple[str, tuple[int, ...]] | None:
    """Return the encoding of a dtype and its number of values; None if there is none."""
    if dtype.kind == "b":
        return "uint8", ()
    if dtype.kind in "mM":
        return "int64", ()
    if dtype.kind == "c" and dtype.itemsize <= 16:
        return f"float{dtype.itemsize * 4}", (2,)
    return (dtype.name, ()) if dtype.name in DTYPES.values() else None


def encoding_of(field: Field) -> Encoding:
    """Choose the encoding of a field."""
    encoding = parse_encoding(_text_of(field))
    assert encoding is not None
    return encoding


def _text_of(field: Field) -> str:
    dense = dense_of(field)
    numbers = dense is not None or isinstance(field, Tensor)
    stored = stored_dtype(np.dtype(getattr(field, "dtype", "bool"))) if numbers else None
    if stored is not None and isinstance(field, Tensor):
        shape = (*field.shape, *stored[1])
        if len(shape) > MAX_AXES or not shape:
            return "bytes" if shape or dense is None else stored[0]
        if dense is None:
            return f"ndarray:{stored[0]}"
        return "bytes" if 0 in shape else f"ndarray:{stored[0]}:{','.join(map(str, shape))}"
    if stored is not None:
        return "int" if stored[0] == "int64" else stored[0]
    if isinstance(field, Image) and not field.optional:
        # Streaming opens either with whatever can open it.
        return {"raw": "pil", "png": "png"}.get(field.encoding or "", "jpeg")
    if isinstance(field, Decimal):
        return "bytes" if field.optional else "str_decimal"
    return "str" if isinstance(field, Text) else "json" if isinstance(field, Json) else "bytes"


def holds(encoding: Encoding, field: Field) -> bool:
    """True if cells of this encoding can be those of a field."""
    if encoding.text in DIGITS:
        dense = dense_of(field)
        unsigned = encoding.text == "str_int" and dense == (np.dtype("uint64"), ())
        return isinstance(field, Text) or unsigned or dense == (np.dtype(DIGITS[encoding.text]), ())
    usual = encoding_of(field)
    return usual.form == encoding.form or (encoding.text == "ndarray" and usual.varies)


def field_of(encoding: Encoding, cells: Ragged) -> Field:
    """The field that a column seems to be, where only its encoding and its first cells tell."""
    if encoding.array:
        if encoding.shape is not None:
            return Tensor(str(encoding.dtype), encoding.shape)
        return _array_field(encoding, cells)
    if encoding.text == "str_int":
        return _digits_field(cells)
    dtype = encoding.dtype or DIGITS.get(encoding.text)
    if dtype is not None:
        return Float(dtype) if dtype in FLOATS else Int(dtype)
    if encoding.text == "pil":
        return pillow_field(cells)
    if encoding.text in IMAGE_ENCODINGS:
        return image_field(cells, Image(encoding.text))
    return Text() if encoding.text in TEXTS else Json() if encoding.text == "json" else Bytes()


def _digits_field(cells: Ragged) -> Field:
    """Whole numbers of any size, as Python has them; what no integer of NumPy holds stays text."""
    try:
        values = [int(cell[:MAX_DIGITS].tobytes()) for cell in cells if cell is not None]
    # Reading the cell raises the error.
    except ValueError:
        return Int()
    low, high = min(values, default=0), max(values, default=0)
    if low >= -(2**63) and high < 2**63:
        return Int()
    return Int("uint64") if low >= 0 and high < 2**64 else Text()


def _array_field(encoding: Encoding, cells: Ragged) -> Field:
    if not len(cells) or not cells.sizes[0]:
        return Bytes()
    first = cells.data[cells.offsets[0] : cells.offsets[1]]
    dtype = encoding.dtype or DTYPES.get(int(first[0]))
    inside = first[encoding.dtype is None :]
    if dtype is None or not len(inside):
        raise DamagedError("its first cell is no array")
    return Tensor(dtype, (None,) * (int(inside[0]) >> 2))


# -- cells --------------------------------------------------------------------------------------------


def inner(encoding: Encoding, field: Field, data: U8, starts: I64, sizes: I64) -> Inner | None:
    """Locate the pixels of images and the values of arrays with shapes; None: decode them."""
    if encoding.text == "pil":
        return pillow_pixels(data, starts, sizes)
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
        code = next(key for key, dtype in DTYPES.items() if dtype == stored[0])
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
            stated = numbers_at(data, starts[rows] + extra + 1, axes, f"<u{width}")
            shapes[rows] = np.minimum(stated, np.array(MAX_AXIS_SIZE, stated.dtype) if width == 8 else stated)
    itemsize = np.dtype(stored[0]).itemsize
    check_shapes(field, (*field.shape, *stored[1]), shapes, itemsize, sizes - heads)
    return heads, shapes


def decoded(encoding: Encoding, field: Field, cells: Ragged) -> Ragged:
    """The cells of a field of which :func:`inner` knows no place."""
    assert isinstance(field, Tensor | Int | Float)
    if encoding.text in DIGITS:
        return bare_cells(_numbers(field, cells))
    assert isinstance(field, Tensor)
    heads, shapes = _shapes(encoding, field, cells.data, cells.starts, cells.sizes)
    return without_heads(field, cells, heads, shapes[:, : len(field.shape)])


def _numbers(field: Field, cells: Ragged) -> AnyArray:
    dense = dense_of(field)
    assert dense is not None
    numbers = np.zeros(len(cells), dtype=dense[0])
    for row, cell in enumerate(cells):
        assert cell is not None
        try:
            text = cell[:MAX_DIGITS].tobytes().decode()
            numbers[row] = int(text) if dense[0].kind in "iu" else float(text)
        except OverflowError:
            message = (
                f'{text[:40]} does not fit into {dense[0]}; open the column as text: schema={{NAME: "text"}}'
            )
            raise DecodeError(message, sample=row) from None
        except ValueError:
            raise DecodeError(f"{text[:40]!r} is no {dense[0]}", sample=row) from None
    return numbers


def packed(encoding: Encoding, field: Field, column: Column) -> Ragged:
    """The bytes of a field's cells in a column; those that are missing are what stands for nothing."""
    if isinstance(column, Ragged) and column.valid is not None and not column.valid.all():
        column = _filled(encoding, field, column)
    if encoding.text in DIGITS:
        if isinstance(column, Ragged):
            return _checked_digits(encoding, column)
        return Ragged.from_cells([str(number).encode() for number in column.tolist()])
    if not isinstance(column, Ragged):
        return bare_cells(column)
    if encoding.text == "pil":
        return pillow_cells(column)
    return _packed_arrays(encoding, field, column) if encoding.varies else column


def _checked_digits(encoding: Encoding, column: Ragged) -> Ragged:
    number: Any = int if encoding.text == "str_int" else float
    for row, cell in enumerate(column):
        try:
            number(b"" if cell is None else cell[:MAX_DIGITS].tobytes())
        except ValueError:
            raise EncodeError(f"a column of {encoding.text} holds numbers", sample=row) from None
    return column


def _filled(encoding: Encoding, field: Field, column: Ragged) -> Ragged:
    empty = {"json": b"null"}.get(encoding.text, bytes(encoding.size or 0))
    if encoding.varies:
        assert isinstance(field, Tensor)
        empty = zero_cell(field)
    cells = [empty if cell is None else cell for cell in column]
    return Ragged.from_cells(cells, [] if column.shape is None else list(map(tuple, column.shape.tolist())))


def _packed_arrays(encoding: Encoding, field: Field, column: Ragged) -> Ragged:
    assert isinstance(field, Tensor)
    dtype = np.dtype(field.dtype)
    stored = stored_dtype(dtype)
    assert stored is not None
    code = b"" if encoding.dtype else bytes([next(key for key, name in DTYPES.items() if name == stored[0])])
    return with_heads(field, column, lambda shape: code + _head((*shape, *stored[1])))


def _head(shape: tuple[int, ...]) -> bytes:
    width = next(power for power in range(4) if max(shape) < 1 << (8 << power))
    return bytes([len(shape) << 2 | width]) + np.array(shape, f"<u{1 << width}").tobytes()
