"""A bar while large files are scanned, and a way to stop a scan that runs in another thread."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from .. import Source, is_remote

Report = Callable[[int], None]
# From here on scanning takes long enough to show a bar.
LARGE = 512 << 20
# The same of one that has to be fetched for it.
LARGE_REMOTE = 32 << 20

S = TypeVar("S")
T = TypeVar("T")


class Stopped(BaseException):
    """The thread that builds an index was told to stop."""


_LOCAL = threading.local()


@contextlib.contextmanager
def stopping(event: threading.Event) -> Iterator[None]:
    """Within it, building an index in this thread ends with :class:`Stopped` soon after the event is set."""
    _LOCAL.stop = event
    try:
        yield
    finally:
        _LOCAL.stop = None


def in_parallel(function: Callable[[S], T], given: Sequence[S], *, threads: int = 4) -> list[T]:
    """What the function makes of everything given, in order; on threads, for scanning a file may take long.

    The error of the first that has one is raised. It, and Ctrl-C, stop the others. ``threads``: so many, or
    as many as there are cores.
    """
    if len(given) < 2:
        return [function(one) for one in given]
    stop = threading.Event()

    def work(one: S) -> T:
        with stopping(stop):
            return function(one)

    pool = ThreadPoolExecutor(min(len(given), max(threads, os.cpu_count() or 1)), "batchplant-open")
    try:
        return list(pool.map(work, given))
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def check_stop() -> None:
    event = getattr(_LOCAL, "stop", None)
    if event is not None and event.is_set():
        raise Stopped


@contextlib.contextmanager
def reporting(source: Source) -> Iterator[Report]:
    """What a scanner reports to: a bar on a terminal where the file is large, and the wish to stop."""
    if source.size < (LARGE_REMOTE if is_remote(source.path) else LARGE) or not sys.stderr.isatty():
        yield lambda done: check_stop()
        return
    with _BAR.one(source.size) as move:

        def report(done: int) -> None:
            check_stop()
            move(done)

        yield report


class _Bar:
    """One bar for all the files that are scanned at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bar: Any = None
        self._task: Any = None
        self._total = self._done = self._users = 0

    @contextlib.contextmanager
    def one(self, size: int) -> Iterator[Report]:
        """Add a file of this size to the bar."""
        at = 0

        def move(done: int) -> None:
            nonlocal at
            with self._lock:
                self._done += max(0, min(done, size) - at)
                at = max(at, min(done, size))
                self._bar.update(self._task, completed=self._done)

        with self._lock:
            if not self._users:
                self._start()
            self._users += 1
            self._total += size
            self._bar.update(self._task, total=self._total)
        try:
            yield move
        finally:
            with self._lock:
                self._users -= 1
                self._done += size - at
                if not self._users:
                    self._bar.stop()

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.progress import TransferSpeedColumn as SpeedColumn

        self._total = self._done = 0
        self._bar = Progress(
            TextColumn("indexing"), BarColumn(), DownloadColumn(), SpeedColumn(), TimeRemainingColumn(),
            console=Console(stderr=True), transient=True,
        )  # fmt: skip
        self._bar.start()
        self._task = self._bar.add_task("indexing", total=0)


_BAR = _Bar()
