"""Put the small files of a table together, as many appends leave them.

examples:
  batchplant lake compact events.delta --dry-run
  batchplant lake compact events.delta --file-size 256MB
  batchplant lake compact iceberg://production/logs.events --json

The rows stay the same, but may change their order. Older versions keep their files until `lake vacuum`.
"""

from __future__ import annotations

import argparse
import dataclasses

from ...formats.base.lake import FILE_BYTES
from ...jobs import lake
from ..terminal import counted, human_size, parse_size, print_json, progress_bar, say
from ._table import add_table, options_of


def add_args(parser: argparse.ArgumentParser) -> None:
    add_table(parser)
    parser.add_argument(
        "--file-size",
        type=parse_size,
        default=FILE_BYTES,
        metavar="SIZE",
        help="smaller files are put together up to this size (default 512MiB)",
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would happen")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    with progress_bar("compacting", quiet=args.quiet or args.json or args.dry_run) as progress:
        report = lake.compact(
            args.table, file_size=args.file_size, dry_run=args.dry_run, progress=progress, **options_of(args)
        )
    if args.json:
        print_json(dataclasses.asdict(report))
        return 0
    if not report.removed:
        say(f"{args.table}: no files can be put together")
    else:
        became = "became" if report.done else "would become"
        files = f"{counted(report.removed, 'file')}, {human_size(report.bytes)},"
        say(f"{args.table}: {files} {became} {'' if report.done else 'about '}{report.added:,}")
    if report.left:
        print(f"  left as they are, for rows of them are deleted: {counted(report.left, 'file')}")
    return 0
