"""Remove blocks from the cache: all, or those of some objects; or what unfinished writes left.

examples:
  batchplant cache clear
  batchplant cache clear s3://bucket/train/                    (all below)
  batchplant cache clear 's3://bucket/train-{000..015}.tar'
  batchplant cache clear 's3://bucket/*.parquet' --cache /data/cache
  batchplant cache clear --writes           (what killed writers left, here and in their buckets)

It is safe at any time: whoever reads a block goes on, and fetches it when it is needed again.
"""

from __future__ import annotations

import argparse

from ...errors import OptionError
from ...storage.patterns import braces
from ...storage.targets import clear as clear_writes
from ..terminal import human_size, print_json, say
from ._folder import add_cache, existing


def add_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "url", metavar="URL", nargs="*", help="objects, folders, globs or braces (default: all)"
    )
    parser.add_argument(
        "--writes", action="store_true", help="instead, give up writes that were not finished"
    )
    add_cache(parser)


def run(args: argparse.Namespace) -> int:
    if args.writes:
        return _clear_writes(args)
    folder, cache = existing(args)
    removed = 0
    if cache is not None:
        removed = cache.clear([pattern for url in args.url for pattern in braces(url)] if args.url else None)
    if args.json:
        print_json({"folder": folder, "removed": removed})
    elif removed:
        say(f"{folder}: {human_size(removed)} removed")
    else:
        say(f"{folder}: nothing of {'these' if args.url else 'anything'} is cached there")
    return 0


def _clear_writes(args: argparse.Namespace) -> int:
    if args.url:
        raise OptionError("--writes gives up all that were not finished, and takes no URL")
    leftovers = clear_writes()
    if args.json:
        print_json(
            {
                "removed": sum(leftover.size for leftover in leftovers),
                "writes": [leftover.url for leftover in leftovers],
            }
        )
    for leftover in leftovers if not args.json else ():
        say(f"{leftover.url}: {human_size(leftover.size)} removed")
    if not leftovers and not args.json:
        print("there are no writes that were not finished")
    return 0
