"""What the statistics of Parquet mean for the cells of a field: bounds in the values that filters compare."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from ....codecs.arrow import pyarrow
from ....codecs.arrow.types import is_binary, is_text
from ....data.expressions import Bounds, how_of
from ....data.expressions.binding import BYTES, NUMBER, TIME
from ....schema import Bool, Bytes, Field, Float, Int, Tensor, Text
from .footer import BY_BYTES, REAL, SIGNED, UNSIGNED, Chunk, Leaf

# Type of the file → how a value of it is packed.
_PACKED = {0: "<?", 1: "<i", 2: "<q", 4: "<f", 5: "<d"}
_UNSIGNED = {1: "<I", 2: "<Q"}
# Units in a day.
_IN_A_DAY = {"D": 1, "s": 86_400, "ms": 86_400 * 10**3, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}

Meaning = Callable[[bytes, bool], Any]


def meaning_of(field: Field, leaf: Leaf, kind: Any) -> Meaning | None:
    """What makes a stored bound one of cells; None where the two do not belong together.

    The flag says that it is the upper one: where units differ, it is rounded away from the cells.
    """
    how = how_of(field)
    if leaf.lists or len(leaf.path) != 1 or leaf.order is None:
        return None
    pa = pyarrow()
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if how == BYTES:
        same = is_text(kind) if isinstance(field, Text) else isinstance(field, Bytes) and is_binary(kind)
        # A UUID has other bytes in the file than in its cells.
        return (lambda data, _: data) if same and leaf.order == BY_BYTES and not _is_uuid(field) else None
    if how == TIME or (how == NUMBER and hasattr(field, "unit")):
        return _times(field, leaf, kind)
    if how != NUMBER or leaf.unit is not None:
        return None
    real = isinstance(field, Float) or (isinstance(field, Tensor) and np.dtype(field.dtype).kind == "f")
    if real:
        # A cell with fewer digits than the file is rounded.
        wide = np.dtype(getattr(field, "dtype", "f8")).itemsize >= (4 if leaf.kind == 4 else 8)
        return _plain(leaf) if leaf.order == REAL and wide and pa.types.is_floating(kind) else None
    if isinstance(field, Bool):
        return _plain(leaf) if leaf.kind == 0 else None
    whole = isinstance(field, Int | Tensor) and pa.types.is_integer(kind)
    return _plain(leaf) if whole and leaf.order in (SIGNED, UNSIGNED) and leaf.kind in (1, 2) else None


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
        found: int | None = read(data, upper)
        if found is None:
            return None
        return -(-found * up // down) if upper else found * up // down

    return value


def bounds_of(
    rows: int, low: bytes | None, high: bytes | None, nulls: int | None, meaning: Meaning | None
) -> Bounds:
    """Bounds of cells; those that cannot be true are as if they were not there."""
    missing = nulls if nulls is not None and 0 <= nulls <= rows else None
    if meaning is None:
        return Bounds(rows, missing)
    least = None if low is None else meaning(low, False)
    most = None if high is None else meaning(high, True)
    for one in (least, most):
        if isinstance(one, float) and math.isnan(one):
            return Bounds(rows, missing)
    if least is not None and most is not None and least > most:
        return Bounds(rows, missing)
    return Bounds(rows, missing, least, most)


def chunk_bounds(rows: int, chunk: Chunk, leaf: Leaf, ordered: bool, meaning: Meaning | None) -> Bounds:
    """Bounds of a column of a row group."""
    # Old files compare everything as signed; newer ones say how they compare, or say nothing.
    sound = leaf.order in (SIGNED, REAL) if chunk.old else ordered
    return bounds_of(rows, chunk.low, chunk.high, chunk.nulls, meaning if sound else None)
