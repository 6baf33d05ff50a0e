"""Numbers with all of their digits, identifiers, and what holds other values: lists and structs."""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import OptionError, SchemaError
from .base import Field, Json, Text, is_text

# What Arrow's widest decimal has.
MOST_DIGITS = 76


@dataclasses.dataclass(frozen=True)
class Decimal(Text):
    """A number of up to ``precision`` digits, ``scale`` of them behind the point; a cell is its digits."""

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
    """A UUID; its cells are the 36 letters of its text."""


@dataclasses.dataclass(frozen=True)
class List(Json):
    """A list of values of one kind. Lists of numbers, none of which is missing, are a Tensor."""

    of: Field

    def __post_init__(self) -> None:
        object.__setattr__(self, "of", _inner(self.of, "List"))


@dataclasses.dataclass(frozen=True)
class Struct(Json):
    """Named values, each of a kind of its own: ``Struct({"x": Float(), "tags": List(Text())})``."""

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
    found = dict(pairs)
    if len(found) < len(pairs):
        raise SchemaError("two fields have one name")
    for name, field in found.items():
        if not isinstance(name, str) or not name or "\0" in name or not is_text(name):
            raise SchemaError(f"a field's name must be text, not {name!r}")
        if isinstance(field, type) and issubclass(field, Field):
            raise SchemaError(f"write {field.__name__}() with parentheses", field=name)
        if not isinstance(field, Field):
            raise SchemaError(f"a field kind is needed, not {field!r}", field=name)
        check_optional(field)
    return found
