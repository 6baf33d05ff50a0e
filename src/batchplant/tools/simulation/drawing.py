"""The figure of a simulation."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..measure import figures
from .results import Simulation

# Of a second: what takes less is not worth a colour.
SHORT = 0.0005


def draw(found: Simulation) -> Any:
    """Speed over time, what was busy, what ranks fetch, and until when the first batch comes."""
    figure = figures.blank(9.0, 6.4)
    (speed, busy), (ranks, start) = figure.subplots(2, 2)
    plan = found.plan
    for (name, one), colour in zip(_epochs(found).items(), figures.COLOURS, strict=False):
        speed.plot(one.times, np.array(one.rates) / 1e3, color=colour, label=name, linewidth=1.2)
        speed.axhline(one.samples_per_second / 1e3, color=colour, linewidth=0.8, linestyle=":")
    speed.set_ylim(bottom=0)
    speed.set_xlabel("seconds of the part that was looked at", fontsize=8)
    speed.set_title("thousand samples/s of all ranks (dotted: as it goes on)", fontsize=9)
    speed.legend(fontsize=8, loc="lower right", framealpha=0.8, edgecolor="none")
    figures.in_thousands(speed.yaxis)
    _draw_busy(busy, found)
    _draw_ranks(ranks, found)
    _draw_start(start, found)
    for axes in (speed, busy, ranks, start):
        figures.tidy(axes)
    said = f"{plan.data.samples:,} samples, {plan.cluster.ranks:,} ranks on {plan.nodes:,} nodes"
    figure.suptitle(f"{said}, {plan.loader.order}", fontsize=10)
    return figure


def _epochs(found: Simulation) -> dict[str, Any]:
    return {"first epoch": found.first, "a later one": found.later}


def _draw_busy(axes: Any, found: Simulation) -> None:
    names = [name for name in found.first.busy if max(found.first.busy[name], found.later.busy[name]) > 0.01]
    at = np.arange(len(names))
    for number, (title, one) in enumerate(_epochs(found).items()):
        shares = [100 * min(1.0, one.busy[name]) for name in names]
        axes.barh(at + 0.4 * number - 0.2, shares, 0.38, color=figures.COLOURS[number], label=title)
    axes.set_yticks(at, names)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the time", fontsize=8)
    axes.set_title("what was busy", fontsize=9)


def _draw_ranks(axes: Any, found: Simulation) -> None:
    for number, one in enumerate(_epochs(found).values()):
        at = np.arange(len(one.bytes_by_rank)) + 0.4 * number - 0.2
        axes.bar(at, np.array(one.bytes_by_rank) / 1e9, 0.38, color=figures.COLOURS[number])
        for place, size, requests in zip(at, one.bytes_by_rank, one.requests_by_rank, strict=True):
            if len(at) <= 4:
                axes.text(
                    place, size / 1e9, f"{requests:,.0f}\nrequests", ha="center", va="bottom", fontsize=7
                )
    most = max(*found.first.bytes_by_rank, *found.later.bytes_by_rank) / 1e9
    axes.set_ylim(0, 1.25 * most or 1)
    axes.set_xticks(range(len(found.first.bytes_by_rank)))
    axes.set_xlabel("ranks that were simulated", fontsize=8)
    hits = f"{found.first.hit_rate:.0%}, later {found.later.hit_rate:.0%}"
    axes.set_title(f"GB fetched in an epoch (from the cache: {hits})", fontsize=9)


def _draw_start(axes: Any, found: Simulation) -> None:
    parts = {
        "process": (found.plan.cluster.start,) * 2,
        "open": (found.open_seconds,) * 2,
        "order": (found.order_seconds,) * 2,
        "first batch": (found.first.first_batch, found.later.first_batch),
    }
    left = np.zeros(2)
    for (name, seconds), colour in zip(parts.items(), figures.COLOURS[2:], strict=False):
        if max(seconds) > SHORT:
            axes.barh([0, 1], seconds, left=left, height=0.55, color=colour, label=name)
        left += seconds
    axes.set_yticks([0, 1], ["start", "resume"])
    axes.invert_yaxis()
    axes.set_xlabel("seconds", fontsize=8)
    axes.set_title("until the first batch", fontsize=9)
    axes.legend(fontsize=8, frameon=False, loc="center", ncols=4)
