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
        "--older-than",
        type=parse_age,
        default=lake.RETENTION,
        metavar="AGE",
        help="7d (default), 12h, 30m, 0",
    )
    add_change(parser)


def run(args: argparse.Namespace) -> int:
    options = {"older_than": args.older_than, **options_of(args)}
    report = lake.vacuum(args.table, dry_run=True, **options)
    summary = f"{counted(len(report.files), 'file')}, {human_size(report.bytes)}"
    if report.states:
        summary += f", of {counted(len(report.states), 'snapshot')} that can not be read afterwards"
    if not args.dry_run and (report.files or report.states):
        if not consents(args, f"Remove {summary}?"):
            say(f"{args.table}: nothing was removed")
            return 0
        report = lake.vacuum(args.table, dry_run=False, **options)
    if args.json:
        print_json(
            {"files": report.files, "bytes": report.bytes, "snapshots": report.states, "removed": report.done}
        )
        return 0
    if not report.files and not report.states:
        say(f"{args.table}: there is nothing to remove")
        return 0
    say(f"{args.table}: {summary} {'removed' if report.done else 'would be removed'}")
    if not report.done:
        for file in report.files[:SHOWN]:
            say(f"  {file}")
        if len(report.files) > SHOWN:
            print(f"  … and {len(report.files) - SHOWN:,} more (--json lists all)")
    return 0
