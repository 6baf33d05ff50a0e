"""Reading and writing a folder of media; the names of a large one are stored in the user's cache."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from ....codecs.cells import encode_samples
from ....codecs.infer import infer_field, infer_mask
from ....codecs.nested import column_of, plains
from ....data.writer import Writer
from ....errors import BatchplantError, DamagedError, EncodeError, OptionError, SchemaError
from ....schema import (
    Bool,
    Decimal,
    Duration,
    Field,
    Float,
    Image,
    Int,
    Json,
    List,
    Schema,
    Struct,
    Text,
    Time,
    Uuid,
)
from ....schema.columns import U8, Columns, Ragged
from ....storage import (
    NOTE_ERRORS,
    Patch,
    files_below,
    index,
    is_below,
    is_plain,
    join,
    parse_object,
    read_beside,
)
from ....storage.platform import filesystem
from ..format import Capabilities, Format, Probe
from .files import (
    FileNames,
    Files,
    FilesReader,
    LocalFiles,
    MediaColumn,
    open_files,
    pack_names,
    unpack_names,
)
from .media import (
    FILE_NAME,
    MEDIA,
    METADATA_NAME,
    Asked,
    Media,
    media_in,
    metadata_of,
    mixed,
    pairs_of,
    rows_of,
    splits_in,
)

LABEL = "label"
# Enough to tell what the files of a folder have in common without opening every one.
PROBED_SAMPLES = 48
# Listing fewer files is fast enough without a stored listing.
MIN_STORED_FILES = 20_000
# File systems that change the ctime of a folder with its entries; object stores mounted by FUSE may not.
STABLE_FILE_SYSTEMS = {
    "btrfs", "ceph", "ext2", "ext3", "ext4", "f2fs", "lustre", "nfs", "nfs4", "overlay", "tmpfs", "xfs",
    "zfs",
}  # fmt: skip
# A folder that changed so recently may change again without another ctime.
SETTLED_NS = 2_000_000_000
LISTING_KIND, LISTING_VERSION = "listing", 1

T = TypeVar("T")
# The name of the media field, and the schema, as our writer noted them.
Note = tuple[str, Schema]


def shared(values: Iterable[T]) -> T | None:
    """Return the common value; None if they differ, or there is none."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


