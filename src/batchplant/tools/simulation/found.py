"""What a simulation finds: :class:`Simulation`."""

from __future__ import annotations

import dataclasses
from typing import Any

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
