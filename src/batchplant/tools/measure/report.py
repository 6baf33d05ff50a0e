"""Reports of a comparison of formats: a figure, and a self-contained page of HTML."""

from __future__ import annotations

import dataclasses
import io
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

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
Point = tuple[float, float]

# Pixels around a dot that a name keeps clear of, and how far out it may go for a free place.
DOT = 7.0
DISTANCES = (11, 16, 24, 34, 46, 60, 76, 94, 114, 140, 170)
# From here on a thin line leads to the dot.
LED = 20
# Degrees, best first: to the right, to the left, above, below …
ANGLES = (0, 180, 90, 270, 35, 145, 325, 215)


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


def draw(rows: Sequence[Measurement], about: About, *, title: bool = True) -> Any:
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
    _name(figure, axes, good, front, spot, speed)
    return figure


def _scales(axes: Any, spots: list[tuple[float, float]]) -> None:
    """Linear, unless one dot would push the others into a heap."""
    for number, (axis, scale) in enumerate(((axes.xaxis, axes.set_xscale), (axes.yaxis, axes.set_yscale))):
        values = [spot[number] for spot in spots if spot[number] > 0]
        if values and max(values) / min(values) > WIDE:
            scale("log")
            figures.plain_numbers(axis)
        else:
            figures.in_thousands(axis)


def _name(
    figure: Any,
    axes: Any,
    good: list[Measurement],
    front: list[Measurement],
    spot: dict[str, tuple[float, float]],
    speed: str,
) -> None:
    """The front as steps, and names beside the dots once everything else has its place."""
    renderer = figures.renderer(figure)
    figure.draw(renderer)
    # From here on nothing moves.
    figure.set_layout_engine("none")
    right, bottom = axes.get_xlim()[1], axes.get_ylim()[0]
    axes.set_xlim(axes.get_xlim())
    axes.set_ylim(axes.get_ylim())
    corners: list[tuple[float, float]] = []
    if front:
        across = [spot[row.label][0] for row in front]
        up = [spot[row.label][1] for row in front]
        corners = list(zip(*_steps([across[0], *across, right], [bottom, *up, up[-1]]), strict=True))
        axes.plot(*zip(*corners, strict=True), color=FRONT, linewidth=1.6, alpha=0.9, zorder=2)
        beaten: dict[str, Any] = {"color": FRONT, "alpha": 0.06, "linewidth": 0, "zorder": 0}
        axes.fill_between([*across, right], [*up, up[-1]], bottom, step="post", **beaten)
    # Those on the front choose their places first.
    order = sorted(good, key=lambda one: (one not in front, -spot[one.label][1]))
    names = [Name(*spot[row.label], row.label, FRONT if row in front else INK, row in front) for row in order]
    cold = {row.label: row.epoch_cold for row in good if row.epoch_cold and speed == "epoch_warm"}
    cold_spots = [(spot[label][0], value) for label, value in cold.items()]
    lines = [
        *itertools.pairwise(corners),
        *((spot[label], cold_spot) for label, cold_spot in zip(cold, cold_spots, strict=True)),
    ]
    write(axes, renderer, names, cold_spots, lines)


def _steps(across: list[float], up: list[float]) -> tuple[list[float], list[float]]:
    """The corners of a staircase that goes to the right before it goes up."""
    return [value for value in across for _ in (0, 1)][1:], [value for value in up for _ in (0, 1)][:-1]


def svg(figure: Any) -> str:
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


class Box(NamedTuple):
    left: float
    bottom: float
    right: float
    top: float

    def meets(self, box: Box) -> bool:
        across = self.left < box.right and box.left < self.right
        return across and self.bottom < box.top and box.bottom < self.top

    def apart(self, dot: Point) -> float:
        """Distance of a dot from the nearest edge."""
        across = max(self.left - dot[0], 0, dot[0] - self.right)
        return math.hypot(across, max(self.bottom - dot[1], 0, dot[1] - self.top))

    def inside(self, box: Box) -> bool:
        across = box.left <= self.left and self.right <= box.right
        return across and box.bottom <= self.bottom and self.top <= box.top


