"""Many runs of local files, read into memory in one call: through the page cache, or past it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _native
from ..schema.columns import I32, I64, U8
from .files import open_with_status
from .local import MappedSource, PathSource, ReadaheadRun
from .platform import O_DIRECT, use_huge_pages
from .spans import Spans

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
