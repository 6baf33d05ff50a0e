"""Evaluating conditions on columns, or on bounds of their cells, which tell whether a row can match.

A missing cell makes a comparison neither true nor false.

A bound condition is tied to the fields of a dataset, with its values encoded as the cells are: the number of
a class, the count of a time, the bytes of a text, a float with the digits of the field's dtype. There are
fewer nodes than in the tree. Comparisons of a whole number with a value that no such number equals, or that
lies out of its range, are decided when it is bound.
"""

from __future__ import annotations

import dataclasses
import decimal
import math
import operator
import re
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ...errors import BatchplantError, FieldNameError, OptionError, SchemaError, listed, located, near
from ...schema import Bool, Bytes, Field, Float, Int, Json, Schema, Tensor, Text
from ...schema.columns import AnyArray, AnyDType, Column, Columns, Flags, Masked, Ragged, dense_of
from . import tree

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
        return _decimal_test(name, op, value)
    return Test(name, comparison, op, _value_bytes(name, field, value))


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


def _decimal_test(name: str, op: str, value: tree.Literal) -> Bound:
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


def _value_bytes(name: str, field: Field, value: tree.Literal) -> bytes:
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


Compare = Callable[[Any, Any], Any]
OPS: dict[str, Compare] = {
    "==": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
# Bytes of cells that are compared at a time.
BATCH_BYTES = 64 << 20


def matching(bound: Bound, schema: Schema, columns: Columns) -> Flags:
    """Return flags of the rows that the condition is true of."""
    return _Rows(schema, columns).where(bound, False)


class _Rows:
    def __init__(self, schema: Schema, columns: Columns) -> None:
        self._schema, self._columns, self._rows = schema, columns, columns.rows
        # A field may occur in a condition several times.
        self._values: dict[str, AnyArray] = {}

    def where(self, node: Bound, negated: bool) -> Flags:
        """Return flags of the rows that a condition is true of, or (``negated``) false of."""
        if isinstance(node, Not):
            return self.where(node.part, not negated)
        if isinstance(node, All | Some):
            join = np.logical_and if isinstance(node, All) != negated else np.logical_or
            flags = self.where(node.parts[0], negated)
            for part in node.parts[1:]:
                # All rows are decided.
                if flags.all() if join is np.logical_or else not flags.any():
                    break
                flags = join(flags, self.where(part, negated))
            return flags
        if isinstance(node, Pair):
            left, right = (self._numbers(name, self._comparison(name)) for name in (node.left, node.right))
            flags = _exact(OPS[node.op], left, right)
            return self._without_missing(flags, negated, (node.left, node.right), node.comparison)
        assert isinstance(node, Test | Member | Match | Always | Null)
        if isinstance(node, Null):
            valid = self._valid(node.field, node.comparison)
            empty = np.zeros(self._rows, np.bool_) if valid is None else ~valid
            return ~empty if negated else empty
        with located(field=node.field):
            return self._without_missing(self._compared(node), negated, (node.field,), node.comparison)

    def _compared(self, node: Test | Member | Match | Always) -> Flags:
        if isinstance(node, Always):
            return np.full(self._rows, node.yes)
        if isinstance(node, Match):
            cells = self._columns[node.field]
            return np.array(
                [cell is not None and node.pattern.matches(cell.tobytes()) for cell in cells], dtype=np.bool_
            )
        if node.comparison == BYTES:
            column = self._columns.ragged(node.field)
            return _bytes_in(column, node.values) if isinstance(node, Member) else _bytes(column, node)
        values = self._numbers(node.field, node.comparison)
        if isinstance(node, Member):
            return np.asarray(np.isin(values, np.array(node.values, values.dtype)), dtype=np.bool_)
        if node.comparison == DECIMAL:
            return _decimals(OPS[node.op], values, node.value)
        return np.asarray(OPS[node.op](values, values.dtype.type(node.value)), dtype=np.bool_)

    def _without_missing(self, flags: Flags, negated: bool, names: tuple[str, ...], comparison: str) -> Flags:
        """Clear the flags of rows in which a cell is missing."""
        flags = ~flags if negated else flags
        for name in names:
            valid = self._valid(name, comparison)
            flags = flags if valid is None else flags & valid
        return flags

    def _valid(self, name: str, comparison: str) -> Flags | None:
        column = self._columns[name]
        valid = column.valid if isinstance(column, Ragged) else None
        if comparison != TIME:
            return valid
        times = ~np.isnat(_dense(self._schema, name, column))
        return np.asarray(times if valid is None else valid & times, dtype=np.bool_)

    def _comparison(self, name: str) -> str:
        comparison = comparison_of(self._schema[name])
        assert comparison is not None
        return comparison

    def _numbers(self, name: str, comparison: str) -> AnyArray:
        if name not in self._values:
            column = self._columns[name]
            if comparison == DECIMAL:
                values = np.array([_decimal(cell) for cell in column], dtype=object)
            else:
                values = _dense(self._schema, name, column)
            self._values[name] = values.view(np.int64) if comparison == TIME else values
        return self._values[name]


def _dense(schema: Schema, name: str, column: Column) -> AnyArray:
    if not isinstance(column, Ragged):
        return column
    dense = dense_of(schema[name])
    assert dense is not None
    return (column if isinstance(column, Masked) else Masked(column, *dense)).values


def _decimal(cell: Any) -> decimal.Decimal:
    try:
        number = decimal.Decimal(0 if cell is None else cell.tobytes().decode())
    except (decimal.InvalidOperation, UnicodeDecodeError, ValueError):
        return decimal.Decimal("NaN")
    # Comparing a signalling NaN would raise.
    return decimal.Decimal("NaN") if number.is_nan() else number


def _decimals(compare: Compare, left: AnyArray, right: Any) -> Flags:
    """Compare decimal numbers by their exact values, as Python does; NaN has no place in the order."""
    with decimal.localcontext() as context:
        context.traps[decimal.InvalidOperation] = False
        return np.asarray(compare(left, right), dtype=np.bool_)


def _exact(compare: Compare, left: AnyArray, right: AnyArray) -> Flags:
    """Compare two columns of numbers; NumPy would compare int64 with uint64 as floats."""
    kinds = {left.dtype.kind, right.dtype.kind}
    if "O" in kinds:
        return _decimals(compare, left.astype(object), right.astype(object))
    if kinds == {"i", "u"} and 8 in (left.dtype.itemsize, right.dtype.itemsize):
        below = (left < 0) | (right < 0)
        unsigned = compare(left.astype(np.uint64), right.astype(np.uint64))
        signs = compare(np.sign(left).astype(np.int8), np.sign(right).astype(np.int8))
        return np.asarray(np.where(below, signs, unsigned), dtype=np.bool_)
    return np.asarray(compare(left, right), dtype=np.bool_)


def _bytes(column: Ragged, test: Test) -> Flags:
    """Compare cells with one value, byte by byte up to the first difference."""
    value: bytes = test.value
    starts, sizes = column.starts, column.sizes
    if test.op == "==":
        equal = np.zeros(len(column), np.bool_)
        rows = np.flatnonzero(sizes == len(value))
        step = max(1, BATCH_BYTES // (8 * max(1, len(value))))
        for first in range(0, len(rows), step):
            part = rows[first : first + step]
            equal[part] = _same(column, part, value)
        return equal
    # -1 where the cell is less than the value, 1 where it is greater.
    order = np.sign(sizes - len(value)).astype(np.int8)
    undecided = np.arange(len(column))
    for offset, byte in enumerate(value):
        undecided = undecided[sizes[undecided] > offset]
        if not len(undecided):
            break
        cell_bytes = column.data[starts[undecided] + offset]
        order[undecided[cell_bytes < byte]] = -1
        order[undecided[cell_bytes > byte]] = 1
        undecided = undecided[cell_bytes == byte]
    return np.asarray(OPS[test.op](order, 0), dtype=np.bool_)


def _same(column: Ragged, rows: AnyArray, value: bytes) -> Flags:
    """Return flags of the cells that equal the value; all are as long as it."""
    expected = np.frombuffer(value, np.uint8)
    starts = column.starts[rows]
    if len(rows) > 1 and len(value) and (np.diff(starts) == len(value)).all():
        block = column.data[starts[0] : starts[0] + len(rows) * len(value)].reshape(len(rows), -1)
    else:
        block = column.data[starts[:, None] + np.arange(len(value))]
    return np.asarray((block == expected).all(axis=1), dtype=np.bool_)


def _bytes_in(column: Ragged, values: tuple[bytes, ...]) -> Flags:
    flags = np.zeros(len(column), np.bool_)
    by_size: dict[int, list[bytes]] = {}
    for value in values:
        by_size.setdefault(len(value), []).append(value)
    sizes = column.sizes
    for size, values_of_size in by_size.items():
        rows = np.flatnonzero(sizes == size)
        if not size:
            flags[rows] = True
            continue
        step = max(1, BATCH_BYTES // (8 * size))
        # NumPy cuts off zeros at the end, which does not matter for values of one length.
        expected = np.array(values_of_size, dtype=f"S{size}")
        for first in range(0, len(rows), step):
            part = rows[first : first + step]
            block = column.data[column.starts[part][:, None] + np.arange(size)]
            cells = np.ascontiguousarray(block).view(f"S{size}").reshape(-1)
            flags[part] = np.isin(cells, expected)
    return flags


# -- pruning by bounds -----------------------------------------------------------------------------------


class Bounds(NamedTuple):
    """Statistics of a field's cells in some rows; None: unknown.

    ``low`` and ``high``: no cell is less or greater. They are encoded like the values of a bound condition.
    """

    rows: int | None = None
    missing: int | None = None
    low: Any = None
    high: Any = None

    @property
    def is_empty(self) -> bool:
        """True if all cells are missing."""
        return self.missing is not None and self.missing == self.rows


NOTHING = Bounds()
Lookup = Callable[[str], Bounds]


def can_match(bound: Bound, of: Lookup, negated: bool = False) -> bool:
    """Return True if the condition can be true of some row; ``negated``: if it can be false of one."""
    if isinstance(bound, Not):
        return can_match(bound.part, of, not negated)
    if isinstance(bound, All | Some):
        every = isinstance(bound, All) != negated
        matches = (can_match(part, of, negated) for part in bound.parts)
        return all(matches) if every else any(matches)
    if isinstance(bound, Unknown):
        return True
    if isinstance(bound, Pair):
        return not (of(bound.left).is_empty or of(bound.right).is_empty)
    assert isinstance(bound, Test | Member | Match | Always | Null)
    bounds = of(bound.field)
    if isinstance(bound, Null):
        # The condition is false of cells that are not missing.
        return not bounds.is_empty if negated else bounds.missing != 0
    if bounds.is_empty:
        return False
    if isinstance(bound, Match):
        return True
    if isinstance(bound, Always):
        return bound.yes != negated
    if isinstance(bound, Member):
        return _member(bound, bounds, negated)
    if negated:
        return bound.may_be_nan or _outside(bound, bounds)
    if bound.op == "==":
        return _within(bound.value, bounds)
    limit = bounds.low if bound.op[0] == "<" else bounds.high
    return limit is None or _holds(bound.op, limit, bound.value)


def _holds(op: str, left: Any, right: Any) -> bool:
    if op[0] == ">":
        op, left, right = "<" + op[1:], right, left
    return bool(left <= right if op == "<=" else left < right)


def _outside(test: Test, bounds: Bounds) -> bool:
    """Return True if the test can be false of a cell."""
    if test.op == "==":
        return bounds.low is None or bounds.high is None or not bounds.low == bounds.high == test.value
    limit = bounds.high if test.op[0] == "<" else bounds.low
    return limit is None or not _holds(test.op, limit, test.value)


def _within(value: Any, bounds: Bounds) -> bool:
    return not (
        (bounds.low is not None and value < bounds.low) or (bounds.high is not None and value > bounds.high)
    )


def _member(member: Member, bounds: Bounds, negated: bool) -> bool:
    if negated:
        same_value = bounds.low is not None and bounds.low == bounds.high and bounds.low in member.values
        return member.may_be_nan or not same_value
    # NaN is in no range; looking for it costs nothing.
    return any(_within(value, bounds) for value in member.values)


# A regular expression retries a piece at every letter of a cell; longer pieces are searched by bits.
MAX_REGEX_LETTERS = 32
# Search by bits takes as many bits for each letter of a cell.
MAX_WILD_LETTERS = 1 << 14

# (text, start) -> position of the first match, or -1.
Search = Callable[[str, int], int]


class Piece(NamedTuple):
    """Letters of a pattern between two ``%``; None stands for any letter."""

    letters: tuple[str | None, ...]
    search: Search

    def is_at(self, text: str, start: int) -> bool:
        """Return True if a text has the piece at a position."""
        return len(text) - start >= len(self.letters) and all(
            letter is None or letter == actual
            for letter, actual in zip(self.letters, text[start:], strict=False)
        )


class Pattern(NamedTuple):
    """A compiled pattern.

    ``prefix``: bytes that every match begins with. ``is_plain``: the prefix is all of it. ``is_prefix``: only
    ``%`` follows the prefix.
    """

    pieces: tuple[Piece, ...]
    prefix: bytes
    is_plain: bool
    is_prefix: bool
    encoding: str

    def matches(self, cell: bytes) -> bool:
        """Return True if a cell matches."""
        text = cell.decode(self.encoding, "surrogateescape")
        first, *following = self.pieces
        if not following:
            return len(text) == len(first.letters) and first.is_at(text, 0)
        *middle, last = following
        start, end = len(first.letters), len(text) - len(last.letters)
        if start > end or not first.is_at(text, 0) or not last.is_at(text, end):
            return False
        for piece in middle:
            position = piece.search(text, start)
            start = position + len(piece.letters)
            if position < 0 or start > end:
                return False
        return True


def pattern_of(text: str, *, letters: bool) -> Pattern:
    """Compile a pattern; ``letters``: ``_`` is a letter of UTF-8, else a byte."""
    encoding = "utf-8" if letters else "latin-1"
    pieces: list[list[str | None]] = [[]]
    prefix, plain = b"", True
    remaining = iter(text)
    for letter in remaining:
        wild = letter in "%_"
        if letter == "\\":
            letter = next(remaining, "\\")
        if wild and letter == "%":
            pieces.append([])
        elif wild:
            pieces[-1].append(None)
        else:
            # A pattern is UTF-8, also where it is compared with bytes.
            pieces[-1] += letter if letters else letter.encode().decode("latin-1")
            prefix += letter.encode() if plain else b""
        plain = plain and not wild
    is_prefix = len(pieces) > 1 and not any(pieces[1:]) and None not in pieces[0]
    compiled = tuple(Piece(tuple(piece), _search_of(piece)) for piece in pieces)
    return Pattern(compiled, prefix, plain, is_prefix, encoding)


def _search_of(piece: list[str | None]) -> Search:
    plain = "".join(letter or "" for letter in piece)
    if None not in piece:
        return lambda text, start: text.find(plain, start)
    if len(piece) <= MAX_REGEX_LETTERS:
        regex = re.compile(
            "".join("." if letter is None else re.escape(letter) for letter in piece), re.DOTALL
        )

        def by_regex(text: str, start: int) -> int:
            match = regex.search(text, start)
            return -1 if match is None else match.start()

        return by_regex
    if len(piece) > MAX_WILD_LETTERS:
        raise OptionError(f"{len(piece):,} letters with _ in a pattern are more than {MAX_WILD_LETTERS:,}")
    return _by_bits(piece)


def _by_bits(piece: list[str | None]) -> Search:
    """Return a search with a bit for each letter of a piece: set if the text ends with the piece so far."""
    any_letter = sum(1 << number for number, letter in enumerate(piece) if letter is None)
    masks: dict[str, int] = {}
    for number, letter in enumerate(piece):
        if letter is not None:
            masks[letter] = masks.get(letter, any_letter) | 1 << number
    complete = 1 << len(piece) - 1

    def search(text: str, start: int) -> int:
        state = 0
        for position in range(start, len(text)):
            state = (state << 1 | 1) & masks.get(text[position], any_letter)
            if state & complete:
                return position - len(piece) + 1
        return -1

    return search


def after(prefix: bytes) -> bytes | None:
    """Return the least bytes greater than all with this prefix; None if there are none."""
    shortened = prefix.rstrip(b"\xff")
    return shortened[:-1] + bytes([shortened[-1] + 1]) if shortened else None
