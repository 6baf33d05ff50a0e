"""Requests in flight: our own threads, as many as pay; failures tried again, stalled requests asked twice.

How many requests pay is found out by trying: the number grows as long as more of them bring more bytes a
second, and shrinks when a server says that it is too much. That is Little's law found from outside: requests
in flight = bandwidth × latency / size, whatever the three are today.
"""

from __future__ import annotations

import contextlib
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
from ..settings import DEFAULT_RETRY_SECONDS
from .client import TransientError
from .outage import MIN_TRIES, Outage

# Requests in flight.
LEAST, FIRST, MOST = 4, 8, 64
# A request of this many bytes counts as one of them, a smaller one as less.
LARGE, SMALLEST = 1 << 20, 1 / 8
# A request that takes this many times as long as others of its size is made a second time.
STALLED = 5.0
STALLED_LEAST = 1.0
# How often the number in flight is looked at.
WINDOW = 0.25
# What more requests must bring to be worth it.
GAIN = 1.1
# After how many looks what was found is forgotten: servers and networks change.
FORGET = 40
# Seconds without work after which a thread ends.
PATIENCE = 5.0
# Seconds after which a pause looks whether it is still wanted.
POLL = 0.05
# The urgency of a request that is made a second time.
AGAIN = float("-inf")

T = TypeVar("T")
# Of a thread: whether it need not wait for answers any more.
_THREAD = threading.local()


@contextlib.contextmanager
def waiting_until(stopped: Callable[[], bool]) -> Iterator[None]:
    """Within it, this thread waits for answers only until ``stopped()``; then AccessError is raised."""
    before = getattr(_THREAD, "stopped", None)
    _THREAD.stopped = stopped
    try:
        yield
    finally:
        _THREAD.stopped = before


class Answer(Future[T]):
    """A Future that a Ctrl-C ends the wait for: one that comes as a wait begins is seen when it ends."""

    def result(self, timeout: float | None = None) -> T:
        stopped = getattr(_THREAD, "stopped", None)
        while timeout is None and not self.done():
            with contextlib.suppress(TimeoutError):
                return super().result(WINDOW)
            if stopped is not None and stopped():
                raise AccessError("nobody waits for it any more")
        return super().result(timeout)


class Task:
    """One piece of work for a thread: ``run`` gives ``size`` bytes or so."""

    def __init__(self, run: Callable[[], Any], size: int, urgency: float) -> None:
        self.run, self.size, self.urgency = run, size, urgency
        self.weight = weight_of(size)
        self.future: Future[Any] = Answer()
        self.began = 0.0
        self.started = self.twice = self.settled = False


