"""Threads that end before the interpreter does: ended by it amid native code, one takes the process down."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from typing import Protocol


class Work(Protocol):
    """What threads work on together; ``process`` is the one that they live in."""

    process: int

    def stop(self) -> None: ...


# The threads and not their makers: a thread may be amid native code when its maker is gone already.
_RUNNING: weakref.WeakKeyDictionary[threading.Thread, Work] = weakref.WeakKeyDictionary()


def start(threads: list[threading.Thread], work: Work) -> None:
    """Start threads that stop when ``work`` is stopped, at the latest before the interpreter ends."""
    _RUNNING.update(dict.fromkeys(threads, work))
    for thread in threads:
        thread.start()


def join(thread: threading.Thread, patience: float | None) -> None:
    # One that was never started cannot be waited for. Nor can one whose start Ctrl-C cut short before it said
    # that it runs; it finds that its work was stopped, and ends.
    with contextlib.suppress(RuntimeError):
        thread.join(patience)


@atexit.register
def _stop_all() -> None:
    running = list(_RUNNING.items())
    for _, work in running:
        work.stop()
    for thread, work in running:
        if os.getpid() == work.process:
            join(thread, 10)
