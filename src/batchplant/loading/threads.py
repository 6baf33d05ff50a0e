"""Threads that end before the interpreter does: one that it ends in native code takes the process down."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import traceback
import weakref
from typing import Protocol


class Stoppable(Protocol):
    """Work that threads share; ``process`` is the id of the process that they live in."""

    process: int

    def stop(self) -> None: ...


# What threads do, by the part of the package that they are in, and by the function of the epoch.
STAGES = (
    ("storage/remote", "waits for a server"), ("storage/", "reads"), ("loading/prefetch", "prefetches"),
    ("data/", "reads"), ("formats/", "reads"), ("ops/", "runs ops"), ("loading/images", "decodes images"),
    ("interop/", "works for the device"), ("loading/packing", "packs rows"),
    ("loading/node", "waits for another process"), ("loading/service", "waits for another machine"),
)  # fmt: skip
IDLE = {"claim": "is idle", "_produce_batches": "waits for its turn"}

# By thread, since a thread may still be in native code when its owner is gone.
_RUNNING: weakref.WeakKeyDictionary[threading.Thread, Stoppable] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def _after_fork() -> None:
    """Replace the lock, which a thread of the parent may have held."""
    global _LOCK
    _LOCK = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def log_stall(batch: int, seconds: float) -> None:
    """Warn that a batch is waited for, with the stage and the stack of every thread of batchplant."""
    frames, stages, stacks = sys._current_frames(), [], []
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if frame is None or not thread.name.startswith("batchplant"):
            continue
        stack = traceback.extract_stack(frame)
        stages.append(f"{thread.name} {_stage(stack)}")
        stacks.append(f"{thread.name}:\n{''.join(traceback.format_list(stack))}")
    logging.getLogger("batchplant").warning(
        "batch %d is waited for since %.0f s: %s\n%s",
        batch, seconds, "; ".join(stages) or "no thread makes batches", "\n".join(stacks),
    )  # fmt: skip


def _stage(stack: traceback.StackSummary) -> str:
    """Name the part of batchplant that a thread is in, by the innermost frame that has a name there."""
    for frame in reversed(stack):
        path = frame.filename.replace(os.sep, "/")
        for part, name in STAGES:
            if f"/batchplant/{part}" in path:
                return name
        if path.endswith("/loading/epoch.py") and frame.name in IDLE:
            return IDLE[frame.name]
    return "runs"


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
