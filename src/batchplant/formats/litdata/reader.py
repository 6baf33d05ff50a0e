"""Reading LitData."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...errors import BatchplantError, DamagedError, NotFoundError, OptionError, Problem, UnsafeError
from ...schema import Field, Schema, Tensor
from ...schema.columns import I64, U8, Columns, Ragged, Spans
from ...storage import Source, is_remote, join, limits, open_source
from ..base.records import GivenSchema, given_schema
from ..base.shards import Inner, Opened, Shards, ShardsReader
from . import cells, chunks, encodings, index, tables


class LitDataReader(ShardsReader):
    """Reads folders of LitData, also those that are still packed.

    ``schema``: what values are, where that is another kind than their encodings tell, as in
    ``{"clip": "audio"}``; a pickle is read only as ``bytes``. ``block_size``: of a set of tokens, samples are
    as many tokens each, as those of LitData's ``TokensLoader``; by default they are what was written.
    """

    def __init__(
        self, path: str, *, schema: GivenSchema | str | None = None, block_size: int | None = None
    ) -> None:
        self.path = path
        self.index = found = index.read(path)
        if block_size is not None and (not found.bare or block_size < 1):
            takes = "is 1 or more" if found.bare else "is for sets of tokens, and this is none"
            raise OptionError(f"block_size {takes}", path=path)
        if block_size is not None and any(chunk.dim is None for chunk in found.chunks):
            # LitData does not count where the first sample of a chunk is empty, and cannot read it either.
            raise DamagedError("its index does not count the tokens; open it without block_size", path=path)
        self._block = block_size
        # Whether chunks are Arrow tables: then those know more keys than the first sample had.
        self.by_table = found.tables is not None and self._has_table()
        self.columns = found.columns
        if self.by_table and found.tables is not None:
            self.columns = [(name, table) for name, (table, _) in found.tables.items()]
        self._encodings = dict(self.columns)
        self.width = len(self.columns)
        self.shards = Shards(
            [
                chunk.samples if block_size is None else (chunk.dim or 0) // block_size
                for chunk in found.chunks
            ],
            [(name, None) for name, _ in self.columns],
            lambda number: chunks.open_file(path, found, found.chunks[number]),
            self._load,
            lambda number: self.by_table or found.compression is not None,
            remote=is_remote(path),
            bare=found.bare,
        )
        self.length = int(self.shards.firsts[-1])
        # Whoever shuffles takes a number for each sample, so many have to be there.
        if 8 * self.length > limits.allowed():
            chunks.check_counts(path, found)
        self.missing = None if found.note is None else found.note.missing
        self._set_schema(self._told(), schema)
        allowed = () if schema is None else given_schema(schema)
        self._pickles = {
            name for name, column in self.columns if column.form == "pickle" and name not in allowed
        }

    def _has_table(self) -> bool:
        if not self.index.chunks:
            return False
        try:
            return tables.has_table(open_source(join(self.path, self.index.chunks[0].name)))
        except NotFoundError:
            # Whoever reads it will meet the same, and say so.
            return False

    def _load(self, number: int, source: Source) -> Opened:
        chunk = self.index.chunks[number]
        return chunks.load(self.path, self.index, chunk, source, by_table=self.by_table, block=self._block)

    def _told(self) -> Schema:
        if self.by_table and self.index.tables is not None:
            told = self.index.tables.items()
            return Schema({name: tables.field_of(one, optional=may) for name, (one, may) in told})
        if self._block is not None:
            [(name, one)] = self.columns
            return Schema({name: Tensor(str(one.dtype), (self._block,))})
        if self.index.note is not None:
            return self.index.note.schema
        first = self._first_cells([name for name, one in self.columns if encodings.vague(one)])
        none = Ragged.from_cells([])
        return Schema({name: encodings.field_of(one, first.get(name, none)) for name, one in self.columns})

    # -- reading ---------------------------------------------------------------------------------------

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        self._refuse(fields)
        return super()._read(indices, fields)

    def _spans(self, field: str, indices: I64) -> Spans | None:
        self._refuse([field])
        return super()._spans(field, indices)

    def _refuse(self, fields: Sequence[str]) -> None:
        for name in fields:
            if name in self._pickles:
                raise UnsafeError(
                    "it holds pickles, which could run any code, so they are not loaded; leave it out"
                    f' (--fields), or take their bytes: schema={{"{name}": "bytes"}} (--option)',
                    path=self.path, field=name,
                )  # fmt: skip

    def _holds(self, name: str, field: Field) -> str | None:
        return None if encodings.holds(self._encodings[name], field) else self._encodings[name].text

    def _look(self, name: str) -> bool:
        return cells.looks(self._encodings[name])

    def _inner(self, name: str, data: U8 | None, starts: I64, sizes: I64) -> Inner | None:
        return cells.inner(self._encodings[name], self.schema[name], data, starts, sizes)

    def _make(self, name: str, found: Ragged) -> Ragged:
        return cells.made(self._encodings[name], self.schema[name], found)

    def _file_of(self, number: int) -> str:
        return chunks.file_of(self.path, self.index, self.index.chunks[number])[0]

    def _stored_bytes(self) -> int:
        return sum(chunk.size for chunk in self.index.chunks)

    # -- checking --------------------------------------------------------------------------------------

    def _verify(self) -> Iterator[Problem]:
        for number in range(len(self.index.chunks)):
            try:
                found = self.shards.open(number)
            except BatchplantError as error:
                yield Problem.of(error)
                continue
            table, size = found.table.astype(np.int64), found.source.size
            if found.head is None and (
                (np.diff(table) < 0).any() or table[-1] != size or table[0] != 4 * len(table) + 4
            ):
                message = f"its offsets do not rise from the first sample to its end, {size}"
                yield Problem(message, self._file_of(number), offset=4)

    def facts(self) -> dict[str, Any]:
        packed = self.index.compression
        if packed is not None and self.index.level != "chunk":
            packed = f"{packed}, by {self.index.level}"
        found: dict[str, Any] = {"chunks": len(self.index.chunks), "compression": packed}
        if self.index.bare:
            found["tokens"] = sum(chunk.dim or 0 for chunk in self.index.chunks)
        if self.by_table:
            found["layout"] = "Arrow tables"
        if self._pickles:
            found["not read"] = f"{', '.join(sorted(self._pickles))} (pickled)"
        return {name: value for name, value in found.items() if value is not None}
