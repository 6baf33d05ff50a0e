"""Diagnosis of a loader: where its time goes, its network traffic, and advice to make it faster."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np

from .. import order as orders
from ..data.reader import Reader
from ..errors import BatchplantError
from ..storage import is_remote, platform
from ..storage.cache import DEFAULT_MAX_BYTES
from ..storage.remote import RANGE_GAP, PooledSource, fetcher, totals
from ..storage.remote.blocks import CHUNK_BYTES
from .epoch import EpochTotals
from .plan import Plan
from .prefetch import distinct_runs
from .service.client import SCHEME

ADVICE = {
    "step": "the loop itself takes longer than loading; nothing to gain here",
    "storage": "reading takes longest: use quasi_random order, a faster disk, or smaller images",
    "decode": "decoding takes longest: more workers, smaller images (convert --max-resolution), or "
    'cache="decoded"',
    "transforms": "the ops behind the decoder take longest: fewer of them, or do them on the device",
    "servers": "the servers take longest: start more of them, as many as `to keep up` says",
    "device": "copying to the device takes longest: send uint8 and normalise there",
}

# Samples share chunks where there are fewer runs of bytes than this fraction of the samples.
SHARED_CHUNKS_FRACTION = 0.5
# Requests of a random order for each sample: slope and offset over the fraction of the bytes that memory has
# no room for, and their maximum. Simulations agree within 15 %.
MISS_SLOPE, MISS_OFFSET, MAX_MISS_FRACTION = 1.1, 0.05, 0.97
ORDER_CLASSES = {"quasi_random": "order=bp.order.QuasiRandom", "shards": "order=bp.order.Shards"}
# Requests of quasi_random for each chunk, about, where two windows fit into memory.
QUASI_RANDOM_REQUESTS = 5
# Samples whose stored size is looked up.
SIZED_SAMPLES = 256


def advise(parts: dict[str, float], waited: float, stepped: float) -> tuple[str, str]:
    """Return the part that takes longest, or "step", and what to do about it."""
    total = waited + stepped
    bottleneck = "step" if total == 0 or waited < 0.05 * total else max(parts, key=lambda name: parts[name])
    return bottleneck, ADVICE[bottleneck]


def keep_up(
    totals: EpochTotals, busy: float, sample_bytes: float | None, servers: int | None = None
) -> dict[str, float | None]:
    """Return what it takes to make batches as fast as the loop's steps use them; empty before the first step.

    busy: seconds of CPU of this machine for all batches so far. sample_bytes: average size of a sample as it
    is stored. servers: how many would make the rest, where servers do.
    """
    if totals.stepped <= 0:
        return {}
    cores = busy / totals.stepped
    return {
        **({} if servers is None else {"servers": servers}),
        "samples/s": totals.samples / totals.stepped,
        "cores": cores,
        "machines like this": math.ceil(cores / platform.cpu_count()),
        "decoded MB/s": totals.bytes / totals.stepped / 1e6,
        "stored MB/s": None if sample_bytes is None else totals.samples * sample_bytes / totals.stepped / 1e6,
    }


def stored_bytes(reader: Reader, fields: Sequence[str]) -> float | None:
    """Return the average size of a sample's cells in files, from a few samples; None if it is unknown."""
    rows = np.unique(np.linspace(0, len(reader) - 1, min(SIZED_SAMPLES, len(reader))).astype(np.int64))
    try:
        spans = reader.ranges(fields, rows)
    except BatchplantError:
        return None
    return None if spans is None or not len(rows) else float(spans.size.sum()) / len(rows)


def warn_of_obstacles(plan: Plan, decode: str) -> None:
    """Warn of steps that keep images, or the steps after them, from the device."""
    outputs = [output for output in plan.images if output.obstacle]
    if any(output.on_device for output in outputs) or (outputs and not plan.on_device):
        obstacles = "; ".join(f"{output.name}: {output.obstacle}" for output in outputs)
        warnings.warn(
            f"decode={decode!r}: {obstacles} (print(loader.plan) shows what runs where)", stacklevel=3
        )


class Traffic:
    """Network traffic since a loader was made, of all readers of the process."""

    def __init__(self, reader: Reader, fields: Sequence[str]) -> None:
        self._reader, self._fields = reader, fields
        # Servers of batches read near the data.
        self._remote = is_remote(reader.path) and not reader.path.startswith(SCHEME)
        self._before = self._counts()
        self._warned = False

    def _counts(self) -> dict[str, int]:
        if not self._remote:
            return {}
        counts, (requests, size) = fetcher().counts, totals()
        return {
            "requests": requests, "bytes fetched": size, "retries": counts.retries,
            "hedged requests": counts.hedges,
        }  # fmt: skip

    def stats(self) -> dict[str, int]:
        """Return requests, bytes and retries; empty where everything is local."""
        return {name: value - self._before[name] for name, value in self._counts().items()}

    def warn(self, order: orders.OrderParts, world_size: int, batch_size: int) -> None:
        """Warn once of an order that asks a server for every sample, or for blocks on every rank."""
        if self._warned or not self._remote or order.name not in ("random", *orders.BY_BLOCKS):
            return
        self._warned = True
        if order.name in orders.BY_BLOCKS:
            if world_size > 1 and "lanes" not in order.options:
                warnings.warn(
                    f"each of {world_size} ranks needs a part of every block: more bytes, or many small "
                    f"requests; {ORDER_CLASSES[order.name]}(lanes={world_size}) gives each its own",
                    stacklevel=5,
                )
            return
        runs, size = distinct_runs(self._reader, self._fields)
        room = self._room(size)
        samples = len(self._reader)
        if runs < SHARED_CHUNKS_FRACTION * samples:
            # Readers keep chunks that several samples share, unpacked.
            room += DEFAULT_MAX_BYTES
        if size <= room:
            return
        chunks = -(-size // CHUNK_BYTES)
        missed = min(MAX_MISS_FRACTION, MISS_SLOPE * (1 - room / size) + MISS_OFFSET)
        requests = round(_requests(samples, size, batch_size, missed))
        warnings.warn(
            f"order 'random' over a server: about {requests:,} requests for {size / 1e9:,.1f} GB an epoch, "
            f"as only {room / 1e9:,.1f} GB of it can be kept; 'quasi_random' makes about "
            f"{QUASI_RANDOM_REQUESTS * chunks:,}, and "
            f"'random' with a cache for all of it (cache=, cache_bytes=) {chunks:,}, once",
            stacklevel=5,
        )

    def _room(self, size: int) -> int:
        """Return how many bytes of a dataset of ``size`` bytes memory or the disk cache keeps."""
        spans = self._reader.ranges(self._fields, [0]) if len(self._reader) else None
        source = None if spans is None else spans.sources[0]
        if not isinstance(source, PooledSource):
            return 0
        source.reserve(size)
        return max(source.pool_bytes, source.cache_bytes or 0)


def _requests(samples: int, size: int, batch_size: int, missed: float) -> float:
    """Estimate the requests for all samples of random batches: close samples of a batch share one.

    missed: the fraction of samples that memory does not have. A request that several share is saved less
    often.
    """
    chunks = max(1.0, size / CHUNK_BYTES)
    touched = chunks * (1 - math.exp(-batch_size / chunks))
    alone = math.exp(-RANGE_GAP * batch_size / max(1, size))
    batch_requests = alone * missed * batch_size + (1 - alone) * (1 + missed) / 2 * touched
    return samples / batch_size * batch_requests
