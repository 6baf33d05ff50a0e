"""How long something would take if this machine did nothing else meanwhile."""

from __future__ import annotations

import contextlib
import os
import time


def run_delay() -> dict[str, int]:
    """For every thread of this process, the nanoseconds that it could have run and had no core."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            # Threads end, and some systems do not count.
            with (
                contextlib.suppress(OSError, ValueError, IndexError),
                open(f"/proc/self/task/{thread}/schedstat") as file,
            ):
                found[thread] = int(file.read().split()[1])
    return found


class Clock:
    """Starts when it is made. To be read before the threads that worked end, with what they counted."""

    def __init__(self) -> None:
        self._delay = run_delay()
        self._cpu = time.process_time()
        self._wall = time.perf_counter()

    def read(self) -> tuple[float, float]:
        """Seconds on a machine that does nothing else, and those that went by."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        delay = sum(now - self._delay.get(thread, 0) for thread, now in run_delay().items()) / 1e9
        return alone(wall, cpu, delay, len(os.sched_getaffinity(0))), wall


def alone(wall: float, cpu: float, delay: float, cores: int) -> float:
    """``wall`` without what others took.

    So many threads wanted a core on average; what each waited for one is in the wall clock's time. Our own
    threads wait for each other too where they are more than the cores, which need their time in any case.
    """
    wanting = max(1.0, (cpu + delay) / max(wall, 1e-9))
    return max(wall - delay / wanting, cpu / cores, 1e-9)
