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
from .source import RemoteSource, opened

# Number of objects that stay open so that a prefetch finds them by URL; more than a batch has.
MAX_OPEN_OBJECTS = 4096


class Objects:
    """Opens objects whose size and ETag a listing has given, without a request. Thread-safe."""

    def __init__(self) -> None:
        self._recent: OrderedDict[str, RemoteSource] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, url: str, known: Entry) -> RemoteSource:
        """Open an object and keep it open for a while, so that others find it by its URL."""
        source = _open(url, known)
        with self._lock:
            self._recent[str(url)] = source
            self._recent.move_to_end(str(url))
            while len(self._recent) > MAX_OPEN_OBJECTS:
                self._recent.popitem(last=False)
        return source

    def close(self) -> None:
        with self._lock:
            self._recent.clear()


def _open(url: str, known: Entry) -> RemoteSource:
    source = opened(url)
    # It may be open as it was before it changed.
    return source if source is not None and source.tag == known.tag else RemoteSource(url, known)


def fetch_many(urls: Sequence[str], entries: Sequence[Entry | None] | None = None) -> Iterator[U8 | None]:
    """Yield all bytes of each object, in order; None for a missing one. All are requested at once.

    ``entries``: their entries in a listing. Such objects are looked up in the disk cache, too.
    """
    pending: list[RemoteSource | Future[Got]] = []
    for url, entry in zip(urls, entries or [None] * len(urls), strict=True):
        if entry is None:
            client, name = client_of(url)
            pending.append(fetcher().submit(functools.partial(client.get_whole, name), 0, NOW).future)
            continue
        source = _open(url, entry)
        pool, object = source.blocks
        ranges = [
            (start, min(start + CHUNK_BYTES, entry.size)) for start in range(0, entry.size, CHUNK_BYTES)
        ]
        pool.ask(object, ranges, NEVER, keep=True)
        pending.append(source)
    return _answers(pending)


def _answers(pending: list[RemoteSource | Future[Got]]) -> Iterator[U8 | None]:
    for answer in pending:
        try:
            yield answer.result().data if isinstance(answer, Future) else answer.view(0, answer.size)
        except NotFoundError:
            yield None
