"""FetchedFile: a file object over a source some ranges of which were fetched already."""

from __future__ import annotations

import io
import os
from typing import Any

from ....schema.columns import I64, U8
from ....storage import Source, plan_ranges


class FetchedFile(io.RawIOBase):
    """Serves reads from fetched ranges, and from the source outside of them."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._runs: list[tuple[int, U8]] = []
        self._position = 0

    def fetch(self, starts: I64, sizes: I64, *, ahead: bool = True) -> None:
        """Fetch ranges, neighbours together; ``ahead``: bytes behind them may be needed next."""
        self._source.request(starts, sizes)
        for first, end in plan_ranges(starts, sizes)[0]:
            get = self._source.view if ahead else self._source.only
            self._runs.append((first, get(first, end - first)))

    def view(self, start: int, size: int) -> U8:
        """Return bytes, fetched if necessary."""
        for first, data in self._runs:
            if first <= start and start + size <= first + len(data):
                return data[start - first :][:size]
        return self._source.view(start, size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = (
            offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._source.size}[whence]
        )
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        size = max(0, min(len(buffer), self._source.size - self._position))
        if not size:
            return 0
        buffer[:size] = self.view(self._position, size).data
        self._position += size
        return size
