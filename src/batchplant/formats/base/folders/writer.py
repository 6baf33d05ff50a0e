"""Writing a folder of media."""

from __future__ import annotations

import json
import os
from typing import Any, ClassVar

import numpy as np

from ....codecs.nested import plains
from ....data.writer import Writer
from ....errors import BatchplantError, EncodeError, SchemaError
from ....schema import (
    Bool,
    Decimal,
    Duration,
    Field,
    Float,
    Int,
    Json,
    List,
    Schema,
    Struct,
    Text,
    Time,
    Uuid,
)
from ....schema.columns import Columns, Ragged
from ....storage import Patch, files_below, is_plain
from ..capabilities import Capabilities
from ..format import Format
from .media import FILE_NAME, METADATA_NAME, Media, media_in, mixed
from .reader import FolderReader

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
