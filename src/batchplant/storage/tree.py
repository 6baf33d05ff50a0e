"""Folders, local or remote, with the same functions.

While a dataset is opened (:func:`keeping`), answers of servers about folders are cached; see listings.py.
"""

from __future__ import annotations

import fnmatch
import glob as local_glob
import itertools
import os
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..errors import AccessError, BatchplantError, BusyError, NotFoundError
from .commit import NOTE_NAME as COMMIT
from .listings import (
    cache,
    content,
    heads,
    is_absent,
    keep_content,
    keep_head,
    keeping,
    known_entry,
    level_of,
    listed,
    look_around,
    lookup,
    once,
)
from .plans import stem_of
from .remote import Entry, client_of, trying
from .urls import is_remote, join, like, parent, place_of

__all__ = [
    "FolderEntry", "check_settled", "content", "entries", "exists", "foresee", "glob", "has_magic", "heads",
    "is_absent", "is_file", "is_folder", "keep_content", "keep_head", "keeping", "known_entry", "listed",
    "look_around", "names", "once", "size_below", "walk",
]  # fmt: skip

UNSETTLED = (
    "it is being replaced, or a writer was killed while it did that; whoever writes it next finishes it "
    "(convert --resume), and so does `batchplant cache clear --writes` on the machine that wrote it"
)


class FolderEntry(NamedTuple):
    """A name in a folder."""

    name: str
    folder: bool
    size: int


def entries(path: str) -> list[FolderEntry]:
    """Return the entries of a folder, sorted, hidden names too; NotFoundError if there is no folder."""
    if is_remote(path):
        objects, folders = level_of(path)
        if not objects and not folders:
            raise NotFoundError("no such folder", path=path)
        files = [FolderEntry(name, False, entry.size) for name, entry in objects.items()]
        return sorted([*files, *(FolderEntry(name, True, 0) for name in folders)])
    try:
        with os.scandir(path) as listed:
            return sorted(FolderEntry(entry.name, entry.is_dir(), 0) for entry in listed)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError("no such folder", path=path) from None
    except OSError as error:
        raise AccessError(str(error.strerror or error), path=path) from None


def some_names(path: str, count: int) -> list[str]:
    """Return any ``count`` names in a folder; NotFoundError if there is no folder."""
    if is_remote(path):
        return [entry.name for entry in entries(path)[:count]]
    try:
        with os.scandir(path) as listing:
            return [entry.name for entry in itertools.islice(listing, count)]
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError("no such folder", path=path) from None
    except OSError as error:
        raise AccessError(str(error.strerror or error), path=path) from None


def names(path: str) -> list[str]:
    """Return the names in a folder, hidden ones too; empty if there is no such folder."""
    try:
        return [entry.name for entry in entries(path)]
    except NotFoundError:
        return []


def is_folder(path: str) -> bool:
    """Return whether there is a folder; on a server, whether anything lies below it."""
    if not is_remote(path):
        return os.path.isdir(path)
    if place_of(path).scheme in ("http", "https"):
        # Web servers have no listings.
        return False
    # An object of that name takes precedence.
    if known_entry(path) is not None or str(path) in (heads() or ()):
        return False
    above, _, last = path.rstrip("/").rpartition("/")
    with cache().lock:
        level = cache().levels.get(above)
    if level is not None and last not in level[1]:
        return False
    try:
        objects, folders = level_of(path)
    except AccessError:
        return False
    return bool(objects or folders)


def is_file(path: str) -> bool:
    """Return whether there is a file."""
    if not is_remote(path):
        return os.path.isfile(path)
    covered, entry = lookup(path)
    if covered:
        return entry is not None
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
    """Return whether there is a file or a folder."""
    return os.path.exists(path) if not is_remote(path) else is_file(path) or is_folder(path)


def walk(path: str) -> Iterator[tuple[str, int]]:
    """Yield all files below a folder: (path inside of it, size), sorted."""
    if not is_remote(path):
        for top, folders, files in os.walk(path):
            folders.sort()
            inside = top[len(path) :].lstrip("/")
            for name in sorted(files):
                yield os.path.join(inside, name), _size(os.path.join(top, name))
        return
    for inside, entry in entries_below(path):
        yield inside, entry.size


def _size(file: str) -> int:
    """Return the bytes of a local file; 0 for what is no file, or a dangling link."""
    try:
        status = os.stat(file)
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def foresee(path: str) -> None:
    """List all folders below a remote one at once, because they will be needed while datasets are opened."""
    with cache().lock:
        covered = any(path.startswith(f"{tree}/") for tree in cache().trees)
    if is_remote(path) and not covered and is_folder(path):
        for _ in entries_below(path):
            pass


