"""Who decodes a batch's JPEGs, the CPU or the GPU: learnt from how fast both are. No framework here."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from ...errors import OptionError

MODES = ("auto", "cpu", "gpu", "hybrid", "split")
# Batches by which auto gets to know a side. Those before them pay for what is made only once, or were under
# way when it changed, and do not count.
MEASURED_BATCHES, UNCOUNTED = 10, 6
# After so many batches it looks at the other side again, then after twice as many, and so on.
LOOKS_AGAIN, SELDOM = 32, 512
# The first batch of all is not counted.
WARM_UP = 1
# A rate is that of the best so many batches in a row, of the last ones: the time of a single batch says
# little, since two that were queued may be done at almost the same time, and some wait for others.
IN_A_ROW, KEPT = 5, 16
# Of what the CPU can read: if less is asked for, auto leaves the GPU to the step; if more, no longer.
ENOUGH, TOO_MUCH = 0.6, 0.85
# Where both are at least so fast, compared with each other, they do more together than the faster alone.
ALIKE = 0.65
MUCH_SLOWER = 0.25


class _Rate:
    """Pictures a second, over the last batches."""

    def __init__(self, uncounted: int = 0) -> None:
        self._last: deque[tuple[int, float]] = deque(maxlen=KEPT)
        self.batches = -uncounted

    def add(self, pictures: int, seconds: float) -> None:
        self.batches += 1
        if self.batches > 0:
            self._last.append((pictures, seconds))

    @property
    def value(self) -> float | None:
        return max(self._rates(), default=None)

    def _rates(self) -> Iterator[float]:
        last = list(self._last)
        for end in range(min(IN_A_ROW, len(last)), len(last) + 1):
            some = last[max(0, end - IN_A_ROW) : end]
            seconds = sum(one[1] for one in some)
            if seconds > 0:
                yield sum(one[0] for one in some) / seconds


class Split:
    """``mode`` cpu, gpu, split, hybrid, or auto: the best by measuring. ``share``: fixed, and so exact.

    With gpu, the device reads the scans of JPEGs and makes pixels of them. With split, the CPU reads the
    scans; with hybrid, some of them. With cpu, it makes the pixels.
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
        self._auto = mode == "auto" and share is None
        self.mode = {"auto": "gpu" if self._auto else "hybrid"}.get(mode, mode)
        self.share = {"cpu": 0.0, "split": 0.0, "gpu": 1.0}.get(self.mode, 0.5 if share is None else share)
        self._moves = share is None and mode == "hybrid"
        self.seen = 0
        self.why = "measuring" if self._auto else "asked for"
        self._clock, self._last = clock, 0.0
        uncounted = UNCOUNTED if self._auto else 0
        self._cpu, self._gpu, self._taken = _Rate(uncounted), _Rate(uncounted), _Rate()
        self._looked, self._until = 0, LOOKS_AGAIN
        self._lock = threading.Lock()

    def count(self, pictures: int) -> int:
        """How many of so many pictures the GPU is to decode."""
        return round(self.share * pictures)

    @property
    def codes(self) -> bool:
        """Whether the device makes pixels, whoever reads the scans."""
        return self.mode != "cpu"

    def only_cpu(self) -> None:
        """There are no kernels for the device."""
        self.mode, self.share, self._auto, self.why = "cpu", 0.0, False, "there is no Triton"

    @property
    def rates(self) -> tuple[float | None, float | None]:
        """Pictures a second on the CPU and on the GPU, as measured."""
        return self._cpu.value, self._gpu.value

    def learn(self, cpu: tuple[int, float], gpu: tuple[int, float]) -> None:
        """(pictures, seconds) of a batch on either side."""
        with self._lock:
            now = self._clock()
            since, self._last = now - self._last, now
            self.seen += 1
            if self.seen <= WARM_UP:
                return
            self._taken.add(cpu[0] + gpu[0], since)
            for side, one in ((self._cpu, cpu), (self._gpu, gpu)):
                if one[0] and one[1] > 0:
                    side.add(*one)
            slow, fast = self.rates
            if self._auto:
                self._decide(slow, fast)
            elif self._moves and slow and fast:
                self.share = fast / (slow + fast)

    def _decide(self, cpu: float | None, gpu: float | None) -> None:
        """What auto is now. A step that takes less than the CPU can read has the GPU almost to itself."""
        for side, mode, share in ((self._gpu, "gpu", 1.0), (self._cpu, "split", 0.0)):
            if side.batches < MEASURED_BATCHES:
                self.mode, self.share, self._looked = mode, share, self.seen
                # What was taken meanwhile says nothing about the step.
                self._taken = _Rate()
                return
        assert cpu is not None
        assert gpu is not None
        taken = self._taken.value or 0.0
        enough = TOO_MUCH if self.mode == "split" else ENOUGH
        rates = f"the GPU decodes {gpu:,.0f} pictures/s, the CPU reads {cpu:,.0f}, {taken:,.0f} are taken"
        if self._taken.batches >= MEASURED_BATCHES and taken < enough * cpu:
            self.mode, self.share, self.why = "split", 0.0, f"the CPU is enough: {rates}"
            return
        if min(cpu, gpu) > ALIKE * max(cpu, gpu):
            self.mode, self.share, self.why = "hybrid", gpu / (cpu + gpu), f"both are as fast: {rates}"
        elif gpu > cpu:
            self.mode, self.share, self.why = "gpu", 1.0, f"the GPU is faster: {rates}"
        else:
            self.mode, self.share, self.why = "split", 0.0, f"the CPU is faster: {rates}"
        # A look at what is much slower costs much.
        until = SELDOM if gpu < MUCH_SLOWER * cpu else self._until
        if self.seen - self._looked >= until and self.mode != "hybrid":
            # Has the other side changed? Of the CPU, which does one batch at a time, two tell that.
            self._looked, self._until = self.seen, min(2 * self._until, SELDOM)
            if self.mode == "gpu":
                self._cpu = _Rate(2 - MEASURED_BATCHES)
            else:
                self._gpu = _Rate(UNCOUNTED)
