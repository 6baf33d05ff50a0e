"""Show what the cache holds: of which objects, how much, and the limit; and writes that were not finished.

examples:
  batchplant cache info
  batchplant cache info --cache /data/cache
  batchplant cache info -n 0          (all objects, however many)
  batchplant cache info --json
"""

from __future__ import annotations

import argparse
import dataclasses

from ...storage.remote.disk import CachedObject, CacheInfo
from ...storage.work import Leftover, leftovers
from ...tools import Document
from ..terminal import counted, human_size, print_columns, print_json, printable, say
from ._folder import add_cache, existing

HEADER = ("object", "size", "cached", "blocks")
# Columns after the first are aligned at the right.
NUMBERS = (1, 2, 3)
SHOWN = 50


def add_args(parser: argparse.ArgumentParser) -> None:
    add_cache(parser)
    parser.add_argument(
        "-n", type=int, default=SHOWN, metavar="N", help=f"objects to show, the largest (default {SHOWN})"
    )


def run(args: argparse.Namespace) -> int:
    folder, cache = existing(args)
    info = CacheInfo(folder, 0, None, 0, ()) if cache is None else cache.info()
    writes = leftovers()
    if args.json:
        print_json({**dataclasses.asdict(info), "writes": [_write(write) for write in writes]})
        return 0
    if info.blocks:
        _show(info, args.n)
    else:
        say(f"{folder}: nothing is cached there")
    if writes:
        _show_writes(writes)
    return 0


def _show(info: CacheInfo, max_rows: int) -> None:
    say(
        f"{info.folder}: {human_size(info.bytes)} of {human_size(info.limit)}, "
        f"{counted(info.blocks, 'block')} of {counted(len(info.objects), 'object')}"
    )
    objects = sorted(info.objects, key=lambda cached: -cached.bytes)
    shown = objects[:max_rows] if max_rows > 0 else objects
    ordered = sorted(shown, key=lambda cached: (cached.url is None, cached.url))
    print_columns([HEADER, *map(_row, ordered)], NUMBERS)
    if len(objects) > len(shown):
        print(f"… and {len(objects) - len(shown):,} smaller ones; -n 0 shows all")


def _show_writes(writes: list[Leftover]) -> None:
    print("\nnot finished: `convert --resume` goes on with a write, `cache clear --writes` gives it up")
    rows = [(printable(write.url), human_size(write.size), _state(write)) for write in writes]
    print_columns([("target", "on this disk", "state"), *rows], NUMBERS)


def _state(write: Leftover) -> str:
    return "is being written" if write.busy else "can be resumed" if write.resumable else "cannot be resumed"


def _write(write: Leftover) -> Document:
    return {
        "url": write.url, "folder": str(write.folder), "bytes": write.size, "busy": write.busy,
        "resumable": write.resumable,
    }  # fmt: skip


def _row(cached: CachedObject) -> tuple[str, ...]:
    name = printable(cached.url) if cached.url is not None else f"unknown ({cached.key[:12]}…)"
    share = f" ({cached.bytes / cached.size:.0%})" if cached.size else ""
    return name, human_size(cached.size), f"{human_size(cached.bytes)}{share}", f"{cached.blocks:,}"
