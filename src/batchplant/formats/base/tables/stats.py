"""Conversion of Parquet's statistics to bounds in the values that filters compare."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from ....codecs.arrow import pyarrow
from ....codecs.arrow.types import is_binary, is_text
from ....data.expressions import Bounds, comparison_of
from ....data.expressions.binding import BYTES, NUMBER, TIME
from ....schema import Bool, Bytes, Field, Float, Int, Tensor, Text
from .footer import BY_BYTES, REAL, SIGNED, UNSIGNED, Chunk, Leaf

# Parquet type → struct format of its values.
_PACKED = {0: "<?", 1: "<i", 2: "<q", 4: "<f", 5: "<d"}
_UNSIGNED = {1: "<I", 2: "<Q"}
# Units in a day.
_IN_A_DAY = {"D": 1, "s": 86_400, "ms": 86_400 * 10**3, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}

Meaning = Callable[[bytes, bool], Any]


def meaning_of(field: Field, leaf: Leaf, kind: Any) -> Meaning | None:
    """Return a function from a stored bound to one of cells; None if the two are not comparable.

    Its flag marks an upper bound: if units differ, bounds are rounded away from the cells.
    """
    kind_of_value = comparison_of(field)
    if leaf.lists or len(leaf.path) != 1 or leaf.order is None:
        return None
    pa = pyarrow()
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if kind_of_value == BYTES:
        same = is_text(kind) if isinstance(field, Text) else isinstance(field, Bytes) and is_binary(kind)
        # A UUID has other bytes in the file than in its cells.
        return (lambda data, _: data) if same and leaf.order == BY_BYTES and not _is_uuid(field) else None
    if kind_of_value == TIME or (kind_of_value == NUMBER and hasattr(field, "unit")):
        return _times(field, leaf, kind)
    if kind_of_value != NUMBER or leaf.unit is not None:
        return None
    real = isinstance(field, Float) or (isinstance(field, Tensor) and np.dtype(field.dtype).kind == "f")
    if real:
        # A cell with fewer digits than the file is rounded.
        wide = np.dtype(getattr(field, "dtype", "f8")).itemsize >= (4 if leaf.kind == 4 else 8)
        return _plain(leaf) if leaf.order == REAL and wide and pa.types.is_floating(kind) else None
    if isinstance(field, Bool):
        return _plain(leaf) if leaf.kind == 0 else None
    is_integer = isinstance(field, Int | Tensor) and pa.types.is_integer(kind)
    return _plain(leaf) if is_integer and leaf.order in (SIGNED, UNSIGNED) and leaf.kind in (1, 2) else None


def _is_uuid(field: Field) -> bool:
    return field.kind == "uuid"


def _plain(leaf: Leaf) -> Meaning:
    unsigned = leaf.order == UNSIGNED and leaf.kind in _UNSIGNED
    packed = struct.Struct(_UNSIGNED[leaf.kind] if unsigned else _PACKED[leaf.kind])

    def value(data: bytes, _: bool) -> Any:
        return packed.unpack(data)[0] if len(data) == packed.size else None

    return value


def _times(field: Field, leaf: Leaf, kind: Any) -> Meaning | None:
    if leaf.kind not in (1, 2) or leaf.order != SIGNED:
        return None
    dtype: Any = getattr(field, "dtype", None)
    unit = str(getattr(field, "unit", "") or np.datetime_data(np.dtype(dtype))[0])
    stored = leaf.unit
    if stored is None:
        # A number that counts what the Arrow type says, or what the field does.
        stored = str(kind.unit) if hasattr(kind, "unit") else unit
    if unit not in _IN_A_DAY or stored not in _IN_A_DAY:
        return None
    read, up, down = _plain(leaf), _IN_A_DAY[unit], _IN_A_DAY[stored]

    def value(data: bytes, upper: bool) -> int | None:
        bound: int | None = read(data, upper)
        if bound is None:
            return None
        return -(-bound * up // down) if upper else bound * up // down

    return value


def bounds_of(
    rows: int, low: bytes | None, high: bytes | None, nulls: int | None, meaning: Meaning | None
) -> Bounds:
    """Return bounds of cells; those that cannot be true are dropped."""
    missing = nulls if nulls is not None and 0 <= nulls <= rows else None
    if meaning is None:
        return Bounds(rows, missing)
    lowest = None if low is None else meaning(low, False)
    highest = None if high is None else meaning(high, True)
    for bound in (lowest, highest):
        if isinstance(bound, float) and math.isnan(bound):
            return Bounds(rows, missing)
    if lowest is not None and highest is not None and lowest > highest:
        return Bounds(rows, missing)
    return Bounds(rows, missing, lowest, highest)


def chunk_bounds(rows: int, chunk: Chunk, leaf: Leaf, ordered: bool, meaning: Meaning | None) -> Bounds:
    """Return the bounds of a column chunk."""
    # Old files compare everything as signed; newer ones say how they compare, or say nothing.
    sound = leaf.order in (SIGNED, REAL) if chunk.old else ordered
    return bounds_of(rows, chunk.low, chunk.high, chunk.nulls, meaning if sound else None)
