"""The files of a folder, local or remote, each of which is a cell."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar, overload

import numpy as np

from ....data.keys import FormatKeys
from ....data.reader import Reader
from ....errors import AccessError, BatchplantError, DamagedError
from ....schema import Text
from ....schema.columns import I64, U8, AnyArray, Column, Columns, Ragged, starts_of
from ....storage import Entry, Objects, PathSources, Source, is_remote, join, open_regular, open_source, tree
from ....storage.compressed import UnpackedSource
from ....storage.spans import Spans, concat_spans
from ....storage.zips import ZipMembers

# Links that lead to links, each twice, would double the folder with every one.
MAX_LINK_VISITS = 100
# Of a folder in which other files lie, too, so many are listed before it is given up.
MAX_OTHER_FILES = 20_000
# Behind each packed name; no name has it.
SEPARATOR = "\0"
# What is fetched to see what remote files are: bytes, and files of which nobody knows how large they are.
LOOKED_AT, FEW = 32 << 20, 8

T = TypeVar("T")


class Files:
    """Files by their names below a root. What is wrong with one is a DamagedError with its row for sample."""

    def __init__(self, root: str) -> None:
        self.root = root
        # How many files and hidden folders a walk passed over.
        self.skipped = 0
        # How many files somebody named, where there was no walk.
        self.named = 0

    def path(self, name: str) -> str:
        return join(self.root, name)

    def walk(self, is_wanted: Callable[[str], bool], own_name: str) -> Iterator[str]:
        """All files whose last name is wanted, by their paths below the root; ``own``: not counted."""
        raise NotImplementedError

    def sizes(self, names: Sequence[str]) -> I64 | None:
        """Sizes of files; None if each would take a request."""
        raise NotImplementedError

    def read(self, names: Sequence[str]) -> Ragged:
        """All bytes of files."""
        raise NotImplementedError

    def some(self, names: Sequence[str], limit: int) -> Iterator[U8]:
        """Some files from all over these; what cannot be had is left out, for whoever reads it is told."""
        for name in spread_out(names, limit):
            with contextlib.suppress(BatchplantError, OSError):
                yield self._whole(name)

    def _whole(self, name: str) -> U8:
        """The bytes of a file."""
        raise NotImplementedError

    def heads(self, names: Sequence[str], limit: int) -> Ragged | None:
        """The first bytes of files, none of what cannot be had; None where a server would be asked."""
        return None

    def spans(self, names: Sequence[str]) -> Spans | None:
        """Each file as a span."""
        sizes = self.sizes(names)
        if sizes is None:
            return None
        numbers = np.arange(len(names), dtype=np.int32)
        sources = [self.source(name) for name in names]
        return Spans(sources, np.zeros(len(names), dtype=np.int64), sizes, numbers)

    def source(self, name: str) -> Source | str:
        """The source of a file; its path if it would have to be opened first."""
        raise NotImplementedError

    def ahead(self, names: Sequence[str]) -> Spans | None:
        """The same for one who asks for the bytes ahead."""
        return self.spans(names)

    def close(self) -> None:
        """Let go of files."""


def spread_out(names: Sequence[str], limit: int) -> Sequence[str]:
    """Names from the first to the last, at most so many."""
    return names[:: max(1, len(names) // limit)][:limit]


def open_files(root: str) -> Files:
    return RemoteFiles(root) if is_remote(root) else LocalFiles(root)


def _wrong(row: int, name: str, reason: str | None) -> DamagedError:
    return DamagedError(f"{name}: {reason}", sample=row)


class LocalFiles(Files):
    """Files of a local folder; links are followed."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._sources = PathSources()
        self._prefix = os.path.join(root, "")
        # Device and ctime of each folder that a walk listed, from before it did.
        self.walked: dict[str, tuple[int, int]] = {}

    def path(self, name: str) -> str:
        # Several times for each sample of a batch: os.path.join takes as long as os.stat.
        return name if name.startswith("/") else self._prefix + name

    def source(self, name: str) -> Source:
        return self._sources.source(self.path(name))

    def close(self) -> None:
        self._sources.close()

    def walk(self, is_wanted: Callable[[str], bool], own_name: str) -> Iterator[str]:
        """A link that leads back up is not followed again."""
        visits: Counter[tuple[int, int]] = Counter()
        waiting: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]
        while waiting:
            below, above = waiting.pop()
            folder = os.path.join(self.root, below)
            state = os.stat(folder)
            self.walked[below] = (state.st_dev, state.st_ctime_ns)
            folder_id = (state.st_dev, state.st_ino)
            visits[folder_id] += 1
            if folder_id in above:
                continue
            if visits[folder_id] > MAX_LINK_VISITS:
                raise DamagedError(f"{below}: more than {MAX_LINK_VISITS} links lead there")
            # Millions of files: what is the same for all of them is done once.
            prefix = os.path.join(below, "") if below else ""
            with os.scandir(folder) as entries:
                for entry in entries:
                    name = entry.name
                    try:
                        is_file = entry.is_file()
                        is_folder = not is_file and entry.is_dir()
                    # A link to itself.
                    except OSError:
                        is_folder = is_file = False
                    if name[0] == ".":
                        self.skipped += name != own_name
                    elif is_folder:
                        waiting.append((prefix + name, above | {folder_id}))
                    # What is neither file nor dangling link (a pipe, say) could block whoever opens it.
                    elif is_wanted(name) and (is_file or not os.path.exists(entry.path)):
                        yield prefix + name
                    else:
                        self.skipped += 1

    def sizes(self, names: Sequence[str]) -> I64:
        sizes = np.zeros(len(names), dtype=np.int64)
        for row, name in enumerate(names):
            try:
                facts = os.stat(self.path(name))
            except OSError as error:
                raise _wrong(row, name, error.strerror) from None
            # Data may name anything; a pipe would block whoever opens it.
            if not stat.S_ISREG(facts.st_mode):
                raise _wrong(row, name, "it is no file")
            sizes[row] = facts.st_size
        return sizes

    def read(self, names: Sequence[str]) -> Ragged:
        sizes = self.sizes(names)
        offsets = starts_of(sizes)
        data = np.empty(offsets[-1], dtype=np.uint8)
        # One byte more than was promised tells that a file has grown.
        remaining, beyond = data.data, bytearray(1)
        for row, (name, size) in enumerate(zip(names, sizes.tolist(), strict=True)):
            try:
                file = open_regular(self.path(name))
                try:
                    count = read = os.readv(file, [remaining[:size], beyond])
                    # Linux reads no more than 2 GiB at once.
                    while count and read < size:
                        count = os.readv(file, [remaining[read:size]])
                        read += count
                finally:
                    os.close(file)
            except OSError as error:
                raise _wrong(row, name, error.strerror) from None
            if read != size:
                raise _wrong(row, name, "its size changed while it was read")
            remaining = remaining[size:]
        return Ragged(data, offsets)

    def heads(self, names: Sequence[str], limit: int) -> Ragged | None:
        heads = []
        for name in names:
            head = b""
            with contextlib.suppress(OSError):
                file = open_regular(self.path(name))
                try:
                    head = os.read(file, limit)
                finally:
                    os.close(file)
            heads.append(head)
        return Ragged.from_cells(heads)

    def _whole(self, name: str) -> U8:
        source = open_source(self.path(name))
        return source.view(0, source.size)


