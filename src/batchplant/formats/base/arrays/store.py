"""Stores of chunked arrays: names and their bytes, in a folder, a ZIP file or below a URL."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ....errors import AccessError, BatchplantError, DamagedError, NotFoundError, Problem
from ....schema.columns import U8
from ....storage import (
    Entry,
    MappedSource,
    Objects,
    Source,
    is_below,
    is_remote,
    join,
    open_local,
    open_source,
    parse_object,
    tag_of,
    tree,
)
from ....storage.spans import SourceRun
from ....storage.zips import CHECKED, ZipMembers

# Objects of a store that are listed to be asked for ahead, and those of which parts are read that stay open.
MAX_LISTED_OBJECTS, MAX_OPEN_OBJECTS = 50_000, 256
# What may stand before a member of a ZIP file, besides its name.
MAX_ZIP_HEADER_BYTES = 256

MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class ChunkLocation(NamedTuple):
    """Location of a chunk: a name in the store, and a byte range of it."""

    name: str
    start: int = 0
    size: int | None = None


class Blob(NamedTuple):
    """The bytes behind a name; if they lie as they are in a local file, its source and their start."""

    data: U8
    source: MappedSource | None = None
    start: int = 0


class SourceRange(NamedTuple):
    """A part of a file."""

    source: Source
    start: int
    size: int


class Store:
    """Names to bytes, read only, safe from many threads."""

    # Whether to read is to ask a server.
    slow = False
    # Checksums that the store itself keeps, as `verify` names them.
    own_checks: tuple[str, ...] = ()

    def __init__(self, path: str) -> None:
        self.path = path
        # Of every document that was read, by name.
        self._hashes: dict[str, str] = {}

    @property
    def metadata(self) -> str:
        """A hash of all documents that were read until now."""
        return hashlib.blake2b(repr(sorted(self._hashes.items())).encode(), digest_size=16).hexdigest()

    def read(self, name: str, start: int = 0, size: int | None = None) -> U8 | None:
        """The bytes behind a name, or a part of them (a negative start counts from the end); None: not there.

        Fewer come where there are fewer.
        """
        raise NotImplementedError

    def read_json(self, name: str) -> dict[str, Any] | None:
        """A JSON object, which may hold NaN as those of others do; None: not there."""
        data = self.read(name)
        if data is None:
            return None
        self._hashes[name] = hashlib.blake2b(data.tobytes(), digest_size=16).hexdigest()
        try:
            return parse_object(data.tobytes(), finite=False)
        except ValueError as error:
            raise DamagedError(f"the metadata is damaged: {error}", path=self.full(name)) from None

    def place(self, name: str, start: int = 0, size: int | None = None) -> Blob | None:
        """The same without a copy where they lie in a local file as they are."""
        data = self.read(name, start, size)
        return None if data is None else Blob(data)

    def file(self, name: str) -> bytes | None:
        """The path of the local file that has the bytes behind a name, if there is one, and nothing else."""
        return None

    def source_range(self, name: str) -> SourceRange | None:
        """The bytes behind a name as a part of a file that is read by ranges; None: not there, or packed."""
        return None

    def ahead(self, places: Sequence[ChunkLocation]) -> None:
        """These will be read now, one by one: begin to fetch them side by side, where that is of use."""

    def runs(self, places: Sequence[ChunkLocation]) -> list[SourceRun] | None:
        """Source, start and size of what reading these takes; None if unknown."""
        return None

    def children(self, name: str) -> list[str]:
        """The folders right below a name, sorted."""
        raise NotImplementedError

    def size(self, name: str) -> int | None:
        """The bytes that are stored below a name; None where it would take too long to say."""
        return None

    def files(self, names: Iterable[str]) -> list[Entry] | None:
        """Everything below these names; None where nothing tells when a file changes."""
        return None

    def full(self, name: str) -> str:
        """Path of a name, for messages."""
        return f"{self.path.rstrip('/')}/{name}" if name else self.path

    def problems(self) -> Iterator[Problem]:
        """Yield the members that contradict the store's own checksums."""
        return iter(())

    def close(self) -> None:
        """Let go of files."""


