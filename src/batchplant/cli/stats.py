"""Tell what every field holds: counts, means, histograms, frequent values, resolutions, copies.

examples:
  batchplant stats photos/
  batchplant stats 'train-*.tar' --all             (every sample, not some of them)
  batchplant stats train.parquet --fields label,caption
  batchplant stats train.parquet --where 'label==3' --json
  batchplant stats 's3://mine/train-*.tar' --all --processes 16
  batchplant stats /data/train --all --engine dask --scheduler tcp://10.0.0.1:8786

Images, sounds and videos are not decoded: they are what their headers say. Copies are cells, or whole
samples, with the same bytes.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from typing import Any

from rich.table import Table

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
    parser.add_argument("--workers", type=int, metavar="N", help="threads of a task (default: all cores)")
    terminal.add_engine(parser, "looks at the samples")
    terminal.add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    with terminal.progress_bar("looking", quiet=args.quiet or args.json) as progress:
        report = stats.collect(
            args.source,
            fields=terminal.names_of(args.fields) if args.fields else None,
            sample=None if args.all else args.sample, seed=args.seed, engine=terminal.engine_of(args),
            workers=args.workers, progress=progress, **terminal.reading(args, stats.collect),
        )  # fmt: skip
    if args.json:
        terminal.print_json(_as_json(report))
    else:
        _print(report)
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
    table = figures.table("field", "kind", "cells", "missing", "unknown", "bytes")
    table.columns[1].justify = "left"
    for name, field_stats in report.fields.items():
        empty = (f"{count:,}" if count else "" for count in (field_stats.missing, field_stats.unknown))
        table.add_row(
            printable(name), field_stats.kind, f"{field_stats.count:,}", *empty, human_size(field_stats.bytes)
        )
    return table


def _numbers(report: stats.Stats) -> Table:
    table = figures.table("numbers", "min", "median", "max", "mean", "std", "")
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
    table = figures.table("times", "min", "max", "")
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
    table = figures.table("values", "different", "the most frequent")
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
    table = figures.table("copies", "of", "samples that are the same")
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


def short(value: float) -> str:
    """A number in a few letters."""
    if value == int(value) and abs(value) < 10**7:
        return f"{int(value):,}"
    return f"{value:.4g}"
