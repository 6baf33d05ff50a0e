"""Bytes of one object on a server: from the cache on disk, or by a request.

On disk lie whole cells of 8 MiB, cut alike in all processes, whatever range of them is asked for.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np

from ...errors import AccessError, NotFoundError
from ...schema.columns import U8
from .client import BeyondError, Client, TransientError
from .disk import DiskCache
from .fetch import STALLED_LEAST

PART = 8 << 20
CHANGED = "it changed since it was opened; open it again"

Range = tuple[int, int]


class Loaded(NamedTuple):
    """Bytes, and whether they lie in a file of the cache and not in memory."""

    data: U8
    mapped: bool


class Cells:
    """An object on a server as it was when it was opened."""

    def __init__(
        self, client: Client, name: str, url: str, size: int, tag: str, disk: DiskCache | None, key: str
    ) -> None:
        self.client, self.name, self.url, self.size, self.tag = client, name, url, size, tag
        self.disk, self.key = disk, key
        # Cells that a plan wants on disk, and those that are on their way there.
        self.kept: set[int] = set()
        self._under_way: dict[int, Future[Loaded]] = {}
        self._lock = threading.Lock()

    def load(self, start: int, end: int) -> Loaded:
        """The bytes from the disk or the server; checked to be of the object that was opened."""
        parts: list[Loaded] = []
        for number in range(start // PART, -(-end // PART)) if self.disk is not None else ():
            low, high = self.cell(number)
            found = self._load_cell(number, fetch=number in self.kept or start <= low < high <= end)
            if found is None:
                break
            part = found.data[max(start - low, 0) : end - low]
            # A small part would hold the memory of all.
            is_alone = found.mapped or len(part) == high - low
            parts.append(Loaded(part if is_alone else part.copy(), found.mapped))
        else:
            if len(parts) == 1:
                return parts[0]
            if parts:
                return Loaded(np.concatenate([one.data for one in parts]), False)
        return Loaded(self.fetch(start, end), False)

    def cell(self, number: int) -> Range:
        """From where to where a cell goes."""
        return number * PART, min((number + 1) * PART, self.size)

    def _load_cell(self, number: int, *, fetch: bool) -> Loaded | None:
        """A cell from the disk; where it is not there, it is fetched and put there, or None."""
        assert self.disk is not None
        low, high = self.cell(number)
        found = self.disk.get(self.key, low, high - low)
        if found is not None or not fetch:
            return None if found is None else Loaded(found, True)
        with self._lock:
            waited, mine = self._under_way.get(number), Future[Loaded]()
            if waited is None:
                self._under_way[number] = mine
        if waited is not None:
            # Not for long: whoever asks a second time does so because the first request stalls.
            with contextlib.suppress(TimeoutError):
                return waited.result(STALLED_LEAST)
        try:
            data = self.fetch(low, high)
            self.disk.put(self.key, low, data)
            found = self.disk.get(self.key, low, high - low)
            # There may be no room on the disk.
            mine.set_result(Loaded(data, False) if found is None else Loaded(found, True))
        except BaseException as error:
            mine.set_exception(error)
        finally:
            with self._lock:
                if self._under_way.get(number) is mine:
                    del self._under_way[number]
        return mine.result()

    def fetch(self, start: int, end: int) -> U8:
        """One request."""
        try:
            got = self.client.get(self.name, start, end)
        except NotFoundError:
            raise AccessError("it is not there any more", path=self.url, offset=start) from None
        except BeyondError:
            raise AccessError(CHANGED, path=self.url, offset=start) from None
        except AccessError as error:
            error.message += f" (bytes {start} to {end - 1})"
            raise
        # A driver of fsspec tells nothing.
        told = got.size >= 0
        if told and (got.size != self.size or (self.tag and got.tag and got.tag != self.tag)):
            raise AccessError(CHANGED, path=self.url, offset=start)
        if len(got.data) != end - start:
            message = f"{len(got.data)} of {end - start} bytes came"
            short = TransientError(message, path=self.url, offset=start)
            short.outage = self.client.outage
            raise short
        return got.data
