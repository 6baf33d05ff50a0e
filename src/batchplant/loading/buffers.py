"""Memory for batches, used again and again."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _native
from ..schema.columns import U8


class Buffers:
    """Memory for batches, used again once nobody holds a batch, or a part of one, any more.

    There is no lock: memory may come back in any thread at any moment, also while that thread is in here.
    """

    def __init__(self, keep: int, allocate: Callable[[int], U8] | None = None) -> None:
        self._keep = keep
        self._allocate = allocate or (lambda size: np.empty(size, dtype=np.uint8))
        self._free: dict[int, list[U8]] = {}

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        size = math.prod(shape) * dtype.itemsize
        shelf = self._free.setdefault(size, [])
        try:
            memory = shelf.pop()
        except IndexError:
            memory = self._allocate(size)
        # Every view of it, however far derived, keeps it from coming back.
        return _native.lend(memory, shelf, self._keep).view(dtype).reshape(shape)

    def take_bytes(self, size: int) -> U8:
        """At least so many: twice as many where such memory is free, and none that is just as large."""
        if not self._free.get(size) and self._free.get(2 * size):
            size *= 2
        return self.take((size,), np.dtype(np.uint8))
