"""Mixtures: which source gives which position, and which of its samples. Nothing is stored for a sample.

A mixture is a row of *segments*, between the positions where weights change. Within a segment the sources
come in a pattern that repeats. One period of it is a table: every source comes in it as often as its share
says, so evenly that at every position its count is less than 1 away from weight times position. The rest is
division.

Where weights count tokens, every source has a clock: the tokens that it gave, divided by its weight. A
document is due when the clock of its source stands at the middle of it, and the documents of all sources come
in the order in which they are due. So at every position the clocks differ by less than a document: each
source has given its share of the tokens so far, up to half of its longest document and its share of half of
the longest one of each source. Who comes when depends on the lengths of all documents before, so it is
planned from the beginning of an epoch, block after block. Of a block, only the clocks at its beginning are
kept.
"""

from __future__ import annotations

import bisect
import dataclasses
import fractions
import functools
import math
import threading
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


# About how many documents a block has; of many sources, so many of each.
BLOCK_DOCUMENTS, SOURCE_DOCUMENTS = 1 << 13, 32
# Blocks whose documents are kept.
CACHED_BLOCKS = 64

# How many tokens documents have: by their sources and the turns of these.
Lengths = Callable[[I64, I64], I64]


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Positions with the same weights, from ``start`` on; ``before``: the tokens of each source by then."""

    shares: I64
    start: int
    before: I64
    # How far clocks go in a block.
    step: float

    @property
    def weights(self) -> npt.NDArray[np.float64]:
        return self.shares / int(self.shares.sum())


@dataclasses.dataclass(frozen=True)
class Block:
    """Documents that are due at one step of the clocks; ``turns`` and ``tokens`` are those before it."""

    stretch: int
    step: int
    first: int
    count: int
    turns: I64
    tokens: I64


class Metered:
    """The plan of one epoch; it answers as :class:`batchplant.order.mixture.Blend` does.

    totals: the tokens of every source. The rest is as with :func:`batchplant.order.mixture.blend`.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        weights: Sequence[float],
        totals: I64,
        lengths: Lengths,
        *,
        schedule: Sequence[tuple[int, Sequence[float]]] = (),
        stop: str | int = "first",
        max_repeats: int | None = None,
    ) -> None:
        self.sizes, todo, self._stop, self._most = checked_plan(sizes, weights, schedule, stop, max_repeats)
        self._todo, self._repeats, self._lengths = todo, max_repeats, lengths
        self._means = np.maximum(totals, 1) / np.maximum(self.sizes, 1)
        self._lock = threading.RLock()
        # Sources that were gone through as often as they may.
        self._gone = np.zeros(len(self.sizes), dtype=np.bool_)
        self._blocks: list[Block] = []
        self._firsts: list[int] = []
        self._step, self._at = 0, 0
        self._turns, self._tokens = np.zeros((2, len(self.sizes)), dtype=np.int64)
        self.segments: list[Stretch] = []
        self._end: int | None = None
        self._begin()
        self._contents = functools.lru_cache(CACHED_BLOCKS)(self._made)

    # -- planning --------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """A new stretch at the present position, or the end."""
        weights = [
            0.0 if exhausted else weight
            for weight, exhausted in zip(self._todo[0][1], self._gone, strict=True)
        ]
        if not any(weights):
            if len(self._todo) > 1 and not self._gone.all():
                raise OptionError(f"from position {self._at} on, every source that has a weight is used up")
            self._end = self._at
            return
        shares, documents = shares_of(weights), max(BLOCK_DOCUMENTS, SOURCE_DOCUMENTS * len(weights))
        step = documents / float((shares / self._means).sum())
        self.segments.append(Stretch(shares, self._at, self._tokens, step))
        self._step = 0

    def _made(self, stretch: int, step: int, turns: bytes, tokens: bytes) -> tuple[I64, I64, I64]:
        """The documents that are due at a step: their sources, turns and lengths."""
        now = self.segments[stretch]
        used = np.flatnonzero(now.shares)
        shares = now.shares[used]
        begun = np.frombuffer(turns, dtype=np.int64)[used]
        given_tokens = (np.frombuffer(tokens, dtype=np.int64) - now.before)[used]
        until = (step + 1) * now.step
        wanted_turns = (
            np.maximum((until * shares - given_tokens) / self._means[used] * 1.25, 0).astype(np.int64) + 16
        )
        while True:
            source_of_turn = np.repeat(np.arange(len(used)), wanted_turns)
            starts = starts_of(wanted_turns)
            source, turn = (
                used[source_of_turn],
                begun[source_of_turn] + np.arange(len(source_of_turn)) - starts[source_of_turn],
            )
            lengths = self._lengths(source, turn)
            sums = np.concatenate([[0], np.cumsum(lengths)])
            before = given_tokens[source_of_turn] + sums[:-1] - sums[starts[source_of_turn]]
            due = (before + lengths / 2) / shares[source_of_turn]
            short = due[starts[1:] - 1] < until
            if not short.any():
                break
            wanted_turns[short] *= 2
        chosen = np.flatnonzero(due < until)
        chosen = chosen[np.argsort(due[chosen], kind="stable")]
        return source[chosen], turn[chosen], lengths[chosen]

    def _extend(self) -> None:
        """Plan the next block."""
        number = len(self.segments) - 1
        source, turn, length = self._contents(
            number, self._step, self._turns.tobytes(), self._tokens.tobytes()
        )
        end, change, exhausted = self._events(source, turn)
        count = min(len(source), end, change, exhausted)
        if count:
            self._blocks.append(Block(number, self._step, self._at, count, self._turns, self._tokens))
            self._firsts.append(self._at)
        sources = len(self.sizes)
        self._turns = self._turns + np.bincount(source[:count], minlength=sources)
        sums = np.bincount(source[:count], weights=length[:count], minlength=sources)
        self._tokens = self._tokens + sums.astype(np.int64)
        self._at, self._step = self._at + count, self._step + 1
        if count == end:
            self._end = self._at
        elif count in (change, exhausted):
            if count == exhausted:
                self._gone |= self._turns >= (self._repeats or 1) * self.sizes
            if count == change:
                self._todo.pop(0)
            self._begin()

    def _events(self, source: I64, turn: I64) -> tuple[int, int, int]:
        """After how many documents the epoch ends, weights change, and a source leaves; else ENDLESS."""
        end = self._most - self._at
        if self._stop != "never":
            weighted = np.any([weights for _, weights in self._todo], axis=0).astype(np.bool_)
            open_ = weighted & (self._turns < self.sizes)
            through = np.flatnonzero((turn + 1 == self.sizes[source]) & open_[source]) + 1
            if self._stop == "first" and (weighted & ~open_).any():
                end = 0
            elif self._stop == "first" and len(through):
                end = min(end, int(through[0]))
            elif self._stop == "all" and len(through) == open_.sum():
                end = min(end, int(through[-1]) if len(through) else 0)
        change = self._todo[1][0] - self._at if len(self._todo) > 1 else ENDLESS
        used = np.zeros(0, dtype=np.int64)
        if self._repeats is not None:
            used = np.flatnonzero(turn + 1 == self._repeats * self.sizes[source]) + 1
        return end, change, int(used[0]) if len(used) else ENDLESS

    def _reach(self, position: int) -> None:
        """Plan until a position is known."""
        with self._lock:
            while self._at <= position and self._end is None:
                self._extend()

    @functools.cached_property
    def length(self) -> int:
        if self._stop == "never" and self._repeats is None:
            return self._most
        self._reach(ENDLESS)
        assert self._end is not None
        return self._end

    # -- asking ----------------------------------------------------------------------------------------

    def _block(self, position: int) -> Block | None:
        """The block that a position is in; at the end the last one."""
        self._reach(position)
        block_number = bisect.bisect_right(self._firsts, position) - 1
        return self._blocks[block_number] if block_number >= 0 else None

    def _documents(self, block: Block) -> tuple[I64, I64, I64]:
        contents = self._contents(block.stretch, block.step, block.turns.tobytes(), block.tokens.tobytes())
        source, turn, length = (column[: block.count] for column in contents)
        return source, turn, length

    def at(self, positions: I64) -> tuple[I64, I64]:
        """Return the source of each position, and its turn there; turns go on from pass to pass."""
        source, turn = np.empty_like(positions), np.empty_like(positions)
        if not len(positions):
            return source, turn
        self._reach(int(positions.max()))
        blocks = np.searchsorted(self._firsts, positions, side="right") - 1
        for number in np.unique(blocks).tolist():
            block, rows = self._blocks[number], blocks == number
            sources, turns, _ = self._documents(block)
            source[rows], turn[rows] = (column[positions[rows] - block.first] for column in (sources, turns))
        return source, turn

    def counts(self, position: int) -> I64:
        """Count the samples of each source before a position."""
        return self._sums(position)[0]

    def tokens(self, position: int) -> I64:
        """Count the tokens of each source before a position."""
        return self._sums(position)[1]

    def _sums(self, position: int) -> tuple[I64, I64]:
        block, none = self._block(position), np.zeros(len(self.sizes), dtype=np.int64)
        if block is None:
            return none, none
        source, _, length = (column[: position - block.first] for column in self._documents(block))
        turns = np.bincount(source, minlength=len(self.sizes))
        tokens = np.bincount(source, weights=length, minlength=len(self.sizes)).astype(np.int64)
        return block.turns + turns, block.tokens + tokens

    def span(self, position: int) -> tuple[I64, I64]:
        """At which position each source comes first, and last before this one; -1 where it does not."""
        counts = self.counts(position)
        turns = np.array([block.turns for block in self._blocks])
        first, last = np.full(len(counts), -1), np.full(len(counts), -1)
        for source in np.flatnonzero(counts).tolist():
            for places, turn in ((first, 0), (last, counts[source] - 1)):
                block = self._blocks[int(np.searchsorted(turns[:, source], turn, side="right")) - 1]
                block_sources, numbers, _ = self._documents(block)
                places[source] = block.first + int(
                    np.flatnonzero((block_sources == source) & (numbers == turn))[0]
                )
        return first, last

    def passes(self, position: int) -> npt.NDArray[np.float64]:
        """Count the passes through each source before a position."""
        return self.counts(position) / np.maximum(self.sizes, 1)

    def starts(self, end: int) -> list[int]:
        """The positions before ``end`` from which on other weights hold, 0 first."""
        self._reach(end - 1)
        return [segment.start for segment in self.segments if segment.start < end]

    def weights(self, position: int) -> npt.NDArray[np.float64]:
        """The weights at a position, which sum up to 1."""
        self._reach(position)
        return next(segment.weights for segment in reversed(self.segments) if segment.start <= position)
