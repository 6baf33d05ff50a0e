"""The orders, and :func:`make` to find one by its name."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from .. import _native
from ..errors import OptionError, SampleIndexError, exceptions_as, no_such
from ..schema.columns import I64, AnyArray, starts_of
from .keyed import CHUNK, LONGEST, U64, derive, key_of, permute, uniform, whole

# One position as an int, or an array of them.
Positions = Any

# The native functions cannot be pickled; these wrap them.


def _shuffle(count: int, key: int, positions: Positions) -> Positions:
    """Shuffle all numbers below the count."""
    return _native.shuffle(count, key, positions)


def _unshuffle(count: int, key: int, positions: I64) -> I64:
    """Invert :func:`_shuffle`."""
    return _native.shuffle(count, key, np.ascontiguousarray(positions, dtype=np.int64), True)


def _shuffle_runs(
    count: int, size: int, phases: tuple[int, ...], key: int, positions: Positions
) -> Positions:
    """Shuffle runs of ``size``, once for each phase (the start of the first run)."""
    return _native.shuffle_runs(count, size, phases, key, positions)


def _shuffle_windows(edges: I64, key: int, positions: Positions) -> Positions:
    """Shuffle the numbers between each pair of edges."""
    return _native.shuffle_windows(edges, key, positions)


def _walk(firsts: I64, rows: I64 | None, turns: I64, starts: I64, positions: Positions) -> Positions:
    """Walk through blocks in the order ``turns``, samples in file order; see :class:`BlockIndex`."""
    return _native.walk(turns, starts, firsts, rows, positions)


def _take_lanes(
    inner: Callable[[Positions], Positions], lanes: int, size: int, lane_length: int, positions: Positions
) -> Positions:
    """Take from the lanes of an order in turn."""
    return inner(_native.in_lanes(lanes, size, lane_length, positions))


def _compose(
    inner: Callable[[Positions], Positions], outer: Callable[[Positions], Positions], positions: Positions
) -> Positions:
    return outer(inner(positions))


@dataclasses.dataclass(frozen=True, eq=False)
class Order:
    """A row of ``length`` sample numbers, all in [0, ``samples``). Immutable."""

    samples: int
    length: int
    # The samples at positions that are flat, checked and not negative.
    _take: Callable[[I64], I64] = dataclasses.field(repr=False)
    # The positions of samples, where every sample has one and it can be computed.
    _find: Callable[[I64], I64] | None = dataclasses.field(repr=False, default=None)
    # The same as _take of a single position, where that is cheaper than an array of one.
    _take_one: Callable[[int], int] | None = dataclasses.field(repr=False, default=None)
    # The order that it is a rearrangement of, which tells it from others at less cost.
    _base: Order | None = dataclasses.field(repr=False, default=None)

    def find(self, samples: I64) -> I64:
        """The position of each sample; beyond the end where it has none."""
        if self._find is None:
            raise OptionError("this order cannot tell where a sample stands")
        return self._find(samples)

    def take(self, positions: Any) -> I64:
        """The samples at an array of positions of any shape; negative ones count from the end."""
        checked = _integers(positions, "positions")
        wrong = checked[(checked >= self.length) | (checked < -self.length)]
        if wrong.size:
            raise SampleIndexError(f"there is no position {wrong[0]}; there are {self.length}")
        return self._take(np.where(checked < 0, checked + self.length, checked).reshape(-1)).reshape(
            checked.shape
        )

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, position: slice) -> I64: ...
    @overload
    def __getitem__(self, position: int) -> int: ...
    def __getitem__(self, position: int | slice) -> int | I64:
        if isinstance(position, slice):
            return self._take(np.arange(*position.indices(self.length), dtype=np.int64))
        number = whole("position", position, -LONGEST)
        if not -self.length <= number < self.length:
            raise SampleIndexError(f"there is no position {number}; there are {self.length}")
        number += self.length if number < 0 else 0
        return int(self._take(np.array([number]))[0] if self._take_one is None else self._take_one(number))

    def __iter__(self) -> Iterator[int]:
        for start in range(0, self.length, CHUNK):
            yield from self[start : start + CHUNK].tolist()


def sequential(n: int) -> Order:
    """The samples as they stand."""
    return Order(n := whole("n", n, 0), n, np.asarray, np.asarray, int)


def random(n: int, *, seed: int, epoch: int) -> Order:
    """A permutation that is computed, not stored: no memory, whatever n is (up to 2**48)."""
    n = whole("n", n, 0)
    key = int(key_of(seed, epoch, 1)[0])
    go = partial(_shuffle, n, key)
    return Order(n, n, go, partial(_unshuffle, n, key), go)


class BlockIndex:
    """The samples of every block. It knows no epoch: build it once, pass it as ``blocks`` every time.

    window: blocks that are shuffled together, where an order is not given another number. rows: samples by
    number where an order has only some of them.
    """

    def __init__(self, blocks: Any, window: int | None = None, rows: I64 | None = None) -> None:
        """``blocks``: for every sample the number of its block, as ``Reader.blocks()`` gives them.

        ``window``: what :func:`quasi_random` takes where it is given none, as ``Reader.window`` says.
        ``rows``: only these samples.
        """
        self.window = window or WINDOW
        values = _array(blocks)
        if values.ndim != 1 or (values.size and values.dtype.kind not in "iubUS"):
            raise OptionError(f"one number per sample is needed, not {values.dtype} of shape {values.shape}")
        values = values if rows is None else values[rows]
        self.samples = len(values)
        # Where blocks lie one after another, as in most files, no table of rows is needed.
        in_order = bool((values[1:] >= values[:-1]).all())
        self.rows: I64 | None = None if in_order else np.argsort(values, kind="stable")
        values = values if self.rows is None else values[self.rows]
        is_first = np.ones(len(values), dtype=np.bool_)
        is_first[1:] = values[1:] != values[:-1]
        self.starts: I64 = np.append(np.flatnonzero(is_first), len(values))
        self.names: AnyArray = values[is_first]

    @classmethod
    def of_sizes(cls, sizes: npt.ArrayLike, window: int | None = None) -> BlockIndex:
        """Return the index of consecutive blocks of these numbers of samples; no memory for each sample."""
        counts = _integers(sizes, "sizes of blocks")
        if counts.ndim != 1 or (counts < 1).any():
            raise OptionError("sizes of blocks are one row of numbers, each at least 1")
        block_index = cls(np.zeros(0, dtype=np.int64), window)
        block_index.samples, block_index.starts, block_index.names = (
            int(counts.sum()),
            starts_of(counts),
            np.arange(len(counts)),
        )
        return block_index

    def __len__(self) -> int:
        return len(self.names)

    @property
    def sizes(self) -> I64:
        return np.diff(self.starts)

    def sample(self, block: I64, offset: I64) -> I64:
        """The sample at a place of a block; blocks count from 0, whatever their names are."""
        rows = self.starts[block] + offset
        return rows if self.rows is None else self.rows[rows]

    def turns(self, *, seed: int, epoch: int) -> tuple[I64, I64]:
        """The blocks in the order of an epoch, and the first position of each turn, and the end."""
        turns = random(len(self), seed=seed, epoch=epoch)[:]
        return turns, starts_of(self.sizes[turns])


@dataclasses.dataclass(frozen=True)
class _Blocks:
    index: BlockIndex
    turns: I64  # the blocks in the order of this epoch
    starts: I64  # the first position of each turn, and the end
    edges: I64  # the first position of each window, and the end
    key: int

    def take(self, positions: Any) -> Any:
        return _walk(self.index.starts, self.index.rows, self.turns, self.starts, self.turned(positions))

    def turned(self, positions: Any) -> Any:
        """Return the row of each position in the blocks one after another."""
        return _shuffle_windows(self.edges, self.key, positions)

    def read_by(self, positions: I64) -> I64:
        """The block that each position reads."""
        turn: I64 = np.searchsorted(self.starts, self.turned(positions), side="right") - 1
        return self.turns[turn]


@dataclasses.dataclass(frozen=True, eq=False)
class QuasiRandomOrder(Order):
    """The order that :func:`quasi_random` returns; it also tells the blocks that positions need."""

    _blocks: _Blocks = dataclasses.field(repr=False, kw_only=True)

    def touched(self, start: int, stop: int) -> AnyArray:
        """The numbers of the blocks that positions [start, stop) read, first needed first."""
        positions = np.arange(*slice(start, stop).indices(self.length), dtype=np.int64)
        blocks, first = np.unique(self._blocks.read_by(positions), return_index=True)
        return self._blocks.index.names[blocks[np.argsort(first)]]


def quasi_random(
    n: int,
    *,
    seed: int,
    epoch: int,
    blocks: Any,
    window: int | None = None,
    lanes: int = 1,
    lane_size: int = 1,
) -> Order:
    """An order of whole blocks in random order, samples shuffled within every ``window`` blocks of it.

    Positions of one window read from its blocks alone, and no other window reads from them. ``blocks``:
    an array as of ``Reader.blocks()``, or the :class:`BlockIndex` of one. ``window``: 32, or what that one
    says. ``lanes``: see :func:`in_lanes`.
    """
    n = whole("n", n, 0)
    index = _index_of("quasi_random", n, blocks)
    window = whole("window", index.window if window is None else window, 1)
    turns, starts = index.turns(seed=seed, epoch=epoch)
    edges = np.append(starts[:-1:window], n)
    block_order = _Blocks(index, turns, starts, edges, int(key_of(seed, epoch, 2)[0]))
    return in_lanes(
        QuasiRandomOrder(n, n, block_order.take, _take_one=block_order.take, _blocks=block_order),
        lanes,
        lane_size,
    )


def shards(n: int, *, seed: int, epoch: int, blocks: Any, lanes: int = 1, lane_size: int = 1) -> Order:
    """An order of whole blocks (shards, row groups) at random, the samples of each as they stand.

    The cheapest shuffle, and the weakest: samples that were neighbours stay neighbours. ``lanes``: see
    :func:`in_lanes`.
    """
    n = whole("n", n, 0)
    index = _index_of("shards", n, blocks)
    go = partial(_walk, index.starts, index.rows, *index.turns(seed=seed, epoch=epoch))
    return in_lanes(Order(n, n, go, None, go), lanes, lane_size)


def in_lanes(order: Order, lanes: int, size: int) -> Order:
    """The order cut into ``lanes`` parts of one length, taken from in turn, ``size`` samples at a time.

    With as many lanes as ranks, and their batch size, each rank goes through a part of its own, and reads no
    block that another one reads. It is an order like any other: any number of ranks can go on with it.
    """
    lanes, size = whole("lanes", lanes, 1), whole("lane_size", size, 1)
    lane_length = order.length // (lanes * size) * size
    if lanes == 1 or not lane_length:
        return order
    take_one = order._take_one and partial(_take_lanes, order._take_one, lanes, size, lane_length)
    return Order(
        order.samples,
        order.length,
        partial(_take_lanes, order._take, lanes, size, lane_length),
        None,
        take_one,
    )


def _index_of(order: str, n: int, blocks: Any) -> BlockIndex:
    if blocks is None:
        raise OptionError(f"{order} needs blocks, and there are none: use random or windowed")
    index = blocks if isinstance(blocks, BlockIndex) else BlockIndex(blocks)
    if index.samples != n:
        raise OptionError(f"there are {n} samples, but blocks of {index.samples}")
    return index


def windowed(n: int, *, seed: int, epoch: int, window: int = 1000) -> Order:
    """An order shuffled as a buffer does, but bounded both ways: no sample moves farther than ``window``.

    Runs of ``window // 2 + 1`` samples are shuffled, then once more with the borders half a run further,
    so that no border separates neighbours. Where the borders lie changes with the epoch. A window of n
    or more shuffles everything evenly.
    """
    n, window = whole("n", n, 0), whole("window", window, 1)
    key = int(key_of(seed, epoch, 3)[0])
    size = max(n if window >= n else window // 2 + 1, 1)
    phase = key % size
    phases = (0,) if window >= n else (phase, (phase + size // 2) % size)
    go = partial(_shuffle_runs, n, size, phases, key)
    return Order(n, n, go, None, go)


def weighted(
    weights: npt.ArrayLike, *, seed: int, epoch: int, count: int | None = None, replace: bool = True
) -> Order:
    """An order of samples drawn in proportion to their weights; one of weight 0 never comes.

    With ``replace`` every position is a draw of its own (``count``: as many as there are samples).
    Without, it is a draw among the samples left (``count``: all whose weight is not 0).
    """
    values = _array(() if weights is None else weights)
    if weights is None or values.ndim != 1 or (values.size and values.dtype.kind not in "iufb"):
        raise OptionError("weighted needs weights: one number per sample")
    values = values.astype(np.float64)
    n, drawn, key = len(values), np.flatnonzero(values), key_of(seed, epoch, 4)
    if not ((values >= 0) & np.isfinite(values)).all() or (n and not len(drawn)):
        raise OptionError("weights must be finite, none below 0 and not all 0")
    max_length = LONGEST if replace and n else len(drawn)
    length = min(n, max_length) if count is None else whole("count", count, 0, max_length)
    if replace:
        # Scaled, for the sum must neither overflow nor be so small that a product rounds up to it.
        ends = np.cumsum(values / values.max(initial=0.0))
        return Order(n, length, partial(_draw, ends=ends, key=key))
    # A race: the sample of weight w arrives after an exponential time of rate w. Logarithms, for the
    # quotient of extreme weights would overflow.
    arrival = np.log(-np.log1p(-np.maximum(uniform(key, drawn), 2.0**-54))) - np.log(values[drawn])
    return Order(n, length, partial(np.take, drawn[np.argsort(arrival, kind="stable")]))


def _draw(positions: I64, ends: npt.NDArray[np.float64], key: U64) -> I64:
    # "right" passes over samples of weight 0: their end is that of the sample before.
    return np.searchsorted(ends, uniform(key, positions) * ends[-1:], side="right")


def class_balanced(labels: npt.ArrayLike, *, seed: int, epoch: int, count: int | None = None) -> Order:
    """Every class equally often: each turn has one sample of every class, the classes in random order.

    A class goes through all its samples in random order before one comes again. ``count``: how many
    positions, by default as many as there are samples; the shares of classes differ by one at most.
    """
    if labels is None:
        raise OptionError("class_balanced needs labels: one per sample")
    index = labels if isinstance(labels, BlockIndex) else BlockIndex(labels)
    n, key = index.samples, key_of(seed, epoch, 5)
    length = n if count is None else whole("count", count, 0, LONGEST if n else 0)
    return Order(n, length, partial(_take_turns, index=index, key=key))


def _take_turns(positions: I64, index: BlockIndex, key: U64) -> I64:
    turn, slot = np.divmod(positions, max(len(index), 1))
    group = permute(slot, np.array([len(index)]), derive(key, turn))
    size = index.sizes[group]
    lap, offset = np.divmod(turn, size)
    return index.sample(group, permute(offset, size, derive(derive(~key, group), lap)))


def from_array(indices: npt.ArrayLike, *, samples: int | None = None) -> Order:
    """The samples ``indices`` in this order, repeats and all; each below ``samples``, where that is given."""
    numbers = _integers(indices, "sample numbers")
    if numbers.ndim != 1:
        raise OptionError(f"sample numbers must be one row, not of shape {numbers.shape}")
    bound = int(numbers.max(initial=-1)) + 1 if samples is None else whole("samples", samples, 0)
    wrong = numbers[(numbers < 0) | (numbers >= bound)]
    if wrong.size:
        raise OptionError(f"the order has sample {wrong[0]}, but there are {bound} samples")
    return Order(bound, len(numbers), numbers.take, None, numbers.item)


def from_function(fn: Callable[[int, np.random.Generator], Any], n: int, *, seed: int, epoch: int) -> Order:
    """The sample numbers that ``fn(n, rng)`` returns; ``rng`` is fresh for every (seed, epoch)."""
    rng = np.random.Generator(np.random.Philox(key=int(key_of(seed, epoch, 6)[0])))
    return from_array(fn(whole("n", n, 0), rng), samples=n)


def subset(order: Order | int, indices: npt.ArrayLike) -> Order:
    """The order ``indices[order[k]]`` (a number: sequential), of as many samples as there are indices."""
    inner, outer = order if isinstance(order, Order) else sequential(order), from_array(indices)
    if inner.samples != outer.length:
        raise OptionError(f"the order is of {inner.samples} samples, but there are {outer.length} indices")
    take_one = inner._take_one and outer._take_one and partial(_compose, inner._take_one, outer._take_one)
    return Order(outer.samples, inner.length, partial(_compose, inner._take, outer._take), None, take_one)


NAMED: dict[str, Callable[..., Order]] = {
    order.__name__: order
    for order in (sequential, random, quasi_random, shards, windowed, weighted, class_balanced)
}
# Those that go by the blocks of a file; who knows the file passes them.
# Blocks that quasi_random shuffles at a time.
WINDOW = 32
BY_BLOCKS = ("quasi_random", "shards")


def make(
    order: Any,
    n: int,
    *,
    seed: int,
    epoch: int,
    blocks: Any = None,
    labels: Any = None,
    weights: Any = None,
    **options: Any,
) -> Order:
    """An order of n samples: by name, from sample numbers, from ``fn(n, rng)``, or an Order as it is."""
    inputs = {"n": n, "seed": seed, "epoch": epoch, "blocks": blocks, "labels": labels, "weights": weights}
    build = NAMED.get(order) if isinstance(order, str) else None
    if isinstance(order, str) and build is None:
        raise OptionError(no_such("order", order, NAMED))
    takes = inspect.signature(build).parameters if build else {}
    for name in options:
        if name not in takes:
            raise OptionError(f"the order {order if build else 'given'} takes no option {name}")
    if build:
        built = build(**{name: inputs[name] for name in takes if name in inputs}, **options)
    elif callable(order):
        built = from_function(order, n, seed=seed, epoch=epoch)
    else:
        built = order if isinstance(order, Order) else from_array(order, samples=n)
    if built.samples != n:
        raise OptionError(f"the order is of {built.samples} samples, but there are {n}")
    return built


def _integers(values: npt.ArrayLike, name: str) -> I64:
    """A copy as int64."""
    array = _array(values)
    if array.size and array.dtype.kind not in "iu":
        raise OptionError(f"{name} must be whole numbers, not {array.dtype}")
    if array.dtype == np.uint64:
        # What is beyond int64 must not wrap around to something valid.
        array = np.minimum(array, 2**63 - 1)
    return array.astype(np.int64)


def _array(values: npt.ArrayLike) -> AnyArray:
    with exceptions_as(OptionError, "not an array", ValueError):
        return np.asarray(values)
