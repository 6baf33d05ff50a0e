"""RemoteSource: an object on a server, read by range.

Opening it is one request, for its first bytes, which also tells size and ETag; none where a listing told them
already. Reads that follow one another are noticed, and the next bytes are asked for ahead, side by side.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

import numpy as np
import numpy.typing as npt

from ... import _native
from ...errors import AccessError, NotFoundError
from ...schema.columns import I64, U8
from ..settings import DEFAULT_CACHE_BYTES
from ..source import LocatedRuns, Source
from ..urls import place_of
from .blocks import CHUNK_BYTES, NEVER, NOW, Pool, PooledObject, Range, RemoteObject, pool_of
from .client import Client, Entry, Got, RefusedError, TransientError
from .clients import client_of
from .disk import open_cache
from .fetch import fetcher

# What is asked for at least: about what comes in the time of one more request.
LEAST = 64 << 10
# A gap that costs less to fetch than another request.
RANGE_GAP = 128 << 10
RANGE_MOST = CHUNK_BYTES
# Number of whole objects that stay open; more than a batch has.
MAX_OPEN_OBJECTS = 4096
# How much of the pool may be asked for ahead of reads that follow one another.
AHEAD_SHARE = 4


def plan_ranges(
    starts: I64, sizes: I64, *, gap: int = RANGE_GAP, most: int = RANGE_MOST
) -> tuple[list[Range], npt.NDArray[np.int64]]:
    """Merge runs into few ranges: ([(start, end), …], the range that each run lies in)."""
    ranges: list[Range] = []
    where = np.zeros(len(starts), dtype=np.int64)
    for row in np.lexsort((sizes, starts)):
        start, end = int(starts[row]), int(starts[row] + sizes[row])
        if ranges and start <= ranges[-1][1] + gap and max(end, ranges[-1][1]) - ranges[-1][0] <= most:
            ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
        else:
            ranges.append((start, end))
        where[row] = len(ranges) - 1
    return ranges, where


class PooledSource(Source):
    """A source whose bytes are fetched into the blocks of a pool, and can be prefetched in a known order."""

    remote = True
    # True once a prefetcher that knows the order has requested bytes.
    is_prefetched = False
    # Blocks for reads that cannot wait for whole chunks; they may overlap the others.
    _separate: PooledObject | None = None

    @property
    def blocks(self) -> tuple[Pool, PooledObject]:
        """The pool, and the object whose blocks are in it."""
        raise NotImplementedError

    @property
    def pool_bytes(self) -> int:
        """Bytes that the pool may hold."""
        return self.blocks[0].max_bytes

    def reserve(self, size: int) -> None:
        """Make room in memory for a dataset of ``size`` bytes, unless a disk cache has it."""
        pool, object = self.blocks
        if object.chunk_cache is None:
            pool.reserve(size)

    @property
    def cache_bytes(self) -> int | None:
        """Bytes that the disk cache may hold; None without one."""
        cache = self.blocks[1].chunk_cache
        return None if cache is None else cache.limit

    def chunk(self, number: int) -> Range:
        """Return start and end of a chunk."""
        return self.blocks[1].chunk(number)

    def prefetch(
        self, ranges: list[Range], due: float, *, keep: bool = False, spare: int = 0, force: bool = False
    ) -> int | None:
        """Request ranges that are needed at ``due``, the number of a batch, as :meth:`Pool.ask` does.

        Return the number of bytes requested, or None if the pool has no room now.
        """
        self.is_prefetched = True
        pool, object = self.blocks
        return pool.ask(object, ranges, due, keep=keep, spare=spare, force=force)

    def prefetch_separately(self, ranges: list[Range], due: float) -> None:
        """Request small ranges before all else; they come a second time with the chunks around them."""
        self.is_prefetched = True
        pool, object = self.blocks
        self._separate = self._separate or object.twin()
        pool.ask(self._separate, ranges, due)

    def drop_separate(self, *, wait: bool = True) -> None:
        """Drop what was requested separately."""
        separate, self._separate = self._separate, None
        if separate is not None:
            self.blocks[0].forget(separate, wait=wait)

    def release(self, ranges: list[Range], due: Callable[[int, int], float]) -> None:
        """Say that ranges were used; ``due(start, end)`` tells when a block is needed again."""
        pool, object = self.blocks
        pool.settle(object, ranges, due)

    def resident(self, starts: I64, sizes: I64) -> bool:
        pool, object = self.blocks
        runs = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
        return all(pool.has(object, start, end) for start, end in runs if end > start)

    def has_prefetches_in_flight(self) -> bool:
        """Return True if a prefetched block is in flight; one that moves to the disk cache gives room."""
        return self.blocks[0].has_prefetches_in_flight()

    def expect(self, number: int, due: float) -> None:
        """Tell the disk cache when a chunk is needed again, in seconds."""
        object = self.blocks[1]
        if object.chunk_cache is not None:
            start, end = object.chunk(number)
            object.chunk_cache.expect(object.key, [(start, end - start, due)])

    def _blocks_of(self, starts: I64, sizes: I64) -> tuple[Pool, PooledObject, list[Range], I64]:
        """Return the ranges that runs are read from, and for each run its range; missing bytes with gaps."""
        pool, object = self.blocks
        for candidate in (object, self._separate) if self.is_prefetched else ():
            covered = None if candidate is None else pool.covering(candidate, starts, sizes)
            if candidate is not None and covered is not None:
                return pool, candidate, *covered
        return pool, object, *plan_ranges(starts, sizes)


class RemoteSource(PooledSource):
    """A URL, read by range.

    ``entry``: what a listing told about it. ``heads``: first bytes of files by URL, from others for others.
    """

    def __init__(self, path: str, entry: Entry | None = None, heads: dict[str, Got] | None = None) -> None:
        client, name = client_of(path)
        first = None if heads is None else heads.get(str(path))
        if first is not None:
            entry = Entry(name, first.size, first.tag)
        elif entry is None:
            first = _first(client, name)
            entry = Entry(name, first.size, first.tag)
            if heads is not None:
                heads[str(path)] = first
        super().__init__(path, entry.size)
        self.tag = entry.tag
        self._attach(client, name)
        if first is not None:
            self.head = first.data
        self._lock = threading.Lock()
        # Where the last read ended, and how much is asked for ahead.
        self._at, self._ahead = 0, 0

    head: U8 = np.empty(0, dtype=np.uint8)

    def _attach(self, client: Client, name: str) -> None:
        options = client.options
        disk = None
        identity = repr((str(place_of(self.path)[1:3]), options.endpoint, self.size, self.tag))
        key = hashlib.blake2b(identity.encode(), digest_size=20).hexdigest()
        # Without a tag nothing tells whether what lies there is still the same.
        if options.cache and self.tag:
            limit = DEFAULT_CACHE_BYTES if options.cache_bytes is None else options.cache_bytes
            disk = open_cache(options.cache, limit)
            disk.describe(key, str(self.path).partition("?")[0], self.tag, self.size)
        self._pool = pool_of(options.fetch_bytes)
        self._object = RemoteObject(client, name, self.path, self.size, self.tag, disk, key)
        self._process = os.getpid()

    @property
    def blocks(self) -> tuple[Pool, RemoteObject]:
        """The pool that its blocks are in, and the object that they are of."""
        if self._process != os.getpid():
            # A child has none of the threads.
            self._lock = threading.Lock()
            self._attach(*client_of(self.path))
        return self._pool, self._object

    def first(self) -> Got:
        """The first bytes, and what the object is like."""
        if len(self.head) < min(LEAST, self.size):
            self.head = self.view(0, min(LEAST, self.size))
        return Got(self.head, self.size, self.tag)

    def drop_separate(self, *, wait: bool = True) -> None:
        if self._process == os.getpid():
            super().drop_separate(wait=wait)
        self._separate = None

    def _view(self, start: int, size: int) -> U8:
        if size == 0:
            return np.empty(0, dtype=np.uint8)
        if start + size <= len(self.head):
            return self.head[start : start + size]
        pool, object = self.blocks
        self._read_ahead(start, start + size)
        end = start + size
        if not pool.has(object, start, end):
            end = min(self.size, max(end, start + LEAST))
        return pool.read(object, start, end)[:size]

    def only(self, start: int, size: int) -> U8:
        self.check_bounds(start, size)
        if size == 0 or start + size <= len(self.head):
            return self.head[start : start + size] if size else np.empty(0, dtype=np.uint8)
        pool, object = self.blocks
        return pool.read(object, start, start + size)

    def _gather(self, starts: I64, sizes: I64, out: U8, out_starts: I64) -> None:
        in_head = starts + sizes <= len(self.head)
        if in_head.any():
            _native.copy_runs(self.head, starts[in_head], sizes[in_head], out, out_starts[in_head])
        # A range of no bytes cannot be asked for.
        nonempty = np.flatnonzero(sizes * ~in_head)
        if not len(nonempty):
            return
        starts, sizes, out_starts = starts[nonempty], sizes[nonempty], out_starts[nonempty]
        pool, object, ranges, where = self._blocks_of(starts, sizes)
        # Runs that lie far apart are no reading in order.
        if 2 * int(sizes.sum()) >= ranges[-1][1] - ranges[0][0]:
            self._read_ahead(ranges[0][0], ranges[-1][1])
        # Not more at a time than the pool should hold.
        first = 0
        while first < len(ranges):
            last, remaining = first, pool.max_bytes // 2
            while last < len(ranges) and (last == first or remaining > 0):
                remaining -= ranges[last][1] - ranges[last][0]
                last += 1
            rows = np.flatnonzero((where >= first) & (where < last))
            pool.gather(object, ranges[first:last], starts[rows], sizes[rows], out, out_starts[rows])
            first = last

    def request(self, starts: I64, sizes: I64, *, thorough: bool = False) -> int:
        self._check_open()
        nonempty = (sizes > 0) & (starts + sizes > len(self.head))
        pool, object = self.blocks
        requested = 0
        for byte_range in plan_ranges(starts[nonempty], sizes[nonempty])[0]:
            missing = pool.ask(object, [byte_range], NEVER)
            if missing is None:
                break
            requested += missing
        return requested

    def locate(self, starts: I64, sizes: I64) -> LocatedRuns | None:
        """Locate runs in the blocks of the pool, fetched if need be."""
        if self.closed or self.outside(starts, sizes) is not None:
            return None
        base, offsets = np.zeros(len(starts), dtype=np.int32), np.zeros(len(starts), dtype=np.int64)
        nonempty = np.flatnonzero(sizes > 0)
        pool, object, ranges, _ = self._blocks_of(starts[nonempty], sizes[nonempty])
        arrays, base[nonempty], offsets[nonempty] = pool.locate(
            object, ranges, starts[nonempty], sizes[nonempty]
        )
        return LocatedRuns(arrays, base, offsets)

    def _read_ahead(self, start: int, end: int) -> None:
        """Where reads follow one another, ask for what comes next."""
        if self.is_prefetched:
            return
        pool, object = self.blocks
        with self._lock:
            # Who reads much at a time may leave a little out.
            gap = max(RANGE_GAP, (end - start) // 4)
            follows = self._at - LEAST <= start <= self._at + gap and end > self._at
            self._at = end
            if not follows:
                self._ahead = 0
                return
            self._ahead = min(max(2 * self._ahead, 4 * (end - start), LEAST), pool.max_bytes // AHEAD_SHARE)
            until = min(self.size, end + self._ahead)
        # In whole parts, so that requests are large; the first ones are as small as what was read.
        step = min(CHUNK_BYTES, max(LEAST, self._ahead))
        for offset in range(start - start % step, until, step):
            if pool.ask(object, [(max(offset, start), min(offset + step, self.size))], float("inf")) is None:
                return

    def close(self, *, wait: bool = True) -> None:
        self.drop_separate(wait=wait)
        if not self.closed and self._process == os.getpid():
            with contextlib.suppress(RuntimeError):
                self._pool.forget(self._object, wait=wait)
        super().close()

    def __del__(self) -> None:
        if hasattr(self, "_object"):
            with contextlib.suppress(Exception):
                self.close(wait=False)


def _first(client: Client, name: str) -> Got:
    """The first bytes of an object and what it is like, in one request where the server can."""

    def ask() -> Got:
        try:
            got = client.get(name, 0, LEAST)
        except (NotFoundError, RefusedError, TransientError):
            raise
        except AccessError as error:
            # An empty object has no range.
            entry = client.head(name)
            if entry.size:
                raise error from None
            return Got(np.empty(0, dtype=np.uint8), 0, entry.tag)
        if got.size < 0:
            entry = client.head(name)
            return Got(got.data, entry.size, entry.tag)
        return got

    return fetcher().submit(ask, 0, NOW).future.result()


def fetch_whole(url: str) -> U8 | None:
    """All bytes of an object, in one request; None where there is none."""
    client, name = client_of(url)
    try:
        got: Got = fetcher().submit(lambda: client.get_whole(name), 0, NOW).future.result()
    except NotFoundError:
        return None
    return got.data


# -- whole objects: files of an image folder, chunks of an array; many small ones are fetched in parallel --


class Objects:
    """Objects of a dataset whose size and ETag a listing has given: opened without a request. Thread-safe.

    The last ones stay open, so that what was prefetched of them is found again.
    """

    def __init__(self) -> None:
        self._recent: OrderedDict[str, RemoteSource] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, url: str, entry: Entry) -> RemoteSource:
        """Open an object and keep it open for a while."""
        source = self._open(url, entry)
        with self._lock:
            self._recent[str(url)] = source
            self._recent.move_to_end(str(url))
            while len(self._recent) > MAX_OPEN_OBJECTS:
                self._recent.popitem(last=False)
        return source

    def opened(self, url: str) -> RemoteSource | None:
        """Return the source of an object that is open."""
        with self._lock:
            source = self._recent.get(str(url))
        return None if source is None or source.closed else source

    def _open(self, url: str, entry: Entry) -> RemoteSource:
        source = self.opened(url)
        # It may be open as it was before it changed.
        return source if source is not None and source.tag == entry.tag else RemoteSource(url, entry)

    def fetch(self, urls: Sequence[str], entries: Sequence[Entry | None]) -> Iterator[U8 | None]:
        """Yield all bytes of each object, in order; None for a missing one. All are requested at once.

        Objects with an entry of a listing are looked up in the disk cache, too.
        """
        pending: list[RemoteSource | Future[Got]] = []
        for url, entry in zip(urls, entries, strict=True):
            if entry is None:
                client, name = client_of(url)
                pending.append(fetcher().submit(functools.partial(client.get_whole, name), 0, NOW).future)
                continue
            source = self._open(url, entry)
            pool, object = source.blocks
            ranges = [
                (start, min(start + CHUNK_BYTES, entry.size)) for start in range(0, entry.size, CHUNK_BYTES)
            ]
            pool.ask(object, ranges, NEVER, keep=True)
            pending.append(source)
        return _answers(pending)

    def close(self) -> None:
        with self._lock:
            self._recent.clear()


def _answers(pending: list[RemoteSource | Future[Got]]) -> Iterator[U8 | None]:
    for answer in pending:
        try:
            yield answer.result().data if isinstance(answer, Future) else answer.view(0, answer.size)
        except NotFoundError:
            yield None
