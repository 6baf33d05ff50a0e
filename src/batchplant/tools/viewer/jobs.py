"""Computations that take longer than a request: run once in a thread, polled by the page, cached."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

Progress = Callable[[int, int], None]
Value = TypeVar("Value")

# Results that are cached, their bytes, and jobs that run at a time.
MAX_RESULTS, MAX_RESULT_BYTES, MAX_RUNNING = 32, 96 << 20, 2
# A job is abandoned after so long without a request for it: its page was closed.
ABANDON_SECONDS = 20.0
# Seconds that a request waits for its job before it answers how far the job is.
WAIT_SECONDS = 0.2
# A failed job is run again after so long: a server that was down may be up, a file complete.
RETRY_SECONDS = 5.0


class Abandoned(Exception):  # noqa: N818
    """Raised in a job whose result is not wanted any more."""


class Job:
    """A computation in a thread, and how far it is: ``done`` of ``of``."""

    def __init__(self) -> None:
        self.done, self.of = 0, 0
        self.value: Any = None
        self.error: Exception | None = None
        self.finished = threading.Event()
        self.last_request = time.monotonic()
        self.ended = 0.0
        self.stopped = False

    @classmethod
    def ready(cls, value: Any) -> Job:
        """Return a finished job with this value."""
        job = cls()
        job.value = value
        job.finished.set()
        return job

    def report_progress(self, done: int, of: int) -> None:
        """Note the progress; raises Abandoned when the result is not wanted any more."""
        self.done, self.of = done, of
        if self.stopped or time.monotonic() - self.last_request > ABANDON_SECONDS:
            raise Abandoned


class Jobs:
    """Jobs by key: requests with the same key share one job."""

    def __init__(self, retry_seconds: float = RETRY_SECONDS) -> None:
        self._retry_seconds = retry_seconds
        self._jobs: OrderedDict[Hashable, Job] = OrderedDict()
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(MAX_RUNNING)
        self._closed = False

    def get(self, key: Hashable, work: Callable[[Progress], Any], wait: float = WAIT_SECONDS) -> Job:
        """Return the job of this key, started if there is none; wait so many seconds at most for its end.

        ``work`` gets :meth:`Job.report_progress`.
        """
        with self._lock:
            job = self._jobs.get(key)
            if (
                job is not None
                and job.error is not None
                and time.monotonic() - job.ended > self._retry_seconds
            ):
                job = None
            if job is not None and job.stopped:
                # It ends soon, but its result is wanted again.
                job = None
            if job is None and not self._closed:
                job = self._jobs[key] = Job()
                threading.Thread(
                    target=self._run, args=(key, job, work), name="view-job", daemon=True
                ).start()
                self._evict()
            elif job is None:
                job = Job()
                job.error = Abandoned()
                job.finished.set()
            self._jobs.move_to_end(key) if key in self._jobs else None
            job.last_request = time.monotonic()
        job.finished.wait(wait)
        return job

    def forget(self, key: Hashable) -> None:
        with self._lock:
            job = self._jobs.pop(key, None)
        if job is not None:
            job.stopped = True

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for job in self._jobs.values():
                job.stopped = True
            self._jobs.clear()

    def _evict(self) -> None:
        """Evict the least recently requested results above the limits; the newest stays."""
        ready = [key for key, job in self._jobs.items() if job.finished.is_set()]
        sizes = [getattr(self._jobs[key].value, "nbytes", 0) for key in ready]
        total = sum(sizes)
        for key, size in zip(ready[:-1], sizes, strict=False):
            if len(self._jobs) <= MAX_RESULTS and total <= MAX_RESULT_BYTES:
                return
            total -= size
            del self._jobs[key]

    def _run(self, key: Hashable, job: Job, work: Callable[[Progress], Any]) -> None:
        with self._slots:
            try:
                job.report_progress(0, 0)
                job.value = work(job.report_progress)
            except Abandoned as error:
                job.error = error
                with self._lock:
                    if self._jobs.get(key) is job:
                        del self._jobs[key]
            except Exception as error:
                job.error = error
            finally:
                job.ended = time.monotonic()
                job.finished.set()
                with self._lock:
                    self._evict()


class RecentCache(Generic[Value]):
    """LRU cache of a number of bytes. Threads that ask for a value that is being computed wait for it."""

    def __init__(self, max_bytes: int, size: Callable[[Value], int]) -> None:
        self._max_bytes, self._size = max_bytes, size
        self._futures: OrderedDict[Hashable, Future[Value]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, compute: Callable[[], Value]) -> Value:
        with self._lock:
            future = self._futures.get(key)
            is_new = future is None
            if future is None:
                future = self._futures[key] = Future()
            self._futures.move_to_end(key)
        if is_new:
            try:
                future.set_result(compute())
            except BaseException as error:
                future.set_exception(error)
                with self._lock:
                    self._futures.pop(key, None)
            self._evict()
        return future.result()

    def clear(self) -> None:
        with self._lock:
            self._futures.clear()

    def _evict(self) -> None:
        with self._lock:
            total = 0
            for key in list(reversed(self._futures)):
                future = self._futures[key]
                if not future.done() or future.exception() is not None:
                    continue
                first, total = not total, total + self._size(future.result())
                # The newest stays however large it is: a player asks for it range by range.
                if total > self._max_bytes and not first:
                    del self._futures[key]
