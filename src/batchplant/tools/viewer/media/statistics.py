"""What the values of one array are like: bounds, mean, spread, a histogram. Large ones part by part."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from .slices import Source

# Values that are in memory at a time.
PART = 1 << 22
BINS = 64


def of_source(
    source: Source, told: Callable[[int, int], None] = lambda done, of: None, part: int = PART
) -> dict[str, Any]:
    """Statistics of all values; two passes, the second for the histogram."""
    keys = list(parts(source.shape, part))
    count, total, squares, zeros, odd = 0, 0.0, 0.0, 0, 0
    low, high = math.inf, -math.inf
    # Sums are taken around the first value: no digits are lost where all are far from zero.
    around: float | None = None
    with np.errstate(over="ignore", invalid="ignore"):
        for step, key in enumerate(keys):
            told(step, 2 * len(keys))
            values = _numbers(source.take(key))
            finite = values[np.isfinite(values)]
            odd += values.size - finite.size
            zeros += int((finite == 0).sum())
            if not finite.size:
                continue
            around = float(finite[0]) if around is None else around
            shifted = finite - around
            count += finite.size
            total += float(shifted.sum())
            squares += float(np.square(shifted).sum())
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    found: dict[str, Any] = {"values": math.prod(source.shape), "zeros": zeros, "not_finite": odd}
    if around is None:
        return found
    mean = total / count
    found |= {
        "low": low, "high": high, "mean": around + mean,
        "spread": math.sqrt(max(0.0, squares / count - mean * mean)) if math.isfinite(squares) else math.inf,
    }  # fmt: skip
    if not math.isfinite(high - low):
        return found
    counts = np.zeros(BINS, dtype=np.int64)
    wide = (low, high) if high > low else (low - 0.5, high + 0.5)
    edges = np.linspace(*wide, BINS + 1)
    for step, key in enumerate(keys):
        told(len(keys) + step, 2 * len(keys))
        values = _numbers(source.take(key))
        counts += np.histogram(values[np.isfinite(values)], edges)[0]
    return found | {"histogram": {"edges": edges.tolist(), "counts": counts.tolist()}}


def parts(shape: tuple[int, ...], most: int) -> Iterator[tuple[Any, ...]]:
    """Slices of at most so many values that together are all of an array."""
    if 0 in shape:
        return
    # The axis that is cut; those behind it are taken whole, of those before it one place at a time.
    cut = next((axis for axis in range(len(shape)) if math.prod(shape[axis + 1 :]) <= most), None)
    if cut is None:
        yield ()
        return
    step = max(1, most // math.prod(shape[cut + 1 :]))
    for places in itertools.product(*(range(size) for size in shape[:cut])):
        for at in range(0, shape[cut], step):
            yield *places, slice(at, at + step)


def _numbers(part: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    if part.dtype.kind == "c":
        part = np.abs(part)
    return np.asarray(part.view(np.int64) if part.dtype.kind in "mM" else part, dtype=np.float64)
