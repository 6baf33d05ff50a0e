"""Folders, local or remote: what lies in them, by the same questions.

While a dataset is opened (:func:`keeping`), what a server told about a folder is remembered, so that a
thousand shards and their side-cars cost one listing and not a request each.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob as local_glob
import os
import threading
from collections.abc import Iterator
from typing import NamedTuple

from ..errors import AccessError, BatchplantError, NotFoundError
from .files import is_below
from .remote import Entry, Got, client_of, trying
from .urls import is_remote, join, like, place_of

# Files whose names begin alike; where there are more, side-cars are asked for one by one.
MOST_AROUND = 100


class Found(NamedTuple):
    """A name in a folder."""

    name: str
    folder: bool
    size: int


class _Listings:
    """What servers told while datasets are opened."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.users = 0
        self.process = os.getpid()
        # By the URL of a folder: its objects by name, and its folders.
        self.levels: dict[str, tuple[dict[str, Entry], list[str]]] = {}
        # By the URL of a file: the files whose names begin with its name.
        self.around: dict[str, dict[str, Entry]] = {}
        # By the URL of a file: its first bytes. The one who looks at them is mostly not the one who reads it.
        self.heads: dict[str, Got] = {}


_KEPT = _Listings()


@contextlib.contextmanager
def keeping() -> Iterator[None]:
    """Within it, a folder is listed once, and what is listed needs no further question."""
    global _KEPT
    if _KEPT.process != os.getpid():
        _KEPT = _Listings()
    kept = _KEPT
    with kept.lock:
        kept.users += 1
    try:
        yield
    finally:
        with kept.lock:
            kept.users -= 1
            if not kept.users:
                kept.levels.clear()
                kept.around.clear()
                kept.heads.clear()


def _level(url: str) -> tuple[dict[str, Entry], list[str]]:
    """The objects right in a remote folder, by name, and the names of its folders."""
    folder = url.rstrip("/")
    with _KEPT.lock:
        found = _KEPT.levels.get(folder)
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
    with _KEPT.lock:
        if _KEPT.users:
            _KEPT.levels[folder] = level
    return level


def look_around(url: str) -> None:
    """List a file and its side-cars in one request, to be known while datasets are opened."""
    client, name = client_of(url)
    if not name or place_of(url).scheme in ("http", "https"):
        return
    folder, _, last = name.rpartition("/")
    # The last name that comes before the file's own, as good as any.
    before = name[:-1] + (chr(ord(name[-1]) - 1) + "\U0010fffd" if ord(name[-1]) > 33 else "")
    found: dict[str, Entry] = {}
    # One that may not be listed may still be read.
    with contextlib.suppress(BatchplantError):
        for one in client.walk(folder, after=before):
            if not one.name.startswith(name):
                if one.name > name:
                    break
                continue
            found[one.name[len(name) - len(last) :]] = one
            if len(found) > MOST_AROUND:
                return
        with _KEPT.lock:
            if _KEPT.users:
                _KEPT.around[str(url)] = found


def _told(url: str) -> tuple[bool, Entry | None]:
    """Whether a listing covers an object, and what it told about it."""
    folder, _, name = str(url).rpartition("/")
    with _KEPT.lock:
        level = _KEPT.levels.get(folder)
        if level is not None:
            return True, level[0].get(name)
        for file, found in _KEPT.around.items():
            if str(url).startswith(file):
                return True, found.get(name)
    return False, None


def heads() -> dict[str, Got] | None:
    """The first bytes of files that were read while datasets are opened; None while none are."""
    with _KEPT.lock:
        return _KEPT.heads if _KEPT.users else None


def known(url: str) -> Entry | None:
    """What a listing told about an object, while datasets are opened."""
    return _told(url)[1]


def is_absent(url: str) -> bool:
    """Whether a listing told that there is no such object."""
    covered, found = _told(url)
    return covered and found is None


def entries(path: str) -> list[Found]:
    """What lies in a folder, sorted by name, hidden names too; NotFoundError where there is no folder."""
    if is_remote(path):
        objects, folders = _level(path)
        if not objects and not folders:
            raise NotFoundError("no such folder", path=path)
        found = [Found(name, False, one.size) for name, one in objects.items()]
        return sorted([*found, *(Found(name, True, 0) for name in folders)])
    try:
        with os.scandir(path) as listed:
            return sorted(Found(one.name, one.is_dir(), 0) for one in listed)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError("no such folder", path=path) from None
    except OSError as error:
        raise AccessError(str(error.strerror or error), path=path) from None


