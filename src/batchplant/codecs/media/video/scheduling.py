"""Threads keep the scheduling class that they had, whatever an encoder does to them.

SVT-AV1 makes the thread that calls it, and all that it starts, a real-time one where it may (as root); such a
thread, and every process that it starts later, goes before all others of the machine.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

# Linux lists the threads of a process here.
TASKS = "/proc/self/task"


@contextlib.contextmanager
def kept() -> Iterator[Callable[[], None]]:
    """Gives a function that sets this thread, and those started since, back; it is called at the end too."""
    if not hasattr(os, "sched_setscheduler"):
        yield lambda: None
        return
    before, threads = _class(0), _threads()

    def restore() -> None:
        for thread in (0, *(_threads() - threads)):
            # It may be gone already.
            with contextlib.suppress(OSError):
                if _class(thread) != before:
                    os.sched_setscheduler(thread, *before)

    try:
        yield restore
    finally:
        restore()


def _class(thread: int) -> tuple[int, os.sched_param]:
    return os.sched_getscheduler(thread), os.sched_getparam(thread)


def _threads() -> set[int]:
    try:
        return {int(name) for name in os.listdir(TASKS)}
    except OSError:
        return set()
