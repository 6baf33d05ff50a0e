"""A condition tied to the fields of a dataset: its values become what the cells are compared with.

The nodes are fewer than those of the tree. A value stands as the cells have it: the number of a class, the
count of a time, the bytes of a text, a float with the digits of the field's dtype. What compares a whole
number with something that no such number equals, or that lies out of its range, is decided here.
"""

from __future__ import annotations

import dataclasses
import decimal
import math
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import BatchplantError, FieldNameError, OptionError, SchemaError, listed, near
from ...schema import Bool, Bytes, Field, Float, Int, Json, Schema, Tensor, Text
from . import tree
from .like import Pattern, after, pattern_of

# How cells are compared: as numbers, as whole numbers of which one is no time, as bytes, as decimal numbers.
NUMBER, TIME, BYTES, DECIMAL = "number", "time", "bytes", "decimal"


class Bound:
    """A condition on fields that are there."""

    __slots__ = ()


@dataclasses.dataclass(frozen=True)
class Test(Bound):
    """A field against a value: ==, <, <=, >, >=."""

    field: str
    how: str
    op: str
    value: Any
    # Cells that equal nothing and stand nowhere in the order, though they are there.
    may_be_nan: bool = False


@dataclasses.dataclass(frozen=True)
class Member(Bound):
    """A field among values."""

    field: str
    how: str
    values: tuple[Any, ...]
    may_be_nan: bool = False


@dataclasses.dataclass(frozen=True)
class Match(Bound):
    """A field of text or bytes like a pattern."""

    field: str
    how: str
    pattern: Pattern


@dataclasses.dataclass(frozen=True)
class Always(Bound):
    """True of every cell that is there, or false."""

    field: str
    how: str
    yes: bool


@dataclasses.dataclass(frozen=True)
class Null(Bound):
    field: str
    how: str


@dataclasses.dataclass(frozen=True)
class Pair(Bound):
    """Two fields against each other."""

    left: str
    op: str
    right: str
    how: str


@dataclasses.dataclass(frozen=True)
class Unknown(Bound):
    """A condition of which nothing can be said here."""


@dataclasses.dataclass(frozen=True)
class All(Bound):
    parts: tuple[Bound, ...]


@dataclasses.dataclass(frozen=True)
class Some(Bound):
    parts: tuple[Bound, ...]


@dataclasses.dataclass(frozen=True)
class Not(Bound):
    part: Bound


def bind(condition: tree.Condition, schema: Schema) -> Bound:
    """The condition on these fields; an error names the field, or the value that does not fit it."""

    def leaf(one: tree.Condition) -> Bound:
        try:
            if isinstance(one, tree.CompareFields):
                return _pair(one, schema)
            assert isinstance(one, tree.Compare | tree.In | tree.IsNull | tree.Like)
            return _leaf(one, schema[one.field])
        except BatchplantError as error:
            raise _placed(error, one) from None

    return _bound(condition, leaf)


def loosely(condition: tree.Condition, schema: Schema) -> Bound:
    """The condition as far as these fields tell; the rest is unknown."""

    def leaf(one: tree.Condition) -> Bound:
        try:
            return bind(one, schema)
        except BatchplantError:
            return Unknown()

    return _bound(condition, leaf)


def _bound(condition: tree.Condition, leaf: Callable[[tree.Condition], Bound]) -> Bound:
    """The same combination of what ``leaf`` makes of its parts."""
    if isinstance(condition, tree.And | tree.Or):
        parts = tuple(_bound(part, leaf) for part in condition.parts)
        return All(parts) if isinstance(condition, tree.And) else Some(parts)
    if isinstance(condition, tree.Not):
        return Not(_bound(condition.part, leaf))
    return leaf(condition)


def _placed(error: BatchplantError, condition: Any) -> BatchplantError:
    """The error, with the column of the text that it is about."""
    if condition.at is None:
        return error
    said = f"column {condition.at + 1} of the filter, {str(condition)[:80]!r}: {error.message}"
    return (FieldNameError if isinstance(error, FieldNameError) else OptionError)(said)


def fields_of(bound: Bound) -> tuple[str, ...]:
    """The fields that it looks at, each once."""
    if isinstance(bound, All | Some):
        return tuple(dict.fromkeys(name for part in bound.parts for name in fields_of(part)))
    if isinstance(bound, Not):
        return fields_of(bound.part)
    if isinstance(bound, Pair):
        return tuple(dict.fromkeys((bound.left, bound.right)))
    assert isinstance(bound, Test | Member | Match | Always | Null)
    return (bound.field,)