def entries_below(path: str, limit: int | None = None) -> Iterator[tuple[str, Entry]]:
    """Yield all objects below a remote folder: (path inside of it, entry).

    ``limit``: at most so many.
    """
    root = path.rstrip("/")
    client, name = client_of(like(path, root + "/"))
    with cache().lock:
        listing = cache().trees.get(root)
    if listing is None:
        listing = trying(lambda: list(itertools.islice(client.walk(name), limit)))
        with cache().lock:
            if cache().users and len(listing) != limit:
                cache().trees[root] = listing
                cache().levels.update(_levels(root, name, listing))
    cut = len(name) + 1 if name else 0
    for entry in listing:
        # Folders may be objects of their own.
        if not entry.name.endswith("/"):
            yield entry.name[cut:], entry


def _levels(root: str, name: str, listing: list[Entry]) -> dict[str, tuple[dict[str, Entry], list[str]]]:
    """Return the levels of a tree, as listing each folder would."""
    levels: dict[str, tuple[dict[str, Entry], list[str]]] = {root: ({}, [])}

    def level(folder: str) -> tuple[dict[str, Entry], list[str]]:
        if folder not in levels:
            above, _, last = folder.rpartition("/")
            level(above)[1].append(last)
            levels[folder] = ({}, [])
        return levels[folder]

    cut = len(name) + 1 if name else 0
    for entry in listing:
        inside, _, last = entry.name[cut:].rpartition("/")
        folder_level = level(f"{root}/{inside}" if inside else root)
        if last:
            folder_level[0][last] = entry
    return levels


def size_below(path: str) -> int:
    """Return the bytes of a file, or of all files below a folder."""
    if is_remote(path):
        entry = lookup(path)[1]
        if entry is not None:
            return entry.size
        client, name = client_of(path)
        try:
            return trying(lambda: client.head(name)).size
        except BatchplantError:
            return sum(size for _, size in walk(path))
    return os.path.getsize(path) if os.path.isfile(path) else sum(size for _, size in walk(path))


def glob(pattern: str) -> list[str]:
    """Return the paths that match a pattern of ``*``, ``?``, ``[…]`` and ``**``, unsorted."""
    if not is_remote(pattern):
        return local_glob.glob(pattern, recursive=True)
    url = place_of(pattern)
    parts = url.name.split("/")
    return [join(like(pattern, url.root), name) for name in _matches(like(pattern, url.root), parts, [])]


def has_magic(pattern: str) -> bool:
    """Return whether a path is a pattern. A ``?`` in a web address begins its query."""
    if is_remote(pattern) and place_of(pattern).scheme in ("http", "https"):
        return False
    return local_glob.has_magic(pattern)


def check_settled(paths: Iterable[str]) -> None:
    """Raise a BusyError if files are being replaced, or a writer was killed meanwhile: old and new are mixed.

    Only cached listings are used; see targets.py.
    """
    around: dict[str, list[str]] = {}
    for path in filter(is_remote, paths):
        around.setdefault(str(parent(path)), []).append(path)
        level = cache().levels.get(path.rstrip("/"))
        if level is not None and COMMIT in level[0]:
            raise BusyError(UNSETTLED, path=path)
    for folder, files in around.items():
        level = cache().levels.get(folder)
        for name in () if level is None else level[1]:
            if not (name.startswith(".") and name.endswith(".shards.partial")):
                continue
            stem = stem_of(name[1:].removesuffix(".partial"))
            ours = next((file for file in files if os.path.basename(file).startswith(stem)), None)
            if ours is not None and is_file(join(parent(ours), name, COMMIT)):
                raise BusyError(UNSETTLED, path=ours)


def _matches(root: str, parts: list[str], above: list[str]) -> Iterator[str]:
    """Yield the names below the root that match the components of a pattern, folder by folder."""
    if not parts:
        return
    part, remaining = parts[0], parts[1:]
    folder = join(root, *above) if above else root
    if part == "**":
        foresee(folder)
        if not remaining:
            yield from ("/".join([*above, inside]) for inside, _ in entries_below(folder))
            return
        yield from _matches(root, remaining, above)
        for name in _folders(folder):
            yield from _matches(root, parts, [*above, name])
        return
    if remaining and not local_glob.has_magic(part):
        yield from _matches(root, remaining, [*above, part])
        return
    try:
        listed = entries(folder)
    except NotFoundError:
        return
    for entry in listed:
        if not fnmatch.fnmatchcase(entry.name, part) or (
            entry.name.startswith(".") and not part.startswith(".")
        ):
            continue
        if not remaining:
            yield "/".join([*above, entry.name])
        elif entry.folder:
            yield from _matches(root, remaining, [*above, entry.name])


def _folders(path: str) -> list[str]:
    try:
        return [entry.name for entry in entries(path) if entry.folder and not entry.name.startswith(".")]
    except NotFoundError:
        return []
