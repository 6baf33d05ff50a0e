"""Reading MDS."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...codecs.arrays import check_bytes
from ...errors import BatchplantError, Problem
from ...schema import Field, Schema, Text
from ...schema.columns import I64, U8, Ragged
from ...storage import is_remote, limits, open_source
from ..base.records import GivenSchema
from ..base.shards import Inner, Shards, ShardsReader
from . import cells, index, shards
from .encodings import DIGITS, IMAGE_ENCODINGS, holds
from .index import Shard
from .packing import digest


class MdsReader(ShardsReader):
    """Reads folders of MDS.

    ``schema``: what columns hold, where that is another kind than their encodings tell, as in
    ``{"clip": "audio"}``.
    """

    def __init__(self, path: str, *, schema: GivenSchema | str | None = None) -> None:
        self.path = path
        self.index = index.read(path)
        self.columns = self.index.columns
        self._encodings = dict(self.columns)
        self.width = len(self.columns)
        every = self.index.shards
        self.shards = Shards(
            [one.samples for one in every],
            [(name, column.size) for name, column in self.columns],
            lambda number: shards.open_file(path, every[number]),
            lambda number, source: shards.load(path, every[number], source),
            lambda number: every[number].packed is not None,
            remote=is_remote(path),
        )
        self.length = int(self.shards.firsts[-1])
        # Whoever shuffles takes a number for each sample, so many have to be there.
        if 8 * self.length > limits.allowed():
            shards.check_sizes(path, every)
        note = self.index.note
        self.missing = None if note is None or not every else note.missing
        self._set_schema(self._told() if note is None else note.schema, schema)

    def _told(self) -> Schema:
        told = ("pil", "str_int", *IMAGE_ENCODINGS)
        vague = [name for name, column in self.columns if column.varies or column.text in told]
        return Schema(index.fields_of(self.index, self._first_cells(vague)))

    # -- reading ---------------------------------------------------------------------------------------

    def _holds(self, name: str, field: Field) -> str | None:
        return None if holds(self._encodings[name], field) else self._encodings[name].text

    def _look(self, name: str) -> bool:
        return self._encodings[name].varies or self._encodings[name].text == "pil"

    def _inner(self, name: str, data: U8 | None, starts: I64, sizes: I64) -> Inner | None:
        encoding, field = self._encodings[name], self.schema[name]
        if data is not None:
            return cells.inner(encoding, field, data, starts, sizes)
        if encoding.text in DIGITS and not isinstance(field, Text):
            return None
        if encoding.size is None:
            check_bytes(field, starts, sizes)
        return Inner(starts, sizes)

    def _make(self, name: str, cells_: Ragged) -> Ragged:
        return cells.unpacked(self._encodings[name], self.schema[name], cells_)

    def _file_of(self, number: int) -> str:
        return shards.file_of(self.path, self.index.shards[number])[0]

    def _stored_bytes(self) -> int:
        return sum((shard.packed or shard.raw).size for shard in self.index.shards)

    # -- checking --------------------------------------------------------------------------------------

    def own_checks(self) -> tuple[str, ...]:
        names = {name for shard in self.index.shards for name in shard.raw.hashes}
        return tuple(f"{name} of every shard" for name in sorted(names) if digest(name, b"") is not None)

    def _verify(self) -> Iterator[Problem]:
        for number, shard in enumerate(self.index.shards):
            try:
                yield from self._verify_shard(number, shard)
            except BatchplantError as error:
                yield Problem.of(error)

    def _verify_shard(self, number: int, shard: Shard) -> Iterator[Problem]:
        found = self.shards.open(number)
        path, packed = shards.file_of(self.path, shard)
        table, size = found.table.astype(np.int64), found.source.size
        if (np.diff(table) < 0).any() or table[-1] != size or table[0] < 4 * len(table) + 4:
            yield Problem(f"its offsets do not rise from the first sample to its end, {size}", path, offset=4)
        files = [(shard.raw, found.source)]
        if packed is not None and shard.packed is not None:
            files.append((shard.packed, open_source(path)))
        for file, source in files:
            for name, want in file.hashes.items():
                have = digest(name, source.view(0, source.size))
                if have not in (None, want):
                    yield Problem(f"the {name} of {file.name} is {have}, and the index says {want}", path)

    def facts(self) -> dict[str, Any]:
        every = self.index.shards
        packed = ", ".join(sorted({one.compression for one in every if one.compression}))
        hashes = ", ".join(sorted({name for one in every for name in one.raw.hashes}))
        found = {"shards": len(every), "compression": packed, "hashes": hashes}
        return {name: value for name, value in found.items() if value != ""}
