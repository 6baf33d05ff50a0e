"""Which rows of columns a condition is true of. A missing cell makes a comparison neither true nor false."""

from __future__ import annotations

import decimal
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import BatchplantError
from ...schema import Schema
from ...schema.columns import Column, Columns, Flags, Masked, Ragged, dense_of
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
    how_of,
)

Compare = Callable[[Any, Any], Any]
OPS: dict[str, Compare] = {
    "==": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
# Bytes of cells that are compared at a time.
MOST_BYTES = 64 << 20


def matching(bound: Bound, schema: Schema, columns: Columns) -> Flags:
    """For every row whether the condition is true of it."""
    return _Rows(schema, columns).where(bound, False)


class _Rows:
    def __init__(self, schema: Schema, columns: Columns) -> None:
        self._schema, self._columns, self._rows = schema, columns, columns.rows
        # Both are asked for again where a field stands in a condition twice.
        self._values: dict[str, npt.NDArray[Any]] = {}

    def where(self, node: Bound, negated: bool) -> Flags:
        """The rows of which a condition is true, or of which it is false."""
        if isinstance(node, Not):
            return self.where(node.part, not negated)
        if isinstance(node, All | Some):
            join = np.logical_and if isinstance(node, All) != negated else np.logical_or
            found = self.where(node.parts[0], negated)
            for part in node.parts[1:]:
                # What is decided for all rows needs no more looking.
                if found.all() if join is np.logical_or else not found.any():
                    break
                found = join(found, self.where(part, negated))
            return found
        if isinstance(node, Pair):
            left, right = (self._numbers(name, self._how(name)) for name in (node.left, node.right))
            found = _exact(OPS[node.op], left, right)
            return self._there(found, negated, (node.left, node.right), node.how)
        assert isinstance(node, Test | Member | Match | Always | Null)
        if isinstance(node, Null):
            valid = self._valid(node.field, node.how)
            empty = np.zeros(self._rows, np.bool_) if valid is None else ~valid
            return ~empty if negated else empty
        try:
            return self._there(self._compared(node), negated, (node.field,), node.how)
        except BatchplantError as error:
            raise error.at(field=node.field) from None

    def _compared(self, node: Test | Member | Match | Always) -> Flags:
        if isinstance(node, Always):
            return np.full(self._rows, node.yes)
        if isinstance(node, Match):
            cells = self._columns[node.field]
            return np.array(
                [cell is not None and node.pattern.matches(cell.tobytes()) for cell in cells], dtype=np.bool_
            )
        if node.how == BYTES:
            column = self._columns[node.field]
            assert isinstance(column, Ragged)
            return _bytes_in(column, node.values) if isinstance(node, Member) else _bytes(column, node)
        values = self._numbers(node.field, node.how)
        if isinstance(node, Member):
            return np.asarray(np.isin(values, np.array(node.values, values.dtype)), dtype=np.bool_)
        if node.how == DECIMAL:
            return _decimals(OPS[node.op], values, node.value)
        return np.asarray(OPS[node.op](values, values.dtype.type(node.value)), dtype=np.bool_)

    def _there(self, found: Flags, negated: bool, names: tuple[str, ...], how: str) -> Flags:
        """Without the rows in which a cell is missing."""
        found = ~found if negated else found
        for name in names:
            valid = self._valid(name, how)
            found = found if valid is None else found & valid
        return found

    def _valid(self, name: str, how: str) -> Flags | None:
        column = self._columns[name]
        valid = column.valid if isinstance(column, Ragged) else None
        if how != TIME:
            return valid
        times = ~np.isnat(_dense(self._schema, name, column))
        return np.asarray(times if valid is None else valid & times, dtype=np.bool_)

    def _how(self, name: str) -> str:
        how = how_of(self._schema[name])
        assert how is not None
        return how

    def _numbers(self, name: str, how: str) -> npt.NDArray[Any]:
        if name not in self._values:
            column = self._columns[name]
            if how == DECIMAL:
                found = np.array([_decimal(cell) for cell in column], dtype=object)
            else:
                found = _dense(self._schema, name, column)
            self._values[name] = found.view(np.int64) if how == TIME else found
        return self._values[name]


def _dense(schema: Schema, name: str, column: Column) -> npt.NDArray[Any]:
    if not isinstance(column, Ragged):
        return column
    dense = dense_of(schema[name])
    assert dense is not None
    return (column if isinstance(column, Masked) else Masked(column, *dense)).values


def _decimal(cell: Any) -> decimal.Decimal:
    try:
        found = decimal.Decimal(0 if cell is None else cell.tobytes().decode())
    except (decimal.InvalidOperation, UnicodeDecodeError, ValueError):
        return decimal.Decimal("NaN")
    # A signalling NaN would raise wherever it is compared.
    return decimal.Decimal("NaN") if found.is_nan() else found


def _decimals(compare: Compare, left: npt.NDArray[Any], right: Any) -> Flags:
    """Decimal numbers against others by their exact values, as Python compares them; NaN is in no order."""
    with decimal.localcontext() as context:
        context.traps[decimal.InvalidOperation] = False
        return np.asarray(compare(left, right), dtype=np.bool_)


def _exact(compare: Compare, left: npt.NDArray[Any], right: npt.NDArray[Any]) -> Flags:
    """Two columns of numbers; NumPy itself would compare int64 with uint64 as floats."""
    kinds = {left.dtype.kind, right.dtype.kind}
    if "O" in kinds:
        return _decimals(compare, left.astype(object), right.astype(object))
    if kinds == {"i", "u"} and 8 in (left.dtype.itemsize, right.dtype.itemsize):
        below = (left < 0) | (right < 0)
        found = compare(left.astype(np.uint64), right.astype(np.uint64))
        signs = compare(np.sign(left).astype(np.int8), np.sign(right).astype(np.int8))
        return np.asarray(np.where(below, signs, found), dtype=np.bool_)
    return np.asarray(compare(left, right), dtype=np.bool_)


def _bytes(column: Ragged, test: Test) -> Flags:
    """Cells against one value, byte by byte as long as they are alike."""
    value: bytes = test.value
    starts, sizes = column.starts, column.sizes
    if test.op == "==":
        found = np.zeros(len(column), np.bool_)
        rows = np.flatnonzero(sizes == len(value))
        step = max(1, MOST_BYTES // (8 * max(1, len(value))))
        for first in range(0, len(rows), step):
            some = rows[first : first + step]
            found[some] = _same(column, some, value)
        return found
    # -1 where a cell comes first, 1 where the value does.
    order = np.sign(sizes - len(value)).astype(np.int8)
    left = np.arange(len(column))
    for at, byte in enumerate(value):
        left = left[sizes[left] > at]
        if not len(left):
            break
        here = column.data[starts[left] + at]
        order[left[here < byte]] = -1
        order[left[here > byte]] = 1
        left = left[here == byte]
    return np.asarray(OPS[test.op](order, 0), dtype=np.bool_)


def _same(column: Ragged, rows: npt.NDArray[Any], value: bytes) -> Flags:
    """Which of these cells, all as long as the value, are the same."""
    wanted = np.frombuffer(value, np.uint8)
    starts = column.starts[rows]
    if len(rows) > 1 and len(value) and (np.diff(starts) == len(value)).all():
        block = column.data[starts[0] : starts[0] + len(rows) * len(value)].reshape(len(rows), -1)
    else:
        block = column.data[starts[:, None] + np.arange(len(value))]
    return np.asarray((block == wanted).all(axis=1), dtype=np.bool_)


def _bytes_in(column: Ragged, values: tuple[bytes, ...]) -> Flags:
    found = np.zeros(len(column), np.bool_)
    by_size: dict[int, list[bytes]] = {}
    for value in values:
        by_size.setdefault(len(value), []).append(value)
    sizes = column.sizes
    for size, some in by_size.items():
        rows = np.flatnonzero(sizes == size)
        if not size:
            found[rows] = True
            continue
        step = max(1, MOST_BYTES // (8 * size))
        # Of one length, two of them differ also without the zeros that NumPy cuts off at their end.
        wanted = np.array(some, dtype=f"S{size}")
        for first in range(0, len(rows), step):
            part = rows[first : first + step]
            block = column.data[column.starts[part][:, None] + np.arange(size)]
            cells = np.ascontiguousarray(block).view(f"S{size}").reshape(-1)
            found[part] = np.isin(cells, wanted)
    return found
