"""Make one dataset of several, such as one file of the shards that many processes wrote.

examples:
  batchplant merge 'train-*.beton' train.beton
  batchplant merge monday.csv tuesday.csv week.parquet
  batchplant merge s3://mine/shards/ train.tar --checksums

The samples follow one another as the sources are named. Cells pass as they are: nothing is encoded again. The
sources stay.
"""

from __future__ import annotations

import argparse

from ..formats.registry import create_with
from ..jobs.convert import convert
from ..jobs.convert_options import ConvertOptions
from . import terminal
from .convert import report


def add_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SRC", nargs="+", help="files, folders, URLs, globs")
    parser.add_argument("target", metavar="DST", help="the suffix says the format")
    terminal.add_reading(parser)
    terminal.add_writing(parser)
    parser.add_argument("--checksums", action="store_true", help="also write DST.crc, which verify uses")
    parser.add_argument("--overwrite", action="store_true", help="replace DST")
    parser.add_argument("--resume", action="store_true", help="go on where an interrupted merge stopped")
    terminal.add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    with terminal.progress_bar("merging", quiet=args.quiet or args.json) as progress:
        done = convert(
            args.source,
            args.target,
            overwrite=args.overwrite,
            resume=args.resume,
            progress=progress,
            source_options=terminal.reading(args),
            target_options={"format": args.to, **terminal.parse_options(args.to_option, create_with)},
            options=ConvertOptions(checksums=args.checksums),
        )
    report(args, done)
    return 0
