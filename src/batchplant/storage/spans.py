"""Spans: the bytes of cells in files, each named by the :class:`Source` that has them."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _native
from ..schema.columns import I32, I64, U8, Flags, Ragged, starts_of
from .files import open_with_status
from .local import MappedSource, PathSource, ReadaheadRun
from .platform import O_DIRECT, use_huge_pages
from .source import Source

# Files that a batch may map one by one; beyond that, mapping each costs more than reading it.
MAX_MAPPED_FILES = 64


class Spans:
    """Locations of cells: cell i is ``size[i]`` bytes at ``start[i]`` of ``sources[file[i]]`` (-1: missing).

    Give it the sources that a reader has open. A path instead of a source stands for a file that no reader
    has open: nothing is prefetched from it past the page cache. shape: (height, width, channels) of each cell
    that is raw pixels, zeros for the others; None: no cell is.
    """

    __slots__ = ("file", "shape", "size", "sources", "start")

    def __init__(
        self,
        sources: Sequence[Source | str],
        start: I64,
        size: I64,
        file: I32 | None = None,
        shape: I32 | None = None,
    ) -> None:
        self.sources = tuple(
            source if isinstance(source, Source) else PathSource(source) for source in sources
        )
        self.start = start
        self.size = size
        self.file = np.zeros(len(start), dtype=np.int32) if file is None else file
        self.shape = shape

    def __len__(self) -> int:
        return len(self.start)

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of the sources."""
        return tuple(source.path for source in self.sources)

    @property
    def bytes(self) -> int:
        """Bytes of all cells; a missing one has none."""
        return int(np.maximum(self.size, 0).sum())

    def take(self, rows: Any) -> Spans:
        """Return the spans of these rows."""
        shape = None if self.shape is None else self.shape[rows]
        return Spans(self.sources, self.start[rows], self.size[rows], self.file[rows], shape)

    def compact(self) -> Spans:
        """Return the spans without the sources that no cell lies in."""
        if len(self.sources) == 1:
            return self
        used, file = np.unique(self.file, return_inverse=True)
        sources = [self.sources[number] for number in used.tolist()]
        return Spans(sources, self.start, self.size, file.reshape(-1).astype(np.int32), self.shape)

    def by_source(self) -> Iterator[tuple[Source, I64, I64, I64]]:
        """Yield (source, rows, starts, sizes) of every source that cells lie in; missing ones have size 0."""
        sizes = np.maximum(self.size, 0)
        if len(self.sources) == 1:
            if len(self):
                yield self.sources[0], np.arange(len(self)), np.ascontiguousarray(self.start), sizes
            return
        order = np.argsort(self.file, kind="stable")
        numbers, firsts = np.unique(self.file[order], return_index=True)
        for number, rows in zip(numbers.tolist(), np.split(order, firsts[1:]), strict=bool(len(self))):
            yield self.sources[number], rows, self.start[rows], sizes[rows]

    def gather(self) -> Ragged:
        """Return the bytes of the cells; missing ones are empty."""
        offsets = starts_of(np.maximum(self.size, 0))
        data = np.empty(offsets[-1], dtype=np.uint8)
        for source, rows, starts, sizes in self.by_source():
            source.gather_into(starts, sizes, data, offsets[rows])
        return Ragged(data, offsets)

    def locate(self) -> Located | None:
        """Return where the cells lie in memory, fetched if need be; None if the reader reads them better."""
        unopened = sum(isinstance(source, PathSource) and not source.buffers for source in self.sources)
        if unopened > MAX_MAPPED_FILES:
            return None
        if not unopened and len(self.sources) > 1 and isinstance(self.sources[0], PathSource):
            cells = self._locate_read_ahead()
            if cells is not None:
                return cells
        arrays: list[U8] = []
        base, start = np.zeros(len(self), dtype=np.int32), np.zeros(len(self), dtype=np.int64)
        for source, rows, starts, sizes in self.by_source():
            located = source.locate(starts, sizes)
            if located is None:
                return None
            base[rows], start[rows] = located.base + len(arrays), located.start
            arrays += located.arrays
        return Located(arrays, base, start, self.size, self.shape)

    def _locate_read_ahead(self) -> Located | None:
        """Locate cells of many files, all of which were read ahead, one by one: few lie in the same file."""
        numbers: dict[int, int] = {}
        arrays: list[U8] = []
        places = []
        runs = zip(self.file.tolist(), self.start.tolist(), np.maximum(self.size, 0).tolist(), strict=True)
        for file, start, size in runs:
            source = self.sources[file]
            run = source.buffers.find_one(start, size) if isinstance(source, PathSource) else None
            if run is None:
                return None
            memory, offset = run
            number = numbers.setdefault(id(memory), len(arrays))
            if number == len(arrays):
                arrays.append(memory)
            places.append((number, offset))
        base, offsets = np.array(places, dtype=np.int64).reshape(-1, 2).T
        return Located(arrays, base.astype(np.int32), offsets.copy(), self.size, self.shape)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the paths: what is open in a process is not so in another."""
        return Spans, (self.files, self.start, self.size, self.file, self.shape)

    def __repr__(self) -> str:
        return f"<Spans: {len(self)} cells in {len(self.sources)} files>"


class Located(NamedTuple):
    """Encoded cells in memory: cell i is ``size[i]`` bytes at ``start[i]`` of ``bases[base[i]]``.

    ``shape``: (height, width, channels) of a cell that is raw pixels, zeros of an encoded file; None if all
    are encoded.
    """

    bases: list[U8]
    base: I32
    start: I64
    size: I64
    shape: I32 | None

    def cell(self, row: int) -> U8:
        base: U8 = self.bases[self.base[row]]
        return base[self.start[row] : self.start[row] + self.size[row]]

    @property
    def raw(self) -> Flags:
        """Flags of the cells that are raw pixels."""
        flags: npt.NDArray[np.bool_] = np.zeros(len(self.start), dtype=np.bool_)
        return flags if self.shape is None else (self.shape != 0).any(axis=1, out=flags)

    def take(self, rows: I64) -> Located:
        shape = None if self.shape is None else self.shape[rows]
        start, size = np.ascontiguousarray(self.start[rows]), np.ascontiguousarray(self.size[rows])
        return Located(self.bases, np.ascontiguousarray(self.base[rows]), start, size, shape)


def concat_known(parts: Sequence[Spans | None]) -> Spans | None:
    """The cells of all parts, as :func:`concat_spans`; None if there is no part, or one is unknown."""
    spans = [part for part in parts if part is not None]
    return concat_spans(spans) if spans and len(spans) == len(parts) else None


# A source, a start and a size.
SourceRun = tuple[Source, int, int]


def spans_of(runs: Sequence[SourceRun]) -> Spans:
    """Return the spans of these runs."""
    numbers = {source: number for number, source in enumerate(dict.fromkeys(run[0] for run in runs))}
    return Spans(
        list(numbers),
        np.array([run[1] for run in runs], dtype=np.int64),
        np.array([run[2] for run in runs], dtype=np.int64),
        np.array([numbers[run[0]] for run in runs], dtype=np.int32),
    )


def concat_spans(parts: Sequence[Spans]) -> Spans:
    """The cells of all parts, one after another; each source once."""
    if len(parts) == 1:
        return parts[0]
    numbers: dict[Source, int] = {}
    for part in parts:
        for source in part.sources:
            numbers.setdefault(source, len(numbers))
    files = [np.array([numbers[source] for source in part.sources], dtype=np.int32) for part in parts]
    empty = np.empty(0, dtype=np.int64)
    return Spans(
        list(numbers),
        np.concatenate([empty, *(part.start for part in parts)]),
        np.concatenate([empty, *(part.size for part in parts)]),
        np.concatenate(
            [empty, *(renumbered[part.file] for renumbered, part in zip(files, parts, strict=True))]
        ).astype(np.int32),
    )


# Alignment that every disk accepts: of direct reads in the file and of their memory.
BLOCK_BYTES = 4096
# Runs that are no farther apart are read as one.
MAX_GAP_BYTES = 16 << 10
MAX_OPEN_FILES = 128
# Bits of an offset in a file; the number of the file stands above them.
OFFSET_BITS = 44


def aligned_memory(size: int) -> U8:
    """Allocate memory that a disk can write into."""
    memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # Fewer and longer transfers for the disk. If the system has no huge pages, small ones do.
    use_huge_pages(memory)
    return np.frombuffer(memory, np.uint8)


class ReadSpans(NamedTuple):
    """Cells that were read: the memory, the offset of each cell in it, and the runs of the files."""

    memory: U8
    offsets: I64
    runs: _Runs

    def attach(self, spans: Spans) -> Attached:
        """Let readers of the sources find the bytes; :meth:`Attached.detach` takes them away again."""
        attached = []
        starts, ends = self.runs.starts, self.runs.starts + self.runs.needed
        # Runs are in the order of files.
        edges = np.searchsorted(self.runs.file, np.arange(len(spans.sources) + 1)).tolist()
        for source, first, last in zip(spans.sources, edges, edges[1:], strict=False):
            if isinstance(source, MappedSource | PathSource):
                rows = slice(first, last)
                run = ReadaheadRun(self.memory, starts[rows], ends[rows], self.runs.out_starts[rows])
                source.buffers.add(run)
                attached.append((source, run))
        return Attached(attached)


class Attached(NamedTuple):
    """Bytes that readers of sources find in memory."""

    runs: list[tuple[MappedSource | PathSource, ReadaheadRun]]

    @property
    def used(self) -> bool:
        """True once a reader has found some of them."""
        return any(run.used for _, run in self.runs)

    def find(self, spans: Spans) -> npt.NDArray[np.bool_]:
        """Return flags of the cells that lie here."""
        by_source = dict(self.runs)
        flags = np.zeros(len(spans), np.bool_)
        for source, rows, starts, sizes in spans.by_source():
            if isinstance(source, MappedSource | PathSource) and source in by_source:
                flags[rows] = by_source[source].find(starts, sizes) >= 0
        return flags

    def detach(self) -> None:
        for source, run in self.runs:
            source.buffers.remove(run)


def read_spans(spans: Spans, allocate: Callable[[int], U8], *, direct: bool) -> ReadSpans | None:
    """Read cells; None if that fails: the reader that reads them later reports why.

    ``allocate`` returns memory like :func:`aligned_memory`. ``direct``: read past the page cache.
    """
    start, size = spans.start, np.maximum(spans.size, 0)
    if not size.any() or start.min() < 0 or (start + size).max() >= 1 << OFFSET_BITS:
        return None
    runs = _Runs(spans.file, start, size)
    memory = allocate(runs.total)
    try:
        for part in runs.parts():
            if not _read(spans, runs, part, memory, direct):
                return None
    except OSError:
        return None
    return ReadSpans(memory, runs.offsets, runs)


class _Runs:
    """Runs of whole blocks that cover cells, in the order of files and offsets; nearby cells share a run."""

    def __init__(self, file: I32, start: I64, size: I64) -> None:
        above = file.astype(np.int64) << OFFSET_BITS
        order = np.argsort(above + start, kind="stable")
        above, begin, end = above[order], start[order], (start + size)[order]
        first = begin & -BLOCK_BYTES
        high = np.maximum.accumulate(above + end)
        heads = np.flatnonzero(np.append(True, above[1:] + first[1:] > high[:-1] + MAX_GAP_BYTES))
        self.file = np.ascontiguousarray(file[order][heads])
        self.starts = first[heads]
        # The file may end in the last block, behind the cells.
        self.needed = np.maximum.reduceat(end, heads) - self.starts
        self.sizes = (self.needed + BLOCK_BYTES - 1) & -BLOCK_BYTES
        ends = np.cumsum(self.sizes)
        self.total, self.out_starts = int(ends[-1]), ends - self.sizes
        run = np.repeat(np.arange(len(heads)), np.diff(np.append(heads, len(order))))
        self.offsets = np.empty(len(order), dtype=np.int64)
        self.offsets[order] = begin - self.starts[run] + self.out_starts[run]

    def parts(self) -> Iterator[slice]:
        """Yield runs of no more files than may be open at once."""
        numbers = np.append(0, np.cumsum(np.diff(self.file) != 0)) // MAX_OPEN_FILES
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        return (slice(*edges[n : n + 2]) for n in range(len(edges) - 1))


def _read(spans: Spans, runs: _Runs, part: slice, memory: U8, direct: bool) -> bool:
    numbers, file = np.unique(runs.file[part], return_inverse=True)
    fds: list[int] = []
    try:
        sizes = np.zeros(len(numbers), dtype=np.int64)
        for row, number in enumerate(numbers.tolist()):
            source = spans.sources[number]
            fd, status = open_with_status(source.path, O_DIRECT if direct else 0)
            fds.append(fd)
            sizes[row] = status.st_size
            # The path may lead to another file by now than the one that the reader has open.
            if isinstance(source, MappedSource) and source.identity != (status.st_dev, status.st_ino):
                return False
        starts, needed = runs.starts[part], runs.needed[part]
        # If a file ends before the cells do, the reader that reads them reports it.
        if (starts + needed > sizes[file]).any():
            return False
        failed = _native.fetch_spans(
            np.array(fds, dtype=np.int32),
            file.reshape(-1).astype(np.int32),
            starts,
            runs.sizes[part],
            needed,
            memory,
            runs.out_starts[part],
        )
        return failed is None
    finally:
        for fd in fds:
            os.close(fd)
