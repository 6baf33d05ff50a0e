"""Bytes in memory as a file that libraries read. Other than io.BytesIO it needs no copy of them."""

from __future__ import annotations

import io
from typing import Any


class Memory(io.RawIOBase):
    """A read-only file over bytes.

    Seeking out of bounds stops at the bounds: an exception would have to pass through the library's C code.
    """

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        chunk = self._data[self._at : self._at + len(target)]
        target[: len(chunk)] = chunk
        self._at += len(chunk)
        return len(chunk)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = (0, self._at, len(self._data))[whence]
        self._at = min(max(0, base + offset), len(self._data))
        return self._at
