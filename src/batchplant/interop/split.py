"""Which share of a batch's JPEGs the GPU decodes, learnt from how fast both sides are. No framework here."""

from __future__ import annotations

import threading

from ..errors import OptionError

MODES = ("auto", "cpu", "gpu", "hybrid")
# Batches that auto looks at before it decides; and the share below which a side is not worth its trouble.
LOOKED_AT = 8
WORTH = 0.08
# The first batch pays for what is made only once.
UNTRUE = 1
# How much of what was seen counts at the next batch. The time of a single batch says little: two that were
# queued may be done at almost the same time.
KEPT = 0.9


class Split:
    """``mode`` cpu, gpu, hybrid, or auto: the best of them by measuring. ``share``: fixed, and so exact."""

    def __init__(self, mode: str, share: float | None = None) -> None:
        if mode not in MODES:
            raise OptionError(f"decode is one of {', '.join(MODES)}, not {mode!r}")
        if share is not None and not 0 <= share <= 1:
            raise OptionError(f"gpu_share is from 0 to 1, not {share}")
        if share is not None and mode in ("cpu", "gpu"):
            raise OptionError(f"gpu_share says how hybrid splits; with decode={mode!r} nothing is split")
        self.mode, self.fixed = mode, share
        self.share = {"cpu": 0.0, "gpu": 1.0}.get(mode, 0.5 if share is None else share)
        self.seen = 0
        # Pictures and seconds, of the CPU and the GPU.
        self._seen = [[0.0, 0.0], [0.0, 0.0]]
        self._lock = threading.Lock()

    def count(self, pictures: int) -> int:
        """How many of so many pictures the GPU is to decode."""
        return round(self.share * pictures)

    @property
    def rates(self) -> tuple[float | None, float | None]:
        """Pictures a second on the CPU and on the GPU, as measured."""
        cpu, gpu = (pictures / seconds if seconds > 0 else None for pictures, seconds in self._seen)
        return cpu, gpu

    def learn(self, cpu: tuple[int, float], gpu: tuple[int, float]) -> None:
        """(pictures, seconds) of a batch on either side."""
        with self._lock:
            self.seen += 1
            if self.seen <= UNTRUE:
                return
            for side, new in enumerate((cpu, gpu)):
                if new[0]:
                    old = self._seen[side]
                    self._seen[side] = [KEPT * old[0] + new[0], KEPT * old[1] + new[1]]
            slow, fast = self.rates
            if self.fixed is not None or self.mode in ("cpu", "gpu") or not slow or not fast:
                return
            target = fast / (slow + fast)
            if self.mode == "auto" and self.seen >= LOOKED_AT:
                self.mode = "cpu" if target < WORTH else "gpu" if target > 1 - WORTH else "hybrid"
                if self.mode != "hybrid":
                    target = float(self.mode == "gpu")
            self.share = target
