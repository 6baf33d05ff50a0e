"""Measures of an order: how random it is, and what reading in it costs; functions of sample numbers.

They take an epoch as an array: the sample, its label or its storage block at every position. 1.0 is what a
uniform shuffle gives, where a measure is relative to one.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from ..schema.columns import I64

F64 = npt.NDArray[np.float64]

__all__ = [
    "autocorrelation",
    "batch_entropy",
    "block_loads",
    "blocks_per_batch",
    "codes_of",
    "displacement",
    "entropy",
    "kept_neighbours",
    "label_autocorrelation",
    "longest_run",
    "share_deviation",
    "spread",
]


def displacement(samples: I64) -> float:
    """Mean distance of samples from their place, relative to a uniform shuffle; of a permutation."""
    n = len(samples)
    if n < 2:
        return 0.0
    moved = np.abs(samples - np.arange(n)).mean()
    return float(moved / ((n * n - 1) / (3 * n)))


def spread(samples: I64) -> float:
    """Mean distance of two samples that are stored side by side, relative to a uniform shuffle."""
    n = len(samples)
    if n < 2:
        return 0.0
    places = np.empty(n, dtype=np.int64)
    places[samples] = np.arange(n)
    return float(np.abs(np.diff(places)).mean() / ((n + 1) / 3))


def kept_neighbours(samples: I64) -> float:
    """The share of samples that are followed by one that is stored right beside them."""
    if len(samples) < 2:
        return 0.0
    return float((np.abs(np.diff(samples)) == 1).mean())


def codes_of(values: npt.ArrayLike) -> I64:
    """Equal values get equal numbers, from 0 on."""
    return np.unique(np.asarray(values), return_inverse=True)[1].reshape(-1).astype(np.int64)


def entropy(codes: I64) -> float:
    """Bits that the value of one sample tells, all together."""
    counts = np.bincount(codes)
    shares = counts[counts > 0] / max(len(codes), 1)
    # Minus zero, where there is one value only, would be printed as such.
    return float(-(shares * np.log2(shares)).sum()) + 0.0


def batch_entropy(codes: I64, batch_size: int) -> float:
    """The same within one batch, the mean of all full batches (of the only one, where none is full)."""
    batch_size = min(batch_size, max(len(codes), 1))
    batches = len(codes) // batch_size
    if not batches:
        return 0.0
    used = codes[: batches * batch_size]
    kinds = int(codes.max()) + 1
    pairs = np.repeat(np.arange(batches), batch_size) * kinds + used
    counts = np.unique(pairs, return_counts=True)[1].astype(np.float64)
    return float(np.log2(batch_size) - (counts * np.log2(counts)).sum() / len(used)) + 0.0


def autocorrelation(values: npt.ArrayLike, lags: int) -> F64:
    """Autocorrelation of numbers at lags 1 to ``lags``: 0 for unpredictable numbers, 1 for equal ones."""
    centred = np.asarray(values, dtype=np.float64)
    centred = centred - centred.mean() if len(centred) else centred
    power = float(centred @ centred)
    correlation = np.zeros(lags)
    for lag in range(1, min(lags, len(centred) - 1) + 1):
        # Each sum is over fewer pairs than the power is over values.
        share = len(centred) / (len(centred) - lag)
        correlation[lag - 1] = share * float(centred[:-lag] @ centred[lag:]) / power if power else 0.0
    return correlation


def label_autocorrelation(codes: I64, lags: int) -> F64:
    """Excess over chance with which a label comes again after 1 to ``lags`` samples: 0 by chance."""
    chance = float(((np.bincount(codes) / max(len(codes), 1)) ** 2).sum())
    correlation = np.zeros(lags)
    for lag in range(1, min(lags, len(codes) - 1) + 1):
        same = float((codes[:-lag] == codes[lag:]).mean())
        correlation[lag - 1] = (same - chance) / (1 - chance) if chance < 1 else 0.0
    return correlation


def blocks_per_batch(blocks: I64, batch_size: int) -> float:
    """Mean number of different blocks that a batch touches; blocks are numbered from 0."""
    if not len(blocks):
        return 0.0
    batch = np.arange(len(blocks)) // batch_size
    touched = np.unique(batch * (int(blocks.max()) + 1) + blocks)
    return len(touched) / (int(batch[-1]) + 1)


def block_loads(blocks: I64, batch_size: int, cache: int) -> I64:
    """Count the reads of each block with an LRU cache of ``cache`` blocks.

    A batch reads a block once at most, for its samples are read together.
    """
    loads = np.zeros(int(blocks.max(initial=-1)) + 1, dtype=np.int64)
    cached: OrderedDict[int, None] = OrderedDict()
    for start in range(0, len(blocks), batch_size):
        touched = dict.fromkeys(blocks[start : start + batch_size].tolist())
        for block in touched:
            if block in cached:
                cached.move_to_end(block)
                continue
            loads[block] += 1
            cached[block] = None
            if len(cached) > cache:
                cached.popitem(last=False)
    return loads


def share_deviation(is_present: npt.NDArray[np.bool_], weights: float | F64) -> F64:
    """By how many samples a source is ahead of its weight, at every position.

    ``here``: where the source comes. ``weights``: its weight, or that at every position.
    """
    ideal = np.cumsum(np.broadcast_to(np.asarray(weights, dtype=np.float64), is_present.shape))
    return np.cumsum(is_present) - ideal


def longest_run(is_present: npt.NDArray[np.bool_]) -> int:
    """Length of the longest run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_present, [False]])))
    return int((edges[1::2] - edges[::2]).max(initial=0))
