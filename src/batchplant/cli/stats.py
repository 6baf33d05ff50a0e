"""Tell what every field holds: counts, means, histograms, frequent values, resolutions, copies.

examples:
  batchplant stats photos/
  batchplant stats 'train-*.tar' --all             (every sample, not some of them)
  batchplant stats train.parquet --fields label,caption
  batchplant stats train.parquet --where 'label==3' --json
  batchplant stats photos/ --figure stats.png      (the histograms as a figure)
  batchplant stats 's3://mine/train-*.tar' --all --processes 16
  batchplant stats /data/train --all --engine dask --scheduler tcp://10.0.0.1:8786

Images, sounds and videos are not decoded: they are what their headers say. Copies are cells, or whole
samples, with the same bytes.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from rich.table import Table

from ..errors import brief, shortened
from ..jobs import stats
from ..tools import Document
from ..tools.measure import figures
from . import terminal
from .terminal import counted, human_size, printable, say

SAMPLE = 100_000
# Values that are printed of each field, in JSON, and the letters of one.
FREQUENT, LISTED, LETTERS = 6, 1000, 24
MEDIA = ("image", "audio", "video")
BARS = " ▁▂▃▄▅▆▇█"


def add_args(parser: argparse.ArgumentParser) -> None:
    terminal.add_source(parser)
    parser.add_argument("--fields", metavar="A,B", help="only these fields")
    parser.add_argument(
        "--sample", type=int, metavar="N", default=SAMPLE,
        help=f"look at N samples at most, drawn at random (default: {SAMPLE:,})",
    )  # fmt: skip
    parser.add_argument("--all", action="store_true", help="look at every sample")
    parser.add_argument("--seed", type=int, metavar="N", default=0, help="for --sample (default: 0)")
    parser.add_argument("--figure", metavar="FILE", help="draw histograms: .png, .svg or .pdf")
    parser.add_argument("--workers", type=int, metavar="N", help="threads of a task (default: all cores)")
    terminal.add_engine(parser, "looks at the samples")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    figures.check(args.figure)
    with terminal.progress_bar("looking", quiet=args.quiet or args.json) as progress:
        report = stats.collect(
            args.source[0] if len(args.source) == 1 else args.source,
            fields=terminal.names_of(args.fields) if args.fields else None,
            sample=None if args.all else args.sample, seed=args.seed, engine=terminal.engine_of(args),
            workers=args.workers, progress=progress, format=args.format, skip=args.skip, where=args.where,
            **terminal.parse_options(args.option, stats.collect),
        )  # fmt: skip
    terminal.show_result(args, _as_json(report), lambda: _print(report), lambda: draw(report))
    return 1 if report.unreadable else 0


def _as_json(report: stats.Stats) -> Document:
    document = dataclasses.asdict(report)
    for name, field in report.fields.items():
        for kind, values in field.values.items():
            common = list(values.counts.items())[:LISTED]
            document["fields"][name]["values"][kind] |= {
                "counts": [{"value": value, "count": count} for value, count in common],
                "different": len(values.counts) if values.exact else None,
            }
    return document


def _print(report: stats.Stats) -> None:
    say(f"{report.path}: {terminal.counts_of(report)}, {human_size(report.bytes)} in cells")
    screen = terminal.console()
    for table in (_fields(report), _numbers(report), _times(report), _values(report), _copies(report)):
        if table.row_count:
            screen.print()
            screen.print(table)
    if report.unreadable:
        print(f"\n{counted(report.unreadable)} cannot be read:")
        for problem in report.problems:
            say(f"  {problem}")
    for remark in report.remarks:
        say(f"note: {remark}")


def _fields(report: stats.Stats) -> Table:
    table = _table("field", "kind", "cells", "missing", "unknown", "bytes")
    table.columns[1].justify = "left"
    for name, field_stats in report.fields.items():
        empty = (f"{count:,}" if count else "" for count in (field_stats.missing, field_stats.unknown))
        table.add_row(
            printable(name), field_stats.kind, f"{field_stats.count:,}", *empty, human_size(field_stats.bytes)
        )
    return table


def _numbers(report: stats.Stats) -> Table:
    table = _table("numbers", "min", "median", "max", "mean", "std", "")
    table.columns[-1].justify = "left"
    for name, field in report.fields.items():
        for kind, summary in field.numbers.items():
            if field.times or (kind == "values" and _are_classes(field)):
                continue
            format_value: Any = human_size if kind == "bytes" else short
            spread = [summary.min, summary.median, summary.max, summary.mean, summary.std]
            odd = "".join(
                f", {count:,} {label}"
                for count, label in ((summary.nan, "NaN"), (summary.infinite, "inf"))
                if count
            )
            label = name if kind == "values" else f"{name} {kind}"
            cells = ["" if number is None else format_value(number) for number in spread]
            table.add_row(printable(label), *cells, _bars(summary.histogram[1]) + odd)
    return table


def _are_classes(field: stats.FieldStats) -> bool:
    """True where the numbers of a field stand for names."""
    return field.kind == "int" and any(isinstance(value, str) for value in field.values["values"].counts)


def _times(report: stats.Stats) -> Table:
    table = _table("times", "min", "max", "")
    table.columns[-1].justify = "left"
    for name, field in report.fields.items():
        if field.times:
            bars = _bars(field.numbers["values"].histogram[1])
            table.add_row(printable(name), field.times["min"], field.times["max"], bars)
    return table


def _bars(counts: list[int]) -> str:
    """A histogram of a dozen letters."""
    if len(counts) > 12:
        counts = [sum(counts[bin_number : bin_number + 2]) for bin_number in range(0, len(counts), 2)]
    highest = max(counts, default=0)
    return (
        "".join(BARS[-(-count * (len(BARS) - 1) // highest)] for count in counts) if len(counts) > 1 else ""
    )


def _values(report: stats.Stats) -> Table:
    table = _table("values", "different", "the most frequent")
    table.columns[-1].justify = "left"
    table.columns[-1].no_wrap = False
    for name, field in report.fields.items():
        for kind, counted_values in field.values.items():
            # Of values that are hardly ever there twice, none is frequent.
            often = [
                (value, count)
                for value, count in counted_values.counts.items()
                if count > 1 + counted_values.slack
            ]
            different = f"{len(counted_values.counts):,}" if counted_values.exact else "many"
            label = name if kind == "values" else f"{name} {kind}"
            prefix = "" if counted_values.exact else "≥ "
            text = ", ".join(f"{_cut(str(value))} {prefix}{count:,}" for value, count in often[:FREQUENT])
            if counted_values.exact and len(counted_values.counts) == 1 and not often:
                text = _cut(str(next(iter(counted_values.counts))))
            table.add_row(printable(label), different, text + (", …" if len(often) > FREQUENT else ""))
    return table


def _cut(text: str) -> str:
    text = printable(text) if text else "(empty)"
    return text if len(text) <= LETTERS else text[: LETTERS - 1] + "…"


def _copies(report: stats.Stats) -> Table:
    table = _table("copies", "of", "samples that are the same")
    table.columns[-1].justify = "left"
    table.columns[-1].no_wrap = False
    for name, copies in _copied(report):
        about = "about " if copies.one_in > 1 else ""
        groups = "; ".join(
            " = ".join(map(str, group[:4])) + " = …" * (len(group) > 4) for group in copies.groups[:3]
        )
        ellipsis = "; …" if len(copies.groups) > 3 else ""
        table.add_row(f"{about}{copies.count:,}", printable(name), groups + ellipsis)
    for column in table.columns[:2]:
        column.justify = "left"
    return table


def _copied(report: stats.Stats) -> Iterator[tuple[str, stats.Copies]]:
    if report.copies is not None and report.copies.count:
        yield "whole samples", report.copies
    for name, field in report.fields.items():
        copies = field.copies
        # Cells of which most come again are labels of a kind: the frequent values tell more of them.
        if copies is not None and copies.count and (field.kind in MEDIA or copies.count <= copies.different):
            yield name, copies


def _table(*columns: str) -> Table:
    return figures.table(*columns)


def short(value: float) -> str:
    """A number in a few letters."""
    if value == int(value) and abs(value) < 10**7:
        return f"{int(value):,}"
    return f"{value:.4g}"


COLUMNS = 3
# Panels that are drawn, and the bars of one.
MAX_PANELS, MAX_PANEL_BARS = 24, 10

Panel = tuple[str, Callable[[Any], None]]


def draw(report: stats.Stats) -> figures.Figure:
    panels = list(_panels(report))[:MAX_PANELS]
    rows = max(1, -(-len(panels) // COLUMNS))
    figure = figures.blank(4 * COLUMNS, 2.6 * rows)
    for number, (title, paint) in enumerate(panels):
        axes = figure.add_subplot(rows, COLUMNS, number + 1)
        paint(axes)
        axes.set_title(_safe(title), fontsize=9, loc="left")
        figures.tidy(axes)
    return figure


def _panels(report: stats.Stats) -> Iterator[Panel]:
    for name, field in report.fields.items():
        drawn = set()
        for kind, values in field.values.items():
            # Many numbers make a histogram instead; values that are hardly ever there twice make no bars.
            often = values.exact and 1 < len(values.counts) <= sum(values.counts.values()) // 2
            if often and (len(values.counts) <= MAX_PANEL_BARS or not _is_number(next(iter(values.counts)))):
                drawn.add(kind)
                yield _label(name, kind), _bar_panel(values)
        for kind, numbers in field.numbers.items():
            if len(numbers.histogram[1]) > 1 and kind not in drawn:
                ends = [field.times["min"], field.times["max"]] if field.times else None
                said = "" if ends else f", median {numbers.median:,.4g}"
                yield _label(name, kind) + said, _histogram(numbers, ends)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _label(name: str, kind: str) -> str:
    return brief(name) if kind == "values" else f"{brief(name)}: {kind}"


def _histogram(numbers: stats.Numbers, ends: list[str] | None) -> Callable[[Any], None]:
    """``ends``: the first and the last as text."""

    def paint(axes: figures.Axes) -> None:
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


def _bar_panel(values: stats.Values) -> Callable[[Any], None]:
    def paint(axes: figures.Axes) -> None:
        common = list(values.counts.items())[:MAX_PANEL_BARS]
        names = [_safe(_cut_label(str(value))) for value, _ in common]
        counts = [count for _, count in common]
        rest = sum(values.counts.values()) - sum(counts)
        if rest:
            names.append(f"{len(values.counts) - len(common):,} others")
            counts.append(rest)
        places = np.arange(len(counts))[::-1]
        colours = [figures.COLOURS[0]] * len(common) + [figures.GREY]
        axes.barh(places, counts, 0.75, color=colours[: len(counts)])
        axes.set_yticks(places, names)
        figures.in_thousands(axes.xaxis)

    return paint


def _cut_label(text: str) -> str:
    return printable(shortened(text, 20)) or "(empty)"


def _safe(text: str) -> str:
    """Without what matplotlib takes for mathematics."""
    return text.replace("$", r"\$")
