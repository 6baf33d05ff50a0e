"""Reading MDS."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...codecs.arrays import check_bytes
from ...columns import I64, Column, Columns, Ragged, Spans
from ...errors import BatchplantError, DecodeError, Problem, SchemaError, no_such
from ...families.records import GivenSchema, given_schema
from ...reader import Reader
from ...schema import Schema
from ...storage import MappedSource, is_remote, open_source
from . import cells, index
from .cells import Inner
from .encodings import DIGITS, PICTURES, Encoding, holds
from .index import Shard
from .packing import digest
from .shards import Located, Records, Shards

# Cells that tell what a column holds.
PROBED = 4


class MdsReader(Reader):
    """Reads folders of MDS.

    ``schema``: what columns hold, where that is another kind than their encodings tell, as in
    ``{"clip": "audio"}``.
    """

    def __init__(self, path: str, *, schema: GivenSchema | str | None = None) -> None:
        self.path = path
        self._index = index.read(path)
        self.columns = self._index.columns
        self._encodings = dict(self.columns)
        self._shards = Shards(path, self._index)
        self.length = int(self._shards.firsts[-1])
        self.schema = self._fields(Schema() if schema is None else given_schema(schema))
        self._optional = index.optional_fields(self.schema)

    def _fields(self, given: Schema) -> Schema:
        found = self._index.schema
        if found is None:
            found = Schema(index.fields_of(self._index, self._first_cells()))
        if not found:
            raise SchemaError("it has no shards, and nothing says which fields it has", path=self.path)
        for name, field in given.items():
            if name not in found:
                raise SchemaError(no_such("field", name, found), path=self.path, field=name)
            if field.optional != found[name].optional or not holds(self._encodings[name], field):
                text = self._encodings[name].text
                raise SchemaError(
                    f"its cells are {text}, which cannot be {field}", path=self.path, field=name
                )
        return Schema({**found, **given})

    def _first_cells(self) -> dict[str, Ragged]:
        """The first cells of columns whose encoding does not tell what they hold."""
        vague = [name for name, one in self.columns if one.varies or one.text in ("pil", *PICTURES)]
        rows = np.arange(min(self.length, PROBED))
        if not vague or not len(rows):
            return {}
        located = self._shards.locate(rows, vague)
        return {name: self._shards.gather(located, *located.cells[name]) for name in vague}

    # -- reading ---------------------------------------------------------------------------------------

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        wanted = [*fields, *self._flags(fields)]
        located = self._shards.locate(indices, wanted, whole=len(wanted) == len(self.columns))
        return Columns.read(fields, lambda name: self._column(name, indices, located), self.path)

    def _flags(self, fields: Sequence[str]) -> list[str]:
        """The column that says what is missing, where it has to be asked."""
        flags = self._index.missing
        return [] if flags is None or not set(fields) & set(self._optional) else [flags]

    def _valid(self, name: str, located: Located) -> npt.NDArray[np.bool_] | None:
        """Which samples have a cell of this field; None where all have."""
        if name not in self._optional or self._index.missing is None:
            return None
        flags = self._shards.gather(located, *located.cells[self._index.missing])
        return np.asarray(flags.data.reshape(-1, len(self._optional))[:, self._optional.index(name)] == 0)

    def _column(self, name: str, indices: I64, located: Located) -> Column:
        field, encoding = self.schema[name], self._encodings[name]
        valid = self._valid(name, located)
        try:
            found = self._inner(name, located)
            if found is not None:
                made = self._shards.gather(located, found.starts, found.sizes)
                made.shape = found.shape
                return cells.dense(field, made, valid)
            made = self._shards.gather(located, *located.cells[name])
            column = cells.unpacked(encoding, field, made)
            return cells.dense(field, column, valid) if isinstance(column, Ragged) else column
        except DecodeError as error:
            raise cells.placed(error, indices, self.path, name) from None

    def _inner(self, name: str, located: Located) -> Inner | None:
        """Where a field's own cells lie; None where they have to be made."""
        encoding, field = self._encodings[name], self.schema[name]
        starts, sizes = located.cells[name]
        if not encoding.varies and encoding.text != "pil":
            if encoding.size is None and encoding.text not in DIGITS:
                check_bytes(field, starts, sizes)
            return None if encoding.text in DIGITS else Inner(starts, sizes)
        found_starts, found_sizes = starts.copy(), sizes.copy()
        shape = np.zeros((len(starts), 3), np.int32) if encoding.text == "pil" else None
        for one in located.records:
            found = self._looked_into(one, encoding, name, starts[one.rows], sizes[one.rows])
            if found is None:
                return None
            found_starts[one.rows], found_sizes[one.rows] = found.starts, found.sizes
            if shape is not None and found.shape is not None:
                shape[one.rows] = found.shape
        return Inner(found_starts, found_sizes, shape)

    def _looked_into(
        self, one: Records, encoding: Encoding, name: str, starts: I64, sizes: I64
    ) -> Inner | None:
        """The same in one shard; the cells themselves have to be read."""
        data, at = one.data, starts
        if data is None:
            fetched = one.shard.source.gather(starts, sizes)
            data, at = fetched.data, fetched.starts
        try:
            found = cells.inner(encoding, self.schema[name], data, at, sizes)
        except DecodeError as error:
            if error.sample is not None:
                error.sample = int(one.rows[error.sample])
            raise
        return None if found is None else Inner(found.starts - at + starts, found.sizes, found.shape)

    def _spans(self, field: str, indices: I64) -> Spans | None:
        # What is on a server, or packed, would have to be fetched to be looked into.
        numbers = np.unique(self._shards.numbers(indices)).tolist()
        if is_remote(self.path) or any(self._shards.all[number].packed for number in numbers):
            return None
        located = self._shards.locate(indices, [field, *self._flags([field])])
        try:
            found = self._inner(field, located)
        except DecodeError as error:
            raise cells.placed(error, indices, self.path, field) from None
        if found is None or not all(isinstance(one.shard.source, MappedSource) for one in located.records):
            return None
        valid = self._valid(field, located)
        sizes = found.sizes if valid is None else np.where(valid, found.sizes, -1)
        files = np.zeros(len(indices), np.int32)
        for place, one in enumerate(located.records):
            files[one.rows] = place
        paths = [one.shard.source.path for one in located.records]
        return Spans(paths, found.starts, sizes, files, found.shape)

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        groups = list(self._shards.groups(indices))
        # Where a table has not been read yet, nobody knows.
        if not self._shards.are_open([number for number, _ in groups]):
            return None
        starts, sizes = np.zeros_like(indices), np.zeros_like(indices)
        files, paths = np.zeros(len(indices), np.int32), []
        for place, (number, rows) in enumerate(groups):
            shard, starts[rows], sizes[rows] = self._shards.runs(number, indices[rows])
            files[rows] = place
            paths.append(shard.source.path)
        return Spans(paths, starts, sizes, files)

    def blocks(self) -> I64:
        return np.repeat(np.arange(len(self._shards.all)), np.diff(self._shards.firsts))

    def where(self, sample: int) -> str:
        [number] = self._shards.numbers(np.array([sample])).tolist()
        return self._shards.file_of(self._shards.all[number])[0]

    # -- checking --------------------------------------------------------------------------------------

    def own_checks(self) -> tuple[str, ...]:
        names = {name for one in self._shards.all for name in one.raw.hashes}
        return tuple(f"{name} of every shard" for name in sorted(names) if digest(name, b"") is not None)

    def _verify(self) -> Iterator[Problem]:
        for number, shard in enumerate(self._shards.all):
            try:
                yield from self._verify_shard(number, shard)
            except BatchplantError as error:
                yield Problem.of(error)

    def _verify_shard(self, number: int, shard: Shard) -> Iterator[Problem]:
        found = self._shards.open(number)
        path, packed = self._shards.file_of(shard)
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
        every = self._shards.all
        packed = ", ".join(sorted({one.compression for one in every if one.compression}))
        hashes = ", ".join(sorted({name for one in every for name in one.raw.hashes}))
        found = {"shards": len(every), "compression": packed, "hashes": hashes}
        return {name: value for name, value in found.items() if value != ""}

    # -- for those who append --------------------------------------------------------------------------

    @property
    def index(self) -> index.Index:
        return self._index

    def close(self) -> None:
        self._shards.close()
