"""Which share of a batch's JPEGs the GPU decodes, learnt from how fast both sides are. No framework here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ...errors import OptionError

MODES = ("auto", "cpu", "gpu", "hybrid", "split")
# Batches that auto looks at before it decides; and the share below which a side is not worth its trouble.
MEASURED_BATCHES = 8
WORTH = 0.08
# The first batch pays for what is made only once, and is not counted.
WARM_UP = 1
# How much of what was seen counts at the next batch. The time of a single batch says little: two that were
# queued may be done at almost the same time.
KEPT = 0.9
# Of what the CPU can decode: if less is asked for, auto leaves the GPU to the step; if more, no longer.
ENOUGH, TOO_MUCH = 0.6, 0.85


class _Rate:
    """Pictures a second, over the last batches."""

    def __init__(self) -> None:
        self._pictures, self._seconds = 0.0, 0.0

    def add(self, pictures: int, seconds: float) -> None:
        self._pictures, self._seconds = KEPT * self._pictures + pictures, KEPT * self._seconds + seconds

    @property
    def value(self) -> float | None:
        return self._pictures / self._seconds if self._seconds > 0 else None


class Split:
    """``mode`` cpu, gpu, split, hybrid, or auto: the best by measuring. ``share``: fixed, and so exact.

    With split, the CPU reads coefficients and the device makes pixels of them; with hybrid, each decodes some
    pictures whole. Auto does not weigh split yet.
    """

    def __init__(
        self, mode: str, share: float | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        if mode not in MODES:
            raise OptionError(f"decode is one of {', '.join(MODES)}, not {mode!r}")
        if share is not None and not 0 <= share <= 1:
            raise OptionError(f"gpu_share is from 0 to 1, not {share}")
        if share is not None and mode in ("cpu", "gpu", "split"):
            raise OptionError(f"gpu_share says how hybrid splits; with decode={mode!r} nothing is split")
        self.mode, self.fixed = mode, share
        self.share = {"cpu": 0.0, "split": 0.0, "gpu": 1.0}.get(mode, 0.5 if share is None else share)
        self.seen = 0
        self._auto, self._clock, self._last = mode == "auto", clock, 0.0
        self._sides, self._taken = (_Rate(), _Rate()), _Rate()
        self._lock = threading.Lock()

    def count(self, pictures: int) -> int:
        """How many of so many pictures the GPU is to decode."""
        return round(self.share * pictures)

    @property
    def codes(self) -> bool:
        """Whether the CPU reads coefficients only."""
        return self.mode == "split"

    def only_cpu(self) -> None:
        """There is no decoder on the device."""
        self.mode, self.share, self._auto = "cpu", 0.0, False

    @property
    def rates(self) -> tuple[float | None, float | None]:
        """Pictures a second on the CPU and on the GPU, as measured."""
        return self._sides[0].value, self._sides[1].value

    def learn(self, cpu: tuple[int, float], gpu: tuple[int, float]) -> None:
        """(pictures, seconds) of a batch on either side."""
        with self._lock:
            now = self._clock()
            since, self._last = now - self._last, now
            self.seen += 1
            if self.seen <= WARM_UP:
                return
            self._taken.add(cpu[0] + gpu[0], since)
            for side, one in zip(self._sides, (cpu, gpu), strict=True):
                if one[0]:
                    side.add(*one)
            slow, fast = self.rates
            moves = self.fixed is None and (self._auto or self.mode == "hybrid")
            if moves and slow and fast:
                self.share = fast / (slow + fast)
                if self._auto and self.seen >= MEASURED_BATCHES:
                    self._decide(slow)

    def _decide(self, slow: float) -> None:
        """What auto is now: a step that takes less than the CPU can decode has the GPU to itself."""
        taken = self._taken.value
        enough = TOO_MUCH if self.mode == "cpu" else ENOUGH
        if self.share < WORTH or (taken is not None and taken < enough * slow):
            self.mode, self.share = "cpu", 0.0
        elif self.share > 1 - WORTH:
            self.mode, self.share = "gpu", 1.0
        else:
            self.mode = "hybrid"