class Name(NamedTuple):
    """A name beside a dot, in data units."""

    x: float
    y: float
    text: str
    colour: str
    bold: bool = False


def write(
    axes: Any,
    renderer: Any,
    names: Sequence[Name],
    obstacles: Iterable[Point] = (),
    lines: Iterable[tuple[Point, Point]] = (),
) -> None:
    """Names beside their dots, clear of ``obstacles`` (dots without a name) and of level or upright lines."""
    pixels, points = axes.transData.transform, 72 / axes.figure.dpi
    dots = [_pair(pixels((name.x, name.y))) for name in names]
    texts = [
        axes.annotate(
            name.text, (name.x, name.y), (0, 0), textcoords="offset points", parse_math=False, fontsize=9,
            color=name.colour, fontweight="bold" if name.bold else "normal", va="bottom",
        )
        for name in names
    ]  # fmt: skip
    extents = [text.get_window_extent(renderer) for text in texts]
    frame = axes.get_window_extent(renderer)
    room = Box(frame.x0 + 2, frame.y0 + 2, frame.x1 - 2, frame.y1 - 2)
    occupied = [around_dot(_pair(pixels(point))) for point in obstacles]
    drawn = [_between(_pair(pixels(start)), _pair(pixels(two))) for start, two in lines]
    boxes = places(dots, [(extent.width + 4, extent.height + 2) for extent in extents], room, occupied, drawn)
    for text, (x, y), box in zip(texts, dots, boxes, strict=True):
        # In points, which stay right whatever resolution it is saved in.
        text.set_position(((box.left + 2 - x) * points, (box.bottom + 1 - y) * points))
        if box.apart((x, y)) > LED:
            near = min(max(x, box.left), box.right), min(max(y, box.bottom), box.top)
            ends = zip(*(axes.transData.inverted().transform(point) for point in ((x, y), near)), strict=True)
            axes.plot(*ends, linewidth=0.6, color=text.get_color(), alpha=0.6, zorder=1)


def places(
    dots: Sequence[Point],
    sizes: Sequence[Point],
    room: Box,
    occupied: Iterable[Box] = (),
    lines: Sequence[Box] = (),
) -> list[Box]:
    """A box of each size near each dot, inside of ``room``; none meets a dot, another, or what is taken.

    Nor does it lie on a line, where there is a place beside one. Where every place is taken, the last that
    was tried is used: a name is better than none.
    """
    obstacles = [*map(around_dot, dots), *occupied]
    boxes: list[Box] = []
    for (x, y), (width, height) in zip(dots, sizes, strict=True):
        tried = [box for box in around(x, y, width, height) if box.inside(room)]
        tried = tried or list(around(x, y, width, height))
        free = [box for box in tried if not any(box.meets(obstacle) for obstacle in obstacles)]
        clear = [box for box in free if not any(box.meets(obstacle) for obstacle in lines)]
        # Nobody is to take it for the name of another.
        nearest = [box for box in clear if all(box.apart((x, y)) <= box.apart(obstacle) for obstacle in dots)]
        boxes.append((nearest or clear or free or tried[-1:])[0])
        obstacles.append(boxes[-1])
    return boxes


def around(x: float, y: float, width: float, height: float) -> Iterator[Box]:
    """Boxes of a size around a dot, from near to far."""
    for distance in DISTANCES:
        for angle in ANGLES:
            across, up = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            left_edge = x + across * (distance + width / 2) - width / 2
            bottom = y + up * (distance + height / 2) - height / 2
            yield Box(left_edge, bottom, left_edge + width, bottom + height)


def around_dot(dot: Point) -> Box:
    return Box(dot[0] - DOT, dot[1] - DOT, dot[0] + DOT, dot[1] + DOT)


def _between(start: Point, end: Point) -> Box:
    (left, right), (bottom, top) = (sorted(ends) for ends in zip(start, end, strict=True))
    return Box(left - 1, bottom - 1, right + 1, top + 1)


def _pair(point: Any) -> Point:
    return float(point[0]), float(point[1])
