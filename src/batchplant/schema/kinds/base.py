"""The base class of kinds, and all kinds but those of places and times."""

from __future__ import annotations

import dataclasses
import math
import reprlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

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
    """One named part of every sample. Use a concrete kind below.

    optional: whether values may be missing (None).
    """

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
    """A whole number. ``names`` are class names: the number is an index into them.

    dtype: signed or unsigned integer type of the values. optional: whether values may be missing (None).
    """

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
    """A real number.

    dtype: floating-point type of the values. optional: whether values may be missing (None).
    """

    dtype: str = "float64"

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _check_dtype(self.dtype, "f", "Float"))


@dataclasses.dataclass(frozen=True)
class Bool(_Number):
    """True or false.

    optional: whether values may be missing (None).
    """


@dataclasses.dataclass(frozen=True)
class Bytes(Field):
    """Bytes of any length.

    optional: whether values may be missing (None).
    """


@dataclasses.dataclass(frozen=True)
class Text(Field):
    """Unicode text.

    optional: whether values may be missing (None).
    """


@dataclasses.dataclass(frozen=True)
class Json(Field):
    """Any JSON value.

    optional: whether values may be missing (None).
    """


@dataclasses.dataclass(frozen=True)
class Tensor(Field):
    """An array of numbers. A None in ``shape``: that size varies from sample to sample.

    dtype: type of the elements: numbers, booleans or times. optional: whether values may be missing (None).
    """

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
        """Return whether an array of this dtype and shape fits."""
        return len(shape) == len(self.shape) and all(
            want in (None, have) for want, have in zip(self.shape, shape, strict=True)
        )


@dataclasses.dataclass(frozen=True)
class Sparse(Bytes):
    """A row of a sparse matrix: the numbers of its columns that have a value, and these values.

    A cell is its column numbers, then its values, little-endian. shape: number of columns, ``20000`` or
    ``(20000,)``. dtype: type of the values: numbers or booleans. names: of the columns, such as genes.
    optional: whether values may be missing (None).
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    names: tuple[str, ...] | None = None

    if TYPE_CHECKING:
        # A number of columns is stored as a shape.
        def __init__(
            self,
            shape: int | Iterable[int],
            dtype: Any = "float32",
            names: Iterable[str] | None = None,
            *,
            optional: bool = False,
        ) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _check_dtype(self.dtype, "biuf", "Sparse"))
        shape: Any = (self.shape,) if isinstance(self.shape, int) else tuple(self.shape)
        good = len(shape) == 1 and isinstance(shape[0], int) and not isinstance(shape[0], bool)
        if not good or not 0 <= shape[0] <= 1 << 48 or np.dtype(self.dtype).itemsize > 8:
            raise OptionError(f"a Sparse has the shape (columns,), not {self.shape!r}, and no {self.dtype}")
        object.__setattr__(self, "shape", shape)
        if self.names is not None:
            object.__setattr__(self, "names", tuple(map(str, self.names)))
            if len(self.names) != shape[0] or not all(map(is_text, self.names)):
                raise OptionError(f"{shape[0]} columns have {len(self.names)} names, each a text")

    @property
    def item(self) -> np.dtype[Any]:
        """Layout of a column's number and its value."""
        index = np.int32 if self.shape[0] <= 1 << 31 else np.int64
        return np.dtype([("index", index), ("value", self.dtype)])

    def numbers(self, columns: Iterable[Any]) -> list[int]:
        """Return the numbers of columns, given by number or name."""
        places: dict[str, int] = {}
        numbers = []
        for column in columns:
            if isinstance(column, str):
                places = places or {name: number for number, name in enumerate(self.names or ())}
                if column not in places:
                    raise OptionError(f"there is no column {brief(column)}{near(column, places)}")
                column = places[column]
            if (
                isinstance(column, bool)
                or not hasattr(column, "__index__")
                or not 0 <= column < self.shape[0]
            ):
                raise OptionError(f"columns are names, or numbers below {self.shape[0]}, not {column!r}")
            numbers.append(int(column))
        return numbers

    def __str__(self) -> str:
        names = f", {len(self.names)} names" if self.names else ""
        return f"Sparse({self.shape[0]}, {self.dtype!r}{names}{', optional=True' if self.optional else ''})"


