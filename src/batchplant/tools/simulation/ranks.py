"""Ranks in virtual time: the loader's own prefetch and pool, and batches that wait for their bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ... import order as orders
from ...loading.executor import PRODUCERS
from ...loading.prefetch import Prefetch
from ...schema.columns import I64, Spans
from ...storage import plan_ranges
from ...storage.remote import Pool
from ...storage.remote.blocks import CHUNK_BYTES, Block, Range
from .cache import NodeDisk
from .network import Clock, Fetching, Need, Way
from .plan import Plan


def _nothing() -> None:
    pass


class Object:
    """Stands in for a RemoteObject: its blocks are empty, but as large as they say."""

    def __init__(self, key: str, size: int, disk: NodeDisk | None) -> None:
        self.key, self.size, self.disk = key, size, disk
        self.starts: list[int] = []
        self.blocks: dict[int, Block] = {}
        self.planned_chunks: set[int] = set()

    def twin(self) -> Object:
        return Object(self.key, self.size, self.disk)

    def chunk(self, number: int) -> Range:
        return number * CHUNK_BYTES, min((number + 1) * CHUNK_BYTES, self.size)

    def load(self, start: int, end: int) -> Need:
        """What these bytes take, by the rules of :class:`batchplant.storage.remote.blocks.RemoteObject`."""
        fetched = requests = kept = 0
        come: list[int] = []
        numbers = range(start // CHUNK_BYTES, -(-end // CHUNK_BYTES)) if self.disk is not None else range(0)
        for number in numbers:
            low, high = self.chunk(number)
            if self.disk is not None and self.disk.has(self.key, number):
                kept += min(end, high) - max(start, low)
            elif number in self.planned_chunks or start <= low < high <= end:
                fetched, requests = fetched + high - low, requests + 1
                come.append(number)
            else:
                fetched, requests = fetched + end - start, requests + 1
                return Need(fetched, requests, 0, False, partial(self._keep, come))
        if not numbers:
            return Need(end - start, 1, 0, False, _nothing)
        return Need(fetched, requests, kept, len(numbers) == 1, partial(self._keep, come))

    def _keep(self, numbers: list[int]) -> None:
        for number in numbers:
            low, high = self.chunk(number)
            if self.disk is not None:
                self.disk.keep(self.key, number, high - low)


class Source:
    """Stands in for a RemoteSource."""

    closed, planned = False, True

    def __init__(self, path: str, pool: Pool, object: Object) -> None:
        self.path, self._pool, self._object = path, pool, object
        self._early: Object | None = None

    @property
    def blocks(self) -> tuple[Any, Any]:
        return self._pool, self._object

    def ask_early(self, ranges: list[Range], due: float) -> None:
        self._early = self._early or self._object.twin()
        self._pool.ask(self._early, ranges, due)  # type: ignore[arg-type]

    def forget_early(self) -> None:
        early, self._early = self._early, None
        if early is not None:
            self._pool.forget(early)  # type: ignore[arg-type]

    def hold(self, starts: I64, sizes: I64) -> list[Block]:
        """The blocks that runs come out of, as RemoteSource reads them."""
        for one in (self._object, self._early):
            found = None if one is None else self._pool.covering(one, starts, sizes)  # type: ignore[arg-type]
            if found is not None:
                return self._pool.hold(one, found[0])  # type: ignore[arg-type]
        return self._pool.hold(self._object, plan_ranges(starts, sizes)[0])  # type: ignore[arg-type]


class Foresight(Prefetch):
    """The Prefetch of a rank, one step at a time, and no thread."""

    def __init__(self, sources: Callable[[str], Source], reader: Any, shard: Any, **options: Any) -> None:
        super().__init__(reader, (), None, shard, **options)
        self._sources = sources
        self._asks: Iterator[Pool] | None = None

    def _source(self, path: str) -> Any:
        return self._sources(path)

    def pump(self) -> None:
        """Ask for as much as may be asked for now."""
        while self._asked < len(self._shard):
            if self._asks is None:
                self._look_ahead()
                if self._has_enough():
                    return
                self._asks = self._asking(self._asked)
            self._blocked = next(self._asks, None)
            if self._blocked is not None:
                return
            self._asks = None
            self._was_asked()
            if self._after is not None:
                self._look_beyond()

    def want(self, number: int) -> bool:
        """Whether a batch may be read, which somebody waits for: it was asked for, or will not be."""
        self._wanted = max(self._wanted, number)
        self.pump()
        return self._asked > number or self._is_stuck(number)

    @property
    def is_blocked(self) -> bool:
        return self._blocked is not None

    def end(self) -> None:
        self._give_up()


@dataclasses.dataclass
class Trace:
    """What a rank had when it took each of its batches."""

    times: list[float] = dataclasses.field(default_factory=list)
    samples: list[int] = dataclasses.field(default_factory=list)
    bytes: list[int] = dataclasses.field(default_factory=list)
    requests: list[int] = dataclasses.field(default_factory=list)
    from_disk: list[int] = dataclasses.field(default_factory=list)


class Rank:
    """One process: asks ahead, waits for bytes, decodes, gives batches to its loop."""

    def __init__(
        self, clock: Clock, way: Way, disk: NodeDisk | None, plan: Plan, reader: Any,
        size_of: Callable[[str], int], ready: Callable[[], None],
    ) -> None:  # fmt: skip
        """``reader`` tells the ``ranges`` of samples, ``size_of`` how large a file is."""
        self._clock, self._plan, self._reader, self._ready = clock, plan, reader, ready
        self.fetching = Fetching(clock, way, plan.cluster.request, self._arrived)
        self._pool = Pool(plan.loader.fetch_bytes, lambda: self.fetching)  # type: ignore[arg-type, return-value]
        self._disk, self._size_of = disk, size_of
        self._sources: dict[str, Source] = {}
        self._free = 0.0
        self.decoded = 0
        self.foresight: Foresight | None = None

    def begin(self, shard: orders.Shard, after: Callable[[], Any] | None, batches: int) -> None:
        """Take up an epoch, of which so many batches are of interest."""
        self.shard, self.batches, self.trace = shard, min(batches, len(shard)), Trace()
        self.foresight = Foresight(
            self._source, self._reader, shard, after=after, clock=lambda: self._clock.now,
            ranges=lambda ids: self._reader.ranges(None, ids), fetcher=lambda: self.fetching,
        )  # fmt: skip
        self._claimed = self.taken = 0
        self._working = 0
        self._made: set[int] = set()
        self._reading: tuple[int, list[tuple[Source, list[Block]]]] | None = None
        self._missing = 0
        self._clock.at(self._clock.now, self.advance)

    def _source(self, path: str) -> Source:
        if path not in self._sources:
            object = Object(path, self._size_of(path), self._disk)
            self._sources[path] = Source(path, self._pool, object)
        return self._sources[path]

    # -- making batches --------------------------------------------------------------------------------

    def advance(self) -> None:
        """Do what can be done now."""
        assert self.foresight is not None
        while True:
            if self._reading is None:
                if not self._may_claim() or not self.foresight.want(self._claimed):
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
        spans: Spans = self._reader.ranges(None, self.shard.batch(number))
        held = []
        for file in np.unique(spans.file[spans.size > 0]).tolist():
            rows = np.flatnonzero((spans.file == file) & (spans.size > 0))
            source = self._source(spans.files[file])
            held.append((source, source.hold(spans.start[rows], spans.size[rows])))
        self._reading = number, held
        waited = {id(one.future): one.future for _, blocks in held for one in blocks if not one.future.done()}
        self._missing = len(waited)
        for future in waited.values():
            future.add_done_callback(self._came)

    def _came(self, future: Any) -> None:
        self._missing -= 1

    def _arrived(self) -> None:
        """Something was fetched."""
        assert self.foresight is not None
        if self._reading is not None and not self._missing:
            self.advance()
        elif self.foresight.is_blocked:
            self.foresight.pump()
            if self._reading is None:
                self.advance()

    def _decode(self) -> None:
        assert self._reading is not None
        number, held = self._reading
        self._reading = None
        for _, blocks in held:
            self._pool.release(blocks)
        size = len(self.shard.positions(number))
        self._free = max(self._free, self._clock.now) + size / self._plan.cluster.decode
        self.decoded += size
        self._clock.at(self._free, partial(self._was_made, number))

    def _was_made(self, number: int) -> None:
        assert self.foresight is not None
        self._working -= 1
        self._made.add(number)
        self.foresight.done(number)
        self.foresight.pump()
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
        groups = [self.ranks] if self._synchronous else [[one] for one in self.ranks]
        for number, group in enumerate(groups):
            self._look_at(number, [one for one in group if not one.is_over])

    def _look_at(self, number: int, group: Sequence[Rank]) -> None:
        if not group or self._clock.now < self._until.get(number, 0.0):
            return
        if all(one.has_next for one in group):
            self._until[number] = self._clock.now + self._step
            self._clock.at(self._until[number], self.look)
            for one in group:
                one.take()

    def run(self, report: Callable[[int], None]) -> None:
        """Until all have taken their batches."""
        before = -1
        while not all(one.is_over for one in self.ranks):
            if not self._clock.tick():
                raise AssertionError("nothing more happens, and ranks still wait")
            if self.ranks[0].taken != before:
                before = self.ranks[0].taken
                report(sum(one.taken for one in self.ranks))
        for one in self.ranks:
            assert one.foresight is not None
            one.foresight.end()
