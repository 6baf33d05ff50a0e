"""Sizes of samples: dealt out to ranks in equal sums, or put into batches that are about as long."""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable

import numpy as np

from ..errors import OptionError
from ..schema.columns import I64, AnyArray
from .keyed import key_of, whole
from .orders import Order, random

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
