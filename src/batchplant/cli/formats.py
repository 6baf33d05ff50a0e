"""List the formats, or all about one.

examples:
  batchplant formats
  batchplant formats beton
  batchplant formats --json
"""

from __future__ import annotations

import argparse
import inspect
from typing import Any

from rich.markup import escape
from rich.table import Table

from ..format import Format
from ..options import expected, own_options
from ..registry import all_formats, get_format
from .terminal import console, print_json

# A terminal of less has no room for the table.
NARROW = 72


def add_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="one format: what it holds and its options")


def run(args: argparse.Namespace) -> int:
    if args.name is not None:
        return _one(get_format(args.name), args.json)
    found = sorted(all_formats().values(), key=lambda one: one.name)
    if args.json:
        print_json([one.describe() for one in found])
        return 0
    out = console()
    if out.width < NARROW:
        for one in found:
            print(f"{one.name:<12} {one.title}")
        return 0
    table = Table(box=None, pad_edge=False)
    for column in ("name", "suffixes", "read", "write", "field kinds", "install"):
        # What is copied from the screen stays in one piece.
        table.add_column(column, overflow="fold", no_wrap=column in ("name", "install"))
    for one in found:
        suffixes = " ".join(one.suffixes) or "a folder"
        table.add_row(
            one.name, suffixes, "yes", "yes" if one.writer else "no", one.holds, escape(_install(one))
        )
    with out.capture() as shown:
        out.print(table)
    print("\n".join(line.rstrip() for line in shown.get().splitlines()))
    return 0


def _install(one: Format) -> str:
    return f'"batchplant[{one.extra}]"' if one.extra else ""


def _options(made: Any) -> dict[str, str]:
    return {
        name: "" if option.default is inspect.Parameter.empty else repr(option.default)
        for name, option in own_options(made).items()
    }


def _one(found: Format, as_json: bool) -> int:
    described = found.describe()
    described["reader options"] = _options(found.reader)
    described["writer options"] = _options(found.writer) if found.writer else {}
    if as_json:
        print_json(described)
        return 0
    print(f"{found.name}: {found.title}")
    print(f"  suffixes     {' '.join(found.suffixes) or 'a folder'}")
    held = found.holds if found.tensors else ", ".join(described["kinds"])
    print(f"  holds        {held}{', missing values' if found.optional else ''}")
    print(f"  notes        {found.notes}")
    print(f"  spec         {found.spec}")
    for side, made in (("reading", found.reader), ("writing", found.writer)):
        if made is not None:
            about = " ".join((inspect.getdoc(made) or "").replace("``", "").split())
            print(f"  {side:<12} {about}")
            takes = expected(made)
            for name, default in _options(made).items():
                print(f"    {name}: {takes[name]} (default {default})")
    return 0
