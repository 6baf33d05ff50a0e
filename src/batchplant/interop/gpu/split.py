"""Division of a batch's JPEGs between CPU and GPU, learnt from how fast both are. Imports no framework."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from ...errors import OptionError

MODES = ("auto", "cpu", "gpu", "hybrid", "split")
# Batches (uncounted, measured) of a mode when auto first measures it, and when it measures it again. The
# uncounted ones pay for one-time costs or were in flight already. Fewer are enough for a mode that is far
# slower than the best.
FIRST_TRIAL_BATCHES, NEXT_TRIAL_BATCHES, MIN_TRIAL_BATCHES = (16, 10), (2, 8), 3
# auto measures the other modes again after so many times the duration of the measurement, which bounds its
# cost. Soon after the best mode has changed, since early measurements may be wrong; then after twice as long
# each time, or seldom at once if the others are far slower.
SOON, SELDOM = 6, 100
# Coalesced batches are small at first. Growth by this factor makes earlier rates invalid.
REMEASURE_GROWTH = 1.5
# Batches of the whole run that are not counted.
WARM_UP_BATCHES = 1
# A rate is that of the best window of so many consecutive batches among the last ones. The time of a single
# batch says little: two that were queued may finish at almost the same time, and some wait for others.
WINDOW_BATCHES, HISTORY_BATCHES = 5, 16
# Fractions of the CPU's rate: if the training step consumes less than the first, auto leaves the GPU to it;
# if it consumes more than the second, no longer.
CPU_SUFFICES, CPU_OVERLOADED = 0.6, 0.85
# If the slower side reaches this fraction of the faster one, both together may beat the faster one alone.
COMPARABLE = 0.6


class _Rate:
    """Images per second over the last batches; ``ready`` after ``needed`` batches that count."""

    def __init__(self, uncounted: int = 0, needed: int = 0) -> None:
        self._last: deque[tuple[int, float]] = deque(maxlen=HISTORY_BATCHES)
        self._batches, self._needed = -uncounted, needed

    def add(self, images: int, seconds: float) -> None:
        self._batches += 1
        if self._batches > 0 and seconds > 0:
            self._last.append((images, seconds))

    def ready(self, best: float = 0.0) -> bool:
        """Return True once the rate is known; sooner if it is far below the ``best`` known one."""
        enough = self._batches >= self._needed or (
            self._batches >= MIN_TRIAL_BATCHES and self.value < COMPARABLE * best
        )
        return enough and bool(self._last)

    @property
    def value(self) -> float:
        return max(self._rates(), default=0.0)

    def _rates(self) -> Iterator[float]:
        last = list(self._last)
        for end in range(min(WINDOW_BATCHES, len(last)), len(last) + 1):
            window = last[max(0, end - WINDOW_BATCHES) : end]
            if window:
                yield sum(images for images, _ in window) / sum(seconds for _, seconds in window)


class Split:
    """Decides how many JPEGs of a batch the GPU decodes.

    ``mode``: with gpu, the device reads the scans of JPEGs and makes pixels of them. With split, the CPU
    reads the scans; with hybrid, some of them. With cpu, the CPU makes the pixels. auto chooses by measuring.
    ``share``: fixed fraction of the GPU in hybrid, which makes results reproducible.
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
        self._adapts_share = share is None and mode == "hybrid"
        self._batches = 0
        self.why = "measuring" if self._auto else "asked for"
        self._clock, self._last_learned_at = clock, 0.0
        # With auto: of whole batches by mode. Otherwise: of the images of the GPU, and of those of the CPU.
        first = FIRST_TRIAL_BATCHES if self._auto else (0, 1)
        self._rates = {mode: _Rate(*first) for mode in ("gpu", "split", "hybrid")}
        # Images per second that the training step consumes.
        self._consumed = _Rate(0, FIRST_TRIAL_BATCHES[1])
        # Seconds that all batches took to make; and at how many of them auto measures the other modes again,
        # None while it measures.
        self._busy_seconds = 0.0
        self._next_trial: float | None = None
        self._best, self._patience = "", SOON
        # Largest batch that the rates were measured with.
        self._max_images = 0
        self._lock = threading.Lock()

    def count(self, images: int) -> int:
        """Return how many of so many images the GPU is to decode."""
        return round(self.share * images)

    @property
    def uses_device(self) -> bool:
        """True if the device makes the pixels of JPEGs, whichever side reads their scans."""
        return self.mode != "cpu"

    def only_cpu(self) -> None:
        """Decode on the CPU, because there are no kernels for the device."""
        self.mode, self.share, self._auto, self.why = "cpu", 0.0, False, "there is no Triton"

    @property
    def rates(self) -> dict[str, float]:
        """Measured images per second, by mode."""
        best = max((rate.value for rate in self._rates.values() if rate.ready()), default=0.0)
        return {mode: rate.value for mode, rate in self._rates.items() if rate.ready(best)}

    def learn(self, mode: str, cpu: tuple[int, float], gpu: tuple[int, float]) -> None:
        """Learn from (images, seconds) of a batch on either side; ``mode``: that which divided the batch."""
        with self._lock:
            now = self._clock()
            since, self._last_learned_at = now - self._last_learned_at, now
            self._batches += 1
            if self._batches <= WARM_UP_BATCHES:
                return
            images = cpu[0] + gpu[0]
            self._consumed.add(images, since)
            if self._auto:
                if images:
                    seconds = max(cpu[1], gpu[1])
                    self._busy_seconds += seconds
                    self._rates[mode].add(images, seconds)
                    self._decide(images)
                return
            for side, (side_images, seconds) in (("split", cpu), ("gpu", gpu)):
                if side_images:
                    self._rates[side].add(side_images, seconds)
            rates = self.rates
            if self._adapts_share and len(rates) == 2:
                self.share = rates["gpu"] / (rates["gpu"] + rates["split"])

    def _decide(self, images: int) -> None:
        """Choose the mode of auto: split if the CPU can feed the training step, else the fastest."""
        if images > REMEASURE_GROWTH * self._max_images:
            self._max_images, self._next_trial = images, None
            self._forget_all_but(self.mode, FIRST_TRIAL_BATCHES)
        rates = self.rates
        for mode in ("gpu", "split"):
            if mode not in rates:
                return self._try(mode)
        gpu, cpu = rates["gpu"], rates["split"]
        if min(cpu, gpu) < COMPARABLE * max(cpu, gpu):
            rates.pop("hybrid", None)
        elif "hybrid" not in rates and self._next_trial is None:
            return self._try("hybrid")
        consumed = self._consumed.value
        limit = CPU_OVERLOADED if self.mode == "split" else CPU_SUFFICES
        figures = ", ".join(f"{mode} {rate:,.0f}" for mode, rate in rates.items())
        figures = f"images/s: {figures}, taken {consumed:,.0f}"
        if self._consumed.ready() and consumed < limit * cpu:
            self._set_mode("split", f"the CPU is enough ({figures})")
            return None
        best = max(rates, key=lambda mode: rates[mode])
        self._set_mode(best, f"{best} is the fastest ({figures})")
        self._plan_next_trial(best, rates, images)
        return None

    def _plan_next_trial(self, best: str, rates: dict[str, float], images: int) -> None:
        """Decide when the other modes are measured again, or do so if that is due."""
        if best != self._best:
            self._best, self._patience, self._next_trial = best, SOON, None
        if self._next_trial is None:
            others = [rate for mode, rate in rates.items() if mode != best]
            far_slower = max(others) < COMPARABLE * rates[best]
            uncounted, measured = NEXT_TRIAL_BATCHES
            batches = uncounted + (MIN_TRIAL_BATCHES if far_slower else measured)
            trial_seconds = sum(images / rate for rate in others) * batches
            self._next_trial = self._busy_seconds + self._patience * trial_seconds
            self._patience = SELDOM if far_slower else min(2 * self._patience, SELDOM)
        elif self._busy_seconds >= self._next_trial:
            self._next_trial = None
            self._forget_all_but(best, NEXT_TRIAL_BATCHES)

    def _forget_all_but(self, mode: str, batches: tuple[int, int]) -> None:
        """Measure all modes but one again, by so many batches."""
        for known_mode in self.rates:
            if known_mode != mode:
                self._rates[known_mode] = _Rate(*batches)

    def _try(self, mode: str) -> None:
        self._set_mode(mode, self.why)
        # The rate during a trial says nothing about the training step.
        self._consumed = _Rate(0, FIRST_TRIAL_BATCHES[1])

    def _set_mode(self, mode: str, why: str) -> None:
        self.mode, self.why, self.share = mode, why, float(mode == "gpu")
        if mode == "hybrid":
            gpu, cpu = (self._rates[side].value for side in ("gpu", "split"))
            self.share = gpu / (gpu + cpu)
