"""Blocks of remote objects in memory: a :class:`Pool` of a bounded size, shared by all sources of a process.

A block is a range of an object that was fetched, or is on its way. Blocks of an object do not overlap. A
reader asks for ranges; what is missing is fetched, in parts of at most 8 MiB side by side. The loader, which
knows the future, asks ahead, and says when each block is needed next (``due``). Room is made by letting go of
blocks that nobody is known to need, longest unused first, and then of the one that is needed latest.
"""

from __future__ import annotations

import bisect
import copy
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

import numpy as np

from ... import _native
from ...errors import BatchplantError
from ...schema.columns import I32, I64, U8, starts_of
from .cells import PART, Cells, Loaded, Range
from .client import Client
from .disk import DiskCache
from .fetch import Fetcher, Task, fetcher

# Wanted now; what is asked ahead has the number of its batch.
NOW = -1.0
NEVER = float("inf")


class Block:
    """Bytes [start, end) of an object."""

    __slots__ = ("__weakref__", "due", "end", "future", "held", "object", "size", "start", "task")

    def __init__(self, object: RemoteObject, start: int, end: int, due: float) -> None:
        self.object, self.start, self.end, self.due = object, start, end, due
        self.task: Task
        self.future: Future[Loaded]
        # How many are reading it just now.
        self.held = 0
        # What it takes of the pool; a block that lies in a file takes nothing.
        self.size = end - start

    @property
    def data(self) -> U8:
        try:
            return self.future.result().data
        except BatchplantError as error:
            # Several may wait for it, and each may write a place into it.
            raise copy.copy(error).with_traceback(None) from None


class RemoteObject(Cells):
    """An object on a server, and its blocks."""

    def __init__(
        self, client: Client, name: str, url: str, size: int, tag: str, disk: DiskCache | None, key: str
    ) -> None:
        super().__init__(client, name, url, size, tag, disk, key)
        self.starts: list[int] = []
        self.blocks: dict[int, Block] = {}

    def twin(self) -> RemoteObject:
        """The same object without any blocks yet."""
        return RemoteObject(self.client, self.name, self.url, self.size, self.tag, self.disk, self.key)


