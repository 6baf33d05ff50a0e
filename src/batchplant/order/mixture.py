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
    least = values[values > 0].min()
    # The smallest has a few turns in a period, so that its weight is not far off.
    period = int(min(max(PERIOD, 2 ** math.ceil(math.log2(8 / least))), FINEST))
    wanted = values * period
    made: I64 = np.floor(wanted).astype(np.int64)
    made[(made == 0) & (values > 0)] = 1
    rest = period - int(made.sum())
    if rest > 0:
        made[np.argsort(made - wanted, kind="stable")[:rest]] += 1
    return made


def _exact(weights: Sequence[float]) -> I64 | None:
    parts, scale = [], 1
    # One after another: of thousands of weights, the first that is not round tells.
    for one in weights:
        part = fractions.Fraction(one).limit_denominator(10**6)
        scale = math.lcm(scale, part.denominator)
        if float(part) != float(one) or scale > 2**60:
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
        """Which source gives each position, and which of its turns that is, over all segments."""
        past = positions - self.start
        lap, place = past // self.period, past % self.period
        source = self.source[place].astype(np.int64)
        turn = self.turn[place].astype(np.int64)
        return source, self.before[source] + lap * self.shares[source] + turn

    def counts(self, position: int) -> I64:
        """How often each source came before a position."""
        lap, place = divmod(position - self.start, self.period)
        within = np.bincount(self.source[:place], minlength=len(self.shares))
        return self.before + lap * self.shares + within

    def after(self, turns: I64) -> I64:
        """For every source, the position after it has had so many turns; ENDLESS where it has no more."""
        lap, rest = np.divmod(np.maximum(turns - self.before, 1) - 1, np.maximum(self.shares, 1))
        # Where each source has that turn of the pattern: once, unless it has none at all.
        places = np.flatnonzero(self.turn == rest.astype(np.uint32)[self.source])
        at = np.full(len(self.shares), ENDLESS)
        sources = self.source[places]
        at[sources] = self.start + lap[sources] * self.period + places + 1
        return np.where(turns <= self.before, self.start, at)

    @property
    def weights(self) -> npt.NDArray[np.float64]:
        return self.shares / self.period


@functools.lru_cache(8)
def _table(shares: bytes) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    return _native.interleave(np.frombuffer(shares, dtype=np.int64))


class Plan(Protocol):
    """Who comes when in an epoch of a mixture; :class:`Blend` and ``metered.Metered`` are such plans."""

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
        """Which source gives each position, and which of its turns that is; turns go on from pass to pass."""
        if len(self.segments) == 1:
            return self.segments[0].at(positions)
        which = np.searchsorted([one.start for one in self.segments], positions, side="right") - 1
        source, turn = np.empty_like(positions), np.empty_like(positions)
        for number in np.unique(which):
            rows = which == number
            source[rows], turn[rows] = self.segments[number].at(positions[rows])
        return source, turn

    def counts(self, position: int) -> I64:
        """How many samples of each source come before a position."""
        later = [one for one in self.segments if one.start <= position]
        return (later[-1] if later else self.segments[0]).counts(position)

    def span(self, position: int) -> tuple[I64, I64]:
        """At which position each source comes first, and last before this one; -1 where it does not."""
        counts = self.counts(position)
        first, last = np.full(len(counts), -1), np.full(len(counts), -1)
        begun = [one for one in self.segments if one.start < position]
        for one, until in zip(begun, [*(one.before for one in begun[1:]), counts], strict=True):
            came = until > one.before
            first = np.where(came & (first < 0), one.after(one.before + 1) - 1, first)
            last = np.where(came, one.after(until) - 1, last)
        return first, last

    def passes(self, position: int) -> npt.NDArray[np.float64]:
        """How often each source was gone through before a position."""
        return self.counts(position) / np.maximum(self.sizes, 1)

    def starts(self, end: int) -> list[int]:
        """The positions before ``end`` from which on other weights hold, 0 first."""
        return [one.start for one in self.segments if one.start < end]

    def weights(self, position: int) -> npt.NDArray[np.float64]:
        """The weights at a position, which sum up to 1."""
        return next(one.weights for one in reversed(self.segments) if one.start <= position)


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
    counts, plan, stop, most = checked_plan(
        sizes, list(sizes) if weights is None else weights, schedule, stop, max_repeats
    )
    found = _Planner(counts, plan, stop, max_repeats).plan()
    return dataclasses.replace(found, length=min(found.length, most))


