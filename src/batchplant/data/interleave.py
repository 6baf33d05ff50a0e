"""Shards taken from in turn."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..errors import OptionError
from ..schema.columns import I64
from .concat import Concat
from .reader import Reader


def interleave(
    readers: Iterable[Reader], *, cycle: int | None = None, block: int = 1, seed: int | None = None
) -> Reader:
    """Readers with the same fields as one, taken from in turn: ``block`` samples of each of ``cycle``.

    The order is that of tf.data's interleave: where a reader has no more, the next one takes its turn. With a
    ``seed`` the readers are shuffled first.
    """
    chosen = list(readers)
    if seed is not None:
        chosen = [chosen[one] for one in np.random.default_rng(seed).permutation(len(chosen))]
    joined = Concat(chosen)
    cycle = len(chosen) if cycle is None else cycle
    if cycle < 1 or block < 1:
        raise OptionError(f"cycle and block must be at least 1, not {cycle} and {block}")
    return joined.subset(interleaved(joined._ends, cycle, block))


def interleaved(ends: I64, cycle: int, block: int) -> I64:
    """The order of samples in which shards of ``np.diff(ends)`` samples are interleaved."""
    at, last = ends[:-1].copy(), ends[1:]
    slots: list[int | None] = [None] * min(cycle, len(at))
    parts: list[I64] = [np.empty(0, dtype=np.int64)]
    waiting = iter(range(len(at)))
    turn = 0
    while True:
        taken = [one for one in slots if one is not None]
        if turn == 0 and len(taken) == len(slots):
            # As long as nobody runs out, whole rounds at once.
            rounds = int(((last[taken] - at[taken]) // block).min())
            each = np.arange(rounds * block).reshape(rounds, 1, block)
            parts.append((each + at[taken][:, None]).reshape(-1))
            at[taken] += rounds * block
        slots[turn] = next(waiting, None) if slots[turn] is None else slots[turn]
        now = slots[turn]
        if now is not None:
            count = min(block, int(last[now] - at[now]))
            parts.append(np.arange(at[now], at[now] + count))
            at[now] += count
            slots[turn] = now if count == block else None
        elif all(one is None for one in slots):
            return np.concatenate(parts)
        turn = (turn + 1) % len(slots)
