"""Parallel work on chunks, in threads that all arrays share."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar

from ... import _native
from ...errors import DataError
from ...storage.platform import cpu_count

T = TypeVar("T")
R = TypeVar("R")

# Work on fewer bytes ends before another thread would begin.
MIN_PARALLEL_BYTES = 256 << 10
_LOCK = threading.Lock()
_POOL: ThreadPoolExecutor | None = None
_CHUNK_THREADS: _native.ChunkThreads | None = None


def _reset() -> None:
    """Forget the threads, which a forked process does not have."""
    global _LOCK, _POOL, _CHUNK_THREADS
    _LOCK, _POOL, _CHUNK_THREADS = threading.Lock(), None, None


os.register_at_fork(after_in_child=_reset)


def chunk_threads() -> _native.ChunkThreads:
    """Return the native threads that decode chunks and copy boxes out of them, beside the one that asks."""
    global _CHUNK_THREADS
    with _LOCK:
        _CHUNK_THREADS = _CHUNK_THREADS or _native.ChunkThreads(max(1, cpu_count() - 1))
        return _CHUNK_THREADS


def each(work: Callable[[T], None], items: Sequence[T], size: int) -> None:
    """Call ``work`` for every item, in this thread and up to one more per processor.

    ``size``: bytes of all items. The first exception ends it.
    """
    global _POOL
    cpus = cpu_count()
    helpers = min(len(items), cpus) - 1 if size > MIN_PARALLEL_BYTES else 0
    waiting = deque(items)
    failed: list[BaseException] = []

    def drain() -> None:
        while not failed:
            try:
                item = waiting.popleft()
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
    wait([task for task in started if not task.cancel()])
    if failed:
        raise failed[0]


def each_or_error(work: Callable[[T], R], items: Sequence[T], size: int) -> list[R | DataError]:
    """Return the result of ``work`` for every item, or the error that it raised; ``size``: bytes of one."""
    results: list[Any] = [None] * len(items)

    def run(number: int) -> None:
        try:
            results[number] = work(items[number])
        except DataError as error:
            # With its traceback it would refer to the results, and so to itself.
            results[number] = error.with_traceback(None)

    each(run, range(len(items)), size * len(items))
    return results