def checked_plan(
    sizes: Sequence[int],
    weights: Sequence[float],
    schedule: Sequence[tuple[int, Sequence[float]]],
    stop: str | int,
    max_repeats: int | None,
) -> tuple[I64, list[tuple[int, list[float]]], str, int]:
    """Check what :func:`blend` takes: sizes, all weights with their positions, when to stop, the length."""
    counts = np.array([whole("size", one, 0) for one in sizes], dtype=np.int64)
    most = ENDLESS
    if not isinstance(stop, str):
        most, stop = whole("stop", stop, 1, ENDLESS), "never"
    if stop not in STOPS:
        raise OptionError(f"stop is {', '.join(STOPS)} or a number of samples, not {stop!r}")
    if max_repeats is not None:
        whole("max_repeats", max_repeats, 1)
    plan = [(0, list(weights)), *((at, list(w)) for at, w in schedule)]
    for number, (at, one) in enumerate(plan):
        if not all(0 <= weight < math.inf for weight in one) or not sum(one):
            raise OptionError("weights must be finite, none below 0 and not all 0")
        if len(one) != len(counts):
            raise OptionError(f"there are {len(counts)} sources, but {len(one)} weights")
        if number and at <= plan[number - 1][0]:
            raise OptionError("a schedule needs positions that grow, the first above 0")
        for source, weight in enumerate(one):
            if weight and not counts[source]:
                raise OptionError(f"source {source} has a weight, but no samples")
    return counts, plan, stop, most


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
            weights = [0.0 if gone else w for w, gone in zip(self.todo[0][1], self.left, strict=True)]
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
        """Where the epoch would end if the weights stayed."""
        asked = np.array([any(w[source] for _, w in self.todo) for source in range(len(self.sizes))])
        if self.stop == "never":
            return ENDLESS
        ends = segment.after(self.sizes)[asked]
        return int(ends.min() if self.stop == "first" else ends.max())

    def _used_up(self, segment: Segment) -> I64:
        """Where each source was gone through as often as it may."""
        if self.repeats is None:
            return np.full(len(self.sizes), ENDLESS)
        return np.where(self.left, ENDLESS, segment.after(self.repeats * self.sizes))


@dataclasses.dataclass(frozen=True, eq=False)
class Mixed(Order):
    """What :func:`mixed` gives: it can also say whose sample stands at a position."""

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
    most = plan.counts(plan.length) if plan.length < ENDLESS else np.full(len(plan.sizes), ENDLESS)
    used = plan.sizes > 0
    passes = int((-(-most[used] // plan.sizes[used])).max(initial=1)) if used.any() else 1
    numbers = numbering(plan.sizes, seed=seed, epoch=epoch, order=order)
    return Mixed(
        numbered(passes, total), min(plan.length, LONGEST), lambda at: numbers(*plan.at(at)), blend=plan
    )


def numbered(passes: int, total: int) -> int:
    """How many numbers samples have in so many passes through all sources."""
    return min(max(passes, 1) * max(total, 1), LONGEST) if total else 0


def numbering(
    sizes: I64, *, seed: int, epoch: int, order: Callable[[int, int], Order] | None = None
) -> Callable[[I64, I64], I64]:
    """The numbers of samples by their sources and the turns of these; see :func:`mixed`."""
    firsts = starts_of(sizes)
    if order is None:
        key = key_of(seed, epoch, 7)

        def shuffled(source: I64, turn: I64) -> I64:
            lap, place = np.divmod(turn, sizes[source])
            found: I64 = permute(place, sizes[source], derive(derive(key, source), lap)) + firsts[source]
            found += lap * firsts[-1]
            return found

        return shuffled
    made = functools.lru_cache(max(64, 4 * len(sizes)))(order)

    def ordered(source: I64, turn: I64) -> I64:
        lap, place = np.divmod(turn, sizes[source])
        found: I64 = np.empty_like(turn)
        groups, rows = np.unique(np.stack([source, lap]), axis=1, return_inverse=True)
        for number, (one, which) in enumerate(groups.T.tolist()):
            own = rows.reshape(-1) == number
            found[own] = made(one, which).take(place[own])
        found += firsts[source] + lap * firsts[-1]
        return found

    return ordered
