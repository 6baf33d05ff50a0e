"""Virtual time: links that share their bandwidth, a store with latency, a fetcher that waits for neither."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...storage.remote.blocks import Loaded
from ...storage.remote.fetch import DEFAULT_TUNING, HEDGE_URGENCY, ConcurrencyController, Task, patience
from .plan import Plan

Do = Callable[[], None]
EMPTY = np.empty(0, dtype=np.uint8)


class Clock:
    """What happens when; nothing takes longer than it takes to compute."""

    def __init__(self) -> None:
        self.now = 0.0
        self._number = itertools.count()
        self._waiting: list[tuple[float, int, Do]] = []

    def at(self, when: float, do: Do) -> None:
        heapq.heappush(self._waiting, (max(when, self.now), next(self._number), do))

    def after(self, seconds: float, do: Do) -> None:
        self.at(self.now + seconds, do)

    def tick(self) -> bool:
        """Let the next thing happen; False where there is none."""
        if not self._waiting:
            return False
        self.now, _, do = heapq.heappop(self._waiting)
        do()
        return True


class Link:
    """Bytes that are under way share its bandwidth evenly, and none is faster than ``each``."""

    def __init__(self, clock: Clock, bandwidth: float, each: float = float("inf")) -> None:
        self._clock, self.bandwidth, self._each = clock, bandwidth, each
        # Bytes that every transfer has got so far, had it begun with the first.
        self._done, self._since = 0.0, 0.0
        self._under_way: list[tuple[float, int, Do]] = []
        self._number = itertools.count()
        self._plan = 0
        self.bytes = 0

    def send(self, size: int, done: Do) -> None:
        self._go_on()
        self.bytes += size
        heapq.heappush(self._under_way, (self._done + size, next(self._number), done))
        self._expect()

    def _rate(self) -> float:
        return min(self._each, self.bandwidth / max(1, len(self._under_way)))

    def _go_on(self) -> None:
        self._done += self._rate() * (self._clock.now - self._since)
        self._since = self._clock.now

    def _expect(self) -> None:
        self._plan += 1
        if self._under_way:
            remaining = max(0.0, self._under_way[0][0] - self._done)
            self._clock.after(remaining / self._rate(), partial(self._arrive, self._plan))

    def _arrive(self, plan: int) -> None:
        # Another transfer has begun or ended since.
        if plan != self._plan:
            return
        self._go_on()
        # It has arrived, whatever the arithmetic left of it.
        self._done = max(self._done, self._under_way[0][0])
        come: list[Do] = []
        while self._under_way and self._under_way[0][0] <= self._done:
            come.append(heapq.heappop(self._under_way)[2])
        self._expect()
        for do in come:
            do()


class Gate:
    """Lets so many through in a second, one after another."""

    def __init__(self, clock: Clock, each: float) -> None:
        self._clock, self.each, self._free = clock, each, 0.0
        self.passed = 0

    def enter(self, number: int, do: Do) -> None:
        when = max(self._clock.now, self._free)
        self._free = when + number * self.each
        self.passed += number
        self._clock.at(self._free, do)


class Need(NamedTuple):
    """What bringing a block takes: bytes from the server and by how many requests, and from the disk."""

    fetched: int
    requests: int
    kept: int
    # Whether it lies in a file then, and what else is to be done when it is here.
    mapped: bool
    then: Do


class Way:
    """How bytes come to a node: from the store over its link, from its disk."""

    def __init__(self, clock: Clock, plan: Plan, ranks: int) -> None:
        """``ranks``: how many of the node are simulated; of all that is shared, they get their part."""
        here = min(plan.cluster.ranks_per_node, plan.cluster.ranks)
        all_ranks = plan.cluster.ranks
        self.of_node = plan.node.bandwidth * ranks / here
        self.of_store = plan.store.bandwidth * ranks / all_ranks
        self.link = Link(clock, min(self.of_node, self.of_store), plan.store.connection)
        self.disk = Link(clock, plan.node.cache_bandwidth * ranks / here)
        self.gate = Gate(clock, all_ranks / ranks / plan.store.requests)
        self.latency, self.disk_latency = plan.store.latency, plan.node.cache_latency


class Fetching:
    """Stands in for the Fetcher of a rank: as many requests in flight, the most urgent first, none real.

    Those that stall are made a second time by the same rule.
    """

    def __init__(self, clock: Clock, way: Way, request: float, arrived: Do) -> None:
        self._clock, self._way, self._arrived = clock, way, arrived
        # What requests cost the rank itself comes one after another, too.
        self._own = Gate(clock, request)
        self._queue: list[tuple[float, int, Task]] = []
        self._number = itertools.count()
        # Tasks that count, by the number of their attempt.
        self._running: dict[int, Task] = {}
        self._weight = 0.0
        self._controller = ConcurrencyController(clock.now)
        self._took: deque[tuple[int, float]] = deque(maxlen=64)
        self._watched = False
        self.requests = self.bytes = self.from_disk = self.hedges = 0

    @property
    def in_flight(self) -> int:
        return self._controller.limit

    def submit(self, run: Callable[[], Any], size: int, urgency: float = 0.0) -> Task:
        task = Task(run, size, urgency)
        self._enter(task, urgency)
        return task

    def hurry(self, task: Task, urgency: float) -> None:
        if not task.started and urgency < task.urgency:
            task.urgency = urgency
            self._enter(task, urgency)

    def _enter(self, task: Task, urgency: float) -> None:
        heapq.heappush(self._queue, (urgency, next(self._number), task))
        if not self._watched:
            self._watched = True
            self._clock.after(DEFAULT_TUNING.window_seconds, self._watch)
        self._staff()

    def _staff(self) -> None:
        limit = DEFAULT_TUNING.max_in_flight
        while self._queue and len(self._running) < limit and self._weight < self._controller.limit:
            urgency, number, task = heapq.heappop(self._queue)
            if task.settled or (task.started and urgency != HEDGE_URGENCY):
                continue
            if not task.started and not task.future.set_running_or_notify_cancel():
                continue
            task.started, task.began = True, self._clock.now
            self._controller.full = self._controller.full and bool(self._queue)
            self._running[number] = task
            self._weight += task.weight
            self._begin(number, task)

    def _begin(self, number: int, task: Task) -> None:
        need: Need = task.run()
        self.requests += need.requests
        self.bytes += need.fetched
        self.from_disk += need.kept
        done: Do = partial(self._end, number, task, need)
        way = self._way
        if need.kept:
            read = partial(way.disk.send, need.kept, done)
            done = partial(self._clock.after, way.disk_latency, read)
        if not need.requests:
            done()
            return
        send = partial(way.link.send, need.fetched, done)
        late = partial(self._clock.after, way.latency * need.requests, send)
        self._own.enter(need.requests, partial(way.gate.enter, need.requests, late))

    def _leave(self, number: int) -> None:
        """What is not waited for any more takes no room, though it goes on."""
        task = self._running.pop(number, None)
        self._weight -= 0.0 if task is None else task.weight

    def _end(self, number: int, task: Task, need: Need) -> None:
        self._leave(number)
        if not task.settled:
            task.settled = True
            for key in [name for name, held in self._running.items() if held is task]:
                self._leave(key)
            need.then()
            task.future.set_result(Loaded(EMPTY, need.mapped))
        self._took.append((task.size, self._clock.now - task.began))
        self._controller.moved += task.size
        self._controller.adapt(self._clock.now, bool(self._queue))
        self._staff()
        self._arrived()

    def _watch(self) -> None:
        if not self._running and not self._queue:
            self._watched = False
            return
        for number, task in list(self._running.items()):
            if task.hedged or self._clock.now - task.began < patience(task.size, self._took):
                continue
            task.hedged = True
            self.hedges += 1
            self._leave(number)
            self._enter(task, HEDGE_URGENCY)
        self._clock.after(DEFAULT_TUNING.window_seconds, self._watch)

    def spent(self) -> float:
        """Seconds of a core that requests took so far."""
        return self._own.passed * self._own.each
