"""Who decodes a batch's JPEGs, the CPU or the GPU: learnt from how fast both are. No framework here."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from ...errors import OptionError

MODES = ("auto", "cpu", "gpu", "hybrid", "split")
# Batches by which auto gets to know a mode, behind those that pay for what is made only once or were under
# way; and when it looks at it again. Fewer show that it is far slower than the best.
FIRST, AGAIN, FEW = (16, 10), (2, 8), 3
# It looks at the others again after so many times what that takes: the look costs that part of the speed.
# Where another was the best before, sooner: what was measured while all was new may be wrong. Then after
# twice as many each time, or seldom at once if the others are far slower.
SOON, SELDOM = 6, 100
# Batches that are made together are few at first: rates at one size say little about so many times that size.
GROWN = 1.5
# The first batch of all is not counted.
WARM_UP = 1
# A rate is that of the best so many batches in a row, of the last ones: the time of a single batch says
# little, since two that were queued may be done at almost the same time, and some wait for others.
IN_A_ROW, KEPT = 5, 16
# Of what the CPU can read: if less is asked for, auto leaves the GPU to the step; if more, no longer.
ENOUGH, TOO_MUCH = 0.6, 0.85
# Where both are at least so fast, compared with each other, they may do more together than the faster alone.
ALIKE = 0.6


class _Rate:
    """Images a second, over the last batches; ``ready`` after so many, the first ones not counted."""

    def __init__(self, uncounted: int = 0, needed: int = 0) -> None:
        self._last: deque[tuple[int, float]] = deque(maxlen=KEPT)
        self._batches, self._needed = -uncounted, needed

    def add(self, images: int, seconds: float) -> None:
        self._batches += 1
        if self._batches > 0 and seconds > 0:
            self._last.append((images, seconds))

    def ready(self, best: float = 0.0) -> bool:
        """Whether it is known; sooner if it is far below the best of all that are."""
        enough = self._batches >= self._needed or (self._batches >= FEW and self.value < ALIKE * best)
        return enough and bool(self._last)

    @property
    def value(self) -> float:
        return max(self._rates(), default=0.0)

    def _rates(self) -> Iterator[float]:
        last = list(self._last)
        for end in range(min(IN_A_ROW, len(last)), len(last) + 1):
            some = last[max(0, end - IN_A_ROW) : end]
            if some:
                yield sum(one[0] for one in some) / sum(one[1] for one in some)


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
        # Of whole batches by mode; where nothing is chosen, of the share of the GPU and of the CPU's.
        first = FIRST if self._auto else (0, 1)
        self._rates = {mode: _Rate(*first) for mode in ("gpu", "split", "hybrid")}
        self._taken = _Rate(0, FIRST[1])
        # How long batches took to make, all together; when that has auto look at the other modes again, None
        # while it looks.
        self._made = 0.0
        self._due: float | None = None
        self._best, self._patience = "", SOON
        # The most images at a time of all that the rates are of.
        self._most = 0
        self._lock = threading.Lock()

    def count(self, images: int) -> int:
        """How many of so many images the GPU is to decode."""
        return round(self.share * images)

    @property
    def codes(self) -> bool:
        """Whether the device makes pixels, whoever reads the scans."""
        return self.mode != "cpu"

    def only_cpu(self) -> None:
        """There are no kernels for the device."""
        self.mode, self.share, self._auto, self.why = "cpu", 0.0, False, "there is no Triton"

    @property
    def rates(self) -> dict[str, float]:
        """Images a second, as measured."""
        best = max((rate.value for rate in self._rates.values() if rate.ready()), default=0.0)
        return {mode: rate.value for mode, rate in self._rates.items() if rate.ready(best)}

    def learn(self, mode: str, cpu: tuple[int, float], gpu: tuple[int, float]) -> None:
        """(images, seconds) of a batch on either side; ``mode``: as it was when they were divided."""
        with self._lock:
            now = self._clock()
            since, self._last = now - self._last, now
            self.seen += 1
            if self.seen <= WARM_UP:
                return
            images = cpu[0] + gpu[0]
            self._taken.add(images, since)
            if self._auto:
                if images:
                    seconds = max(cpu[1], gpu[1])
                    self._made += seconds
                    self._rates[mode].add(images, seconds)
                    self._decide(images)
                return
            for side, one in (("split", cpu), ("gpu", gpu)):
                if one[0]:
                    self._rates[side].add(*one)
            found = self.rates
            if self._moves and len(found) == 2:
                self.share = found["gpu"] / (found["gpu"] + found["split"])

    def _decide(self, images: int) -> None:
        """What auto is now. A step that takes less than the CPU can read has the GPU almost to itself."""
        if images > GROWN * self._most:
            self._most, self._due = images, None
            self._forget(self.mode, FIRST)
        found = self.rates
        for mode in ("gpu", "split"):
            if mode not in found:
                return self._look_at(mode)
        gpu, cpu = found["gpu"], found["split"]
        if min(cpu, gpu) < ALIKE * max(cpu, gpu):
            found.pop("hybrid", None)
        elif "hybrid" not in found and self._due is None:
            return self._look_at("hybrid")
        taken, enough = self._taken.value, TOO_MUCH if self.mode == "split" else ENOUGH
        told = ", ".join(f"{mode} {rate:,.0f}" for mode, rate in found.items())
        told = f"images/s: {told}, taken {taken:,.0f}"
        if self._taken.ready() and taken < enough * cpu:
            self._be("split", f"the CPU is enough ({told})")
            return None
        best = max(found, key=lambda mode: found[mode])
        self._be(best, f"{best} is the fastest ({told})")
        if best != self._best:
            self._best, self._patience, self._due = best, SOON, None
        if self._due is None:
            rest = [rate for mode, rate in found.items() if mode != best]
            far = max(rest) < ALIKE * found[best]
            look = sum(images / rate for rate in rest) * (AGAIN[0] + (FEW if far else AGAIN[1]))
            self._due = self._made + self._patience * look
            self._patience = SELDOM if far else min(2 * self._patience, SELDOM)
        elif self._made >= self._due:
            # Has one of the others changed?
            self._due = None
            self._forget(best, AGAIN)
        return None

    def _forget(self, but: str, batches: tuple[int, int]) -> None:
        """All modes but one are measured again, by so many batches."""
        for mode in self.rates:
            if mode != but:
                self._rates[mode] = _Rate(*batches)

    def _look_at(self, mode: str) -> None:
        self._be(mode, self.why)
        # What is taken meanwhile says nothing about the step.
        self._taken = _Rate(0, FIRST[1])

    def _be(self, mode: str, why: str) -> None:
        self.mode, self.why, self.share = mode, why, float(mode == "gpu")
        if mode == "hybrid":
            gpu, cpu = (self._rates[side].value for side in ("gpu", "split"))
            self.share = gpu / (gpu + cpu)
