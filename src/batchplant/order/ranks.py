"""Rank sharding: which positions of an order a rank takes, batch by batch, in closed form."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from ..errors import OptionError, SampleIndexError
from ..schema.columns import I64
from .keyed import whole
from .orders import Order
from .sizes import Sizes, deal

# Dealt out together by size: more make ranks more alike, and each rank computes the sizes of all of them.
MAX_DEALT_SAMPLES = 4096
PADS = ("none", "repeat", "skip")


@dataclasses.dataclass(frozen=True)
class Shard:
    """The batches of one rank, as :func:`shard` makes it of the same parameters.

    order: what is dealt out. drop_last, start, pad: as there.
    """

    order: Order
    rank: int
    world_size: int
    batch_size: int
    drop_last: bool
    start: int
    pad: str
    sizes: Sizes | None = None

    @property
    def steps(self) -> int:
        """Number of steps; at each step every rank gets a batch."""
        remaining, step = self.order.length - self.start, self.world_size * self.batch_size
        return remaining // step if self.drop_last else -(-remaining // step)

    def __len__(self) -> int:
        """The number of batches, the same on every rank unless ``pad`` is ``"skip"``."""
        last = self.steps - 1
        return (
            last if self.pad == "skip" and last >= 0 and not self._rank_range(*self._step(last)) else last + 1
        )

    def has(self, number: int) -> bool:
        """Return True if there is such a batch."""
        return number < len(self)

    def __iter__(self) -> Iterator[I64]:
        return (self.batch(number) for number in range(len(self)))

    def _step(self, number: int) -> tuple[int, int]:
        """Return the first position of a step and its end."""
        if not 0 <= number < self.steps:
            raise SampleIndexError(f"there is no batch {number}; there are {self.steps}")
        step = self.world_size * self.batch_size
        full, remainder = divmod(self.order.length - self.start, step)
        if not self.drop_last and full and self.batch_size > 1 and 0 < remainder < self.world_size:
            # Too few for every rank: the last two steps share the remaining samples.
            full -= 1
            remainder += step
        first = self.start + min(number, full) * step
        if number < full:
            return first, first + step
        tail, turn = self.steps - full, number - full
        return first + remainder * turn // tail, first + remainder * (turn + 1) // tail

    def _rank_start(self, first: int, last: int, rank: int) -> int:
        """Return the first position of a rank in a step; the first ranks take one more if it is uneven."""
        rank_size, extra = divmod(last - first, self.world_size)
        return first + rank_size * rank + min(rank, extra)

    def _rank_range(self, first: int, last: int) -> range:
        return range(self._rank_start(first, last, self.rank), self._rank_start(first, last, self.rank + 1))

    def positions(self, number: int) -> range | I64:
        """Return the positions of this rank's batch."""
        dealt = self._dealt(number)
        return self._range(number) if dealt is None else dealt[0]

    def batch(self, number: int) -> I64:
        """Return the samples of this rank's batch."""
        dealt = self._dealt(number)
        if dealt is not None:
            return dealt[1]
        positions = self._range(number)
        return self.order[positions.start : positions.stop]

    def _range(self, number: int) -> range:
        first, last = self._step(number)
        positions = self._rank_range(first, last)
        return range(last - 1, last) if not positions and self.pad == "repeat" else positions

    def _dealt(self, number: int) -> tuple[I64, I64] | None:
        """Return the positions and samples of this rank by size; None if they are dealt by number."""
        first, last = self._step(number)
        if self.sizes is None or last - first <= self.world_size or self.world_size == 1:
            return None
        # Among many ranks, groups of neighbours share the samples of their steps.
        groups = min(-(-(last - first) // MAX_DEALT_SAMPLES), self.world_size // 2)
        group = ((self.rank + 1) * groups - 1) // self.world_size
        begin, end = group * self.world_size // groups, (group + 1) * self.world_size // groups
        positions = np.arange(
            self._rank_start(first, last, begin), self._rank_start(first, last, end), dtype=np.int64
        )
        samples = self.order.take(positions)
        # The part with the largest sample goes to another rank at every step.
        part = (self.rank - begin - number) % (end - begin)
        ours = deal(self.sizes(samples), end - begin) == part
        return positions[ours], samples[ours]

    def position_after(self, count: int) -> int:
        """Return the position after ``count`` batches of every rank: the ``start`` to resume from."""
        return self._step(count - 1)[1] if count else self.start

    @property
    def idle(self) -> int:
        """Number of ranks that have no sample at the last step."""
        if self.pad == "repeat" or not self.steps:
            return 0
        first, last = self._step(self.steps - 1)
        return max(self.world_size - (last - first), 0)


class Batches(Protocol):
    """The batches of a rank: a :class:`Shard`, or what stands in its place."""

    @property
    def order(self) -> Order: ...
    def __len__(self) -> int: ...
    def has(self, number: int) -> bool:
        """Return whether there is a batch of this number."""
        ...

    def batch(self, number: int) -> I64:
        """Return the sample numbers of the batch of this number."""
        ...

    def position_after(self, count: int) -> int:
        """Return the position in the order from which a run goes on after ``count`` batches."""
        ...


@dataclasses.dataclass(frozen=True)
class Turns:
    """Every ``step``-th batch of a shard from ``first`` on: what one of several worker processes makes."""

    shard: Batches
    first: int
    step: int

    @property
    def order(self) -> Order:
        return self.shard.order

    def __len__(self) -> int:
        return len(range(self.first, len(self.shard), self.step))

    def has(self, number: int) -> bool:
        """Return whether there is a batch of this number."""
        return self.shard.has(self.turn(number))

    def turn(self, number: int) -> int:
        """Return the batch number in the shard."""
        return self.first + number * self.step

    def batch(self, number: int) -> I64:
        """Return the sample numbers of the batch of this number."""
        return self.shard.batch(self.turn(number))

    def position_after(self, count: int) -> int:
        """Return the position after ``count`` batches of every worker."""
        last = count * self.step
        while not self.shard.has(last - 1) and last > 0:
            last -= 1
        return self.shard.position_after(last)


def shard(
    order: Order,
    *,
    rank: int,
    world_size: int,
    batch_size: int,
    drop_last: bool = False,
    start: int = 0,
    pad: str = "none",
    sizes: Sizes | None = None,
) -> Shard:
    """Deal the positions from ``start`` on out to ``world_size`` ranks, ``batch_size`` to each at every step.

    A step is the next ``world_size * batch_size`` positions, and rank r takes the r-th part of it: joined by
    (step, rank), batches give the order itself, for any world size. So a run goes on exactly from
    ``position_after`` with any world size and batch size.

    ``drop_last``: only full batches; what does not fill a step is left out. Otherwise every sample comes
    exactly once: the last step is dealt evenly, so that batches differ by one sample at most, and if it
    has fewer samples than ranks, it shares with the step before. That cannot help where fewer samples
    than ranks are left, or with ``batch_size`` 1: then some ranks' last batch is empty (``idle`` says how
    many). With ``pad="repeat"`` it has one sample of another rank, and with ``pad="skip"`` these ranks have
    one batch fewer. Rank 0 is never among them.

    ``sizes``: gives the sizes of samples. Then a step is dealt out so that ranks get about the same size, not
    the same number of samples; it has the same samples, so a run goes on exactly all the same.

    Returns: a :class:`Shard`, which knows the batches of this rank by step.
    """
    world_size = whole("world_size", world_size, 1)
    rank, batch_size = whole("rank", rank, 0, world_size - 1), whole("batch_size", batch_size, 1)
    start = whole("start", start, 0, len(order))
    if pad not in PADS:
        raise OptionError(f"pad must be {', '.join(PADS[:-1])} or {PADS[-1]}, not {pad!r}")
    return Shard(order, rank, world_size, batch_size, bool(drop_last), start, pad, sizes)
