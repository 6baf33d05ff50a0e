"""One file to read from: :class:`Source`, and :class:`MappedSource` for local ones.

A local file is mapped and its views are free of copies; many runs of a file that is not in memory are read
together.
"""

from __future__ import annotations

import io
import os
import weakref
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from .. import _native
from ..columns import I64, U8, Ragged, starts_of
from ..errors import AccessError, DamagedError, OptionError
from .files import open_known, tag_of
from .staged import Shelf

# Fewer runs than this are not worth asking where they are.
FETCH_LEAST = 4
# Where runs were in memory, ask again only this many calls later.
CHECK_EVERY = 16

SHORTER = "the file has become shorter since it was opened"

T = TypeVar("T")


class Source:
    """One file to read from, safe from many threads."""

    # What changes when the file does; empty where nothing tells.
    tag = ""

    def __init__(self, path: str, size: int) -> None:
        self.path = path
        self.size = size
        self.closed = False
        self._failed: AccessError | None = None

    def _check_open(self) -> None:
        if self.closed:
            raise OptionError("it was closed, and cannot be read any more", path=self.path)

    def view(self, start: int, size: int) -> U8:
        """These bytes; outside of the file is a DamagedError."""
        start, size = int(start), int(size)
        self.check_bounds(start, size)
        return self._view(start, size)

    def only(self, start: int, size: int) -> U8:
        """These bytes, by someone who knows what is needed next: nothing is asked for ahead."""
        return self.view(start, size)

    def check_bounds(self, start: int, size: int) -> None:
        """DamagedError where these bytes do not lie in the file; they are not read."""
        self._check_open()
        if start < 0 or size < 0 or start + size > self.size:
            raise DamagedError(
                f"{size} bytes are needed here, but the file ends at {self.size}",
                path=self.path,
                offset=start,
            )

    def _view(self, start: int, size: int) -> U8:
        raise NotImplementedError

    def array(self, dtype: npt.DTypeLike, start: int, count: int) -> npt.NDArray[Any]:
        """``count`` items of this dtype from ``start`` on."""
        dtype = np.dtype(dtype)
        return self.view(start, count * dtype.itemsize).view(dtype)

    def outside(self, starts: I64, sizes: I64, *, head: int = 0, tail: int = 0) -> int | None:
        """The first run that does not lie in the file, or None; ``head``, ``tail``: nor may one lie there."""
        self._check_open()
        starts, sizes = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(sizes, np.int64)
        bad = _native.bad_run(starts, sizes, head, self.size - tail)
        return None if bad < 0 else bad

    def gather(self, starts: I64, sizes: I64) -> Ragged:
        """A copy of many runs, one after another; the caller has checked them with :meth:`outside`."""
        self._check_open()
        offsets = starts_of(sizes)
        data = np.empty(offsets[-1], dtype=np.uint8)
        self.gather_into(starts, sizes, data, offsets[:-1])
        return Ragged(data, offsets)

    def gather_rows(self, start: int, stride: int, width: int, rows: I64) -> U8:
        """A copy of rows of one width, row i beginning at ``start + i * stride``: (rows, width)."""
        return self.gather(start + rows * stride, np.full(len(rows), width)).data.reshape(-1, width)

    def gather_into(self, starts: I64, sizes: I64, out: U8, out_starts: I64) -> None:
        """The same, each run to its place in ``out``."""
        self._check_open()
        starts, sizes, out_starts = map(np.ascontiguousarray, (starts, sizes, out_starts))
        self._gather(starts, sizes, out, out_starts)

    def _gather(self, starts: I64, sizes: I64, out: U8, out_starts: I64) -> None:
        raise NotImplementedError

    def gather_checked(
        self, starts: I64, sizes: I64, sums: npt.NDArray[np.uint32], which: I64
    ) -> tuple[Ragged, int]:
        """The same, and the first run i whose CRC-32 (zlib's) is not ``sums[which[i]]``, or -1."""
        found = self.gather(starts, sizes)
        bad = _native.crc32_runs(found.data, found.starts, np.ascontiguousarray(sizes)) != sums[which]
        return found, int(np.argmax(bad)) if bad.any() else -1

    def peek(self, runs: Sequence[tuple[int, int]]) -> bytes:
        """A few runs (start, size), one after another, by someone who needs nothing that lies around them."""
        if len(runs) == 1:
            return self.view(*runs[0]).tobytes()
        for start, size in runs:
            self.check_bounds(start, size)
        starts, sizes = np.array(runs, dtype=np.int64).T
        return self.gather(starts, sizes).data.tobytes()

    def will_need(self, starts: I64, sizes: I64) -> None:
        """These runs will be read one by one: begin to fetch them, all together, where that is of use."""

    def failure(self) -> AccessError | None:
        """Why the last read through :meth:`file` failed, once: libraries make something else of it."""
        found, self._failed = self._failed, None
        return found

    def file(self) -> io.BufferedReader:
        """A file object over the same bytes, for libraries that want one."""
        return io.BufferedReader(_SourceFile(self))

    def close(self) -> None:
        """Let go of the file."""
        self.closed = True


