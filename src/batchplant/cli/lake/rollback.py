"""Make an older version of a table the current one, as a new transaction.

examples:
  batchplant lake rollback events.delta --to 12
  batchplant lake rollback events.iceberg --to 5541278932141
  batchplant lake rollback events.delta --at 2025-01-31T12:00:00 --dry-run

The versions in between stay in the history, so that you can go forward again. `lake history` lists them.
"""

from __future__ import annotations

import argparse

from ...jobs import lake
from ..terminal import print_json, say
from ._table import add_change, add_table, consents, described, options_of


def add_args(parser: argparse.ArgumentParser) -> None:
    add_table(parser)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--to", type=int, metavar="ID", help="the version (Delta) or snapshot (Iceberg)")
    group.add_argument("--at", metavar="TIME", help="what was current then: 2025-01-31T12:00:00 (UTC)")
    add_change(parser)


def run(args: argparse.Namespace) -> int:
    options = {"at": args.at, **options_of(args)}
    state = lake.rollback(args.table, args.to, dry_run=True, **options)
    done = False
    if state.current:
        outcome = "is the current one"
    elif args.dry_run:
        outcome = "would become the current one"
    elif consents(args, f"Make {state.id} of {state.at:%Y-%m-%d %H:%M:%S}Z the current one?"):
        lake.rollback(args.table, state.id, dry_run=False, **options_of(args))
        done, outcome = True, "is the current one now"
    else:
        outcome = "was not made the current one"
    if args.json:
        print_json({"to": described(state), "done": done})
    else:
        say(f"{args.table}: {state.id} of {state.at:%Y-%m-%d %H:%M:%S}Z {outcome}")
    return 0
