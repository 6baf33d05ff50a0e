"""Work on many chunks at a time, in threads that all arrays share."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")

# Less than this is done before another thread has begun.
ALONE_BYTES = 256 << 10
_LOCK = threading.Lock()
_POOL: ThreadPoolExecutor | None = None


def _reset() -> None:
    """The threads are the other process's."""
    global _LOCK, _POOL
    _LOCK, _POOL = threading.Lock(), None


os.register_at_fork(after_in_child=_reset)


def each(work: Callable[[T], None], items: Sequence[T], size: int) -> None:
    """Do this for every item, in this thread and as many others as there are processors for.

    ``size``: the bytes that this is about. The first exception ends it.
    """
    global _POOL
    cpus = len(os.sched_getaffinity(0))
    helpers = min(len(items), cpus) - 1 if size > ALONE_BYTES else 0
    left = deque(items)
    failed: list[BaseException] = []

    def drain() -> None:
        while not failed:
            try:
                item = left.popleft()
            except IndexError:
                return
            try:
                work(item)
            except BaseException as error:
                failed.append(error)

    if helpers < 1:
        for item in items:
            work(item)
        return
    with _LOCK:
        _POOL = _POOL or ThreadPoolExecutor(cpus, thread_name_prefix="batchplant-chunks")
    started = [_POOL.submit(drain) for _ in range(helpers)]
    drain()
    # Those that have not begun have nothing left to do.
    wait([one for one in started if not one.cancel()])
    if failed:
        raise failed[0]
