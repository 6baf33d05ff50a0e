"""Show, clear and fill the cache of remote data on this machine.

examples:
  batchplant cache info
  batchplant cache info --cache /data/cache --json
  batchplant cache clear s3://bucket/train/
  batchplant cache warm s3://bucket/train.tar
  batchplant cache warm --help
"""

from __future__ import annotations

import argparse
import dataclasses
import os

from ..errors import OptionError
from ..storage.patterns import braces
from ..storage.remote.disk import FILE_NAME, CachedObject, CacheInfo, DiskCache, open_cache
from ..storage.settings import DEFAULT_CACHE_BYTES, StorageOptions, settings_for
from ..storage.targets import clear as clear_writes
from ..storage.work import Leftover, leftovers
from . import terminal
from .parser import Command, add_commands
from .terminal import counted, human_size, print_json, printable, say

SHOWN = 50


def add_args(parser: argparse.ArgumentParser) -> None:
    commands = (Command(_add_info, info), Command(_add_clear, clear), Command(_add_warm, warm))
    add_commands(parser, commands)


def _add_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cache",
        metavar="DIR",
        help="the folder (default: BATCHPLANT_CACHE, else `cache` of the configuration, else "
        "~/.cache/batchplant/blocks)",
    )


def _cache_settings(args: argparse.Namespace, url: str = "") -> tuple[str, int]:
    """Return the folder and the limit of the cache."""
    settings = settings_for(url, StorageOptions(cache=args.cache))
    folder = settings.cache
    if folder is None:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        # A user without a home has no cache.
        if not os.path.isabs(home):
            raise OptionError("say where the cache is: --cache DIR")
        folder = os.path.join(home, "batchplant", "blocks")
    max_bytes = DEFAULT_CACHE_BYTES if settings.cache_bytes is None else settings.cache_bytes
    return _absolute(folder), max_bytes


def _absolute(folder: str) -> str:
    return os.path.abspath(os.path.expanduser(folder))


def _existing(args: argparse.Namespace) -> tuple[str, DiskCache | None]:
    """Return the folder, and its cache where there is one: looking makes none."""
    folder, max_bytes = _cache_settings(args)
    return folder, open_cache(folder, max_bytes) if os.path.lexists(os.path.join(folder, FILE_NAME)) else None


# -- info ------------------------------------------------------------------------------------------------


def _add_info(parser: argparse.ArgumentParser) -> None:
    _add_cache(parser)
    parser.add_argument(
        "-n", type=int, default=SHOWN, metavar="N", help=f"objects to show, the largest (default {SHOWN})"
    )


def info(args: argparse.Namespace) -> int:
    """Show what the cache holds, of which objects, and the limit; and writes that were not finished.

    examples:
      batchplant cache info
      batchplant cache info --cache /data/cache
      batchplant cache info -n 0          (all objects, however many)
      batchplant cache info --json
    """
    folder, cache = _existing(args)
    info = CacheInfo(folder, 0, None, 0, ()) if cache is None else cache.info()
    writes = leftovers()
    if args.json:
        unfinished = [
            {
                "url": write.url, "folder": str(write.folder), "bytes": write.size, "busy": write.busy,
                "resumable": write.resumable,
            }
            for write in writes
        ]  # fmt: skip
        print_json({**dataclasses.asdict(info), "writes": unfinished})
        return 0
    if info.blocks:
        _show(info, args.n)
    else:
        say(f"{folder}: nothing is cached there")
    if writes:
        print("\nnot finished: `convert --resume` goes on with a write, `cache clear --writes` gives it up")
        rows = [(printable(write.url), human_size(write.size), _state(write)) for write in writes]
        terminal.print_columns([("target", "on this disk", "state"), *rows], (1, 2, 3))
    return 0


