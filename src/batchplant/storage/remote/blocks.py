"""Blocks of remote objects in memory: a :class:`Pool` of bounded size, shared by all sources of a process.

A block is a byte range of an object that was fetched or is in flight. Blocks of an object do not overlap. A
reader asks for ranges; missing bytes are fetched in blocks of at most 8 MiB, in parallel. The loader knows
which batches come next, so it prefetches and says when each block is needed next (``due``). To make room,
the pool evicts blocks without a due date, least recently used first, and then the block with the latest one.

:class:`RemoteObject` gets the bytes, from the disk cache or by a request. The disk cache stores whole chunks
of 8 MiB, aligned alike in all processes, whatever range is read.
"""

from __future__ import annotations

import bisect
import contextlib
import copy
import operator
import os
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

import numpy as np

from ... import _native
from ...errors import AccessError, BatchplantError, NotFoundError
from ...order.ranks import local_world_size
from ...schema.columns import I32, I64, U8, starts_of
from ..platform import available_memory
from ..settings import DEFAULT_FETCH_BYTES
from .client import BeyondError, Client, TransientError
from .disk import DiskCache
from .fetch import Task, fetcher

# Due date of a read that somebody waits for; a prefetched block has the number of its batch.
NOW = -1.0
NEVER = float("inf")
CHUNK_BYTES = 8 << 20
MAX_BLOCK_BYTES = 10 << 20
# The part of the free memory that the pools of a machine may take.
POOL_MEMORY_SHARE = 8
CHANGED = "it changed since it was opened; open it again"

Range = tuple[int, int]


class Loaded(NamedTuple):
    """Bytes, and whether they are mapped from a file of the disk cache instead of held in memory."""

    data: U8
    mapped: bool


class Block:
    """Bytes [start, end) of an object, fetched or in flight."""

    __slots__ = ("__weakref__", "due", "end", "future", "object", "pins", "size", "start", "task")

    def __init__(self, object: PooledObject, start: int, end: int, due: float) -> None:
        self.object, self.start, self.end, self.due = object, start, end, due
        self.task: Task
        self.future: Future[Loaded]
        # Number of readers that use it now; a pinned block is not evicted.
        self.pins = 0
        # Bytes it takes of the pool's budget; a mapped block takes none.
        self.size = end - start

    @property
    def data(self) -> U8:
        try:
            return self.future.result().data
        except BatchplantError as error:
            # Several readers may wait for it, and each may add a location to the error.
            raise copy.copy(error).with_traceback(None) from None


class ChunkCache(Protocol):
    """The part that a prefetcher needs of a :class:`DiskCache`."""

    limit: int

    def expect(self, key: str, blocks: list[tuple[int, int, float]]) -> None: ...


class Requests(Protocol):
    """The part that a pool needs of a :class:`Fetcher`."""

    @property
    def in_flight(self) -> int: ...

    def submit(self, run: Callable[[], Any], size: int, urgency: float = 0.0) -> Task: ...

    def hurry(self, task: Task, urgency: float) -> None: ...


class PooledObject:
    """An object of ``size`` bytes, and its blocks in a :class:`Pool`."""

    def __init__(self, key: str, size: int, disk: ChunkCache | None) -> None:
        self.key, self.size, self.chunk_cache = key, size, disk
        # Numbers of the chunks that a prefetch plan wants on disk.
        self.planned_chunks: set[int] = set()
        self.starts: list[int] = []
        self.blocks: dict[int, Block] = {}

    def load(self, start: int, end: int) -> object:
        """Get bytes: the task of a request. Its future has a :class:`Loaded`."""
        raise NotImplementedError

    def twin(self) -> PooledObject:
        """Return the same object without blocks."""
        raise NotImplementedError

    def chunk(self, number: int) -> Range:
        """Return start and end of a chunk of the object."""
        return number * CHUNK_BYTES, min((number + 1) * CHUNK_BYTES, self.size)


