"""Folders, local or remote, with the same functions.

While datasets are opened (:func:`keeping`), answers of servers about folders are cached: a thousand
shards and their side-cars then cost one listing instead of a request each.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import glob as local_glob
import itertools
import os
import stat
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar, cast

from ..errors import AccessError, BatchplantError, BusyError, NotFoundError
from .commit import NOTE_NAME as COMMIT
from .remote import Entry, Got, client_of, fetcher, trying
from .remote.blocks import NOW
from .remote.client import TransientError
from .urls import is_remote, join, like, parent, place_of
from .work import stem_of

# Entries whose names begin with a file's name; if there are more, side-cars are requested one by one.
MAX_ENTRIES_AROUND = 100
# From this many files of one folder on, the folder is listed; below, each file with its side-cars.
MIN_FILES_TO_LIST_FOLDER = 8

UNSETTLED = (
    "it is being replaced, or a writer was killed while it did that; whoever writes it next finishes it "
    "(convert --resume), and so does `batchplant cache clear --writes` on the machine that wrote it"
)


T = TypeVar("T")


class Listings:
    """Answers of servers while datasets are opened."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.users = 0
        self.clear()

    def clear(self) -> None:
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


def _after_fork() -> None:
    """Start anew: a thread of the parent may have held the lock."""
    global _CACHE
    _CACHE = Listings()


os.register_at_fork(after_in_child=_after_fork)


def cache() -> Listings:
    """Return the cache of this process."""
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
                listings.clear()


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
        # The Hub cannot list from a name on.
        if len(files) >= MIN_FILES_TO_LIST_FOLDER or place_of(folder).scheme == "hf":
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
    """Return all bytes of a small file, if an index contained them."""
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


# -- folders -----------------------------------------------------------------------------------------------


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
    with _scanning(path) as listing:
        return sorted(FolderEntry(entry.name, entry.is_dir(), 0) for entry in listing)


@contextlib.contextmanager
def _scanning(path: str) -> Iterator[Iterator[os.DirEntry[str]]]:
    try:
        with os.scandir(path) as listing:
            yield listing
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError("no such folder", path=path) from None
    except OSError as error:
        raise AccessError(str(error.strerror or error), path=path) from None


def some_names(path: str, count: int) -> list[str]:
    """Return any ``count`` names in a folder; NotFoundError if there is no folder."""
    if is_remote(path):
        return [entry.name for entry in entries(path)[:count]]
    with _scanning(path) as listing:
        return [entry.name for entry in itertools.islice(listing, count)]


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
    try:
        client, name = client_of(path)
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
