"""Values of Polygons: what is one, and in which form it is kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import SchemaError


def checked(value: Any) -> list[list[list[float]]]:
    """Objects, each a list of rings ``[x, y, x, y, …]``; rings may be given as pairs, too."""
    if not isinstance(value, list | tuple):
        raise SchemaError(f"Polygons need a list of objects, not {type(value).__name__}")
    return [[_ring(ring) for ring in _rings(one)] for one in value]


def _rings(one: Any) -> Any:
    if not isinstance(one, list | tuple):
        raise SchemaError(f"an object of Polygons needs a list of rings, not {type(one).__name__}")
    return one


def _ring(ring: Any) -> list[float]:
    try:
        points = np.asarray(ring, dtype=np.float64)
    except (TypeError, ValueError):
        points = np.empty(0)
    if points.ndim == 2 and points.shape[1] == 2:
        points = points.reshape(-1)
    if points.ndim != 1 or points.size < 6 or points.size % 2 or not np.isfinite(points).all():
        raise SchemaError("a ring is x and y of three points or more, [x, y, x, y, x, y, …]")
    found: list[float] = points.tolist()
    return found
