"""Statistics of numbers (count, extremes, mean, deviation, quantiles) that can be merged."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from ...schema.columns import AnyArray

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
# Integers are summed in digits of so many bits: the sums of their squares fit into 64 bits.
DIGIT_BITS = 16
F64 = npt.NDArray[np.float64]

# Values of a level of the sketch; twice as many are halved.
WIDTH = 2048
BINS = 24
# Quantiles between which the inner bins of a histogram lie; the outer bins hold the other values.
INNER_QUANTILES = (0.005, 0.995)
# Larger integers may have no float of their own.
MAX_EXACT_FLOAT = 2.0**52


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Statistics of ``count`` finite numbers. ``quantiles``: share → value. ``histogram``: edges and counts.

    For integers they are exact, but quantiles and histogram only up to 4,096 values.
    """

    count: int
    nan: int
    infinite: int
    min: float | int | None
    max: float | int | None
    mean: float | None
    std: float | None
    quantiles: dict[float, float]
    histogram: tuple[list[float], list[int]]

    @property
    def median(self) -> float | None:
        return self.quantiles.get(0.5)


class Sums:
    """Accumulator of :class:`Numbers`."""

    def __init__(self) -> None:
        self.count = self.nan = self.infinite = 0
        self._min: Any = None
        self._max: Any = None
        # Exact sums of integers; mean and squared distances from it of floats.
        self._integral = True
        self._sum = self._squares = 0
        self._mean = self._distance = 0.0
        self._sketch = Sketch()

    def add(self, values: AnyArray) -> None:
        values = values.reshape(-1)
        if values.dtype.kind == "b":
            values = values.view(np.uint8)
        if values.dtype.kind == "f":
            self._integral = False
            values = values if values.dtype.itemsize <= 8 else values.astype(np.float64)
            finite = np.isfinite(values)
            if not finite.all():
                nan = int(np.isnan(values).sum())
                self.nan += nan
                self.infinite += len(values) - int(finite.sum()) - nan
                values = values[finite]
        if not len(values):
            return
        addition = Sums()
        addition.count = len(values)
        addition._min, addition._max = values.min().item(), values.max().item()
        addition._integral = self._integral
        if self._integral:
            addition._sum, addition._squares = _exact_sums(values, addition._min)
        else:
            wide = values.astype(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):
                addition._mean = float(wide.mean())
                addition._distance = float(((wide - addition._mean) ** 2).sum())
        addition._sketch.add(values)
        self.merge(addition)

    def merge(self, later: Sums) -> None:
        self.nan += later.nan
        self.infinite += later.infinite
        self._integral = self._integral and later._integral
        if not later.count:
            return
        self._min = later._min if self._min is None else min(self._min, later._min)
        self._max = later._max if self._max is None else max(self._max, later._max)
        self._sum += later._sum
        self._squares += later._squares
        count = self.count + later.count
        step = later._mean - self._mean
        self._mean += step * later.count / count
        self._distance += later._distance + step * step * self.count * later.count / count
        self.count = count
        self._sketch.merge(later._sketch)

    def numbers(self) -> Numbers:
        quantiles = dict(zip(QUANTILES, self._sketch.quantiles(QUANTILES), strict=False))
        histogram: tuple[list[float], list[int]] = ([], [])
        mean = std = None
        if self.count:
            histogram = self._sketch.histogram(float(self._min), float(self._max), integral=self._integral)
            mean, variance = self._mean, self._distance / self.count
            if self._integral:
                average = Fraction(self._sum, self.count)
                mean, variance = float(average), float(Fraction(self._squares, self.count) - average**2)
            std = math.sqrt(variance) if variance >= 0 else math.nan
        return Numbers(
            self.count, self.nan, self.infinite, self._min, self._max, mean, std, quantiles, histogram
        )


def _exact_sums(values: AnyArray, minimum: int) -> tuple[int, int]:
    """Sum of integers and of their squares, however large they are."""
    if values.dtype.kind == "u":
        above = values.astype(np.uint64) - np.uint64(minimum)
    else:
        # The difference of two int64 fits into uint64, and wraps around to it.
        above = values.astype(np.int64).view(np.uint64) - np.array(minimum, np.int64).view(np.uint64)
    digits: list[npt.NDArray[np.uint64]] = []
    remaining = int(above.max())
    while remaining or not digits:
        digits.append((above >> np.uint64(DIGIT_BITS * len(digits))) & np.uint64((1 << DIGIT_BITS) - 1))
        remaining >>= DIGIT_BITS
    total = sum(int(digit.sum()) << (DIGIT_BITS * i) for i, digit in enumerate(digits))
    squares = sum(
        int((first * second).sum()) << (DIGIT_BITS * (i + j))
        for i, first in enumerate(digits)
        for j, second in enumerate(digits)
    )
    count = len(values)
    return total + count * minimum, squares + 2 * minimum * total + count * minimum * minimum


