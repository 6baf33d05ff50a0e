"""Prefetching: the bytes of batches to come, requested before threads make those batches.

An order is a pure function, so the samples of the next batches are known, and readers know where their bytes
lie. :func:`make_prefetcher` looks at the sources of those bytes: local files are read ahead (local.py),
objects on servers are fetched ahead (remote.py), each within a byte budget of its own (base.py). Caches of
decoded chunks learn which ones the next batches need (base.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ... import order as orders
from ...errors import BatchplantError
from ...schema.columns import I64
from ..executor import Executor
from .base import CachePlanner, Prefetcher, PrefetchTuning, distinct_runs, epoch_bytes
from .local import make_local_prefetcher
from .remote import RemotePrefetcher

__all__ = ["PrefetchTuning", "Prefetcher", "distinct_runs", "make_prefetcher"]


def make_prefetcher(
    executor: Executor,
    indices: I64 | None,
    shard: orders.Batches,
    *,
    page_cache: bool | None = None,
    next_shard: Callable[[], orders.Batches | None] | None = None,
    tuning: PrefetchTuning | None = None,
) -> Prefetcher | None:
    """Make the prefetcher of an epoch; None if the reader cannot tell what samples take.

    ``page_cache``: False to read local files past it, None to do so if the dataset is larger than memory.
    ``next_shard``: returns the shard of the epoch after this one.
    """
    tuning = tuning or PrefetchTuning()
    reader, fields = executor.reader, executor.plan.fields
    if not shard.has(0) or not fields:
        return None
    try:
        first = shard.batch(0)
        first = first if indices is None else indices[first]
        spans = reader.ranges(fields, first[:1])
        remote = {source.remote for source in spans.sources} if spans is not None else set()
        parts: list[Prefetcher] = []
        if reader._layout().chunk_keys(fields, first[:1]):
            parts.append(CachePlanner(reader, fields, shard, indices, tuning))
        if False in remote:
            parts.append(make_local_prefetcher(executor, indices, shard, first, page_cache, tuning))
    # The batch that meets the same error reports it.
    except BatchplantError:
        return None
    if True in remote:
        parts.append(
            RemotePrefetcher(
                shard,
                executor.ranges,
                lambda: epoch_bytes(reader, fields),
                indices=indices,
                samples=len(reader),
                next_shard=next_shard,
                tuning=tuning,
            )
        )
    return parts[0] if len(parts) == 1 else _Combined(parts) if parts else None


class _Combined(Prefetcher):
    """Prefetchers of data that is partly local and partly remote."""

    def __init__(self, parts: Sequence[Prefetcher]) -> None:
        self._parts = parts

    def start(self) -> None:
        for part in self._parts:
            part.start()

    def wait(self, number: int) -> None:
        for part in self._parts:
            part.wait(number)

    def done(self, number: int) -> None:
        for part in self._parts:
            part.done(number)

    def close(self) -> None:
        for part in self._parts:
            part.close()
