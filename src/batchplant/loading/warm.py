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
from ..storage import RemoteSource, is_remote, open_source
from ..storage.remote import fetcher, opened
from ..storage.remote.blocks import CHUNK_BYTES, Loaded

# Samples whose places are asked for at a time, and blocks that are waited for.
STEP = 1 << 16
AT_A_TIME = 32


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
    numbers = _cells(reader)
    sources = {path: _source(path) for path in numbers}
    cells = [(sources[path], one) for path, found in numbers.items() for one in sorted(found)]
    made = Warmed(objects=len(sources))
    _check_room(cells)
    waiting: deque[tuple[int, Future[Loaded] | None]] = deque()

    def take() -> None:
        size, future = waiting.popleft()
        if future is None or future.result().mapped:
            made.blocks += 1
            made.bytes += size
        made.fetched += 0 if future is None else size

    for number, (source, cell) in enumerate(cells):
        object = source.blocks[1]
        start, end = object.chunk(cell)
        future = None
        if object.disk is None or object.disk.get(object.key, start, end - start) is None:
            load = functools.partial(object.load, start, end)
            future = fetcher().submit(load, end - start, float(number)).future
        waiting.append((end - start, future))
        if len(waiting) >= AT_A_TIME:
            take()
        report(number + 1 - len(waiting), len(cells))
    while waiting:
        take()
        report(len(cells) - len(waiting), len(cells))
    return made


def _cells(reader: Reader) -> dict[str, set[int]]:
    """Of every object that is read, the parts that are needed: a Loader divides them alike."""
    found: dict[str, set[int]] = {}
    for begin in range(0, len(reader), STEP):
        spans = reader.ranges(None, np.arange(begin, min(begin + STEP, len(reader))))
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
            if is_remote(spans.files[file]):
                found.setdefault(spans.files[file], set()).update(range(low, high + 1))
    if not found:
        raise OptionError("nothing of this is remote", path=reader.path)
    return found


def _source(path: str) -> RemoteSource:
    source = opened(path) or open_source(path)
    assert isinstance(source, RemoteSource)
    if source.blocks[1].disk is None:
        raise OptionError(
            "it has no cache: none is named, or the server tells no ETag, without which changes go unseen",
            path=path,
        )
    return source


def _check_room(cells: list[tuple[RemoteSource, int]]) -> None:
    """What does not fit would push itself out again."""
    disk = cells[0][0].blocks[1].disk
    assert disk is not None
    need = sum(disk.space.cost(min(CHUNK_BYTES, source.size - cell * CHUNK_BYTES)) for source, cell in cells)
    if need > disk.limit:
        raise OptionError(
            f"the dataset needs {need:,} bytes of the cache, which may hold {disk.limit:,}; raise its limit "
            "(cache_bytes)",
            path=disk.folder,
        )