# -- encoded files -------------------------------------------------------------------------------------------


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
    """An image. ``encoding`` None: mixed; ``mode`` is what it decodes to (RGB, L, RGBA, …; None: varies).

    ``mask``: its values are classes, not colours. They are never blended with each other and never stored
    in a way that changes them. A mask has one channel, mode L unless another is named; in mode P its values
    are the indices of a palette. A mask whose classes are colours has the mode None.

    optional: whether values may be missing (None).
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
    """Encoded sound. ``rate`` (samples a second), ``channels``: what all of them share; None: they differ.

    encoding: that of all files, as ``wav`` or ``flac``; None: mixed. optional: whether values may be missing
    (None).
    """

    rate: int | None = None
    channels: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_sizes("rate", "channels")


@dataclasses.dataclass(frozen=True)
class Video(_Media):
    """Encoded moving images. ``fps``, ``width``, ``height``: what all of them share; None: they differ.

    encoding: container of all files, as ``mp4`` or ``avi``; None: mixed. optional: whether values may be
    missing (None).
    """

    fps: float | None = None
    width: int | None = None
    height: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_sizes("width", "height")
        number = isinstance(self.fps, int | float) and not isinstance(self.fps, bool)
        if self.fps is not None and not (number and 0 < self.fps < math.inf):
            raise OptionError(f"fps is a number above 0, not {self.fps!r}")


# -- exact numbers, identifiers, and what holds other values -------------------------------------------------

# What Arrow's widest decimal has.
MOST_DIGITS = 76


@dataclasses.dataclass(frozen=True)
class Decimal(Text):
    """A number of up to ``precision`` digits, ``scale`` of them behind the point; a cell is its digits.

    optional: whether values may be missing (None).
    """

    precision: int
    scale: int = 0

    def __post_init__(self) -> None:
        for name, minimum in (("precision", 1), ("scale", -MOST_DIGITS)):
            value = getattr(self, name)
            is_integer = isinstance(value, int) and not isinstance(value, bool)
            if not is_integer or not minimum <= value <= MOST_DIGITS:
                raise OptionError(f"{name} is a whole number from {minimum} to {MOST_DIGITS}, not {value!r}")


@dataclasses.dataclass(frozen=True)
class Uuid(Text):
    """A UUID; its cells are the 36 letters of its text.

    optional: whether values may be missing (None).
    """


@dataclasses.dataclass(frozen=True)
class List(Json):
    """A list of values of one kind. Lists of numbers, none of which is missing, are a Tensor.

    of: kind of the values. optional: whether values may be missing (None).
    """

    of: Field

    def __post_init__(self) -> None:
        object.__setattr__(self, "of", _inner(self.of, "List"))


@dataclasses.dataclass(frozen=True)
class Struct(Json):
    """Named values, each of a kind of its own: ``Struct({"x": Float(), "tags": List(Text())})``.

    fields: kinds by name, a mapping or pairs. optional: whether values may be missing (None).
    """

    fields: tuple[tuple[str, Field], ...]

    if TYPE_CHECKING:
        # Whatever is given, the pairs are what is kept.
        def __init__(
            self, fields: Mapping[str, Field] | Iterable[tuple[str, Field]], *, optional: bool = False
        ) -> None: ...

    def __post_init__(self) -> None:
        fields: Any = self.fields
        object.__setattr__(self, "fields", tuple(checked_fields(fields).items()))
        for _, field in self.fields:
            _inner(field, "Struct")

    def to_json(self) -> dict[str, Any]:
        return {
            **super().to_json(),
            "fields": [{"name": name, **field.to_json()} for name, field in self.fields],
        }

    def __str__(self) -> str:
        inner = ", ".join(f"{name!r}: {field}" for name, field in self.fields)
        return f"Struct({{{inner}}}{', optional=True' if self.optional else ''})"


def _inner(field: Field, kind: str) -> Field:
    if not isinstance(field, Field):
        raise OptionError(f"a {kind} holds field kinds, not {field!r}")
    check_optional(field)
    dtype = np.dtype(getattr(field, "dtype", "bool"))
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise OptionError(f"a {kind} cannot hold {dtype} values")
    return field


def check_optional(field: Field) -> None:
    """Raise where ``optional`` is neither True nor False: it may come from a file."""
    if not isinstance(field.optional, bool):
        raise OptionError(f"optional is True or False, not {reprlib.repr(field.optional)}")


def checked_fields(fields: Mapping[str, Field] | Iterable[tuple[str, Field]]) -> dict[str, Field]:
    """Named fields in order; a SchemaError where a name or a kind is none."""
    pairs = list(fields.items() if isinstance(fields, Mapping) else fields)
    by_name = dict(pairs)
    if len(by_name) < len(pairs):
        raise SchemaError("two fields have one name")
    for name, field in by_name.items():
        if not isinstance(name, str) or not name or "\0" in name or not is_text(name):
            raise SchemaError(f"a field's name must be text, not {name!r}")
        if isinstance(field, type) and issubclass(field, Field):
            raise SchemaError(f"write {field.__name__}() with parentheses", field=name)
        if not isinstance(field, Field):
            raise SchemaError(f"a field kind is needed, not {field!r}", field=name)
        check_optional(field)
    return by_name
