"""Memory for batches that is used again: each page of new memory costs a page fault."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .. import _native
from ..schema.columns import U8, AnyArray, AnyDType

# Batches of each size whose memory waits for the next, and sizes, unless a pool is made for others.
MAX_FREE, MAX_SIZES = 2, 64


def allocate_bytes(size: int) -> U8:
    return np.empty(size, dtype=np.uint8)


class BufferPool:
    """Memory for batches, reused once no reference to a batch, or a view of one, is left.

    Of each size, memory for ``max_free`` batches waits to be used; of all but the latest ``max_sizes``, none.
    There is no lock: memory may come back in any thread at any moment, also while that thread is in here.
    """

    def __init__(
        self,
        max_free: int = MAX_FREE,
        allocate: Callable[[int], U8] = allocate_bytes,
        *,
        max_sizes: int = MAX_SIZES,
    ) -> None:
        self._max_free, self._allocate, self._max_sizes = max_free, allocate, max_sizes
        self._free: dict[int, list[U8]] = {}

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_free": {}}

    def take(self, shape: tuple[int, ...], dtype: AnyDType) -> AnyArray:
        size = math.prod(shape) * dtype.itemsize
        if size not in self._free and len(self._free) >= self._max_sizes:
            # Memory that is in use goes to lists that nobody looks into any more.
            self._free = {}
        free = self._free.setdefault(size, [])
        try:
            memory = free.pop()
        except IndexError:
            memory = self._allocate(size)
        # Every view of it, however far derived, keeps it from coming back.
        return _native.lend(memory, free, self._max_free).view(dtype).reshape(shape)

    def keep(self, count: int) -> None:
        """Keep memory for so many batches of a size, at least."""
        self._max_free = max(self._max_free, count)

    def take_bytes(self, size: int) -> U8:
        """Return at least ``size`` bytes: twice as many if only such memory is free."""
        if not self._free.get(size) and self._free.get(2 * size):
            size *= 2
        return self.take((size,), np.dtype(np.uint8))

    def clear(self) -> None:
        """Release the memory that is not in use."""
        self._free = {}
