"""Accumulators that can be merged: statistics of numbers, counts of values, and copies of cells."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from ...schema.columns import I64, U8, AnyArray, Column, Masked, Ragged, as_bytes, column_runs

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


U64 = npt.NDArray[np.uint64]

# Distinct values that are counted.
MAX_COUNTED_VALUES = 1 << 15
# Groups of equal cells that are listed, and the samples listed of each.
LISTED_GROUPS, LISTED_SAMPLES = 10, 10


@dataclasses.dataclass(frozen=True)
class Values:
    """Values and their counts, the most frequent first.

    ``exact``: the counts are right and complete; else there are more than 32,768 different values, rare ones
    are left out, and a count may be up to ``slack`` too low.
    """

    counts: dict[Hashable, int]
    exact: bool
    slack: int = 0


class Tally:
    """Counts values; of too many distinct ones, the frequent (Misra and Gries)."""

    def __init__(self, max_values: int = MAX_COUNTED_VALUES) -> None:
        self._max_values = max_values
        self._counts: Counter[Hashable] = Counter()
        self._slack = 0

    def add(self, values: Iterable[Hashable]) -> None:
        self._counts.update(values)
        self._shrink()

    def add_counts(self, counts: Mapping[Hashable, int]) -> None:
        self._counts.update(counts)
        self._shrink()

    def merge(self, later: Tally) -> None:
        self._slack += later._slack
        self.add_counts(later._counts)

    def _shrink(self) -> None:
        if len(self._counts) <= self._max_values:
            return
        cut = sorted(self._counts.values(), reverse=True)[self._max_values]
        self._slack += cut
        self._counts = Counter({value: count - cut for value, count in self._counts.items() if count > cut})

    def values(self, names: Mapping[Hashable, str]) -> Values:
        ordered = sorted(self._counts.items(), key=lambda entry: (-entry[1], entry[0]))
        counts = {names.get(value, value): count for value, count in ordered}
        return Values(counts, self._slack == 0, self._slack)


@dataclasses.dataclass(frozen=True)
class Copies:
    """Cells, or whole samples, with the same bytes as an earlier one.

    ``count``: those that equal an earlier one; ``different``: those that do not. ``groups``: the first sets
    of equal samples, each in order. ``one_in``: above 1, only one in so many was examined, chosen by its
    content so that equal ones stay together, and ``count`` and ``different`` are estimates.
    """

    count: int
    different: int
    groups: list[list[int]]
    one_in: int = 1


class Hashes:
    """Hashes of 128 bits with their sample numbers; keeps one in ``one_in``, a power of two."""

    def __init__(self, one_in: int = 1) -> None:
        self._one_in = one_in
        self._parts: list[tuple[U64, I64]] = []

    def add(self, digests: U8, numbers: I64) -> None:
        """Add digests, rows of 16 bytes."""
        hashes = np.ascontiguousarray(digests).view(np.uint64).reshape(-1, 2)
        chosen = (hashes[:, 0] & np.uint64(self._one_in - 1)) == 0
        self._parts.append((hashes[chosen], numbers[chosen]))

    def merge(self, later: Hashes) -> None:
        self._parts += later._parts

    def __reduce__(self) -> tuple[object, ...]:
        return _restore_hashes, (self._one_in, *self._join())

    def _join(self) -> tuple[U64, I64]:
        return (
            np.concatenate([np.empty((0, 2), np.uint64), *(hashes for hashes, _ in self._parts)]),
            np.concatenate([np.empty(0, np.int64), *(numbers for _, numbers in self._parts)]),
        )

    def copies(self) -> Copies:
        hashes, numbers = self._join()
        order = np.lexsort((numbers, hashes[:, 1], hashes[:, 0]))
        hashes, numbers = hashes[order], numbers[order]
        same = np.append(False, (hashes[1:] == hashes[:-1]).all(axis=1))[: len(hashes)]
        firsts = np.flatnonzero(~same)
        sizes = np.diff(np.append(firsts, len(hashes)))
        many = firsts[sizes > 1]
        many = many[np.argsort(numbers[many], kind="stable")[:LISTED_GROUPS]]
        ends = {int(first): int(first + size) for first, size in zip(firsts, sizes, strict=True) if size > 1}
        groups = [numbers[i : min(ends[i], i + LISTED_SAMPLES)].tolist() for i in many.tolist()]
        return Copies(int(same.sum()) * self._one_in, len(firsts) * self._one_in, groups, self._one_in)


def _restore_hashes(one_in: int, hashes: U64, numbers: I64) -> Hashes:
    restored = Hashes(one_in)
    restored._parts = [(hashes, numbers)]
    return restored


def digests(column: Ragged, rows: range) -> U8:
    """Hashes of the cells in these rows, 16 bytes each; that of a missing cell is zero."""
    data, starts, sizes = column_runs(column)
    hashes = np.zeros((len(rows), 16), dtype=np.uint8)
    shapes, raw = column.shape, column.raw
    for i, row in enumerate(rows):
        if sizes[row] >= 0:
            digest = hashlib.blake2b(data[starts[row] : starts[row] + sizes[row]].data, digest_size=16)
            if shapes is not None and raw[row]:
                digest.update(shapes[row].tobytes())
            hashes[i] = np.frombuffer(digest.digest(), dtype=np.uint8)
    return hashes


def as_rows(column: Column) -> U8 | None:
    """Bytes of the cells as rows, for numbers and arrays of one shape; None for other columns."""
    if isinstance(column, Masked):
        values = column.values
        return np.concatenate([_bytes_of(values), column.mask[:, None].view(np.uint8)], axis=1)
    return None if isinstance(column, Ragged) else _bytes_of(column)


def _bytes_of(values: npt.NDArray[np.generic]) -> U8:
    return as_bytes(values).reshape(len(values), -1) if values.size else np.empty((len(values), 0), np.uint8)


def row_digests(parts: list[U8]) -> U8:
    """Hashes of the rows of several parts side by side."""
    rows = np.ascontiguousarray(np.concatenate(parts, axis=1))
    hashes = np.empty((len(rows), 16), dtype=np.uint8)
    for i, row in enumerate(rows):
        hashes[i] = np.frombuffer(hashlib.blake2b(row.data, digest_size=16).digest(), dtype=np.uint8)
    return hashes
