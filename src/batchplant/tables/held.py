"""Held: a file object over a source of which some runs are here already, and are not fetched again."""

from __future__ import annotations

import io
import os
from typing import Any

from ..columns import U8
from ..storage import Source


class Held(io.RawIOBase):
    """Reads the runs that it was given, and the source where it was given none."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._runs: list[tuple[int, U8]] = []
        self._at = 0

    def keep(self, start: int, data: U8) -> None:
        """These bytes of the source, from ``start`` on."""
        self._runs.append((start, data))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._source.size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        size = max(0, min(len(buffer), self._source.size - self._at))
        if not size:
            return 0
        for start, data in self._runs:
            if start <= self._at and self._at + size <= start + len(data):
                buffer[:size] = data[self._at - start :][:size].data
                break
        else:
            buffer[:size] = self._source.view(self._at, size).data
        self._at += size
        return size
