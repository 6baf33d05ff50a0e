"""Writing shards: samples fill one in memory, which is written when the next sample would not fit."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ....codecs.media.image_rules import ANY_ENCODED, ImageTarget
from ....data.writer import Writer
from ....errors import BatchplantError, EncodeError
from ....schema import Field, Image
from ....schema.columns import I64, U8, Column, Columns, Ragged, as_bytes, starts_of
from ....storage import Patch, put_file, sync
from .reader import INDEX, MAX_SHARD_BYTES, optional_fields

FOLDER = "folder"
# Left for what a shard has besides its samples.
RESERVED_BYTES = 1 << 20


class ShardsWriter(Writer):
    """Writes folders of shards. A format sets ``_limit``, the most bytes of a shard, calls ``_open_shards``
    at the end of its ``_begin``, and implements the methods below."""

    appends: ClassVar[bool] = True
    # What messages call the format.
    _title: ClassVar[str]
    _limit: int
    # The columns of a shard by name, each with how its cells are encoded; the one of the flags.
    _columns: Sequence[tuple[str, Any]]
    _flags: str | None
    # Bytes of the cells of a sample whose size does not vary.
    _fixed = 0
    # What counts for the limit besides the samples: once in a shard, and with each of them.
    _begun = 0
    _each = 0

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        sizes = sum(
            (column.sizes for column in columns.values() if isinstance(column, Ragged)),
            np.full(columns.rows, self._fixed, np.int64),
        )
        message = f"{self._title} holds samples up to 4 GiB, and this has"
        large = np.flatnonzero(sizes > MAX_SHARD_BYTES - RESERVED_BYTES)
        return {int(row): EncodeError(f"{message} {sizes[row]:,} bytes") for row in large}

    # -- what a format implements ----------------------------------------------------------------------

    def _packed(self, columns: Columns) -> Ragged:
        """The samples as they stand in a shard."""
        raise NotImplementedError

    def _file_name(self, number: int) -> str:
        """The file of the shard of this number, counted from the first that is written here."""
        raise NotImplementedError

    def _shard(self, number: int, head: list[U8], sizes: I64) -> tuple[U8, dict[str, Any]]:
        """The file of a shard, and what the index says of it.

        ``head`` and then the samples, which are ``self._records``, are all of it; ``sizes`` are those of the
        samples.
        """
        raise NotImplementedError

    def _between(self) -> bytes:
        """Bytes between the table of a shard and its samples."""
        return b""

    def _index(self, lines: list[str]) -> str:
        """The whole index of the shards that were written here, each as JSON."""
        raise NotImplementedError

    # -- samples ---------------------------------------------------------------------------------------

    @classmethod
    def image_target(cls, field: Image) -> ImageTarget:
        raw = field.encoding == "raw" and not field.optional
        return ImageTarget(frozenset({"raw"}) if raw else ANY_ENCODED)

    def _open_shards(self, state: dict[str, Any] | None) -> None:
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
        self._keep_only({self._file_name(number) for number in range(self._made)})

    def _keep_only(self, names: Collection[str]) -> None:
        for file in self._folder.iterdir():
            if file.name not in names:
                file.unlink()

    def _write(self, columns: Columns) -> None:
        records = self._packed(columns)
        sizes = records.sizes
        start = 0
        while start < len(sizes):
            room = self._limit - self._held - self._begun
            fit = int(np.searchsorted(np.cumsum(sizes[start:] + self._each), room, side="right"))
            # A sample that is larger than a shard is one by itself.
            if not fit and not self._sizes:
                fit = 1
            if fit:
                part = records.take(slice(start, start + fit))
                self._records.append(part.data)
                self._sizes.append(part.sizes)
                self._held += len(part.data) + self._each * fit
                start += fit
            if start < len(sizes):
                self._flush()

    def _cells(self, columns: Columns, packed: Callable[[Any, Field, Column], Ragged]) -> list[Ragged]:
        """The cells of every column of a shard."""
        return [
            self._missing(columns)
            if name == self._flags
            else packed(column, self.schema[name], columns[name])
            for name, column in self._columns
        ]

    def _missing(self, columns: Columns) -> Ragged:
        """The cells of the column of the flags."""
        optional = optional_fields(self.schema)
        flags = np.zeros((columns.rows, len(optional)), dtype=np.uint8)
        for position, name in enumerate(optional):
            column = columns[name]
            if isinstance(column, Ragged) and column.valid is not None:
                flags[:, position] = ~column.valid
        return Ragged(as_bytes(flags), np.arange(columns.rows + 1) * len(optional))

    # -- shards ----------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Write the shard that is full."""
        sizes = np.concatenate(self._sizes)
        between = as_bytes(self._between())
        table = (4 + 4 * (len(sizes) + 1) + len(between) + starts_of(sizes)).astype("<u4")
        count = np.array([len(sizes)], "<u4")
        data, message = self._shard(self._made, [as_bytes(count), as_bytes(table), between], sizes)
        path = self._folder / self._file_name(self._made)
        put_file(path, data)
        sync(path)
        self._lines.write(json.dumps(message, sort_keys=True).encode() + b"\n")
        self._made += 1
        self._records, self._sizes, self._held = [], [], 0

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
            self._held = int(sizes.sum()) + self._each * count

    def _finish(self) -> str:
        if self._sizes:
            self._flush()
        lines = self._lines.read_at(self._lines.size, 0).decode().splitlines()
        (self._folder / INDEX).write_text(self._index(lines), "utf-8")
        return FOLDER

    def _changes(self, name: str) -> tuple[list[Patch], list[tuple[str, str]]]:
        # The index comes last: before, nobody sees the new shards.
        files = sorted(os.listdir(self._folder), key=lambda name: (name == INDEX, name))
        return [], [(f"{name}/{file}", f"{self.partial.name}/{file}") for file in files]
