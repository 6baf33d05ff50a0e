"""Ranks: which one of how many this process is, and which positions it takes, batch by batch, in closed form.

``rank_and_world_size`` asks the caller, torch.distributed or the launcher. Nothing is cached: a trainer may
start its processes, or its process group, after a loader was made. ``deal`` and ``bucketed`` go by the sizes
of samples. ``SkippedShard`` leaves out samples and positions while all others keep their positions and ranks.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import heapq
import os
import sys
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from ..errors import OptionError, SampleIndexError
from ..schema.columns import I64, AnyArray, Flags
from .keyed import CHUNK, key_of, whole
from .orders import Order, random

WORLD_SIZE, RANK = "WORLD_SIZE", "RANK"
LOCAL_RANK, LOCAL_WORLD_SIZE = "LOCAL_RANK", "LOCAL_WORLD_SIZE"
# torchrun says group where others say node.
NODE_RANK, NODES = ("NODE_RANK", "GROUP_RANK"), ("GROUP_WORLD_SIZE", "NNODES")
# (rank, world size) of launchers that always set both.
LAUNCHER_PAIRS = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))


def rank_and_world_size(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """Return (rank, world size) of this process now; detects the arguments that are None."""
    if rank is None or world_size is None:
        detected_rank, detected_size = process_group_rank() or _environment_rank(world_size)
        world_size = detected_size if world_size is None else world_size
        rank = detected_rank if rank is None else rank
    if world_size > 1 and rank is None:
        raise OptionError(
            f"there are {world_size} processes, and nothing says which of them this is: set {RANK} beside "
            f"{WORLD_SIZE} (or {LOCAL_RANK} and {NODE_RANK[0]}), initialise torch.distributed, or give rank "
            "and world_size"
        )
    rank = 0 if rank is None else rank
    if world_size < 1:
        raise OptionError(f"world_size is at least 1, not {world_size}")
    if not 0 <= rank < world_size:
        raise OptionError(f"rank must be from 0 to {world_size - 1}, not {rank}")
    return rank, world_size


def process_group_rank() -> tuple[int, int] | None:
    """Return (rank, world size) in torch.distributed; None if it is not imported or not initialised."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def default_threads() -> int:
    """Return the threads of this process: the cores it may use, divided among the processes that share them.

    A launcher such as torchrun tells how many processes it started on this machine (LOCAL_WORLD_SIZE).
    """
    # Storage imports this module.
    from ..storage.platform import cpu_count

    return max(1, cpu_count() // local_world_size())


def local_world_size() -> int:
    """Processes on this machine, as a launcher tells."""
    return max(1, _number(LOCAL_WORLD_SIZE) or 1)


def _environment_rank(world_size: int | None) -> tuple[int | None, int]:
    """Return (rank, world size) that a launcher set; the rank is None if it set none.

    ``world_size``: as the caller said.
    """
    launched, pairs = _number(WORLD_SIZE), _launcher_pairs()
    if launched is None and pairs:
        return pairs[0]
    if (launched is None or launched == 1) and world_size is None:
        return 0, 1
    rank = _torchrun_rank()
    if rank is None:
        # A launcher that counts other processes cannot say which of them this is.
        rank = next((pair_rank for pair_rank, size in pairs if size == launched), None)
    return rank, 1 if launched is None else launched


def _launcher_pairs() -> list[tuple[int, int]]:
    pairs = [(_number(rank), _number(size)) for rank, size in LAUNCHER_PAIRS]
    pairs.append((_number("SLURM_PROCID"), _slurm_tasks()))
    return [(rank, size) for rank, size in pairs if rank is not None and size is not None]


def _slurm_tasks() -> int | None:
    """Tasks of the step that srun started; a batch script is one process, however many its job has."""
    step = _number("SLURM_STEP_NUM_TASKS")
    return _number("SLURM_NTASKS") if step is None and "SLURM_JOB_ID" not in os.environ else step


def _torchrun_rank() -> int | None:
    """Return the rank that torchrun, Lightning and the like set, directly or by node and local rank."""
    rank, local_rank = _number(RANK), _number(LOCAL_RANK)
    if rank is not None or local_rank is None:
        return rank
    node, node_size = _first_number(NODE_RANK) or 0, _number(LOCAL_WORLD_SIZE)
    world_size, nodes = _number(WORLD_SIZE), _first_number(NODES)
    if node_size is None and world_size and nodes and world_size % nodes == 0:
        node_size = world_size // nodes
    if node and node_size is None:
        return None
    return local_rank + node * (node_size or 0)


def _first_number(variables: tuple[str, ...]) -> int | None:
    return next((number for number in map(_number, variables) if number is not None), None)


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "").strip()
    try:
        return int(text) if text else None
    except ValueError:
        raise OptionError(f"the environment variable {variable} is {text!r}, not a number") from None