class RemoteFiles(Files):
    """Objects below a URL, listed once, and fetched side by side."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._objects = Objects()
        # By path below the root; None before it was listed.
        self._known: dict[str, Entry] | None = None

    def walk(self, is_wanted: Callable[[str], bool], own_name: str) -> Iterator[str]:
        self._known = dict(tree.entries_below(self.root))
        hidden = set()
        for name in self._known:
            steps = name.split("/")
            above = next((n for n, step in enumerate(steps) if step.startswith(".")), None)
            if above is not None:
                hidden.add("/".join(steps[: above + 1]))
            elif is_wanted(steps[-1]):
                yield name
            else:
                self.skipped += 1
        self.skipped += sum(name.rpartition("/")[2] != own_name for name in hidden)

    def sizes(self, names: Sequence[str]) -> I64 | None:
        entries = self._entries(names)
        return None if entries is None else np.array([entry.size for entry in entries], dtype=np.int64)

    def _entries(self, names: Sequence[str]) -> list[Entry] | None:
        listed = self._listed
        entries = []
        for row, name in enumerate(names):
            if listed is None:
                return None
            if name not in listed:
                raise _wrong(row, name, os.strerror(errno.ENOENT))
            entries.append(listed[name])
        return entries

    @functools.cached_property
    def _listed(self) -> dict[str, Entry] | None:
        """Return the entries below the root; None if they cannot be listed, or are too many."""
        if self._known is None:
            with contextlib.suppress(BatchplantError):
                limit = self.named + MAX_OTHER_FILES
                listed = dict(tree.entries_below(self.root, limit))
                self._known = listed if len(listed) < limit else None
        return self._known

    def read(self, names: Sequence[str]) -> Ragged:
        entries = self._known or {}
        cells: list[U8] = []
        try:
            for data in self._objects.fetch(
                list(map(self.path, names)), [entries.get(name) for name in names]
            ):
                if data is None:
                    raise _wrong(len(cells), names[len(cells)], os.strerror(errno.ENOENT))
                cells.append(data)
        except AccessError as error:
            raise error.at(sample=len(cells)) from None
        return Ragged.from_cells(cells)

    def some(self, names: Sequence[str], limit: int) -> Iterator[U8]:
        """Read some files: a few if sizes are unknown; large ones only up to a total size."""
        chosen, listed = spread_out(names, limit), self._known or {}
        entries = [listed.get(name) for name in chosen]
        sizes = np.cumsum([0 if entry is None else entry.size for entry in entries], dtype=np.int64)
        count = max(1, int(np.searchsorted(sizes, LOOKED_AT, "right")))
        count = min(count, len(chosen) if listed else FEW)
        contents = self._objects.fetch(list(map(self.path, chosen[:count])), entries[:count])
        return (data for data in contents if data is not None)

    def source(self, name: str) -> Source | str:
        url = self.path(name)
        return self._objects.opened(url) or url

    def ahead(self, names: Sequence[str]) -> Spans | None:
        entries = self._listed
        if entries is None:
            return None
        # Whoever reads a file that is not there is told.
        listed = [name for name in names if name in entries]
        for name in listed:
            self._objects.open(self.path(name), entries[name])
        return self.spans(listed)

    def close(self) -> None:
        self._objects.close()


# -- archives -----------------------------------------------------------------------------------------


def open_member(path: str, name: str) -> Source:
    """Return the source of a member of an archive, unpacked."""
    with contextlib.closing(open_source(path)) as source:
        return UnpackedSource(f"{path}/{name}", ZipMembers(source).view(name).copy())


class ZipFiles(Files):
    """Members of an archive below ``prefix``. What is wrong with one is an error with its row for sample."""

    def __init__(self, path: str, prefix: str) -> None:
        super().__init__(f"{path}/{prefix}")
        self._source = open_source(path)
        self._members = ZipMembers(self._source)
        self._prefix = prefix

    def _run(self, name: str) -> tuple[int, int]:
        """Return where the bytes of a stored member lie."""
        start, size = self._members.start(self._prefix + name), self._members.size(self._prefix + name)
        self._source.check_bounds(start, size)
        return start, size

    @staticmethod
    def _each(get: Callable[[str], T], names: Sequence[str]) -> list[T]:
        """A result for each name; an error has the row of its name for sample."""
        results = []
        for row, name in enumerate(names):
            try:
                results.append(get(name))
            except BatchplantError as error:
                error.sample = row
                raise
        return results

    def sizes(self, names: Sequence[str]) -> I64:
        sizes = [self._members.info(self._prefix + name).file_size for name in names]
        return np.array(sizes, dtype=np.int64)

    def spans(self, names: Sequence[str]) -> Spans | None:
        if not all(self._members.stored(self._prefix + name) for name in names):
            return None
        self._members.will_need(self._prefix + name for name in names)
        runs = np.array(self._each(self._run, names), np.int64).reshape(-1, 2)
        return Spans([self._source], runs[:, 0].copy(), runs[:, 1].copy())

    def read(self, names: Sequence[str]) -> Ragged:
        return Ragged.from_cells(self._each(self._whole, names))

    def _whole(self, name: str) -> U8:
        return self._members.view(self._prefix + name)

    def heads(self, names: Sequence[str], limit: int) -> Ragged:
        heads: list[U8 | None] = []
        for name in names:
            head = None
            with contextlib.suppress(BatchplantError):
                head = self._members.head(self._prefix + name, limit)
            heads.append(head)
        return Ragged.from_cells(heads)

    def has(self, name: str) -> bool:
        """Return whether there is such a member."""
        return self._prefix + name in self._members

    def close(self) -> None:
        self._source.close()


# -- names --------------------------------------------------------------------------------------------


class FileNames(Sequence[str]):
    """Names of files below a folder, packed, and the number of each file's own folder.

    A list of strings needs four times the memory.
    """

    def __init__(self, text: AnyArray, folders: list[str], folder: AnyArray) -> None:
        self.text, self.folders, self.folder = text, folders, folder
        # Where each name ends, and before the first.
        self._ends = np.concatenate([[-1], np.flatnonzero(text == 0)])

    @classmethod
    def packed(cls, names: list[str]) -> FileNames:
        """Pack a list of names."""
        above = [name.rpartition(os.sep)[0] for name in names]
        numbers = {folder: number for number, folder in enumerate(dict.fromkeys(above))}
        folder = np.fromiter(map(numbers.__getitem__, above), np.int32, len(names))
        return cls(pack_names(names), list(numbers), folder)

    def __len__(self) -> int:
        return len(self.folder)

    def __iter__(self) -> Iterator[str]:
        return iter(unpack_names(self.text))

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        return self.take(np.array([range(len(self))[index]]))[0]

    def take(self, indices: I64) -> list[str]:
        starts, ends = (self._ends[indices] + 1).tolist(), self._ends[indices + 1].tolist()
        text = self.text.data
        return [str(text[a:b], "utf-8", "surrogateescape") for a, b in zip(starts, ends, strict=True)]

    def is_valid(self) -> bool:
        """Return whether each name has a folder, and none is empty, hidden or leads up, as after a walk."""
        if len(self) != len(self._ends) - 1 or not np.isin(self.folder, np.arange(len(self.folders))).all():
            return False
        slashes = np.flatnonzero(self.text == ord(os.sep))
        first = self.text[np.concatenate([self._ends[:-1], slashes]) + 1]
        return not np.isin(first, list(b"\0./")).any()

    @property
    def tops(self) -> list[str]:
        """The folder at the top that each of ``folders`` lies in; "" for the root itself."""
        return [folder.partition(os.sep)[0] for folder in self.folders]

    def first_in(self, folder: str) -> str | None:
        """Return the first file that lies in a folder itself."""
        if folder not in self.folders:
            return None
        return self[int(np.argmax(self.folder == self.folders.index(folder)))]


def pack_names(names: Iterable[str]) -> AnyArray:
    """Return names as one array of bytes."""
    text = "".join(name + SEPARATOR for name in names)
    return np.frombuffer(text.encode("utf-8", "surrogateescape"), dtype=np.uint8)


def unpack_names(text: AnyArray) -> list[str]:
    """Return the names of :func:`pack_names`."""
    return text.tobytes().decode("utf-8", "surrogateescape").split(SEPARATOR)[:-1]


class MediaColumn:
    """The files of a field of the dataset at ``path``; ``names`` has None where a sample has no file."""

    def __init__(self, path: str, field: str, below: Files, names: Sequence[str | None]) -> None:
        self.path, self.field, self.below, self.names = path, field, below, names

    def chosen(self, rows: I64) -> tuple[list[int], list[str]]:
        """Those of these samples that have a file, by their place among them, and the files."""
        if isinstance(self.names, FileNames):
            return list(range(len(rows))), self.names.take(rows)
        files = [(place, name) for place, row in enumerate(rows.tolist()) if (name := self.names[row])]
        return [place for place, _ in files], [name for _, name in files]

    @contextlib.contextmanager
    def _placed(self, samples: I64) -> Iterator[None]:
        """Turn problems of files into problems of their samples."""
        try:
            yield
        except BatchplantError as error:
            error.sample = None if error.sample is None else int(samples[error.sample])
            raise error.at(path=self.path, field=self.field) from None

    def read(self, rows: I64) -> Ragged:
        """All bytes of the files of these samples."""
        places, names = self.chosen(rows)
        with self._placed(rows[places]):
            contents = self.below.read(names)
        if len(places) == len(rows):
            return contents
        sizes, valid = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.bool_)
        sizes[places], valid[places] = contents.sizes, True
        return Ragged(contents.data, starts_of(sizes), valid=valid)

    def spans(self, rows: I64) -> Spans | None:
        """Each file as a span; None where a server would be asked."""
        places, names = self.chosen(rows)
        with self._placed(rows[places]):
            spans = self.below.spans(names)
        if spans is None or len(places) == len(rows):
            return spans
        start, size = np.zeros(len(rows), dtype=np.int64), np.full(len(rows), -1, dtype=np.int64)
        file = np.zeros(len(rows), dtype=np.int32)
        start[places], size[places], file[places] = spans.start, spans.size, spans.file
        return Spans(spans.sources or [self.path], start, size, file)

    def ahead(self, rows: I64) -> Spans | None:
        """The files as spans, for a caller that asks for the bytes ahead."""
        places, names = self.chosen(rows)
        with self._placed(rows[places]):
            return self.below.ahead(names)

    def path_of(self, row: int) -> str | None:
        """The file of a sample."""
        _, names = self.chosen(np.array([row]))
        return self.below.path(names[0]) if names else None

    def close(self) -> None:
        self.below.close()


class FilesReader(Reader):
    """Samples some of whose cells are whole files, and whose other fields are in memory.

    A subclass fills ``_media`` (those of the first field name the samples) and ``_columns``.
    """

    _media: dict[str, MediaColumn]
    _columns: Columns

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        return Columns((name, self._column(name, indices)) for name in fields)

    def _column(self, name: str, indices: I64) -> Column:
        if name in self._media:
            return self._media[name].read(indices)
        return Columns({name: self._columns[name]}).take(indices)[name]

    def _spans(self, field: str, indices: I64) -> Spans | None:
        return self._media[field].spans(indices) if field in self._media else None

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        """Whole files; all other fields are in memory."""
        parts = [self._media[name].ahead(indices) for name in fields if name in self._media]
        return None if None in parts else concat_spans([spans for spans in parts if spans is not None])

    def _keys(self) -> FormatKeys | None:
        """Paths below the folder; the short ones are without the suffix."""
        return FormatKeys(Text(), self._read_keys, functools.partial(self._read_keys, short=True))

    def _read_keys(self, indices: I64, short: bool = False) -> Ragged:
        names = self._paths(indices)
        if short:
            names = [os.path.splitext(name)[0] for name in names]
        return Ragged.from_cells([os.fsencode(name.replace(os.sep, "/")) for name in names])

    def _paths(self, indices: I64) -> list[str]:
        """Paths of samples below the folder."""
        return next(iter(self._media.values())).chosen(indices)[1]

    def where(self, sample: int) -> str:
        return next(iter(self._media.values())).path_of(sample) or self.path

    def close(self) -> None:
        for files in self._media.values():
            files.close()
