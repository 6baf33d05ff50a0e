"""Reading a folder of media."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from ....codecs.cells import encode_samples
from ....codecs.infer import infer_field, infer_mask
from ....codecs.nested import column_of
from ....data.keys import FormatKeys
from ....data.reader import Reader
from ....errors import BatchplantError, DamagedError, SchemaError
from ....schema import Field, Image, Int, Schema, Text
from ....schema.columns import I64, U8, Columns, Ragged
from ....storage import NOTE_ERRORS, is_below, join, parse_object, read_beside
from ....storage.spans import Spans, concat_spans
from .files import open_files, placed
from .media import FILE_NAME, MEDIA, METADATA_NAME, Media, metadata_of, rows_of
from .pairs import Asked, pairs_of, tops_of

LABEL = "label"
# Enough to tell what the files of a folder have in common without opening every one.
PROBED_SAMPLES = 48

T = TypeVar("T")
# The name of the media field, and the schema, as our writer noted them.
Note = tuple[str, Schema]


def shared(values: Iterable[T]) -> T | None:
    """Return the common value; None if they differ, or there is none."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


class FolderReader(Reader):
    """Reads a folder. A subclass says of which media, and what its files have in common."""

    media: ClassVar[Media]

    def __init__(self, path: str, *, file_names: bool = False, pairs: Asked = False) -> None:
        self.path = path
        # The other files of a sample, by field.
        self._partners: dict[str, list[str]] = {}
        self._below = open_files(path)
        self._columns = Columns()
        note = self._note()
        # Whether our writer made it, and called its files by their numbers.
        self.is_ours = note is not None
        metadata = metadata_of(path)
        fields: dict[str, Field] = {}
        if metadata is not None:
            self._files, fields = self._read_metadata(metadata, note)
            self._below.named = len(self._files)
        else:
            try:
                names = self._below.walk(self.media.has, METADATA_NAME)
                self._files = sorted(names, key=os.path.basename if note else None)
            except BatchplantError as error:
                raise error.at(path=path) from None
            except OSError as error:
                raise DamagedError(f"{error.filename}: {error.strerror}", path=path) from None
            classes = sorted(tops_of(self._files))
            together = None if note else pairs_of(self._files, classes, pairs, path)
            if together is not None:
                [(_, self._files), *paired] = together.items()
                self._partners = dict(paired)
                fields = {name: infer_mask(*self._seen(files)) for name, files in paired}
            if together is None and (classes or (note and not self._files)):
                fields = self._labels(classes, note)
        self._field = note[0] if note else self.media.name
        if note is None:
            if self._field in fields:
                message = (
                    f"{metadata} has a column {self._field!r}, which is what the {self.media.plural} are"
                )
                raise SchemaError(f"{message} called; rename it", path=path)
            self.schema = Schema({self._field: self._look(self._files), **fields})
        else:
            self.schema = note[1]
            media_field = self.schema.get(self._field)
            if set(self.schema) != {self._field, *fields} or not isinstance(media_field, self.media.kind):
                raise DamagedError(f"{METADATA_NAME} names other fields than the folder has", path=path)
        if file_names:
            named = Schema({FILE_NAME: Text()})
            self._columns.update(encode_samples(named, [{FILE_NAME: file} for file in self._files]))
            self.schema = Schema({**self.schema, FILE_NAME: Text()})
        self.length = len(self._files)

    @property
    def files(self) -> list[str]:
        """The files of the samples, below the folder."""
        return self._files

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

    def _labels(self, classes: list[str], note: Note | None) -> dict[str, Field]:
        """The label field; its numbers are the places of the folders' names among the classes."""
        label, field = LABEL, Int(names=tuple(classes))
        if note is not None:
            named = [(key, field) for key, field in note[1].items() if isinstance(field, Int) and field.names]
            if not named and not self._files:
                return {}
            label, field = named[0] if named else (LABEL, field)
        numbers = {name: number for number, name in enumerate(field.names or ())}
        beside = next((file for file in self._files if os.sep not in file), None)
        if beside is not None:
            message = f"{self.media.plural} lie both in class folders and beside them ({beside})"
            raise SchemaError(f"{message}; move those into a class", path=self.path)
        tops = (file.partition(os.sep)[0] for file in self._files)
        try:
            self._columns[label] = np.fromiter(map(numbers.__getitem__, tops), field.dtype, len(self._files))
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

    # -- reading ---------------------------------------------------------------------------------------

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        columns = Columns()
        for name in fields:
            if name == self._field or name in self._partners:
                columns[name] = self._read_files(name, indices.tolist())
            else:
                columns[name] = Columns({name: self._columns[name]}).take(indices)[name]
        return columns

    def _read_files(self, field: str, indices: list[int]) -> Ragged:
        with placed(self.path, field, indices):
            return self._below.read(self._named(field, indices))

    def _named(self, field: str, indices: list[int]) -> list[str]:
        files = self._partners.get(field, self._files)
        return [files[index] for index in indices]

    def _spans(self, field: str, indices: I64) -> Spans | None:
        if field != self._field and field not in self._partners:
            return None
        with placed(self.path, field, indices.tolist()):
            return self._below.spans(self._named(field, indices.tolist()))

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        """Whole files; all other fields are in memory."""
        parts = []
        for name in (field for field in fields if field == self._field or field in self._partners):
            with placed(self.path, name, indices.tolist()):
                parts.append(self._below.ahead(self._named(name, indices.tolist())))
        return None if None in parts else concat_spans([part for part in parts if part is not None])

    def _keys(self) -> FormatKeys:
        """Paths below the folder; the short ones are without the suffix."""
        return FormatKeys(Text(), self._read_keys, functools.partial(self._read_keys, short=True))

    def _read_keys(self, indices: I64, short: bool = False) -> Ragged:
        names = [self._files[index] for index in indices.tolist()]
        if short:
            names = [os.path.splitext(name)[0] for name in names]
        return Ragged.from_cells([os.fsencode(name.replace(os.sep, "/")) for name in names])

    def where(self, sample: int) -> str:
        return join(self.path, self._files[sample])

    def close(self) -> None:
        self._below.close()

    def facts(self) -> dict[str, Any]:
        return {"skipped files": self._below.skipped}
