"""List the versions of a Delta or Lance table or the snapshots of an Iceberg table, the latest first.

examples:
  batchplant lake history events.delta
  batchplant lake history events.iceberg -n 0          (all, however many)
  batchplant lake history iceberg://production/logs.events --json

Read an older one with `batchplant head TABLE --option version=3` (Delta) or `--option snapshot=ID` (Iceberg).
"""

from __future__ import annotations

import argparse

from ...formats.base.lake import State
from ...jobs import lake
from ..terminal import print_columns, print_json, printable
from ._table import add_table, described, options_of

SHOWN = 50
HEADER = ("", "id", "time (UTC)", "operation", "rows added", "refs")


def add_args(parser: argparse.ArgumentParser) -> None:
    add_table(parser)
    parser.add_argument("-n", type=int, default=SHOWN, metavar="N", help=f"how many (default {SHOWN})")


def run(args: argparse.Namespace) -> int:
    states = lake.history(args.table, **options_of(args))
    shown = states[: args.n] if args.n > 0 else states
    if args.json:
        print_json({"table": args.table, "states": [described(state) for state in shown]})
        return 0
    print_columns([HEADER, *map(_row, shown)])
    if len(states) > len(shown):
        print(f"… and {len(states) - len(shown):,} older ones; -n 0 shows all")
    return 0


def _row(state: State) -> tuple[str, ...]:
    rows = "" if state.rows is None else f"{state.rows:,}"
    refs = printable(", ".join(state.refs))
    return (
        "*" * state.current,
        str(state.id),
        f"{state.at:%Y-%m-%d %H:%M:%S}",
        printable(state.operation),
        rows,
        refs,
    )
