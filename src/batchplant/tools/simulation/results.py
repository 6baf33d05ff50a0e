"""Results of a simulation, and hints what would help."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ...order import BY_BLOCKS, WINDOW
from .plan import Plan


@dataclasses.dataclass(frozen=True)
class Epoch:
    """One epoch; bytes and requests are those of one rank on average, for the whole epoch."""

    samples_per_second: float
    seconds: float
    bytes: float
    requests: float
    hit_rate: float
    # Of the bytes that ranks fetch, the most to the average.
    imbalance: float
    # Until the first batch, from where the data is open.
    first_batch: float
    limit: str
    # The share of the time that each part was busy.
    busy: dict[str, float]
    # Seconds at which the batches that were looked at came, and samples/s between them.
    times: tuple[float, ...] = dataclasses.field(repr=False, default=())
    rates: tuple[float, ...] = dataclasses.field(repr=False, default=())
    # By rank that was looked at.
    bytes_by_rank: tuple[float, ...] = dataclasses.field(repr=False, default=())
    requests_by_rank: tuple[float, ...] = dataclasses.field(repr=False, default=())


@dataclasses.dataclass(frozen=True)
class Simulation:
    """What was found. ``first`` is the first epoch, ``later`` one with what the cache holds by then."""

    plan: Plan
    first: Epoch
    later: Epoch
    # Of bytes that come from the disk of a node: in the second epoch, and long after.
    hit_rates: tuple[float, float]
    # Samples of a rank in an epoch: the fewest, the most; and how many are left out.
    samples_per_rank: tuple[int, int]
    left_out: int
    # Of the bytes of a batch over ranks, the most to the average.
    step_imbalance: float
    # Seconds: until data is open, the order is made; until the first batch, at first and after a resume.
    open_seconds: float
    order_seconds: float
    start_seconds: float
    resume_seconds: float
    # Bytes that the order takes in the memory of a rank.
    order_bytes: int
    sampled: str

    def as_dict(self) -> dict[str, Any]:
        found = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        return found | {
            "plan": self.plan.as_dict(),
            "first": dataclasses.asdict(self.first),
            "later": dataclasses.asdict(self.later),
        }


# Requests per sample from which on most samples are fetched by themselves.
MANY_REQUESTS = 0.3
# Fraction of the time until the first batch.
LONG_OPENING = 0.5


def hints(result: Simulation) -> Iterator[str]:
    """Yield what would help, one sentence each."""
    plan, loader = result.plan, result.plan.loader
    requests = result.later.requests / max(1, result.samples_per_rank[1])
    if loader.order in BY_BLOCKS and plan.cluster.ranks > 1 and not loader.lanes:
        yield "every rank reads a part of every block; lanes give each blocks of its own"
    elif loader.order == "quasi_random" and requests > MANY_REQUESTS:
        block = plan.samples_per_block * plan.data.sample_bytes
        window = (loader.window or WINDOW) * block
        yield (
            f"{requests:.1f} requests a sample: a window is {window / 1e9:,.2f} GB and fetch_bytes "
            f"{loader.fetch_bytes / 1e9:,.2f} GB; two windows should fit: smaller block_bytes or window"
        )
    elif loader.order == "random" and requests > MANY_REQUESTS:
        better = "quasi_random reads whole blocks, or a cache holds all the data"
        yield f"{requests:.1f} requests a sample: {better}"
    if result.open_seconds > LONG_OPENING * result.start_seconds:
        size = plan.data.index_bytes * plan.data.samples
        yield (
            f"opening is most of the start: the index is {size / 1e9:,.1f} GB for every rank (index_bytes "
            "counts for each sample); keep a copy on each node, or use a format whose files need none "
            "(index_bytes: 0)"
        )
