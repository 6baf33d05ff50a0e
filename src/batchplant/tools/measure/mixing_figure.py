"""The figure of a run over a mixture."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import figures
from .mixing import DryRun

# Sources with a colour of their own; the others are one.
MOST = len(figures.COLOURS) - 1
# Of the width that is too narrow for a name.
NARROW = 0.05


def draw(found: DryRun, length: int | None) -> Any:
    """Weights over steps, stacked; how often each source was gone through; where the tokens come from."""
    figure = figures.blank(9.0, 5.6)
    grid = figure.add_gridspec(2, 2, width_ratios=(3, 1), height_ratios=(3, 2))
    weights, passes = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[1, 0])
    shares = figure.add_subplot(grid[:, 1])
    order = sorted(range(len(found.sources)), key=lambda one: -found.sources[one].samples)
    parts = [([one], found.sources[one].name) for one in order[:MOST]]
    if len(order) > MOST:
        parts.append((order[MOST:], f"{len(order) - MOST:,} others"))
    colours = figures.COLOURS[: len(parts)]
    stacked = np.array([found.weights[:, rows].sum(axis=1) for rows, _ in parts]) * 100
    weights.stackplot(found.at, stacked, colors=colours, linewidth=0)
    weights.set_ylim(0, 100)
    weights.set_ylabel("% of samples", fontsize=8)
    weights.set_title("what comes", fontsize=9)
    for axes in (weights, passes):
        axes.set_xlim(0, max(float(found.at[-1]), 1e-9))
    for _, step in found.changes[:20]:
        weights.axvline(step, color="white", linewidth=0.8, linestyle=":")
    for (rows, _), colour in zip(parts, colours, strict=True):
        size = sum(found.sources[one].size for one in rows)
        seen = sum(found.passes[:, one] * found.sources[one].size for one in rows) / max(size, 1)
        passes.plot(found.at, seen, color=colour, linewidth=1.6)
    passes.set_ylim(bottom=0)
    passes.axhline(1, color=figures.GREY, linewidth=0.8, linestyle=":")
    passes.set_xlabel("step", fontsize=8)
    passes.set_title("how often each source was gone through", fontsize=9)
    for axis in (weights.xaxis, passes.xaxis):
        figures.in_thousands(axis)
    _draw_shares(shares, found, parts, colours)
    for axes in (weights, passes, shares):
        figures.tidy(axes)
    figure.suptitle(_title(found, length), fontsize=10)
    return figure


def _draw_shares(axes: Any, found: DryRun, parts: list[Any], colours: Any) -> None:
    """Samples beside tokens: long documents weigh more than their number says."""
    columns = [("samples", [one.samples for one in found.sources])]
    if found.tokens is not None:
        columns.append(("tokens", [one.tokens or 0 for one in found.sources]))
    for place, (_, values) in enumerate(columns):
        below, total = 0.0, max(sum(values), 1)
        for (rows, name), colour in zip(parts, colours, strict=True):
            share = 100 * sum(values[one] for one in rows) / total
            axes.bar(place, share, 0.8, bottom=below, color=colour)
            if share > 100 * NARROW:
                shown = name if len(name) <= 12 else name[:11] + "…"
                axes.text(
                    place, below + share / 2, f"{shown}\n{share:.0f} %", ha="center", va="center", fontsize=7,
                    color="white",
                )  # fmt: skip
            below += share
    axes.set_xticks(range(len(columns)), [name for name, _ in columns])
    axes.set_ylim(0, 100)
    axes.set_title("% of the run", fontsize=9)


def _title(found: DryRun, length: int | None) -> str:
    rows = f"{found.rows:,} rows of {length:,} tokens, {found.fill or 0:.1%} full" if length else ""
    said = [f"{found.steps:,} steps", f"{found.samples:,} samples", *([rows] if rows else [])]
    ranks = f"{found.world_size:,} rank{'' if found.world_size == 1 else 's'}"
    return ", ".join([*said, ranks]) + (" (estimated)" if found.estimated else "")
