"""Whether a condition can be true in a run of rows, of which only bounds are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .binding import All, Always, Bound, Match, Member, Not, Null, Pair, Some, Test, Unknown


class Bounds(NamedTuple):
    """What is known of the cells of a field in some rows; None: nothing.

    ``low`` and ``high``: no cell that is there is less or greater. They are values as a bound condition has
    them.
    """

    rows: int | None = None
    missing: int | None = None
    low: Any = None
    high: Any = None

    @property
    def is_empty(self) -> bool:
        """Whether no cell is there."""
        return self.missing is not None and self.missing == self.rows


NOTHING = Bounds()
Lookup = Callable[[str], Bounds]


def can_match(bound: Bound, of: Lookup, negated: bool = False) -> bool:
    """Whether the condition can be true of some row; ``negated``: whether it can be false of one."""
    if isinstance(bound, Not):
        return can_match(bound.part, of, not negated)
    if isinstance(bound, All | Some):
        every = isinstance(bound, All) != negated
        found = (can_match(part, of, negated) for part in bound.parts)
        return all(found) if every else any(found)
    if isinstance(bound, Unknown):
        return True
    if isinstance(bound, Pair):
        return not (of(bound.left).is_empty or of(bound.right).is_empty)
    assert isinstance(bound, Test | Member | Match | Always | Null)
    known = of(bound.field)
    if isinstance(bound, Null):
        # Cells that are there, where the condition is to be false.
        return not known.is_empty if negated else known.missing != 0
    if known.is_empty:
        return False
    if isinstance(bound, Match):
        return True
    if isinstance(bound, Always):
        return bound.yes != negated
    if isinstance(bound, Member):
        return _member(bound, known, negated)
    if negated:
        return bound.may_be_nan or _outside(bound, known)
    if bound.op == "==":
        return _within(bound.value, known)
    limit = known.low if bound.op[0] == "<" else known.high
    return limit is None or _holds(bound.op, limit, bound.value)


def _holds(op: str, left: Any, right: Any) -> bool:
    if op[0] == ">":
        op, left, right = "<" + op[1:], right, left
    return bool(left <= right if op == "<=" else left < right)


def _outside(test: Test, known: Bounds) -> bool:
    """Whether a cell can be of which the test is false."""
    if test.op == "==":
        return known.low is None or known.high is None or not known.low == known.high == test.value
    limit = known.high if test.op[0] == "<" else known.low
    return limit is None or not _holds(test.op, limit, test.value)


def _within(value: Any, known: Bounds) -> bool:
    return not (
        (known.low is not None and value < known.low) or (known.high is not None and value > known.high)
    )


def _member(member: Member, known: Bounds, negated: bool) -> bool:
    if negated:
        one = known.low is not None and known.low == known.high and known.low in member.values
        return member.may_be_nan or not one
    # A value that equals nothing, NaN, is in no range; it costs nothing to look.
    return any(_within(value, known) for value in member.values)