class RemoteObject(PooledObject):
    """An object on a server as it was when it was opened."""

    def __init__(
        self, client: Client, name: str, url: str, size: int, tag: str, disk: DiskCache | None, key: str
    ) -> None:
        super().__init__(key, size, disk)
        self.client, self.name, self.url, self.tag, self.disk = client, name, url, tag, disk
        # Chunks that are being fetched.
        self._in_flight: dict[int, Future[Loaded]] = {}
        self._lock = threading.Lock()

    def load(self, start: int, end: int) -> Loaded:
        """Return bytes from the disk cache or the server, checked to be of the object that was opened."""
        pieces: list[Loaded] = []
        for number in range(start // CHUNK_BYTES, -(-end // CHUNK_BYTES)) if self.disk is not None else ():
            low, high = self.chunk(number)
            wanted_on_disk = number in self.planned_chunks or start <= low < high <= end
            chunk = self._load_chunk(number, fetch=wanted_on_disk)
            if chunk is None:
                break
            piece = chunk.data[max(start - low, 0) : end - low]
            # A view of a small piece would keep the whole chunk's memory alive.
            shares_chunk = chunk.mapped or len(piece) == high - low
            pieces.append(Loaded(piece if shares_chunk else piece.copy(), chunk.mapped))
        else:
            if len(pieces) == 1:
                return pieces[0]
            if pieces:
                return Loaded(np.concatenate([piece.data for piece in pieces]), False)
        return Loaded(self.fetch(start, end), False)

    def _load_chunk(self, number: int, *, fetch: bool) -> Loaded | None:
        """Return a chunk from disk; if it is missing, fetch and store it, or return None unless ``fetch``."""
        assert self.disk is not None
        low, high = self.chunk(number)
        if not fetch:
            return self._cached_chunk(low, high)
        with self._lock:
            other_request, request = self._in_flight.get(number), Future[Loaded]()
            if other_request is None:
                self._in_flight[number] = request
        if other_request is not None:
            # Wait briefly: a second caller asks because the first request stalls.
            with contextlib.suppress(TimeoutError):
                return other_request.result(fetcher().tuning.min_stall_seconds)
        try:
            # Not before: another request may have stored it just now.
            chunk = self._cached_chunk(low, high)
            if chunk is None:
                data = self.fetch(low, high)
                self.disk.put(self.key, low, data)
                # The disk may have had no room for it.
                chunk = self._cached_chunk(low, high) or Loaded(data, False)
            request.set_result(chunk)
        except BaseException as error:
            request.set_exception(error)
        finally:
            with self._lock:
                if self._in_flight.get(number) is request:
                    del self._in_flight[number]
        return request.result()

    def _cached_chunk(self, low: int, high: int) -> Loaded | None:
        assert self.disk is not None
        cached = self.disk.get(self.key, low, high - low)
        return None if cached is None else Loaded(cached, True)

    def fetch(self, start: int, end: int) -> U8:
        """Request a byte range from the server, once."""
        try:
            answer = self.client.get(self.name, start, end)
        except NotFoundError:
            raise AccessError("it is not there any more", path=self.url, offset=start) from None
        except BeyondError:
            raise AccessError(CHANGED, path=self.url, offset=start) from None
        except AccessError as error:
            error.message += f" (bytes {start} to {end - 1})"
            raise
        # fsspec drivers report neither size nor tag: the client gives -1.
        has_size = answer.size >= 0
        if has_size and (answer.size != self.size or (self.tag and answer.tag and answer.tag != self.tag)):
            raise AccessError(CHANGED, path=self.url, offset=start)
        if len(answer.data) != end - start:
            message = f"{len(answer.data)} of {end - start} bytes came"
            short = TransientError(message, path=self.url, offset=start)
            short.outage = self.client.outage
            raise short
        return answer.data

    def twin(self) -> RemoteObject:
        return RemoteObject(self.client, self.name, self.url, self.size, self.tag, self.disk, self.key)


class Pool:
    """Blocks in memory, at most ``max_bytes`` of them besides those that are being read.

    ``fetcher`` returns the :class:`Fetcher` that runs the requests.
    """

    def __init__(
        self, max_bytes: int, fetcher: Callable[[], Requests] = fetcher, *, can_grow: bool = False
    ) -> None:
        self.max_bytes, self._fetcher, self._can_grow = max_bytes, fetcher, can_grow
        self.bytes = 0
        self.peak = 0
        # Reentrant: a block that completes at once calls back in the thread that requested it.
        self._lock = threading.RLock()
        # Blocks without a due date, least recently used first; and blocks with one.
        self._idle: OrderedDict[Block, None] = OrderedDict()
        self._planned: dict[Block, None] = {}
        # Blocks in flight.
        self._in_flight: dict[Block, None] = {}
        # Objects to forget when room is needed: finalizers that could not wait for the lock left them.
        self._forgotten: deque[PooledObject] = deque()

    def reserve(self, size: int) -> None:
        """Raise the budget so that ``size`` bytes fit, if nobody chose it and the machine has the memory.

        The processes of this machine share an eighth of what is free.
        """
        # Headers and padding between the samples of whole chunks, and blocks in flight.
        size += size // 4 + 8 * CHUNK_BYTES
        if self._can_grow and size > self.max_bytes:
            share = available_memory() // POOL_MEMORY_SHARE // local_world_size()
            self.max_bytes = max(self.max_bytes, min(size, share))

    # -- reading ---------------------------------------------------------------------------------------

    def has(self, object: PooledObject, start: int, end: int) -> bool:
        """Return whether these bytes are here or in flight."""
        with self._lock:
            return not self._missing(object, start, end)

    def covering(self, object: PooledObject, starts: I64, sizes: I64) -> tuple[list[Range], I64] | None:
        """Return the blocks that runs lie in, as ranges in order, and for each run the number of its range.

        None unless all runs are here or in flight. Vectorised: a batch has thousands of runs.
        """
        with self._lock:
            begins = np.array(object.starts, dtype=np.int64)
            ends = np.array([object.blocks[start].end for start in object.starts], dtype=np.int64)
        first = np.searchsorted(begins, starts, side="right") - 1
        if not len(begins) or (first < 0).any() or (starts >= ends[first]).any():
            return None
        # Usually each run lies in one block.
        if (starts + sizes <= ends[first]).all():
            used, where = np.unique(first, return_inverse=True)
            return list(zip(begins[used].tolist(), ends[used].tolist(), strict=True)), where
        last = np.searchsorted(begins, starts + sizes - 1, side="right") - 1
        # Number of gaps before each block.
        gaps = np.cumsum(np.append(0, begins[1:] > ends[:-1]))
        if (starts + sizes > ends[last]).any() or (gaps[first] != gaps[last]).any():
            return None
        needed, across = np.zeros((2, len(begins) + 1), dtype=np.int64)
        np.add.at(needed, first, 1)
        np.add.at(across, first + 1, 1)
        for delta in (needed, across):
            np.subtract.at(delta, last + 1, 1)
        used = np.flatnonzero(np.cumsum(needed[:-1]))
        # Adjacent blocks that one run spans form one range.
        heads = np.cumsum(across[:-1])[used] == 0
        number = np.zeros(len(begins), dtype=np.int64)
        number[used] = np.cumsum(heads) - 1
        tails = np.append(heads[1:], True)
        ranges = zip(begins[used[heads]].tolist(), ends[used[tails]].tolist(), strict=True)
        return list(ranges), number[first]

    def read(self, object: PooledObject, start: int, end: int) -> U8:
        """Return these bytes, in place if they lie in one block."""
        blocks = self.hold(object, [(start, end)])
        try:
            first = blocks[0]
            if len(blocks) == 1:
                return first.data[start - first.start : end - first.start]
            parts = [block.data[max(start - block.start, 0) : end - block.start] for block in blocks]
            return np.concatenate(parts)
        finally:
            self.release(blocks)

    def gather(
        self, object: PooledObject, ranges: list[Range], starts: I64, sizes: I64, out: U8, out_starts: I64
    ) -> None:
        """Copy runs, all of which lie in the ranges, to ``out``."""
        blocks = self.hold(object, ranges)
        try:
            begins = np.array([block.start for block in blocks], dtype=np.int64)
            ends = np.array([block.end for block in blocks], dtype=np.int64)
            # Ranges are sorted, and so are their blocks.
            block_numbers = np.searchsorted(begins, starts, side="right") - 1
            inside = starts + sizes <= ends[block_numbers]
            for number in np.unique(block_numbers[inside]).tolist():
                rows = np.flatnonzero(inside & (block_numbers == number))
                block = blocks[number]
                _native.copy_runs(block.data, starts[rows] - block.start, sizes[rows], out, out_starts[rows])
            for row in np.flatnonzero(~inside).tolist():
                self._copy(
                    blocks,
                    int(block_numbers[row]),
                    int(starts[row]),
                    int(sizes[row]),
                    out,
                    int(out_starts[row]),
                )
        finally:
            self.release(blocks)

    def locate(
        self, object: PooledObject, ranges: list[Range], starts: I64, sizes: I64
    ) -> tuple[list[U8], I32, I64]:
        """Locate runs of the ranges in memory: return arrays, and for each run an array and an offset in it.

        Only runs that span several blocks are copied. The arrays stay valid while the caller references them.
        """
        blocks = self.hold(object, ranges)
        try:
            begins = np.array([block.start for block in blocks], dtype=np.int64)
            ends = np.array([block.end for block in blocks], dtype=np.int64)
            base = (np.searchsorted(begins, starts, side="right") - 1).astype(np.int32)
            across = np.flatnonzero(starts + sizes > ends[base])
            offsets, arrays = starts - begins[base], [block.data for block in blocks]
            copies = np.empty(int(sizes[across].sum()), dtype=np.uint8)
            copy_starts = starts_of(sizes[across])
            for row, offset in zip(across.tolist(), copy_starts.tolist(), strict=False):
                self._copy(blocks, int(base[row]), int(starts[row]), int(sizes[row]), copies, offset)
            base[across], offsets[across] = len(arrays), copy_starts[:-1]
            return [*arrays, copies], base, offsets
        finally:
            self.release(blocks)

    def _copy(self, blocks: list[Block], number: int, start: int, size: int, out: U8, out_start: int) -> None:
        """Copy a run that spans several blocks."""
        while size:
            block = blocks[number]
            run = block.data[start - block.start : start - block.start + size]
            out[out_start : out_start + len(run)] = run
            start, size, out_start, number = (
                start + len(run),
                size - len(run),
                out_start + len(run),
                number + 1,
            )

    def hold(self, object: PooledObject, ranges: Iterable[Range]) -> list[Block]:
        """Pin and return the blocks of these sorted ranges; they stay in memory until :meth:`release`."""
        with self._lock:
            blocks: list[Block] = []
            for start, end in ranges:
                for block in self._cover(object, start, end, NOW):
                    # A block may hold the end of one range and the start of the next.
                    if blocks and blocks[-1] is block:
                        block.pins -= 1
                    else:
                        blocks.append(block)
        return blocks

    def release(self, blocks: list[Block]) -> None:
        with self._lock:
            for block in blocks:
                block.pins -= 1
                if block in self._idle:
                    self._idle.move_to_end(block)
                    self._drop_mapped(block)

    def _drop_mapped(self, block: Block) -> None:
        """Drop an unused block that is mapped from the cache: a mapping would keep its file on the disk."""
        if not block.size and not block.pins and block in self._idle:
            self._drop(block)

    # -- prefetching -----------------------------------------------------------------------------------

    def ask(
        self, object: PooledObject, ranges: Iterable[Range], due: float, *,
        keep: bool = False, spare: int = 0, force: bool = False,
    ) -> int | None:  # fmt: skip
        """Prefetch ranges: return the number of bytes requested, or None if there is no room now.

        ``keep``: the ranges are whole chunks, which are worth storing on disk. ``spare``: bytes of the budget
        to leave to other ranges. ``force``: request them in any case, and evict blocks that are due later.
        """
        ranges = list(ranges)
        with self._lock:
            missing = sum(
                end - start for byte_range in ranges for start, end in self._missing(object, *byte_range)
            )
            # A request that exceeds the budget on its own is made when the pool is empty.
            has_room = not missing or self._make_room(missing + spare, due if force else NEVER)
            if not has_room and self.bytes and not force:
                return None
            for start, end in ranges:
                if keep:
                    object.planned_chunks.update(range(start // CHUNK_BYTES, -(-end // CHUNK_BYTES)))
                for block in self._cover(object, start, end, due, undivided=keep):
                    block.pins -= 1
                    self._plan(block, min(due, block.due))
        return missing

    def has_prefetches_in_flight(self) -> bool:
        """Return whether any prefetched block is still in flight."""
        with self._lock:
            return any(block in self._planned for block in self._in_flight)

    def settle(self, object: PooledObject, ranges: Iterable[Range], due: Callable[[int, int], float]) -> None:
        """Set when the blocks that ranges touch are needed next: ``due(start, end)`` of each block."""
        with self._lock:
            for block in {
                overlapping: None
                for byte_range in ranges
                for overlapping in self._overlapping(object, *byte_range)
            }:
                self._plan(block, due(block.start, block.end))

    def _plan(self, block: Block, due: float) -> None:
        block.due = due
        if due == NEVER:
            if self._planned.pop(block, self) is None:
                self._idle[block] = None
            self._drop_mapped(block)
        else:
            self._idle.pop(block, None)
            self._planned[block] = None

    # -- blocks; with the lock held ----------------------------------------------------------------------

    def _overlapping(self, object: PooledObject, start: int, end: int) -> list[Block]:
        starts = object.starts
        first = max(0, bisect.bisect_right(starts, start) - 1)
        last = bisect.bisect_left(starts, end)
        candidates = (object.blocks[block_start] for block_start in starts[first:last])
        return [block for block in candidates if block.end > start]

    def _missing(self, object: PooledObject, start: int, end: int) -> list[Range]:
        gaps, position = [], start
        for block in self._overlapping(object, start, end):
            if block.start > position:
                gaps.append((position, block.start))
            position = max(position, block.end)
        if position < end:
            gaps.append((position, end))
        return gaps

    def _cover(
        self, object: PooledObject, start: int, end: int, due: float, *, undivided: bool = False
    ) -> list[Block]:
        """Pin and return the blocks of a range; request missing bytes, if ``undivided`` each gap as one."""
        blocks = self._overlapping(object, start, end)
        for block in blocks:
            block.pins += 1
            if due < block.task.urgency:
                self._fetcher().hurry(block.task, due)
        for first, last in self._missing(object, start, end):
            # The end of a range that is a little longer than a chunk is not worth a request.
            max_bytes = last - first if undivided or last - first <= MAX_BLOCK_BYTES else CHUNK_BYTES
            for position in range(first, last, max_bytes):
                new = self._begin(object, position, min(position + max_bytes, last), due)
                new.pins += 1
                blocks.append(new)
        return sorted(blocks, key=operator.attrgetter("start"))

    def _begin(self, object: PooledObject, start: int, end: int, due: float) -> Block:
        size = end - start
        if self.bytes + size > self.max_bytes:
            self._make_room(size, NOW if due == NOW else NEVER)
        block = Block(object, start, end, due)
        bisect.insort(object.starts, start)
        object.blocks[start] = block
        self.bytes += size
        self.peak = max(self.peak, self.bytes)
        if due == NOW:
            block.due = NEVER
            self._idle[block] = None
        else:
            self._planned[block] = None
        self._in_flight[block] = None
        block.task = self._fetcher().submit(lambda: object.load(start, end), size, due)
        block.future = block.task.future
        # A future keeps its callbacks: a reference to the block in one would be a cycle that keeps its bytes.
        block_ref = weakref.ref(block)
        block.future.add_done_callback(lambda future: self._arrived(block_ref(), future))
        return block

    def _arrived(self, block: Block | None, future: Future[Any]) -> None:
        # It may have been dropped while it was in flight.
        if block is None:
            return
        failed = future.cancelled() or future.exception() is not None
        with self._lock:
            self._in_flight.pop(block, None)
            if failed:
                # The next reader of it requests it again.
                self._drop(block)
            elif future.result().mapped and block.object.blocks.get(block.start) is block:
                self.bytes -= block.size
                block.size = 0

    def _make_room(self, size: int, due: float) -> bool:
        """Evict blocks without a due date, and then those due later than ``due``; return if there is room."""
        while self._forgotten:
            self._drop_all(self._forgotten.popleft())
        later = [block for block in self._planned if block.due > due] if due < NEVER else []
        later.sort(key=lambda block: block.due, reverse=True)
        excess = self.bytes + size - self.max_bytes
        for block in [*self._idle, *later] if excess > 0 else ():
            if excess <= 0:
                break
            if not block.pins and block.future.done():
                excess -= block.size
                self._drop(block)
        return excess <= 0

    def _drop(self, block: Block) -> None:
        object = block.object
        if object.blocks.get(block.start) is not block:
            return
        del object.blocks[block.start]
        del object.starts[bisect.bisect_left(object.starts, block.start)]
        self._idle.pop(block, None)
        self._planned.pop(block, None)
        self._in_flight.pop(block, None)
        self.bytes -= block.size

    def forget(self, object: PooledObject, *, wait: bool = True) -> None:
        """Drop all blocks of an object and cancel their requests; without ``wait``, perhaps later.

        A finalizer must not wait: it may run in a thread that holds a lock which another user of the pool
        waits for.
        """
        if not self._lock.acquire(blocking=wait):
            self._forgotten.append(object)
            return
        try:
            self._drop_all(object)
        finally:
            self._lock.release()

    def _drop_all(self, object: PooledObject) -> None:
        for block in list(object.blocks.values()):
            block.future.cancel()
            self._drop(block)


_POOLS: dict[int | None, Pool] = {}
_LOCK = threading.Lock()


def _after_fork() -> None:
    """Forget the pools of the parent, one of whose threads may have held the lock."""
    global _LOCK
    _LOCK = threading.Lock()
    _POOLS.clear()


os.register_at_fork(after_in_child=_after_fork)


def pool_of(max_bytes: int | None) -> Pool:
    """Return the pool of this process with this byte budget; None: the default, which may grow."""
    with _LOCK:
        if max_bytes not in _POOLS:
            budget = DEFAULT_FETCH_BYTES if max_bytes is None else max_bytes
            _POOLS[max_bytes] = Pool(budget, can_grow=max_bytes is None)
        return _POOLS[max_bytes]
