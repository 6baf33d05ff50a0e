"""The cells of a field to the bytes of its value and back."""

from __future__ import annotations

import dataclasses
import functools
import json
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from ...codecs.npy import check_bytes
from ...errors import DecodeError, exceptions_as
from ...schema import (
    Audio,
    Bool,
    Bytes,
    Decimal,
    Field,
    Float,
    Image,
    Int,
    Json,
    List,
    Struct,
    Tensor,
    Text,
    Uuid,
    Video,
)
from ...schema.columns import I64, U8, AnyDType, Column, Ragged, dense_of
from ...storage import NOTE_ERRORS, limits, parse
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
# Values of LitData: which encoding a field has, and which field an encoding tells.
#
# ====================== ======================================== ======================================
# encoding               bytes                                    kind, unless another is declared
# ====================== ======================================== ======================================
# int, float, bool       int64, float64, a byte of 0 or 1         Int, Float, Bool
# str, text              UTF-8                                    Text
# bytes                  as they are                              Bytes
# json                   JSON text, or packed (see below)          Json
# jpeg, image:EXT        the file                                 Image, by what the first cells are
# pil                    u32 width, height, length; mode; pixels  Image, raw
# no_header_numpy:D      the values of an array with one axis     Tensor(D, (None,))
# no_header_tensor:D     the same                                 the same
# numpy                  u32 dtype, axes, sizes; values           Tensor(…, (None, …)), as the first has
# tensor                 the same, the u32 big-endian             the same
# video:EXT, audio:EXT   the file                                 Video, Audio
# pickle                 a pickle                                 none; Bytes, if the caller says so
# all others             their own                                Bytes
# ====================== ======================================== ======================================
#
# Arrays of NumPy and tensors of torch have other numbers for their dtypes.

NUMPY = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128", "bool",
)  # fmt: skip
# Torch has two names for many.
TORCH = (
    "float32", "float32", "float64", "float64", "complex64", "complex64", "complex128", "complex128",
    "float16", "float16", None, "uint8", "int8", "int16", "int16", "int32", "int32", "int64", "int64", "bool",
    "uint16",
)  # fmt: skip
NUMBERS = {"int": "int64", "float": "float64", "bool": "uint8"}
IMAGE_ENCODINGS = ("jpeg", "image")
MAX_AXES = 63


@dataclasses.dataclass(frozen=True)
class Encoding:
    """An encoding, taken apart. ``form``: what two share whose cells have the same bytes.

    ``dtype``: of numbers, and of arrays where all cells share it.
    """

    text: str
    form: str
    dtype: str | None = None

    @property
    def codes(self) -> tuple[str | None, ...]:
        """The dtypes by their numbers."""
        return TORCH if "tensor" in self.text else NUMPY

    @property
    def order(self) -> str:
        """Size of the numbers before the values of an array."""
        return ">" if self.text == "tensor" else "<"


@functools.lru_cache(1024)
def parse_encoding(text: str) -> Encoding:
    """The encoding of that name. LitData's users make some of their own: what is not known is bytes."""
    name, _, code = text.partition(":")
    if text in NUMBERS:
        return Encoding(text, text, NUMBERS[text])
    if text in ("numpy", "tensor"):
        return Encoding(text, "array")
    if name in ("no_header_numpy", "no_header_tensor"):
        codes = NUMPY if name == "no_header_numpy" else TORCH
        has_code = code.isdecimal() and len(code) < 4 and int(code) < len(codes)
        dtype = codes[int(code)] if has_code else None
        return Encoding(text, "plain") if dtype is None else Encoding(text, "flat", dtype)
    return Encoding(text, text if text in ("pil", "json", "pickle") else "plain")


def stored_dtype(dtype: AnyDType) -> str | None:
    """Return LitData's encoding of a dtype; None if it has none."""
    name = "int64" if dtype.kind in "mM" else dtype.name
    return name if name in NUMPY else None


def encoding_of(field: Field) -> Encoding:
    """Choose the encoding of a field."""
    return parse_encoding(_text_of(field))


def _text_of(field: Field) -> str:
    if isinstance(field, Tensor):
        stored = stored_dtype(np.dtype(field.dtype))
        if stored is None or len(field.shape) > MAX_AXES:
            return "bytes"
        return f"no_header_numpy:{NUMPY.index(stored)}" if len(field.shape) == 1 else "numpy"
    dense = dense_of(field)
    if dense is not None:
        # LitData's int is an int64: of larger numbers we make an array with one value.
        large = dense[0] == np.uint64
        return "bool" if isinstance(field, Bool) else "float" if dense[0].kind == "f" else (
            f"no_header_numpy:{NUMPY.index('uint64')}" if large else "int"
        )  # fmt: skip
    if isinstance(field, Image) and not field.optional:
        # LitData opens whatever is in it by its content.
        return "pil" if field.encoding == "raw" else "jpeg"
    if isinstance(field, Json | List | Struct):
        return "json"
    return "str" if isinstance(field, Text | Uuid | Decimal) else "bytes"