class Sketch:
    """Quantiles of any number of values in little memory: exact for few, for many within 0.5 % of rank.

    It holds sorted values by level; a value of level ``n`` stands for 2ⁿ values. A full level is halved:
    every second of its sorted values moves up, in turn the first or the second of each pair. Nothing is
    random, so the same values in the same order give the same sketch.
    """

    def __init__(self) -> None:
        self._levels: list[F64] = []
        self._second: list[bool] = []

    def add(self, values: npt.NDArray[np.generic]) -> None:
        """Add values of a real dtype, none of them NaN."""
        self._add(np.sort(values, axis=None))

    def _add(self, ordered: npt.NDArray[np.generic]) -> None:
        # Of very many values at once, add the middle of every 2ⁿ.
        level = max(0, (len(ordered) // (2 * WIDTH)).bit_length())
        if level:
            group = 1 << level
            end = len(ordered) // group * group
            self._put(level, ordered[group // 2 : end : group].astype(np.float64))
            ordered = ordered[end:]
        if len(ordered) > 2 * WIDTH:
            self._add(ordered)
        else:
            self._put(0, ordered.astype(np.float64))

    def _put(self, level: int, ordered: F64) -> None:
        while len(self._levels) <= level:
            self._levels.append(np.empty(0))
            self._second.append(False)
        values = np.sort(np.concatenate([self._levels[level], ordered]), kind="stable")
        if len(values) < 2 * WIDTH:
            self._levels[level] = values
            return
        end = len(values) // 2 * 2
        promoted = values[int(self._second[level]) : end : 2]
        self._second[level] = not self._second[level]
        self._levels[level] = values[end:]
        self._put(level + 1, promoted)

    def merge(self, later: Sketch) -> None:
        for level, values in enumerate(later._levels):
            self._put(level, values)

    def _weighted(self) -> tuple[F64, npt.NDArray[np.int64]]:
        """Sorted values and their weights."""
        values = np.concatenate([np.empty(0), *self._levels])
        weights = np.repeat(1 << np.arange(len(self._levels)), [len(values) for values in self._levels])
        order = np.argsort(values, kind="stable")
        return values[order], weights[order]

    def quantiles(self, shares: tuple[float, ...]) -> list[float]:
        """For each share the smallest value that so many values do not exceed; empty without values."""
        values, weights = self._weighted()
        if not len(values):
            return []
        below = np.cumsum(weights)
        ranks = np.searchsorted(below, np.ceil(np.array(shares) * below[-1]).clip(1), side="left")
        return [float(value) for value in values[ranks]]

    def histogram(self, low: float, high: float, *, integral: bool) -> tuple[list[float], list[int]]:
        """Edges of bins, and the number of values in each, the last edge included.

        The first and the last bin reach to ``low`` and ``high``, the others are equally wide. ``integral``:
        the values are integers; a few of them have a bin each.
        """
        values, weights = self._weighted()
        if not len(values):
            return [], []
        if low == high:
            return [low, high], [int(weights.sum())]
        edges = _edges(low, high, *self.quantiles(INNER_QUANTILES), integral=integral)
        bins = np.searchsorted(edges[1:-1], values, side="right")
        counts = np.bincount(bins, weights, len(edges) - 1)
        return [float(edge) for edge in edges], [int(count) for count in counts]


def _edges(low: float, high: float, first: float, last: float, *, integral: bool) -> F64:
    if integral and high - low < BINS:
        return np.append(np.arange(low, high + 1), high)
    # A few outliers would leave one bin for all the others.
    if high - low <= 4 * (last - first) or first == last:
        first, last = low, high
    inner: F64 = np.linspace(first, last, BINS + 1)[:-1]
    if integral and high - low < MAX_EXACT_FLOAT:
        begin, end = math.floor(first), math.ceil(last) + 1
        inner = np.arange(begin, end, _bin_width(end - begin)).astype(np.float64)
    return np.concatenate([[low], inner[1:], [high]])


def _bin_width(span: int) -> int:
    """Integers of a bin: equally many in each, and the last one as full as can be."""
    widths = (math.ceil(span / bins) for bins in range(BINS, BINS // 2, -1))
    return min(dict.fromkeys(widths), key=lambda width: -span % width / width)
