"""Reading a folder of media."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from ...codecs.cells import encode_samples
from ...codecs.infer import infer_field, infer_mask
from ...columns import I64, U8, Columns, Ragged, Spans, starts_of
from ...errors import BatchplantError, DamagedError, SchemaError
from ...reader import Reader
from ...schema import Field, Image, Int, Schema, Text
from ...storage import NOTE_ERRORS, is_below, open_regular, open_source, parse_object, read_beside
from .media import MEDIA, NOTE, Media
from .metadata import FILE_NAME, metadata_of, rows_of
from .pairs import Asked, pairs_of

LABEL = "label"
# Enough to tell what the files of a folder have in common without opening every one.
PROBED_SAMPLES = 48
# Links that lead to links, each twice, would double the folder with every one.
MOST_VISITS = 100

T = TypeVar("T")
# The name of the media field, and the schema, as our writer noted them.
Note = tuple[str, Schema]


def shared(values: Iterable[T]) -> T | None:
    """What all of them are; None where they differ, or where there is none."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


class FolderReader(Reader):
    """Reads a folder. A subclass says of which media, and what its files have in common."""

    media: ClassVar[Media]

    def __init__(self, path: str, *, file_names: bool = False, pairs: Asked = False) -> None:
        self.path = path
        # The other files of a sample, by field.
        self._partners: dict[str, list[str]] = {}
        self._skipped = 0
        self._columns = Columns()
        note = self._note()
        metadata = metadata_of(path)
        fields: dict[str, Field] = {}
        if metadata is not None:
            self._files, fields = self._read_metadata(metadata, note)
        else:
            try:
                self._files = sorted(self._walk(), key=os.path.basename if note else None)
            except OSError as error:
                raise DamagedError(f"{error.filename}: {error.strerror}", path=path) from None
            together = None if note else pairs_of(self._files, pairs, path)
            if together is not None:
                [(_, self._files), *others] = together.items()
                self._partners = dict(others)
                fields = {name: infer_mask(*self._seen(files)) for name, files in others}
            classes = sorted({name.split(os.sep)[0] for name in self._files if os.sep in name})
            if together is None and (classes or (note and not self._files)):
                fields = self._labels(classes, note)
        self._field = note[0] if note else self.media.name
        if note is None:
            if self._field in fields:
                message = f"{metadata} has a column {self._field!r}, which is what the {self.media.many} are"
                raise SchemaError(f"{message} called; rename it", path=path)
            self.schema = Schema({self._field: self._look(self._files), **fields})
        else:
            self.schema = note[1]
            own = self.schema.get(self._field)
            if set(self.schema) != {self._field, *fields} or not isinstance(own, self.media.kind):
                raise DamagedError(f"{NOTE} names other fields than the folder has", path=path)
        if file_names:
            named = Schema({FILE_NAME: Text()})
            self._columns.update(encode_samples(named, [{FILE_NAME: one} for one in self._files]))
            self.schema = Schema({**self.schema, FILE_NAME: Text()})
        self.length = len(self._files)

    # -- what a subclass implements --------------------------------------------------------------------

    def _look(self, files: Sequence[str]) -> Field:
        """The field that the files make, from some of them."""
        raise NotImplementedError

    def _seen(self, files: Sequence[str]) -> tuple[Image, Ragged]:
        """What pictures seem to be, and some of them."""
        field = self._look(files)
        assert isinstance(field, Image)
        return field, Ragged.from_cells(list(itertools.islice(self._some(files), PROBED_SAMPLES // 4)))

    def _some(self, files: Sequence[str]) -> Iterator[U8]:
        """The bytes of some files from all over the folder, mapped; those that cannot be had are left out."""
        step = max(1, len(files) // PROBED_SAMPLES)
        for name in files[::step][:PROBED_SAMPLES]:
            path = os.path.join(self.path, name)
            # Whoever reads the sample is told.
            with contextlib.suppress(BatchplantError, OSError):
                if os.path.isfile(path):
                    source = open_source(path)
                    yield source.view(0, source.size)

    # -- opening ---------------------------------------------------------------------------------------

    def _note(self) -> Note | None:
        own = self.media.name
        try:
            data = read_beside(os.path.join(self.path, NOTE))
            if data is None:
                return None
            found = parse_object(data)
            other = next((one for one in MEDIA if one.name in found and own not in found), None)
            if other is None:
                return str(found[own]), Schema.from_json(found["schema"])
        except (*NOTE_ERRORS, SchemaError) as error:
            raise DamagedError(f"{NOTE} is damaged: {error}", path=self.path) from None
        message = f"this is a folder of {other.many}; open it with format={other.format!r}"
        raise SchemaError(message, path=self.path)

    def _walk(self) -> Iterator[str]:
        """Our files below the root, as relative paths; a link that leads back up is not followed again."""
        visits: Counter[tuple[int, int]] = Counter()
        waiting: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]
        while waiting:
            below, above = waiting.pop()
            folder = os.path.join(self.path, below)
            found = os.stat(folder)
            here = (found.st_dev, found.st_ino)
            visits[here] += 1
            if here in above:
                continue
            if visits[here] > MOST_VISITS:
                raise DamagedError(f"{below}: more than {MOST_VISITS} links lead there", path=self.path)
            with os.scandir(folder) as entries:
                for entry in entries:
                    name = os.path.join(below, entry.name)
                    try:
                        is_folder, is_file = entry.is_dir(), entry.is_file()
                    # A link to itself.
                    except OSError:
                        is_folder = is_file = False
                    if entry.name.startswith("."):
                        self._skipped += entry.name != NOTE
                    elif is_folder:
                        waiting.append((name, above | {here}))
                    # What is neither file nor dangling link (a pipe, say) could block whoever opens it.
                    elif self.media.has(entry.name) and (is_file or not os.path.exists(entry.path)):
                        yield name
                    else:
                        self._skipped += 1

    def _labels(self, classes: list[str], note: Note | None) -> dict[str, Field]:
        """The label field; its numbers are the places of the folders' names among the classes."""
        label, field = LABEL, Int(names=tuple(classes))
        if note is not None:
            named = [(key, one) for key, one in note[1].items() if isinstance(one, Int) and one.names]
            if not named and not self._files:
                return {}
            label, field = named[0] if named else (LABEL, field)
        numbers = {name: number for number, name in enumerate(field.names or ())}
        labels = []
        for file in self._files:
            above = file.split(os.sep)[0]
            if above == file:
                message = f"{self.media.many} lie both in class folders and beside them ({file})"
                raise SchemaError(f"{message}; move those into a class", path=self.path)
            if above not in numbers:
                raise DamagedError(f"{NOTE} does not know the class {above}", path=self.path)
            labels.append(numbers[above])
        self._columns[label] = np.array(labels, dtype=field.dtype)
        return {label: field}

    def _read_metadata(self, name: str, note: Note | None) -> tuple[list[str], dict[str, Field]]:
        rows = list(rows_of(os.path.join(self.path, name)))
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
        samples = [
            {key: values[key][row] if key in values else None for key in fields} for row in range(len(rows))
        ]
        try:
            self._columns = encode_samples(Schema(fields), samples)
        except BatchplantError as error:
            raise DamagedError(f"{name}: {error.message}", path=self.path, sample=error.sample) from None
        return files, fields

    # -- reading ---------------------------------------------------------------------------------------

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        found = Columns()
        for name in fields:
            if name == self._field or name in self._partners:
                found[name] = self._read_files(name, indices.tolist())
            else:
                found[name] = Columns({name: self._columns[name]}).take(indices)[name]
        return found

    def _read_files(self, field: str, indices: list[int]) -> Ragged:
        paths, sizes = self._sizes(field, indices)
        offsets = starts_of(sizes)
        data = np.empty(offsets[-1], dtype=np.uint8)
        # One byte more than was promised tells that a file has grown.
        left, beyond = data.data, bytearray(1)
        for index, path, size in zip(indices, paths, sizes.tolist(), strict=True):
            try:
                file = open_regular(path)
                try:
                    count = read = os.readv(file, [left[:size], beyond])
                    # Linux reads no more than 2 GiB at once.
                    while count and read < size:
                        count = os.readv(file, [left[read:size]])
                        read += count
                finally:
                    os.close(file)
            except OSError as error:
                raise self._unreadable(field, index, error.strerror) from None
            if read != size:
                raise self._unreadable(field, index, "its size changed while it was read")
            left = left[size:]
        return Ragged(data, offsets)

    def _sizes(self, field: str, indices: list[int]) -> tuple[list[str], I64]:
        """The paths of these samples, and the sizes of the files."""
        files = self._partners.get(field, self._files)
        paths = [os.path.join(self.path, files[index]) for index in indices]
        sizes = np.zeros(len(paths), dtype=np.int64)
        for row, path in enumerate(paths):
            try:
                found = os.stat(path)
            except OSError as error:
                raise self._unreadable(field, indices[row], error.strerror) from None
            # Metadata may name anything; a pipe would block whoever opens it.
            if not stat.S_ISREG(found.st_mode):
                raise self._unreadable(field, indices[row], "it is no file")
            sizes[row] = found.st_size
        return paths, sizes

    def _unreadable(self, field: str, index: int, reason: str | None) -> DamagedError:
        message = f"{self._partners.get(field, self._files)[index]}: {reason}"
        return DamagedError(message, path=self.path, sample=index, field=field)

    def _spans(self, field: str, indices: I64) -> Spans | None:
        if field != self._field and field not in self._partners:
            return None
        paths, sizes = self._sizes(field, indices.tolist())
        order = np.arange(len(paths), dtype=np.int32)
        return Spans(paths, np.zeros(len(paths), dtype=np.int64), sizes, order)

    def where(self, sample: int) -> str:
        return os.path.join(self.path, self._files[sample])

    def facts(self) -> dict[str, Any]:
        return {"skipped files": self._skipped}
