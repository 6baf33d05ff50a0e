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
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--to", type=int, metavar="ID", help="the version (Delta) or snapshot (Iceberg)")
    which.add_argument("--at", metavar="TIME", help="what was current then: 2025-01-31T12:00:00 (UTC)")
    add_change(parser)


def run(args: argparse.Namespace) -> int:
    how = {"at": args.at, **options_of(args)}
    found = lake.rollback(args.table, args.to, dry_run=True, **how)
    done = False
    if found.current:
        said = "is the current one"
    elif args.dry_run:
        said = "would become the current one"
    elif consents(args, f"Make {found.id} of {found.at:%Y-%m-%d %H:%M:%S}Z the current one?"):
        lake.rollback(args.table, found.id, dry_run=False, **options_of(args))
        done, said = True, "is the current one now"
    else:
        said = "was not made the current one"
    if args.json:
        print_json({"to": described(found), "done": done})
    else:
        say(f"{args.table}: {found.id} of {found.at:%Y-%m-%d %H:%M:%S}Z {said}")
    return 0
