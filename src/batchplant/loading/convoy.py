"""Convoys: batches that are made together, since what is done once for each takes longer than their samples.

Small batches for a device are read, copied and computed several at a time, and given out one by one. How many
depends on how fast they are taken, and changes nothing of what is in them.
"""

from __future__ import annotations

import math
import threading
import time
from typing import Any

from ..schema.columns import I64
from .batch import Batch

# A convoy is what is taken in this time, in seconds; but not more samples, nor more bytes.
TIME, MOST, MOST_BYTES = 0.03, 1024, 320 << 20
# How much of what was seen counts at the next convoy.
KEPT = 0.8
# Of those that have to be under way, so many are: some take longer than others.
SPARE = 2


class Pace:
    """How many batches to make together, and how many may be made or wait at a time: at least ``ahead``.

    ``possible``: convoys may be tried; the first batch tells whether it can be cut out of one.
    """

    def __init__(self, ahead: int, *, possible: bool) -> None:
        self._ahead, self._possible = ahead, possible
        self._lock = threading.Lock()
        self._producers = 1
        self._last = 0.0
        # Of the last ones: samples, the seconds in which they came, and the seconds that each took.
        self._samples, self._seconds, self._took = 0.0, 0.0, 0.0
        self.together, self.room = 1, ahead

    def start(self, producers: int) -> None:
        """So many threads make the batches of an epoch from now on."""
        with self._lock:
            self._producers, self._last = producers, time.perf_counter()

    def made(self, batch: Batch, batches: int, began: float) -> None:
        """Some batches, together in ``batch``, were made by a thread that began then."""
        if not self._possible:
            return
        samples, now = len(batch.ids), time.perf_counter()
        if not samples or any(not _has_rows(value, samples) for value in batch.values.values()):
            self._possible, self.together, self.room = False, 1, self._ahead
            return
        with self._lock:
            since, self._last = now - self._last, now
            self._samples, self._seconds = KEPT * self._samples + samples, KEPT * self._seconds + since
            self._took = KEPT * self._took + (1 - KEPT) * (now - began) if self._took else now - began
            rate, each = self._samples / max(self._seconds, 1e-9), samples / batches
            size = sum(value.nbytes for value in batch.values.values()) / samples
            most = min(MOST, MOST_BYTES / max(size, 1)) / each
            self.together = max(1, round(min(TIME * rate / each, most)))
            under_way = math.ceil(SPARE * rate * self._took / each)
            self.room = max(self._ahead, min(under_way, (self._producers + 1) * self.together))


def _has_rows(value: Any, count: int) -> bool:
    shape: Any = getattr(value, "shape", None)
    return bool(shape) and shape[0] == count and hasattr(value, "nbytes")


def cut(whole: Batch, ids: list[I64]) -> list[Batch]:
    """The batches that were made together."""
    found, at = [], 0
    for some in ids:
        rows = slice(at, at + len(some))
        found.append(Batch({name: value[rows] for name, value in whole.values.items()}, some, []))
        at = rows.stop
    return found
