"""Mask: which patches hold something."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ...schema.columns import I64
from ..arrays import Array, each

# Bytes of patches that are looked at together.
LOOKED_AT_BYTES = 32 << 20

Bools = npt.NDArray[np.bool_]


class Mask:
    """Which boxes of a mask hold something. It is read once; then only what is undecided is read again."""

    def __init__(self, mask: Array, size: tuple[int, ...], starts: Callable[[I64], I64]) -> None:
        self._mask, self._size, self._starts = mask, size, starts
        self._chunk = np.array(mask.chunks)
        grid = [-(-size // one) for size, one in zip(mask.shape, mask.chunks, strict=True)]
        held = np.zeros(grid, dtype=np.int64)

        def look(at: tuple[int, ...]) -> None:
            box = tuple(slice(n * one, (n + 1) * one) for n, one in zip(at, mask.chunks, strict=True))
            held[at] = np.asarray(mask[box]).any()

        each(look, list(itertools.product(*map(range, grid))), mask.nbytes)
        # How many chunks hold something in all boxes of chunks that begin at the first.
        self._sums = np.pad(held, [(1, 0)] * held.ndim)
        for axis in range(held.ndim):
            self._sums = self._sums.cumsum(axis=axis)

    def __call__(self, ids: I64) -> Bools:
        starts = self._starts(ids)
        low = np.maximum(starts, 0) // self._chunk
        high = -(-np.minimum(starts + np.array(self._size), np.array(self._mask.shape)) // self._chunk)
        counts = np.zeros(len(ids), dtype=np.int64)
        for corner in itertools.product((0, 1), repeat=starts.shape[1]):
            at = np.where(np.array(corner) == 1, high, low)
            counts += (-1) ** (len(corner) - sum(corner)) * self._sums[tuple(at.T)]
        found = counts > 0
        # By chunk, so that each is unpacked about once.
        undecided = np.lexsort(low.T[::-1])
        undecided = undecided[found[undecided]]
        step = max(1, LOOKED_AT_BYTES // max(1, self._mask.dtype.itemsize * math.prod(self._size)))
        for rows in self._some(undecided, step):
            boxes: npt.NDArray[Any] = np.zeros((len(rows), *self._size), dtype=self._mask.dtype)
            self._mask.read_boxes(starts[rows], self._size, boxes)
            found[rows] = boxes.reshape(len(rows), -1).any(axis=1)
        return found

    @staticmethod
    def _some(rows: I64, step: int) -> Iterator[I64]:
        return (rows[at : at + step] for at in range(0, len(rows), step))
