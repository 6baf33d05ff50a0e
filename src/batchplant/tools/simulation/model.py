"""The parts of a simulation: the prefetcher and pool of the loader in virtual time, on simulated links."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from ... import order as orders
from ...loading.executor import PRODUCERS
from ...loading.prefetch import PrefetchTuning
from ...loading.prefetch.remote import RemotePrefetcher
from ...order.keyed import key_of, uniform
from ...schema.columns import I64
from ...storage.remote import Pool, PooledSource
from ...storage.remote.blocks import CHUNK_BYTES, Block, Loaded, PooledObject
from ...storage.remote.disk import EVICTED_SHARE, needed
from ...storage.remote.fetch import DEFAULT_TUNING, ConcurrencyController, Task
from ...storage.spans import Spans
from .plan import Plan

Do = Callable[[], None]
EMPTY = np.empty(0, dtype=np.uint8)


class Clock:
    """Events in the order of their times; nothing takes longer than it takes to compute."""

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
    """Cost of a block: bytes from the server and by how many requests, and from the disk."""

    fetched: int
    requests: int
    kept: int
    # Whether it lies in a file then, and what else is to be done when it is here.
    mapped: bool
    then: Do


class Way:
    """Ways of bytes to a node: from the store over its link, from its disk."""

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
    """Stands in for the Fetcher of a rank: as many requests in flight, the most urgent first, none real."""

    def __init__(self, clock: Clock, way: Way, request: float, arrived: Do) -> None:
        self._clock, self._way, self._arrived = clock, way, arrived
        # What requests cost the rank itself comes one after another, too.
        self._own = Gate(clock, request)
        self._queue: list[tuple[float, int, Task]] = []
        self._number = itertools.count()
        self._running = 0
        self._weight = 0.0
        self._controller = ConcurrencyController(clock.now)
        self.requests = self.bytes = self.from_disk = 0

    @property
    def in_flight(self) -> int:
        return self._controller.limit

    def submit(self, run: Callable[[], Any], size: int, urgency: float = 0.0) -> Task:
        task = Task(run, size, urgency)
        self._enter(task)
        return task

    def hurry(self, task: Task, urgency: float) -> None:
        if not task.started and urgency < task.urgency:
            task.urgency = urgency
            self._enter(task)

    def _enter(self, task: Task) -> None:
        heapq.heappush(self._queue, (task.urgency, next(self._number), task))
        self._staff()

    def _staff(self) -> None:
        limit = DEFAULT_TUNING.max_in_flight
        while self._queue and self._running < limit and self._weight < self._controller.limit:
            task = heapq.heappop(self._queue)[2]
            # One that was hurried is in the queue twice.
            if task.started or not task.future.set_running_or_notify_cancel():
                continue
            task.started = True
            self._controller.full = self._controller.full and bool(self._queue)
            self._running += 1
            self._weight += task.weight
            self._begin(task)

    def _begin(self, task: Task) -> None:
        need: Need = task.run()
        self.requests += need.requests
        self.bytes += need.fetched
        self.from_disk += need.kept
        done: Do = partial(self._end, task, need)
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

    def _end(self, task: Task, need: Need) -> None:
        self._running -= 1
        self._weight -= task.weight
        task.settled = True
        need.then()
        task.future.set_result(Loaded(EMPTY, need.mapped))
        self._controller.moved += task.size
        self._controller.adapt(self._clock.now, bool(self._queue))
        self._staff()
        self._arrived()

    def spent(self) -> float:
        """Seconds of a core that requests took so far."""
        return self._own.passed * self._own.each


# -- the cache of a node --------------------------------------------------------------------------------

# Cells of a small cache that behaves as a large one, and epochs until it is what it will be.
CELLS, EPOCHS = 2048, 12
# Tells the draws of what is there from others.
PURPOSE = 19


class NodeDisk:
    """Stands in for the DiskCache that the ranks of a node share. Times are virtual.

    ``held``: the share of chunks that were there before anything of this was simulated.
    """

    def __init__(self, clock: Clock, limit: int, held: float = 0.0) -> None:
        self.limit, self._clock, self._held = limit, clock, held
        # When each cell is needed next (later than now), or was used last.
        self._due: dict[tuple[str, int], tuple[float, int]] = {}
        self._bytes = 0
        # Bytes that were put here, whatever became of them.
        self.put = 0
        self._key = key_of(0, 0, PURPOSE)

    def has(self, key: str, number: int) -> bool:
        due = self._due.get((key, number))
        if due is not None:
            if due[0] < self._clock.now:
                self._due[key, number] = self._clock.now, due[1]
            return True
        if not self._held:
            return False
        draws = np.array([(int(key) << 20) + number])
        return bool(uniform(self._key, draws)[0] < self._held)

    def keep(self, key: str, number: int, size: int) -> None:
        if (key, number) in self._due:
            return
        self.put += size
        if self._bytes + size > self.limit:
            self._evict(self._bytes + size - self.limit + self.limit // EVICTED_SHARE)
        if self._bytes + size <= self.limit:
            self._due[key, number] = self._clock.now, size
            self._bytes += size

    def _evict(self, wanted: int) -> None:
        now = int(self._clock.now * 1e9)
        last = sorted(self._due, key=lambda chunk: needed(int(self._due[chunk][0] * 1e9), now))
        while last and wanted > 0:
            size = self._due.pop(last.pop())[1]
            self._bytes -= size
            wanted -= size

    def expect(self, key: str, blocks: list[tuple[int, int, float]]) -> None:
        for start, size, due in blocks:
            if (key, start // CHUNK_BYTES) in self._due:
                self._due[key, start // CHUNK_BYTES] = due, size


def touched(plan: Plan) -> tuple[float, bool]:
    """The share of all cells that a node reads of in an epoch, and whether they are the same in each."""
    part = min(1.0, plan.cluster.ranks_per_node / plan.cluster.ranks)
    by_lanes = plan.loader.order in orders.BY_BLOCKS and (plan.loader.lanes or plan.nodes == 1)
    if by_lanes or part == 1.0:
        return part, part == 1.0
    # A cell is left alone where none of its samples falls to the node.
    samples = max(1.0, CHUNK_BYTES / plan.data.sample_bytes)
    if plan.loader.order in ("sequential", "windowed"):
        # Samples that follow each other fall to a node a batch of every rank at a time.
        run = plan.cluster.ranks_per_node * plan.loader.batch_size
        return min(1.0, part * (1 + samples / run)), plan.loader.order == "sequential"
    return 1 - (1 - part) ** samples, False


def hit_rates(plan: Plan, kept: float) -> tuple[float, float]:
    """Hits of a node on its disk in the second epoch, and in those much later.

    ``kept``: the share of what is read that is put there. A small cache stands for the large one: as many of
    its cells fit as of all cells, and each epoch touches as many of them, in another order.
    """
    part, same = touched(plan)
    if not plan.node.cache or not kept:
        return 0.0, 0.0
    room = plan.node.cache / plan.bytes
    if room >= 1:
        return kept * (1.0 if same else part), kept
    clock = Clock()
    disk = NodeDisk(clock, max(1, int(room * CELLS)))
    epochs = list(_epochs(plan, part))
    rates = []
    for number, cells in enumerate(epochs[:-1]):
        then = dict(zip(epochs[number + 1].tolist(), range(CELLS), strict=False))
        hits = 0
        for row, cell in enumerate(cells.tolist()):
            clock.now = float(number * CELLS + row)
            hits += disk.has("", cell)
            disk.keep("", cell, 1)
            if plan.data.samples <= PrefetchTuning.max_planned_samples and cell in then:
                disk.expect("", [(cell * CHUNK_BYTES, 1, float((number + 1) * CELLS + then[cell]))])
        rates.append(hits / len(cells))
    late = rates[EPOCHS // 2 :]
    return kept * rates[1], kept * sum(late) / len(late)


def _epochs(plan: Plan, part: float) -> Iterator[I64]:
    """The cells that a node touches, epoch after epoch."""
    rng = np.random.Generator(np.random.Philox(key=PURPOSE))
    many = max(1, round(part * CELLS))
    for _ in range(EPOCHS + 1):
        if plan.loader.order == "sequential":
            yield np.arange(many)
        else:
            cells = rng.permutation(CELLS)[:many]
            yield np.sort(cells) if plan.loader.order == "windowed" else cells


# -- ranks ----------------------------------------------------------------------------------------------


class SimulatedObject(PooledObject):
    """An object whose blocks are empty, but count as large as they say."""

    def __init__(self, key: str, size: int, disk: NodeDisk | None) -> None:
        super().__init__(key, size, disk)
        self._disk = disk

    def twin(self) -> SimulatedObject:
        return SimulatedObject(self.key, self.size, self._disk)

    def load(self, start: int, end: int) -> Need:
        """Return what these bytes cost, by the rules of a RemoteObject."""
        disk = self._disk
        if disk is None:
            return Need(end - start, 1, 0, False, lambda: None)
        fetched = requests = on_disk = 0
        whole = True
        fetched_chunks: list[int] = []
        numbers = range(start // CHUNK_BYTES, -(-end // CHUNK_BYTES))
        for number in numbers:
            low, high = self.chunk(number)
            if disk.has(self.key, number):
                on_disk += min(end, high) - max(start, low)
                continue
            requests += 1
            if number not in self.planned_chunks and not start <= low < high <= end:
                # Too little of it is needed: all is fetched past the cache.
                fetched, on_disk, whole = fetched + end - start, 0, False
                break
            fetched += high - low
            fetched_chunks.append(number)

        def keep() -> None:
            for number in fetched_chunks:
                low, high = self.chunk(number)
                disk.keep(self.key, number, high - low)

        return Need(fetched, requests, on_disk, whole and len(numbers) == 1, keep)


class SimulatedSource(PooledSource):
    """A source of a rank: it has blocks in the pool of the rank, but no bytes."""

    is_prefetched = True

    def __init__(self, path: str, pool: Pool, object: SimulatedObject) -> None:
        super().__init__(path, object.size)
        self._pool, self._object = pool, object

    @property
    def blocks(self) -> tuple[Pool, PooledObject]:
        return self._pool, self._object

    def hold(self, starts: I64, sizes: I64) -> list[Block]:
        """Pin the blocks that a RemoteSource would read these runs from."""
        pool, object, ranges, _ = self._blocks_of(starts, sizes)
        return pool.hold(object, ranges)


class Samples(Protocol):
    """Where the bytes of samples lie: a Dataset, or a Reader."""

    def __len__(self) -> int: ...

    def ranges(self, fields: Sequence[str] | None, indices: Any) -> Spans | None: ...


class Trace(NamedTuple):
    """State of a rank when it took a batch; bytes and requests since it began."""

    time: float
    samples: int
    bytes: int
    requests: int
    from_disk: int


class Rank:
    """One process: prefetches, waits for bytes, decodes, gives batches to its loop."""

    def __init__(
        self, clock: Clock, way: Way, disk: NodeDisk | None, plan: Plan, samples: Samples,
        size_of: Callable[[str], int], ready: Callable[[], None],
    ) -> None:  # fmt: skip
        """``samples`` tells the ``ranges`` of samples, ``size_of`` how large a file is."""
        self._clock, self._plan, self._samples, self._ready = clock, plan, samples, ready
        self.fetching = Fetching(clock, way, plan.cluster.request, self._arrived)
        self._pool = Pool(plan.loader.fetch_bytes, lambda: self.fetching)
        self._disk, self._size_of = disk, size_of
        self._sources: dict[str, SimulatedSource] = {}
        self._free = 0.0
        self.decoded = 0
        self.prefetcher: RemotePrefetcher | None = None

    def begin(self, shard: orders.Shard, after: Callable[[], Any] | None, batches: int) -> None:
        """Take up an epoch, of which so many batches are of interest."""
        self.shard, self.batches = shard, min(batches, len(shard))
        self.trace: list[Trace] = []
        self.prefetcher = RemotePrefetcher(
            shard,
            self._ranges,
            lambda: self._plan.bytes,
            samples=len(self._samples),
            next_shard=after,
            fetcher=lambda: self.fetching,
            clock=lambda: self._clock.now,
        )
        self._claimed = self.taken = 0
        self._working = 0
        self._made: set[int] = set()
        self._reading: tuple[int, list[Block]] | None = None
        self._missing = 0
        self._clock.at(self._clock.now, self.advance)

    def _ranges(self, ids: I64) -> Spans:
        spans = self._samples.ranges(None, ids)
        assert spans is not None
        sources = [self._source(path) for path in spans.files]
        return Spans(sources, spans.start, spans.size, spans.file)

    def _source(self, path: str) -> SimulatedSource:
        if path not in self._sources:
            object = SimulatedObject(path, self._size_of(path), self._disk)
            self._sources[path] = SimulatedSource(path, self._pool, object)
        return self._sources[path]

    # -- making batches --------------------------------------------------------------------------------

    def advance(self) -> None:
        """Do what can be done now."""
        assert self.prefetcher is not None
        while True:
            if self._reading is None:
                if not self._may_claim():
                    return
                self.prefetcher.want(self._claimed)
                self.prefetcher.advance()
                if not self.prefetcher.is_ready(self._claimed):
                    return
                self._read(self._claimed)
                self._claimed += 1
                self._working += 1
            if self._missing:
                return
            self._decode()

    def _may_claim(self) -> bool:
        room = self._claimed < min(self.taken + self._plan.loader.prefetch_batches, self.batches)
        return room and self._working < PRODUCERS

    def _read(self, number: int) -> None:
        blocks = []
        spans = self._ranges(self.shard.batch(number))
        for source, _, starts, sizes in spans.take(spans.size > 0).by_source():
            assert isinstance(source, SimulatedSource)
            blocks += source.hold(starts, sizes)
        self._reading = number, blocks
        futures = {id(block.future): block.future for block in blocks if not block.future.done()}
        self._missing = len(futures)
        for future in futures.values():
            future.add_done_callback(self._count_arrival)

    def _count_arrival(self, future: Future[Any]) -> None:
        self._missing -= 1

    def _arrived(self) -> None:
        """Something was fetched."""
        assert self.prefetcher is not None
        if self._reading is not None and not self._missing:
            self.advance()
        elif self.prefetcher.is_blocked:
            self.prefetcher.advance()
            if self._reading is None:
                self.advance()

    def _decode(self) -> None:
        assert self._reading is not None
        number, blocks = self._reading
        self._reading = None
        self._pool.release(blocks)
        size = len(self.shard.positions(number))
        self._free = max(self._free, self._clock.now) + size / self._plan.cluster.decode
        self.decoded += size
        self._clock.at(self._free, partial(self._was_made, number))

    def _was_made(self, number: int) -> None:
        assert self.prefetcher is not None
        self._working -= 1
        self._made.add(number)
        self.prefetcher.done(number)
        self.prefetcher.advance()
        self._ready()
        self.advance()

    # -- taking batches --------------------------------------------------------------------------------

    @property
    def has_next(self) -> bool:
        return self.taken in self._made

    @property
    def is_over(self) -> bool:
        return self.taken >= self.batches

    def take(self) -> None:
        self._made.discard(self.taken)
        fetching, size = self.fetching, len(self.shard.positions(self.taken))
        counts = fetching.bytes, fetching.requests, fetching.from_disk
        self.trace.append(Trace(self._clock.now, size, *counts))
        self.taken += 1
        self.advance()


class Loops:
    """The training loops of ranks: each takes its batches, all together or each for itself."""

    def __init__(self, clock: Clock, step: float, *, synchronous: bool) -> None:
        self._clock, self._step, self._synchronous = clock, step, synchronous
        self.ranks: list[Rank] = []
        self._until: dict[int, float] = {}

    def look(self) -> None:
        groups = [self.ranks] if self._synchronous else [[rank] for rank in self.ranks]
        for number, group in enumerate(groups):
            self._look_at(number, [rank for rank in group if not rank.is_over])

    def _look_at(self, number: int, group: Sequence[Rank]) -> None:
        if not group or self._clock.now < self._until.get(number, 0.0):
            return
        if all(rank.has_next for rank in group):
            self._until[number] = self._clock.now + self._step
            self._clock.at(self._until[number], self.look)
            for rank in group:
                rank.take()

    def run(self, report: Callable[[int], None]) -> None:
        """Until all have taken their batches."""
        before = -1
        while not all(rank.is_over for rank in self.ranks):
            if not self._clock.tick():
                raise AssertionError("nothing more happens, and ranks still wait")
            if self.ranks[0].taken != before:
                before = self.ranks[0].taken
                report(sum(rank.taken for rank in self.ranks))
        for rank in self.ranks:
            assert rank.prefetcher is not None
            rank.prefetcher.close()
