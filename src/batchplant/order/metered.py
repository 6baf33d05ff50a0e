"""Mixtures whose weights count tokens: which source gives which position, from the lengths of documents.

Every source has a clock: the tokens that it gave, divided by its weight. A document is due when the clock of
its source stands at the middle of it, and the documents of all sources come in the order in which they are
due. So at every position the clocks differ by less than a document: each source has given its share of the
tokens so far, up to half of its longest document and its share of half of the longest one of each source.

Who comes when depends on the lengths of all documents before, so it is planned from the beginning of an
epoch, block after block. Of a block, only the clocks at its beginning are kept.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ..errors import OptionError
from ..schema.columns import I64, starts_of
from .mixture import ENDLESS, checked_plan, shares_of

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
