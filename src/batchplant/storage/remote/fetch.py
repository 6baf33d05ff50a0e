"""Requests in flight: threads of our own with adaptive concurrency, retries and hedged requests.

The concurrency limit is found by hill climbing: it grows as long as more requests bring more bytes per
second, and shrinks when a server says that it is too much. That is Little's law found from outside: requests
in flight = bandwidth × latency / size, whatever the three are today.
"""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np

from ...errors import AccessError
from ..settings import DEFAULT_RETRY_SECONDS, FetchTuning
from .client import MIN_TRIES, Outage, TransientError

# A request of this many bytes counts as one in flight, a smaller one as a fraction of at least this size.
FULL_WEIGHT_BYTES, MIN_WEIGHT = 1 << 20, 1 / 8
# Interval at which a thread that waits for an answer can be interrupted.
INTERRUPT_SECONDS = 0.25
# Ratio of throughput by which more requests have to be faster to be worth it.
MIN_GAIN = 1.1
# Number of measurements after which they are forgotten: servers and networks change.
MEASUREMENTS_KEPT = 40
# Interval at which a pause checks whether it is still needed.
POLL_SECONDS = 0.05
# The urgency of a hedged request.
HEDGE_URGENCY = float("-inf")

DEFAULT_TUNING = FetchTuning()

T = TypeVar("T")
# Per thread: a function that says whether to stop waiting for answers.
_THREAD = threading.local()


@contextlib.contextmanager
def waiting_until(stopped: Callable[[], bool]) -> Iterator[None]:
    """Within it, this thread waits for answers only until ``stopped()`` is true; then raises AccessError."""
    before = getattr(_THREAD, "stopped", None)
    _THREAD.stopped = stopped
    try:
        yield
    finally:
        _THREAD.stopped = before


class Answer(Future[T]):
    """A Future whose wait Ctrl-C can end: the wait returns to the interpreter at short intervals."""

    def result(self, timeout: float | None = None) -> T:
        stopped = getattr(_THREAD, "stopped", None)
        while timeout is None and not self.done():
            with contextlib.suppress(TimeoutError):
                return super().result(INTERRUPT_SECONDS)
            if stopped is not None and stopped():
                raise AccessError("nobody waits for it any more")
        return super().result(timeout)


class Task:
    """A piece of work for a thread: ``run`` returns about ``size`` bytes."""

    def __init__(self, run: Callable[[], Any], size: int, urgency: float) -> None:
        self.run, self.size, self.urgency = run, size, urgency
        # Of the requests in flight; small ones, which wait for latency, count little.
        self.weight = min(1.0, max(MIN_WEIGHT, size / FULL_WEIGHT_BYTES))
        self.future: Future[Any] = Answer()
        self.began = 0.0
        self.started = self.hedged = self.settled = False


