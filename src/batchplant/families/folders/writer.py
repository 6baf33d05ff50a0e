"""Writing a folder of media."""

from __future__ import annotations

import json
import os
from typing import Any, ClassVar

import numpy as np

from ...codecs.cells import decode_cell
from ...columns import Columns, Ragged
from ...errors import BatchplantError, EncodeError, SchemaError
from ...schema import Field, Int, Schema
from ...storage import is_plain
from ...writer import Writer
from .media import NOTE, Media
from .metadata import FILE_NAME


class FolderWriter(Writer):
    """Writes a folder. A subclass says of which media."""

    media: ClassVar[Media]

    @classmethod
    def refuses(cls, field: Field) -> str | None:
        if isinstance(field, cls.media.kind) and field.optional:
            return f"a folder of {cls.media.many} cannot leave one out"
        return None

    def _begin(self, state: dict[str, Any] | None) -> None:
        own = [name for name, field in self.schema.items() if isinstance(field, self.media.kind)]
        if len(own) != 1:
            message = f"a folder needs exactly one {self.media.name} field, not {len(own)}"
            raise SchemaError(message, path=self.path)
        self._field = own[0]
        others = {name: field for name, field in self.schema.items() if name != self._field}
        if FILE_NAME in others:
            raise SchemaError("file_name is the folder's own; leave it out or rename it", field=FILE_NAME)
        self._others = Schema(others)
        only = next(iter(others.values())) if len(others) == 1 else None
        names = only.names if isinstance(only, Int) and not only.optional else None
        self._classes = tuple(names) if names else None
        for name in self._classes or ():
            if not is_plain(name) or name.startswith("."):
                raise SchemaError(f"the class {name!r} cannot be a folder's name", path=self.path)
        if self._classes and len(set(self._classes)) < len(self._classes):
            raise SchemaError("two classes have one name, and would be one folder", path=self.path)
        self._folder = self.partial.folder / "folder"
        self._folder.mkdir(exist_ok=True)
        self._made: set[str] = set()
        note = {self.media.name: self._field, "schema": self.schema.to_json()}
        (self._folder / NOTE).write_text(json.dumps(note, ensure_ascii=False))
        self._lines = None if self._classes or not others else self.partial.spool("metadata")

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        found: dict[int, BatchplantError] = {}
        for row, encoding in enumerate(self._encodings(columns)):
            if not encoding:
                message = f"these bytes are not a {self.media.one} that batchplant knows"
                found[row] = EncodeError(message, field=self._field)
        if self._classes is not None:
            [label] = self._others
            column = columns[label]
            assert not isinstance(column, Ragged)
            for row in np.flatnonzero((column < 0) | (column >= len(self._classes))).tolist():
                found[row] = EncodeError(f"there is no class {column[row]}", field=label)
        return found

    def _encodings(self, columns: Columns) -> list[str]:
        cells = columns[self._field]
        assert isinstance(cells, Ragged)
        return self.media.encodings(cells)

    def _write(self, columns: Columns) -> None:
        cells = columns[self._field]
        assert isinstance(cells, Ragged)
        lines = []
        for row, encoding in enumerate(self._encodings(columns)):
            name = f"{self.written + row:08d}{self.media.suffix(encoding)}"
            values = {key: decode_cell(field, columns[key], row) for key, field in self._others.items()}
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
        if self._lines is not None:
            self.partial.put("metadata", self._folder / "metadata.jsonl")
        return "folder"
