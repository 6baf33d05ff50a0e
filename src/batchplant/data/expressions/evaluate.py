"""Evaluating conditions on columns, or on bounds of their cells, which tell whether a row can match.

A missing cell makes a comparison neither true nor false.
"""

from __future__ import annotations

import decimal
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ...errors import located
from ...schema import Schema
from ...schema.columns import AnyArray, Column, Columns, Flags, Masked, Ragged, dense_of
from .binding import (
    BYTES,
    DECIMAL,
    TIME,
    All,
    Always,
    Bound,
    Match,
    Member,
    Not,
    Null,
    Pair,
    Some,
    Test,
    Unknown,
    comparison_of,
)

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
