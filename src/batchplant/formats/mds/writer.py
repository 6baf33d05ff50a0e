"""Writing MDS: samples fill a shard in memory, which is written when the next one would not fit."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ... import _native
from ...codecs.media.image_rules import ANY_ENCODED, ImageTarget
from ...columns import I64, U8, Columns, Ragged, as_bytes, starts_of
from ...errors import BatchplantError, EncodeError, OptionError
from ...schema import Image, Schema
from ...storage import Patch, put_file, sync
from ...writer import WriteOptions, Writer
from . import cells, encodings, index
from .index import INDEX, MOST
from .packing import check_hashes, digest, pack
from .reader import MdsReader

FOLDER = "folder"
LIMIT = 1 << 26
# The JSON in every shard, and then some.
ROOM = 1 << 20


class MdsWriter(Writer):
    """Writes folders of MDS.

    ``size_limit``: the most bytes of a shard before it is compressed, 64 MiB; so much is held in memory.
    ``compression``: none, ``zstd``, ``gz``, ``bz2``, ``br`` or ``snappy``, with a level as in ``zstd:7``.
    ``hashes``: hashes of every file in the index, such as ``sha1`` or ``xxh64``, which ``verify`` compares.
    """

    appends: ClassVar[bool] = True

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        size_limit: int = LIMIT,
        compression: str | None = None,
        hashes: Sequence[str] = (),
    ) -> None:
        if not 1 <= size_limit <= MOST:
            raise OptionError(f"size_limit is a number of bytes from 1 to 2**32 - 1, not {size_limit}")
        self._limit = size_limit
        self._compression = None if compression in (None, "none") else compression
        self._pack = None if self._compression is None else pack(self._compression)
        self._hashes = check_hashes(hashes)
        super().__init__(path, schema, options)

    @classmethod
    def image_target(cls, field: Image) -> ImageTarget:
        raw = field.encoding == "raw" and not field.optional
        return ImageTarget(frozenset({"raw"}) if raw else ANY_ENCODED)

    def _begin(self, state: dict[str, Any] | None) -> None:
        self._flags = index.missing_column(self.schema)
        self._columns = sorted([*encodings.columns_of(self.schema), *([self._flags] if self._flags else [])])
        self._first = 0
        if self.base is not None:
            self._continue(self.base)
        self._config = {
            "version": 2, "format": "mds", "compression": self._compression, "hashes": self._hashes,
            "size_limit": self._limit, "column_names": [name for name, _ in self._columns],
            "column_encodings": [one.text for _, one in self._columns],
            "column_sizes": [one.size for _, one in self._columns],
        }  # fmt: skip
        self._text = json.dumps(self._config, sort_keys=True).encode()
        self._folder = self.partial.folder / FOLDER
        self._folder.mkdir(exist_ok=True)
        # One line for each shard that is there.
        self._lines = self.partial.spool("shards")
        self._made, self._turn = 0, 0
        self._records: list[U8] = []
        self._sizes: list[I64] = []
        self._held = 0
        if state is not None:
            self._made, self._turn = state["made"], state["turn"]
            self._restore()
        keep = {self._file_names(number)[-1] for number in range(self._made)}
        for file in self._folder.iterdir():
            if file.name not in keep:
                file.unlink()

    def _continue(self, base: Any) -> None:
        """Write on as what is there was written."""
        assert isinstance(base, MdsReader)
        self._columns = base.columns
        if base.index.missing is None and self._flags is not None:
            raise self.cannot_append("its samples have no column that says what is missing")
        self._flags = next((one for one in self._columns if one[0] == base.index.missing), None)
        names = [file.name for one in base.index.shards for file in (one.raw, one.packed) if file]
        found = (re.fullmatch(r"shard\.(\d{1,9})\.mds.*", name) for name in names)
        self._first = max((int(one[1]) for one in found if one), default=-1) + 1

    # -- samples ---------------------------------------------------------------------------------------

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        sizes = sum(
            (column.sizes for column in columns.values() if isinstance(column, Ragged)),
            np.zeros(columns.rows, np.int64),
        )
        fixed = sum(one.size or 0 for _, one in self._columns)
        rows = np.flatnonzero(sizes + fixed > MOST - ROOM)
        return {
            int(row): EncodeError(f"MDS holds samples up to 4 GiB, and this has {sizes[row] + fixed:,} bytes")
            for row in rows
        }

    def _write(self, columns: Columns) -> None:
        records = self._packed(columns)
        sizes = records.sizes
        start = 0
        while start < len(sizes):
            room = self._limit - self._held - (8 + len(self._text))
            fit = int(np.searchsorted(np.cumsum(sizes[start:] + 4), room, side="right"))
            # A sample that is larger than a shard is one by itself.
            if not fit and not self._held:
                fit = 1
            if fit:
                part = records.take(slice(start, start + fit))
                self._records.append(part.data)
                self._sizes.append(part.sizes)
                self._held += len(part.data) + 4 * fit
                start += fit
            if start < len(sizes):
                self._flush()

    def _packed(self, columns: Columns) -> Ragged:
        """The samples: sizes of the cells that vary, and then the cells."""
        found = {
            name: self._missing(columns) if self._flags and name == self._flags[0]
            else cells.packed(one, self.schema[name], columns[name])
            for name, one in self._columns
        }  # fmt: skip
        varying = [name for name, one in self._columns if one.size is None]
        heads = np.empty((columns.rows, len(varying)), "<u4")
        for place, name in enumerate(varying):
            heads[:, place] = found[name].sizes
        parts = [Ragged(as_bytes(heads), np.arange(columns.rows + 1) * 4 * len(varying)), *found.values()]
        sizes = [part.sizes for part in parts]
        offsets = starts_of(np.sum(sizes, axis=0))
        data, at = np.empty(offsets[-1], dtype=np.uint8), offsets[:-1].copy()
        for part, size in zip(parts, sizes, strict=True):
            _native.copy_runs(part.data, np.ascontiguousarray(part.starts), size, data, at)
            at += size
        return Ragged(data, offsets)

    def _missing(self, columns: Columns) -> Ragged:
        optional = index.optional_fields(self.schema)
        flags = np.zeros((columns.rows, len(optional)), dtype=np.uint8)
        for place, name in enumerate(optional):
            column = columns[name]
            if isinstance(column, Ragged) and column.valid is not None:
                flags[:, place] = ~column.valid
        return Ragged(as_bytes(flags), np.arange(columns.rows + 1) * len(optional))

    # -- shards ----------------------------------------------------------------------------------------

    def _file_names(self, number: int) -> list[str]:
        """The shard, and what it is called where it is compressed."""
        raw = f"shard.{self._first + number:05d}.mds"
        return [raw] if self._compression is None else [raw, f"{raw}.{self._compression.partition(':')[0]}"]

    def _flush(self) -> None:
        """Write the shard that is full."""
        sizes = np.concatenate(self._sizes)
        head = 4 + 4 * (len(sizes) + 1) + len(self._text)
        table = (head + starts_of(sizes)).astype("<u4")
        count = np.array([len(sizes)], "<u4")
        parts = [as_bytes(count), as_bytes(table), as_bytes(self._text), *self._records]
        raw, *packed = self._file_names(self._made)
        whole = np.concatenate(parts)
        said: dict[str, Any] = {**self._config, "samples": len(sizes), "zip_data": None}
        said["raw_data"] = self._described(raw, whole)
        path = self._folder / raw
        if self._pack is not None:
            made = self._pack(whole.tobytes())
            path = self._folder / packed[0]
            said["zip_data"] = self._described(packed[0], as_bytes(made))
            whole = as_bytes(made)
        put_file(path, whole)
        sync(path)
        self._lines.write(json.dumps(said, sort_keys=True).encode() + b"\n")
        self._made += 1
        self._records, self._sizes, self._held = [], [], 0

    def _described(self, name: str, data: U8) -> dict[str, Any]:
        return {
            "basename": name,
            "bytes": len(data),
            "hashes": {one: digest(one, data) for one in self._hashes},
        }

    # -- going on --------------------------------------------------------------------------------------

    def _pending(self, turn: int) -> Path:
        return self.partial.folder / f"pending-{turn % 2}"

    def _state(self) -> dict[str, Any]:
        # The other one belongs to the checkpoint before, until this one counts.
        self._turn += 1
        sizes = np.concatenate([np.zeros(0, np.int64), *self._sizes])
        count = np.array([len(sizes)], np.int64)
        put_file(self._pending(self._turn), np.concatenate([*map(as_bytes, (count, sizes)), *self._records]))
        return {"made": self._made, "turn": self._turn}

    def _restore(self) -> None:
        data = np.fromfile(self._pending(self._turn), dtype=np.uint8)
        count = int(data[:8].view(np.int64)[0])
        sizes = data[8 : 8 + 8 * count].view(np.int64)
        if count:
            self._sizes, self._records = [sizes.copy()], [data[8 + 8 * count :].copy()]
            self._held = int(sizes.sum()) + 4 * count

    def _finish(self) -> str:
        if self._held:
            self._flush()
        note = index.note_of(self.schema)
        with open(self._folder / INDEX, "w", encoding="utf-8") as out:
            said: list[str] = []
            if self.base is not None:
                assert isinstance(self.base, MdsReader)
                note = self.base.index.note
                said = [json.dumps(one, sort_keys=True) for one in self.base.index.said]
            lines = self._lines.read_at(self._lines.size, 0).decode().splitlines()
            out.writelines(index.document([*said, *lines], note))
        return FOLDER

    def _changes(self, name: str) -> tuple[list[Patch], list[tuple[str, str]]]:
        # The index comes last: before, nobody sees the new shards.
        files = sorted(os.listdir(self._folder), key=lambda one: (one == INDEX, one))
        return [], [(f"{name}/{one}", f"{self.partial.name}/{one}") for one in files]
