"""Whole objects: files of an image folder, chunks of an array. Many small ones are fetched in parallel."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

from ...errors import NotFoundError
from ...schema.columns import U8
from .blocks import CHUNK_BYTES, NEVER, NOW
from .client import Entry, Got
from .clients import client_of
from .fetch import fetcher
from .source import RemoteSource

# Number of objects that stay open; more than a batch has.
MAX_OPEN_OBJECTS = 4096


class Objects:
    """Objects of a dataset whose size and ETag a listing has given: opened without a request. Thread-safe.

    The last ones stay open, so that what was prefetched of them is found again.
    """

    def __init__(self) -> None:
        self._recent: OrderedDict[str, RemoteSource] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, url: str, known: Entry) -> RemoteSource:
        """Open an object and keep it open for a while."""
        source = self._open(url, known)
        with self._lock:
            self._recent[str(url)] = source
            self._recent.move_to_end(str(url))
            while len(self._recent) > MAX_OPEN_OBJECTS:
                self._recent.popitem(last=False)
        return source

    def opened(self, url: str) -> RemoteSource | None:
        """Return the source of an object that is open."""
        with self._lock:
            source = self._recent.get(str(url))
        return None if source is None or source.closed else source

    def _open(self, url: str, known: Entry) -> RemoteSource:
        source = self.opened(url)
        # It may be open as it was before it changed.
        return source if source is not None and source.tag == known.tag else RemoteSource(url, known)

    def fetch(self, urls: Sequence[str], entries: Sequence[Entry | None]) -> Iterator[U8 | None]:
        """Yield all bytes of each object, in order; None for a missing one. All are requested at once.

        Objects with an entry of a listing are looked up in the disk cache, too.
        """
        pending: list[RemoteSource | Future[Got]] = []
        for url, entry in zip(urls, entries, strict=True):
            if entry is None:
                client, name = client_of(url)
                pending.append(fetcher().submit(functools.partial(client.get_whole, name), 0, NOW).future)
                continue
            source = self._open(url, entry)
            pool, object = source.blocks
            ranges = [
                (start, min(start + CHUNK_BYTES, entry.size)) for start in range(0, entry.size, CHUNK_BYTES)
            ]
            pool.ask(object, ranges, NEVER, keep=True)
            pending.append(source)
        return _answers(pending)

    def close(self) -> None:
        with self._lock:
            self._recent.clear()


def _answers(pending: list[RemoteSource | Future[Got]]) -> Iterator[U8 | None]:
    for answer in pending:
        try:
            yield answer.result().data if isinstance(answer, Future) else answer.view(0, answer.size)
        except NotFoundError:
            yield None