# The sizes of samples: bytes, tokens, or anything else that adds up.
Sizes = Callable[[I64], AnyArray]
MAX_CACHED_WINDOWS = 8


def deal(sizes: AnyArray, parts: int) -> I64:
    """Assign each sample to a part so that the sums of parts are about equal.

    The largest remaining sample goes to the smallest part. With as many samples as parts, none stays empty.

    Returns: the part of each sample.
    """
    part_of_sample = np.empty(len(sizes), dtype=np.int64)
    # Where sums are equal, as with sizes of zero, the part with fewer samples is the smaller.
    heap: list[tuple[float, int, int]] = [(0, 0, part) for part in range(parts)]
    sums = np.asarray(sizes, dtype=np.float64)
    largest_first = np.argsort(-sums, kind="stable")
    for row, size in zip(largest_first.tolist(), sums[largest_first].tolist(), strict=True):
        total, count, part = heap[0]
        part_of_sample[row] = part
        heapq.heapreplace(heap, (total + size, count + 1, part))
    return part_of_sample


def bucketed(
    order: Order,
    sizes: Sizes,
    *,
    bucket_size: int,
    bucket_window: int = 100,
    bucket_run: int = 1,
    shuffle: bool = True,
    seed: int,
    epoch: int,
) -> Order:
    """The samples of another order, in runs that are about as long.

    Of every ``bucket_window`` batches of ``bucket_size`` samples of the order, samples are sorted by length
    and cut into batches, and the batches are shuffled (``bucket_run`` that follow each other stay together,
    so that as many ranks have alike ones at every step). Every sample comes as often as in the order. It is
    a function of seed, epoch and position like any other. ``shuffle=False`` leaves the batches of a window
    sorted.
    """
    size = whole("bucket_size", bucket_size, 1)
    unit = size * whole("bucket_run", bucket_run, 1)
    window = -(-size * whole("bucket_window", bucket_window, 1) // unit) * unit

    @functools.lru_cache(MAX_CACHED_WINDOWS)
    def window_samples(number: int) -> I64:
        """Return the samples of a window, in their order."""
        samples = order[number * window : (number + 1) * window]
        lengths = np.asarray(sizes(samples))
        if lengths.shape != samples.shape:
            raise OptionError(f"{len(samples)} lengths are needed, not {lengths.shape}")
        samples = samples[np.argsort(lengths, kind="stable")]
        full = len(samples) // unit
        if not shuffle or full < 2:
            return samples
        # What fills no batch stays at the end.
        turn = random(full, seed=int(key_of(seed, number, 11)[0]), epoch=epoch)[:]
        shuffled = samples[: full * unit].reshape(full, unit)[turn].reshape(-1)
        return np.concatenate([shuffled, samples[full * unit :]])

    def take(positions: I64) -> I64:
        numbers, places = np.divmod(positions, window)
        samples = np.empty(len(positions), dtype=np.int64)
        for number in np.unique(numbers).tolist():
            in_window = numbers == number
            samples[in_window] = window_samples(number)[places[in_window]]
        return samples

    return Order(order.samples, order.length, take, _base=order)


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