class FolderStore(Store):
    """A folder; the names are paths below it."""

    def read(self, name: str, start: int = 0, size: int | None = None) -> U8 | None:
        try:
            with open_local(os.path.join(self.path, name), buffering=0) as file:
                file_size = os.fstat(file.fileno()).st_size
                start = max(0, file_size + start) if start < 0 else min(start, file_size)
                # No memory for a size that lies.
                size = file_size - start if size is None else min(size, file_size - start)
                file.seek(start)
                return np.frombuffer(file.read(size), dtype=np.uint8)
        except MISSING:
            return None
        except OSError as error:
            raise DamagedError(f"it cannot be read: {error.strerror}", path=self.full(name)) from None

    def file(self, name: str) -> bytes:
        return os.fsencode(os.path.join(self.path, name))

    def place(self, name: str, start: int = 0, size: int | None = None) -> Blob | None:
        file = os.path.join(self.path, name)
        try:
            source = MappedSource(file)
        except MISSING:
            return None
        except OSError as error:
            raise DamagedError(f"it cannot be read: {error.strerror}", path=file) from None
        end = len(source.data) if size is None else start + size
        return Blob(source.data[start:end], source, start)

    def children(self, name: str) -> list[str]:
        try:
            with os.scandir(os.path.join(self.path, name)) as entries:
                return sorted(
                    entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")
                )
        except OSError:
            return []

    def files(self, names: Iterable[str]) -> list[Entry] | None:
        files: list[Entry] = []
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            with os.scandir(os.path.join(self.path, name)) as entries:
                for entry in entries:
                    inside = f"{name}/{entry.name}" if name else entry.name
                    if not entry.is_dir():
                        facts = entry.stat()
                        files.append(Entry(inside, facts.st_size, tag_of(facts)))
                    # It may lead round in a circle.
                    elif entry.is_symlink():
                        return None
                    else:
                        waiting.append(inside)
        return files

    def size(self, name: str) -> int:
        places = (
            os.path.join(top, base_name) for top, _, names in os.walk(self.full(name)) for base_name in names
        )
        # A link that leads nowhere holds nothing.
        return sum(os.path.getsize(path) for path in places if os.path.isfile(path))


class ZipStore(Store):
    """The members of a ZIP file, local or remote; nothing is ever extracted.

    ``roots`` are the names that the top of a dataset has; it may lie in a folder inside.
    """

    own_checks = (CHECKED,)

    def __init__(self, path: str, roots: Iterable[str]) -> None:
        super().__init__(path)
        self._source = open_source(path)
        self.slow = not isinstance(self._source, MappedSource)
        self._members = ZipMembers(self._source)
        self._top = zip_top(self._members, roots) or ""
        # Where members begin, of those that are read by ranges.
        self._starts: dict[str, int] = {}
        self._folders: dict[str, set[str]] = {}
        for name in self._members:
            if name.startswith(self._top):
                parts = name[len(self._top) :].split("/")
                for depth in range(len(parts) - 1):
                    self._folders.setdefault("/".join(parts[:depth]), set()).add(parts[depth])

    def problems(self) -> Iterator[Problem]:
        return self._members.problems(self.path)

    def place(self, name: str, start: int = 0, size: int | None = None) -> Blob | None:
        member = self._top + name
        if member not in self._members:
            return None
        try:
            data = self._members.view(member)
            data = data[start:] if size is None else data[start : start + size]
            if not self._members.stored(member) or not isinstance(self._source, MappedSource):
                return Blob(data)
            return Blob(data, self._source, self._members.start(member) + start)
        except DamagedError as error:
            raise error.at(path=self.path) from None

    def read(self, name: str, start: int = 0, size: int | None = None) -> U8 | None:
        location = self.place(name)
        if location is None:
            return None
        start = max(0, len(location.data) + start) if start < 0 else start
        return location.data[start:] if size is None else location.data[start : start + size]

    def source_range(self, name: str) -> SourceRange | None:
        member = self._top + name
        if member not in self._members or not self._members.stored(member):
            return None
        if member not in self._starts:
            self._starts[member] = self._members.start(member)
        return SourceRange(self._source, self._starts[member], self._members.size(member))

    def children(self, name: str) -> list[str]:
        return sorted(self._folders.get(name, ()))

    def runs(self, places: Sequence[ChunkLocation]) -> list[SourceRun]:
        """Members with the headers before them, of which only those who read them know the size."""
        runs, file_size = list[SourceRun](), self._source.size
        for location in places:
            info = self._members.infos.get(self._top + location.name)
            if info is None:
                continue
            start, size = info.header_offset, MAX_ZIP_HEADER_BYTES + len(info.filename) + info.compress_size
            if location.size is not None and self._members.stored(self._top + location.name):
                start, size = (
                    start + location.start,
                    MAX_ZIP_HEADER_BYTES + len(info.filename) + location.size,
                )
            runs.append((self._source, start, max(0, min(size, file_size - start))))
        return runs

    def size(self, name: str) -> int:
        below = f"{self._top}{name}/" if name else self._top
        infos = self._members.infos
        return sum(info.compress_size for member, info in infos.items() if member.startswith(below))

    def close(self) -> None:
        self._source.close()


def zip_top(names: Iterable[str], roots: Iterable[str]) -> str | None:
    """The folder inside a ZIP file that holds one of these names, with a slash; None: there is none."""
    root_names = tuple(roots)
    matches = [name for name in names if name.rsplit("/", 1)[-1] in root_names and name.count("/") <= 1]
    if not matches:
        return None
    return min(matches, key=lambda name: (name.count("/"), name)).rpartition("/")[0].rstrip("/") + (
        "/" if all("/" in name for name in matches) else ""
    )


