"""Files that a column names: images, sounds and videos, parts of them, or members of archives.

A path is relative to the folder of the manifest, or begins with it, and never leads out of it: data must not
make this machine read other files, nor ask other hosts. ``outside=True`` allows that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ... import _native
from ...codecs.infer import infer_image
from ...codecs.media import audio
from ...data.layout import Layout
from ...data.reader import Reader, ReaderWrapper
from ...errors import BatchplantError, DamagedError, OptionError, SchemaError, UnsafeError, located
from ...schema import Audio, Bytes, Float, Image, Int, Schema, Text, Video
from ...schema.columns import I32, I64, U8, AnyArray, Column, Columns, Masked, Ragged, starts_of
from ...storage import Source, absolute, index, is_below, is_remote, join, like, open_source, parent, tree
from ...storage.spans import Spans, concat_spans
from .folders.files import MediaColumn, open_files
from .records import GivenSchema, given_schema

# A part of an archive that is scanned at once, larger than the largest header.
SCANNED_BYTES = 32 << 20
_NUMBER = re.compile(r"\d+(?=\D*$)")


def number_of(path: str) -> int | None:
    """Return the last number in the name of a file: that of a shard, whatever is around it."""
    matched = _NUMBER.search(path.rpartition("/")[2])
    return None if matched is None else int(matched[0])


def tar_members(source: Source, start: int, size: int) -> list[tuple[bytes, bytes, int, int]]:
    """Return (key, extension, offset, size) of every member of an archive that lies in a file.

    The extension begins behind the first dot of the name.
    """
    scanner = _native.TarScanner()
    failure = None
    while scanner.next < size and failure is None:
        offset = scanner.next
        failure = scanner.scan(source.view(start + offset, min(SCANNED_BYTES, size - offset)), size)
    result: dict[str, Any] = {"failure": failure} if failure is not None else scanner.finish()
    if result["failure"] is not None:
        message, offset = result["failure"]
        raise DamagedError(message, offset=start + offset)
    text, ends = result["keys"].tobytes(), result["key_offsets"].tolist()
    keys = [text[ends[row] : ends[row + 1]] for row in result["rows"].tolist()]
    counts = np.diff(result["extension_offsets"]).tolist()
    extensions = [
        name for name, count in zip(result["extensions"], counts, strict=True) for _ in range(count)
    ]
    starts, sizes = (result["starts"] + start).tolist(), result["sizes"].tolist()
    return list(zip(keys, extensions, starts, sizes, strict=True))


class Archive:
    """A tar archive, scanned once, and where its members are by their names without the last extension."""

    def __init__(self, path: str, *, mode: str, left_out: Sequence[bytes] = ()) -> None:
        self.source = open_source(path)

        def scan(source: Source, report: index.Report) -> tuple[index.Arrays, index.Facts]:
            members = tar_members(source, 0, source.size)
            names = [b"%s.%s" % member[:2] for member in members]
            arrays: index.Arrays = {
                "names": np.frombuffer(b"".join(names), dtype=np.uint8),
                "name_offsets": starts_of(np.array([len(name) for name in names], dtype=np.int64)),
                "runs": np.array([member[2:] for member in members], dtype=np.int64).reshape(-1),
            }
            return arrays, {}

        arrays = index.load(self.source, "members", scan, mode=mode, check=_is_scan).arrays
        self.runs = arrays["runs"].reshape(-1, 2)
        bad = self.source.outside(self.runs[:, 0], self.runs[:, 1])
        if bad is not None:
            raise DamagedError("a member ends outside of the file", path=path, offset=int(self.runs[bad, 0]))
        text, ends = arrays["names"].tobytes(), arrays["name_offsets"].tolist()
        self.by_stem: dict[str, int] = {}
        for number in range(len(self.runs)):
            stem, _, extension = text[ends[number] : ends[number + 1]].rpartition(b".")
            if extension not in left_out:
                self.by_stem.setdefault(stem.decode("utf-8", "replace"), number)


def _is_scan(loaded: index.Index) -> bool:
    if not loaded.has(names="u1", name_offsets="i8", runs="i8"):
        return False
    names, offsets, runs = (loaded.arrays[name] for name in ("names", "name_offsets", "runs"))
    return (
        len(runs) == 2 * (len(offsets) - 1)
        and bool((np.diff(offsets) >= 0).all())
        and [int(offsets[0]), int(offsets[-1])] == [0, len(names)]
    )


class Members:
    """The files of a column that are members of archives.

    ``rows``: gives the archive and the member of each sample when they are first wanted; a member of -1 is
    missing, and of -2 named in vain.
    """

    def __init__(
        self, path: str, field: str, archives: Sequence[Archive], rows: Callable[[], tuple[I32, I64]]
    ) -> None:
        self._path, self._field, self._archives, self._load = path, field, archives, rows

    @functools.cached_property
    def _runs(self) -> tuple[I32, I64]:
        """Return the archive of each sample, and where its member lies; a size of -1 or -2 is none."""
        archive, member = self._load()
        runs = np.zeros((len(member), 2), dtype=np.int64)
        runs[:, 1] = np.minimum(member, 0)
        for number, tar in enumerate(self._archives):
            rows = np.flatnonzero((archive == number) & (member >= 0))
            runs[rows] = tar.runs[member[rows]]
        return archive, runs

    def spans(self, rows: I64) -> Spans:
        """Return each member as a span."""
        archive, runs = self._runs
        starts, sizes = runs[rows].T.copy()
        if (sizes < -1).any():
            row = int(rows[np.argmax(sizes < -1)])
            message = "the archives have no member of the name that the manifest has"
            raise DamagedError(message, path=self._path, field=self._field, sample=row)
        return Spans([tar.source for tar in self._archives], starts, sizes, archive[rows])

    ahead = spans

    def contents(self, rows: I64) -> Iterable[U8 | None]:
        """Return the bytes of each member where they lie."""
        return views(self.spans(rows))

    def read(self, rows: I64) -> Ragged:
        """Return the bytes of members."""
        return Ragged.from_cells(list(self.contents(rows)))

    def path_of(self, row: int) -> str | None:
        """Return the archive of a row."""
        return self._archives[int(self._runs[0][row])].source.path if self._archives else None

    def close(self) -> None:
        for tar in self._archives:
            tar.source.close()


def views(spans: Spans) -> Iterator[U8 | None]:
    """Yield the bytes of spans where they lie."""
    for number, start, size in zip(
        spans.file.tolist(), spans.start.tolist(), spans.size.tolist(), strict=True
    ):
        yield None if size < 0 else spans.sources[number].view(start, size)


# Files that are looked at to tell what they are, and bytes of each.
PROBED_FILES, PROBED_BYTES = 48, 65536


# True: any file; else folders and URLs.
Outside = bool | str | Sequence[str]


def resolved(target: str, folder: str, outside: Outside, path: str) -> str:
    """Return the path of a file that a document may name: below its folder, or below what ``outside`` allows.

    UnsafeError for any other. ``path``: that of the document.
    """
    target = target.removeprefix("./")
    if is_below(target):
        return join(folder, target)
    # Steps back, also in other spellings, would lead out of what is allowed.
    steps = target.replace("%2e", ".").replace("%2E", ".").replace("\\", "/").split("/")
    whole = target if is_remote(target) else posixpath.join(os.path.abspath(folder or "."), target)
    allowed = [outside] if isinstance(outside, str) else [] if isinstance(outside, bool) else outside
    prefixes = [f"{text.rstrip('/')}/" for text in (*allowed, absolute(folder or "."))]
    if outside is True or (".." not in steps and any(whole.startswith(prefix) for prefix in prefixes)):
        return whole
    raise UnsafeError(
        f"{target[:200]!r} lies outside of the folder of the document; outside=[…] allows a folder or a URL, "
        "outside=True all of them",
        path=path,
    )


class Manifest(MediaColumn):
    """The files of a column. ``load``: gives the cells of the column when a file is first wanted."""

    def __init__(
        self, path: str, field: str, load: Callable[[], Ragged], *, outside: bool, folder: str | None = None
    ) -> None:
        self._folder = parent(absolute(path)) if folder is None else absolute(folder)
        self._load, self._outside, self._cells = load, outside, Ragged.from_cells([])
        super().__init__(path, field, open_files(like(path, self._folder)), ())
        self._loaded = False

    def _open(self) -> None:
        if not self._loaded:
            self._cells = self._load()
            if self._outside:
                self.below = open_files(like(self.path, self._common_root(self._cells)))
            self.below.named = len(self._cells)
            self._loaded = True

    def _common_root(self, names: Ragged) -> str:
        """The store that the paths lie in: a URL's host or bucket, or the root of this machine's files."""
        first = next((cell.tobytes().decode() for cell in names if cell is not None), "")
        start = first if is_remote(first) else self._folder
        if not is_remote(start):
            return "/"
        scheme, _, location = start.partition("://")
        return f"{scheme}://{location.partition('/')[0]}"

    def contents(self, rows: I64) -> Iterable[U8 | None]:
        """All bytes of each file, mapped where it is local: a part of a large one touches only its pages."""
        spans = None if is_remote(self.path) else self.spans(rows)
        return self.read(rows) if spans is None else views(spans)

    def infer_image(self) -> Image | None:
        """The kind of image that the files are; None where one of them is none."""
        # What is wrong with a path is told to whoever reads it.
        with contextlib.suppress(BatchplantError):
            self._open()
            rows = np.arange(len(self._cells))
            _, names = self.chosen(rows[:: max(1, len(rows) // PROBED_FILES)][:PROBED_FILES])
            heads = [data[:PROBED_BYTES] for data in self.below.some(names, PROBED_FILES)]
            return infer_image(Ragged.from_cells(heads)) if heads else None
        return None

    def chosen(self, rows: I64) -> tuple[list[int], list[str]]:
        self._open()
        places, names = [], []
        for place, row in enumerate(rows.tolist()):
            cell = self._cells[row]
            if cell is None:
                continue
            text = cell.tobytes().decode("utf-8", "surrogateescape")
            name = self._relative(text)
            if name is None:
                raise DamagedError(
                    f"{text[:200]!r} does not lie in {self.below.root}"
                    + ("" if self._outside else "; outside=True follows it if you trust the manifest"),
                    path=self.path, field=self.field, sample=row,
                )  # fmt: skip
            places.append(place)
            names.append(name)
        return places, names

    def _relative(self, name: str) -> str | None:
        """The path below the root; None where it leads out of it."""
        folder, root = str(self._folder).rstrip("/"), str(self.below.root).rstrip("/")
        if not is_remote(name) and self._outside:
            # ``..`` means what it means to the shell.
            start, slash, tail = (
                f"{folder}/".partition("://") if is_remote(folder) else ("", "", f"{folder}/")
            )
            name = start + slash + posixpath.normpath(posixpath.join(tail, name))
        if name.startswith(f"{root}/"):
            name = name[len(root) + 1 :]
        return name if is_below(name) and "://" not in name and "::" not in name else None


def _reals(column: Column) -> AnyArray:
    """Return numbers, and NaN for what is missing."""
    values = np.array(column, dtype=np.float64)
    if isinstance(column, Masked):
        values[~column.mask] = np.nan
    return values


# Columns that name a part of a file: bytes, and seconds of a sound.
BYTE_RANGE, SECONDS = ("start", "size"), ("start", "duration")


class MediaReader(ReaderWrapper):
    """A table in which columns of paths are the files that they name, or parts of these files.

    ``media``: the columns and what their files are. ``outside``: whether paths may lead out of the folder.
    ``folder``: what paths are relative to (default: that of the table). ``window``: the two columns that say
    which part of a file a sample is (default: start and size in bytes, or for sounds start and duration in
    seconds, where the table has such columns). ``members``: the columns whose files lie in archives.
    """

    own_spans = False

    def __init__(
        self,
        base: Reader,
        *,
        media: GivenSchema | str,
        outside: bool = False,
        folder: str | None = None,
        window: tuple[str, str] | None = None,
        members: Mapping[str, Members] | None = None,
    ) -> None:
        super().__init__(base)
        fields = dict(given_schema(media))
        self._manifests: dict[str, Manifest | Members] = dict(members or {})
        if folder is None and tree.is_folder(base.path):
            folder = base.path
        for name in base._names(fields):
            if not isinstance(fields[name], Image | Audio | Video | Bytes):
                raise OptionError(
                    f"media are images, sounds, videos or bytes, not {fields[name].kind}", field=name
                )
            if not isinstance(base.schema[name], Text):
                raise SchemaError("a column of paths is text", path=base.path, field=name)
            if name not in self._manifests:
                names = functools.partial(self._names_in, name)
                self._manifests[name] = Manifest(base.path, name, names, outside=outside, folder=folder)
        self._window = window or self._columns_of(list(fields.values()))
        self._in_seconds = self._window is not None and self._window != BYTE_RANGE
        for name, field in fields.items():
            if self._in_seconds:
                field = Audio("wav")
            elif (
                field == Image()
                and self._window is None
                and isinstance(manifest := self._manifests[name], Manifest)
            ):
                field = manifest.infer_image() or field
            optional = field.optional or base.schema[name].optional
            fields[name] = dataclasses.replace(field, optional=optional)
        self.schema = Schema({name: fields.get(name, field) for name, field in base.schema.items()})

    def _names_in(self, name: str) -> Ragged:
        return self.base._read(np.arange(len(self.base)), [name]).ragged(name)

    def _columns_of(self, fields: Sequence[object]) -> tuple[str, str] | None:
        """Return the columns that say which part of a file a sample is."""
        kinds = {name: type(field) for name, field in self.base.schema.items()}
        sounds = all(isinstance(field, Audio) for field in fields)
        if sounds and all(kinds.get(name) in (Int, Float) for name in SECONDS):
            return SECONDS
        return BYTE_RANGE if all(kinds.get(name) is Int for name in BYTE_RANGE) else None

    def _parts(self, rows: I64) -> tuple[AnyArray, ...]:
        """Return where the parts of files begin and how long they are; NaN where a sample does not say."""
        assert self._window is not None
        columns = self.base.read(rows, self._window)
        first, size = (_reals(columns[name]) for name in self._window)
        return first, size

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        plain = [name for name in fields if name not in self._manifests]
        columns = self.base._read(indices, plain) if plain else Columns()
        return Columns(
            (name, columns[name] if name in columns else self._cells(name, indices)) for name in fields
        )

    def _cells(self, name: str, rows: I64) -> Ragged:
        manifest = self._manifests[name]
        if self._window is None:
            return manifest.read(rows)
        contents = manifest.contents(rows)
        cells: list[object] = []
        for row, content, *part in zip(rows.tolist(), contents, *self._parts(rows), strict=True):
            if content is None:
                cells.append(None)
                continue
            with located(path=manifest.path_of(row), sample=row, field=name):
                cells.append(self._part(content, *map(float, part)))
        return Ragged.from_cells(cells)

    def _part(self, content: Any, *part: float) -> object:
        """Return a part of a file: bytes, or the seconds of a sound as WAV."""
        first, size = part
        first = 0.0 if math.isnan(first) else first
        if not self._in_seconds:
            last = len(content) if math.isnan(size) else first + size
            if not 0 <= first <= last <= len(content):
                raise DamagedError(f"bytes {first:.0f} to {last:.0f} do not lie in {len(content)}")
            return content[int(first) : int(last)]
        if first < 0 or size < 0 or math.isinf(first) or math.isinf(size):
            raise DamagedError(f"{size} seconds from {first} on are no part of a sound")
        return audio.cut(content, first, None if math.isnan(size) else size)

    def _spans(self, field: str, indices: I64) -> Spans | None:
        if field not in self._manifests:
            return self.base._spans(field, indices)
        spans = None if self._in_seconds else self._manifests[field].spans(indices)
        if spans is None or self._window is None or (spans.size < 0).any():
            return spans if self._window is None else None
        first, size = self._parts(indices)
        first = np.where(np.isnan(first), 0, first)
        size = np.where(np.isnan(size), spans.size - first, size)
        wrong = (first < 0) | (size < 0) | (first + size > spans.size)
        if wrong.any():
            row = int(np.argmax(wrong))
            message = (
                f"bytes {first[row]:.0f} to {first[row] + size[row]:.0f} do not lie in {spans.size[row]}"
            )
            raise DamagedError(message, path=self.path, sample=int(indices[row]), field=field)
        first = first + spans.start
        return Spans(spans.sources, first.astype(np.int64), size.astype(np.int64), spans.file)

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        plain = [name for name in fields if name not in self._manifests]
        parts = [self.base._ranges(plain, indices)] if plain else []
        for name in (name for name in fields if name in self._manifests):
            whole_files = self._window is None or self._in_seconds
            parts.append(self._manifests[name].ahead(indices) if whole_files else self._spans(name, indices))
        return None if None in parts else concat_spans([spans for spans in parts if spans is not None])

    def _layout(self) -> Layout:
        return dataclasses.replace(super()._layout(), sizes=None)

    def where(self, sample: int) -> str:
        files = (manifest.path_of(sample) for manifest in self._manifests.values())
        return next((file for file in files if file is not None), self.path)

    def close(self) -> None:
        for manifest in self._manifests.values():
            manifest.close()
        self.base.close()
