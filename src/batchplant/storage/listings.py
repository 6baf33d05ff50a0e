"""Cache of listings while datasets are opened: :func:`keeping`.

A thousand shards and their side-cars then cost one listing instead of a request each.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar, cast

from ..errors import BatchplantError, NotFoundError
from .remote import Entry, Got, client_of, fetcher, trying
from .remote.blocks import NOW
from .remote.client import TransientError
from .urls import is_remote, like, parent, place_of

# Entries whose names begin with a file's name; if there are more, side-cars are requested one by one.
MAX_ENTRIES_AROUND = 100
# From this many files of one folder on, the folder is listed; below, each file with its side-cars.
MIN_FILES_TO_LIST_FOLDER = 8

T = TypeVar("T")


class Listings:
    """Answers of servers while datasets are opened."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.users = 0
        self.process = os.getpid()
        # By the URL of a folder: its objects by name, and its subfolders.
        self.levels: dict[str, tuple[dict[str, Entry], list[str]]] = {}
        # By the URL of a file: the objects whose names begin with its name, by name; None if there are too
        # many, or if listing is not allowed.
        self.around: dict[str, Future[dict[str, Entry] | None]] = {}
        # By the URL of a folder: all objects below it.
        self.trees: dict[str, list[Entry]] = {}
        # By the URL of a file: its first bytes, read to detect its format; the reader needs them again.
        self.heads: dict[str, Got] = {}
        # By URL: contents of small files that an index contained.
        self.contents: dict[str, bytes] = {}
        self.results: dict[Hashable, Future[Any]] = {}


_CACHE = Listings()


def cache() -> Listings:
    """Return the cache of this process."""
    global _CACHE
    if _CACHE.process != os.getpid():
        _CACHE = Listings()
    return _CACHE


@contextlib.contextmanager
def keeping() -> Iterator[None]:
    """Within it, a folder is listed once, and listed objects need no further request."""
    listings = cache()
    with listings.lock:
        listings.users += 1
    try:
        yield
    finally:
        with listings.lock:
            listings.users -= 1
            if not listings.users:
                listings.levels.clear()
                listings.around.clear()
                listings.trees.clear()
                listings.heads.clear()
                listings.contents.clear()
                listings.results.clear()


def level_of(url: str) -> tuple[dict[str, Entry], list[str]]:
    """Return the objects directly in a remote folder, by name, and the names of its subfolders."""
    folder = url.rstrip("/")
    with cache().lock:
        cached = cache().levels.get(folder)
    if cached is not None:
        return cached
    client, name = client_of(like(url, folder + "/"))
    try:
        entries, folders = trying(lambda: client.level(name))
    except NotFoundError:
        entries, folders = [], []
    cut = len(name) + 1 if name else 0
    # A folder may be an empty object of its own.
    level = (
        {entry.name[cut:]: entry for entry in entries if len(entry.name) > cut},
        [name[cut:] for name in folders],
    )
    with cache().lock:
        if cache().users:
            cache().levels[folder] = level
    return level


def once(key: Hashable, make: Callable[[], T]) -> T:
    """Return ``make()``; while datasets are opened it is called once per key, and its result is shared."""
    with cache().lock:
        result = cache().results.get(key)
        ours = result is None
        if result is None:
            result = Future()
            if cache().users:
                cache().results[key] = result
    if ours:
        try:
            result.set_result(make())
        except BaseException as error:
            result.set_exception(error)
    return cast(T, result.result())


def look_around(paths: Iterable[str]) -> None:
    """Request what lies beside files that are to be opened: one listing for each, or for the folder of many.

    This waits for the folders only; the answers are available while datasets are opened.
    """
    folders: dict[str, list[str]] = {}
    for path in paths:
        if is_remote(path) and not path.endswith("/") and place_of(path).scheme not in ("http", "https"):
            folders.setdefault(parent(path), []).append(path)
    for folder, files in folders.items():
        if len(files) >= MIN_FILES_TO_LIST_FOLDER:
            # A folder that may not be listed may still be readable.
            with contextlib.suppress(BatchplantError):
                level_of(like(files[0], folder))
            continue
        with cache().lock:
            for file in files:
                if cache().users and str(folder) not in cache().levels and str(file) not in cache().around:
                    ask = functools.partial(_around, file)
                    cache().around[str(file)] = fetcher().submit(ask, 0, NOW).future


def _around(url: str) -> dict[str, Entry] | None:
    """Return the objects whose names begin with that of a file, in one request; None if that fails."""
    client, name = client_of(url)
    if not name:
        return None
    # A name that sorts directly before the file's own, or nearly so.
    before = name[:-1] + (chr(ord(name[-1]) - 1) + "\U0010fffd" if ord(name[-1]) > 33 else "")
    entries: dict[str, Entry] = {}
    try:
        for entry in client.walk(name.rpartition("/")[0], after=before):
            if not entry.name.startswith(name):
                if entry.name > name:
                    break
                continue
            entries[entry.name] = entry
            if len(entries) > MAX_ENTRIES_AROUND:
                return None
    except TransientError:
        raise
    except BatchplantError:
        return None
    return entries


def lookup(url: str) -> tuple[bool, Entry | None]:
    """Return whether a listing covers an object, and its entry; waits for a listing that is in flight."""
    folder, _, name = str(url).rpartition("/")
    with cache().lock:
        level = cache().levels.get(folder)
        if level is not None:
            return True, level[0].get(name)
        futures = [future for file, future in cache().around.items() if str(url).startswith(file)]
    for future in futures:
        entries = None
        # A folder that may not be listed may still be readable.
        with contextlib.suppress(BatchplantError):
            entries = future.result()
        if entries is not None:
            return True, entries.get(place_of(url).name)
    return False, None


def heads() -> dict[str, Got] | None:
    """Return the first bytes of files that were read while datasets are opened; None while none are."""
    with cache().lock:
        return cache().heads if cache().users else None


def keep_head(url: str, head: Got) -> None:
    """Store the first bytes of a file, with its size and tag, that an index contained."""
    with cache().lock:
        if cache().users:
            cache().heads.setdefault(str(url), head)


def keep_content(url: str, data: bytes) -> None:
    """Store all bytes of a small file that an index contained."""
    with cache().lock:
        if cache().users:
            cache().contents[str(url)] = data


def content(url: str) -> bytes | None:
    """Return all bytes of a small file, if they are known_entry."""
    with cache().lock:
        return cache().contents.get(str(url))


def listed(folder: str) -> dict[str, Entry] | None:
    """Return the objects of a remote folder by name, if it was listed while datasets are opened."""
    with cache().lock:
        level = cache().levels.get(str(folder).rstrip("/"))
    return None if level is None else level[0]


def known_entry(url: str) -> Entry | None:
    """Return the entry of an object in the listing of its folder, while datasets are opened."""
    folder, _, name = str(url).rpartition("/")
    return (listed(folder) or {}).get(name)


def is_absent(url: str) -> bool:
    """Return whether a listing shows that there is no such object."""
    covered, entry = lookup(url)
    return covered and entry is None