def names(path: str) -> list[str]:
    """The names in a folder, hidden ones too; empty where there is no such folder."""
    try:
        return [one.name for one in entries(path)]
    except NotFoundError:
        return []


def is_folder(path: str) -> bool:
    """Whether there is a folder; on a server, whether anything lies below it."""
    if not is_remote(path):
        return os.path.isdir(path)
    if place_of(path).scheme in ("http", "https"):
        # Nothing tells, and listing is not what web servers do.
        return False
    try:
        objects, folders = _level(path)
    except AccessError:
        return False
    return bool(objects or folders)


def is_file(path: str) -> bool:
    """Whether there is a file."""
    if not is_remote(path):
        return os.path.isfile(path)
    if known(path) is not None:
        return True
    if is_absent(path):
        return False
    client, name = client_of(path)
    try:
        trying(lambda: client.head(name))
    except NotFoundError:
        return False
    # A server may refuse to say whether a file is there.
    except AccessError:
        return False
    return True


def exists(path: str) -> bool:
    """Whether there is a file or a folder."""
    return os.path.exists(path) if not is_remote(path) else is_file(path) or is_folder(path)


def walk(path: str) -> Iterator[tuple[str, int]]:
    """All files below a folder: (path inside of it, size), sorted."""
    if not is_remote(path):
        for top, folders, files in os.walk(path):
            folders.sort()
            for name in sorted(files):
                full = os.path.join(top, name)
                yield os.path.relpath(full, path), os.path.getsize(full) if os.path.isfile(full) else 0
        return
    client, name = client_of(like(path, path.rstrip("/") + "/"))
    cut = len(name) + 1 if name else 0
    for one in trying(lambda: list(client.walk(name))):
        inside = one.name[cut:]
        # A name with .. in it would lead out of the folder wherever it is copied to.
        if is_below(inside):
            yield inside, one.size


def size_below(path: str) -> int:
    """The bytes of a file, or of all files below a folder."""
    if is_remote(path):
        entry = known(path)
        if entry is not None:
            return entry.size
        client, name = client_of(path)
        try:
            return trying(lambda: client.head(name)).size
        except BatchplantError:
            return sum(size for _, size in walk(path))
    return os.path.getsize(path) if os.path.isfile(path) else sum(size for _, size in walk(path))


def glob(pattern: str) -> list[str]:
    """The paths that match a pattern of ``*``, ``?``, ``[…]`` and ``**``, unsorted."""
    if not is_remote(pattern):
        return local_glob.glob(pattern)
    place = place_of(pattern)
    parts = place.name.split("/")
    return [join(like(pattern, place.root), one) for one in _matches(like(pattern, place.root), parts, [])]


def has_magic(pattern: str) -> bool:
    """Whether a path is a pattern. A ``?`` in a web address begins its query."""
    if is_remote(pattern) and place_of(pattern).scheme in ("http", "https"):
        return False
    return local_glob.has_magic(pattern)


def _matches(root: str, parts: list[str], above: list[str]) -> Iterator[str]:
    """Names below the root that match the parts of a pattern, folder by folder."""
    if not parts:
        return
    part, rest = parts[0], parts[1:]
    here = join(root, *above) if above else root
    if part == "**":
        yield from _matches(root, rest, above)
        for name in _folders(here):
            yield from _matches(root, parts, [*above, name])
        return
    if rest and not local_glob.has_magic(part):
        yield from _matches(root, rest, [*above, part])
        return
    try:
        listed = entries(here)
    except NotFoundError:
        return
    for one in listed:
        if not fnmatch.fnmatchcase(one.name, part) or (one.name.startswith(".") and not part.startswith(".")):
            continue
        if not rest:
            yield "/".join([*above, one.name])
        elif one.folder:
            yield from _matches(root, rest, [*above, one.name])


def _folders(path: str) -> list[str]:
    try:
        return [one.name for one in entries(path) if one.folder and not one.name.startswith(".")]
    except NotFoundError:
        return []
