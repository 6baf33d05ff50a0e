"""The file that the library writes to: it never fails.

HDF5 does not survive a write that fails, as on a full disk: the process dies by a signal, there or at its
end. So the sink keeps the error to itself and goes on in memory, until the one who writes asks for it.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

# What is larger is data, and not read again.
METADATA = 1 << 16


class Sink(io.RawIOBase):
    """A new file; :meth:`check` raises the error of the first write that failed."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._path = path
        self._at = 0
        self._size = 0
        self._error: BaseException | None = None
        # What came after the error: where, and what.
        self._lost: list[tuple[int, bytes]] = []

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        view, at = memoryview(data).cast("B"), self._at
        self._at += len(view)
        self._size = max(self._size, self._at)
        if self._error is None:
            try:
                rest = view
                while rest:
                    done = os.pwrite(self._fd, rest, at)
                    rest, at = rest[done:], at + done
                return len(view)
            # Ctrl-C too: the library is not to meet any exception.
            except BaseException as error:
                if isinstance(error, OSError):
                    error.filename = str(self._path)
                self._error = error
        if len(view) <= METADATA:
            self._lost.append((self._at - len(view), bytes(view)))
        return len(view)

    def readinto(self, buffer: Any) -> int:
        view, start = memoryview(buffer).cast("B"), self._at
        self._at += len(view)
        try:
            view[:] = os.pread(self._fd, len(view), start).ljust(len(view), b"\0")
        except BaseException as error:
            self._error = self._error or error
            view[:] = bytes(len(view))
        for at, data in self._lost:
            first, last = max(at, start), min(at + len(data), start + len(view))
            if first < last:
                view[first - start : last - start] = data[first - at : last - at]
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        self._size = self._at if size is None else size
        try:
            if self._error is None:
                os.ftruncate(self._fd, self._size)
        except BaseException as error:
            self._error = error
        return self._size

    def flush(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        if not self.closed:
            os.close(self._fd)
        super().close()