def how_of(field: Field) -> str | None:
    """How the cells of a field are compared; None: they are not."""
    if isinstance(field, Int | Float | Bool):
        return NUMBER
    if isinstance(field, Text) and hasattr(field, "precision"):
        return DECIMAL
    if isinstance(field, Text | Bytes):
        return BYTES
    if isinstance(field, Tensor) and not field.shape:
        kind = np.dtype(field.dtype).kind
        return TIME if kind in "mM" else NUMBER if kind in "biuf" else None
    return None


def _how(field: Field, name: str) -> str:
    found = how_of(field)
    if found is None:
        what = "JSON" if isinstance(field, Json) else type(field).__name__
        raise OptionError(f"{name!r} is {what}, which a filter can only ask for with `is null`")
    return found


def _leaf(condition: tree.Compare | tree.In | tree.IsNull | tree.Like, field: Field) -> Bound:
    name = condition.field
    if isinstance(condition, tree.IsNull):
        return Null(name, how_of(field) or BYTES)
    how = _how(field, name)
    if isinstance(condition, tree.Like):
        return _like(name, how, field, condition.pattern)
    nan = isinstance(field, Float) or (isinstance(field, Tensor) and np.dtype(field.dtype).kind == "f")
    if isinstance(condition, tree.In):
        tests = [_test(name, how, field, "==", value, nan) for value in condition.values]
        values = tuple(dict.fromkeys(value for one in tests for value in _values(one)))
        return Member(name, how, values, nan) if values else Always(name, how, False)
    if condition.op == "!=":
        return Not(_test(name, how, field, "==", condition.value, nan))
    return _test(name, how, field, condition.op, condition.value, nan)


def _like(name: str, how: str, field: Field, text: str) -> Bound:
    _encoded(text)
    pattern = pattern_of(text, letters=not isinstance(field, Bytes))
    if isinstance(field, Int) and field.names is not None:
        numbers = [number for number, one in enumerate(field.names) if pattern.matches(one.encode())]
        return Member(name, how, tuple(numbers)) if numbers else Always(name, how, False)
    if how != BYTES:
        raise OptionError(f"{name!r} is {field}: only text, bytes and classes are compared with like")
    if pattern.whole:
        return Test(name, how, "==", pattern.prefix)
    # What a prefix says, statistics know to skip by.
    end = after(pattern.prefix)
    parts: list[Bound] = [Test(name, how, ">=", pattern.prefix)] if pattern.prefix else []
    parts += [Test(name, how, "<", end)] if end is not None else []
    parts += [] if pattern.only else [Match(name, how, pattern)]
    return All(tuple(parts)) if parts else Always(name, how, True)


def _values(one: Bound) -> tuple[Any, ...]:
    return one.values if isinstance(one, Member) else (one.value,) if isinstance(one, Test) else ()


def _test(name: str, how: str, field: Field, op: str, value: tree.Literal, nan: bool) -> Bound:
    dtype = np.dtype(getattr(field, "dtype", "bool"))
    if isinstance(field, Int) and field.names is not None and isinstance(value, str):
        return _named(name, field, op, value)
    if how == NUMBER and hasattr(field, "parse") and isinstance(value, str):
        return _whole(name, how, dtype, op, _parsed(field, value))
    if how == TIME:
        return _time(name, dtype, op, value)
    if how == NUMBER and dtype.kind == "b":
        if not isinstance(value, bool):
            raise OptionError(f"{name!r} is true or false, not {tree.literal_text(value)}")
        return Test(name, how, op, value)
    if how == NUMBER:
        if isinstance(value, bool | str | bytes):
            raise OptionError(f"{name!r} holds numbers, and {tree.literal_text(value)} is none")
        return (
            Test(name, how, op, _rounded(dtype, value), nan)
            if dtype.kind == "f"
            else (_whole(name, how, dtype, op, value))
        )
    if how == DECIMAL:
        return _decimal(name, op, value)
    return Test(name, how, op, _bytes(name, field, value))


def _named(name: str, field: Int, op: str, value: str) -> Bound:
    """A class by its name; several may share one."""
    assert field.names is not None
    numbers = tuple(number for number, one in enumerate(field.names) if one == value)
    if not numbers:
        meant = near(value, field.names)
        raise OptionError(f"{name!r} has no class {value!r}{meant}; the classes are: {listed(field.names)}")
    if op != "==":
        raise OptionError(f"classes have no order: compare {name!r} with == or in, or with a number")
    return Test(name, NUMBER, op, numbers[0]) if len(numbers) == 1 else Member(name, NUMBER, numbers)


