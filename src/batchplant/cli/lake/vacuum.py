"""Remove files that no recent version of a table needs.

examples:
  batchplant lake vacuum events.delta --dry-run
  batchplant lake vacuum events.delta                          (asks before it removes anything)
  batchplant lake vacuum events.iceberg --older-than 30d --yes

Versions that were the latest one at any time within --older-than stay readable, and so does everything that
a branch or tag names. Older ones can not be read afterwards. A reader or writer that has been at work for
longer than that may lose files: choose an age longer than your longest job.
"""

from __future__ import annotations

import argparse

from ...jobs import lake
from ..terminal import counted, human_size, print_json, say
from ._table import add_change, add_table, consents, options_of, parse_age

SHOWN = 10


def add_args(parser: argparse.ArgumentParser) -> None:
    add_table(parser)
    parser.add_argument(
        "--older-than", type=parse_age, default=lake.KEPT, metavar="AGE", help="7d (default), 12h, 30m, 0"
    )
    add_change(parser)


def run(args: argparse.Namespace) -> int:
    how = {"older_than": args.older_than, **options_of(args)}
    found = lake.vacuum(args.table, dry_run=True, **how)
    what = f"{counted(len(found.files), 'file')}, {human_size(found.bytes)}"
    if found.states:
        what += f", of {counted(len(found.states), 'snapshot')} that can not be read afterwards"
    if not args.dry_run and (found.files or found.states):
        if not consents(args, f"Remove {what}?"):
            say(f"{args.table}: nothing was removed")
            return 0
        found = lake.vacuum(args.table, dry_run=False, **how)
    if args.json:
        print_json(
            {"files": found.files, "bytes": found.bytes, "snapshots": found.states, "removed": found.done}
        )
        return 0
    if not found.files and not found.states:
        say(f"{args.table}: there is nothing to remove")
        return 0
    say(f"{args.table}: {what} {'removed' if found.done else 'would be removed'}")
    if not found.done:
        for file in found.files[:SHOWN]:
            say(f"  {file}")
        if len(found.files) > SHOWN:
            print(f"  … and {len(found.files) - SHOWN:,} more (--json lists all)")
    return 0
