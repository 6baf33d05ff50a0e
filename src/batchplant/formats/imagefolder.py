"""A folder of pictures: class per subfolder, flat, or with a metadata file.

- ``root/cat/001.jpg``: fields ``image`` and ``label``, the classes being the subfolders in order of name;
- ``root/001.jpg``: only ``image``;
- ``root/metadata.csv`` or ``root/metadata.jsonl`` naming ``file_name``: ``image`` and the other columns.

Cells are the bytes of the files. Hidden files and files that are no pictures are skipped and counted.
What we write has ``.batchplant.json`` beside it with the schema, so that kinds and the order of samples
(the number in the file's name) come back.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..codecs import image
from ..codecs.cells import decode_cell, encode_samples
from ..codecs.infer import infer_field
from ..columns import I64, Columns, Ragged, Spans, starts_of
from ..errors import BatchplantError, DamagedError, EncodeError, SchemaError
from ..format import Format, Probe
from ..reader import Reader
from ..schema import Bool, Field, Float, Image, Int, Json, Schema, Text
from ..writer import Writer

IMAGE, LABEL, FILE_NAME = "image", "label", "file_name"
NOTE = ".batchplant.json"
METADATA = ("metadata.jsonl", "metadata.csv")
# Enough to tell which encodings and modes a folder has without opening every file.
LOOKED_AT = 48
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,99})", re.ASCII)
_REAL = re.compile(r"-?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][-+]?\d+)?|-?inf|nan", re.ASCII)


class ImageFolderReader(Reader):
    """Reads a folder of pictures. ``file_names``: add the path below the root as field ``file_name``;
    ``mode``: what pictures decode to (default: found by looking at some of them)."""

    def __init__(self, path: str, *, file_names: bool = False, mode: str | None = None) -> None:
        self.path = path
        self._skipped = 0
        note = self._note()
        metadata = next((name for name in METADATA if os.path.isfile(os.path.join(path, name))), None)
        self._columns = Columns()
        fields: dict[str, Field] = {}
        if metadata is not None:
            self._files, fields = self._read_metadata(metadata, note)
        else:
            self._files = sorted(self._walk(""), key=os.path.basename if note else None)
            classes = sorted({name.split(os.sep)[0] for name in self._files if os.sep in name})
            if classes or (note and not self._files):
                fields = self._labels(classes, note)
        picture = self._look(mode)
        name = note.get("image", IMAGE) if note else IMAGE
        self.schema = Schema({name: picture, **fields})
        if IMAGE in fields and not note:
            message = f"{metadata} has a column {IMAGE!r}, which is what the pictures are called; rename it"
            raise SchemaError(message, path=path)
        if note:
            self.schema = self._like(note["schema"])
            if mode is not None:
                self.schema = Schema({**self.schema, name: picture})
        if file_names:
            named = Schema({FILE_NAME: Text()})
            self._columns.update(encode_samples(named, [{FILE_NAME: one} for one in self._files]))
            self.schema = Schema({**self.schema, FILE_NAME: Text()})
        self._image = name
        self.length = len(self._files)

    def _note(self) -> dict[str, Any] | None:
        try:
            found = json.loads(Path(self.path, NOTE).read_bytes())
            return {"image": str(found["image"]), "schema": Schema.from_json(found["schema"])}
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, RecursionError, SchemaError) as error:
            raise DamagedError(f"{NOTE} is damaged: {error}", path=self.path) from None

    def _like(self, noted: Schema) -> Schema:
        if set(noted) != set(self.schema):
            raise DamagedError(f"{NOTE} names other fields than the folder has", path=self.path)
        return noted

    def _walk(self, below: str, seen: frozenset[tuple[int, int]] = frozenset()) -> Iterator[str]:
        """Pictures below the root, as relative paths; a link that leads back up is not followed again."""
        folder = os.path.join(self.path, below)
        found = os.stat(folder)
        if (found.st_dev, found.st_ino) in seen:
            return
        seen |= {(found.st_dev, found.st_ino)}
        with os.scandir(folder) as entries:
            for entry in entries:
                name = os.path.join(below, entry.name)
                if entry.name.startswith("."):
                    self._skipped += entry.name != NOTE
                elif entry.is_dir():
                    yield from self._walk(name, seen)
                # What is neither file nor dangling link (a pipe, say) could block whoever opens it.
                elif _is_picture(entry.name) and (entry.is_file() or not os.path.exists(entry.path)):
                    yield name
                else:
                    self._skipped += 1

    def _labels(self, classes: list[str], note: dict[str, Any] | None) -> dict[str, Field]:
        """The label field; its numbers are the places of the folders' names among the classes."""
        label, field = LABEL, Int(names=tuple(classes))
        if note is not None:
            named = [(key, one) for key, one in note["schema"].items() if isinstance(one, Int) and one.names]
            if not named and not self._files:
                return {}
            label, field = named[0] if named else (LABEL, field)
        numbers = {name: number for number, name in enumerate(field.names or ())}
        labels = []
        for file in self._files:
            above = file.split(os.sep)[0]
            if above == file:
                raise SchemaError(
                    f"pictures lie both in class folders and beside them ({file}); move those into a class",
                    path=self.path,
                )
            if above not in numbers:
                raise DamagedError(f"{NOTE} does not know the class {above}", path=self.path)
            labels.append(numbers[above])
        self._columns[label] = np.array(labels, dtype=field.dtype)
        return {label: field}

    def _read_metadata(self, name: str, note: dict[str, Any] | None) -> tuple[list[str], dict[str, Field]]:
        rows = list(_metadata_rows(os.path.join(self.path, name)))
        files = []
        for line, row in rows:
            file = row.pop(FILE_NAME, None)
            if not isinstance(file, str) or not _is_inside(file):
                raise DamagedError(
                    f"line {line}: {FILE_NAME} is {file!r}, not a path below the folder", path=self.path
                )
            files.append(os.path.normpath(file))
        names = list(dict.fromkeys(key for _, row in rows for key in row))
        values = {key: [row.get(key) for _, row in rows] for key in names}
        fields = {key: infer_field(column) for key, column in values.items()}
        if note is not None:
            fields = {key: field for key, field in note["schema"].items() if key != note["image"]}
        samples = [
            {key: values[key][row] if key in values else None for key in fields} for row in range(len(rows))
        ]
        try:
            self._columns = encode_samples(Schema(fields), samples)
        except BatchplantError as error:
            raise DamagedError(f"{name}: {error.message}", path=self.path, sample=error.sample) from None
        return files, fields

    def _look(self, mode: str | None) -> Image:
        """The encoding and mode that the pictures have, from some of them."""
        step = max(1, len(self._files) // LOOKED_AT)
        headers = []
        for name in self._files[::step][:LOOKED_AT]:
            try:
                with open(os.path.join(self.path, name), "rb") as file:
                    headers.append(image.header(np.frombuffer(file.read(65536), dtype=np.uint8)))
            # Whoever reads the sample is told.
            except OSError:
                continue
        encodings = {header.encoding for header in headers}
        modes = {header.mode for header in headers} - {""}
        encoding = (encodings.pop() or None) if len(encodings) == 1 else None
        # Palettes and one-bit pictures are looked up; grayscale among colour decodes to RGB.
        modes = {{"P": "RGB", "1": "L"}.get(one, one) for one in modes}
        found = modes.pop() if len(modes) == 1 else "RGB" if modes <= {"L", "RGB"} else None
        return Image(encoding, mode or found)

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        found = Columns()
        for name in fields:
            if name == self._image:
                found[name] = self._read_files(indices)
            else:
                found[name] = Columns({name: self._columns[name]}).take(indices)[name]
        return found

    def _read_files(self, indices: I64) -> Ragged:
        data = []
        for index in indices:
            name = self._files[index]
            try:
                with open(os.path.join(self.path, name), "rb", buffering=0) as file:
                    data.append(file.read())
            except OSError as error:
                message = f"{name}: {error.strerror}"
                raise DamagedError(message, path=self.path, sample=index, field=self._image) from None
        offsets = starts_of(np.fromiter((len(one) for one in data), dtype=np.int64, count=len(data)))
        return Ragged(np.frombuffer(b"".join(data), dtype=np.uint8), offsets)

    def _spans(self, field: str, indices: I64) -> Spans | None:
        if field != self._image:
            return None
        paths = [os.path.join(self.path, self._files[index]) for index in indices]
        sizes = np.zeros(len(paths), dtype=np.int64)
        for row, path in enumerate(paths):
            try:
                sizes[row] = os.path.getsize(path)
            except OSError as error:
                message = f"{path}: {error.strerror}"
                raise DamagedError(message, path=self.path, sample=indices[row], field=field) from None
        order = np.arange(len(paths), dtype=np.int32)
        return Spans(paths, np.zeros(len(paths), dtype=np.int64), sizes, order)

    def where(self, sample: int) -> str:
        return os.path.join(self.path, self._files[sample])

    def facts(self) -> dict[str, Any]:
        return {"skipped files": self._skipped}


def _is_inside(name: str) -> bool:
    """Whether a relative path stays below the folder."""
    return (
        not os.path.isabs(name)
        and ".." not in Path(name).parts
        and "\0" not in name
        and name not in ("", ".")
    )


def _metadata_rows(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, row) of a metadata file; values of a CSV are numbers where the whole column is."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            if path.endswith(".jsonl"):
                for line, text in enumerate(file, 1):
                    if text.strip():
                        row = json.loads(text)
                        if not isinstance(row, dict):
                            raise ValueError(f"line {line} is no JSON object")
                        yield line, row
                return
            reader = csv.DictReader(file, strict=True)
            rows = list(reader)
            for name in reader.fieldnames or ():
                column = [row[name] for row in rows]
                if name != FILE_NAME:
                    for row, value in zip(rows, _typed(column), strict=True):
                        row[name] = value
            if any(None in row or None in row.values() for row in rows):
                raise ValueError("a row has more or fewer columns than the header")
            yield from enumerate(rows, 2)
    except (ValueError, KeyError, csv.Error, RecursionError) as error:
        raise DamagedError(str(error), path=path) from None


def _typed(column: list[Any]) -> list[Any]:
    """As numbers where all of them are written as such: 007 and 1_000 are names."""
    for kind, written in ((int, _WHOLE), (float, _REAL)):
        if column and all(isinstance(value, str) and written.fullmatch(value) for value in column):
            return [kind(value) for value in column]
    return column


class ImageFolderWriter(Writer):
    """Writes a folder: class per subfolder when the only other field has class names, else metadata.jsonl."""

    @classmethod
    def refuses(cls, field: Field) -> str | None:
        if isinstance(field, Image) and field.optional:
            return "a folder of pictures cannot leave one out"
        return None

    def _begin(self, state: dict[str, Any] | None) -> None:
        pictures = [name for name, field in self.schema.items() if isinstance(field, Image)]
        if len(pictures) != 1:
            raise SchemaError(f"a folder needs exactly one image field, not {len(pictures)}", path=self.path)
        self._image = pictures[0]
        others = {name: field for name, field in self.schema.items() if name != self._image}
        if FILE_NAME in others:
            raise SchemaError("file_name is the folder's own; leave it out or rename it", field=FILE_NAME)
        self._others = Schema(others)
        only = next(iter(others.values())) if len(others) == 1 else None
        names = only.names if isinstance(only, Int) and not only.optional else None
        self._classes = tuple(names) if names else None
        for name in self._classes or ():
            if not _is_inside(name) or os.sep in name or name.startswith("."):
                raise SchemaError(f"the class {name!r} cannot be a folder's name", path=self.path)
        if self._classes and len(set(self._classes)) < len(self._classes):
            raise SchemaError("two classes have one name, and would be one folder", path=self.path)
        self._folder = self.partial.folder / "folder"
        self._folder.mkdir(exist_ok=True)
        note = {"image": self._image, "schema": self.schema.to_json()}
        (self._folder / NOTE).write_text(json.dumps(note, ensure_ascii=False))
        self._lines = None if self._classes or not others else self.partial.spool("metadata")

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        found: dict[int, BatchplantError] = {}
        cells = columns[self._image]
        assert isinstance(cells, Ragged)
        for row in np.flatnonzero(image.probe(cells)[:, 0] == 0):
            found[int(row)] = EncodeError(
                "these bytes are no picture that batchplant knows", field=self._image
            )
        if self._classes is not None:
            [label] = self._others
            column = columns[label]
            assert not isinstance(column, Ragged)
            for row in np.flatnonzero((column < 0) | (column >= len(self._classes))):
                found[int(row)] = EncodeError(f"there is no class {column[row]}", field=label)
        return found

    def _write(self, columns: Columns) -> None:
        cells = columns[self._image]
        assert isinstance(cells, Ragged)
        codes = image.probe(cells)[:, 0]
        lines = []
        for row in range(columns.rows):
            encoding = image.ENCODINGS[codes[row]]
            name = f"{self.written + row:08d}{'.jpg' if encoding == 'jpeg' else '.' + encoding}"
            values = {key: decode_cell(field, columns[key], row) for key, field in self._others.items()}
            if self._classes is not None:
                name = os.path.join(self._class(next(iter(values.values()))), name)
            (self._folder / name).write_bytes(cells[row])  # type: ignore[arg-type]
            lines.append(json.dumps({FILE_NAME: name, **values}, ensure_ascii=False) + "\n")
        if self._lines is not None:
            self._lines.write("".join(lines).encode())

    def _class(self, label: int) -> str:
        assert self._classes is not None
        (self._folder / self._classes[label]).mkdir(exist_ok=True)
        return self._classes[label]

    def _finish(self) -> str:
        if self._lines is not None:
            os.replace(self._lines.path, self._folder / "metadata.jsonl")
        return "folder"


def sniff(probe: Probe) -> bool:
    """Pictures, or a metadata file, at the top; or pictures in the first folders."""
    # Hidden names are not among those of the probe.
    if os.path.isfile(os.path.join(probe.path, NOTE)):
        return True
    if any(name in METADATA or _is_picture(name) for name in probe.names):
        return True
    folders = [name for name in probe.names if name.endswith("/")]
    if len(folders) < len(probe.names) / 2:
        return False
    for name in folders[:8]:
        with os.scandir(os.path.join(probe.path, name)) as entries:
            if any(_is_picture(entry.name) for _, entry in zip(range(100), entries, strict=False)):
                return True
    return False


def _is_picture(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in image.SUFFIXES


FORMAT = Format(
    name="imagefolder",
    title="Folder of pictures",
    suffixes=(),
    spec="https://docs.pytorch.org/vision/stable/generated/torchvision.datasets.ImageFolder.html",
    reader=ImageFolderReader,
    writer=ImageFolderWriter,
    sniff=sniff,
    kinds=(Image, Int, Float, Bool, Text, Json),
    optional=True,
    folder=True,
    extra="images",
    notes="class per subfolder, flat, or metadata.csv / metadata.jsonl",
)
