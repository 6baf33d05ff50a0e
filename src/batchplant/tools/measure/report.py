"""Reports of a comparison of formats: a figure, and a self-contained page of HTML."""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ...errors import shown
from . import figures
from .measurement import Measurement, caveats, pareto

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
    command: str = ""
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
    return sorted(rows, key=lambda one: (one.error is not None, -(getattr(one, speed) or 0), one.label))


# -- the figure -------------------------------------------------------------------------------------------


def draw(rows: Sequence[Measurement], about: About, *, title: bool = True) -> figures.Figure:
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
    if title:
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
    for row in sorted(good, key=lambda one: (one not in front, -spot[one.label][1])):
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


def svg(figure: figures.Figure) -> str:
    """A figure for a page of HTML: it takes the page's own colours and asks for nothing from elsewhere."""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = drawn.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text, count=2).replace("xlink:href", "href")
    text = text.replace("fill: #ffffff", "fill: var(--page)").replace("#000000", "currentColor")
    for colour, name in ((INK, "currentColor"), (FAINT, "var(--faint)"), (FRONT, "var(--front)")):
        text = text.replace(colour, name)
    return text


# -- the page ---------------------------------------------------------------------------------------------

STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #1f2933; --faint: #5b6672; --line: #d9dee3;
  --front: #c2410c; --soft: #f5f7f9 }
@media (prefers-color-scheme: dark) {
  :root { --page: #14181d; --ink: #e4e8ec; --faint: #9aa5b1; --line: #2e3640; --front: #fb923c;
    --soft: #1b2027 }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 2rem auto;
  max-width: 76rem; padding: 0 1.2rem }
h1 { font-size: 1.4rem; overflow-wrap: anywhere } h2 { font-size: 1.05rem; margin-top: 2rem }
figure { margin: 1rem 0; max-width: 60rem } svg { width: 100%; height: auto; fill: currentColor }
.wide { overflow-x: auto }
.doubt { border-left: 3px solid var(--front); background: var(--soft); padding: .5rem .8rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100% }
th, td { text-align: right; padding: .3rem .5rem; border-bottom: 1px solid var(--line); white-space: nowrap }
th { color: var(--faint); font-weight: 600; vertical-align: bottom }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--page);
  white-space: normal; overflow-wrap: anywhere; min-width: 6rem }
tr.front td:first-child { color: var(--front); font-weight: 700 }
small, .faint { color: var(--faint) } li { overflow-wrap: anywhere }
code { background: var(--soft); padding: .1rem .3rem; border-radius: 3px; overflow-wrap: anywhere }
"""


def html(rows: Sequence[Measurement], about: About, size: Any) -> str:
    """A page with the figure, every number, what was left out, and how it was measured.

    ``size``: how a number of bytes is written.
    """
    rows = ranked(rows, about.by)
    front = [row.label for row in pareto(rows, SPEEDS[about.by][0])]
    columns = _columns(about, size)
    head = "".join(
        f'<th scope="col">{"<br>".join(map(escape, name.splitlines()))}</th>' for name, _ in columns
    )
    body = "".join(
        ('<tr class="front">' if row.label in front else "<tr>")
        + "".join(f"<td>{escape(value(row))}</td>" for _, value in columns)
        + "</tr>"
        for row in rows
        if row.error is None
    )
    region = 'class="wide" tabindex="0" role="region" aria-label="Measured"'
    table = f"<div {region}><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    image = svg(draw(rows, about, title=False))
    remarks = [f"{row.label}: {text}" for row in rows for text in row.remarks]
    failed = [f"{row.label}: {row.error}" for row in rows if row.error is not None]
    left_out = [f"{name}: {why}" for name, why in about.refused.items()]
    parts = [
        f"<h1>{escape(about.title)}</h1>",
        f'<p class="faint">{escape(about.how)}<br>{escape(about.machine)}</p>',
        "".join(f'<p class="doubt">{escape(text)}</p>' for text in caveats(rows, SPEEDS[about.by][0])),
        f'<figure role="img" aria-label="Size against speed of each format">{image}</figure>',
        f"<h2>Measured</h2>{table}",
        "<p><small>Those in colour are on the Pareto front: no other is smaller and faster. Speeds are the "
        "median of the rounds, with the best of them in brackets where there were several.</small></p>",
        _listed("Remarks", remarks),
        _listed("Could not be measured", failed),
        _listed("Left out", left_out),
        f"<h2>How</h2>{METHOD}",
        f"<p>The same again: <code>{escape(about.command)}</code></p>" if about.command else "",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(about.title)}</title><style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body></html>\n"
    )


METHOD = """<p>The same samples were written in every format, and read back in rounds: in each round all
formats take their turn, each in a process of its own. <em>Cold</em>: the system has forgotten the files, and
reads them from the disk. <em>Warm</em>: they are in memory. Both are shuffled epochs through the Loader.
<em>Single samples</em> are decoded one by one, by their number. <em>In sequence</em> counts the bytes of the
cells, which are the same in every format. <em>Memory</em> is what the process held at most while reading,
beyond Python and NumPy and without the pages of mapped files.</p>"""


def _columns(about: About, size: Any) -> list[tuple[str, Any]]:
    def rate(name: str) -> Any:
        def value(row: Measurement) -> str:
            rate_value = getattr(row, name)
            best = row.best.get(name)
            several = best is not None and row.rounds > 1
            return "" if rate_value is None else f"{rate_value:,.0f}" + (f" ({best:,.0f})" if several else "")

        return value

    # What people look for first; on a narrow page the rest is scrolled to.
    columns = [
        ("format", lambda one: one.label),
        ("whole dataset", lambda one: size(whole(one, about.total))),
        (f"warm\n{about.unit}/s", rate("epoch_warm")),
        (f"cold\n{about.unit}/s", rate("epoch_cold")),
        ("single\nsamples/s", rate("random_rate")),
        ("in sequence\nMB/s", rate("sequential_mb_s")),
        (f"written\n{about.unit}/s", lambda one: f"{one.write_rate:,.0f}"),
        ("memory", lambda one: size(one.memory)),
        ("open", lambda one: "" if one.open_seconds is None else f"{one.open_seconds * 1e3:,.1f} ms"),
        ("per sample", lambda one: size(one.bytes_per_sample)),
        ("files", lambda one: f"{one.files:,}"),
    ]
    if about.remote is not None:
        columns += [
            ("fetched", lambda one: size(one.fetched)),
            ("requests", lambda one: "" if one.requests is None else f"{one.requests:,}"),
        ]
    return columns


def _listed(title: str, lines: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<h2>{title}</h2><ul>{items}</ul>" if lines else ""
