"""The interface of prefetchers, their tuning, the planner of caches, and estimates of what an epoch reads."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence

import numpy as np

from ... import order as orders
from ...data.reader import Reader
from ...schema.columns import I64
from ...storage.cache import ChunkCache

# Runs of consecutive samples that an estimate looks at, and the length of each.
PROBES, PROBE_SAMPLES = 8, 1024


@dataclasses.dataclass(frozen=True)
class PrefetchTuning:
    """Numbers that decide how far prefetchers run ahead."""

    # Bytes of local files that are read before they are used, at most; always for so many batches.
    local_bytes: int = 64 << 20
    local_batches: int = 2
    # However small batches are, no farther ahead.
    max_local_batches: int = 64
    # Larger reads for one batch are left to its reader: the format reads far more than the batch needs.
    max_local_read_bytes: int = 256 << 20
    # Threads that read, each a batch: one waits for the end of its batch while another begins the next.
    local_threads: int = 2
    # If a run of bytes holds cells of more samples of a batch than this, all of it is read.
    min_cells_per_run: int = 4
    # Such runs are read past the page cache if they take less than this fraction of the memory: two or three
    # sets of them may be held at once.
    max_shared_fraction: float = 1 / 6
    # A dataset that takes more than this fraction of the memory does not stay in the page cache.
    max_cached_fraction: float = 0.75
    # After so many resident batches in a row, only one of so many is looked at.
    resident_batches: int = 4
    resident_check_interval: int = 16

    # Bytes of remote objects that are requested before they are used, at least, and for how many batches;
    # more if many requests are in flight.
    remote_bytes: int = 128 << 20
    remote_batches: int = 4
    # Batches whose bytes are looked up in advance, at most.
    max_remote_batches: int = 1000
    # A chunk of which at least this fraction is needed is fetched whole.
    min_chunk_fraction: float = 0.5
    # A dataset that fits in memory is fetched in whole chunks if an epoch needs at least this fraction of it.
    min_dataset_fraction: float = 0.9
    # A block of which less than this fraction is still needed is dropped, unless it is needed within so many
    # batches.
    min_kept_fraction: float = 0.1
    kept_batches: int = 8
    # The samples of the first batch are fetched separately if their chunks have at least so many bytes, and
    # the samples are no more than this fraction of the epoch.
    min_separate_bytes: int = 32 << 20
    max_separate_fraction: float = 0.03
    # Batches whose decoded chunks are announced to their cache, at most, and chunks of all of them.
    max_announced_batches: int = 64
    max_announced_chunks: int = 100_000
    # Datasets of more samples are not searched for what the next epoch needs first.
    max_planned_samples: int = 5_000_000


class Prefetcher:
    """Prefetches the bytes of the batches of an epoch, in their order, as far ahead as its budget allows.

    ``wait(number)`` is called before a batch is made, ``done(number)`` after it; ``close`` ends the threads.
    """

    def start(self) -> None:
        raise NotImplementedError

    def wait(self, number: int) -> None:
        """Block until a batch was prefetched, or at least requested."""
        raise NotImplementedError

    def done(self, number: int) -> None:
        """Release the bytes that only this batch needed."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class CachePlanner(Prefetcher):
    """Lets caches evict the chunk that is needed last, since the order of samples is known."""

    def __init__(
        self,
        reader: Reader,
        fields: Sequence[str],
        shard: orders.Batches,
        indices: I64 | None,
        tuning: PrefetchTuning,
    ) -> None:
        self._reader, self._fields, self._shard, self._indices = reader, fields, shard, indices
        self._tuning = tuning
        self._caches: dict[int, ChunkCache] = {}
        # Numbers of the chunks of batches that are announced and not yet reached.
        self._announced: deque[int] = deque()
        self._next = 0

    def start(self) -> None:
        pass

    def wait(self, number: int) -> None:
        while self._announced and self._next - len(self._announced) <= number:
            self._announced.popleft()
        # A resumed epoch begins anywhere.
        self._next = max(self._next, number + 1)
        while len(self._announced) < self._tuning.max_announced_batches and self._shard.has(self._next):
            if sum(self._announced) > self._tuning.max_announced_chunks:
                break
            samples = self._shard.batch(self._next)
            samples = samples if self._indices is None else self._indices[samples]
            chunks = 0
            for cache, keys in self._reader._layout().chunk_keys(self._fields, samples):
                self._caches[id(cache)] = cache
                cache.expect(self._next, keys)
                chunks += len(keys)
            self._announced.append(chunks)
            self._next += 1
        for cache in self._caches.values():
            cache.reach(number)

    def done(self, number: int) -> None:
        pass

    def close(self) -> None:
        for cache in self._caches.values():
            cache.reach(None)


def epoch_bytes(reader: Reader, fields: Sequence[str]) -> int:
    """Estimate how many bytes an epoch reads."""
    stored_bytes = reader._layout().stored_bytes(fields)
    return distinct_runs(reader, fields)[1] if stored_bytes is None else stored_bytes


def distinct_runs(reader: Reader, fields: Sequence[str]) -> tuple[int, int]:
    """Estimate how many runs and bytes an epoch reads; a chunk that many samples share counts once."""
    length = min(len(reader), PROBE_SAMPLES)
    if not length:
        return 0, 0
    starts: I64 = np.unique(np.linspace(0, len(reader) - length, PROBES).astype(np.int64))
    if len(starts) * length >= len(reader):
        starts, length = np.zeros(1, dtype=np.int64), len(reader)
    count = total = 0
    for start in starts.tolist():
        spans = reader.ranges(fields, np.arange(start, start + length))
        if spans is None:
            return 0, 0
        runs = np.unique(np.stack([spans.file.astype(np.int64), spans.start, spans.size.clip(0)]), axis=1)
        count, total = count + runs.shape[1], total + int(runs[2].sum())
    share = len(reader) / (len(starts) * length)
    return round(count * share), round(total * share)
