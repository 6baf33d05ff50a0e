"""Writes tar archives of samples."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ... import _native
from ...codecs.media import image
from ...data.writer import WriteOptions, Writer
from ...errors import BatchplantError, EncodeError, SchemaError
from ...schema import Schema, Text
from ...schema.columns import I64, Columns, Ragged, as_bytes, starts_of
from ...storage import Patch
from . import members
from .layout import BLOCK, KEY, NOTHING, Note, extensions_of
from .reader import WebDatasetReader

COPIED_BYTES = 1 << 22
# Of the keys, where there is no field for them.
DIGITS = 8
GZIP_LEVEL = 6
# Of NVIDIA DALI, beside archives that it reads: it is of no use once they are written anew.
DALI_INDEX = "{stem}.idx"


class WebDatasetWriter(Writer):
    """Writes .tar files, and .tar.gz by the suffix.

    ``key``: the Text field that names the members; without such a field they are numbered.
    """

    side_cars: ClassVar[tuple[str, ...]] = (DALI_INDEX,)
    appends: ClassVar[bool] = True

    def __init__(self, path: str, schema: Schema, options: WriteOptions, *, key: str = KEY) -> None:
        self._key = key if key in schema else None
        if self._key is not None and schema[key] != Text():
            raise SchemaError("keys are text, and none is missing: the field has to be Text()", field=key)
        if self._key is None and key != KEY:
            raise SchemaError(f"there is no field {key!r} to name the members by", field=key)
        self._set_names(
            schema, extensions_of({name: field for name, field in schema.items() if name != self._key})
        )
        self._gzip = path.lower().endswith((".gz", ".tgz"))
        # The number of a shard is part of the keys, so that they differ from shard to shard.
        shard = re.search(r"-(\d+)$", Path(path).name.partition(".")[0])
        self._prefix = f"{shard[1]}-" if shard else ""
        super().__init__(path, schema, options)

    def _set_names(self, schema: Schema, named: dict[str, list[str]]) -> None:
        self._note = Note(schema, named, self._key)
        # Every extension there is, and the first of each field in that list.
        self._endings = [ending for endings in named.values() for ending in endings] + [NOTHING]
        self._first = starts_of(np.array([len(endings) for endings in named.values()], dtype=np.int64))

    def _begin(self, state: dict[str, Any] | None) -> None:
        self._last = "" if state is None else str(state["last"])
        self._file = self.partial.spool("archive")
        if self.base is not None:
            assert isinstance(self.base, WebDatasetReader)
            self._check_base(self.base, state)
        elif not self._file.size:
            self._file.write(self._note.to_bytes())

    def _check_base(self, base: WebDatasetReader, state: dict[str, Any] | None) -> None:
        """The archive says how its members are called; new ones begin where it ends."""
        if base.packed:
            raise self.cannot_append("it is packed, and its end with it; write .tar, or a new shard")
        self._key = base.key_field
        if base.note is not None:
            # One of earlier names them in another way.
            self._set_names(self.schema, base.note.extensions)
        self._noted = base.note is not None
        if base.note is not None and not base.starts_with(base.note.to_bytes()):
            raise self.cannot_append("its note leaves no room for another number of samples")
        self.end = base.end_of_members()
        if state is None:
            self._last = base.last_key()

    def _state(self) -> dict[str, Any]:
        return {"last": self._last}

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        if self._key is None:
            return {}
        column = columns.ragged(self._key)
        problems: dict[int, BatchplantError] = {}
        for row, cell in enumerate(column):
            assert cell is not None
            reason = self._unfit_key(cell.tobytes())
            if reason is not None:
                problems[row] = EncodeError(f"the key {cell.tobytes()[:200]!r} {reason}", field=self._key)
        return problems

    def _unfit_key(self, key: bytes) -> str | None:
        """Why a key cannot be a member's name, where it cannot."""
        parts = key.split(b"/")
        if not parts[-1] or b"." in parts[-1]:
            return "needs a last part without a dot, for there the extension would begin"
        if not parts[0] or b".." in parts or b"\0" in key or (b"\\" in key and b".." in key):
            return "is no path inside a folder"
        if re.match(rb"__[^/]*__(/|$)", key):
            return "would be passed over: names like __x__ are metadata"
        return None

    def _keys(self, columns: Columns) -> Ragged:
        if self._key is None:
            return self._numbered(columns.rows)
        column = columns.ragged(self._key)
        last = self._last
        for row, cell in enumerate(column):
            assert cell is not None
            key = cell.tobytes().decode()
            if key == last:
                message = f"the sample before has the key {key!r} too, and the two would be read as one"
                raise EncodeError(message, field=self._key, sample=self.written + row, path=self.path)
            last = key
        self._last = last
        return column.take(slice(None))

    def _numbered(self, rows: int) -> Ragged:
        first = self.before + self.written
        return Ragged.from_cells(
            [f"{self._prefix}{number:0{DIGITS}d}".encode() for number in range(first, first + rows)]
        )

    def _write(self, columns: Columns) -> None:
        keys = self._keys(columns)
        cells = [members.packed(self.schema[name], columns[name]) for name in self._note.extensions]
        present = np.ones((columns.rows, len(cells) + 1), dtype=np.bool_)
        ending = np.full(present.shape, len(self._endings) - 1, dtype=np.int64)
        for number, column in enumerate(cells):
            if column.valid is not None:
                present[:, number] = column.valid
            ending[:, number] = self._ending(number, column)
        # A sample without any cell still is one.
        present[:, -1] = ~present[:, :-1].any(axis=1)
        cells.append(Ragged(np.empty(0, np.uint8), np.zeros(columns.rows + 1, np.int64)))
        rows, fields = np.nonzero(present)
        sizes = np.stack([column.sizes for column in cells], axis=1)[rows, fields]
        names = self._names(keys, rows, ending[rows, fields])
        headers, ends = _native.tar_headers(names.data, names.offsets, sizes)
        places = starts_of(np.diff(ends) + (sizes + BLOCK - 1) // BLOCK * BLOCK)
        archive = np.zeros(places[-1], dtype=np.uint8)
        _native.copy_runs(headers, ends[:-1].copy(), np.diff(ends), archive, places[:-1].copy())
        starts = places[:-1] + np.diff(ends)
        for number, column in enumerate(cells):
            of_field = fields == number
            runs = (
                np.ascontiguousarray(column.starts[rows[of_field]]),
                np.ascontiguousarray(sizes[of_field]),
            )
            _native.copy_runs(as_bytes(column.data), *runs, archive, np.ascontiguousarray(starts[of_field]))
        self._file.write(archive)

    def _ending(self, number: int, column: Ragged) -> I64 | int:
        """Return each cell's extension: by encoding for images, else that of the field."""
        first, last = int(self._first[number]), int(self._first[number + 1])
        if last - first == 1:
            return first
        codes: npt.NDArray[np.int64] = image.probe(column)[:, 0].astype(np.int64)
        return first + codes

    def _names(self, keys: Ragged, rows: I64, endings: I64) -> Ragged:
        ends = Ragged.from_cells([b"." + ending.encode() for ending in self._endings])
        key_sizes, end_sizes = keys.sizes[rows], ends.sizes[endings]
        offsets = starts_of(key_sizes + end_sizes)
        data = np.empty(offsets[-1], dtype=np.uint8)
        _native.copy_runs(keys.data, keys.starts[rows], key_sizes, data, offsets[:-1].copy())
        _native.copy_runs(ends.data, ends.starts[endings], end_sizes, data, offsets[:-1] + key_sizes)
        return Ragged(data, offsets)

    def _finish(self) -> str:
        self._file.write(bytes(2 * BLOCK))
        samples, size = self.before + self.written, self.end + self._file.size
        note = Note(self._note.schema, self._note.extensions, self._key, samples, size)
        if self.base is not None:
            self.partial.spool("note").write(note.to_bytes())
            return "archive"
        self._file.write_at(note.to_bytes(), 0)
        if not self._gzip:
            return "archive"
        pack = zlib.compressobj(GZIP_LEVEL, wbits=31)
        with open(self.partial.folder / "archive.gz", "wb") as out:
            for done in range(0, self._file.size, COPIED_BYTES):
                out.write(pack.compress(self._file.read_at(COPIED_BYTES, done)))
            out.write(pack.flush())
        return "archive.gz"

    def _changes(self, name: str) -> tuple[list[Patch], list[tuple[str, str]]]:
        patches = [Patch(name, self.partial.name, self.end)]
        if self._noted:
            patches.append(Patch("note", self.partial.name, 0))
        return patches, []
