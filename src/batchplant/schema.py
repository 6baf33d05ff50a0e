"""What a dataset holds: field kinds and the schema that names them.

Every kind is a frozen dataclass; two schemas are equal when their fields are, in any order of keys but
the same order of names. A kind also fixes how its cells look inside :class:`~batchplant.columns.Columns`:

=================================== ==============================================================
kind                                cells
=================================== ==============================================================
Int, Float, Bool                    an array of the dtype, one number per sample
Tensor, all of its shape known      an array of shape (samples, *shape)
Tensor, only the first size varies  ragged, the values' little-endian bytes
Tensor, other sizes vary            ragged, each cell a whole NPY file
Bytes, Text, Json                   ragged, the bytes, UTF-8 text, JSON text
Image, Audio, Video                 ragged, the encoded file; an image may also be raw pixels
any of them with optional=True      ragged, so that a cell can be missing
=================================== ==============================================================
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from .errors import FieldNameError, OptionError, SchemaError, no_such

__all__ = [
    "EVERY_KIND", "Audio", "Bool", "Bytes", "Field", "Float", "Image", "Int", "Json", "Schema", "Tensor",
    "Text", "Video",
]  # fmt: skip

KINDS: dict[str, type[Field]] = {}
# No cell is larger; sizes in bytes never overflow.
MOST_BYTES = 2**62


def is_text(text: str) -> bool:
    """Whether it can be written: JSON and names of files can hold halves of letters, which are no text."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


@dataclasses.dataclass(frozen=True)
class Field:
    """One named part of every sample. Use a concrete kind below."""

    kind: ClassVar[str] = ""
    optional: bool = dataclasses.field(default=False, kw_only=True)

    def __init_subclass__(cls) -> None:
        cls.kind = cls.__name__.lower()
        KINDS[cls.kind] = cls

    @property
    def cell(self) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
        """Dtype and shape of a cell when every cell has the same, else None (ragged)."""
        return None

    def to_json(self) -> dict[str, Any]:
        """A JSON object that :func:`field_from_json` turns back into the same field."""
        found: dict[str, Any] = {"kind": self.kind}
        for part in dataclasses.fields(self):
            value = getattr(self, part.name)
            if value != part.default or part.default is dataclasses.MISSING:
                found[part.name] = list(value) if isinstance(value, tuple) else value
        return found

    def __str__(self) -> str:
        parts = [
            f"{part.name}={getattr(self, part.name)!r}"
            for part in dataclasses.fields(self)
            if getattr(self, part.name) != part.default
        ]
        return f"{type(self).__name__}({', '.join(parts)})"


@dataclasses.dataclass(frozen=True)
class _Number(Field):
    @property
    def cell(self) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
        return None if self.optional else (np.dtype(getattr(self, "dtype", "bool")), ())


def _check_dtype(dtype: Any, allowed: str, kind: str) -> str:
    """The canonical name of a dtype of one of the allowed NumPy kinds."""
    try:
        found = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError) as error:
        raise OptionError(f"{kind} cannot have dtype {dtype!r}: {error}") from None
    if found.kind not in allowed:
        raise OptionError(f"{kind} cannot have dtype {found.name}")
    return str(found.name)


@dataclasses.dataclass(frozen=True)
class Int(_Number):
    """A whole number. ``names`` are class names: the number is an index into them."""

    dtype: str = "int64"
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _check_dtype(self.dtype, "iu", "Int"))
        if self.names is not None:
            object.__setattr__(self, "names", tuple(str(name) for name in self.names))
            if not all(map(is_text, self.names)):
                raise OptionError("a class has a name that is no text")

    def __str__(self) -> str:
        if self.names is None or len(self.names) <= 4:
            return super().__str__()
        dtype = "" if self.dtype == "int64" else f"dtype={self.dtype!r}, "
        return f"Int({dtype}{len(self.names)} classes: {', '.join(self.names[:3])}, …)"


@dataclasses.dataclass(frozen=True)
class Float(_Number):
    """A real number."""

    dtype: str = "float64"

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _check_dtype(self.dtype, "f", "Float"))


@dataclasses.dataclass(frozen=True)
class Bool(_Number):
    """True or false."""


@dataclasses.dataclass(frozen=True)
class Bytes(Field):
    """Bytes of any length."""


@dataclasses.dataclass(frozen=True)
class Text(Field):
    """Unicode text."""


@dataclasses.dataclass(frozen=True)
class Json(Field):
    """Any JSON value."""


@dataclasses.dataclass(frozen=True)
class Tensor(Field):
    """An array of numbers. A None in ``shape``: that size varies from sample to sample."""

    dtype: str
    shape: tuple[int | None, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _check_dtype(self.dtype, "biufcmM", "Tensor"))
        try:
            shape = tuple(None if size is None else int(size) for size in self.shape)
        except (TypeError, ValueError, OverflowError):
            raise OptionError(f"a Tensor cannot have the shape {self.shape!r}") from None
        known = [size for size in shape if size is not None]
        if min(known, default=0) < 0 or math.prod(known) * np.dtype(self.dtype).itemsize > MOST_BYTES:
            raise OptionError(f"a Tensor cannot have the shape {shape}")
        object.__setattr__(self, "shape", shape)

    @property
    def cell(self) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
        shape = tuple(size for size in self.shape if size is not None)
        if self.optional or len(shape) != len(self.shape):
            return None
        return np.dtype(self.dtype), shape

    @property
    def flat(self) -> bool:
        """Whether a ragged cell is the bare values: only the first size varies, so its length tells it."""
        return None not in self.shape[1:] and 0 not in self.shape[1:]

    def fits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == len(self.shape) and all(
            want in (None, have) for want, have in zip(self.shape, shape, strict=True)
        )


