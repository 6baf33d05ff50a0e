"""Bound conditions: a condition tied to the fields of a dataset, with its values encoded as the cells are.

There are fewer nodes than in the tree. A value is stored as in cells: the number of a class, the count of a
time, the bytes of a text, a float with the digits of the field's dtype. Comparisons of a whole number with a
value that no such number equals, or that lies out of its range, are decided here.
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
from ...schema.columns import AnyDType
from . import tree
from .like import Pattern, after, pattern_of

# Ways to compare cells: as numbers, as counts of time (one of which is NaT), as bytes, as decimal numbers.
NUMBER, TIME, BYTES, DECIMAL = "number", "time", "bytes", "decimal"


class Bound:
    """A condition on fields of a dataset."""

    __slots__ = ()


@dataclasses.dataclass(frozen=True)
class Test(Bound):
    """A field against a value: ==, <, <=, >, >=."""

    field: str
    comparison: str
    op: str
    value: Any
    # True if cells may be NaN, which equals nothing and has no place in the order.
    may_be_nan: bool = False


@dataclasses.dataclass(frozen=True)
class Member(Bound):
    """A field among values."""

    field: str
    comparison: str
    values: tuple[Any, ...]
    may_be_nan: bool = False


@dataclasses.dataclass(frozen=True)
class Match(Bound):
    """A field of text or bytes like a pattern."""

    field: str
    comparison: str
    pattern: Pattern


@dataclasses.dataclass(frozen=True)
class Always(Bound):
    """True of every cell that is not missing, or false of every one."""

    field: str
    comparison: str
    yes: bool


@dataclasses.dataclass(frozen=True)
class Null(Bound):
    field: str
    comparison: str


@dataclasses.dataclass(frozen=True)
class Pair(Bound):
    """Two fields against each other."""

    left: str
    op: str
    right: str
    comparison: str


@dataclasses.dataclass(frozen=True)
class Unknown(Bound):
    """A condition that cannot be evaluated on these fields."""


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
    """Bind a condition to these fields; an error names the field, or the value that does not fit it."""

    def leaf(node: tree.Condition) -> Bound:
        assert isinstance(node, tree.Leaf)
        try:
            if isinstance(node, tree.CompareFields):
                return _pair(node, schema)
            return _leaf(node, schema[node.field])
        except BatchplantError as error:
            raise _with_column(error, node) from None

    return _bound(condition, leaf)


def loosely(condition: tree.Condition, schema: Schema) -> Bound:
    """Bind a condition to those of its fields that are in the schema; the other parts are Unknown."""

    def leaf(node: tree.Condition) -> Bound:
        try:
            return bind(node, schema)
        except BatchplantError:
            return Unknown()

    return _bound(condition, leaf)


def _bound(condition: tree.Condition, leaf: Callable[[tree.Condition], Bound]) -> Bound:
    """Bind the leaves of a condition with ``leaf``."""
    if isinstance(condition, tree.And | tree.Or):
        parts = tuple(_bound(part, leaf) for part in condition.parts)
        return All(parts) if isinstance(condition, tree.And) else Some(parts)
    if isinstance(condition, tree.Not):
        return Not(_bound(condition.part, leaf))
    return leaf(condition)


def _with_column(error: BatchplantError, condition: tree.Leaf) -> BatchplantError:
    """Return the error with the column of the filter's text."""
    if condition.offset is None:
        return error
    message = f"column {condition.offset + 1} of the filter, {str(condition)[:80]!r}: {error.message}"
    return (FieldNameError if isinstance(error, FieldNameError) else OptionError)(message)


def fields_of(bound: Bound) -> tuple[str, ...]:
    """Return the fields of a condition, each once."""
    if isinstance(bound, All | Some):
        return tuple(dict.fromkeys(name for part in bound.parts for name in fields_of(part)))
    if isinstance(bound, Not):
        return fields_of(bound.part)
    if isinstance(bound, Pair):
        return tuple(dict.fromkeys((bound.left, bound.right)))
    assert isinstance(bound, Test | Member | Match | Always | Null)
    return (bound.field,)


def comparison_of(field: Field) -> str | None:
    """Return the way the cells of a field are compared; None if they cannot be."""
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


