"""Prefetching from objects on servers.

An object is divided into chunks of 8 MiB. If most of a chunk is needed soon, it is fetched in one request. If
only a few samples of it are, as in a random order over more data than there is room for, each is fetched by
itself. So are those of a batch whose chunks take more than the pool has: a part of the pool holds chunks, the
rest is left to samples. If there is room for everything, in memory or in a disk cache, requests are always
whole chunks: each is fetched once, and none in the next epoch.

The reader of a batch finds all of it requested. If there is no room and no earlier batch will give any, the
pool evicts what later batches need, or takes more than its budget.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np

from ... import order as orders
from ...data.reader import Reader
from ...errors import BatchplantError, DataError, OptionError
from ...schema.columns import I64, starts_of
from ...storage import RemoteSource, Source, open_source, plan_ranges
from ...storage.remote import NEVER, PooledSource, fetcher
from ...storage.remote.blocks import CHUNK_BYTES, Loaded, Range, Requests
from ...storage.spans import Spans
from .base import Prefetcher, PrefetchTuning

# Due date of the samples of the first batch: before those of all batches, after reads that are waited for.
FIRST_DUE = -0.5
# Interval at which it is tried again whether there is room.
RETRY_SECONDS = 0.05


class Use(NamedTuple):
    """Bytes that a batch needs of a chunk: from ``low`` to ``high``, ``bytes`` of them."""

    batch: int
    low: int
    high: int
    bytes: int
    starts: I64
    sizes: I64

    def within(self, start: int, end: int) -> int:
        """Return how many bytes from ``start`` to ``end`` are needed."""
        if self.high <= start or self.low >= end:
            return 0
        if start <= self.low and self.high <= end:
            return self.bytes
        if len(self.starts) == 1:
            return min(self.high, end) - max(self.low, start)
        parts = np.minimum(self.starts + self.sizes, end) - np.maximum(self.starts, start)
        return int(parts[parts > 0].sum())

    def ranges(self) -> list[Range]:
        return list(zip(self.starts.tolist(), (self.starts + self.sizes).tolist(), strict=True))


def uses_of(batch: int, spans: Spans) -> list[tuple[int, int, Use]]:
    """Return (file, number of the chunk, use) of all that a batch needs; vectorised, as it holds the GIL."""
    order = np.lexsort((spans.start, spans.file))
    order = order[spans.size[order] > 0]
    if not len(order):
        return []
    start, size, file = spans.start[order], spans.size[order], spans.file[order]
    chunk = start // CHUNK_BYTES
    edges = np.flatnonzero((np.diff(chunk) != 0) | (np.diff(file) != 0)) + 1
    first = np.append(0, edges)
    high, total = np.maximum.reduceat(start + size, first), np.add.reduceat(size, first)
    figures = (column.tolist() for column in (file[first], chunk[first], start[first], high, total))
    rows = zip(*figures, np.split(start, edges), np.split(size, edges), strict=True)
    return [(number, chunk_number, Use(batch, *use)) for number, chunk_number, *use in rows]


def whole_chunks_of(batch: int, spans: Spans) -> list[tuple[int, int, Use]]:
    """Return (file, number of the chunk, use of all of it) of the chunks that a batch needs bytes of."""
    present = spans.size > 0
    first = spans.start[present] // CHUNK_BYTES
    counts = (spans.start[present] + spans.size[present] - 1) // CHUNK_BYTES - first + 1
    # The second, third … chunk of a cell that lies in several.
    later = np.arange(int(counts.sum())) - np.repeat(starts_of(counts)[:-1], counts)
    places = np.stack([np.repeat(spans.file[present], counts), np.repeat(first, counts) + later])
    rows = []
    for file, number in np.unique(places, axis=1).T.tolist():
        source = spans.sources[file]
        if not isinstance(source, PooledSource):
            continue
        low, high = source.chunk(number)
        use = Use(batch, low, high, high - low, np.array([low]), np.array([high - low]))
        rows.append((file, number, use))
    return rows


class PlannedChunk:
    """A chunk of an object, and the batches that need it, as far as they were looked up."""

    def __init__(self, source: PooledSource, number: int) -> None:
        self.source, self.number = source, number
        self.uses: deque[Use] = deque()

    @property
    def bounds(self) -> Range:
        return self.source.chunk(self.number)

    def use_of(self, batch: int) -> Use | None:
        """Return what a batch needs of it; None if the batch was made."""
        return next((use for use in self.uses if use.batch == batch), None)

    def dense_range(self, min_fraction: float) -> Range | None:
        """Return a range that is worth one request, as at least this fraction of it is needed; or None."""
        low, high = min(use.low for use in self.uses), max(use.high for use in self.uses)
        if sum(use.bytes for use in self.uses) < min_fraction * (high - low):
            return None
        return (low, high) if self.source.cache_bytes is None else self.bounds


class RemotePrefetcher(Prefetcher):
    """Requests the bytes of the batches of a shard, in order, as far ahead as there is room.

    ``ranges`` returns the spans that samples read, ``epoch_bytes`` how many bytes all of them take. Without
    :meth:`start`, it has no thread: then the caller calls :meth:`advance`, as the simulator does.
    """

    def __init__(
        self,
        shard: orders.Batches,
        ranges: Callable[[I64], Spans | None],
        epoch_bytes: Callable[[], int],
        *,
        samples: int,
        indices: I64 | None = None,
        next_shard: Callable[[], orders.Batches | None] | None = None,
        tuning: PrefetchTuning | None = None,
        fetcher: Callable[[], Requests] = fetcher,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._shard, self._indices, self._samples = shard, indices, samples
        self._ranges, self._epoch_bytes = ranges, functools.lru_cache(1)(epoch_bytes)
        self._tuning, self._fetcher, self._clock = tuning or PrefetchTuning(), fetcher, clock
        self._changed = threading.Condition()
        self._stopped = False
        # The requests of the current batch, and whether a pool has no room for the next of them.
        self._pending: Iterator[bool] | None = None
        self.is_blocked = False
        # The next batch to look up, the next to request, and those that were made.
        self._next_lookup, self._next_request = 0, 0
        self._made: set[int] = set()
        self._chunks: dict[tuple[PooledSource, int], PlannedChunk] = {}
        self._chunks_of: dict[int, list[PlannedChunk]] = {}
        # Bytes of batches that were looked up and not yet requested.
        self._looked_up: dict[int, int] = {}
        self._looked_up_bytes = 0
        # Bytes that were requested, by the batch that needs them first, and the latest batch that is wanted.
        self._unused: dict[int, int] = {}
        self._wanted = 0
        self._cached_whole: dict[PooledSource, bool] = {}
        # The files that were seen, whether they all fit in memory, and the chunks that were planned if so.
        self._sources: set[Source] = set()
        self._fits_memory = False
        self._planned: set[tuple[PooledSource, int]] = set()
        # The first batch, and the sources that were asked for its samples separately.
        self._first_batch: Spans | None = None
        self._separate: set[PooledSource] = set()
        # By chunk, the first batch of the next epoch that needs it.
        self._next_shard = next_shard
        self._next_uses: dict[tuple[str, int], int] = {}
        self._began = clock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="batchplant-prefetch", daemon=True)
        self._thread.start()

    def want(self, number: int) -> None:
        """Note that a batch is waited for."""
        self._wanted = max(self._wanted, number)

    def wait(self, number: int) -> None:
        """Block until a batch was requested; else its reader would request sample by sample."""
        with self._changed:
            self.want(number)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.is_ready(number))

    def is_ready(self, number: int) -> bool:
        """Return True if a batch was requested."""
        return self._stopped or self._next_request > number

    def done(self, number: int) -> None:
        with self._changed:
            self._made.add(number)
            self._unused.pop(number, None)
            chunks = self._chunks_of.pop(number, ())
            if number == 0:
                self._drop_separate()
            for chunk in chunks:
                self._release(chunk, number)
            self._changed.notify_all()

    def _drop_separate(self) -> None:
        for source in self._separate:
            source.drop_separate()
        self._separate.clear()

    def _release(self, chunk: PlannedChunk, number: int) -> None:
        used = [use for use in chunk.uses if use.batch == number]
        chunk.uses = deque(use for use in chunk.uses if use.batch != number)
        if chunk.source.closed:
            return
        # Not the blocks in between: other batches may need them.
        ranges = [byte_range for use in used for byte_range in use.ranges()]
        chunk.source.release(ranges, functools.partial(self._due, chunk.source, number))
        if not chunk.uses:
            self._chunks.pop((chunk.source, chunk.number), None)
            self._expect(chunk)

    def _due(self, source: PooledSource, number: int, start: int, end: int) -> float:
        """Return the next batch that needs a block; NEVER if little of it is needed, and late."""
        chunk = self._chunks.get((source, start // CHUNK_BYTES))
        tuning = self._tuning
        # Batches that were requested are not requested again.
        kept_until = max(number + tuning.kept_batches, self._next_request)
        first, needed = NEVER, 0
        for use in () if chunk is None else chunk.uses:
            size = use.within(start, end)
            first, needed = min(first, use.batch if size else NEVER), needed + size
            if first <= kept_until or needed >= tuning.min_kept_fraction * (end - start):
                return float(first)
        return NEVER

    def _expect(self, chunk: PlannedChunk) -> None:
        """Tell the disk cache when the next epoch needs a chunk: for want of room, it evicts the latest."""
        need = self._next_uses.get((str(chunk.source.path), chunk.number))
        if need is None:
            return
        now = self._clock()
        batch_seconds = (now - self._began) / max(1, len(self._made))
        batches = len(self._shard) - len(self._made) + need
        chunk.source.expect(chunk.number, now + batches * batch_seconds)

    def close(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is None:
            self._release_all()

    # -- the thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self.advance():
                with self._changed:
                    if not self._stopped:
                        self._changed.wait(RETRY_SECONDS)
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or not self._shard.has(len(self._made)))
        # The thread that makes the batch meets the same error and reports it.
        except BatchplantError:
            pass
        finally:
            self._release_all()

    def _release_all(self) -> None:
        """Release everything that was requested and not used."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            self._drop_separate()
            for chunk in self._chunks.values():
                if chunk.uses and not chunk.source.closed:
                    start, end = chunk.bounds
                    high = max(use.high for use in chunk.uses)
                    chunk.source.release([(start, max(high, end))], lambda start, end: NEVER)
            self._chunks.clear()
            self._chunks_of.clear()

    def advance(self) -> bool:
        """Request as much as may be requested now; return False if there is nothing more to request."""
        while not self._stopped:
            if self._pending is None:
                self._look_ahead()
                if not self._shard.has(self._next_request):
                    return False
                if self._has_enough():
                    return True
                self._pending = self._requests(self._next_request)
            self.is_blocked = next(self._pending, False)
            if self.is_blocked:
                return True
            self._pending = None
            with self._changed:
                self._looked_up_bytes -= self._looked_up.pop(self._next_request, 0)
                self._next_request += 1
                self._changed.notify_all()
            if self._next_shard is not None:
                self._look_at_next_epoch()
        return False

    def _has_enough(self) -> bool:
        """Return True if enough is requested: what comes long before its time takes memory and CPU time."""
        with self._changed:
            if self._next_request <= self._wanted + self._tuning.remote_batches:
                return False
            in_flight_bytes = self._fetcher().in_flight * CHUNK_BYTES
            return sum(self._unused.values()) >= max(self._tuning.remote_bytes, 2 * in_flight_bytes)

    def _look_at_next_epoch(self) -> None:
        """Find out when the next epoch needs each chunk, if the disk cache has no room for all."""
        next_shard, self._next_shard = self._next_shard, None
        source = next((chunk.source for chunk in self._chunks.values()), None)
        if next_shard is None or source is None or source.cache_bytes is None or self._fits_cache(source):
            return
        shard = next_shard()
        if shard is None or self._samples > self._tuning.max_planned_samples:
            return
        for number in range(len(shard)):
            spans = self._spans(shard.batch(number))
            if self._stopped or spans is None:
                return
            chunks = (spans.start // CHUNK_BYTES).tolist()
            for file, chunk in set(zip(spans.file.tolist(), chunks, strict=True)):
                self._next_uses.setdefault((str(spans.sources[file].path), chunk), number)

    def _look_ahead(self) -> None:
        """Look up what batches need: beyond those that were requested, as much as there is room for."""
        while self._shard.has(self._next_lookup) and not self._stopped:
            with self._changed:
                ahead = self._next_lookup - self._next_request
                source = next((chunk.source for chunk in self._chunks.values()), None)
                room = 0 if source is None else source.pool_bytes
                is_far = ahead >= self._tuning.max_remote_batches or self._looked_up_bytes >= room
                # Chunks that are fetched whole and stay need no look at who else needs them.
                if ahead > 0 and (is_far or self._fits_memory):
                    return
            self._look_up(self._next_lookup)
            self._next_lookup += 1

    def _look_up(self, number: int) -> None:
        """Find out which chunks a batch needs."""
        spans = self._spans(self._shard.batch(number))
        if spans is None or not len(spans):
            return
        with self._changed:
            if number in self._made:
                return
            if not self._sources.issuperset(spans.sources):
                self._fits_memory = self._reserve(spans)
            if number == 0:
                self._first_batch = spans
            total = 0
            rows = whole_chunks_of(number, spans) if self._fits_memory else uses_of(number, spans)
            for file, chunk_number, use in rows:
                source = spans.sources[file]
                if not isinstance(source, PooledSource) or source.closed:
                    continue
                key = source, chunk_number
                if self._fits_memory:
                    if key in self._planned:
                        continue
                    self._planned.add(key)
                chunk = self._chunks.get(key)
                if chunk is None:
                    self._chunks[key] = chunk = PlannedChunk(source, chunk_number)
                chunk.uses.append(use)
                self._chunks_of.setdefault(number, []).append(chunk)
                total += use.bytes
            self._looked_up[number] = total
            self._looked_up_bytes += total

    def _reserve(self, spans: Spans) -> bool:
        """Make room for the dataset; return True if whole chunks are to be fetched and stay in memory.

        They are, if there is room for all of the files and this shard needs most of them.
        """
        self._sources.update(spans.sources)
        sources = [source for source in self._sources if isinstance(source, PooledSource)]
        if not sources or sources[0].closed:
            return False
        needed, size = self._epoch_bytes(), sum(source.size for source in sources)
        sources[0].reserve(needed)
        has_room = size <= sources[0].pool_bytes and all(source.cache_bytes is None for source in sources)
        shard_samples = len(self._shard) * len(self._shard.batch(0))
        needed = needed * min(shard_samples, self._samples) // max(1, self._samples)
        # More is needed than they have if other batches need other files.
        return has_room and self._tuning.min_dataset_fraction * size <= needed <= size

    def _spans(self, positions: I64) -> Spans | None:
        ids = positions if self._indices is None else self._indices[positions]
        try:
            return self._ranges(ids)
        # The thread that makes the batch meets the same error and reports it.
        except DataError:
            return None

    def _requests(self, number: int) -> Iterator[bool]:
        """Make the requests of a batch; yield True before each further try if there is no room."""
        with self._changed:
            chunks = list(self._chunks_of.get(number, ()))
        if number == 0 and not self._made:
            self._request_separately(chunks)
        spare = self._spare_bytes(chunks, number)
        for chunk in chunks:
            while not self._request(chunk, number, spare):
                yield True
                with self._changed:
                    if self._stopped or number in self._made:
                        return

    def _request_separately(self, chunks: list[PlannedChunk]) -> None:
        """Request the samples of the first batch, which is waited for, before the chunks that they lie in.

        Not if the chunks are small, or the samples a notable fraction of the epoch.
        """
        with self._changed:
            chunk_bytes = sum(chunk.uses[-1].high - chunk.uses[0].low for chunk in chunks if chunk.uses)
            spans, self._first_batch = self._first_batch, None
        if spans is None or chunk_bytes < self._tuning.min_separate_bytes:
            return
        if spans.bytes > self._tuning.max_separate_fraction * self._epoch_bytes():
            return
        for source, _, starts, sizes in spans.by_source():
            if isinstance(source, PooledSource) and not source.closed and not source.resident(starts, sizes):
                present = sizes > 0
                source.prefetch_separately(plan_ranges(starts[present], sizes[present])[0], FIRST_DUE)
                self._separate.add(source)

    def _spare_bytes(self, chunks: list[PlannedChunk], number: int) -> int:
        """Return how much of the pool the dense ranges of a batch leave to samples; 0 if all of it fits."""
        total, pool_bytes = 0, 0
        with self._changed:
            for chunk in chunks:
                use = chunk.use_of(number)
                if use is not None:
                    start, end = chunk.dense_range(self._tuning.min_chunk_fraction) or (0, use.bytes)
                    total, pool_bytes = total + end - start, chunk.source.pool_bytes
        return 0 if total <= pool_bytes else min(self._tuning.remote_bytes, pool_bytes // 2)

    def _request(self, chunk: PlannedChunk, number: int, spare: int) -> bool:
        """Request what is needed of a chunk; return False if there is no room for it.

        ``spare``: bytes of the pool that are left to samples; if a dense range finds no room besides, only
        the samples of the batch are requested.
        """
        source = chunk.source
        with self._changed:
            use = None if source.closed else chunk.use_of(number)
            if self._stopped or use is None:
                return True
            is_whole = self._fits_cache(source) or self._fits_memory
            dense = chunk.bounds if is_whole else chunk.dense_range(self._tuning.min_chunk_fraction)
            high = max(use.high for use in chunk.uses)
        ask = functools.partial(self._ask, source, number)
        if source.resident(use.starts, use.sizes):
            # Requested again, so that it stays.
            return ask(use.ranges())
        # Neither earlier batches nor blocks in flight, which may move to the disk cache, will give room.
        force = len(self._made) >= number and not source.has_prefetches_in_flight()
        samples = plan_ranges(use.starts, use.sizes)[0]
        if dense is None:
            return ask(samples, force=force)
        if is_whole or source.cache_bytes is not None:
            # If not all fits, the end of a sample in the next chunk is not worth all of that chunk.
            beyond = [(dense[1], high)] if high > dense[1] else []
            return ask([dense], force=force) and ask(beyond, force=force)
        return ask([dense], spare=spare) or ((spare > 0 or force) and ask(samples, force=force))

    def _ask(
        self, source: PooledSource, number: int, ranges: list[Range], *, spare: int = 0, force: bool = False
    ) -> bool:
        keep = self._fits_cache(source)
        requested = source.prefetch(ranges, float(number), keep=keep, spare=spare, force=force)
        if requested is None:
            return False
        with self._changed:
            if number not in self._made:
                self._unused[number] = self._unused.get(number, 0) + requested
        return True

    def _fits_cache(self, source: PooledSource) -> bool:
        """Return True if the disk cache has room for all that the epoch needs."""
        if source not in self._cached_whole:
            limit = source.cache_bytes
            self._cached_whole[source] = limit is not None and self._epoch_bytes() <= limit
        return self._cached_whole[source]


# Samples that are looked up at a time, and chunks that are in flight.
LOOKUP_SAMPLES = 1 << 16
MAX_IN_FLIGHT = 32


@dataclasses.dataclass
class Warmed:
    """Contents of a cache that belong to a dataset; ``fetched``: bytes that were not there before."""

    objects: int = 0
    blocks: int = 0
    bytes: int = 0
    fetched: int = 0


def warm(reader: Reader, report: Callable[[int, int], None] = lambda done, total: None) -> Warmed:
    """Fetch all that reading a dataset takes into the cache that the options of its URLs name.

    ``report(done, total)`` hears of every block.
    """
    numbers = _needed_chunks(reader)
    sources = {path: _open(source) for path, (source, _) in numbers.items()}
    chunks = [(sources[path], chunk) for path, (_, needed) in numbers.items() for chunk in sorted(needed)]
    warmed = Warmed(objects=len(sources))
    _check_room(chunks)
    waiting: deque[tuple[int, Future[Loaded] | None]] = deque()

    def finish_first() -> None:
        size, future = waiting.popleft()
        if future is None or future.result().mapped:
            warmed.blocks += 1
            warmed.bytes += size
        warmed.fetched += 0 if future is None else size

    for number, (source, chunk) in enumerate(chunks):
        object = source.blocks[1]
        start, end = object.chunk(chunk)
        future = None
        if object.disk is None or object.disk.get(object.key, start, end - start) is None:
            load = functools.partial(object.load, start, end)
            future = fetcher().submit(load, end - start, float(number)).future
        waiting.append((end - start, future))
        if len(waiting) >= MAX_IN_FLIGHT:
            finish_first()
        report(number + 1 - len(waiting), len(chunks))
    while waiting:
        finish_first()
        report(len(chunks) - len(waiting), len(chunks))
    return warmed


def _needed_chunks(reader: Reader) -> dict[str, tuple[Source, set[int]]]:
    """Return the source of every object that is read, and the chunks of it that are needed, by path."""
    needed: dict[str, tuple[Source, set[int]]] = {}
    for begin in range(0, len(reader), LOOKUP_SAMPLES):
        spans = reader.ranges(None, np.arange(begin, min(begin + LOOKUP_SAMPLES, len(reader))))
        if spans is None:
            raise OptionError(
                "this format does not tell beforehand which bytes its samples take",
                path=reader.path,
            )
        some = spans.size > 0
        first, last = (
            spans.start[some] // CHUNK_BYTES,
            (spans.start[some] + spans.size[some] - 1) // CHUNK_BYTES,
        )
        runs = np.unique(np.stack([spans.file[some].astype(np.int64), first, last]), axis=1)
        for file, low, high in runs.T.tolist():
            source = spans.sources[file]
            if source.remote:
                needed.setdefault(source.path, (source, set()))[1].update(range(low, high + 1))
    if not needed:
        raise OptionError("nothing of this is remote", path=reader.path)
    return needed


def _open(source: Source) -> RemoteSource:
    if not isinstance(source, RemoteSource) or source.closed:
        source = open_source(source.path)
    assert isinstance(source, RemoteSource)
    if source.blocks[1].disk is None:
        raise OptionError(
            "it has no cache: none is named, or the server tells no ETag, without which changes go unseen",
            path=source.path,
        )
    return source


def _check_room(chunks: list[tuple[RemoteSource, int]]) -> None:
    """Raise OptionError if chunks would evict each other."""
    disk = chunks[0][0].blocks[1].disk
    assert disk is not None
    sizes = (min(CHUNK_BYTES, source.size - chunk * CHUNK_BYTES) for source, chunk in chunks)
    need = sum(disk.space.cost(size) for size in sizes)
    if need > disk.limit:
        raise OptionError(
            f"the dataset needs {need:,} bytes of the cache, which may hold {disk.limit:,}; raise its limit "
            "(cache_bytes)",
            path=disk.folder,
        )
