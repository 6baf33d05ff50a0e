"""Folders, local or remote: what lies in them, by the same questions.

While a dataset is opened (:func:`keeping`), what a server told about a folder is remembered; see listings.py.
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
from .commit import NAME as COMMIT
from .listings import (
    content,
    heads,
    is_absent,
    keep_content,
    keep_head,
    keeping,
    kept,
    known,
    level_of,
    listed,
    look_around,
    once,
    told,
)
from .plans import stem_of
from .remote import Entry, client_of, trying
from .urls import is_remote, join, like, parent, place_of

__all__ = [
    "Found", "check_settled", "content", "entries", "exists", "foresee", "glob", "has_magic", "heads",
    "is_absent", "is_file", "is_folder", "keep_content", "keep_head", "keeping", "known", "listed",
    "look_around", "names", "once", "size_below", "walk",
]  # fmt: skip

UNSETTLED = (
    "it is being replaced, or a writer was killed while it did that; whoever writes it next finishes it "
    "(convert --resume), and so does `batchplant cache clear --writes` on the machine that wrote it"
)


class Found(NamedTuple):
    """A name in a folder."""

    name: str
    folder: bool
    size: int


def entries(path: str) -> list[Found]:
    """What lies in a folder, sorted by name, hidden names too; NotFoundError where there is no folder."""
    if is_remote(path):
        objects, folders = level_of(path)
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


def some_names(path: str, most: int) -> list[str]:
    """Any names in a folder, as many; NotFoundError where there is no folder."""
    if is_remote(path):
        return [one.name for one in entries(path)[:most]]
    try:
        with os.scandir(path) as listing:
            return [one.name for one in itertools.islice(listing, most)]
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
    # An object of that name comes first, as for whoever looks at a path first.
    if known(path) is not None or str(path) in (heads() or ()):
        return False
    above, _, last = path.rstrip("/").rpartition("/")
    with kept().lock:
        level = kept().levels.get(above)
    if level is not None and last not in level[1]:
        return False
    try:
        objects, folders = level_of(path)
    except AccessError:
        return False
    return bool(objects or folders)


def is_file(path: str) -> bool:
    """Whether there is a file."""
    if not is_remote(path):
        return os.path.isfile(path)
    covered, found = told(path)
    if covered:
        return found is not None
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
            inside = top[len(path) :].lstrip("/")
            for name in sorted(files):
                yield os.path.join(inside, name), _size(os.path.join(top, name))
        return
    for inside, one in entries_below(path):
        yield inside, one.size


def _size(file: str) -> int:
    """The bytes of a local file; none of what is no file, or a link that leads nowhere."""
    try:
        found = os.stat(file)
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def foresee(path: str) -> None:
    """All folders below a remote one will be asked for: list them once, while datasets are opened."""
    with kept().lock:
        known = any(path.startswith(f"{one}/") for one in kept().trees)
    if is_remote(path) and not known and is_folder(path):
        for _ in entries_below(path):
            pass


def entries_below(path: str, most: int | None = None) -> Iterator[tuple[str, Entry]]:
    """All objects below a remote folder: (path inside of it, what was told about it).

    ``most``: only the first of them, where there are more.
    """
    root = path.rstrip("/")
    client, name = client_of(like(path, root + "/"))
    with kept().lock:
        found = kept().trees.get(root)
    if found is None:
        found = trying(lambda: list(itertools.islice(client.walk(name), most)))
        with kept().lock:
            if kept().users and len(found) != most:
                kept().trees[root] = found
                kept().levels.update(_levels(root, name, found))
    cut = len(name) + 1 if name else 0
    for one in found:
        # Folders may be objects of their own.
        if not one.name.endswith("/"):
            yield one.name[cut:], one


def _levels(root: str, name: str, found: list[Entry]) -> dict[str, tuple[dict[str, Entry], list[str]]]:
    """A tree folder by folder, as listing each of them would tell."""
    levels: dict[str, tuple[dict[str, Entry], list[str]]] = {root: ({}, [])}

    def level(folder: str) -> tuple[dict[str, Entry], list[str]]:
        if folder not in levels:
            above, _, last = folder.rpartition("/")
            level(above)[1].append(last)
            levels[folder] = ({}, [])
        return levels[folder]

    cut = len(name) + 1 if name else 0
    for one in found:
        inside, _, last = one.name[cut:].rpartition("/")
        here = level(f"{root}/{inside}" if inside else root)
        if last:
            here[0][last] = one
    return levels


def size_below(path: str) -> int:
    """The bytes of a file, or of all files below a folder."""
    if is_remote(path):
        entry = told(path)[1]
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
        return local_glob.glob(pattern, recursive=True)
    place = place_of(pattern)
    parts = place.name.split("/")
    return [join(like(pattern, place.root), one) for one in _matches(like(pattern, place.root), parts, [])]


def has_magic(pattern: str) -> bool:
    """Whether a path is a pattern. A ``?`` in a web address begins its query."""
    if is_remote(pattern) and place_of(pattern).scheme in ("http", "https"):
        return False
    return local_glob.has_magic(pattern)


def check_settled(paths: Iterable[str]) -> None:
    """BusyError where files are being replaced, or a writer was killed while it did: old and new are mixed.

    Only what was listed anyway is looked at; see targets.py.
    """
    around: dict[str, list[str]] = {}
    for path in filter(is_remote, paths):
        around.setdefault(str(parent(path)), []).append(path)
        level = kept().levels.get(path.rstrip("/"))
        if level is not None and COMMIT in level[0]:
            raise BusyError(UNSETTLED, path=path)
    for folder, files in around.items():
        level = kept().levels.get(folder)
        for name in () if level is None else level[1]:
            if not (name.startswith(".") and name.endswith(".shards.partial")):
                continue
            stem = stem_of(name[1:].removesuffix(".partial"))
            ours = next((one for one in files if os.path.basename(one).startswith(stem)), None)
            if ours is not None and is_file(join(parent(ours), name, COMMIT)):
                raise BusyError(UNSETTLED, path=ours)


def _matches(root: str, parts: list[str], above: list[str]) -> Iterator[str]:
    """Names below the root that match the parts of a pattern, folder by folder."""
    if not parts:
        return
    part, rest = parts[0], parts[1:]
    here = join(root, *above) if above else root
    if part == "**":
        foresee(here)
        if not rest:
            yield from ("/".join([*above, inside]) for inside, _ in entries_below(here))
            return
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
