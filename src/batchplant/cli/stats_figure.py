"""The figure of `batchplant stats`: a histogram of every number, bars of the most frequent values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..errors import brief, printable, shortened
from ..jobs import stats
from ..tools.measure import figures

COLUMNS = 3
# Panels that are drawn, and the bars of one.
MOST, BARS = 24, 10

Panel = tuple[str, Callable[[Any], None]]


def draw(found: stats.Stats) -> Any:
    panels = list(_panels(found))[:MOST]
    rows = max(1, -(-len(panels) // COLUMNS))
    figure = figures.blank(4 * COLUMNS, 2.6 * rows)
    for number, (title, paint) in enumerate(panels):
        axes = figure.add_subplot(rows, COLUMNS, number + 1)
        paint(axes)
        axes.set_title(_safe(title), fontsize=9, loc="left")
        figures.tidy(axes)
    return figure


def _panels(found: stats.Stats) -> Iterator[Panel]:
    for name, field in found.fields.items():
        drawn = set()
        for which, values in field.values.items():
            # Many numbers make a histogram instead; values that are hardly ever there twice make no bars.
            often = values.exact and 1 < len(values.counts) <= sum(values.counts.values()) // 2
            if often and (len(values.counts) <= BARS or not _is_number(next(iter(values.counts)))):
                drawn.add(which)
                yield _label(name, which), _bars(values)
        for which, numbers in field.numbers.items():
            if len(numbers.histogram[1]) > 1 and which not in drawn:
                ends = [field.times["min"], field.times["max"]] if field.times else None
                said = "" if ends else f", median {numbers.median:,.4g}"
                yield _label(name, which) + said, _histogram(numbers, ends)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _label(name: str, which: str) -> str:
    return brief(name) if which == "values" else f"{brief(name)}: {which}"


def _histogram(numbers: stats.Numbers, ends: list[str] | None) -> Callable[[Any], None]:
    """``ends``: the first and the last as text."""

    def paint(axes: Any) -> None:
        edges, counts = np.array(numbers.histogram[0]), np.array(numbers.histogram[1])
        # The outer bins may reach far; whole numbers have a bin each, whose last one ends where it begins.
        each = edges[-1] == edges[-2] and edges[1] - edges[0] == 1
        width = 1.0 if each else float(np.median(np.diff(edges)))
        left = np.append(edges[:1].clip(edges[1] - width), edges[1:-1]) - (0.5 if each else 0)
        axes.bar(
            left, counts, width, align="edge", color=figures.COLOURS[0], edgecolor="white", linewidth=0.5
        )
        figures.in_thousands(axes.yaxis)
        if ends:
            axes.set_xticks([edges[0], edges[-1]], ends)
        else:
            figures.in_thousands(axes.xaxis)
            axes.locator_params(axis="x", nbins=6, integer=each)

    return paint


def _bars(values: stats.Values) -> Callable[[Any], None]:
    def paint(axes: Any) -> None:
        some = list(values.counts.items())[:BARS]
        names = [_safe(_cut(str(value))) for value, _ in some]
        counts = [count for _, count in some]
        rest = sum(values.counts.values()) - sum(counts)
        if rest:
            names.append(f"{len(values.counts) - len(some):,} others")
            counts.append(rest)
        places = np.arange(len(counts))[::-1]
        colours = [figures.COLOURS[0]] * len(some) + [figures.GREY]
        axes.barh(places, counts, 0.75, color=colours[: len(counts)])
        axes.set_yticks(places, names)
        figures.in_thousands(axes.xaxis)

    return paint


def _cut(text: str) -> str:
    return printable(shortened(text, 20)) or "(empty)"


def _safe(text: str) -> str:
    """Without what matplotlib takes for mathematics."""
    return text.replace("$", r"\$")