class _SourceFile(io.RawIOBase):
    def __init__(self, source: Source) -> None:
        self._source = source
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._source.size}[whence]
        if base + offset < 0:
            raise OSError("seek before the start of the file")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        size = max(0, min(len(buffer), self._source.size - self._at))
        try:
            buffer[:size] = self._source.view(self._at, size).tobytes() if size else b""
        except AccessError as error:
            self._source._failed = error
            raise
        self._at += size
        return size


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
        fd, facts = open_known(path)
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
            found = self._note_residency(
                _native.gather_runs(self.data, starts, sizes, self._should_check(starts))
            )
            if found is not None:
                return Ragged(*found)
        return super().gather(starts, sizes)

    def gather_rows(self, start: int, stride: int, width: int, rows: I64) -> U8:
        self._check_open()
        if not self.staged and self.can_check_residency(rows):
            rows = np.ascontiguousarray(rows)
            found = self._note_residency(
                _native.gather_strided(self.data, start, stride, width, rows, self._should_check(rows))
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
                _native.gather_runs_crc32(self.data, starts, sizes, sums, which, check)
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

    def _note_residency(self, found: T | None) -> T | None:
        self._was_warm = found is not None
        return found

    def can_check_residency(self, starts: I64) -> bool:
        """Whether Linux says if these runs are in memory, or they are too few for it to matter."""
        return self._residency_known or len(starts) < FETCH_LEAST

    def _warm(self, starts: I64, sizes: I64) -> bool:
        return len(starts) < FETCH_LEAST or (self._residency_known and self._in_memory(starts, sizes))

    def _in_memory(self, starts: I64, sizes: I64) -> bool:
        return _native.resident_fraction(self.data, starts, sizes) == 1

    def _reopen(self) -> int | None:
        """A descriptor of the file; None where the path leads to another one by now, or to none."""
        try:
            fd, facts = open_known(self.path)
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

    def prefixed_sizes(self, starts: I64, sizes: I64, counts: I64) -> tuple[I64, U8]:
        """The sizes of cells that fill runs, so many in each, each behind its size in four bytes.

        The second part: of which runs that is true.
        """
        self._check_open()
        fd = self._reopen()
        if fd is None:
            return np.zeros(int(counts.sum()), np.int64), np.zeros(len(counts), np.uint8)
        try:
            return _native.prefixed_sizes(fd, starts, sizes, counts)
        finally:
            os.close(fd)

    def will_need(self, starts: I64, sizes: I64) -> None:
        """Have the kernel begin to read these runs, all together, where they are not in memory.

        Nothing is waited for. It costs next to nothing where everything is in memory. Missing cells (size -1)
        are passed over.
        """
        self._check_open()
        starts, sizes = np.ascontiguousarray(starts), np.maximum(sizes, 0)
        if not self.in_memory(starts, sizes):
            _native.will_need(self.data, starts, sizes)

    def in_memory(self, starts: I64, sizes: I64) -> bool:
        """Whether these runs are in memory, as far as a few pages tell; False where Linux does not say."""
        return self._residency_known and self._in_memory(starts, sizes)

    def close(self) -> None:
        # The mapping itself lives as long as somebody holds a view of it.
        self.data = np.empty(0, dtype=np.uint8)
        super().close()
