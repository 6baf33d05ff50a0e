"""What the epochs of a loader came to, in numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .advice import advise

if TYPE_CHECKING:
    from .loader import Loader


class Stats:
    def stats(self: Loader) -> dict[str, Any]:  # type: ignore[misc]
        """What the epochs so far waited for, in seconds, and what to do about it."""
        spent = self._executor.timer.seconds
        parts = {name: spent.get(name, 0.0) for name in ("storage", "decode", "transforms", "device")}
        tally = self._tally
        bottleneck, advice = advise(parts, tally.waited, tally.stepped)
        return {
            **parts, **(self._device.stats() if self._device else {}), **self._traffic.stats(),
            **(self._decoded.stats(self.samples) if self._decoded else {}),
            **(self._packing.filling.stats() if self._packing else {}),
            **({"functions": dict(own)} if (own := self._executor.functions.seconds) else {}),
            "waited": tally.waited, "step": tally.stepped, "batches": tally.batches, "samples": tally.samples,
            "queue": self._queue(),
            "workers": self._executor.on_cpu.stats(), "jpeg warnings": self._executor.on_cpu.warnings,
            "skipped": len(self.skipped), "bottleneck": bottleneck, "advice": advice,
        }  # fmt: skip

    def _queue(self: Loader) -> dict[str, int]:  # type: ignore[misc]
        """Of the epochs under way: batches that are ready, that are being made, and how many may be."""
        found = [one.queue for one in list(self._live) if not one.over]
        return {
            "ready": sum(one for one, _ in found),
            "making": sum(one for _, one in found),
            "ahead": self.ahead,
        }
