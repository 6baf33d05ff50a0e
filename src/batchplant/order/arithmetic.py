"""Which sample stands at a position, natively: of an array of positions, or of one, the same is given.

These are functions of Python, for native ones cannot be pickled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _native
from ..schema.columns import I64


def shuffle(count: int, key: int, at: Any) -> Any:
    """All numbers below the count shuffled."""
    return _native.shuffle(count, key, at)


def unshuffle(count: int, key: int, at: I64) -> I64:
    """The positions that :func:`shuffle` sends there."""
    return _native.shuffle(count, key, np.ascontiguousarray(at, dtype=np.int64), True)


def shuffle_runs(count: int, size: int, phases: tuple[int, ...], key: int, at: Any) -> Any:
    """Runs of ``size`` shuffled, once for each phase: where the first one begins."""
    return _native.shuffle_runs(count, size, phases, key, at)


def shuffle_windows(edges: I64, key: int, at: Any) -> Any:
    """What lies between two edges shuffled."""
    return _native.shuffle_windows(edges, key, at)


def walk(firsts: I64, rows: I64 | None, turns: I64, starts: I64, at: Any) -> Any:
    """Blocks in the order ``turns``, the samples of each as they stand; see :class:`BlockIndex`."""
    return _native.walk(turns, starts, firsts, rows, at)


def change(inner: Callable[[Any], Any], lanes: int, size: int, each: int, at: Any) -> Any:
    """Lanes of an order, taken from in turn."""
    return inner(_native.in_lanes(lanes, size, each, at))


def compose(inner: Callable[[Any], Any], outer: Callable[[Any], Any], at: Any) -> Any:
    return outer(inner(at))
