"""Whole objects: a folder of images, the chunks of an array. Many small ones are fetched side by side."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

from ...errors import NotFoundError
from ...schema.columns import U8
from .blocks import NEVER, NOW
from .cells import PART
from .client import Entry, Got
from .clients import client_of
from .fetch import fetcher
from .source import RemoteSource, opened

# Objects that stay open for whoever asks for their bytes ahead; more than a batch has.
RECENT = 4096


class Objects:
    """Objects of which a listing told size and ETag, opened without a request. Any thread may ask."""

    def __init__(self) -> None:
        self._recent: OrderedDict[str, RemoteSource] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, url: str, known: Entry) -> RemoteSource:
        """The object, open for a while, so that others find it by its URL."""
        found = _open(url, known)
        with self._lock:
            self._recent[str(url)] = found
            self._recent.move_to_end(str(url))
            while len(self._recent) > RECENT:
                self._recent.popitem(last=False)
        return found

    def close(self) -> None:
        with self._lock:
            self._recent.clear()


def _open(url: str, known: Entry) -> RemoteSource:
    found = opened(url)
    # Somebody may hold it as it was before.
    return found if found is not None and found.tag == known.tag else RemoteSource(url, known)


def fetch_many(urls: Sequence[str], known: Sequence[Entry | None] | None = None) -> Iterator[U8 | None]:
    """All bytes of each object, in order; None where there is none. All are asked for at once.

    ``known``: what a listing told. Such objects are looked for in the cache, too.
    """
    asked: list[RemoteSource | Future[Got]] = []
    for url, one in zip(urls, known or [None] * len(urls), strict=True):
        if one is None:
            client, name = client_of(url)
            asked.append(fetcher().submit(functools.partial(client.get_whole, name), 0, NOW).future)
            continue
        source = _open(url, one)
        pool, object = source.blocks
        ranges = [(start, min(start + PART, one.size)) for start in range(0, one.size, PART)]
        pool.ask(object, ranges, NEVER, keep=True)
        asked.append(source)
    return _answers(asked)


def _answers(asked: list[RemoteSource | Future[Got]]) -> Iterator[U8 | None]:
    for one in asked:
        try:
            yield one.result().data if isinstance(one, Future) else one.view(0, one.size)
        except NotFoundError:
            yield None