def _show(info: CacheInfo, max_rows: int) -> None:
    say(
        f"{info.folder}: {human_size(info.bytes)} of {human_size(info.limit)}, "
        f"{counted(info.blocks, 'block')} of {counted(len(info.objects), 'object')}"
    )
    objects = sorted(info.objects, key=lambda cached: -cached.bytes)
    shown = objects[:max_rows] if max_rows > 0 else objects
    ordered = sorted(shown, key=lambda cached: (cached.url is None, cached.url))
    terminal.print_columns([("object", "size", "cached", "blocks"), *map(_row, ordered)], (1, 2, 3))
    if len(objects) > len(shown):
        print(f"… and {len(objects) - len(shown):,} smaller ones; -n 0 shows all")


def _row(cached: CachedObject) -> tuple[str, ...]:
    name = printable(cached.url) if cached.url is not None else f"unknown ({cached.key[:12]}…)"
    share = f" ({cached.bytes / cached.size:.0%})" if cached.size else ""
    return name, human_size(cached.size), f"{human_size(cached.bytes)}{share}", f"{cached.blocks:,}"


def _state(write: Leftover) -> str:
    return "is being written" if write.busy else "can be resumed" if write.resumable else "cannot be resumed"


# -- clear -----------------------------------------------------------------------------------------------


def _add_clear(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "url", metavar="URL", nargs="*", help="objects, folders, globs or braces (default: all)"
    )
    parser.add_argument(
        "--writes", action="store_true", help="instead, give up writes that were not finished"
    )
    _add_cache(parser)


def clear(args: argparse.Namespace) -> int:
    """Remove blocks from the cache: all, or those of some objects; or what unfinished writes left.

    examples:
      batchplant cache clear
      batchplant cache clear s3://bucket/train/                    (all below)
      batchplant cache clear 's3://bucket/train-{000..015}.tar'
      batchplant cache clear 's3://bucket/*.parquet' --cache /data/cache
      batchplant cache clear --writes           (what killed writers left, here and in their buckets)

    It is safe at any time: whoever reads a block goes on, and fetches it when it is needed again.
    """
    if args.writes:
        return _clear_writes(args)
    folder, cache = _existing(args)
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
    writes = clear_writes()
    if args.json:
        removed = sum(write.size for write in writes)
        print_json({"removed": removed, "writes": [write.url for write in writes]})
        return 0
    for write in writes:
        say(f"{write.url}: {human_size(write.size)} removed")
    if not writes:
        print("there are no writes that were not finished")
    return 0


# -- warm ------------------------------------------------------------------------------------------------


def _add_warm(parser: argparse.ArgumentParser) -> None:
    terminal.add_source(parser)
    _add_cache(parser)
    parser.add_argument(
        "--cache-bytes",
        type=terminal.parse_size,
        metavar="SIZE",
        help="its limit (default: as configured, 100GB)",
    )


def warm(args: argparse.Namespace) -> int:
    """Fetch a dataset into the cache, so that the first epoch is as fast as the second.

    examples:
      batchplant cache warm s3://bucket/train.tar
      batchplant cache warm 's3://bucket/train-{000..015}.tar' --cache /data/cache --cache-bytes 500GB
      batchplant cache warm s3://bucket/train.beton --option endpoint=http://minio.example:9000

    What is there already is not fetched again. A Loader uses the cache where `cache` names it: an option of
    `open`, the variable BATCHPLANT_CACHE, or the configuration.
    """
    # It imports the Loader, which no other command of this module needs.
    from ..loading.prefetch.remote import warm as warm_cache

    folder, max_bytes = _cache_settings(args, args.source[0])
    opening = terminal.open_source(args, cache=folder, cache_bytes=args.cache_bytes or max_bytes)
    with opening as reader, terminal.progress_bar("blocks", quiet=args.json) as report:
        result = warm_cache(reader, report)
    if args.json:
        print_json({"folder": folder, **dataclasses.asdict(result)})
        return 0
    say(
        f"{folder}: {human_size(result.bytes)} of {counted(result.objects, 'object')} in "
        f"{counted(result.blocks, 'block')}, {human_size(result.fetched)} of it fetched now"
    )
    configured = settings_for(args.source[0], StorageOptions()).cache
    if configured is None or _absolute(configured) != folder:
        print(f"  note: a Loader uses it with BATCHPLANT_CACHE={folder}, or by bp.open(…, cache=…)")
    return 0
