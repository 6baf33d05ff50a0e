"""Show what the cache holds: of which objects, how much, and the limit.

examples:
  batchplant cache info
  batchplant cache info --cache /data/cache
  batchplant cache info -n 0          (all objects, however many)
  batchplant cache info --json
"""

from __future__ import annotations

import argparse
import dataclasses

from ...storage.remote.disk import CachedObject
from ..terminal import counted, human_size, print_json, printable, say
from ._folder import add_cache, existing

HEADER = ("object", "size", "cached", "blocks")
SHOWN = 50


def add_args(parser: argparse.ArgumentParser) -> None:
    add_cache(parser)
    parser.add_argument(
        "-n", type=int, default=SHOWN, metavar="N", help=f"objects to show, the largest (default {SHOWN})"
    )


def run(args: argparse.Namespace) -> int:
    folder, cache = existing(args)
    if cache is None:
        if args.json:
            print_json({"folder": folder, "bytes": 0, "limit": None, "blocks": 0, "objects": []})
        else:
            say(f"{folder}: nothing is cached there")
        return 0
    found = cache.info()
    if args.json:
        print_json(dataclasses.asdict(found))
        return 0
    say(
        f"{folder}: {human_size(found.bytes)} of {human_size(found.limit)}, "
        f"{counted(found.blocks, 'block')} of {counted(len(found.objects), 'object')}"
    )
    objects = sorted(found.objects, key=lambda one: -one.bytes)
    shown = objects[: args.n] if args.n > 0 else objects
    if shown:
        _print(sorted(shown, key=lambda one: (one.url is None, one.url)))
    if len(objects) > len(shown):
        print(f"… and {len(objects) - len(shown):,} smaller ones; -n 0 shows all")
    return 0


def _print(objects: list[CachedObject]) -> None:
    rows = [HEADER, *map(_row, objects)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    for name, *numbers in rows:
        cells = (f"{cell:>{width}}" for cell, width in zip(numbers, widths[1:], strict=True))
        print(f"{name:<{widths[0]}}  {'  '.join(cells)}")


def _row(one: CachedObject) -> tuple[str, ...]:
    name = printable(one.url) if one.url is not None else f"unknown ({one.key[:12]}…)"
    share = f" ({one.bytes / one.size:.0%})" if one.size else ""
    return name, human_size(one.size), f"{human_size(one.bytes)}{share}", f"{one.blocks:,}"
