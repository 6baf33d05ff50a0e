"""Which folder the cache is in, and the cache in it."""

from __future__ import annotations

import argparse
import os

from ...errors import OptionError
from ...storage.remote.disk import FILE_NAME, DiskCache, open_cache
from ...storage.settings import DEFAULT_CACHE_BYTES, StorageOptions, settings_for


def add_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cache",
        metavar="DIR",
        help="the folder (default: BATCHPLANT_CACHE, else `cache` of the configuration, else "
        "~/.cache/batchplant/blocks)",
    )


def settings(args: argparse.Namespace, url: str = "") -> tuple[str, int]:
    """The folder and the limit of the cache."""
    storage_settings = settings_for(url, StorageOptions(cache=args.cache))
    folder = storage_settings.cache or _default()
    max_bytes = DEFAULT_CACHE_BYTES if storage_settings.cache_bytes is None else storage_settings.cache_bytes
    return _absolute(folder), max_bytes


def _absolute(folder: str) -> str:
    return os.path.abspath(os.path.expanduser(folder))


def is_configured(url: str, folder: str) -> bool:
    """Return whether opening a URL without options uses the cache in a folder."""
    configured = settings_for(url, StorageOptions()).cache
    return configured is not None and _absolute(configured) == folder


def existing(args: argparse.Namespace) -> tuple[str, DiskCache | None]:
    """The folder, and its cache where there is one: looking makes none."""
    folder, max_bytes = settings(args)
    return folder, open_cache(folder, max_bytes) if os.path.lexists(os.path.join(folder, FILE_NAME)) else None


def _default() -> str:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # A user without a home has no cache.
    if not os.path.isabs(home):
        raise OptionError("say where the cache is: --cache DIR")
    return os.path.join(home, "batchplant", "blocks")
