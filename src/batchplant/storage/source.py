"""One file to read from: :class:`Source`."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _native
from ..errors import AccessError, DamagedError, OptionError
from ..schema.columns import I32, I64, U8, AnyArray, Ragged, starts_of

# Of a file object that is read to its end, at a time.
READALL_BYTES = 4 << 20


class LocatedRuns(NamedTuple):
    """Runs of bytes in memory: run i begins at ``start[i]`` of ``arrays[base[i]]``."""

    arrays: list[U8]
    base: I32
    start: I64


class Source:
    """One file to read from, safe from many threads."""

    # What changes when the file does; empty where nothing tells.
    tag = ""
    # True if its bytes come over a network.
    remote = False

    def __init__(self, path: str, size: int) -> None:
        self.path = path
        self._size = size
        self.closed = False
        self._failed: AccessError | None = None

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._size

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

    def array(self, dtype: npt.DTypeLike, start: int, count: int) -> AnyArray:
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
        runs = self.gather(starts, sizes)
        bad = _native.crc32_runs(runs.data, runs.starts, np.ascontiguousarray(sizes)) != sums[which]
        return runs, int(np.argmax(bad)) if bad.any() else -1

    def peek(self, runs: Sequence[tuple[int, int]]) -> bytes:
        """A few runs (start, size), one after another, by someone who needs nothing that lies around them."""
        if len(runs) == 1:
            return self.view(*runs[0]).tobytes()
        for start, size in runs:
            self.check_bounds(start, size)
        starts, sizes = np.array(runs, dtype=np.int64).T
        return self.gather(starts, sizes).data.tobytes()

    def locate(self, starts: I64, sizes: I64) -> LocatedRuns | None:
        """Locate runs in memory, in place if possible, else copied; None if they lie outside of the file."""
        if self.closed or self.outside(starts, sizes) is not None:
            return None
        cells = self.gather(starts, sizes)
        return LocatedRuns([cells.data], np.zeros(len(starts), np.int32), np.ascontiguousarray(cells.starts))

    def resident(self, starts: I64, sizes: I64) -> bool:
        """Return True if reading these runs waits for no disk and no server."""
        return False

    def request(self, starts: I64, sizes: I64, *, thorough: bool = False) -> int:
        """Begin to fetch runs that will be read soon, all together; return the bytes that were missing.

        Nothing is waited for. ``thorough``: look at every run, not at a few, to tell if all are in memory.
        """
        return 0

    def failure(self) -> AccessError | None:
        """Why the last read through :meth:`file` failed, once: libraries make something else of it."""
        failure, self._failed = self._failed, None
        return failure

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
        data = self._next(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        # By default in parts of a few kB, each of which a compressed source would unpack by itself.
        return b"".join(iter(lambda: self._next(READALL_BYTES), b""))

    def _next(self, size: int) -> bytes:
        size = max(0, min(size, self._source.size - self._at))
        try:
            data = self._source.view(self._at, size).tobytes() if size else b""
        except AccessError as error:
            self._source._failed = error
            raise
        self._at += size
        return data
