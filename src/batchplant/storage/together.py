"""Many runs of local files, read together into memory: through the page cache, or past it."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from .. import _native
from ..schema.columns import I64, U8, Spans
from .files import open_with_status
from .local import is_still
from .staged import Staged

# What every disk takes: where reads past the page cache begin and end, and where their memory does.
BLOCK = 4096
# Runs that are no farther apart are read as one.
GAP = 16 << 10
# Files that are open at once.
OPEN = 128
# Offsets have so many bits, and the number of the file stands above them.
OFFSET_BITS = 44


def aligned_memory(size: int) -> U8:
    """Memory that a disk can write into."""
    memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # Fewer and longer pieces for the disk. Where the system has no huge pages, small ones do.
    with contextlib.suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    found: U8 = np.frombuffer(memory, np.uint8)
    return found


class Read(NamedTuple):
    """Cells that were read: the memory, where in it each begins, and all that was read of each file."""

    memory: U8
    places: I64
    runs: _Runs

    def of(self, file: int) -> Staged:
        runs, rows = self.runs, np.flatnonzero(self.runs.file == file)
        starts = runs.starts[rows]
        return Staged(self.memory, starts, starts + runs.least[rows], runs.out_starts[rows])


def read_together(spans: Spans, take: Callable[[int], U8], *, direct: bool) -> Read | None:
    """Read cells; None where that fails: who reads them alone is told why.

    ``take`` gives memory for so many bytes, as :func:`aligned_memory` does. ``direct``: past the page cache.
    """
    start, size = spans.start, np.maximum(spans.size, 0)
    if not size.any() or start.min() < 0 or (start + size).max() >= 1 << OFFSET_BITS:
        return None
    runs = _Runs(spans.file, start, size)
    memory = take(runs.total)
    try:
        for part in runs.parts():
            if not _read(spans, runs, part, memory, direct):
                return None
    except OSError:
        return None
    return Read(memory, runs.places, runs)


class _Runs:
    """Cells, in whole blocks, those that lie together in one run; in the order of files and offsets."""

    def __init__(self, file: np.ndarray, start: I64, size: I64) -> None:
        above = file.astype(np.int64) << OFFSET_BITS
        order = np.argsort(above + start, kind="stable")
        above, begin, end = above[order], start[order], (start + size)[order]
        first = begin & -BLOCK
        high = np.maximum.accumulate(above + end)
        heads = np.flatnonzero(np.append(True, above[1:] + first[1:] > high[:-1] + GAP))
        self.file = np.ascontiguousarray(file[order][heads])
        self.starts = first[heads]
        # Of the last block, what lies behind the cells need not be there.
        self.least = np.maximum.reduceat(end, heads) - self.starts
        self.sizes = (self.least + BLOCK - 1) & -BLOCK
        ends = np.cumsum(self.sizes)
        self.total, self.out_starts = int(ends[-1]), ends - self.sizes
        run = np.repeat(np.arange(len(heads)), np.diff(np.append(heads, len(order))))
        self.places = np.empty(len(order), dtype=np.int64)
        self.places[order] = begin - self.starts[run] + self.out_starts[run]

    def parts(self) -> Iterator[slice]:
        """Runs of no more files than may be open at once."""
        numbers = np.append(0, np.cumsum(np.diff(self.file) != 0)) // OPEN
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        return (slice(*edges[n : n + 2]) for n in range(len(edges) - 1))


def _read(spans: Spans, runs: _Runs, part: slice, memory: U8, direct: bool) -> bool:
    numbers, file = np.unique(runs.file[part], return_inverse=True)
    fds: list[int] = []
    try:
        sizes = np.zeros(len(numbers), dtype=np.int64)
        for row, number in enumerate(numbers.tolist()):
            path = spans.files[number]
            fd, facts = open_with_status(path, os.O_DIRECT if direct else 0)
            fds.append(fd)
            sizes[row] = facts.st_size
            if not is_still(path, facts):
                return False
        starts, least = runs.starts[part], runs.least[part]
        # Of a file that ends before them, whoever looks at the cells says more.
        if (starts + least > sizes[file]).any():
            return False
        failed = _native.fetch_spans(
            np.array(fds, dtype=np.int32), file.reshape(-1).astype(np.int32), starts, runs.sizes[part], least,
            memory, runs.out_starts[part],
        )  # fmt: skip
        return failed is None
    finally:
        for fd in fds:
            os.close(fd)
