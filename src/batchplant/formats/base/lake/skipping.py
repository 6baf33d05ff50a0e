"""Skipping of files that cannot match a condition, by the statistics in the table's log."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from ....codecs import arrow
from ....data.expressions import Bounds, Condition, can_match, loosely
from ....schema import Field, Schema
from ..tables import cell_bounds
from .part import Part

# Times in the log of a table are cut off at milliseconds.
SLACK = {"s": 1, "ms": 1, "us": 1_000, "ns": 1_000_000, "D": 0}


def matching_parts(parts: Sequence[Part], condition: Condition, schema: Schema) -> list[Part]:
    """The files in which it can be true; one at least, for a table needs a file to see what its bytes are."""
    bound = loosely(condition, schema)

    def can(part: Part) -> bool:
        return can_match(bound, lambda name: _known(part, name, schema[name]))

    return [part for part in parts if can(part)] or list(parts[:1])


def _known(part: Part, name: str, field: Field) -> Bounds:
    """Return the bounds of a field in a file; empty if the table has none, or nonsense."""
    # Whatever a library says about a value that it cannot convert.
    with contextlib.suppress(Exception):
        if name in part.constants:
            return _of(field, part.constants[name])
        if part.said is not None:
            low, high, missing = part.said(name)
            lowest, highest = _of(field, low).low, _of(field, high).high
            if highest is not None and hasattr(field, "unit"):
                highest += SLACK[field.unit]
            if lowest is None or highest is None or lowest <= highest:
                return Bounds(part.rows, missing, lowest, highest)
    return Bounds()


def _of(field: Field, value: Any) -> Bounds:
    if value is None or not value.is_valid:
        return Bounds(1, 1)
    return cell_bounds(field, arrow.column_of(field, arrow.pyarrow().repeat(value, 1)))
