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
from collections.abc import Iterator
from typing import Any

from rich.table import Table

from ..jobs import stats
from ..tools.measure import figures
from . import stats_figure
from .engines import add_engine, engine_of
from .found import show
from .terminal import (
    add_source,
    console,
    counted,
    human_size,
    names_of,
    parse_options,
    printable,
    progress_bar,
    say,
)

SAMPLE = 100_000
# Values that are printed of each field, in JSON, and the letters of one.
FREQUENT, LISTED, LETTERS = 6, 1000, 24
MEDIA = ("image", "audio", "video")
BARS = " ▁▂▃▄▅▆▇█"


def add_args(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument("--fields", metavar="A,B", help="only these fields")
    parser.add_argument(
        "--sample", type=int, metavar="N", default=SAMPLE,
        help=f"look at N samples at most, drawn at random (default: {SAMPLE:,})",
    )  # fmt: skip
    parser.add_argument("--all", action="store_true", help="look at every sample")
    parser.add_argument("--seed", type=int, metavar="N", default=0, help="for --sample (default: 0)")
    parser.add_argument("--figure", metavar="FILE", help="draw histograms: .png, .svg or .pdf")
    parser.add_argument("--workers", type=int, metavar="N", help="threads of a task (default: all cores)")
    add_engine(parser, "looks at the samples")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    figures.check(args.figure)
    with progress_bar("looking", quiet=args.quiet or args.json) as progress:
        found = stats.collect(
            args.source[0] if len(args.source) == 1 else args.source,
            fields=names_of(args.fields) if args.fields else None,
            sample=None if args.all else args.sample, seed=args.seed, engine=engine_of(args),
            workers=args.workers, progress=progress, format=args.format, skip=args.skip, where=args.where,
            **parse_options(args.option, stats.collect),
        )  # fmt: skip
    show(args, _as_json(found), lambda: _print(found), lambda: stats_figure.draw(found))
    return 1 if found.unreadable else 0


def _as_json(found: stats.Stats) -> dict[str, Any]:
    told = dataclasses.asdict(found)
    for name, field in found.fields.items():
        for which, values in field.values.items():
            some = list(values.counts.items())[:LISTED]
            told["fields"][name]["values"][which] |= {
                "counts": [{"value": value, "count": count} for value, count in some],
                "different": len(values.counts) if values.exact else None,
            }
    return told


def _print(found: stats.Stats) -> None:
    looked = "all of them" if found.looked_at == found.samples else f"{found.looked_at:,} of them"
    what = f"{counted(found.samples)}{f' of {found.format}' if found.format else ''}, looked at {looked}"
    say(f"{found.path}: {what}, {human_size(found.bytes)} in cells")
    screen = console()
    for table in (_fields(found), _numbers(found), _times(found), _values(found), _copies(found)):
        if table.row_count:
            screen.print()
            screen.print(table)
    if found.unreadable:
        print(f"\n{counted(found.unreadable)} cannot be read:")
        for problem in found.problems:
            say(f"  {problem}")
    for remark in found.remarks:
        say(f"note: {remark}")


def _fields(found: stats.Stats) -> Table:
    table = _table("field", "kind", "cells", "missing", "unknown", "bytes")
    table.columns[1].justify = "left"
    for name, one in found.fields.items():
        empty = (f"{count:,}" if count else "" for count in (one.missing, one.unknown))
        table.add_row(printable(name), one.kind, f"{one.count:,}", *empty, human_size(one.bytes))
    return table


def _numbers(found: stats.Stats) -> Table:
    table = _table("numbers", "min", "median", "max", "mean", "std", "")
    table.columns[-1].justify = "left"
    for name, field in found.fields.items():
        for which, one in field.numbers.items():
            if field.times or (which == "values" and _are_classes(field)):
                continue
            said: Any = human_size if which == "bytes" else short
            spread = [one.min, one.median, one.max, one.mean, one.std]
            odd = "".join(
                f", {count:,} {what}" for count, what in ((one.nan, "NaN"), (one.infinite, "inf")) if count
            )
            label = name if which == "values" else f"{name} {which}"
            cells = ["" if number is None else said(number) for number in spread]
            table.add_row(printable(label), *cells, _bars(one.histogram[1]) + odd)
    return table


def _are_classes(field: stats.FieldStats) -> bool:
    """Whether the numbers of a field stand for names."""
    return field.kind == "int" and any(isinstance(one, str) for one in field.values["values"].counts)


def _times(found: stats.Stats) -> Table:
    table = _table("times", "min", "max", "")
    table.columns[-1].justify = "left"
    for name, field in found.fields.items():
        if field.times:
            bars = _bars(field.numbers["values"].histogram[1])
            table.add_row(printable(name), field.times["min"], field.times["max"], bars)
    return table


def _bars(counts: list[int]) -> str:
    """A histogram of a dozen letters."""
    if len(counts) > 12:
        counts = [sum(counts[at : at + 2]) for at in range(0, len(counts), 2)]
    most = max(counts, default=0)
    return "".join(BARS[-(-count * (len(BARS) - 1) // most)] for count in counts) if len(counts) > 1 else ""


def _values(found: stats.Stats) -> Table:
    table = _table("values", "different", "the most frequent")
    table.columns[-1].justify = "left"
    table.columns[-1].no_wrap = False
    for name, field in found.fields.items():
        for which, one in field.values.items():
            # Of values that are hardly ever there twice, none is frequent.
            often = [(value, count) for value, count in one.counts.items() if count > 1 + one.slack]
            different = f"{len(one.counts):,}" if one.exact else "many"
            label = name if which == "values" else f"{name} {which}"
            least = "" if one.exact else "≥ "
            told = ", ".join(f"{_cut(str(value))} {least}{count:,}" for value, count in often[:FREQUENT])
            if one.exact and len(one.counts) == 1 and not often:
                told = _cut(str(next(iter(one.counts))))
            table.add_row(printable(label), different, told + (", …" if len(often) > FREQUENT else ""))
    return table


def _cut(text: str) -> str:
    text = printable(text) if text else "(empty)"
    return text if len(text) <= LETTERS else text[: LETTERS - 1] + "…"


def _copies(found: stats.Stats) -> Table:
    table = _table("copies", "of", "samples that are the same")
    table.columns[-1].justify = "left"
    table.columns[-1].no_wrap = False
    for name, one in _copied(found):
        about = "about " if one.one_in > 1 else ""
        groups = "; ".join(
            " = ".join(map(str, group[:4])) + " = …" * (len(group) > 4) for group in one.groups[:3]
        )
        more = "; …" if len(one.groups) > 3 else ""
        table.add_row(f"{about}{one.count:,}", printable(name), groups + more)
    for column in table.columns[:2]:
        column.justify = "left"
    return table


def _copied(found: stats.Stats) -> Iterator[tuple[str, stats.Copies]]:
    if found.copies is not None and found.copies.count:
        yield "whole samples", found.copies
    for name, field in found.fields.items():
        one = field.copies
        # Cells of which most come again are labels of a kind: the frequent values tell more of them.
        if one is not None and one.count and (field.kind in MEDIA or one.count <= one.different):
            yield name, one


def _table(*columns: str) -> Table:
    return figures.table(*columns)


def short(value: float) -> str:
    """A number in a few letters."""
    if value == int(value) and abs(value) < 10**7:
        return f"{int(value):,}"
    return f"{value:.4g}"