class ConcurrencyController:
    """Adapts the number of requests in flight to the smallest one that brings about the best throughput.

    It has no clock of its own: callers pass the time.
    """

    def __init__(self, now: float, tuning: FetchTuning = DEFAULT_TUNING) -> None:
        self._tuning = tuning
        self.limit = tuning.initial_in_flight
        # Measured bytes per second by concurrency limit, and the number of measurements.
        self._rates: dict[int, float] = {}
        self._looks = 0
        # Since the last measurement: bytes received, and whether the limit was always reached.
        self.moved, self.full = 0, False
        self._since = now

    def slow_down(self) -> None:
        """Lower the limit: it was too much for the server or for the network."""
        self.limit = max(self._tuning.min_in_flight, self.limit * 3 // 4)
        self._rates.clear()

    def adapt(self, now: float, waiting: bool) -> bool:
        """Measure and adapt, unless that was done just now; return whether the limit may have changed."""
        if now - self._since < self._tuning.window_seconds:
            return False
        rate, full = self.moved / (now - self._since), self.full
        self.moved, self._since, self.full = 0, now, waiting
        # With too little to do, a measurement says nothing about the limit.
        if not full:
            return False
        self._looks += 1
        if self._looks % MEASUREMENTS_KEPT == 0:
            self._rates.clear()
            self.limit = max(self._tuning.min_in_flight, self.limit * 2 // 3)
            return False
        # Rates fluctuate: a moving average keeps a lucky one from being believed for long.
        previous = self._rates.get(self.limit, rate)
        self._rates[self.limit] = (previous + rate) / 2
        enough = max(self._rates.values()) / MIN_GAIN
        self.limit = min(limit for limit, measured in self._rates.items() if measured >= enough)
        if self.limit == max(self._rates):
            self.limit = min(self._tuning.max_in_flight, self.limit + max(1, self.limit // 2))
        return True


def patience(size: int, took: Iterable[tuple[int, float]], tuning: FetchTuning = DEFAULT_TUNING) -> float:
    """Return the seconds after which a request stalls, from how long others took that were not much smaller.

    Smaller ones do not count: over a saturated link the largest take longest; hedging would make it worse.
    """
    seconds = [seconds_taken for other_size, seconds_taken in took if 2 * other_size >= size]
    usual = float(np.median(seconds)) if seconds else tuning.min_stall_seconds
    return max(tuning.min_stall_seconds, tuning.stall_factor * usual)


class Counts:
    """Numbers of retried and of hedged requests."""

    def __init__(self) -> None:
        self.retries = self.hedges = 0


class Fetcher:
    """Runs tasks on threads, the most urgent first. Threads end after a while without work."""

    def __init__(self, tuning: FetchTuning = DEFAULT_TUNING) -> None:
        self.tuning = tuning
        self._changed = threading.Condition()
        self._queue: list[tuple[float, int, Task]] = []
        self._number = itertools.count()
        self._running: dict[int, Task] = {}
        self._idle = 0
        # Threads whose answer another thread has already brought, or whose request was hedged.
        self._abandoned: set[int] = set()
        self._watched = False
        self.counts = Counts()
        self._controller = ConcurrencyController(time.monotonic(), tuning)
        self._durations: deque[tuple[int, float]] = deque(maxlen=64)
        self.most_in_flight = 0

    @property
    def in_flight(self) -> int:
        return self._controller.limit

    @property
    def pending(self) -> int:
        """Number of tasks that wait or run; nobody may wait for their answers any more."""
        return len(self._queue) + len(self._running)

    def submit(self, run: Callable[[], Any], size: int, urgency: float = 0.0) -> Task:
        """Queue a task; a small ``urgency`` goes first."""
        task = Task(run, size, urgency)
        with self._changed:
            self._enter(task, urgency)
        return task

    def hurry(self, task: Task, urgency: float) -> None:
        """Raise the urgency of a task that a thread waits for now."""
        if not task.started and urgency < task.urgency:
            with self._changed:
                task.urgency = urgency
                self._enter(task, urgency)

    def _enter(self, task: Task, urgency: float) -> None:
        heapq.heappush(self._queue, (urgency, next(self._number), task))
        self._staff()
        # The watcher ends sooner than idle threads do.
        if not self._watched:
            self._watched = True
            threading.Thread(target=self._watch, name="batchplant-watch", daemon=True).start()

    # -- threads ---------------------------------------------------------------------------------------

    def _staff(self) -> None:
        """Start a thread if there is work for one more; called with the lock held."""
        self._changed.notify(1)
        if self._queue and self._idle <= 0 and self._has_room():
            thread = threading.Thread(target=self._work, name="batchplant-fetch", daemon=True)
            # It counts as idle from now on, so that the next task starts another one.
            self._idle += 1
            try:
                thread.start()
            except RuntimeError:
                self._idle -= 1
                raise

    def _has_room(self) -> bool:
        """Return whether one more request may go out; small ones, which wait for latency, count little."""
        active = [task.weight for thread, task in self._running.items() if thread not in self._abandoned]
        return len(active) < self.tuning.max_in_flight and sum(active) < self.in_flight

    def _work(self) -> None:
        me = threading.get_ident()
        while True:
            with self._changed:
                task = self._next()
                self._idle -= 1
                if task is None:
                    return
                self._running[me] = task
                task.began = time.monotonic()
                self.most_in_flight = max(self.most_in_flight, len(self._running) - len(self._abandoned))
                # There may be room for the next task.
                self._staff()
            self._do(task, me)
            with self._changed:
                self._idle += 1
            del task

    def _next(self) -> Task | None:
        """Return the next task, once there is one and room for it; None after a while without."""
        give_up = time.monotonic() + self.tuning.idle_thread_seconds
        while True:
            if self._queue and self._has_room():
                urgency, _, task = heapq.heappop(self._queue)
                # A hurried task is queued twice; a hedged task runs twice.
                if task.settled or (task.started and urgency != HEDGE_URGENCY):
                    continue
                if not task.started and not task.future.set_running_or_notify_cancel():
                    task.settled = True
                    continue
                task.started = True
                self._controller.full = self._controller.full and bool(self._queue)
                return task
            remaining = give_up - time.monotonic()
            if remaining <= 0:
                return None
            self._changed.wait(remaining)

    def _do(self, task: Task, me: int) -> None:
        try:
            value = self._run_with_retries(task)
        except BaseException as error:
            self._settle(task, me, error=error)
            return
        self._settle(task, me, value=value)
        seconds = time.monotonic() - task.began
        with self._changed:
            self._durations.append((task.size, seconds))
            self._controller.moved += task.size
            if self._controller.adapt(time.monotonic(), bool(self._queue)):
                self._changed.notify_all()

    def _settle(self, task: Task, me: int, value: Any = None, error: BaseException | None = None) -> None:
        with self._changed:
            del self._running[me]
            self._abandoned.discard(me)
            others = [thread for thread, running in self._running.items() if running is task]
            # If one of two hedged requests fails, the other may still succeed.
            if task.settled or (error is not None and others):
                return
            task.settled = True
            # Other threads that wait for the same answer no longer count as in flight.
            self._abandoned.update(others)
            if others:
                self._staff()
        # Without the lock: callbacks take locks of their own, and submit tasks while they hold them.
        if error is not None:
            task.future.set_exception(error)
        else:
            task.future.set_result(value)

    def _run_with_retries(self, task: Task) -> Any:
        def count(pause: float) -> None:
            with self._changed:
                self.counts.retries += 1
                self._controller.slow_down()
                # A pausing task does not stall.
                task.began = time.monotonic() + pause

        with self._changed:
            task.began = time.monotonic()
        return trying(task.run, stop=lambda: task.settled, on_failure=count)

    def _watch(self) -> None:
        """Send stalled requests a second time."""
        stuck = False
        while True:
            time.sleep(self.tuning.window_seconds)
            with self._changed:
                if not self._running and not self._queue:
                    self._watched = False
                    return
                # Ctrl-C may have come while a thread was to start: then no thread takes queued tasks.
                if stuck and not self._running:
                    self._idle = 0
                    self._staff()
                stuck = not self._running
                now = time.monotonic()
                for thread, task in list(self._running.items()):
                    if task.hedged or now - task.began < patience(task.size, self._durations, self.tuning):
                        continue
                    task.hedged = True
                    self.counts.hedges += 1
                    # The hedged request goes first, and the stalled one takes no room from now on.
                    self._abandoned.add(thread)
                    self._enter(task, HEDGE_URGENCY)


def trying(
    run: Callable[[], T],
    *,
    stop: Callable[[], bool] | None = None,
    on_failure: Callable[[float], None] | None = None,
    min_tries: int = MIN_TRIES,
) -> T:
    """Return ``run()``; after a transient failure try again, with growing pauses.

    The server's :class:`Outage` decides for how long. stop: whether the result is no longer needed.
    on_failure: called with the length of every pause. min_tries: tries even if the outage's window is over.
    """
    began = time.monotonic()
    for attempt in itertools.count(1):
        try:
            return run()
        except TransientError as error:
            outage = error.outage or Outage(error.path or "the server", DEFAULT_RETRY_SECONDS)
            pause = outage.pause(attempt, began, error.message, error.after, min_tries)
            if pause is not None and on_failure is not None:
                on_failure(pause)
            if pause is None or not _sleep(pause, stop):
                tries = f"{attempt} tries in {time.monotonic() - began:.1f} s" if attempt > 1 else "1 try"
                failure = AccessError(f"{error.message} ({tries})", path=error.path, offset=error.offset)
                raise failure from None
    raise AssertionError


def _sleep(seconds: float, stop: Callable[[], bool] | None) -> bool:
    """Sleep; return False at once when ``stop()`` says that the result is no longer needed."""
    until = time.monotonic() + seconds
    while stop is None or not stop():
        remaining = until - time.monotonic()
        if remaining <= 0:
            return True
        time.sleep(remaining if stop is None else min(remaining, POLL_SECONDS))
    return False


_FETCHER: Fetcher | None = None
_TUNING = DEFAULT_TUNING
_LOCK = threading.Lock()


def _after_fork() -> None:
    """Forget the fetcher of the parent, one of whose threads may have held the lock."""
    global _LOCK, _FETCHER
    _LOCK, _FETCHER = threading.Lock(), None


os.register_at_fork(after_in_child=_after_fork)


def fetcher() -> Fetcher:
    """Return the fetcher of this process."""
    global _FETCHER
    with _LOCK:
        _FETCHER = _FETCHER or Fetcher(_TUNING)
        return _FETCHER


@contextlib.contextmanager
def tuned(**numbers: Any) -> Iterator[None]:
    """Within it, a fetcher with other numbers (see :class:`FetchTuning`) stands for that of this process."""
    global _TUNING, _FETCHER
    before = _TUNING, _FETCHER
    _TUNING, _FETCHER = dataclasses.replace(_TUNING, **numbers), None
    try:
        yield
    finally:
        _TUNING, _FETCHER = before
