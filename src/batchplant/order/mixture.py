"""Mixtures: which source gives which position, and which of its samples. Nothing is stored for a sample.

A mixture is a row of *segments*, between the positions where weights change. Within a segment the sources
come in a pattern that repeats. One period of it is a table: every source comes in it as often as its share
says, so evenly that at every position its count is less than 1 away from weight times position. The rest is
division.
"""

from __future__ import annotations

import dataclasses
import fractions
import functools
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .. import _native
from ..errors import OptionError
from ..schema.columns import I64, starts_of
from .keyed import LONGEST, derive, key_of, permute, whole
from .orders import Order

# The longest period: finer weights are rounded to it.
PERIOD, FINEST = 2**20, 2**21
STOPS = ("first", "all", "never")
# An epoch of a mixture that never ends.
ENDLESS = 2**44


def shares_of(weights: Sequence[float]) -> I64:
    """Whole numbers in the same proportion: exactly, where a period that is not too long allows it.

    Otherwise rounded to a millionth of the whole or finer; a weight that is not 0 never becomes 0.
    """
    exact = _exact(weights)
    if exact is not None:
        return exact
    values = np.asarray(weights, dtype=np.float64)
    values = values / values.sum()
    smallest = values[values > 0].min()
    # The smallest has a few turns in a period, so that its weight is not far off.
    period = int(min(max(PERIOD, 2 ** math.ceil(math.log2(8 / smallest))), FINEST))
    exact_shares = values * period
    shares: I64 = np.floor(exact_shares).astype(np.int64)
    shares[(shares == 0) & (values > 0)] = 1
    missing = period - int(shares.sum())
    if missing > 0:
        shares[np.argsort(shares - exact_shares, kind="stable")[:missing]] += 1
    return shares


