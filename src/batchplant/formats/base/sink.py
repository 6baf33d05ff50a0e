"""The file that the library writes to: it never fails.

HDF5 does not survive a write that fails, as on a full disk: the process dies by a signal, there or at its
end. So the sink keeps the error to itself and goes on in memory, until the one who writes asks for it.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# What is larger is data, and not read again.
METADATA = 1 << 16
PAGE = 4096


class Sink(io.RawIOBase):
    """A new file; :meth:`check` raises the error of the first write that failed."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._path = path
        self._position = 0
        self._size = 0
        self._error: BaseException | None = None
        # What came after the error: where, and what.
        self._unwritten: list[tuple[int, bytes]] = []

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
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        view, offset = memoryview(data).cast("B"), self._position
        self._position += len(view)
        self._size = max(self._size, self._position)
        if self._error is None:
            try:
                self._store(view, offset)
                return len(view)
            # Ctrl-C too: the library is not to meet any exception.
            except BaseException as error:
                if isinstance(error, OSError):
                    error.filename = str(self._path)
                self._error = error
        if len(view) <= METADATA:
            self._unwritten.append((self._position - len(view), bytes(view)))
        return len(view)

    def readinto(self, buffer: Any) -> int:
        view, start = memoryview(buffer).cast("B"), self._position
        self._position += len(view)
        try:
            view[:] = self._fetch(len(view), start)
        except BaseException as error:
            self._error = self._error or error
            view[:] = bytes(len(view))
        for offset, data in self._unwritten:
            first, last = max(offset, start), min(offset + len(data), start + len(view))
            if first < last:
                view[first - start : last - start] = data[first - offset : last - offset]
        return len(view)

    def _store(self, view: memoryview, offset: int) -> None:
        while view:
            done = os.pwrite(self._fd, view, offset)
            view, offset = view[done:], offset + done

    def _fetch(self, size: int, start: int) -> bytes:
        return os.pread(self._fd, size, start).ljust(size, b"\0")

    def truncate(self, size: int | None = None) -> int:
        self._size = self._position if size is None else size
        try:
            if self._error is None:
                self._cut(self._size)
        except BaseException as error:
            self._error = error
        return self._size

    def _cut(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def flush(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        if not self.closed:
            os.close(self._fd)
        super().close()


class Overlay(Sink):
    """A file that is there, as if it were written to: what is new lies in another file, the ``tail``.

    What changes among the old bytes, which is metadata and chunks that were not full, is held in memory.
    """

    def __init__(self, path: Path, tail: Path) -> None:
        super().__init__(tail)
        self._old_fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.before = self._size = os.fstat(self._old_fd).st_size
        self._pages: dict[int, bytearray] = {}

    def _store(self, view: memoryview, offset: int) -> None:
        while view and offset < self.before:
            number, inside = divmod(offset, PAGE)
            page = self._page(number, keep=True)
            size = min(len(view), len(page) - inside)
            page[inside : inside + size] = view[:size]
            view, offset = view[size:], offset + size
        super()._store(view, offset - self.before)

    def _page(self, number: int, *, keep: bool = False) -> bytearray:
        page = self._pages.get(number)
        if page is None:
            size = min(PAGE, self.before - number * PAGE)
            page = bytearray(os.pread(self._old_fd, size, number * PAGE).ljust(size, b"\0"))
            if keep:
                self._pages[number] = page
        return page

    def _fetch(self, size: int, start: int) -> bytes:
        parts = []
        old = max(0, min(size, self.before - start))
        if old:
            data = bytearray(os.pread(self._old_fd, old, start).ljust(old, b"\0"))
            for number in range(start // PAGE, -(-(start + old) // PAGE)):
                page = self._pages.get(number)
                if page is not None:
                    first, last = max(start, number * PAGE), min(start + old, number * PAGE + len(page))
                    data[first - start : last - start] = page[first - number * PAGE : last - number * PAGE]
            parts.append(bytes(data))
        if size > old:
            parts.append(super()._fetch(size - old, start + old - self.before))
        return b"".join(parts)

    def _cut(self, size: int) -> None:
        # The library cuts nothing that it has not written, unless it is told to.
        super()._cut(max(0, size - self.before))

    def edits(self) -> Iterator[tuple[int, bytes]]:
        """Changed ranges of the old bytes: offsets and contents."""
        run: list[int] = []
        for number in [*sorted(self._pages), -1]:
            if run and number != run[-1] + 1:
                yield run[0] * PAGE, b"".join(bytes(self._pages[page]) for page in run)
                run = []
            run.append(number)

    def close(self) -> None:
        if not self.closed:
            os.close(self._old_fd)
        super().close()