class UrlStore(Store):
    """A folder below a URL. Chunks are objects, fetched side by side where several are needed."""

    slow = True

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._lock = threading.Lock()
        # Whole objects that were asked for ahead, by name.
        self._coming: dict[str, Iterator[U8 | None]] = {}
        # Objects that hold several chunks, or whose bytes are asked for ahead of time.
        self._parts: OrderedDict[str, Source] = OrderedDict()
        self._objects = Objects()

    def full(self, name: str) -> str:
        return join(self.path, name)

    def read(self, name: str, start: int = 0, size: int | None = None) -> U8 | None:
        if start == 0 and size is None:
            with self._lock:
                coming = self._coming.pop(name, None)
            fetched = coming or self._objects.fetch([self.full(name)], [self._known.get(name)])
            return next(fetched)
        source = self._open(name)
        if source is None:
            return None
        start = max(0, source.size + start) if start < 0 else min(start, source.size)
        end = source.size if size is None else min(source.size, start + size)
        return source.view(start, end - start)

    def source_range(self, name: str) -> SourceRange | None:
        source = self._open(name)
        return None if source is None else SourceRange(source, 0, source.size)

    def _open(self, name: str) -> Source | None:
        with self._lock:
            source = self._parts.get(name)
        if source is None:
            entry = self._known.get(name)
            try:
                url = self.full(name)
                source = open_source(url) if entry is None else self._objects.open(url, entry)
            except NotFoundError:
                return None
            with self._lock:
                self._parts[name] = source
                while len(self._parts) > MAX_OPEN_OBJECTS:
                    self._parts.popitem(last=False)
        return source

    def ahead(self, places: Sequence[ChunkLocation]) -> None:
        parts: dict[str, list[tuple[int, int]]] = {}
        for location in places:
            if location.size:
                parts.setdefault(location.name, []).append((location.start, location.size))
        for name, runs in parts.items():
            source = self._open(name)
            starts, sizes = np.array(runs, dtype=np.int64).T.copy()
            # Neighbours in a shard are one request.
            if source is not None and source.outside(starts, sizes) is None:
                source.request(starts, sizes)
        names = list(
            dict.fromkeys(
                location.name for location in places if location.start == 0 and location.size is None
            )
        )
        requests = {name: self._objects.fetch([self.full(name)], [self._known.get(name)]) for name in names}
        with self._lock:
            # What nobody came for.
            self._coming = requests

    @functools.cached_property
    def _listed(self) -> dict[str, Entry] | None:
        """All objects of the store; None where there are too many, or nobody tells."""
        with contextlib.suppress(BatchplantError):
            entries = dict(tree.entries_below(self.path, MAX_LISTED_OBJECTS))
            return entries if len(entries) < MAX_LISTED_OBJECTS else None
        return None

    @property
    def _known(self) -> dict[str, Entry]:
        """Entries that were listed, if they were."""
        return self.__dict__.get("_listed") or {}

    def runs(self, places: Sequence[ChunkLocation]) -> list[SourceRun] | None:
        entries, runs = self._listed, list[SourceRun]()
        for location in places:
            if entries is None:
                return None
            entry = entries.get(location.name)
            if entry is not None:
                source = self._objects.open(self.full(location.name), entry)
                size = entry.size if location.size is None else location.size
                runs.append((source, location.start, size))
        return runs

    def files(self, names: Iterable[str]) -> list[Entry] | None:
        entries = [
            entry._replace(name=f"{name}/{inside}" if name else inside)
            for name in names
            for inside, entry in tree.entries_below(self.full(name) if name else self.path)
        ]
        return entries if entries and all(entry.tag for entry in entries) else None

    def close(self) -> None:
        with self._lock:
            self._coming.clear()
            self._parts.clear()
        self._objects.close()

    def children(self, name: str) -> list[str]:
        # Not every server lists what it has.
        try:
            return [entry.name for entry in tree.entries(self.full(name)) if entry.folder]
        except (NotFoundError, AccessError):
            return []

    def size(self, name: str) -> int:
        return sum(size for _, size in tree.walk(self.full(name)))


def open_store(path: str, roots: Iterable[str]) -> Store:
    """The store at a path: a folder, a ZIP file, or a URL of either."""
    if path.rstrip("/").lower().endswith(".zip") or (not is_remote(path) and os.path.isfile(path)):
        return ZipStore(path, roots)
    if is_remote(path):
        return UrlStore(path)
    if not os.path.isdir(path):
        raise NotFoundError("no such file or folder", path=path)
    return FolderStore(path)


def good_name(name: str) -> bool:
    """True if a name out of a file stays inside of its store."""
    return (
        is_below(name, is_listed=True)
        and "\\" not in name
        and not any(part in ("", ".") for part in name.split("/"))
    )


def human(size: float) -> str:
    """A number of bytes as `info` shows it."""
    power = next(power for power in range(5) if size < 1024 ** (power + 1) or power == 4)
    return f"{size / 1024**power:.4g} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