class FolderReader(FilesReader):
    """Reads a folder. A subclass says of which media, and what its files have in common."""

    media: ClassVar[Media]

    def __init__(
        self, path: str, *, file_names: bool = False, pairs: Asked = False, split: str | None = None
    ) -> None:
        siblings: list[str] = []
        if split is not None:
            splits = splits_in(Probe(path).names)
            if split not in splits:
                names_text = ", ".join(splits) or "none"
                raise OptionError(f"there is no split {split!r}; there are {names_text}", path=path)
            siblings, path = [join(path, folder) for folder in splits], join(path, split)
        self.path = path
        self._below = open_files(path)
        self._columns = Columns()
        note = self._note()
        # Whether our writer made it, and called its files by their numbers.
        self.is_ours = note is not None
        metadata = metadata_of(path)
        fields: dict[str, Field] = {}
        self.files: Sequence[str]
        paired: list[tuple[str, list[str]]] = []
        if metadata is not None:
            self.files, fields = self._read_metadata(metadata, note)
            self._below.named = len(self.files)
        else:
            try:
                names = list_files(
                    self._below, self.media.name, self.media.has, METADATA_NAME, by_basename=note is not None
                )
                self.files = names
            except BatchplantError as error:
                raise error.at(path=path) from None
            except OSError as error:
                raise DamagedError(f"{error.filename}: {error.strerror}", path=path) from None
            classes = sorted({*names.tops} - {""})
            together = None if note else pairs_of(names, classes, pairs, path)
            if together is not None:
                [(_, self.files), *paired] = together.items()
                fields = {name: infer_mask(*self._seen(files)) for name, files in paired}
            splits = splits_in(f"{name}/" for name in classes)
            if together is None and len(splits) > 1 and all(name.count(os.sep) > 1 for name in names[:8]):
                message = "there are several splits: say which with split= (--option split=…)"
                raise OptionError(f"{message}: {', '.join(splits)}", path=path)
            if siblings and classes:
                # A class has the same number in every split.
                names_of_all = (name for folder in siblings for name in Probe(folder).all_names)
                classes = sorted({*classes, *(name[:-1] for name in names_of_all if name.endswith("/"))})
            if together is None and (classes or (note and not self.files)):
                fields = self._labels(names, classes, note)
        self._field = note[0] if note else self.media.name
        columns = [(self._field, self.files), *paired]
        self._media = {name: MediaColumn(path, name, self._below, files) for name, files in columns}
        if note is None:
            if self._field in fields:
                message = (
                    f"{metadata} has a column {self._field!r}, which is what the {self.media.plural} are"
                )
                raise SchemaError(f"{message} called; rename it", path=path)
            self.schema = Schema({self._field: self._look(self.files), **fields})
        else:
            self.schema = note[1]
            media_field = self.schema.get(self._field)
            if set(self.schema) != {self._field, *fields} or not isinstance(media_field, self.media.kind):
                raise DamagedError(f"{METADATA_NAME} names other fields than the folder has", path=path)
        if file_names:
            named = Schema({FILE_NAME: Text()})
            self._columns.update(encode_samples(named, [{FILE_NAME: file} for file in self.files]))
            self.schema = Schema({**self.schema, FILE_NAME: Text()})
        self.length = len(self.files)

    # -- what a subclass implements --------------------------------------------------------------------

    def _look(self, files: Sequence[str]) -> Field:
        """The field that the files make, from some of them."""
        raise NotImplementedError

    def _seen(self, files: Sequence[str]) -> tuple[Image, Ragged]:
        """Infer the kind of images, and return some of them."""
        field = self._look(files)
        assert isinstance(field, Image)
        return field, Ragged.from_cells(list(itertools.islice(self._some(files), PROBED_SAMPLES // 4)))

    def _some(self, files: Sequence[str]) -> Iterator[U8]:
        """The bytes of some files from all over the folder; those that cannot be had are left out."""
        return self._below.some(files, PROBED_SAMPLES)

    # -- opening ---------------------------------------------------------------------------------------

    def _note(self) -> Note | None:
        media_name = self.media.name
        try:
            data = read_beside(join(self.path, METADATA_NAME))
            if data is None:
                return None
            note = parse_object(data)
            other_medium = next(
                (medium for medium in MEDIA if medium.name in note and media_name not in note), None
            )
            if other_medium is None:
                return str(note[media_name]), Schema.from_json(note["schema"])
        except (*NOTE_ERRORS, SchemaError) as error:
            raise DamagedError(f"{METADATA_NAME} is damaged: {error}", path=self.path) from None
        message = f"this is a folder of {other_medium.plural}; open it with format={other_medium.format!r}"
        raise SchemaError(message, path=self.path)

    def _labels(self, names: FileNames, classes: list[str], note: Note | None) -> dict[str, Field]:
        """The label field; its numbers are the places of the folders' names among the classes."""
        label, field = LABEL, Int(names=tuple(classes))
        if note is not None:
            named = [(key, field) for key, field in note[1].items() if isinstance(field, Int) and field.names]
            if not named and not self.files:
                return {}
            label, field = named[0] if named else (LABEL, field)
        numbers = {name: number for number, name in enumerate(field.names or ())}
        beside = names.first_in("")
        if beside is not None:
            message = f"{self.media.plural} lie both in class folders and beside them ({beside})"
            raise SchemaError(f"{message}; move those into a class", path=self.path)
        try:
            of_folder = np.array([numbers[top] for top in names.tops], dtype=field.dtype)
            self._columns[label] = of_folder[names.folder]
        except KeyError as error:
            raise DamagedError(
                f"{METADATA_NAME} does not know the class {error.args[0]}", path=self.path
            ) from None
        return {label: field}

    def _read_metadata(self, name: str, note: Note | None) -> tuple[list[str], dict[str, Field]]:
        rows = list(rows_of(join(self.path, name)))
        files = []
        for line, row in rows:
            file = row.pop(FILE_NAME, None)
            if not is_below(file):
                raise DamagedError(
                    f"line {line}: {FILE_NAME} is {file!r}, not a path below the folder", path=self.path
                )
            files.append(os.path.normpath(file))
        names = list(dict.fromkeys(key for _, row in rows for key in row))
        values = {key: [row.get(key) for _, row in rows] for key in names}
        fields = {key: infer_field(column) for key, column in values.items()}
        if note is not None:
            fields = {key: field for key, field in note[1].items() if key != note[0]}
        empty = [None] * len(rows)
        try:
            self._columns = Columns(
                (key, column_of(field, values.get(key, empty))) for key, field in fields.items()
            )
        except BatchplantError as error:
            raise DamagedError(f"{name}: {error.message}", path=self.path, sample=error.sample) from None
        return files, fields

    def facts(self) -> dict[str, object]:
        return {"skipped files": self._below.skipped}


def list_files(
    files: Files, medium: str, is_wanted: Callable[[str], bool], own_name: str, *, by_basename: bool
) -> FileNames:
    """Return the wanted files of a folder, sorted: from the cache if no folder has changed, else by a walk.

    ``medium`` names what is wanted. The names of a large local folder go into the user's cache.
    """
    group = index.FileGroup(files.root, [], state={}, options={})
    about = f"{medium} {by_basename}"
    if isinstance(files, LocalFiles):
        stored = index.recall(group, LISTING_KIND, about, mode="write", version=LISTING_VERSION)
        fresh = stored and _fresh_names(files.root, stored)
        if stored and fresh:
            files.skipped = int(stored.facts["skipped"])
            return fresh
    now = time.time_ns()
    key = os.path.basename if by_basename else None
    names = FileNames.packed(sorted(files.walk(is_wanted, own_name), key=key))
    if isinstance(files, LocalFiles) and len(names) >= MIN_STORED_FILES and _is_settled(files, now):
        arrays = {
            "names": names.text,
            "folders": pack_names(names.folders),
            "folder": names.folder,
            "walked": pack_names(files.walked),
            "ctimes": np.array([ctime for _, ctime in files.walked.values()]),
        }
        facts = {"skipped": files.skipped}
        index.remember(
            group,
            LISTING_KIND,
            about,
            lambda source, report: (arrays, facts),
            mode="rebuild",
            version=LISTING_VERSION,
        )
    return names


def _is_settled(files: LocalFiles, now: int) -> bool:
    """Return whether the ctimes of all folders would tell of a change."""
    states = files.walked.values()
    return (
        len({device for device, _ in states}) == 1
        and max(ctime for _, ctime in states) < now - SETTLED_NS
        and filesystem(files.root) in STABLE_FILE_SYSTEMS
    )


def _fresh_names(root: str, stored: index.Index) -> FileNames | None:
    """Return the names of a stored listing; None if a folder has changed since, or is gone."""
    arrays = stored.arrays
    walked = unpack_names(arrays["walked"])
    with contextlib.suppress(OSError):
        ctimes = [os.stat(os.path.join(root, folder)).st_ctime_ns for folder in walked]
        names = FileNames(arrays["names"], unpack_names(arrays["folders"]), arrays["folder"])
        if ctimes == arrays["ctimes"].tolist() and names.is_valid():
            return names
    return None


METADATA = "metadata.jsonl"
# What stands in it.
BESIDE = (Int, Float, Bool, Text, Json, Time, Duration, Decimal, Uuid, List, Struct)


class FolderWriter(Writer):
    """Writes a folder: class per subfolder when the only other field has class names, else metadata.jsonl."""

    media: ClassVar[Media]
    appends: ClassVar[bool] = True

    @classmethod
    def refuses(cls, field: Field) -> str | None:
        if isinstance(field, cls.media.kind) and field.optional:
            return f"a folder of {cls.media.plural} cannot leave one out"
        return None

    def _begin(self, state: dict[str, Any] | None) -> None:
        media_fields = [name for name, field in self.schema.items() if isinstance(field, self.media.kind)]
        if len(media_fields) != 1:
            message = f"a folder needs exactly one {self.media.name} field, not {len(media_fields)}"
            raise SchemaError(message, path=self.path)
        self._field = media_fields[0]
        fields = {name: field for name, field in self.schema.items() if name != self._field}
        if FILE_NAME in fields:
            raise SchemaError("file_name is the folder's own; leave it out or rename it", field=FILE_NAME)
        self._others = Schema(fields)
        only = next(iter(fields.values())) if len(fields) == 1 else None
        names = only.names if isinstance(only, Int) and not only.optional else None
        self._classes = tuple(names) if names else None
        for name in self._classes or ():
            if not is_plain(name, is_listed=True) or name.startswith("."):
                raise SchemaError(f"the class {name!r} cannot be a folder's name", path=self.path)
        if self._classes and len(set(self._classes)) < len(self._classes):
            raise SchemaError("two classes have one name, and would be one folder", path=self.path)
        self._folder = self.partial.folder / "folder"
        self._folder.mkdir(exist_ok=True)
        self._made: set[str] = set()
        self._first = 0
        if self.base is not None:
            assert isinstance(self.base, FolderReader)
            self._first = self._next_number(self.base)
        else:
            note = {self.media.name: self._field, "schema": self.schema.to_json()}
            (self._folder / METADATA_NAME).write_text(json.dumps(note, ensure_ascii=False))
        self._lines = None if self._classes or not fields else self.partial.spool("metadata")

    def _next_number(self, base: FolderReader) -> int:
        """New files are behind those that are there, in order of name."""
        numbers = [os.path.splitext(os.path.basename(name))[0] for name in base.files]
        if not base.is_ours or not all(number.isdecimal() for number in numbers):
            raise self.cannot_append(
                "its files have names of their own, and new ones among them would shift the numbers of the "
                "samples; convert it to a folder first"
            )
        return max(map(int, numbers), default=-1) + 1

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        problems: dict[int, BatchplantError] = {}
        for row, encoding in enumerate(self._encodings(columns)):
            if not encoding:
                message = f"these bytes are no {self.media.singular} that batchplant knows"
                problems[row] = EncodeError(message, field=self._field)
        if self._classes is not None:
            [label] = self._others
            column = columns[label]
            assert not isinstance(column, Ragged)
            for row in np.flatnonzero((column < 0) | (column >= len(self._classes))).tolist():
                problems[row] = EncodeError(f"there is no class {column[row]}", field=label)
        return problems

    def _encodings(self, columns: Columns) -> list[str]:
        cells = columns.ragged(self._field)
        return self.media.encodings(cells)

    def _write(self, columns: Columns) -> None:
        cells = columns.ragged(self._field)
        lines = []
        values_of_fields = {key: plains(field, columns[key]) for key, field in self._others.items()}
        for row, encoding in enumerate(self._encodings(columns)):
            name = f"{self._first + self.written + row:08d}{self.media.suffix(encoding)}"
            values = {key: column[row] for key, column in values_of_fields.items()}
            if self._classes is not None:
                name = os.path.join(self._class(next(iter(values.values()))), name)
            data: Any = cells[row]
            with open(os.path.join(self._folder, name), "wb", buffering=0) as file:
                # Linux writes no more than 2 GiB at once.
                while len(data):
                    data = data[file.write(data) :]
            if self._lines is not None:
                lines.append(json.dumps({FILE_NAME: name, **values}, ensure_ascii=False) + "\n")
        if self._lines is not None:
            self._lines.write("".join(lines).encode())

    def _class(self, label: int) -> str:
        assert self._classes is not None
        name = self._classes[label]
        if name not in self._made:
            (self._folder / name).mkdir(exist_ok=True)
            self._made.add(name)
        return name

    def _finish(self) -> str:
        if self._lines is not None and self.base is None:
            self.partial.put("metadata", self._folder / METADATA)
        return "folder"

    def _changes(self, name: str) -> tuple[list[Patch], list[tuple[str, str]]]:
        patches, target = [], self.partial.name
        if self._lines is not None:
            size = os.path.getsize(os.path.join(self.path, METADATA))
            patches.append(Patch("metadata", f"{target}/{METADATA}", size))
        return patches, [(f"{name}/{file}", f"{target}/{file}") for file in files_below(self._folder)]


def folder_format(
    reader: type[FolderReader], writer: type[FolderWriter], *, ecosystem: tuple[str, ...], **details: Any
) -> Format:
    """The format of folders of one medium. ``details``: of ``Format``, besides those that all have."""
    media = reader.media
    return Format(
        name=media.format,
        title=f"Folder of {media.plural}",
        suffixes=(),
        reader=reader,
        writer=writer,
        # At the top, in the first folders, or named by a metadata file: this medium, and no other.
        sniff=lambda probe: probe.ask(media_in) == [media],
        kinds=(media.kind, *BESIDE),
        optional=True,
        folder=True,
        media=media.kind,
        doubt=mixed,
        can=Capabilities(
            random_access=True,
            column_pruning=True,
            remote_ranges=True,
            keeps_schema=True,
            streaming_write=True,
            splittable=True,
            ecosystem=ecosystem,
        ),
        **details,
    )