def _comparison(field: Field, name: str) -> str:
    comparison = comparison_of(field)
    if comparison is None:
        kind = "JSON" if isinstance(field, Json) else type(field).__name__
        raise OptionError(f"{name!r} is {kind}, which a filter can only ask for with `is null`")
    return comparison


def _leaf(condition: tree.Compare | tree.In | tree.IsNull | tree.Like, field: Field) -> Bound:
    name = condition.field
    if isinstance(condition, tree.IsNull):
        return Null(name, comparison_of(field) or BYTES)
    comparison = _comparison(field, name)
    if isinstance(condition, tree.Like):
        return _like(name, comparison, field, condition.pattern)
    nan = isinstance(field, Float) or (isinstance(field, Tensor) and np.dtype(field.dtype).kind == "f")
    if isinstance(condition, tree.In):
        tests = [_test(name, comparison, field, "==", value, nan) for value in condition.values]
        values = tuple(dict.fromkeys(value for test in tests for value in _values(test)))
        return Member(name, comparison, values, nan) if values else Always(name, comparison, False)
    if condition.op == "!=":
        return Not(_test(name, comparison, field, "==", condition.value, nan))
    return _test(name, comparison, field, condition.op, condition.value, nan)


def _like(name: str, comparison: str, field: Field, text: str) -> Bound:
    _encoded(text)
    pattern = pattern_of(text, letters=not isinstance(field, Bytes))
    if isinstance(field, Int) and field.names is not None:
        numbers = [
            number for number, class_name in enumerate(field.names) if pattern.matches(class_name.encode())
        ]
        return Member(name, comparison, tuple(numbers)) if numbers else Always(name, comparison, False)
    if comparison != BYTES:
        raise OptionError(f"{name!r} is {field}: only text, bytes and classes are compared with like")
    if pattern.is_plain:
        return Test(name, comparison, "==", pattern.prefix)
    # Statistics can prune by a prefix.
    end = after(pattern.prefix)
    parts: list[Bound] = [Test(name, comparison, ">=", pattern.prefix)] if pattern.prefix else []
    parts += [Test(name, comparison, "<", end)] if end is not None else []
    parts += [] if pattern.is_prefix else [Match(name, comparison, pattern)]
    return All(tuple(parts)) if parts else Always(name, comparison, True)


def _values(test: Bound) -> tuple[Any, ...]:
    return test.values if isinstance(test, Member) else (test.value,) if isinstance(test, Test) else ()


def _test(name: str, comparison: str, field: Field, op: str, value: tree.Literal, nan: bool) -> Bound:
    dtype = np.dtype(getattr(field, "dtype", "bool"))
    if isinstance(field, Int) and field.names is not None and isinstance(value, str):
        return _named(name, field, op, value)
    if comparison == NUMBER and hasattr(field, "parse") and isinstance(value, str):
        return _whole(name, comparison, dtype, op, _parsed(field, value))
    if comparison == TIME:
        return _time(name, dtype, op, value)
    if comparison == NUMBER and dtype.kind == "b":
        if not isinstance(value, bool):
            raise OptionError(f"{name!r} is true or false, not {tree.literal_text(value)}")
        return Test(name, comparison, op, value)
    if comparison == NUMBER:
        if isinstance(value, bool | str | bytes):
            raise OptionError(f"{name!r} holds numbers, and {tree.literal_text(value)} is none")
        return (
            Test(name, comparison, op, _rounded(dtype, value), nan)
            if dtype.kind == "f"
            else (_whole(name, comparison, dtype, op, value))
        )
    if comparison == DECIMAL:
        return _decimal(name, op, value)
    return Test(name, comparison, op, _bytes(name, field, value))


def _named(name: str, field: Int, op: str, value: str) -> Bound:
    """Compare with a class by its name, which several classes may share."""
    assert field.names is not None
    numbers = tuple(number for number, class_name in enumerate(field.names) if class_name == value)
    if not numbers:
        meant = near(value, field.names)
        raise OptionError(f"{name!r} has no class {value!r}{meant}; the classes are: {listed(field.names)}")
    if op != "==":
        raise OptionError(f"classes have no order: compare {name!r} with == or in, or with a number")
    return Test(name, NUMBER, op, numbers[0]) if len(numbers) == 1 else Member(name, NUMBER, numbers)


