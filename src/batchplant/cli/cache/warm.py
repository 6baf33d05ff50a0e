"""Fetch a dataset into the cache, so that the first epoch is as fast as the second.

examples:
  batchplant cache warm s3://bucket/train.tar
  batchplant cache warm 's3://bucket/train-{000..015}.tar' --cache /data/cache --cache-bytes 500GB
  batchplant cache warm s3://bucket/train.beton --option endpoint=http://minio.example:9000

What is there already is not fetched again. A Loader uses the cache where `cache` names it: an option of
`open`, the variable BATCHPLANT_CACHE, or the configuration.
"""

from __future__ import annotations

import argparse
import dataclasses

from ...formats.registry import open as open_reader
from ...loading.warm import warm
from ..terminal import (
    add_source,
    counted,
    human_size,
    parse_options,
    parse_size,
    print_json,
    progress_bar,
    say,
)
from ._folder import add_cache, is_configured, settings


def add_args(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    add_cache(parser)
    parser.add_argument(
        "--cache-bytes",
        type=parse_size,
        metavar="SIZE",
        help="its limit (default: as configured, 100GB)",
    )


def run(args: argparse.Namespace) -> int:
    folder, most = settings(args, args.source[0])
    most = args.cache_bytes or most
    options = {**parse_options(args.option), "cache": folder, "cache_bytes": most}
    opening = open_reader(args.source, format=args.format, skip=args.skip, where=args.where, **options)
    with opening as reader, progress_bar("blocks", quiet=args.json) as report:
        found = warm(reader, report)
    if args.json:
        print_json({"folder": folder, **dataclasses.asdict(found)})
        return 0
    say(
        f"{folder}: {human_size(found.bytes)} of {counted(found.objects, 'object')} in "
        f"{counted(found.blocks, 'block')}, {human_size(found.fetched)} of it fetched now"
    )
    if not is_configured(args.source[0], folder):
        print(f"  note: a Loader uses it with BATCHPLANT_CACHE={folder}, or by source_options")
    return 0
