"""Rank sharding: which positions of an order a rank takes, batch by batch, in closed form."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ..columns import I64
from ..errors import OptionError, SampleIndexError
from .keyed import whole
from .orders import Order


@dataclasses.dataclass(frozen=True)
class Shard:
    """The batches of one rank; see :func:`shard`."""

    order: Order
    rank: int
    world: int
    batch_size: int
    drop_last: bool
    start: int
    pad: str

    def __len__(self) -> int:
        """The number of batches, the same on every rank."""
        left, step = self.order.length - self.start, self.world * self.batch_size
        return left // step if self.drop_last else -(-left // step)

    def __iter__(self) -> Iterator[I64]:
        return (self.batch(number) for number in range(len(self)))

    def _step(self, number: int) -> tuple[int, int]:
        """The positions that all ranks together take with this batch."""
        if not 0 <= number < len(self):
            raise SampleIndexError(f"there is no batch {number}; there are {len(self)}")
        step = self.world * self.batch_size
        full, rest = divmod(self.order.length - self.start, step)
        if not self.drop_last and full and self.batch_size > 1 and 0 < rest < self.world:
            # Too few for every rank: the last two steps share what is left.
            full -= 1
            rest += step
        first = self.start + min(number, full) * step
        if number < full:
            return first, first + step
        tail, turn = len(self) - full, number - full
        return first + rest * turn // tail, first + rest * (turn + 1) // tail

    def positions(self, number: int) -> range:
        """The positions of this rank's batch."""
        first, last = self._step(number)
        begin = first + (last - first) * self.rank // self.world
        end = first + (last - first) * (self.rank + 1) // self.world
        return range(begin, max(end, begin + 1) if self.pad == "repeat" else end)

    def batch(self, number: int) -> I64:
        """The samples of this rank's batch."""
        at = self.positions(number)
        return self.order[at.start : at.stop]

    def position_after(self, count: int) -> int:
        """Where the epoch stands after so many batches of every rank: the ``start`` to go on from."""
        return self._step(count - 1)[1] if count else self.start

    @property
    def idle(self) -> int:
        """How many ranks get an empty last batch; 0 unless the samples cannot go round."""
        if self.pad == "repeat" or not len(self):
            return 0
        first, last = self._step(len(self) - 1)
        return max(self.world - (last - first), 0)


@dataclasses.dataclass(frozen=True)
class Turns:
    """Every ``step``-th batch of a shard from ``first`` on: what one of several worker processes makes."""

    shard: Shard
    first: int
    step: int

    @property
    def order(self) -> Order:
        return self.shard.order

    def __len__(self) -> int:
        return len(range(self.first, len(self.shard), self.step))

    def batch(self, number: int) -> I64:
        return self.shard.batch(range(self.first, len(self.shard), self.step)[number])

    def position_after(self, count: int) -> int:
        """Where the epoch stands after so many batches of every worker."""
        return self.shard.position_after(min(count * self.step, len(self.shard)))


def shard(
    order: Order,
    *,
    rank: int,
    world: int,
    batch_size: int,
    drop_last: bool = False,
    start: int = 0,
    pad: str = "none",
) -> Shard:
    """Deal the positions from ``start`` on out to ``world`` ranks, ``batch_size`` to each at every step.

    A step is the next ``world * batch_size`` positions, and rank r takes the r-th part of it: joined by
    (step, rank), batches give the order itself, whatever the world is. So a run goes on exactly from
    ``position_after`` with any world and batch size.

    ``drop_last``: only full batches; what does not fill a step is left out. Otherwise every sample comes
    exactly once: the last step is dealt evenly, so that batches differ by one sample at most, and if it
    has fewer samples than ranks, it shares with the step before. That cannot help where fewer samples
    than ranks are left, or with ``batch_size`` 1: then some ranks' last batch is empty (``idle`` says how
    many), or, with ``pad="repeat"``, has one sample of another rank.
    """
    world = whole("world", world, 1)
    rank, batch_size = whole("rank", rank, 0, world - 1), whole("batch_size", batch_size, 1)
    start = whole("start", start, 0, len(order))
    if pad not in ("none", "repeat"):
        raise OptionError(f'pad must be "none" or "repeat", not {pad!r}')
    return Shard(order, rank, world, batch_size, bool(drop_last), start, pad)