class Pool:
    """Blocks in memory, at most ``most`` bytes of them besides those that are being read.

    ``fetcher`` gives who fetches them.
    """

    def __init__(self, most: int, fetcher: Callable[[], Fetcher] = fetcher) -> None:
        self.most, self._fetcher = most, fetcher
        self.bytes = 0
        self.peak = 0
        # A block that arrives while it is asked for comes back into the same thread.
        self._lock = threading.RLock()
        # Blocks that nobody is known to need, in the order of their last use; and those that somebody does.
        self._idle: OrderedDict[Block, None] = OrderedDict()
        self._planned: dict[Block, None] = {}
        # Blocks that are still on their way.
        self._coming: dict[Block, None] = {}

    # -- reading ---------------------------------------------------------------------------------------

    def has(self, object: RemoteObject, start: int, end: int) -> bool:
        """Whether these bytes are here or on their way."""
        with self._lock:
            return not self._missing(object, start, end)

    def covering(self, object: RemoteObject, starts: I64, sizes: I64) -> tuple[list[Range], I64] | None:
        """The blocks that runs lie in, as ranges in order, and which of them each run lies in.

        None unless all runs are here or on their way. Of a thousand runs, none is looked at by itself.
        """
        with self._lock:
            begins = np.array(object.starts, dtype=np.int64)
            ends = np.array([object.blocks[one].end for one in object.starts], dtype=np.int64)
        first = np.searchsorted(begins, starts, side="right") - 1
        if not len(begins) or (first < 0).any() or (starts >= ends[first]).any():
            return None
        # As it mostly is: each lies in one block.
        if (starts + sizes <= ends[first]).all():
            used, where = np.unique(first, return_inverse=True)
            return list(zip(begins[used].tolist(), ends[used].tolist(), strict=True)), where
        last = np.searchsorted(begins, starts + sizes - 1, side="right") - 1
        # How many times there is a gap before a block.
        gaps = np.cumsum(np.append(0, begins[1:] > ends[:-1]))
        if (starts + sizes > ends[last]).any() or (gaps[first] != gaps[last]).any():
            return None
        needed, across = np.zeros((2, len(begins) + 1), dtype=np.int64)
        np.add.at(needed, first, 1)
        np.add.at(across, first + 1, 1)
        for one in (needed, across):
            np.subtract.at(one, last + 1, 1)
        used = np.flatnonzero(np.cumsum(needed[:-1]))
        # Blocks that one run lies in are one range.
        heads = np.cumsum(across[:-1])[used] == 0
        number = np.zeros(len(begins), dtype=np.int64)
        number[used] = np.cumsum(heads) - 1
        tails = np.append(heads[1:], True)
        ranges = zip(begins[used[heads]].tolist(), ends[used[tails]].tolist(), strict=True)
        return list(ranges), number[first]

    def read(self, object: RemoteObject, start: int, end: int) -> U8:
        """These bytes, in place where they lie in one block."""
        held = self.hold(object, [(start, end)])
        try:
            first = held[0]
            if len(held) == 1:
                return first.data[start - first.start : end - first.start]
            parts = [one.data[max(start - one.start, 0) : end - one.start] for one in held]
            return np.concatenate(parts)
        finally:
            self.release(held)

    def gather(
        self, object: RemoteObject, ranges: list[Range], starts: I64, sizes: I64, out: U8, out_starts: I64
    ) -> None:
        """Copy runs, all of which lie in the ranges."""
        held = self.hold(object, ranges)
        try:
            begins = np.array([one.start for one in held], dtype=np.int64)
            ends = np.array([one.end for one in held], dtype=np.int64)
            # Ranges are in order, and so are their blocks.
            at = np.searchsorted(begins, starts, side="right") - 1
            inside = starts + sizes <= ends[at]
            for number in np.unique(at[inside]).tolist():
                rows = np.flatnonzero(inside & (at == number))
                block = held[number]
                _native.copy_runs(block.data, starts[rows] - block.start, sizes[rows], out, out_starts[rows])
            for row in np.flatnonzero(~inside).tolist():
                self._copy(held, int(at[row]), int(starts[row]), int(sizes[row]), out, int(out_starts[row]))
        finally:
            self.release(held)

    def locate(
        self, object: RemoteObject, ranges: list[Range], starts: I64, sizes: I64
    ) -> tuple[list[U8], I32, I64]:
        """Where runs that lie in the ranges are in memory: arrays, and for each run which, and where in it.

        Only runs that lie in several blocks are copied. The arrays stay as long as somebody holds them.
        """
        held = self.hold(object, ranges)
        try:
            begins = np.array([one.start for one in held], dtype=np.int64)
            ends = np.array([one.end for one in held], dtype=np.int64)
            base = (np.searchsorted(begins, starts, side="right") - 1).astype(np.int32)
            across = np.flatnonzero(starts + sizes > ends[base])
            places, arrays = starts - begins[base], [one.data for one in held]
            copies = np.empty(int(sizes[across].sum()), dtype=np.uint8)
            to = starts_of(sizes[across])
            for row, at in zip(across.tolist(), to.tolist(), strict=False):
                self._copy(held, int(base[row]), int(starts[row]), int(sizes[row]), copies, at)
            base[across], places[across] = len(arrays), to[:-1]
            return [*arrays, copies], base, places
        finally:
            self.release(held)

    def _copy(self, held: list[Block], number: int, start: int, size: int, out: U8, to: int) -> None:
        """A run that lies in several blocks."""
        while size:
            block = held[number]
            part = block.data[start - block.start : start - block.start + size]
            out[to : to + len(part)] = part
            start, size, to, number = start + len(part), size - len(part), to + len(part), number + 1

    def hold(self, object: RemoteObject, ranges: Iterable[Range]) -> list[Block]:
        """The blocks of these ranges, which are in order; they stay until they are released."""
        with self._lock:
            held: list[Block] = []
            for start, end in ranges:
                for one in self._cover(object, start, end, NOW):
                    # One block may hold the end of one range and the start of the next.
                    if held and held[-1] is one:
                        one.held -= 1
                    else:
                        held.append(one)
        return held

    def release(self, held: list[Block]) -> None:
        with self._lock:
            for one in held:
                one.held -= 1
                if one in self._idle:
                    self._idle.move_to_end(one)
                    self._let_go(one)

    def _let_go(self, block: Block) -> None:
        """A block in a file of the cache is found again there; held, the file could not go from the disk."""
        if not block.size and not block.held and block in self._idle:
            self._drop(block)

    # -- asking ahead ----------------------------------------------------------------------------------

    def ask(
        self, object: RemoteObject, ranges: Iterable[Range], due: float, *, keep: bool = False
    ) -> int | None:
        """Fetch ranges that will be needed: how many bytes are asked for; None where there is no room now.

        ``keep``: the ranges are whole cells, which are worth keeping on disk.
        """
        ranges = list(ranges)
        with self._lock:
            missing = sum(end - start for each in ranges for start, end in self._missing(object, *each))
            # One that alone is too large goes when there is nothing else.
            if missing > self.most - self.bytes and not self._make_room(missing) and self.bytes:
                return None
            for start, end in ranges:
                if keep:
                    object.kept.update(range(start // PART, -(-end // PART)))
                for one in self._cover(object, start, end, due, whole=keep):
                    one.held -= 1
                    self._plan(one, min(due, one.due))
        return missing

    def is_busy(self) -> bool:
        """Whether anything that was asked for ahead is still on its way."""
        with self._lock:
            return any(one in self._planned for one in self._coming)

    def settle(self, object: RemoteObject, ranges: Iterable[Range], due: Callable[[int, int], float]) -> None:
        """When the blocks that ranges touch are needed next: ``due`` says it of each, by start and end."""
        with self._lock:
            for one in {block: None for each in ranges for block in self._overlapping(object, *each)}:
                self._plan(one, due(one.start, one.end))

    def _plan(self, block: Block, due: float) -> None:
        block.due = due
        if due == NEVER:
            if self._planned.pop(block, self) is None:
                self._idle[block] = None
            self._let_go(block)
        else:
            self._idle.pop(block, None)
            self._planned[block] = None

    # -- blocks; with the lock held ----------------------------------------------------------------------

    def _overlapping(self, object: RemoteObject, start: int, end: int) -> list[Block]:
        starts = object.starts
        first = max(0, bisect.bisect_right(starts, start) - 1)
        last = bisect.bisect_left(starts, end)
        found = (object.blocks[one] for one in starts[first:last])
        return [one for one in found if one.end > start]

    def _missing(self, object: RemoteObject, start: int, end: int) -> list[Range]:
        found, at = [], start
        for one in self._overlapping(object, start, end):
            if one.start > at:
                found.append((at, one.start))
            at = max(at, one.end)
        if at < end:
            found.append((at, end))
        return found

    def _cover(
        self, object: RemoteObject, start: int, end: int, due: float, *, whole: bool = False
    ) -> list[Block]:
        """The blocks that hold a range, held; what is missing is asked for, ``whole``: in one piece."""
        found = self._overlapping(object, start, end)
        for one in found:
            one.held += 1
            if due < one.task.urgency:
                self._fetcher().hurry(one.task, due)
        for first, last in self._missing(object, start, end):
            step = last - first if whole else PART
            for at in range(first, last, step):
                made = self._begin(object, at, min(at + step, last), due)
                made.held += 1
                found.append(made)
        return sorted(found, key=_start)

    def _begin(self, object: RemoteObject, start: int, end: int, due: float) -> Block:
        size = end - start
        if self.bytes + size > self.most:
            self._make_room(size, force=due == NOW)
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
        self._coming[block] = None
        block.task = self._fetcher().submit(lambda: object.load(start, end), size, due)
        block.future = block.task.future
        # A future keeps its callbacks: the block in one would be a cycle, and its bytes would stay for long.
        held = weakref.ref(block)
        block.future.add_done_callback(lambda future: self._arrived(held(), future))
        return block

    def _arrived(self, block: Block | None, future: Future[Any]) -> None:
        # It may have been dropped before it came.
        if block is None:
            return
        failed = future.cancelled() or future.exception() is not None
        with self._lock:
            self._coming.pop(block, None)
            if failed:
                # The next one who needs it tries anew.
                self._drop(block)
            elif future.result().mapped and block.object.blocks.get(block.start) is block:
                self.bytes -= block.size
                block.size = 0

    def _make_room(self, size: int, *, force: bool = False) -> bool:
        """Let go of blocks; ``force``: also of those that will be needed, the latest first."""
        over, gone = self.bytes + size - self.most, []
        for one in self._idle:
            if over <= 0:
                break
            if not one.held and one.future.done():
                gone.append(one)
                over -= one.size
        for one in gone:
            self._drop(one)
        if force and self.bytes + size > self.most:
            for one in sorted(self._planned, key=lambda one: one.due, reverse=True):
                if self.bytes + size <= self.most:
                    return True
                if not one.held and one.future.done():
                    self._drop(one)
        return self.bytes + size <= self.most

    def _drop(self, block: Block) -> None:
        object = block.object
        if object.blocks.get(block.start) is not block:
            return
        del object.blocks[block.start]
        del object.starts[bisect.bisect_left(object.starts, block.start)]
        self._idle.pop(block, None)
        self._planned.pop(block, None)
        self._coming.pop(block, None)
        self.bytes -= block.size

    def forget(self, object: RemoteObject) -> None:
        """Let go of all blocks of an object."""
        with self._lock:
            for one in list(object.blocks.values()):
                one.future.cancel()
                self._drop(one)


def _start(block: Block) -> int:
    return block.start


_POOLS: dict[int, Pool] = {}
_LOCK = threading.Lock()
_PROCESS = 0


def pool_of(most: int) -> Pool:
    """The pool of this process that has this bound."""
    global _LOCK, _PROCESS
    if os.getpid() != _PROCESS:
        _LOCK, _PROCESS = threading.Lock(), os.getpid()
        _POOLS.clear()
    with _LOCK:
        return _POOLS.setdefault(most, Pool(most))
