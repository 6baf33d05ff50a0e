"""What the values of one array are like: bounds, mean, spread, a histogram. Large ones part by part."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

PART = 1 << 22
BINS = 64


def of_array(
    values: npt.NDArray[Any], told: Callable[[int, int], None] = lambda done, of: None
) -> dict[str, Any]:
    """Statistics of all values; two passes, the second for the histogram."""
    flat = values.reshape(-1)
    steps = 2 * max(1, -(-flat.size // PART))
    count, total, squares, zeros, odd = 0, 0.0, 0.0, 0, 0
    low, high = math.inf, -math.inf
    # Sums of squares are taken around the first values: no digits are lost where all are far from zero.
    around: float | None = None
    for step, at in enumerate(range(0, flat.size, PART)):
        told(step, steps)
        part = _numbers(flat[at : at + PART])
        finite = part[np.isfinite(part)]
        odd += part.size - finite.size
        zeros += int((finite == 0).sum())
        if not finite.size:
            continue
        around = float(finite[0]) if around is None else around
        shifted = finite - around
        count += finite.size
        total += float(shifted.sum())
        squares += float(np.square(shifted).sum())
        low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    found: dict[str, Any] = {"values": int(flat.size), "zeros": zeros, "not_finite": odd}
    if around is None:
        return found
    mean = total / count
    spread = math.sqrt(max(0.0, squares / count - mean * mean))
    counts = np.zeros(BINS, dtype=np.int64)
    wide = (low, high) if high > low else (low - 0.5, high + 0.5)
    for step, at in enumerate(range(0, flat.size, PART)):
        told(steps // 2 + step, steps)
        part = _numbers(flat[at : at + PART])
        counts += np.histogram(part[np.isfinite(part)], BINS, wide)[0]
    edges = np.linspace(*wide, BINS + 1)
    return {
        **found, "low": low, "high": high, "mean": around + mean, "spread": spread,
        "histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
    }  # fmt: skip


def _numbers(part: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    if part.dtype.kind == "c":
        part = np.abs(part)
    return np.asarray(part.view(np.int64) if part.dtype.kind in "mM" else part, dtype=np.float64)
