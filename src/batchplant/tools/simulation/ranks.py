"""Ranks in virtual time: the loader's own prefetcher and pool, and batches that wait for their bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from ... import order as orders
from ...loading.executor import PRODUCERS
from ...loading.prefetch.remote import RemotePrefetcher
from ...schema.columns import I64
from ...storage.remote import Pool, PooledSource
from ...storage.remote.blocks import CHUNK_BYTES, Block, PooledObject
from ...storage.spans import Spans
from .cache import NodeDisk
from .network import Clock, Fetching, Need, Way
from .plan import Plan


def _nothing() -> None:
    pass


class SimulatedObject(PooledObject):
    """An object whose blocks are empty, but count as large as they say."""

    def __init__(self, key: str, size: int, disk: NodeDisk | None) -> None:
        super().__init__(key, size, disk)
        self._disk = disk

    def twin(self) -> SimulatedObject:
        return SimulatedObject(self.key, self.size, self._disk)

    def load(self, start: int, end: int) -> Need:
        """Return what these bytes cost, by the rules of a RemoteObject."""
        fetched = requests = on_disk = 0
        fetched_chunks: list[int] = []
        numbers = range(start // CHUNK_BYTES, -(-end // CHUNK_BYTES)) if self._disk is not None else range(0)
        for number in numbers:
            low, high = self.chunk(number)
            if self._disk is not None and self._disk.has(self.key, number):
                on_disk += min(end, high) - max(start, low)
            elif number in self.planned_chunks or start <= low < high <= end:
                fetched, requests = fetched + high - low, requests + 1
                fetched_chunks.append(number)
            else:
                fetched, requests = fetched + end - start, requests + 1
                return Need(fetched, requests, 0, False, partial(self._keep, fetched_chunks))
        if not numbers:
            return Need(end - start, 1, 0, False, _nothing)
        return Need(fetched, requests, on_disk, len(numbers) == 1, partial(self._keep, fetched_chunks))

    def _keep(self, numbers: list[int]) -> None:
        for number in numbers:
            low, high = self.chunk(number)
            if self._disk is not None:
                self._disk.keep(self.key, number, high - low)


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


@dataclasses.dataclass
class Trace:
    """What a rank had when it took each of its batches."""

    times: list[float] = dataclasses.field(default_factory=list)
    samples: list[int] = dataclasses.field(default_factory=list)
    bytes: list[int] = dataclasses.field(default_factory=list)
    requests: list[int] = dataclasses.field(default_factory=list)
    from_disk: list[int] = dataclasses.field(default_factory=list)


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
        self.shard, self.batches, self.trace = shard, min(batches, len(shard)), Trace()
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
            future.add_done_callback(self._came)

    def _came(self, future: Future[Any]) -> None:
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
        trace, fetching = self.trace, self.fetching
        trace.times.append(self._clock.now)
        trace.samples.append(len(self.shard.positions(self.taken)))
        trace.bytes.append(fetching.bytes)
        trace.requests.append(fetching.requests)
        trace.from_disk.append(fetching.from_disk)
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
