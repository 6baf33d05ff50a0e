"""Figure of a comparison of formats: size against speed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import shown
from . import figures
from .comparison import Measurement, pareto

# What "fast" may mean, and how it is called.
SPEEDS = {
    "warm": ("epoch_warm", "shuffled epoch, warm"),
    "cold": ("epoch_cold", "shuffled epoch, cold"),
    "random": ("random_rate", "single samples"),
    "sequential": ("sequential_rate", "in sequence"),
    "write": ("write_rate", "written"),
}
INK, FAINT, FRONT = "#1f2933", "#8a94a0", "#c2410c"
# Beyond this ratio a linear axis shows one dot and a heap.
WIDE = 8.0
# Points between a dot and its name, and how far up or down a name may go, the nearest first: a line of the
# front may leave a dot to the right.
GAP = 8.0
LIFTS = (9, -9, 21, -21, 33, -33, 45, -45, 57, -57, 69, -69)


@dataclasses.dataclass(frozen=True)
class About:
    """Facts of the measurement: dataset and machine."""

    path: str
    format: str
    total: int
    samples: int
    unit: str
    how: str
    machine: str
    seconds: float
    remote: str | None = None
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    by: str = "warm"

    @property
    def title(self) -> str:
        samples = f"{self.samples:,} of {self.total:,}" if self.samples < self.total else f"{self.total:,}"
        return f"{shown(self.path)}: {samples} samples"


def size_unit(largest: float) -> tuple[float, str]:
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if largest >= factor:
            return factor, unit
    return 1, "bytes"


def whole(row: Measurement, total: int) -> float | None:
    """The bytes of the whole dataset in this format, as far as the sample tells."""
    return None if row.bytes_per_sample is None else row.bytes_per_sample * total


def ranked(rows: Sequence[Measurement], by: str) -> list[Measurement]:
    """The fastest first; those that were not measured last."""
    speed = SPEEDS[by][0]
    return sorted(
        rows, key=lambda entry: (entry.error is not None, -(getattr(entry, speed) or 0), entry.label)
    )


def draw(rows: Sequence[Measurement], about: About) -> figures.Figure:
    """Size against speed, with the front of those that no other beats."""
    speed, words = SPEEDS[about.by]
    good = [row for row in rows if row.bytes_per_sample is not None and getattr(row, speed) is not None]
    front = pareto(good, speed)
    largest = max((whole(row, about.total) or 0 for row in good), default=1.0)
    factor, unit = size_unit(largest)
    spot = {row.label: ((whole(row, about.total) or 0) / factor, getattr(row, speed)) for row in good}
    figure = figures.blank(8.6, 5.4)
    axes = figure.add_subplot()
    figures.tidy(axes)
    axes.margins(0.14, 0.16)
    _scales(axes, list(spot.values()))
    for row in good:
        on_front = row in front
        colour = FRONT if on_front else FAINT
        x, y = spot[row.label]
        axes.plot([x], [y], "o", markersize=9 if on_front else 7, color=colour, zorder=4)
        if speed == "epoch_warm" and row.epoch_cold is not None:
            axes.plot([x, x], [row.epoch_cold, y], linewidth=1, color=colour, alpha=0.5, zorder=2)
            axes.plot(
                [x], [row.epoch_cold], "o", markersize=5, color=colour, markerfacecolor="white", zorder=3
            )
    axes.set_xlabel(f"size of the whole dataset ({unit}), smaller is better", fontsize=10, color=INK)
    axes.set_ylabel(f"{about.unit}/s, {words}, higher is better", fontsize=10, color=INK)
    axes.set_title(f"{about.title}\n{about.how}", fontsize=10, loc="left", color=INK, parse_math=False)
    figure.supxlabel(about.machine, fontsize=7, color=FAINT, x=0.01, ha="left", parse_math=False)
    if speed == "epoch_warm" and any(row.epoch_cold is not None for row in good):
        axes.plot([], [], "o", color=INK, markersize=7, label="warm: the files are in memory")
        axes.plot(
            [], [], "o", color=INK, markersize=5, markerfacecolor="white", label="cold: they are on the disk"
        )
    axes.plot([], [], color=FRONT, linewidth=1.6, label="Pareto front: no other is smaller and faster")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, frameon=False, fontsize=8)
    _name(figure, axes, good, front, spot)
    return figure


def _scales(axes: figures.Axes, spots: list[tuple[float, float]]) -> None:
    """Linear, unless one dot would push the others into a heap."""
    for number, (axis, scale) in enumerate(((axes.xaxis, axes.set_xscale), (axes.yaxis, axes.set_yscale))):
        values = [spot[number] for spot in spots if spot[number] > 0]
        if values and max(values) / min(values) > WIDE:
            scale("log")
            figures.plain_numbers(axis)
        else:
            figures.in_thousands(axis)


def _name(
    figure: figures.Figure,
    axes: figures.Axes,
    good: list[Measurement],
    front: list[Measurement],
    spot: dict[str, tuple[float, float]],
) -> None:
    """The front as steps, and names beside the dots once everything else has its place."""
    renderer = figures.renderer(figure)
    figure.draw(renderer)
    # From here on nothing moves.
    figure.set_layout_engine("none")
    right, bottom = axes.get_xlim()[1], axes.get_ylim()[0]
    axes.set_xlim(axes.get_xlim())
    axes.set_ylim(axes.get_ylim())
    if front:
        across = [spot[row.label][0] for row in front]
        up = [spot[row.label][1] for row in front]
        axes.step(
            [across[0], *across, right], [bottom, *up, up[-1]], where="post", color=FRONT, linewidth=1.6,
            alpha=0.9, zorder=2,
        )  # fmt: skip
        beaten: dict[str, Any] = {"color": FRONT, "alpha": 0.06, "linewidth": 0, "zorder": 0}
        axes.fill_between([*across, right], [*up, up[-1]], bottom, step="post", **beaten)
    # Those on the front choose their places first.
    occupied: list[Any] = []
    for row in sorted(good, key=lambda entry: (entry not in front, -spot[entry.label][1])):
        occupied.append(_write_name(axes, renderer, row, spot[row.label], row in front, occupied))


def _write_name(
    axes: figures.Axes,
    renderer: Any,
    row: Measurement,
    spot: tuple[float, float],
    on_front: bool,
    occupied: Sequence[Any],
) -> Any:
    """Write the name of a row beside its dot, with a thin line to it; return the box that it takes."""
    colour = FRONT if on_front else INK
    name = axes.annotate(
        row.label, spot, (GAP, 0), textcoords="offset points", parse_math=False, fontsize=9, color=colour,
        fontweight="bold" if on_front else "normal", va="center",
        arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "alpha": 0.6, "shrinkA": 0},
    )  # fmt: skip
    if name.get_window_extent(renderer).x1 > axes.get_window_extent(renderer).x1:
        name.set_ha("right")
    side = -GAP if name.get_ha() == "right" else GAP
    for lift in LIFTS:
        name.set_position((side, lift))
        box = name.get_window_extent(renderer)
        if not any(box.overlaps(other) for other in occupied):
            break
    return box
