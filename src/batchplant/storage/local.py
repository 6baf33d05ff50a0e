"""Local files to read from: mapped, their views free of copies; many runs that are not in memory are read
together."""

from __future__ import annotations

import bisect
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from .. import _native
from ..errors import AccessError, DamagedError
from ..schema.columns import I64, U8, Ragged
from .files import open_with_status, tag_of
from .source import LocatedRuns, Source
from .urls import is_remote

# Fewer runs than this are not worth asking where they are.
FETCH_LEAST = 4
# Where runs were in memory, ask again only this many calls later.
CHECK_EVERY = 16

SHORTER = "the file has become shorter since it was opened"

T = TypeVar("T")


class ReadaheadRun:
    """Bytes of a file that were read ahead: those from ``starts[i]`` to ``ends[i]`` lie at ``offsets[i]``.

    ``used``: True once a reader has found some of them.
    """

    def __init__(self, memory: U8, starts: I64, ends: I64, offsets: I64) -> None:
        self.memory, self._starts, self._ends, self._offsets = memory, starts, ends, offsets
        self.used = False

    def find(self, starts: I64, sizes: I64) -> I64:
        """Return the offsets of these runs in the memory; -1 for a run that is not there."""
        if not len(self._starts):
            return np.full(len(starts), -1)
        row = np.searchsorted(self._starts, starts, side="right") - 1
        inside = (row >= 0) & (starts + sizes <= self._ends[row])
        offsets: I64 = np.where(inside, starts - self._starts[row] + self._offsets[row], -1)
        self.used = self.used or bool(inside.any())
        return offsets

    def find_one(self, start: int, size: int) -> int:
        """Return the offset of one run in the memory, or -1; much faster than :meth:`find`."""
        row = bisect.bisect_right(self._starts, start) - 1
        if row < 0 or start + size > self._ends[row]:
            return -1
        self.used = True
        return int(start - self._starts[row] + self._offsets[row])


class ReadaheadBuffers:
    """The runs of one file that were read ahead. Any thread may look, add and remove."""

    def __init__(self) -> None:
        self._runs: dict[ReadaheadRun, None] = {}

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, run: ReadaheadRun) -> None:
        self._runs[run] = None

    def remove(self, run: ReadaheadRun) -> None:
        self._runs.pop(run, None)

    def view(self, start: int, size: int) -> U8 | None:
        """These bytes, if they were read ahead."""
        run = self.find_one(start, size)
        return None if run is None else run[0][run[1] :][:size]

    def find_one(self, start: int, size: int) -> tuple[U8, int] | None:
        """Return the memory that holds a run, and its offset in it."""
        for run in list(self._runs):
            offset = run.find_one(start, size)
            if offset >= 0:
                return run.memory, offset
        return None

    def find_all(self, starts: I64, sizes: I64) -> tuple[U8, I64] | None:
        """Return the memory that holds all of these runs, and their offsets in it."""
        for memory, rows, offsets in self.find(starts, sizes):
            return (memory, offsets) if len(rows) == len(starts) else None
        return None

    def find(self, starts: I64, sizes: I64) -> Iterator[tuple[U8, I64, I64]]:
        """Yield (memory, rows of the runs that it holds, their offsets in it)."""
        missing = np.arange(len(starts))
        for run in list(self._runs):
            offsets = run.find(starts[missing], sizes[missing])
            inside = offsets >= 0
            if inside.any():
                yield run.memory, missing[inside], offsets[inside]
                missing = missing[~inside]
            if not len(missing):
                return

    def copy(self, starts: I64, sizes: I64, out: U8, out_starts: I64) -> I64:
        """Copy the runs that were read ahead to ``out``; return the rows of the others."""
        missing = np.ones(len(starts), np.bool_)
        for memory, rows, offsets in self.find(starts, sizes):
            _native.copy_runs(memory, offsets, sizes[rows], out, out_starts[rows])
            missing[rows] = False
        return np.flatnonzero(missing)

    def locate(self, starts: I64, sizes: I64) -> tuple[LocatedRuns, I64]:
        """Locate the runs that were read ahead; the others, whose rows are returned, have base -1."""
        base, offsets, arrays = np.full(len(starts), -1, np.int32), starts.copy(), list[U8]()
        for memory, rows, places in self.find(starts, sizes):
            base[rows], offsets[rows] = len(arrays), places
            arrays.append(memory)
        return LocatedRuns(arrays, base, offsets), np.flatnonzero(base < 0)


