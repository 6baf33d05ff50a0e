"""What takes longer than a request: computed once in a thread, asked for again until it is there."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

Progress = Callable[[int, int], None]

# Results that are kept, how many bytes of them, and jobs that run at a time.
KEPT, KEPT_BYTES, RUNNING = 32, 96 << 20, 2
# A job that nobody asks for any more is given up: its page was closed.
PATIENCE = 20.0
# What went wrong may go better later: a server that was down, a file that was being written.
AGAIN = 5.0


class Abandoned(Exception):  # noqa: N818
    """Nobody waits for this job any more."""


class Job:
    def __init__(self) -> None:
        self.done, self.of = 0, 0
        self.value: Any = None
        self.error: Exception | None = None
        self.finished = threading.Event()
        self.asked = time.monotonic()
        self.ended = 0.0
        self.stopped = False

    @classmethod
    def ready(cls, value: Any) -> Job:
        """One that there was nothing to compute for."""
        job = cls()
        job.value = value
        job.finished.set()
        return job

    def told(self, done: int, of: int) -> None:
        self.done, self.of = done, of
        if self.stopped or time.monotonic() - self.asked > PATIENCE:
            raise Abandoned


class Jobs:
    """By key: who asks for the same gets the same."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[Hashable, Job] = OrderedDict()
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(RUNNING)
        self._closed = False

    def get(self, key: Hashable, work: Callable[[Progress], Any], wait: float = 0.0) -> Job:
        """The job of this key, started if it is not there; waits so long for the end of it.

        ``work`` gets a function to report progress to, which raises when the result is not wanted any more.
        """
        with self._lock:
            job = self._jobs.get(key)
            if job is not None and job.error is not None and time.monotonic() - job.ended > AGAIN:
                job = None
            if job is not None and job.stopped:
                # It ends as soon as it hears of that, and is wanted again.
                job = None
            if job is None and not self._closed:
                job = self._jobs[key] = Job()
                threading.Thread(
                    target=self._run, args=(key, job, work), name="view-job", daemon=True
                ).start()
                self._drop()
            elif job is None:
                job = Job()
                job.error = Abandoned()
                job.finished.set()
            self._jobs.move_to_end(key) if key in self._jobs else None
            job.asked = time.monotonic()
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

    def _drop(self) -> None:
        """Lets go of what was asked for longest ago, where there is too much; the newest stays."""
        ready = [key for key, job in self._jobs.items() if job.finished.is_set()]
        sizes = [getattr(self._jobs[key].value, "nbytes", 0) for key in ready]
        total = sum(sizes)
        for key, size in zip(ready[:-1], sizes, strict=False):
            if len(self._jobs) <= KEPT and total <= KEPT_BYTES:
                return
            total -= size
            del self._jobs[key]

    def _run(self, key: Hashable, job: Job, work: Callable[[Progress], Any]) -> None:
        with self._slots:
            try:
                job.told(0, 0)
                job.value = work(job.told)
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
                    self._drop()
