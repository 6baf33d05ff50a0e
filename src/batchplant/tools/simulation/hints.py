"""What would help, one sentence each."""

from __future__ import annotations

from collections.abc import Iterator

from ...order import BY_BLOCKS, WINDOW
from .found import Simulation

# Requests for a sample: from here on, most are fetched by themselves.
MANY = 0.3
# Of the time until the first batch.
MUCH = 0.5


def hints(found: Simulation) -> list[str]:
    return list(_hints(found))


def _hints(found: Simulation) -> Iterator[str]:
    plan, loader = found.plan, found.plan.loader
    each = found.later.requests / max(1, found.samples_per_rank[1])
    if loader.order in BY_BLOCKS and plan.cluster.ranks > 1 and not loader.lanes:
        yield "every rank reads a part of every block; lanes give each blocks of its own"
    elif loader.order == "quasi_random" and each > MANY:
        block = plan.samples_per_block * plan.data.sample_bytes
        window = (loader.window or WINDOW) * block
        yield (
            f"{each:.1f} requests a sample: a window is {window / 1e9:,.2f} GB and fetch_bytes "
            f"{loader.fetch_bytes / 1e9:,.2f} GB; two windows should fit: smaller block_bytes or window"
        )
    elif loader.order == "random" and each > MANY:
        yield f"{each:.1f} requests a sample: quasi_random reads whole blocks, or a cache holds all the data"
    if found.open_seconds > MUCH * found.start_seconds:
        size = plan.data.index_bytes * plan.data.samples
        yield (
            f"opening is most of the start: the index is {size / 1e9:,.1f} GB for every rank (index_bytes "
            "counts for each sample); keep a copy on each node, or use a format whose files need none "
            "(index_bytes: 0)"
        )
