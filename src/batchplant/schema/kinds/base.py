"""The base class of kinds, and the plain kinds: numbers, bytes, text, JSON, arrays."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ...errors import OptionError, SchemaError, brief, listed, near, shortened

KINDS: dict[str, type[Field]] = {}
# No cell is larger; sizes in bytes never overflow.
MOST_BYTES = 2**62


def is_text(text: str) -> bool:
    """Return True for valid text; JSON and names of files can hold lone surrogates, which are none."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


@dataclasses.dataclass(frozen=True)
class Field:
    """One named part of every sample. Use a concrete kind below."""

    kind: ClassVar[str] = ""
    # The kind whose values these are, too: a format that knows only that one keeps them as such.
    wide: ClassVar[type[Field] | None] = None
    optional: bool = dataclasses.field(default=False, kw_only=True)

    def __init_subclass__(cls) -> None:
        cls.kind = cls.__name__.lower()
        KINDS[cls.kind] = cls
        # Else each dataclass makes its own, which lists every class and every default.
        cls.__repr__ = Field.__repr__  # type: ignore[method-assign]

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the classes of an Int or of Labels, and of Keypoints; None of any other kind."""
        return None

    @property
    def cell(self) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
        """Dtype and shape of a cell when every cell has the same, else None (ragged)."""
        return None

    def to_json(self) -> dict[str, Any]:
        """A JSON object that :func:`field_from_json` turns back into the same field."""
        data: dict[str, Any] = {"kind": self.kind}
        for part in dataclasses.fields(self):
            value = getattr(self, part.name)
            if part.init and (value != part.default or part.default is dataclasses.MISSING):
                data[part.name] = _as_json(value)
        return data

    def renamed(self, names: Mapping[str, str]) -> Field:
        """The same where fields got other names (old → new): it may name some of them."""
        return self

    def __str__(self) -> str:
        parts = [
            f"{part.name}={value if isinstance(value, Field) else _short_repr(value)}"
            for part in dataclasses.fields(self)
            if part.init and (value := getattr(self, part.name)) != part.default
        ]
        return f"{type(self).__name__}({', '.join(parts)})"

    def __repr__(self) -> str:
        return str(self)


def _short_repr(value: Any) -> str:
    """The repr of a value; texts in it may come from a file and be of any length."""
    if isinstance(value, tuple) and all(isinstance(text, str) for text in value):
        return repr(tuple(map(shortened, value)))
    return repr(shortened(value)) if isinstance(value, str) else repr(value)


def _as_json(value: Any) -> Any:
    if isinstance(value, Field):
        return value.to_json()
    return [_as_json(entry) for entry in value] if isinstance(value, tuple) else value


@dataclasses.dataclass(frozen=True)
class _Number(Field):
    @property
    def cell(self) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
        return None if self.optional else (np.dtype(getattr(self, "dtype", "bool")), ())


def _check_dtype(dtype: Any, allowed: str, kind: str) -> str:
    """The canonical name of a dtype of one of the allowed NumPy kinds."""
    try:
        # A list or a mapping would be a structure of several.
        numpy_dtype = np.dtype("V" if isinstance(dtype, list | tuple | dict) else dtype)
    except (TypeError, ValueError, SyntaxError, DeprecationWarning) as error:
        raise OptionError(f"{kind} cannot have dtype {dtype!r}: {error}") from None
    if numpy_dtype.kind not in allowed:
        raise OptionError(f"{kind} cannot have dtype {numpy_dtype.name}")
    return str(numpy_dtype.name)


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

    def number(self, name: str) -> int:
        """The number of the class of this name."""
        if self.names is None:
            raise SchemaError(f"an Int without names of classes needs a whole number, not {name!r}")
        if self.names.count(name) != 1:
            matches = "several classes" if name in self.names else "no class"
            hint = near(name, self.names)
            raise SchemaError(f"{matches} {name!r}{hint}; the classes are: {listed(self.names)}")
        return self.names.index(name)

    def __str__(self) -> str:
        if self.names is None or len(self.names) <= 4:
            return super().__str__()
        dtype = "" if self.dtype == "int64" else f"dtype={self.dtype!r}, "
        return f"Int({dtype}{len(self.names)} classes: {', '.join(map(brief, self.names[:3]))}, …)"


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
        fixed_sizes = [size for size in shape if size is not None]
        if (
            min(fixed_sizes, default=0) < 0
            or math.prod(fixed_sizes) * np.dtype(self.dtype).itemsize > MOST_BYTES
        ):
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
        """True if a ragged cell is the bare values: only the first size varies, so its length tells it."""
        return None not in self.shape[1:] and 0 not in self.shape[1:]

    def fits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == len(self.shape) and all(
            want in (None, have) for want, have in zip(self.shape, shape, strict=True)
        )
