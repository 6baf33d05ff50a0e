"""Fill the cache of remote data before it is needed, with the blocks that a Loader will ask for."""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np

from ..data.reader import Reader
from ..errors import OptionError
from ..storage import RemoteSource, Source, open_source
from ..storage.remote import fetcher
from ..storage.remote.blocks import CHUNK_BYTES, Loaded

# Samples that are looked up at a time, and chunks that are in flight.
LOOKUP_SAMPLES = 1 << 16
MAX_IN_FLIGHT = 32


@dataclasses.dataclass
class Warmed:
    """What a cache holds of a dataset now; ``fetched``: bytes that were not there before."""

    objects: int = 0
    blocks: int = 0
    bytes: int = 0
    fetched: int = 0


def warm(reader: Reader, report: Callable[[int, int], None] = lambda done, total: None) -> Warmed:
    """Fetch all that reading a dataset takes into the cache that the options of its URLs name.

    ``report(done, total)`` hears of every block.
    """
    numbers = _needed_chunks(reader)
    sources = {path: _open(source) for path, (source, _) in numbers.items()}
    chunks = [(sources[path], chunk) for path, (_, needed) in numbers.items() for chunk in sorted(needed)]
    warmed = Warmed(objects=len(sources))
    _check_room(chunks)
    waiting: deque[tuple[int, Future[Loaded] | None]] = deque()

    def finish_first() -> None:
        size, future = waiting.popleft()
        if future is None or future.result().mapped:
            warmed.blocks += 1
            warmed.bytes += size
        warmed.fetched += 0 if future is None else size

    for number, (source, chunk) in enumerate(chunks):
        object = source.blocks[1]
        start, end = object.chunk(chunk)
        future = None
        if object.disk is None or object.disk.get(object.key, start, end - start) is None:
            load = functools.partial(object.load, start, end)
            future = fetcher().submit(load, end - start, float(number)).future
        waiting.append((end - start, future))
        if len(waiting) >= MAX_IN_FLIGHT:
            finish_first()
        report(number + 1 - len(waiting), len(chunks))
    while waiting:
        finish_first()
        report(len(chunks) - len(waiting), len(chunks))
    return warmed


def _needed_chunks(reader: Reader) -> dict[str, tuple[Source, set[int]]]:
    """Return the source of every object that is read, and the chunks of it that are needed, by path."""
    needed: dict[str, tuple[Source, set[int]]] = {}
    for begin in range(0, len(reader), LOOKUP_SAMPLES):
        spans = reader.ranges(None, np.arange(begin, min(begin + LOOKUP_SAMPLES, len(reader))))
        if spans is None:
            raise OptionError(
                "this format does not tell beforehand which bytes its samples take",
                path=reader.path,
            )
        some = spans.size > 0
        first, last = (
            spans.start[some] // CHUNK_BYTES,
            (spans.start[some] + spans.size[some] - 1) // CHUNK_BYTES,
        )
        runs = np.unique(np.stack([spans.file[some].astype(np.int64), first, last]), axis=1)
        for file, low, high in runs.T.tolist():
            source = spans.sources[file]
            if source.remote:
                needed.setdefault(source.path, (source, set()))[1].update(range(low, high + 1))
    if not needed:
        raise OptionError("nothing of this is remote", path=reader.path)
    return needed


def _open(source: Source) -> RemoteSource:
    if not isinstance(source, RemoteSource) or source.closed:
        source = open_source(source.path)
    assert isinstance(source, RemoteSource)
    if source.blocks[1].disk is None:
        raise OptionError(
            "it has no cache: none is named, or the server tells no ETag, without which changes go unseen",
            path=source.path,
        )
    return source


def _check_room(chunks: list[tuple[RemoteSource, int]]) -> None:
    """Raise OptionError if chunks would evict each other."""
    disk = chunks[0][0].blocks[1].disk
    assert disk is not None
    sizes = (min(CHUNK_BYTES, source.size - chunk * CHUNK_BYTES) for source, chunk in chunks)
    need = sum(disk.space.cost(size) for size in sizes)
    if need > disk.limit:
        raise OptionError(
            f"the dataset needs {need:,} bytes of the cache, which may hold {disk.limit:,}; raise its limit "
            "(cache_bytes)",
            path=disk.folder,
        )