def holds(encoding: Encoding, field: Field) -> bool:
    """True if cells of this encoding can be those of a field."""
    if encoding.form == "pickle":
        return type(field) is Bytes
    usual = encoding_of(field)
    return (usual.form, usual.dtype) == (encoding.form, encoding.dtype)


def field_of(encoding: Encoding, cells: Ragged) -> Field:
    """The field that a value seems to be, where only its encoding and its first cells tell."""
    name = encoding.text.partition(":")[0]
    if encoding.form in NUMBERS:
        return {"int": Int(), "float": Float(), "bool": Bool()}[encoding.form]
    if encoding.form == "flat":
        return Tensor(str(encoding.dtype), (None,))
    if encoding.form == "array":
        return _array_field(encoding, cells)
    if encoding.form == "pil":
        return pillow_field(cells)
    if name in IMAGE_ENCODINGS:
        return image_field(cells, Image())
    fields: dict[str, Field] = {
        "str": Text(),
        "text": Text(),
        "json": Json(),
        "video": Video(),
        "audio": Audio(),
    }
    return fields.get(name, Bytes())


def _array_field(encoding: Encoding, cells: Ragged) -> Field:
    head = cells.data[: 8 if len(cells) and cells.sizes[0] >= 8 else 0].view(encoding.order + "u4").tolist()
    if not head:
        return Bytes()
    code, axes = head
    dtype = encoding.codes[code] if code < len(encoding.codes) else None
    return Bytes() if dtype is None or axes > MAX_AXES else Tensor(dtype, (None,) * axes)


def is_ambiguous(encoding: Encoding) -> bool:
    """True if the first cells have to tell the field."""
    return encoding.form in ("array", "pil") or encoding.text.partition(":")[0] in IMAGE_ENCODINGS


# -- nested -------------------------------------------------------------------------------------------
# Lists and dicts as LitData packs them: ``json`` cells that are no JSON text, made such text.
#
# Little-endian. A value is a byte that says its type, and then: u32 length and JSON text (0); u32 count and
# as many texts (1), int64 (2), float64 (3) or bytes of 0 or 1 (4); u32 count and as many keys, each a text,
# with values (5); u32 rows, u32 keys, the keys, and for each row a tagged value for each key (6); a text (7),
# an int64 (8), a float64 (9), a byte of 0 or 1 (10), nothing (11). A text is u32 length and UTF-8. In rows
# the tags are 16 (nothing), 17 (text), 18 (int64), 19 (float64), 20 (bool). JSON text begins with a byte
# above 32.

# A byte up to this is a tag; JSON text begins with another.
TAGS = 0x20
# In memory, a value of Python takes up to this.
OBJECT = 64

_U32 = struct.Struct("<I")
_IN_ROWS = {16: 11, 17: 7, 18: 8, 19: 9, 20: 10}


def text_of(data: bytes) -> bytes:
    """The JSON text of a packed value."""
    reader = _Packed(data)
    with exceptions_as(DecodeError, "not a list or dict as LitData packs them", *NOTE_ERRORS, struct.error):
        value = reader.value()
        if reader.at != len(data):
            raise ValueError(f"{len(data) - reader.at} bytes are left over")
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class _Packed:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        result = self.data[self.at : self.at + size]
        if len(result) != size:
            raise ValueError(f"{size} bytes are needed at byte {self.at}")
        self.at += size
        return result

    def count(self, width: int) -> int:
        """A number of parts that take at least so many bytes each."""
        count: int = _U32.unpack(self.take(4))[0]
        if count * width > len(self.data) - self.at:
            raise ValueError(
                f"{count} parts at byte {self.at}, and {len(self.data) - self.at} bytes are left"
            )
        # One byte can become an object of Python.
        limits.check("a list", OBJECT * count, len(self.data))
        return count

    def text(self) -> str:
        return self.take(self.count(1)).decode()

    def value(self) -> Any:
        return self.tagged(self.take(1)[0])

    def tagged(self, tag: int) -> Any:
        match tag:
            case 0:
                return parse(self.take(self.count(1)), finite=False)
            case 1:
                return [self.text() for _ in range(self.count(4))]
            case 2 | 3:
                return np.frombuffer(self.take(8 * self.count(8)), "<i8" if tag == 2 else "<f8").tolist()
            case 4:
                return [byte != 0 for byte in self.take(self.count(1))]
            case 5:
                return {self.text(): self.value() for _ in range(self.count(5))}
            case 6:
                return self.rows()
            case 7:
                return self.text()
            case 8 | 9:
                return struct.unpack("<q" if tag == 8 else "<d", self.take(8))[0]
            case 10:
                return self.take(1) != b"\0"
            case 11:
                return None
        raise ValueError(f"there is no type {tag}, at byte {self.at}")

    def rows(self) -> list[dict[str, Any]]:
        count, names = _U32.unpack(self.take(4))[0], self.count(4)
        keys = [self.text() for _ in range(names)]
        if not keys or count * names > len(self.data) - self.at:
            raise ValueError(f"{count} rows of {names} values, and {len(self.data) - self.at} bytes are left")
        # Every row has all keys again in its text.
        limits.check("a list of rows", count * (OBJECT * names + sum(map(len, keys))), len(self.data))
        return [{key: self.tagged(_IN_ROWS.get(self.take(1)[0], -1)) for key in keys} for _ in range(count)]


