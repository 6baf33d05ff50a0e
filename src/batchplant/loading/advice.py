"""What a loader says about itself: where the time goes, what comes over the network, and what would help."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

from .. import order as orders
from ..data.reader import Reader
from ..storage import is_remote
from ..storage.cache import DEFAULT_MAX_BYTES
from ..storage.remote import RANGE_GAP, fetcher, opened, totals
from ..storage.remote.blocks import CHUNK_BYTES
from .plan import Plan
from .prefetch import distinct_runs

ADVICE = {
    "step": "the loop itself takes longer than loading; nothing to gain here",
    "storage": "reading takes longest: use quasi_random order, a faster disk, or smaller images",
    "decode": "decoding takes longest: more workers, smaller images (convert --max-resolution), or "
    'cache="decoded"',
    "transforms": "the ops behind the decoder take longest: fewer of them, or do them on the device",
    "device": "copying to the device takes longest: send uint8 and normalise there",
}

# Samples share chunks where there are fewer runs of bytes than this share of the samples.
SHARED = 0.5
# Requests of a random order for each sample, by the share of the bytes that memory has no room for; measured
# by simulations of a sample's own bytes, within 15 %.
ALONE, MISSED, MISSED_LEAST = 0.97, 1.1, 0.05
ORDER_CLASSES = {"quasi_random": "order=bp.order.QuasiRandom", "shards": "order=bp.order.Shards"}
# In which quasi_random fetches a cell, about, where two windows fit into memory.
PIECES = 5


def advise(parts: dict[str, float], waited: float, stepped: float) -> tuple[str, str]:
    total = waited + stepped
    what = "step" if total == 0 or waited < 0.05 * total else max(parts, key=lambda name: parts[name])
    return what, ADVICE[what]


def warn_of_obstacles(plan: Plan, decode: str) -> None:
    """Say which steps keep images, or what follows them, from the device."""
    found = [one for one in plan.images if one.obstacle]
    if any(one.on_device for one in found) or (found and not plan.on_device):
        said = "; ".join(f"{one.name}: {one.obstacle}" for one in found)
        warnings.warn(f"decode={decode!r}: {said} (print(loader.plan) shows what runs where)", stacklevel=3)


class Traffic:
    """What came over the network since a loader was made, by all readers of the process."""

    def __init__(self, reader: Reader, fields: Sequence[str]) -> None:
        self._reader, self._fields = reader, fields
        self._remote = is_remote(reader.path)
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
        """Requests, bytes, tries again; empty where everything is local."""
        return {name: value - self._before[name] for name, value in self._counts().items()}

    def warn(self, order: orders.OrderParts, world_size: int, batch_size: int) -> None:
        """Warn once of an order that asks a server for every sample, or for blocks on every rank."""
        if self._warned or not self._remote or order.name not in ("random", *orders.BY_BLOCKS):
            return
        self._warned = True
        if order.name in orders.BY_BLOCKS:
            if world_size > 1 and "lanes" not in order.options:
                said = f"{ORDER_CLASSES[order.name]}(lanes={world_size}) gives each its own"
                why = (
                    f"each of {world_size} ranks needs a part of every block: "
                    "more bytes, or many small requests"
                )
                warnings.warn(f"{why}; {said}", stacklevel=5)
            return
        room, (runs, size) = self._room(), distinct_runs(self._reader, self._fields)
        samples = len(self._reader)
        if runs < SHARED * samples:
            # Readers keep chunks that several samples share, unpacked.
            room += DEFAULT_MAX_BYTES
        if size <= room:
            return
        blocks = -(-size // CHUNK_BYTES)
        pieces = PIECES * blocks
        missed = min(ALONE, MISSED * (1 - room / size) + MISSED_LEAST)
        requests = round(_requests(samples, size, batch_size, missed))
        warnings.warn(
            f"order 'random' over a server: about {requests:,} requests for {size / 1e9:,.1f} GB an epoch, "
            f"as only {room / 1e9:,.1f} GB of it can be kept; 'quasi_random' makes about {pieces:,}, and "
            f"'random' with a cache for all of it (cache=, cache_bytes=) {blocks:,}, once",
            stacklevel=5,
        )

    def _room(self) -> int:
        spans = self._reader.ranges(self._fields, [0]) if len(self._reader) else None
        source = None if spans is None else opened(spans.files[0])
        if source is None:
            return 0
        pool, object = source.blocks
        return max(pool.max_bytes, 0 if object.disk is None else object.disk.limit)


def _requests(samples: int, size: int, batch_size: int, missed: float) -> float:
    """Requests for all samples of random batches: those of a batch that lie close together share one.

    missed: the share of samples that memory does not have. A request that several share is saved less often.
    """
    cells = max(1.0, size / CHUNK_BYTES)
    touched = cells * (1 - math.exp(-batch_size / cells))
    alone = math.exp(-RANGE_GAP * batch_size / max(1, size))
    each = alone * missed * batch_size + (1 - alone) * (1 + missed) / 2 * touched
    return samples / batch_size * each
