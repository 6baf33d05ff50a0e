"""Skips: samples and positions that an epoch leaves out while all others keep their positions and ranks."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable
from typing import Protocol

import numpy as np

from ..errors import OptionError
from ..schema.columns import I64, Flags
from .keyed import CHUNK
from .orders import Order
from .ranks import Batches

# Positions that are looked at first for a sample that replaces another; then more.
FIRST_LOOK = 64
# More steps than positions tell: the last ones of an epoch are smaller.
TAIL_STEPS = 4


@dataclasses.dataclass(frozen=True)
class Skips:
    """The samples and positions that an epoch leaves out.

    is_skipped: flags numbers of the order. ranges: (first position, end), in order and apart from each other.
    replace: the next sample of the order comes in place of a skipped one, except within ranges.
    """

    is_skipped: Callable[[I64], Flags]
    ranges: tuple[tuple[int, int], ...] = ()
    replace: bool = False

    def within(self, positions: I64) -> Flags:
        """Flag positions that are in a range."""
        inside = np.zeros(len(positions), dtype=np.bool_)
        for first, stop in self.ranges:
            inside |= (positions >= first) & (positions < stop)
        return inside

    def following(self, order: Order, position: int) -> int:
        """Return the first number behind a position that is not left out; behind the end, from the start."""
        walked, size = 1, FIRST_LOOK
        while walked < order.length:
            positions = (position + np.arange(walked, min(walked + size, order.length))) % order.length
            numbers = order.take(positions)
            usable = np.flatnonzero(~(self.is_skipped(numbers) | self.within(positions)))
            if len(usable):
                return int(numbers[usable[0]])
            walked, size = walked + size, min(2 * size, CHUNK)
        raise OptionError("skip leaves out every sample of the epoch: nothing can replace them")


class Dealt(Batches, Protocol):
    """A shard whose positions are known: :class:`Shard`, or one of packed rows."""

    @property
    def start(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    def positions(self, number: int) -> range | I64:
        """Return the positions of this rank's batch."""
        ...


class SkippedShard:
    """The batches of a shard without what ``skips`` leaves out.

    A step of which nothing is left on any rank is passed over; any other step has its batch on every rank,
    with fewer samples or others in their place.
    """

    def __init__(self, shard: Dealt, skips: Skips) -> None:
        self.shard, self.skips = shard, skips
        self._step = shard.world_size * shard.batch_size
        self._gaps: dict[int, tuple[int, int]] = {}

    @property
    def order(self) -> Order:
        return self.shard.order

    def _gap(self, index: int) -> tuple[int, int]:
        """Return the first step that lies in a range, and the one behind the last."""
        if index not in self._gaps:
            shard, (first, stop) = self.shard, self.skips.ranges[index]

            def ends_after(step: int, position: int) -> bool:
                return not shard.has(step) or shard.position_after(step + 1) > position

            def search(key: Callable[[int], bool], position: int) -> int:
                end = max(0, (position - shard.start) // self._step) + TAIL_STEPS
                return bisect.bisect_left(range(end), True, key=key)

            begin = search(lambda step: not shard.has(step) or shard.position_after(step) >= first, first)
            end = search(lambda step: ends_after(step, stop), stop)
            self._gaps[index] = begin, max(begin, end)
        return self._gaps[index]

    def step(self, number: int) -> int:
        """Return the number in the shard of a batch."""
        for index, (first, _) in enumerate(self.skips.ranges):
            # Steps have at most so many positions; packed rows are not planned farther than needed.
            if first >= self.shard.start + (number + 1) * self._step:
                break
            begin, end = self._gap(index)
            if number >= begin:
                number += end - begin
        return number

    def __len__(self) -> int:
        gaps = [self._gap(index) for index in range(len(self.skips.ranges))]
        return len(self.shard) - sum(end - begin for begin, end in gaps)

    def has(self, number: int) -> bool:
        """Return whether there is a batch of this number."""
        return self.shard.has(self.step(number))

    def position_after(self, count: int) -> int:
        """Return the position from which a run goes on after ``count`` batches."""
        return self.shard.position_after(self.step(count - 1) + 1 if count else 0)

    def batch(self, number: int) -> I64:
        """Return the numbers of a batch, without those that are skipped or with others in their place."""
        step = self.step(number)
        numbers = self.shard.batch(step)
        skipped = self.skips.is_skipped(numbers)
        if not (skipped.any() or self.skips.ranges):
            return numbers
        positions = np.asarray(self.shard.positions(step), dtype=np.int64)
        left_out = self.skips.within(positions)
        if self.skips.replace:
            numbers = numbers.copy()
            for row in np.flatnonzero(skipped & ~left_out).tolist():
                numbers[row] = self.skips.following(self.order, int(positions[row]))
        else:
            left_out |= skipped
        return numbers[~left_out]
