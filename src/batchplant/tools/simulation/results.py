"""Results of a simulation, hints what would help, and a figure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from ...order import BY_BLOCKS, WINDOW
from .. import Document
from ..measure import figures
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
class Demand:
    """Rates that keep up with the training steps of all ranks.

    decoders: of the plan's speed, for each rank. input_bound: share of the time that steps wait for batches.
    """

    samples_per_second: float
    store_bytes_per_second: float
    node_bytes_per_second: float
    decoders: float
    input_bound: float


@dataclasses.dataclass(frozen=True)
class Simulation:
    """Forecast of a run. ``first`` is the first epoch, ``later`` one with what the cache holds by then."""

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

    def as_dict(self) -> Document:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return values | {
            "plan": self.plan.as_dict(),
            "first": dataclasses.asdict(self.first),
            "later": dataclasses.asdict(self.later),
            "demand": self.demand and dataclasses.asdict(self.demand),
        }

    @property
    def demand(self) -> Demand | None:
        """Rates that keep up with the training steps; None if the plan has no time for a step."""
        plan = self.plan
        if not plan.cluster.step:
            return None
        per_rank = plan.loader.batch_size / plan.cluster.step
        rate = plan.cluster.ranks * per_rank
        size = plan.data.sample_bytes + plan.data.gap_bytes
        ranks = min(plan.cluster.ranks, plan.cluster.ranks_per_node)
        return Demand(
            samples_per_second=rate,
            store_bytes_per_second=rate * size,
            node_bytes_per_second=ranks * per_rank * size,
            decoders=per_rank / plan.cluster.decode,
            input_bound=max(0.0, 1 - self.later.samples_per_second / rate),
        )


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


# Seconds that are not worth a colour.
SHORT = 0.0005


def draw(simulation: Simulation) -> figures.Figure:
    """Draw speed over time, what was busy, what ranks fetch, and until when the first batch comes."""
    figure = figures.blank(9.0, 6.4)
    (speed, busy), (ranks, start) = figure.subplots(2, 2)
    plan = simulation.plan
    for (name, epoch), colour in zip(_epochs(simulation).items(), figures.COLOURS, strict=False):
        speed.plot(epoch.times, np.array(epoch.rates) / 1e3, color=colour, label=name, linewidth=1.2)
        speed.axhline(epoch.samples_per_second / 1e3, color=colour, linewidth=0.8, linestyle=":")
    speed.set_ylim(bottom=0)
    speed.set_xlabel("seconds of the part that was looked at", fontsize=8)
    speed.set_title("thousand samples/s of all ranks (dotted: as it goes on)", fontsize=9)
    speed.legend(fontsize=8, loc="lower right", framealpha=0.8, edgecolor="none")
    figures.in_thousands(speed.yaxis)
    _draw_busy(busy, simulation)
    _draw_ranks(ranks, simulation)
    _draw_start(start, simulation)
    for axes in (speed, busy, ranks, start):
        figures.tidy(axes)
    title = f"{plan.data.samples:,} samples, {plan.cluster.ranks:,} ranks on {plan.nodes:,} nodes"
    figure.suptitle(f"{title}, {plan.loader.order}", fontsize=10)
    return figure


def _epochs(simulation: Simulation) -> dict[str, Epoch]:
    return {"first epoch": simulation.first, "a later one": simulation.later}


def _draw_busy(axes: figures.Axes, simulation: Simulation) -> None:
    shares = {name: max(share, simulation.later.busy[name]) for name, share in simulation.first.busy.items()}
    names = [name for name, share in shares.items() if share > 0.01]
    heights = np.arange(len(names))
    for number, (label, epoch) in enumerate(_epochs(simulation).items()):
        percents = [100 * min(1.0, epoch.busy[name]) for name in names]
        axes.barh(heights + 0.4 * number - 0.2, percents, 0.38, color=figures.COLOURS[number], label=label)
    axes.set_yticks(heights, names)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the time", fontsize=8)
    axes.set_title("what was busy", fontsize=9)


def _draw_ranks(axes: figures.Axes, simulation: Simulation) -> None:
    for number, epoch in enumerate(_epochs(simulation).values()):
        centers = np.arange(len(epoch.bytes_by_rank)) + 0.4 * number - 0.2
        axes.bar(centers, np.array(epoch.bytes_by_rank) / 1e9, 0.38, color=figures.COLOURS[number])
        for center, size, requests in zip(centers, epoch.bytes_by_rank, epoch.requests_by_rank, strict=True):
            if len(centers) <= 4:
                text = f"{requests:,.0f}\nrequests"
                axes.text(center, size / 1e9, text, ha="center", va="bottom", fontsize=7)
    largest = max(*simulation.first.bytes_by_rank, *simulation.later.bytes_by_rank) / 1e9
    axes.set_ylim(0, 1.25 * largest or 1)
    axes.set_xticks(range(len(simulation.first.bytes_by_rank)))
    axes.set_xlabel("ranks that were simulated", fontsize=8)
    hits = f"{simulation.first.hit_rate:.0%}, later {simulation.later.hit_rate:.0%}"
    axes.set_title(f"GB fetched in an epoch (from the cache: {hits})", fontsize=9)


def _draw_start(axes: figures.Axes, simulation: Simulation) -> None:
    parts = {
        "process": (simulation.plan.cluster.start,) * 2,
        "open": (simulation.open_seconds,) * 2,
        "order": (simulation.order_seconds,) * 2,
        "first batch": (simulation.first.first_batch, simulation.later.first_batch),
    }
    start = np.zeros(2)
    for (name, seconds), colour in zip(parts.items(), figures.COLOURS[2:], strict=False):
        if max(seconds) > SHORT:
            axes.barh([0, 1], seconds, left=start, height=0.55, color=colour, label=name)
        start += seconds
    axes.set_yticks([0, 1], ["start", "resume"])
    axes.invert_yaxis()
    axes.set_xlabel("seconds", fontsize=8)
    axes.set_title("until the first batch", fontsize=9)
    axes.legend(fontsize=8, frameon=False, loc="center", ncols=4)