class MappedSource(Source):
    """A local file, mapped; no descriptor stays open. ``first``: so many bytes are read when it is opened.

    Many runs that are not in memory are asked of the kernel together; those that are come out of the mapping.
    If somebody cuts the file short meanwhile, the former is a DamagedError, but touching the mapping behind
    the new end ends the process (SIGBUS), as with every mapped file: replace files by renaming them.
    """

    def __init__(self, path: str, first: int = 0) -> None:
        fd, facts = open_with_status(path)
        try:
            super().__init__(path, facts.st_size)
            self.data: U8 = _native.map_file(fd)
            self._first = os.pread(fd, first, 0) if first else b""
        finally:
            os.close(fd)
        self.identity = facts.st_dev, facts.st_ino
        self.tag = tag_of(facts)
        # What was read ahead, past the page cache.
        self.buffers = ReadaheadBuffers()
        # Whether the last runs were in memory, and how many times it was asked: a guess is good enough, so
        # threads need no lock.
        self.was_warm, self._turn = False, 0
        # Linux says which pages of a mapping are in memory to those who own the file or may write it.
        self._residency_known = os.geteuid() in (0, facts.st_uid) or os.access(path, os.W_OK)

    def _view(self, start: int, size: int) -> U8:
        if start + size <= len(self._first):
            # A copy, or one that is kept would keep all of them.
            return np.frombuffer(self._first[start : start + size], np.uint8)
        data = self.buffers.view(start, size) if self.buffers else None
        return self.data[start : start + size] if data is None else data

    def placed(self, starts: I64, sizes: I64) -> tuple[U8, I64]:
        """Memory that has these runs, and where in it they begin: what was read ahead, or the whole file."""
        return (self.buffers.find_all(starts, sizes) if self.buffers else None) or (self.data, starts)

    def locate(self, starts: I64, sizes: I64) -> LocatedRuns | None:
        if self.closed:
            return None
        if not self.buffers:
            return LocatedRuns([self.data], np.zeros(len(starts), np.int32), starts)
        located, missing = self.buffers.locate(starts, sizes)
        located.base[missing] = len(located.arrays)
        return LocatedRuns([*located.arrays, self.data], located.base, located.start)

    def forget_first(self) -> None:
        """Let go of the first bytes, which were read when the file was opened."""
        self._first = b""

    def _gather(self, starts: I64, sizes: I64, out: U8, out_starts: I64) -> None:
        if self.buffers:
            missing = self.buffers.copy(starts, sizes, out, out_starts)
            if not len(missing):
                return
            starts, sizes, out_starts = starts[missing], sizes[missing], out_starts[missing]
        few = len(starts) < FETCH_LEAST
        warm = few or (self._residency_known and self._in_memory(starts, sizes))
        if warm or not self._fetch(starts, sizes, out, out_starts):
            _native.copy_runs(self.data, starts, sizes, out, out_starts)

    def gather(self, starts: I64, sizes: I64) -> Ragged:
        starts, sizes = np.ascontiguousarray(starts), np.ascontiguousarray(sizes)
        cells = self._at_once(starts, _native.gather_runs, starts, sizes)
        return super().gather(starts, sizes) if cells is None else Ragged(*cells)

    def _at_once(self, runs: I64, gather: Callable[..., T | None], *args: Any) -> T | None:
        """Copy runs in one native step; None where some are not in memory, or were read ahead."""
        self._check_open()
        if self.buffers or not self.can_check_residency(runs):
            return None
        check = self._should_check(runs)
        copies = gather(self.data, *args, check)
        # A few runs that nobody looked at tell nothing.
        if check:
            self.was_warm = copies is not None
        return copies

    def gather_rows(self, start: int, stride: int, width: int, rows: I64) -> U8:
        rows = np.ascontiguousarray(rows)
        cells = self._at_once(rows, _native.gather_strided, start, stride, width, rows)
        return super().gather_rows(start, stride, width, rows) if cells is None else cells.reshape(-1, width)

    def gather_checked(
        self, starts: I64, sizes: I64, sums: npt.NDArray[np.uint32], which: I64
    ) -> tuple[Ragged, int]:
        starts, sizes, which = map(np.ascontiguousarray, (starts, sizes, which))
        cells = self._at_once(starts, _native.gather_runs_crc32, starts, sizes, sums, which)
        if cells is None:
            return super().gather_checked(starts, sizes, sums, which)
        return Ragged(cells[0], cells[1]), cells[2]

    def peek(self, runs: Sequence[tuple[int, int]]) -> bytes:
        if len(runs) == 1 and sum(runs[0]) <= len(self._first):
            return self._first[runs[0][0] : sum(runs[0])]
        # Not out of the mapping: where a page of it is not in memory, the kernel reads megabytes around it.
        fd = self._reopen()
        if fd is None:
            return super().peek(runs)
        parts = []
        try:
            for start, size in runs:
                self.check_bounds(start, size)
                parts.append(os.pread(fd, size, start))
                if len(parts[-1]) < size:
                    raise DamagedError(SHORTER, path=self.path, offset=start)
        except OSError as error:
            raise AccessError(str(error.strerror or error), path=self.path) from None
        finally:
            os.close(fd)
        return b"".join(parts)

    def _should_check(self, runs: I64) -> bool:
        """Whether to ask if runs are in memory. That takes time: where the last were, only now and then."""
        self._turn += 1
        return len(runs) >= FETCH_LEAST and (not self.was_warm or self._turn % CHECK_EVERY == 0)

    def is_warm(self) -> bool:
        """Whether the last runs were in memory, and it is not yet time to ask again."""
        self._turn += 1
        return self.was_warm and self._turn % CHECK_EVERY != 0

    def check_warm(self, starts: I64, sizes: I64) -> bool:
        """Ask whether these runs are in memory: then reading more of the file will hardly wait for a disk."""
        self.was_warm = self._residency_known and self._in_memory(starts, sizes)
        return self.was_warm

    def can_check_residency(self, starts: I64) -> bool:
        """Whether Linux says if these runs are in memory, or they are too few for it to matter."""
        return self._residency_known or len(starts) < FETCH_LEAST

    def _in_memory(self, starts: I64, sizes: I64, each: bool = False) -> bool:
        return _native.resident_fraction(self.data, starts, sizes, each) == 1

    def _reopen(self) -> int | None:
        """A descriptor of the file; None where the path leads to another one by now, or to none."""
        try:
            fd, facts = open_with_status(self.path)
        except OSError:
            return None
        if (facts.st_dev, facts.st_ino) == self.identity:
            return fd
        os.close(fd)
        return None

    def _fetch(self, starts: I64, sizes: I64, out: U8, out_starts: I64) -> bool:
        """Read runs together; False where the mapping is better, or the path leads to another file by now."""
        fd = self._reopen()
        if fd is None:
            return False
        try:
            if not self._residency_known and _native.cached_fraction(fd, starts, sizes) == 1:
                return False
            failed = _native.fetch_runs(fd, starts, sizes, out, out_starts)
        finally:
            os.close(fd)
        if failed is not None:
            run, code = failed
            reason = os.strerror(code) if code else SHORTER
            raise DamagedError(reason, path=self.path, offset=int(starts[run]))
        return True

    def prefixed_sizes(self, starts: I64, sizes: I64, counts: I64, *, past: bool = True) -> tuple[I64, U8]:
        """The sizes of cells that fill runs, so many in each, each behind its size in four bytes.

        The second part: of which runs that is true. ``past``: not through the page cache.
        """
        self._check_open()
        staged = self.buffers.find_all(starts, sizes) if self.buffers else None
        if staged is not None:
            return _native.prefixed_sizes_in(*staged, sizes, counts)
        fd = self._reopen()
        if fd is None:
            return np.zeros(int(counts.sum()), np.int64), np.zeros(len(counts), np.uint8)
        try:
            return _native.prefixed_sizes(fd, starts, sizes, counts, past)
        finally:
            os.close(fd)

    def request(self, starts: I64, sizes: I64, *, thorough: bool = False) -> int:
        """Have the kernel begin to read these runs; it costs next to nothing if all are in memory."""
        self._check_open()
        starts, sizes = np.ascontiguousarray(starts), np.maximum(sizes, 0)
        if self.buffers and self.buffers.find_all(starts, sizes) is not None:
            return 0
        if self._residency_known and self._in_memory(starts, sizes, thorough):
            return 0
        _native.will_need(self.data, starts, sizes)
        return int(sizes.sum())

    def resident(self, starts: I64, sizes: I64) -> bool:
        """Return True if these runs are in memory, as far as a page of each tells; False if Linux won't."""
        return self._residency_known and self._in_memory(starts, sizes, True)

    def close(self) -> None:
        # The mapping itself lives as long as somebody holds a view of it.
        self.data = np.empty(0, dtype=np.uint8)
        super().close()


