"""List the formats, compare what they can do, or tell all about one.

examples:
  batchplant formats
  batchplant formats beton
  batchplant formats --compare
  batchplant formats --compare beton webdataset parquet
  batchplant formats --json
"""

from __future__ import annotations

import argparse
import inspect
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..errors import OptionError
from ..formats.base.format import CLAIMS, Format, groups
from ..formats.base.options import expected, own_options
from ..formats.registry import all_formats, get_format
from .terminal import console, print_json

# Terminals of less have no room for the table, and for those that compare.
NARROW, NARROW_COMPARED = 72, 76
# What a column needs where formats stand side by side, and what the names of the claims do.
COLUMN, LABELS = 14, 16
# What stands in a table where a format cannot do something.
CANNOT = "–"


def add_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="*", help="one format: what it holds and its options")
    parser.add_argument(
        "--compare", action="store_true", help="what formats can do, side by side: those named, or all"
    )


def run(args: argparse.Namespace) -> int:
    # Names with commas are how other commands take them.
    named = [name for text in args.name for name in text.split(",") if name]
    if args.compare:
        return _compared([get_format(name) for name in dict.fromkeys(named)], args.json)
    if len(named) > 1:
        raise OptionError(f"one format, or --compare {' '.join(named)} to see what they can do")
    if named:
        return _one(get_format(named[0]), args.json)
    formats = sorted(all_formats().values(), key=lambda format: format.name)
    if args.json:
        print_json([format.describe() for format in formats])
        return 0
    out = console()
    if out.width < NARROW:
        for format in formats:
            print(f"{format.name:<12} {format.title}")
        return 0
    table = Table(box=None, pad_edge=False)
    for column in ("name", "suffixes", "read", "write", "field kinds", "install"):
        # What is copied from the screen stays in one piece.
        table.add_column(column, overflow="fold", no_wrap=column in ("name", "install"))
    for format in formats:
        written = "yes" if format.writer else "no"
        table.add_row(format.name, format.called, "yes", written, format.holds, escape(_install(format)))
    _print(out, table)
    return 0


def _print(out: Console, table: Table) -> None:
    with out.capture() as shown:
        out.print(table)
    print("\n".join(line.rstrip() for line in shown.get().splitlines()))


def _compared(formats: list[Format], as_json: bool) -> int:
    """Capabilities of formats: side by side for a few, else one below the other."""
    side_by_side = bool(formats)
    formats = formats or sorted(all_formats().values(), key=lambda format: format.name)
    if as_json:
        print_json([{"name": format.name, **format.can.describe()} for format in formats])
        return 0
    out = console()
    if side_by_side and out.width >= LABELS + COLUMN * len(formats):
        rows = [[CLAIMS[name]["title"], *(_cell(format, name) for format in formats)] for name in CLAIMS]
        _print(out, _table(["", *(format.name for format in formats)], rows))
        print()
    elif out.width < NARROW_COMPARED:
        _print_list(formats)
    else:
        for group, names in groups().items():
            print(f"{group}\n")
            # Who reads it is a long list, and has a table of its own.
            for part in (names[:-1], names[-1:]) if names[-1] == "ecosystem" else (names,):
                rows = [[format.name, *(_cell(format, name) for name in part)] for format in formats]
                _print(out, _table(["", *(CLAIMS[name]["title"] for name in part)], rows))
                print()
    print("What each means: docs/choosing.md. More: batchplant formats NAME")
    return 0


def _table(columns: list[str], rows: list[list[str]]) -> Table:
    """As narrow as it has to be, but no word is broken."""
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        longest = max(len(word) for row in [columns, *rows] for word in row[number].split())
        single = not any(" " in row[number] for row in rows)
        # Left to itself, the table breaks words of one column before it gives room from another.
        table.add_column(column, width=longest if single else None, min_width=longest, no_wrap=number == 0)
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def _cell(format: Format, name: str) -> str:
    return format.can.shown(name) or CANNOT


def _print_list(formats: list[Format]) -> None:
    """For terminals that have no room for tables."""
    for format in formats:
        print(format.name)
        for name, about in CLAIMS.items():
            claim = format.can.shown(name)
            if claim:
                print(f"  {about['title']}{'' if claim == 'yes' else f': {claim}'}")


def _install(format: Format) -> str:
    return f'"batchplant[{format.extra}]"' if format.extra else ""


def _options(factory: Any) -> dict[str, str]:
    return {
        name: "" if option.default is inspect.Parameter.empty else repr(option.default)
        for name, option in own_options(factory).items()
    }


def _one(format: Format, as_json: bool) -> int:
    described = format.describe()
    described["reader options"] = _options(format.reader)
    described["writer options"] = _options(format.writer) if format.writer else {}
    if as_json:
        print_json(described)
        return 0
    print(f"{format.name}: {format.title}")
    print(f"  suffixes     {format.called}")
    kinds = format.holds if format.tensors or format.fields else ", ".join(described["kinds"])
    print(f"  holds        {kinds}{', missing values' if format.optional else ''}")
    print(f"  notes        {format.notes}")
    print(f"  spec         {format.spec}")
    for side, factory in (("reading", format.reader), ("writing", format.writer)):
        if factory is not None:
            about = " ".join((inspect.getdoc(factory) or "").replace("``", "").split())
            print(f"  {side:<12} {about}")
            takes = expected(factory)
            for name, default in _options(factory).items():
                print(f"    {name}: {takes[name]} (default {default})")
    return 0
