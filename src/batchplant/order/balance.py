"""Balance: deal samples out to ranks by their sizes, not by their number."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from ..schema.columns import I64, AnyArray

# The sizes of samples: bytes, tokens, or anything else that adds up.
Sizes = Callable[[I64], AnyArray]


def deal(sizes: AnyArray, parts: int) -> I64:
    """Assign each sample to a part so that the sums of parts are about equal.

    The largest remaining sample goes to the smallest part. With as many samples as parts, none stays empty.
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