def _exact(weights: Sequence[float]) -> I64 | None:
    parts, scale = [], 1
    # One after another: of thousands of weights, the first that is not round tells.
    for weight in weights:
        part = fractions.Fraction(weight).limit_denominator(10**6)
        scale = math.lcm(scale, part.denominator)
        if float(part) != float(weight) or scale > 2**60:
            return None
        parts.append(part)
    numbers = [int(part * scale) for part in parts]
    common = math.gcd(*numbers)
    numbers = [number // common for number in numbers]
    return np.array(numbers, dtype=np.int64) if sum(numbers) <= PERIOD else None


class Segment:
    """Positions with the same weights, from ``start`` on; ``before``: how often each source came earlier."""

    def __init__(self, shares: I64, start: int, before: I64) -> None:
        self.shares, self.start, self.before = shares, start, before
        self.source, self.turn = _table(shares.tobytes())
        self.period = len(self.source)

    def at(self, positions: I64) -> tuple[I64, I64]:
        """Return the source of each position, and its turn there, counted over all segments."""
        past = positions - self.start
        lap, offset = past // self.period, past % self.period
        source = self.source[offset].astype(np.int64)
        turn = self.turn[offset].astype(np.int64)
        return source, self.before[source] + lap * self.shares[source] + turn

    def counts(self, position: int) -> I64:
        """Count the turns of each source before a position."""
        lap, offset = divmod(position - self.start, self.period)
        within = np.bincount(self.source[:offset], minlength=len(self.shares))
        return self.before + lap * self.shares + within

    def after(self, turns: I64) -> I64:
        """For every source, the position after it has had so many turns; ENDLESS where it has no more."""
        lap, remainder = np.divmod(np.maximum(turns - self.before, 1) - 1, np.maximum(self.shares, 1))
        # Where each source has that turn of the pattern: once, unless it has none at all.
        places = np.flatnonzero(self.turn == remainder.astype(np.uint32)[self.source])
        positions = np.full(len(self.shares), ENDLESS)
        sources = self.source[places]
        positions[sources] = self.start + lap[sources] * self.period + places + 1
        return np.where(turns <= self.before, self.start, positions)

    @property
    def weights(self) -> npt.NDArray[np.float64]:
        return self.shares / self.period


@functools.lru_cache(8)
def _table(shares: bytes) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    return _native.interleave(np.frombuffer(shares, dtype=np.int64))


class Plan(Protocol):
    """The sequence of sources in an epoch of a mixture: :class:`Blend` or ``metered.Metered``."""

    @property
    def sizes(self) -> I64: ...
    @property
    def length(self) -> int: ...
    def at(self, positions: I64) -> tuple[I64, I64]: ...
    def counts(self, position: int) -> I64: ...
    def span(self, position: int) -> tuple[I64, I64]: ...
    def passes(self, position: int) -> npt.NDArray[np.float64]: ...
    def weights(self, position: int) -> npt.NDArray[np.float64]: ...
    def starts(self, end: int) -> list[int]: ...


@dataclasses.dataclass(frozen=True, eq=False)
class Blend:
    """The plan of a mixture: no seed, no samples, only who comes when. See :func:`blend`."""

    sizes: I64
    segments: tuple[Segment, ...]
    length: int

    def at(self, positions: I64) -> tuple[I64, I64]:
        """Return the source of each position, and its turn there; turns go on from pass to pass."""
        if len(self.segments) == 1:
            return self.segments[0].at(positions)
        segment_of_position = (
            np.searchsorted([segment.start for segment in self.segments], positions, side="right") - 1
        )
        source, turn = np.empty_like(positions), np.empty_like(positions)
        for number in np.unique(segment_of_position):
            rows = segment_of_position == number
            source[rows], turn[rows] = self.segments[number].at(positions[rows])
        return source, turn

    def counts(self, position: int) -> I64:
        """Count the samples of each source before a position."""
        later = [segment for segment in self.segments if segment.start <= position]
        return (later[-1] if later else self.segments[0]).counts(position)

    def span(self, position: int) -> tuple[I64, I64]:
        """At which position each source comes first, and last before this one; -1 where it does not."""
        counts = self.counts(position)
        first, last = np.full(len(counts), -1), np.full(len(counts), -1)
        begun = [segment for segment in self.segments if segment.start < position]
        for segment, until in zip(begun, [*(segment.before for segment in begun[1:]), counts], strict=True):
            is_new = until > segment.before
            first = np.where(is_new & (first < 0), segment.after(segment.before + 1) - 1, first)
            last = np.where(is_new, segment.after(until) - 1, last)
        return first, last

    def passes(self, position: int) -> npt.NDArray[np.float64]:
        """Count the passes through each source before a position."""
        return self.counts(position) / np.maximum(self.sizes, 1)

    def starts(self, end: int) -> list[int]:
        """The positions before ``end`` from which on other weights hold, 0 first."""
        return [segment.start for segment in self.segments if segment.start < end]

    def weights(self, position: int) -> npt.NDArray[np.float64]:
        """The weights at a position, which sum up to 1."""
        return next(segment.weights for segment in reversed(self.segments) if segment.start <= position)


def blend(
    sizes: Sequence[int],
    weights: Sequence[float] | None = None,
    *,
    schedule: Sequence[tuple[int, Sequence[float]]] = (),
    stop: str | int = "first",
    max_repeats: int | None = None,
) -> Blend:
    """Plan a mixture of sources of these sizes.

    weights: how often each source comes (default: in proportion to its size). schedule: (position, weights)
    from which on others hold. stop: the epoch ends when the first source is through (``first``), when all are
    (``all``: the others begin again until then), not at all (``never``), or after so many positions (a
    number). max_repeats: how often a source is gone through at most; then it leaves the mixture, and the
    others go on in their proportion.
    """
    counts, plan, stop, max_length = checked_plan(
        sizes, list(sizes) if weights is None else weights, schedule, stop, max_repeats
    )
    segments = _Planner(counts, plan, stop, max_repeats).plan()
    return dataclasses.replace(segments, length=min(segments.length, max_length))


def checked_plan(
    sizes: Sequence[int],
    weights: Sequence[float],
    schedule: Sequence[tuple[int, Sequence[float]]],
    stop: str | int,
    max_repeats: int | None,
) -> tuple[I64, list[tuple[int, list[float]]], str, int]:
    """Check what :func:`blend` takes: sizes, all weights with their positions, when to stop, the length."""
    counts = np.array([whole("size", size, 0) for size in sizes], dtype=np.int64)
    max_length = ENDLESS
    if not isinstance(stop, str):
        max_length, stop = whole("stop", stop, 1, ENDLESS), "never"
    if stop not in STOPS:
        raise OptionError(f"stop is {', '.join(STOPS)} or a number of samples, not {stop!r}")
    if max_repeats is not None:
        whole("max_repeats", max_repeats, 1)
    plan = [(0, list(weights)), *((position, list(w)) for position, w in schedule)]
    for number, (start, change_weights) in enumerate(plan):
        if not all(0 <= weight < math.inf for weight in change_weights) or not sum(change_weights):
            raise OptionError("weights must be finite, none below 0 and not all 0")
        if len(change_weights) != len(counts):
            raise OptionError(f"there are {len(counts)} sources, but {len(change_weights)} weights")
        if number and start <= plan[number - 1][0]:
            raise OptionError("a schedule needs positions that grow, the first above 0")
        for source, weight in enumerate(change_weights):
            if weight and not counts[source]:
                raise OptionError(f"source {source} has a weight, but no samples")
    return counts, plan, stop, max_length


class _Planner:
    def __init__(
        self, sizes: I64, plan: list[tuple[int, list[float]]], stop: str, max_repeats: int | None
    ) -> None:
        self.sizes, self.todo, self.stop, self.repeats = sizes, plan, stop, max_repeats
        # Sources that were gone through as often as they may.
        self.left = np.zeros(len(sizes), dtype=np.bool_)
        self.segments: list[Segment] = []

    def plan(self) -> Blend:
        start, before, length = 0, np.zeros(len(self.sizes), dtype=np.int64), ENDLESS
        while True:
            weights = [
                0.0 if exhausted else w for w, exhausted in zip(self.todo[0][1], self.left, strict=True)
            ]
            if not any(weights):
                if len(self.todo) > 1 and not self.left.all():
                    raise OptionError(f"from position {start} on, every source that has a weight is used up")
                length = start
                break
            segment = Segment(shares_of(weights), start, before)
            self.segments.append(segment)
            end = self._end(segment)
            change = self.todo[1][0] if len(self.todo) > 1 else ENDLESS
            used = self._used_up(segment)
            first = min(change, int(used.min()))
            if end <= first:
                length = min(end, ENDLESS)
                break
            self.left |= used == first
            if change == first:
                self.todo.pop(0)
            before, start = segment.counts(first), first
        return Blend(self.sizes, tuple(self.segments) or (self._nothing(),), length)

    def _nothing(self) -> Segment:
        return Segment(np.ones(len(self.sizes), dtype=np.int64), 0, np.zeros(len(self.sizes), dtype=np.int64))

    def _end(self, segment: Segment) -> int:
        """Return the position at which the epoch would end if the weights stayed."""
        weighted = np.array([any(w[source] for _, w in self.todo) for source in range(len(self.sizes))])
        if self.stop == "never":
            return ENDLESS
        ends = segment.after(self.sizes)[weighted]
        return int(ends.min() if self.stop == "first" else ends.max())

    def _used_up(self, segment: Segment) -> I64:
        """Return the position at which each source reaches its maximum of passes."""
        if self.repeats is None:
            return np.full(len(self.sizes), ENDLESS)
        return np.where(self.left, ENDLESS, segment.after(self.repeats * self.sizes))


@dataclasses.dataclass(frozen=True, eq=False)
class Mixed(Order):
    """The order that :func:`mixed` returns; it also tells the source of a position."""

    blend: Plan = dataclasses.field(repr=False, kw_only=True)


def mixed(
    plan: Blend,
    *,
    seed: int,
    epoch: int,
    order: Callable[[int, int], Order] | None = None,
) -> Mixed:
    """The samples of a mixture, position by position.

    The samples of the sources are numbered one source after another, and pass after pass: a sample that comes
    again has its number plus that of all samples. Every pass through a source is shuffled anew, unless
    ``order(source, pass)`` gives another order of its samples.
    """
    total = int(plan.sizes.sum())
    counts = plan.counts(plan.length) if plan.length < ENDLESS else np.full(len(plan.sizes), ENDLESS)
    used = plan.sizes > 0
    passes = int((-(-counts[used] // plan.sizes[used])).max(initial=1)) if used.any() else 1
    numbers = numbering(plan.sizes, seed=seed, epoch=epoch, order=order)
    return Mixed(
        numbered(passes, total),
        min(plan.length, LONGEST),
        lambda positions: numbers(*plan.at(positions)),
        blend=plan,
    )


def numbered(passes: int, total: int) -> int:
    """Return how many sample numbers some passes through all sources take."""
    return min(max(passes, 1) * max(total, 1), LONGEST) if total else 0


def numbering(
    sizes: I64, *, seed: int, epoch: int, order: Callable[[int, int], Order] | None = None
) -> Callable[[I64, I64], I64]:
    """The numbers of samples by their sources and the turns of these; see :func:`mixed`."""
    firsts = starts_of(sizes)
    if order is None:
        key = key_of(seed, epoch, 7)

        def shuffled(source: I64, turn: I64) -> I64:
            lap, offset = np.divmod(turn, sizes[source])
            numbers: I64 = permute(offset, sizes[source], derive(derive(key, source), lap)) + firsts[source]
            numbers += lap * firsts[-1]
            return numbers

        return shuffled
    cached_order = functools.lru_cache(max(64, 4 * len(sizes)))(order)

    def ordered(source: I64, turn: I64) -> I64:
        lap, offset = np.divmod(turn, sizes[source])
        numbers: I64 = np.empty_like(turn)
        groups, rows = np.unique(np.stack([source, lap]), axis=1, return_inverse=True)
        for number, (source_number, lap_number) in enumerate(groups.T.tolist()):
            selected = rows.reshape(-1) == number
            numbers[selected] = cached_order(source_number, lap_number).take(offset[selected])
        numbers += firsts[source] + lap * firsts[-1]
        return numbers

    return ordered
