"""Quantiles of any number of values in little memory: exact of few, of many within half a percent of rank."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

# Values of a level; twice as many are halved.
WIDTH = 2048
BINS = 24
# What most values lie between; the outer bins of a histogram hold the rest.
INNER = (0.005, 0.995)
# Whole numbers above this may have no float of their own.
MAX_EXACT = 2.0**52


class Sketch:
    """Sorted values, level by level: one of level ``n`` stands for 2ⁿ.

    A level that is full is halved: of its values in order every second one goes up, in turn the first or the
    second of each pair. Nothing is random, so the same values in the same order give the same sketch.
    """

    def __init__(self) -> None:
        self._levels: list[F64] = []
        self._second: list[bool] = []

    def add(self, values: npt.NDArray[np.generic]) -> None:
        """Values of any dtype that is real, none of them NaN."""
        self._add(np.sort(values, axis=None))

    def _add(self, ordered: npt.NDArray[np.generic]) -> None:
        # Of very many at once: the middle of every 2ⁿ.
        level = max(0, (len(ordered) // (2 * WIDTH)).bit_length())
        if level:
            each = 1 << level
            whole = len(ordered) // each * each
            self._put(level, ordered[each // 2 : whole : each].astype(np.float64))
            ordered = ordered[whole:]
        if len(ordered) > 2 * WIDTH:
            self._add(ordered)
        else:
            self._put(0, ordered.astype(np.float64))

    def _put(self, level: int, ordered: F64) -> None:
        while len(self._levels) <= level:
            self._levels.append(np.empty(0))
            self._second.append(False)
        held = np.sort(np.concatenate([self._levels[level], ordered]), kind="stable")
        if len(held) >= 2 * WIDTH:
            pairs = len(held) // 2 * 2
            up = held[int(self._second[level]) : pairs : 2]
            self._second[level] = not self._second[level]
            held = held[pairs:]
            self._levels[level] = held
            self._put(level + 1, up)
        else:
            self._levels[level] = held

    def merge(self, later: Sketch) -> None:
        for level, held in enumerate(later._levels):
            self._put(level, held)

    def weighed(self) -> tuple[F64, npt.NDArray[np.int64]]:
        """The values in order, and how many each stands for."""
        values = np.concatenate([np.empty(0), *self._levels])
        weights = np.repeat(1 << np.arange(len(self._levels)), [len(one) for one in self._levels])
        order = np.argsort(values, kind="stable")
        return values[order], weights[order]

    def quantiles(self, shares: tuple[float, ...]) -> list[float]:
        """For each share the smallest value that so many are not above; nothing of nothing."""
        values, weights = self.weighed()
        if not len(values):
            return []
        below = np.cumsum(weights)
        at = np.searchsorted(below, np.ceil(np.array(shares) * below[-1]).clip(1), side="left")
        return [float(value) for value in values[at]]

    def histogram(self, low: float, high: float, *, whole: bool) -> tuple[list[float], list[int]]:
        """Edges of bins and how many values lie between them, the last edge included.

        The first and the last bin reach to ``low`` and ``high``, the others are equally wide. ``whole``: of
        whole numbers, of which a few have a bin each.
        """
        values, weights = self.weighed()
        if not len(values):
            return [], []
        if low == high:
            return [low, high], [int(weights.sum())]
        edges = _edges(low, high, *self.quantiles(INNER), whole=whole)
        at = np.searchsorted(edges[1:-1], values, side="right")
        counts = np.bincount(at, weights, len(edges) - 1)
        return [float(one) for one in edges], [int(one) for one in counts]


def _edges(low: float, high: float, first: float, last: float, *, whole: bool) -> F64:
    if whole and high - low < BINS:
        return np.append(np.arange(low, high + 1), high)
    # A few far away would leave one bin for all the others.
    if high - low <= 4 * (last - first) or first == last:
        first, last = low, high
    inner: F64 = np.linspace(first, last, BINS + 1)[:-1]
    if whole and high - low < MAX_EXACT:
        begin, end = math.floor(first), math.ceil(last) + 1
        inner = np.arange(begin, end, _whole_step(end - begin)).astype(np.float64)
    return np.concatenate([[low], inner[1:], [high]])


def _whole_step(span: int) -> int:
    """How many whole numbers a bin holds: equally many in each, and the last one as full as can be."""
    steps = (math.ceil(span / bins) for bins in range(BINS, BINS // 2, -1))
    return min(dict.fromkeys(steps), key=lambda step: -span % step / step)
