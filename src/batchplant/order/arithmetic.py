"""Native arithmetic of orders: the samples at an array of positions, or the sample at one position.

Python functions wrap the native ones, which cannot be pickled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _native
from ..schema.columns import I64


def shuffle(count: int, key: int, positions: Any) -> Any:
    """Shuffle all numbers below the count."""
    return _native.shuffle(count, key, positions)


def unshuffle(count: int, key: int, positions: I64) -> I64:
    """Invert :func:`shuffle`."""
    return _native.shuffle(count, key, np.ascontiguousarray(positions, dtype=np.int64), True)


def shuffle_runs(count: int, size: int, phases: tuple[int, ...], key: int, positions: Any) -> Any:
    """Shuffle runs of ``size``, once for each phase (the start of the first run)."""
    return _native.shuffle_runs(count, size, phases, key, positions)


def shuffle_windows(edges: I64, key: int, positions: Any) -> Any:
    """Shuffle the numbers between each pair of edges."""
    return _native.shuffle_windows(edges, key, positions)


def walk(firsts: I64, rows: I64 | None, turns: I64, starts: I64, positions: Any) -> Any:
    """Walk through blocks in the order ``turns``, samples in file order; see :class:`BlockIndex`."""
    return _native.walk(turns, starts, firsts, rows, positions)


def change(inner: Callable[[Any], Any], lanes: int, size: int, lane_length: int, positions: Any) -> Any:
    """Take from the lanes of an order in turn."""
    return inner(_native.in_lanes(lanes, size, lane_length, positions))


def compose(inner: Callable[[Any], Any], outer: Callable[[Any], Any], positions: Any) -> Any:
    return outer(inner(positions))
