"""Values of LitData: which encoding a field has, and which field an encoding tells.

====================== ======================================== ======================================
encoding               bytes                                    kind, where nobody says another
====================== ======================================== ======================================
int, float, bool       int64, float64, a byte of 0 or 1         Int, Float, Bool
str, text              UTF-8                                    Text
bytes                  as they are                              Bytes
json                   JSON text, or as in ``nested.py``        Json
jpeg, image:EXT        the file                                 Image, by what the first cells are
pil                    u32 width, height, length; mode; pixels  Image, raw
no_header_numpy:D      the values of an array with one axis     Tensor(D, (None,))
no_header_tensor:D     the same                                 the same
numpy                  u32 dtype, axes, sizes; values           Tensor(…, (None, …)), as the first has
tensor                 the same, the u32 big-endian             the same
video:EXT, audio:EXT   the file                                 Video, Audio
pickle                 a pickle                                 none; Bytes, if the caller says so
all others             their own                                Bytes
====================== ======================================== ======================================

Arrays of NumPy and tensors of torch have other numbers for their dtypes.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from ...codecs.infer import infer_image
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
from ...schema.columns import Ragged, dense_of
from ..base.shards import pil

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
MOST_AXES = 63


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
def parse(text: str) -> Encoding:
    """The encoding of that name. LitData's users make some of their own: what is not known is bytes."""
    name, _, rest = text.partition(":")
    if text in NUMBERS:
        return Encoding(text, text, NUMBERS[text])
    if text in ("numpy", "tensor"):
        return Encoding(text, "array")
    if name in ("no_header_numpy", "no_header_tensor"):
        codes = NUMPY if name == "no_header_numpy" else TORCH
        known = rest.isdecimal() and len(rest) < 4 and int(rest) < len(codes)
        dtype = codes[int(rest)] if known else None
        return Encoding(text, "plain") if dtype is None else Encoding(text, "flat", dtype)
    return Encoding(text, text if text in ("pil", "json", "pickle") else "plain")


def stored_dtype(dtype: np.dtype[Any]) -> str | None:
    """Return LitData's encoding of a dtype; None if it has none."""
    name = "int64" if dtype.kind in "mM" else dtype.name
    return name if name in NUMPY else None


def encoding_of(field: Field) -> Encoding:
    """Choose the encoding of a field."""
    return parse(_text_of(field))


def _text_of(field: Field) -> str:
    if isinstance(field, Tensor):
        stored = stored_dtype(np.dtype(field.dtype))
        if stored is None or len(field.shape) > MOST_AXES:
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
        return pil.field_of(cells)
    if name in IMAGE_ENCODINGS:
        image = infer_image(cells) if len(cells) else None
        return Image() if image is None and not len(cells) else image or Bytes()
    known: dict[str, Field] = {
        "str": Text(),
        "text": Text(),
        "json": Json(),
        "video": Video(),
        "audio": Audio(),
    }
    return known.get(name, Bytes())


def _array_field(encoding: Encoding, cells: Ragged) -> Field:
    head = cells.data[: 8 if len(cells) and cells.sizes[0] >= 8 else 0].view(encoding.order + "u4").tolist()
    if not head:
        return Bytes()
    code, axes = head
    dtype = encoding.codes[code] if code < len(encoding.codes) else None
    return Bytes() if dtype is None or axes > MOST_AXES else Tensor(dtype, (None,) * axes)


def vague(encoding: Encoding) -> bool:
    """True if the first cells have to tell the field."""
    return encoding.form in ("array", "pil") or encoding.text.partition(":")[0] in IMAGE_ENCODINGS
