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
from typing import Any

from ..formats.registry import create_with
from ..jobs.convert import convert
from ..jobs.convert_options import ConvertOptions
from . import terminal
from .terminal import counted, human_size, printable


def add_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SRC", nargs="+", help="files, folders, URLs, globs")
    parser.add_argument("target", metavar="DST", help="the suffix says the format")
    terminal.add_reading(parser)
    parser.add_argument("--to", metavar="NAME", help="the format to write (default: by the suffix of DST)")
    parser.add_argument(
        "--to-option", metavar="NAME=VALUE", action="append", default=[], help="an option of its writer"
    )
    parser.add_argument("--checksums", action="store_true", help="also write DST.crc, which verify uses")
    parser.add_argument("--overwrite", action="store_true", help="replace DST")
    parser.add_argument("--resume", action="store_true", help="go on where an interrupted merge stopped")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    sources: Any = args.source if len(args.source) > 1 else args.source[0]
    with terminal.progress_bar("merging", quiet=args.quiet or args.json) as progress:
        done = convert(
            sources,
            args.target,
            overwrite=args.overwrite,
            resume=args.resume,
            progress=progress,
            source_options={
                "format": args.format,
                "skip": args.skip,
                "where": args.where,
                **terminal.parse_options(args.option),
            },
            target_options={"format": args.to, **terminal.parse_options(args.to_option, create_with)},
            options=ConvertOptions(checksums=args.checksums),
        )
    size = terminal.size_of(done.files)
    if args.json:
        terminal.print_json(
            {"files": done.files, "samples": done.samples, "bytes": size, "remarks": done.remarks}
        )
        return 0
    said = "" if size is None else f", {human_size(size)}"
    print(f"{printable(args.target)}: {counted(done.samples)}{said}, {done.seconds:.1f} s")
    for remark in done.remarks:
        print(f"  note: {remark}")
    return 0