@dataclasses.dataclass(frozen=True)
class _Media(Field):
    encoding: str | None = None

    def __post_init__(self) -> None:
        for part in (self.encoding, getattr(self, "mode", None)):
            if not isinstance(part, str | None):
                raise OptionError(f"encoding and mode are names, not {part!r}")
        if self.encoding == "jpg":
            object.__setattr__(self, "encoding", "jpeg")

    def _check_sizes(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise OptionError(f"{name} is a number from 1 on, not {value!r}")


@dataclasses.dataclass(frozen=True)
class Image(_Media):
    """A picture. ``encoding`` None: mixed; ``mode`` is what it decodes to (RGB, L, RGBA, …; None: varies).

    ``mask``: its values are classes, not colours. They are never blended with each other and never stored
    in a way that changes them. A mask has one channel, mode L unless another is named; in mode P its values
    are the indices of a palette. A mask whose classes are colours has the mode None.
    """

    mode: str | None = "RGB"
    mask: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.mask, bool):
            raise OptionError(f"mask is True or False, not {self.mask!r}")
        if self.mask and self.mode == "RGB":
            object.__setattr__(self, "mode", "L")


@dataclasses.dataclass(frozen=True)
class Audio(_Media):
    """Encoded sound. ``rate`` (samples a second), ``channels``: what all of them share; None: they differ."""

    rate: int | None = None
    channels: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_sizes("rate", "channels")


@dataclasses.dataclass(frozen=True)
class Video(_Media):
    """Encoded moving pictures. ``fps``, ``width``, ``height``: what all of them share; None: they differ."""

    fps: float | None = None
    width: int | None = None
    height: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_sizes("width", "height")
        number = isinstance(self.fps, int | float) and not isinstance(self.fps, bool)
        if self.fps is not None and not (number and 0 < self.fps < math.inf):
            raise OptionError(f"fps is a number above 0, not {self.fps!r}")


for _helper in ("_number", "_media"):
    del KINDS[_helper]

# What a format that leaves nothing out says it holds.
EVERY_KIND: tuple[type[Field], ...] = tuple(KINDS.values())


def field_from_json(found: Any) -> Field:
    """The field that ``Field.to_json`` described; anything else is a SchemaError."""
    if not isinstance(found, dict) or str(found.get("kind")) not in KINDS:
        raise SchemaError(f"not a field description: {str(found)[:80]}")
    arguments = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in found.items()
        if name != "kind"
    }
    try:
        made: Any = KINDS[str(found["kind"])]
        field: Field = made(**arguments)
        return field
    except (TypeError, ValueError, OverflowError) as error:
        raise SchemaError(f"not a field description: {error}") from None


def as_field(given: Field | str) -> Field:
    """A field, or the one that a kind's bare name means: ``"bytes"``."""
    return given if isinstance(given, Field) else field_from_json({"kind": given})


class Schema(Mapping[str, Field]):
    """The named fields of a dataset, in order: ``Schema({"image": Image(), "label": Int()})``."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, Field] | Iterable[tuple[str, Field]] = (), **more: Field) -> None:
        self._fields: dict[str, Field] = dict(fields, **more)
        for name, field in self._fields.items():
            if not isinstance(name, str) or not name or "\0" in name or not is_text(name):
                raise SchemaError(f"a field's name must be text, not {name!r}")
            if isinstance(field, type) and issubclass(field, Field):
                raise SchemaError(f"write {field.__name__}() with parentheses", field=name)
            if not isinstance(field, Field):
                raise SchemaError(f"a field kind is needed, not {field!r}", field=name)

    def __getitem__(self, name: str) -> Field:
        try:
            return self._fields[name]
        except KeyError:
            raise self._unknown(name) from None

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schema):
            return NotImplemented
        return list(self._fields.items()) == list(other._fields.items())

    def __hash__(self) -> int:
        return hash(tuple(self._fields.items()))

    def __repr__(self) -> str:
        return "Schema(" + ", ".join(f"{name}={field}" for name, field in self.items()) + ")"

    def _unknown(self, name: object) -> FieldNameError:
        return FieldNameError(no_such("field", name, self._fields))

    def select(self, names: Iterable[str]) -> Schema:
        """Only these fields, in this order."""
        if isinstance(names, str):
            names = [names]
        return Schema([(name, self[name]) for name in names])

    def rename(self, names: Mapping[str, str]) -> Schema:
        """Old name → new name; fields that are not mentioned keep theirs."""
        for old in names:
            if old not in self._fields:
                raise self._unknown(old)
        renamed = [names.get(name, name) for name in self]
        if len(set(renamed)) < len(renamed):
            raise SchemaError(f"renaming gives two fields one name: {', '.join(renamed)}")
        return Schema(zip(renamed, self.values(), strict=True))

    def to_json(self) -> list[dict[str, Any]]:
        return [{"name": name, **field.to_json()} for name, field in self.items()]

    @classmethod
    def from_json(cls, found: Any) -> Schema:
        if not isinstance(found, list) or not all(isinstance(one, dict) and "name" in one for one in found):
            raise SchemaError("not a schema: a list of field descriptions is needed")
        if len({str(one["name"]) for one in found}) < len(found):
            raise SchemaError("not a schema: two fields have one name")
        return cls(
            (str(one["name"]), field_from_json({k: v for k, v in one.items() if k != "name"}))
            for one in found
        )
