"""What servers told about folders and files while datasets are opened: :func:`keeping`.

A thousand shards and their side-cars cost one listing then, and not a request each.
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

# Files whose names begin alike; where there are more, side-cars are asked for one by one.
MOST_AROUND = 100
# From so many files of one folder on, it is listed; below, each is with its side-cars.
MANY = 8

T = TypeVar("T")


class Listings:
    """What servers told while datasets are opened."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.users = 0
        self.process = os.getpid()
        # By the URL of a folder: its objects by name, and its folders.
        self.levels: dict[str, tuple[dict[str, Entry], list[str]]] = {}
        # By the URL of a file: the objects whose names begin with its name, by name; None where there are
        # too many, or none may be listed.
        self.around: dict[str, Future[dict[str, Entry] | None]] = {}
        # By the URL of a folder: all that lies below it.
        self.trees: dict[str, list[Entry]] = {}
        # By the URL of a file: its first bytes. The one who looks at them is mostly not the one who reads it.
        self.heads: dict[str, Got] = {}
        # By URL: small files that came along with others.
        self.contents: dict[str, bytes] = {}
        self.made: dict[Hashable, Future[Any]] = {}


_KEPT = Listings()


def kept() -> Listings:
    """Those of this process."""
    global _KEPT
    if _KEPT.process != os.getpid():
        _KEPT = Listings()
    return _KEPT


@contextlib.contextmanager
def keeping() -> Iterator[None]:
    """Within it, a folder is listed once, and what is listed needs no further question."""
    told = kept()
    with told.lock:
        told.users += 1
    try:
        yield
    finally:
        with told.lock:
            told.users -= 1
            if not told.users:
                told.levels.clear()
                told.around.clear()
                told.trees.clear()
                told.heads.clear()
                told.contents.clear()
                told.made.clear()


def level_of(url: str) -> tuple[dict[str, Entry], list[str]]:
    """The objects right in a remote folder, by name, and the names of its folders."""
    folder = url.rstrip("/")
    with kept().lock:
        found = kept().levels.get(folder)
    if found is not None:
        return found
    client, name = client_of(like(url, folder + "/"))
    try:
        entries, folders = trying(lambda: client.level(name))
    except NotFoundError:
        entries, folders = [], []
    cut = len(name) + 1 if name else 0
    # A folder may be an object of its own, of no bytes.
    level = {one.name[cut:]: one for one in entries if len(one.name) > cut}, [one[cut:] for one in folders]
    with kept().lock:
        if kept().users:
            kept().levels[folder] = level
    return level


def once(key: Hashable, make: Callable[[], T]) -> T:
    """What a function gives; while datasets are opened it is called once, whoever asks."""
    with kept().lock:
        found = kept().made.get(key)
        ours = found is None
        if found is None:
            found = Future()
            if kept().users:
                kept().made[key] = found
    if ours:
        try:
            found.set_result(make())
        except BaseException as error:
            found.set_exception(error)
    return cast(T, found.result())


def look_around(paths: Iterable[str]) -> None:
    """Ask what lies beside files that are to be opened: one listing for each, or for the folder of many.

    Nothing is waited for but the folders; the answers are known while datasets are opened.
    """
    folders: dict[str, list[str]] = {}
    for path in paths:
        if is_remote(path) and not path.endswith("/") and place_of(path).scheme not in ("http", "https"):
            folders.setdefault(parent(path), []).append(path)
    for folder, files in folders.items():
        if len(files) >= MANY:
            # One that may not be listed may still be read.
            with contextlib.suppress(BatchplantError):
                level_of(like(files[0], folder))
            continue
        with kept().lock:
            for file in files:
                if kept().users and str(folder) not in kept().levels and str(file) not in kept().around:
                    ask = functools.partial(_around, file)
                    kept().around[str(file)] = fetcher().submit(ask, 0, NOW).future


def _around(url: str) -> dict[str, Entry] | None:
    """The objects whose names begin with that of a file, in one request; None where nobody tells."""
    client, name = client_of(url)
    if not name:
        return None
    # The last name that comes before the file's own, as good as any.
    before = name[:-1] + (chr(ord(name[-1]) - 1) + "\U0010fffd" if ord(name[-1]) > 33 else "")
    found: dict[str, Entry] = {}
    try:
        for one in client.walk(name.rpartition("/")[0], after=before):
            if not one.name.startswith(name):
                if one.name > name:
                    break
                continue
            found[one.name] = one
            if len(found) > MOST_AROUND:
                return None
    except TransientError:
        raise
    except BatchplantError:
        return None
    return found


def told(url: str) -> tuple[bool, Entry | None]:
    """Whether a listing covers an object, and what it told about it; waits for one that is under way."""
    folder, _, name = str(url).rpartition("/")
    with kept().lock:
        level = kept().levels.get(folder)
        if level is not None:
            return True, level[0].get(name)
        asked = [future for file, future in kept().around.items() if str(url).startswith(file)]
    for future in asked:
        found = None
        # One that may not be listed may still be read.
        with contextlib.suppress(BatchplantError):
            found = future.result()
        if found is not None:
            return True, found.get(place_of(url).name)
    return False, None


def heads() -> dict[str, Got] | None:
    """The first bytes of files that were read while datasets are opened; None while none are."""
    with kept().lock:
        return kept().heads if kept().users else None


def keep_head(url: str, head: Got) -> None:
    """The first bytes of a file, and what it is like, are known from elsewhere."""
    with kept().lock:
        if kept().users:
            kept().heads.setdefault(str(url), head)


def keep_content(url: str, data: bytes) -> None:
    """All bytes of a small file are known from elsewhere."""
    with kept().lock:
        if kept().users:
            kept().contents[str(url)] = data


def content(url: str) -> bytes | None:
    """All bytes of a small file, where they are known."""
    with kept().lock:
        return kept().contents.get(str(url))


def listed(folder: str) -> dict[str, Entry] | None:
    """The objects of a remote folder by name, where it was listed while datasets are opened."""
    with kept().lock:
        found = kept().levels.get(str(folder).rstrip("/"))
    return None if found is None else found[0]


def known(url: str) -> Entry | None:
    """What the listing of its folder told about an object, while datasets are opened."""
    folder, _, name = str(url).rpartition("/")
    return (listed(folder) or {}).get(name)


def is_absent(url: str) -> bool:
    """Whether a listing told that there is no such object."""
    covered, found = told(url)
    return covered and found is None
