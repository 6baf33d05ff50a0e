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
from collections.abc import Sequence
from typing import Any

from ...storage.remote.disk import CachedObject, CacheInfo
from ...storage.work import Leftover, leftovers
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
    found = CacheInfo(folder, 0, None, 0, ()) if cache is None else cache.info()
    writes = leftovers()
    if args.json:
        print_json({**dataclasses.asdict(found), "writes": [_write(one) for one in writes]})
        return 0
    if found.blocks:
        _show(found, args.n)
    else:
        say(f"{folder}: nothing is cached there")
    if writes:
        _show_writes(writes)
    return 0


def _show(found: CacheInfo, most: int) -> None:
    say(
        f"{found.folder}: {human_size(found.bytes)} of {human_size(found.limit)}, "
        f"{counted(found.blocks, 'block')} of {counted(len(found.objects), 'object')}"
    )
    objects = sorted(found.objects, key=lambda one: -one.bytes)
    shown = objects[:most] if most > 0 else objects
    _print(HEADER, [_row(one) for one in sorted(shown, key=lambda one: (one.url is None, one.url))])
    if len(objects) > len(shown):
        print(f"… and {len(objects) - len(shown):,} smaller ones; -n 0 shows all")


def _show_writes(writes: list[Leftover]) -> None:
    print("\nnot finished: `convert --resume` goes on with a write, `cache clear --writes` gives it up")
    rows = [(printable(one.url), human_size(one.size), _state(one)) for one in writes]
    _print(("target", "on this disk", "state"), rows)


def _state(one: Leftover) -> str:
    return "is being written" if one.busy else "can be resumed" if one.resumable else "cannot be resumed"


def _write(one: Leftover) -> dict[str, Any]:
    return {
        "url": one.url, "folder": str(one.folder), "bytes": one.size, "busy": one.busy,
        "resumable": one.resumable,
    }  # fmt: skip


def _print(header: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> None:
    rows = [header, *lines]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    for name, *numbers in rows:
        cells = (f"{cell:>{width}}" for cell, width in zip(numbers, widths[1:], strict=True))
        print(f"{name:<{widths[0]}}  {'  '.join(cells)}")


def _row(one: CachedObject) -> tuple[str, ...]:
    name = printable(one.url) if one.url is not None else f"unknown ({one.key[:12]}…)"
    share = f" ({one.bytes / one.size:.0%})" if one.size else ""
    return name, human_size(one.size), f"{human_size(one.bytes)}{share}", f"{one.blocks:,}"
