"""Held: a file object over a source of which some runs are here already, and are not fetched again."""

from __future__ import annotations

import io
import os
from typing import Any

from ....schema.columns import I64, U8
from ....storage import Source, plan_ranges


class Held(io.RawIOBase):
    """Reads the runs that it was given, and the source where it was given none."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._runs: list[tuple[int, U8]] = []
        self._at = 0

    def fetch(self, starts: I64, sizes: I64, *, ahead: bool = True) -> None:
        """Get these runs, those that lie side by side together; ``ahead``: what follows may be wanted."""
        self._source.will_need(starts, sizes)
        for first, end in plan_ranges(starts, sizes)[0]:
            get = self._source.view if ahead else self._source.only
            self._runs.append((first, get(first, end - first)))

    def view(self, start: int, size: int) -> U8:
        """Bytes that were fetched, or are now."""
        for first, data in self._runs:
            if first <= start and start + size <= first + len(data):
                return data[start - first :][:size]
        return self._source.view(start, size)

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
        buffer[:size] = self.view(self._at, size).data
        self._at += size
        return size
