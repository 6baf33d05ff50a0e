"""Pruning: tells from bounds of the cells whether a condition can be true in a run of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .binding import All, Always, Bound, Match, Member, Not, Null, Pair, Some, Test, Unknown


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
