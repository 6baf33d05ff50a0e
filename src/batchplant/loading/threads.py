"""Threads that end before the interpreter does: one that it ends in native code takes the process down."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from typing import Protocol


class Stoppable(Protocol):
    """Work that threads share; ``process`` is the id of the process that they live in."""

    process: int

    def stop(self) -> None: ...


# By thread, since a thread may still be in native code when its owner is gone.
_RUNNING: weakref.WeakKeyDictionary[threading.Thread, Stoppable] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def _after_fork() -> None:
    """Replace the lock, which a thread of the parent may have held."""
    global _LOCK
    _LOCK = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def start(threads: list[threading.Thread], work: Stoppable) -> None:
    """Start threads that stop when ``work`` is stopped, at the latest before the interpreter ends."""
    with _LOCK:
        _RUNNING.update(dict.fromkeys(threads, work))
    for thread in threads:
        thread.start()


def join(thread: threading.Thread, patience: float | None) -> None:
    """Wait for a thread, at most ``patience`` seconds."""
    # A thread that was never started cannot be joined. Nor can one whose start was interrupted by Ctrl-C
    # before it registered; it finds that its work was stopped, and ends.
    with contextlib.suppress(RuntimeError):
        thread.join(patience)


@atexit.register
def _stop_all() -> None:
    with _LOCK:
        running = list(_RUNNING.items())
    for _, work in running:
        work.stop()
    for thread, work in running:
        if os.getpid() == work.process:
            join(thread, 10)
