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
from .. import terminal
from ..terminal import counted, human_size, say
from ._folder import add_cache, is_configured, settings


def add_args(parser: argparse.ArgumentParser) -> None:
    terminal.add_source(parser)
    add_cache(parser)
    parser.add_argument(
        "--cache-bytes",
        type=terminal.parse_size,
        metavar="SIZE",
        help="its limit (default: as configured, 100GB)",
    )


def run(args: argparse.Namespace) -> int:
    folder, max_bytes = settings(args, args.source[0])
    max_bytes = args.cache_bytes or max_bytes
    options = {**terminal.parse_options(args.option), "cache": folder, "cache_bytes": max_bytes}
    opening = open_reader(args.source, format=args.format, skip=args.skip, where=args.where, **options)
    with opening as reader, terminal.progress_bar("blocks", quiet=args.json) as report:
        result = warm(reader, report)
    if args.json:
        terminal.print_json({"folder": folder, **dataclasses.asdict(result)})
        return 0
    say(
        f"{folder}: {human_size(result.bytes)} of {counted(result.objects, 'object')} in "
        f"{counted(result.blocks, 'block')}, {human_size(result.fetched)} of it fetched now"
    )
    if not is_configured(args.source[0], folder):
        print(f"  note: a Loader uses it with BATCHPLANT_CACHE={folder}, or by bp.open(…, cache=…)")
    return 0
