"""Numbers: how many, smallest, largest, mean, deviation, quantiles. Those of two parts make those of both."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from .sketch import Sketch

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
# Of whole numbers, so that sums of their squares fit into 64 bits.
DIGIT = 16


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Of ``count`` finite numbers. ``quantiles``: share → value. ``histogram``: edges and counts.

    Those of whole numbers are exact but for quantiles and histogram, which are exact of up to 4,096 values.
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
    """What :class:`Numbers` are made from."""

    def __init__(self) -> None:
        self.count = self.nan = self.infinite = 0
        self._min: Any = None
        self._max: Any = None
        # Of whole numbers the exact sums, of others mean and squared distances from it.
        self._whole = True
        self._sum = self._squares = 0
        self._mean = self._distance = 0.0
        self._sketch = Sketch()

    def add(self, values: npt.NDArray[Any]) -> None:
        values = values.reshape(-1)
        if values.dtype.kind == "b":
            values = values.view(np.uint8)
        if values.dtype.kind == "f":
            self._whole = False
            values = values if values.dtype.itemsize <= 8 else values.astype(np.float64)
            finite = np.isfinite(values)
            if not finite.all():
                nan = int(np.isnan(values).sum())
                self.nan += nan
                self.infinite += len(values) - int(finite.sum()) - nan
                values = values[finite]
        if not len(values):
            return
        other = Sums()
        other.count = len(values)
        other._min, other._max = values.min().item(), values.max().item()
        other._whole = self._whole
        if self._whole:
            other._sum, other._squares = _exact_sums(values, other._min)
        else:
            wide = values.astype(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):
                other._mean = float(wide.mean())
                other._distance = float(((wide - other._mean) ** 2).sum())
        other._sketch.add(values)
        self.merge(other)

    def merge(self, later: Sums) -> None:
        self.nan += later.nan
        self.infinite += later.infinite
        self._whole = self._whole and later._whole
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
        found = dict(zip(QUANTILES, self._sketch.quantiles(QUANTILES), strict=False))
        histogram: tuple[list[float], list[int]] = ([], [])
        mean = std = None
        if self.count:
            histogram = self._sketch.histogram(float(self._min), float(self._max), whole=self._whole)
            mean, variance = self._mean, self._distance / self.count
            if self._whole:
                average = Fraction(self._sum, self.count)
                mean, variance = float(average), float(Fraction(self._squares, self.count) - average**2)
            std = math.sqrt(variance) if variance >= 0 else math.nan
        return Numbers(self.count, self.nan, self.infinite, self._min, self._max, mean, std, found, histogram)


def _exact_sums(values: npt.NDArray[Any], least: int) -> tuple[int, int]:
    """The sum of whole numbers and that of their squares, however large they are."""
    above = _above(values, least)
    digits: list[npt.NDArray[np.uint64]] = []
    rest = int(above.max())
    while rest or not digits:
        digits.append((above >> np.uint64(DIGIT * len(digits))) & np.uint64((1 << DIGIT) - 1))
        rest >>= DIGIT
    total = sum(int(one.sum()) << (DIGIT * place) for place, one in enumerate(digits))
    squares = sum(
        int((one * other).sum()) << (DIGIT * (place + at))
        for place, one in enumerate(digits)
        for at, other in enumerate(digits)
    )
    count = len(values)
    return total + count * least, squares + 2 * least * total + count * least * least


def _above(values: npt.NDArray[Any], least: int) -> npt.NDArray[np.uint64]:
    """How far each number is above the least one."""
    if values.dtype.kind == "u":
        return values.astype(np.uint64) - np.uint64(least)
    # The difference of two int64 fits into uint64, and wraps around to it.
    return values.astype(np.int64).view(np.uint64) - np.array(least, np.int64).view(np.uint64)
