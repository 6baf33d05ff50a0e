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
# Bytes of a file that takes long enough to scan to show a bar.
MIN_BAR_BYTES = 512 << 20
# The same for a remote file.
MIN_REMOTE_BAR_BYTES = 32 << 20

S = TypeVar("S")
T = TypeVar("T")


class Stopped(BaseException):
    """Raised in a thread that builds an index and was told to stop."""


_LOCAL = threading.local()


@contextlib.contextmanager
def stopping(event: threading.Event) -> Iterator[None]:
    """Within it, building an index in this thread ends with :class:`Stopped` soon after the event is set."""
    _LOCAL.stop = event
    try:
        yield
    finally:
        _LOCAL.stop = None


def in_parallel(function: Callable[[S], T], arguments: Sequence[S], *, threads: int = 4) -> list[T]:
    """Return the function's results for all arguments, in order; on threads, because scans may take long.

    The error of the first that has one is raised. It, and Ctrl-C, stop the others. ``threads``: at least this
    many, or the number of cores.
    """
    if len(arguments) < 2:
        return [function(argument) for argument in arguments]
    stop = threading.Event()

    def work(argument: S) -> T:
        with stopping(stop):
            return function(argument)

    pool = ThreadPoolExecutor(min(len(arguments), max(threads, os.cpu_count() or 1)), "batchplant-open")
    try:
        return list(pool.map(work, arguments))
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def check_stop() -> None:
    event = getattr(_LOCAL, "stop", None)
    if event is not None and event.is_set():
        raise Stopped


@contextlib.contextmanager
def reporting(source: Source) -> Iterator[Report]:
    """Give a scanner its report function: it moves a bar for a large file on a terminal, and may stop it."""
    if (
        source.size < (MIN_REMOTE_BAR_BYTES if is_remote(source.path) else MIN_BAR_BYTES)
        or not sys.stderr.isatty()
    ):
        yield lambda done: check_stop()
        return
    with _BAR.add(source.size) as move:

        def report(done: int) -> None:
            check_stop()
            move(done)

        yield report


class _Bar:
    """A bar for all files that are scanned at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bar: Any = None
        self._task: Any = None
        self._total = self._done = self._users = 0

    @contextlib.contextmanager
    def add(self, size: int) -> Iterator[Report]:
        """Add a file of this size to the bar."""
        reported = 0

        def move(done: int) -> None:
            nonlocal reported
            with self._lock:
                self._done += max(0, min(done, size) - reported)
                reported = max(reported, min(done, size))
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
                self._done += size - reported
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
