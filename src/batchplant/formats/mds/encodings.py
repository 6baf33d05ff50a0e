"""Columns of MDS: which encoding a field has, and which field an encoding tells.

===================== ========================================= ======================================
encoding              bytes                                     kind, where nobody says another
===================== ========================================= ======================================
int, int8 … float64   the number (int is int64)                 Int, Float
ndarray:D:2,3         the values                                Tensor(D, (2, 3))
ndarray:D             shape, values                             Tensor(D, (None, …)), as the first has
ndarray               u8 dtype, shape, values                   the same
str, str_decimal      UTF-8                                     Text
str_int               decimal digits                            Int; uint64 or Text as the first have
str_float             decimal digits                            Float
json                  JSON text                                 Json
jpeg, png             the file                                  Image, by what the first cells are
pil                   u32 width, height, length; mode; pixels   Image, raw
all others            their own                                 Bytes
===================== ========================================= ======================================

A shape is a byte, the number of sizes times four plus 0 to 3 for sizes of 1, 2, 4 or 8 bytes, and the sizes.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from typing import Any

import numpy as np

from ...codecs.infer import infer_image
from ...errors import DamagedError
from ...schema import Bytes, Decimal, Field, Float, Image, Int, Json, Tensor, Text
from ...schema.columns import Ragged, dense_of
from ..base.shards import pil

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
MOST_DIGITS = 400
# Those whose cells we hand on as they are. A pickle would run code: it stays bytes.
OPAQUE = ("bytes", "pkl", "jpeg_array", "jpegarray", "list[jpeg]", "list[png]", "list[pil]")
PLAIN = (*OPAQUE, *TEXTS, *IMAGE_ENCODINGS, "json")
MOST_AXES = 63
# No size of an array that fits into a shard is larger.
MOST_SIZE = 1 << 40

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
def parse(text: str) -> Encoding | None:
    """The encoding of that name; None where there is none."""
    if text in INTS + FLOATS or text == "int":
        return Encoding(text, "int64" if text == "int" else text, ())
    if text in PLAIN or text in DIGITS or text == "pil":
        return Encoding(text)
    found = _ARRAY.fullmatch(text)
    if found is None or found[1] not in (None, *DTYPES.values()):
        return None
    shape = None if found[2] is None else tuple(map(int, found[2].split(",")))
    if shape is not None and (0 in shape or len(shape) > MOST_AXES or math.prod(shape) > MOST_SIZE):
        return None
    return Encoding(text, found[1], shape, array=True)


def stored_dtype(dtype: np.dtype[Any]) -> tuple[str, tuple[int, ...]] | None:
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
    encoding = parse(_text_of(field))
    assert encoding is not None
    return encoding


def _text_of(field: Field) -> str:
    dense = dense_of(field)
    numbers = dense is not None or isinstance(field, Tensor)
    stored = stored_dtype(np.dtype(getattr(field, "dtype", "bool"))) if numbers else None
    if stored is not None and isinstance(field, Tensor):
        shape = (*field.shape, *stored[1])
        if len(shape) > MOST_AXES or not shape:
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
        return pil.field_of(cells)
    if encoding.text in IMAGE_ENCODINGS:
        image = infer_image(cells) if len(cells) else None
        return Image(encoding.text) if image is None and not len(cells) else image or Bytes()
    return Text() if encoding.text in TEXTS else Json() if encoding.text == "json" else Bytes()


def _digits_field(cells: Ragged) -> Field:
    """Whole numbers of any size, as Python has them; what no integer of NumPy holds stays text."""
    try:
        values = [int(cell[:MOST_DIGITS].tobytes()) for cell in cells if cell is not None]
    # Whoever reads it says what is wrong with it.
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