class Pace:
    """How many requests are in flight: the smallest number that brings about as much as any.

    It knows no clock; whoever uses it says what the time is.
    """

    def __init__(self, now: float) -> None:
        self.number = FIRST
        # Bytes per second by number in flight, and how often that was looked at.
        self._rates: dict[int, float] = {}
        self._looks = 0
        # Since the last look: bytes, and whether there was always more to do than was in flight.
        self.moved, self.full = 0, False
        self._since = now

    def slow_down(self) -> None:
        """It was too much for the server, or for the way there."""
        self.number = max(LEAST, self.number * 3 // 4)
        self._rates.clear()

    def look(self, now: float, waiting: bool) -> bool:
        """Look how it goes, unless that was done just now; whether the number may be another."""
        if now - self._since < WINDOW:
            return False
        rate, full = self.moved / (now - self._since), self.full
        self.moved, self._since, self.full = 0, now, waiting
        # Where there was too little to do, nothing can be learnt.
        if not full:
            return False
        self._looks += 1
        if self._looks % FORGET == 0:
            self._rates.clear()
            self.number = max(LEAST, self.number * 2 // 3)
            return False
        # Rates waver; a lucky one must not be believed for long.
        known = self._rates.get(self.number, rate)
        self._rates[self.number] = (known + rate) / 2
        enough = max(self._rates.values()) / GAIN
        self.number = min(number for number, one in self._rates.items() if one >= enough)
        if self.number == max(self._rates):
            self.number = min(MOST, self.number + max(1, self.number // 2))
        return True


def weight_of(size: int) -> float:
    """What a request counts of those in flight."""
    return min(1.0, max(SMALLEST, size / LARGE))


def patience(size: int, took: Iterable[tuple[int, float]]) -> float:
    """Seconds after which a request stalls, by how long others took that were not much smaller.

    Smaller ones tell nothing: over a link that is full, the largest take longest, and twice would be worse.
    """
    seconds = [one for other, one in took if 2 * other >= size]
    return max(STALLED_LEAST, STALLED * (float(np.median(seconds)) if seconds else STALLED_LEAST))


class Counts:
    """What was asked for more than once."""

    def __init__(self) -> None:
        self.retries = self.hedges = 0


class Fetcher:
    """Runs tasks on threads, the most urgent first. Threads end when there is nothing to do for a while."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: list[tuple[float, int, Task]] = []
        self._number = itertools.count()
        self._running: dict[int, Task] = {}
        self._idle = 0
        # Threads that wait for an answer that somebody else got meanwhile.
        self._abandoned: set[int] = set()
        self._watched = False
        self.counts = Counts()
        self._pace = Pace(time.monotonic())
        self._took: deque[tuple[int, float]] = deque(maxlen=64)
        self.most_in_flight = 0

    @property
    def in_flight(self) -> int:
        return self._pace.number

    def submit(self, run: Callable[[], Any], size: int, urgency: float = 0.0) -> Task:
        """Have a thread do this; a small ``urgency`` goes first."""
        task = Task(run, size, urgency)
        with self._changed:
            self._enter(task, urgency)
        return task

    def hurry(self, task: Task, urgency: float) -> None:
        """Somebody waits for it now."""
        if not task.started and urgency < task.urgency:
            with self._changed:
                task.urgency = urgency
                self._enter(task, urgency)

    def _enter(self, task: Task, urgency: float) -> None:
        heapq.heappush(self._queue, (urgency, next(self._number), task))
        self._staff()
        # It ends sooner than threads that have nothing to do.
        if not self._watched:
            self._watched = True
            threading.Thread(target=self._watch, name="batchplant-watch", daemon=True).start()

    # -- threads ---------------------------------------------------------------------------------------

    def _staff(self) -> None:
        """As many threads as there is work for; called with the lock held."""
        self._changed.notify(1)
        if self._queue and self._idle <= 0 and self._has_room():
            thread = threading.Thread(target=self._work, name="batchplant-fetch", daemon=True)
            # It counts from now on, so that the next task starts another one.
            self._idle += 1
            try:
                thread.start()
            except RuntimeError:
                self._idle -= 1
                raise

    def _has_room(self) -> bool:
        """Whether one more may go out: of small ones, which wait for the way and not for bytes, many may."""
        active = [task.weight for thread, task in self._running.items() if thread not in self._abandoned]
        return len(active) < MOST and sum(active) < self.in_flight

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
                # Another may have room for the next.
                self._staff()
            self._do(task, me)
            with self._changed:
                self._idle += 1
            del task

    def _next(self) -> Task | None:
        """The next task, once there is one and room for it; None after a while without."""
        give_up = time.monotonic() + PATIENCE
        while True:
            if self._queue and self._has_room():
                urgency, _, task = heapq.heappop(self._queue)
                # One that was hurried stands there twice; one that stalls is to run twice.
                if task.settled or (task.started and urgency != AGAIN):
                    continue
                if not task.started and not task.future.set_running_or_notify_cancel():
                    task.settled = True
                    continue
                task.started = True
                self._pace.full = self._pace.full and bool(self._queue)
                return task
            left = give_up - time.monotonic()
            if left <= 0:
                return None
            self._changed.wait(left)

    def _do(self, task: Task, me: int) -> None:
        try:
            value = self._tried(task)
        except BaseException as error:
            self._settle(task, me, error=error)
            return
        self._settle(task, me, value=value)
        took = time.monotonic() - task.began
        with self._changed:
            self._took.append((task.size, took))
            self._pace.moved += task.size
            if self._pace.look(time.monotonic(), bool(self._queue)):
                self._changed.notify_all()

    def _settle(self, task: Task, me: int, value: Any = None, error: BaseException | None = None) -> None:
        with self._changed:
            del self._running[me]
            self._abandoned.discard(me)
            others = [one for one, held in self._running.items() if held is task]
            # The other of two may still bring it.
            if task.settled or (error is not None and others):
                return
            task.settled = True
            # Whoever waits for the same answer is not waited for.
            self._abandoned.update(others)
            if others:
                self._staff()
        # Without the lock: who is told has locks of his own, and asks for more while he holds them.
        if error is not None:
            task.future.set_exception(error)
        else:
            task.future.set_result(value)

    def _tried(self, task: Task) -> Any:
        def count(pause: float) -> None:
            with self._changed:
                self.counts.retries += 1
                self._pace.slow_down()
                # What pauses does not stall.
                task.began = time.monotonic() + pause

        with self._changed:
            task.began = time.monotonic()
        return trying(task.run, stop=lambda: task.settled, failed=count)

    def _watch(self) -> None:
        """Make requests that stall a second time."""
        stuck = False
        while True:
            time.sleep(WINDOW)
            with self._changed:
                if not self._running and not self._queue:
                    self._watched = False
                    return
                # Ctrl-C may have come as a thread was to start: then nobody takes what is there.
                if stuck and not self._running:
                    self._idle = 0
                    self._staff()
                stuck = not self._running
                now = time.monotonic()
                for thread, task in list(self._running.items()):
                    if task.twice or now - task.began < patience(task.size, self._took):
                        continue
                    task.twice = True
                    self.counts.hedges += 1
                    # It goes before all others, and the one that stalls takes no room from now on.
                    self._abandoned.add(thread)
                    self._enter(task, AGAIN)


def trying(
    run: Callable[[], T],
    *,
    stop: Callable[[], bool] | None = None,
    failed: Callable[[float], None] | None = None,
    least: int = MIN_TRIES,
) -> T:
    """What ``run`` gives; what may be better the next time is tried again, with pauses that grow.

    How long, the server's :class:`Outage` decides. stop: whether nobody wants it any more. failed: is told of
    every pause. least: tries that it has even if the window of the outage is over.
    """
    began = time.monotonic()
    for attempt in itertools.count(1):
        try:
            return run()
        except TransientError as error:
            outage = error.outage or Outage(error.path or "the server", DEFAULT_RETRY_SECONDS)
            pause = outage.pause(attempt, began, error.message, error.after, least)
            if pause is not None and failed is not None:
                failed(pause)
            if pause is None or not _sleep(pause, stop):
                tries = f"{attempt} tries in {time.monotonic() - began:.1f} s" if attempt > 1 else "1 try"
                told = AccessError(f"{error.message} ({tries})", path=error.path, offset=error.offset)
                raise told from None
    raise AssertionError


def _sleep(seconds: float, stop: Callable[[], bool] | None) -> bool:
    """Sleep; False, and at once, when nobody wants it any more."""
    until = time.monotonic() + seconds
    while stop is None or not stop():
        left = until - time.monotonic()
        if left <= 0:
            return True
        time.sleep(left if stop is None else min(left, POLL))
    return False


_FETCHER: Fetcher | None = None
_PROCESS = 0
_LOCK = threading.Lock()


def fetcher() -> Fetcher:
    """That of this process."""
    global _FETCHER, _PROCESS, _LOCK
    if os.getpid() != _PROCESS:
        _LOCK, _FETCHER, _PROCESS = threading.Lock(), None, os.getpid()
    with _LOCK:
        _FETCHER = _FETCHER or Fetcher()
        return _FETCHER