def _whole(
    name: str, comparison: str, dtype: AnyDType, op: str, value: int | float | decimal.Decimal
) -> Bound:
    """Compare whole numbers of a dtype with any number, exactly."""
    if isinstance(value, float) and math.isnan(value):
        return Always(name, comparison, False)
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    # Check before converting: int(1e999999999) would be huge.
    if not low <= value <= high:
        return Always(name, comparison, op != "==" and (value > high) == (op[0] == "<"))
    number = math.floor(value)
    if number != value:
        if op == "==":
            return Always(name, comparison, False)
        return (
            Test(name, comparison, "<=", number) if op[0] == "<" else Test(name, comparison, ">=", number + 1)
        )
    return Test(name, comparison, op, number)


def _rounded(dtype: AnyDType, value: int | float | decimal.Decimal) -> float:
    """Round a number as a cell does."""
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


def _time(name: str, dtype: AnyDType, op: str, value: tree.Literal) -> Bound:
    """Compare NumPy's times by their count; NaT is a missing cell."""
    if isinstance(value, int) and not isinstance(value, bool):
        return _whole(name, TIME, np.dtype(np.int64), op, value)
    if dtype.kind == "m" or not isinstance(value, str):
        raise OptionError(f"{name!r} is a time: compare it with '2024-01-31T12:00:00', not {value!r}")
    try:
        time = np.datetime64(value.removesuffix("Z"))
        exact = time.astype(dtype)
    except ValueError:
        raise OptionError(f"{value!r} is no time; write it as '2024-01-31T12:00:00'") from None
    if np.isnat(exact) or exact != time:
        raise OptionError(f"{value!r} is finer than {name!r}, which is {dtype.name}, or out of its range")
    return Test(name, TIME, op, int(exact.astype(np.int64)))


def _decimal(name: str, op: str, value: tree.Literal) -> Bound:
    """Compare decimal numbers with the digits of a literal; a float has those of its shortest text."""
    if isinstance(value, float) and not math.isfinite(value):
        return Always(name, DECIMAL, op != "==" and (value > 0) == (op[0] == "<") and value == value)
    try:
        if isinstance(value, bool | bytes):
            raise ValueError
        number = decimal.Decimal(repr(value) if isinstance(value, float) else value)
        if number.is_finite():
            return Test(name, DECIMAL, op, number)
    except (ValueError, decimal.InvalidOperation):
        pass
    raise OptionError(f"{name!r} holds decimal numbers, and {tree.literal_text(value)} is none")


def _bytes(name: str, field: Field, value: tree.Literal) -> bytes:
    if isinstance(value, bytes) and isinstance(field, Bytes):
        return value
    if not isinstance(value, str):
        kind = "text" if isinstance(field, Text) else "bytes"
        raise OptionError(
            f"{name!r} is {kind}: compare it with one in quotes, not {tree.literal_text(value)}"
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
    comparison, right_comparison = _comparison(left, condition.left), _comparison(right, condition.right)
    if {comparison, right_comparison} == {NUMBER, DECIMAL}:
        comparison = right_comparison = DECIMAL
    if comparison != right_comparison or comparison == BYTES or not _comparable(left, right):
        raise OptionError(
            f"{condition.left!r} is {left} and {condition.right!r} is {right}: only numbers, "
            "and times of one unit, are compared with each other"
        )
    if condition.op == "!=":
        return Not(Pair(condition.left, "==", condition.right, comparison))
    return Pair(condition.left, condition.op, condition.right, comparison)


def _comparable(left: Field, right: Field) -> bool:
    """Return True if two kinds of numbers have the same unit."""
    if hasattr(left, "parse") or hasattr(right, "parse"):
        return dataclasses.replace(left, optional=False) == dataclasses.replace(right, optional=False)
    if isinstance(left, Tensor) and isinstance(right, Tensor) and np.dtype(left.dtype).kind in "mM":
        return left.dtype == right.dtype
    return True