def _whole(name: str, how: str, dtype: np.dtype[Any], op: str, value: int | float | decimal.Decimal) -> Bound:
    """Whole numbers of a dtype against any number, exactly."""
    if isinstance(value, float) and math.isnan(value):
        return Always(name, how, False)
    least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    # Before it becomes an int, for 1e999999999 would be a long one.
    if not least <= value <= most:
        return Always(name, how, op != "==" and (value > most) == (op[0] == "<"))
    whole = math.floor(value)
    if whole != value:
        if op == "==":
            return Always(name, how, False)
        return Test(name, how, "<=", whole) if op[0] == "<" else Test(name, how, ">=", whole + 1)
    return Test(name, how, op, whole)


def _rounded(dtype: np.dtype[Any], value: int | float | decimal.Decimal) -> float:
    """The number that a cell would hold."""
    try:
        with np.errstate(over="ignore"):
            return float(np.array(float(value)).astype(dtype))
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _parsed(field: Any, value: str) -> int:
    try:
        return int(field.parse(value))
    except SchemaError as error:
        raise OptionError(error.message) from None


def _time(name: str, dtype: np.dtype[Any], op: str, value: tree.Literal) -> Bound:
    """NumPy's times, by their count; NaT is a missing cell."""
    if isinstance(value, int) and not isinstance(value, bool):
        return _whole(name, TIME, np.dtype(np.int64), op, value)
    if dtype.kind == "m" or not isinstance(value, str):
        raise OptionError(f"{name!r} is a time: compare it with '2024-01-31T12:00:00', not {value!r}")
    try:
        found = np.datetime64(value.removesuffix("Z"))
        exact = found.astype(dtype)
    except ValueError:
        raise OptionError(f"{value!r} is no time; write it as '2024-01-31T12:00:00'") from None
    if np.isnat(exact) or exact != found:
        raise OptionError(f"{value!r} is finer than {name!r}, which is {dtype.name}, or out of its range")
    return Test(name, TIME, op, int(exact.astype(np.int64)))


def _decimal(name: str, op: str, value: tree.Literal) -> Bound:
    """Decimal numbers against the digits that are written; a float has those of its shortest text."""
    if isinstance(value, float) and not math.isfinite(value):
        return Always(name, DECIMAL, op != "==" and (value > 0) == (op[0] == "<") and value == value)
    try:
        if isinstance(value, bool | bytes):
            raise ValueError
        found = decimal.Decimal(repr(value) if isinstance(value, float) else value)
        if found.is_finite():
            return Test(name, DECIMAL, op, found)
    except (ValueError, decimal.InvalidOperation):
        pass
    raise OptionError(f"{name!r} holds decimal numbers, and {tree.literal_text(value)} is none")


def _bytes(name: str, field: Field, value: tree.Literal) -> bytes:
    if isinstance(value, bytes) and isinstance(field, Bytes):
        return value
    if not isinstance(value, str):
        what = "text" if isinstance(field, Text) else "bytes"
        raise OptionError(
            f"{name!r} is {what}: compare it with one in quotes, not {tree.literal_text(value)}"
        )
    if getattr(field, "kind", "") == "uuid":
        try:
            value = str(uuid.UUID(value))
        except ValueError:
            raise OptionError(f"{name!r} holds UUIDs, and {value!r} is none") from None
    return _encoded(value)


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise OptionError(f"{text!r} holds half a letter, which is no text") from None


def _pair(condition: tree.CompareFields, schema: Schema) -> Bound:
    left, right = schema[condition.left], schema[condition.right]
    how, other = _how(left, condition.left), _how(right, condition.right)
    if {how, other} == {NUMBER, DECIMAL}:
        how = other = DECIMAL
    if how != other or how == BYTES or not _comparable(left, right):
        raise OptionError(
            f"{condition.left!r} is {left} and {condition.right!r} is {right}: only numbers, "
            "and times of one unit, are compared with each other"
        )
    if condition.op == "!=":
        return Not(Pair(condition.left, "==", condition.right, how))
    return Pair(condition.left, condition.op, condition.right, how)


def _comparable(left: Field, right: Field) -> bool:
    """Whether two kinds of numbers mean the same by 1."""
    if hasattr(left, "parse") or hasattr(right, "parse"):
        return dataclasses.replace(left, optional=False) == dataclasses.replace(right, optional=False)
    if isinstance(left, Tensor) and isinstance(right, Tensor) and np.dtype(left.dtype).kind in "mM":
        return left.dtype == right.dtype
    return True
