"""Remove blocks from the cache: all, or those of some objects.

examples:
  batchplant cache clear
  batchplant cache clear s3://bucket/train/                    (all below)
  batchplant cache clear 's3://bucket/train-{000..015}.tar'
  batchplant cache clear 's3://bucket/*.parquet' --cache /data/cache

It is safe at any time: whoever reads a block goes on, and fetches it when it is needed again.
"""

from __future__ import annotations

import argparse

from ...storage.patterns import braces
from ..terminal import human_size, print_json, say
from ._folder import add_cache, existing


def add_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "url", metavar="URL", nargs="*", help="objects, folders, globs or braces (default: all)"
    )
    add_cache(parser)


def run(args: argparse.Namespace) -> int:
    folder, cache = existing(args)
    removed = 0
    if cache is not None:
        removed = cache.clear([one for url in args.url for one in braces(url)] if args.url else None)
    if args.json:
        print_json({"folder": folder, "removed": removed})
    elif removed:
        say(f"{folder}: {human_size(removed)} removed")
    else:
        say(f"{folder}: nothing of {'these' if args.url else 'anything'} is cached there")
    return 0
