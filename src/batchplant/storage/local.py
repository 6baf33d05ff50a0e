"""Local files to read from: mapped, their views free of copies; many runs that are not in memory are read
together."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from .. import _native
from ..errors import AccessError, DamagedError
from ..schema.columns import I64, U8, Ragged
from .files import open_with_status, tag_of
from .source import Source
from .staged import Shelf

# Fewer runs than this are not worth asking where they are.
FETCH_LEAST = 4
# Where runs were in memory, ask again only this many calls later.
CHECK_EVERY = 16

SHORTER = "the file has become shorter since it was opened"

T = TypeVar("T")

# The files that some reader holds mapped, so that nobody maps them again.
_MAPPED: weakref.WeakValueDictionary[str, MappedSource] = weakref.WeakValueDictionary()


def mapped(path: str) -> U8 | None:
    """The bytes of a local file that a reader has open already, else None."""
    found = _MAPPED.get(path)
    return None if found is None or found.closed else found.data


def mapped_source(path: str) -> MappedSource | None:
    """The reader's source of such a file, else None."""
    found = _MAPPED.get(path)
    return None if found is None or found.closed else found


def is_still(path: str, facts: os.stat_result) -> bool:
    """Whether this is the file that a reader has open by that path, if one has: it may be another by now."""
    found = mapped_source(path)
    return found is None or found.identity == (facts.st_dev, facts.st_ino)


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
        self.staged = Shelf()
        # Whether the last runs were in memory, and how many times it was asked: a guess is good enough, so
        # threads need no lock.
        self._was_warm, self._turn = False, 0
        # Linux says which pages of a mapping are in memory to those who own the file or may write it.
        self._residency_known = os.geteuid() in (0, facts.st_uid) or os.access(path, os.W_OK)
        _MAPPED[path] = self

    def _view(self, start: int, size: int) -> U8:
        if start + size <= len(self._first):
            # A copy, or one that is kept would keep all of them.
            return np.frombuffer(self._first[start : start + size], np.uint8)
        found = self.staged.view(start, size) if self.staged else None
        return self.data[start : start + size] if found is None else found

    def placed(self, starts: I64, sizes: I64) -> tuple[U8, I64]:
        """Memory that has these runs, and where in it they begin: what was read ahead, or the whole file."""
        return (self.staged.placed(starts, sizes) if self.staged else None) or (self.data, starts)

    def forget_first(self) -> None:
        """Let go of the first bytes, which were read when the file was opened."""
        self._first = b""

    def _gather(self, starts: I64, sizes: I64, out: U8, out_starts: I64) -> None:
        if self.staged:
            left = self.staged.copy(starts, sizes, out, out_starts)
            if not len(left):
                return
            starts, sizes, out_starts = starts[left], sizes[left], out_starts[left]
        if self._warm(starts, sizes) or not self._fetch(starts, sizes, out, out_starts):
            _native.copy_runs(self.data, starts, sizes, out, out_starts)

    def gather(self, starts: I64, sizes: I64) -> Ragged:
        self._check_open()
        # In one step what the methods below do one by one.
        if not self.staged and self.can_check_residency(starts):
            starts, sizes = np.ascontiguousarray(starts), np.ascontiguousarray(sizes)
            check = self._should_check(starts)
            found = self._note_residency(check, _native.gather_runs(self.data, starts, sizes, check))
            if found is not None:
                return Ragged(*found)
        return super().gather(starts, sizes)

    def gather_rows(self, start: int, stride: int, width: int, rows: I64) -> U8:
        self._check_open()
        if not self.staged and self.can_check_residency(rows):
            rows = np.ascontiguousarray(rows)
            check = self._should_check(rows)
            found = self._note_residency(
                check, _native.gather_strided(self.data, start, stride, width, rows, check)
            )
            if found is not None:
                return found.reshape(-1, width)
        return super().gather_rows(start, stride, width, rows)

    def gather_checked(
        self, starts: I64, sizes: I64, sums: npt.NDArray[np.uint32], which: I64
    ) -> tuple[Ragged, int]:
        self._check_open()
        if not self.staged and self.can_check_residency(starts):
            starts, sizes, which = map(np.ascontiguousarray, (starts, sizes, which))
            check = self._should_check(starts)
            found = self._note_residency(
                check, _native.gather_runs_crc32(self.data, starts, sizes, sums, which, check)
            )
            if found is not None:
                return Ragged(found[0], found[1]), found[2]
        return super().gather_checked(starts, sizes, sums, which)

    def peek(self, runs: Sequence[tuple[int, int]]) -> bytes:
        if len(runs) == 1 and sum(runs[0]) <= len(self._first):
            return self._first[runs[0][0] : sum(runs[0])]
        # Not out of the mapping: where a page of it is not in memory, the kernel reads megabytes around it.
        fd = self._reopen()
        if fd is None:
            return super().peek(runs)
        found = []
        try:
            for start, size in runs:
                self.check_bounds(start, size)
                found.append(os.pread(fd, size, start))
                if len(found[-1]) < size:
                    raise DamagedError(SHORTER, path=self.path, offset=start)
        except OSError as error:
            raise AccessError(str(error.strerror or error), path=self.path) from None
        finally:
            os.close(fd)
        return b"".join(found)

    def _should_check(self, runs: I64) -> bool:
        """Whether to ask if runs are in memory. That takes time: where the last were, only now and then."""
        self._turn += 1
        return len(runs) >= FETCH_LEAST and (not self._was_warm or self._turn % CHECK_EVERY == 0)

    @property
    def was_warm(self) -> bool:
        """Whether the last runs were in memory."""
        return self._was_warm

    def is_warm(self) -> bool:
        """Whether the last runs were in memory, and it is not yet time to ask again."""
        self._turn += 1
        return self._was_warm and self._turn % CHECK_EVERY != 0

    def check_warm(self, starts: I64, sizes: I64) -> bool:
        """Ask whether these runs are in memory: then reading more of the file will hardly wait for a disk."""
        self._was_warm = self.in_memory(starts, sizes)
        return self._was_warm

    def _note_residency(self, checked: bool, found: T | None) -> T | None:
        # A few runs that nobody looked at tell nothing.
        if checked:
            self._was_warm = found is not None
        return found

    def can_check_residency(self, starts: I64) -> bool:
        """Whether Linux says if these runs are in memory, or they are too few for it to matter."""
        return self._residency_known or len(starts) < FETCH_LEAST

    def _warm(self, starts: I64, sizes: I64) -> bool:
        return len(starts) < FETCH_LEAST or (self._residency_known and self._in_memory(starts, sizes))

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
        staged = self.staged.placed(starts, sizes) if self.staged else None
        if staged is not None:
            return _native.prefixed_sizes_in(*staged, sizes, counts)
        fd = self._reopen()
        if fd is None:
            return np.zeros(int(counts.sum()), np.int64), np.zeros(len(counts), np.uint8)
        try:
            return _native.prefixed_sizes(fd, starts, sizes, counts, past)
        finally:
            os.close(fd)

    def will_need(self, starts: I64, sizes: I64, *, each: bool = False) -> None:
        """Have the kernel begin to read these runs, all together, where they are not in memory.

        Nothing is waited for. It costs next to nothing where everything is in memory. Missing cells (size -1)
        are passed over.
        """
        self._check_open()
        starts, sizes = np.ascontiguousarray(starts), np.maximum(sizes, 0)
        staged = self.staged.placed(starts, sizes) if self.staged else None
        if staged is None and not self.in_memory(starts, sizes, each=each):
            _native.will_need(self.data, starts, sizes)

    def in_memory(self, starts: I64, sizes: I64, *, each: bool = False) -> bool:
        """Whether these runs are in memory, as far as a few pages tell; False where Linux does not say.
        ``each``: a page of every run, for who has the time: one that is missing costs as much as all."""
        return self._residency_known and self._in_memory(starts, sizes, each)

    def close(self) -> None:
        # The mapping itself lives as long as somebody holds a view of it.
        self.data = np.empty(0, dtype=np.uint8)
        super().close()