# Maps of files that no reader holds open; in a folder of a million images, each is a file.
MAX_OPEN_MAPS = 128


class PathSources:
    """The files of a dataset that has many: they are mapped when they are needed, the last ones stay so.

    One source stands for a path as long as somebody refers to it, so what is read ahead is found again.
    """

    def __init__(self, max_open: int = MAX_OPEN_MAPS) -> None:
        self._max_open = max_open
        self._sources: weakref.WeakValueDictionary[str, PathSource] = weakref.WeakValueDictionary()
        self._maps: OrderedDict[str, MappedSource] = OrderedDict()
        self._lock = threading.Lock()

    def source(self, path: str) -> PathSource:
        source = self._sources.get(path)
        if source is None:
            self._sources[path] = source = PathSource(path, self)
        return source

    def map(self, path: str) -> MappedSource:
        with self._lock:
            mapped = self._maps.pop(path, None) or MappedSource(path)
            self._maps[path] = mapped
            while len(self._maps) > self._max_open:
                self._maps.popitem(last=False)
            return mapped

    def close(self) -> None:
        with self._lock:
            self._maps.clear()


class PathSource(Source):
    """A file that is known by its path only; it is mapped each time that its bytes are needed.

    With an ``owner``, that keeps it mapped for a while.
    """

    def __init__(self, path: str, owner: PathSources | None = None) -> None:
        # The file is not looked at: a span may name one that is never read.
        super().__init__(path, -1)
        self.remote = is_remote(path)
        self._owner = owner
        self.buffers = ReadaheadBuffers()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PathSource) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    @property
    def size(self) -> int:
        return self._map().size

    def _map(self) -> MappedSource:
        return MappedSource(self.path) if self._owner is None else self._owner.map(self.path)

    def _view(self, start: int, size: int) -> U8:
        return self._map().view(start, size)

    def _gather(self, starts: I64, sizes: I64, out: U8, out_starts: I64) -> None:
        self._map().gather_into(starts, sizes, out, out_starts)

    def locate(self, starts: I64, sizes: I64) -> LocatedRuns | None:
        located, missing = self.buffers.locate(starts, sizes)
        if not len(missing):
            return located
        # What is on a server, or went away, the reader has to read: it can tell why that fails.
        try:
            data = None if self.remote else self._map().data
        except OSError:
            return None
        if data is None:
            return None
        located.base[missing] = len(located.arrays)
        return LocatedRuns([*located.arrays, data], located.base, located.start)