# -- cells --------------------------------------------------------------------------------------------


def needs_look(encoding: Encoding) -> bool:
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
        return pillow_pixels(data, starts, sizes)
    if encoding.form == "json":
        wrong(sizes == 0, "it is empty, and no JSON")
        return Inner(starts, sizes) if (data[starts] > TAGS).all() else None
    if not isinstance(field, Tensor):
        return Inner(starts, sizes)
    heads, _ = _shapes(encoding, field, data, starts, sizes)
    # An array of one shape is its values, also where it has none.
    return Inner(starts + heads, sizes - heads) if field.flat or field.cell is not None else None


def decoded(encoding: Encoding, field: Field, cells: Ragged) -> Ragged:
    """The cells of a field of which :func:`inner` knows no place."""
    if encoding.form in NUMBERS:
        return _narrowed(encoding, field, cells)
    if encoding.form == "json":
        return Ragged.from_cells([_document(cell, row) for row, cell in enumerate(cells)])
    assert isinstance(field, Tensor)
    head, shapes = _shapes(encoding, field, cells.data, cells.starts, cells.sizes)
    return without_heads(field, cells, np.full(len(cells), head), shapes)


def _is_same(encoding: Encoding, field: Field) -> bool:
    dense = dense_of(field)
    assert dense is not None
    return dense[0].itemsize == np.dtype(str(encoding.dtype)).itemsize


def _check_numbers(encoding: Encoding, sizes: I64) -> None:
    size = np.dtype(str(encoding.dtype)).itemsize
    wrong(sizes != size, f"it has not the {size} bytes of {encoding.text}")


def _narrowed(encoding: Encoding, field: Field, cells: Ragged) -> Ragged:
    dense = dense_of(field)
    assert dense is not None
    _check_numbers(encoding, cells.sizes)
    wide = cells.data.view(str(encoding.dtype))
    with np.errstate(over="ignore"):
        narrow = wide.astype(dense[0])
    if dense[0].kind in "iu":
        wrong(narrow != wide, f"it is no {dense[0]}")
    return bare_cells(narrow)


def _document(cell: U8 | None, row: int) -> bytes:
    assert cell is not None
    data = cell.tobytes()
    try:
        return data if data[0] > TAGS else text_of(data)
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
    codes, axis_counts = numbers_at(data, starts, 2, encoding.order + "u4").T
    accepted = [code for code, name in enumerate(encoding.codes) if name == stored]
    wrong(~np.isin(codes, accepted), f"its values are not {stored}")
    wrong(axis_counts != axes, f"it has another number of axes than {axes}")
    wrong(sizes < head, "it is too short for its shape")
    shapes = numbers_at(data, starts + 8, axes, encoding.order + "u4").astype(np.int64)
    check_shapes(field, field.shape, shapes, np.dtype(stored).itemsize, sizes - head)
    return head, shapes


def packed(encoding: Encoding, field: Field, column: Column) -> Ragged:
    """The bytes of a field's cells as values; those that are missing are what stands for nothing."""
    if isinstance(column, Ragged) and column.valid is not None and not column.valid.all():
        column = _filled(encoding, field, column)
    if encoding.form in NUMBERS:
        return _widened(encoding, field, column)
    if encoding.form == "array" and isinstance(field, Tensor):
        stored = stored_dtype(np.dtype(field.dtype))
        # Of torch's two numbers for a dtype, LitData writes the second.
        code = max(code for code, name in enumerate(encoding.codes) if name == stored)
        return with_heads(
            field, column, lambda shape: np.array([code, len(shape), *shape], encoding.order + "u4").tobytes()
        )
    if not isinstance(column, Ragged):
        return bare_cells(column)
    if encoding.form == "json":
        return _as_text(column)
    return pillow_cells(column) if encoding.form == "pil" else column


def _as_text(column: Ragged) -> Ragged:
    """JSON may begin with a space, which LitData would take for a tag."""
    starts = column.starts[column.sizes > 0]
    if (column.data[starts] > TAGS).all():
        return column
    return Ragged.from_cells([b"" if cell is None else cell.tobytes().strip() for cell in column])


def _filled(encoding: Encoding, field: Field, column: Ragged) -> Ragged:
    empty = b"null" if encoding.form == "json" else b""
    dense = dense_of(field)
    if isinstance(field, Tensor):
        empty = zero_cell(field)
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
    return bare_cells(values)
