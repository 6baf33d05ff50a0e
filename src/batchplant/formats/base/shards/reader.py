"""Reading shards. The cells of a field are those of its column, lie inside of them, or are made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ....data.reader import Reader
from ....errors import BatchplantError, DecodeError, SchemaError, no_such
from ....schema import Bool, Field, Schema
from ....schema.columns import I64, U8, AnyArray, Column, Columns, Flags, Ragged, starts_of
from ....storage import MappedSource, Source, is_remote
from ....storage.spans import Spans
from ..records import BLOCK_BYTES, GivenSchema, given_schema
from .index import optional_fields
from .runs import Located, Records, Shards, wrong

# Cells that tell what a column holds.
PROBED = 4


@dataclasses.dataclass(frozen=True)
class Inner:
    """Locate a field's cells inside of those of its column; return the shapes of raw pixels, too."""

    starts: I64
    sizes: I64
    shape: npt.NDArray[np.int32] | None = None


class ShardsReader(Reader):
    """A format sets up ``shards`` and ``missing`` (the column of the flags), and calls ``_set_schema``."""

    shards: Shards
    missing: str | None
    # Whether all columns are wanted, if these many are: then samples are fetched as a whole.
    width: int

    # -- what a format implements ----------------------------------------------------------------------

    def _look(self, name: str) -> bool:
        """True if cells of the column have to be read to know where those of the field lie."""
        raise NotImplementedError

    def _inner(self, name: str, data: U8 | None, starts: I64, sizes: I64) -> Inner | None:
        """The runs that are the field's cells as they are; None where they have to be made.

        ``data`` is None where :meth:`_look` said no. What is wrong with a cell is a DecodeError whose
        ``sample`` is the row.
        """
        raise NotImplementedError

    def _make(self, name: str, cells: Ragged) -> Ragged:
        """The cells of a field of which :meth:`_inner` knows no place."""
        raise NotImplementedError

    def _holds(self, name: str, field: Field) -> str | None:
        """None where cells of this column can be those of a field; else what they are."""
        raise NotImplementedError

    def _file_of(self, number: int) -> str:
        """The file of a shard."""
        raise NotImplementedError

    def _shard_bytes(self) -> list[int]:
        """The bytes of each shard, as the index says them."""
        raise NotImplementedError

    # -- fields ----------------------------------------------------------------------------------------

    def _set_schema(self, inferred: Schema, override: GivenSchema | str | None) -> None:
        """The fields that the index or the first cells tell, and what a caller knows better."""
        if not inferred:
            raise SchemaError("it has no shards, and nothing says which fields it has", path=self.path)
        better = Schema() if override is None else given_schema(override)
        for name, field in better.items():
            if name not in inferred:
                raise SchemaError(no_such("field", name, inferred), path=self.path, field=name)
            message = self._holds(name, field)
            if field.optional != inferred[name].optional or message is not None:
                raise SchemaError(
                    f"its cells are {message or inferred[name]}, which cannot be {field}",
                    path=self.path, field=name,
                )  # fmt: skip
        self.schema = Schema({**inferred, **better})
        self._optional = optional_fields(self.schema)

    def _first_cells(self, columns: Sequence[str]) -> dict[str, Ragged]:
        """The first cells of columns of which nothing else tells what they hold."""
        rows = np.arange(min(self.length, PROBED))
        if not columns or not len(rows):
            return {}
        located = self.shards.locate(rows, columns)
        return {name: self.shards.gather(located, *located.cells[name]) for name in columns}

    # -- reading ---------------------------------------------------------------------------------------

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        columns_read = [*fields, *self._flags(fields)]
        located = self.shards.locate(indices, columns_read, whole=len(columns_read) == self.width)
        return Columns.read(fields, lambda name: self._column(name, indices, located), self.path)

    def _flags(self, fields: Sequence[str]) -> list[str]:
        """The column that says what is missing, where it has to be asked."""
        return [] if self.missing is None or not set(fields) & set(self._optional) else [self.missing]

    def _valid(self, name: str, located: Located) -> Flags | None:
        """Flag the samples that have a cell of this field; None if all have."""
        if name not in self._optional:
            return None
        if self.missing is not None:
            wrong(
                located.cells[self.missing][1] != len(self._optional),
                f"{self.missing} has not a byte for each of the {len(self._optional)} optional fields",
            )
            flags = self.shards.gather(located, *located.cells[self.missing])
            number = self._optional.index(name)
            return np.asarray(flags.data.reshape(-1, len(self._optional))[:, number] == 0)
        valid = np.ones(sum(len(record.rows) for record in located.records), dtype=np.bool_)
        for record in located.records:
            absent = (record.shard.absent or {}).get(name)
            if absent is not None:
                valid[record.rows] = ~absent[record.local]
        return valid

    def _column(self, name: str, indices: I64, located: Located) -> Column:
        try:
            valid = self._valid(name, located)
            spans = self._looked_up(name, located)
            if spans is not None:
                cells = self.shards.gather(located, spans.starts, spans.sizes)
                cells.shape = spans.shape
            else:
                cells = self._make(name, self.shards.gather(located, *located.cells[name]))
        except DecodeError as error:
            raise self._placed(error, indices, name) from None
        return dense(self.schema[name], cells, valid)

    def _placed(self, error: BatchplantError, indices: I64, field: str) -> BatchplantError:
        """An error in a row as one in a sample."""
        error.sample = None if error.sample is None else int(indices[error.sample])
        return error.at(path=self.path, field=field)

    def _looked_up(self, name: str, located: Located) -> Inner | None:
        """Locate a field's cells; None if they have to be decoded."""
        starts, sizes = located.cells[name]
        if not self._look(name):
            return self._inner(name, None, starts, sizes)
        found_starts, found_sizes = starts.copy(), sizes.copy()
        shape: npt.NDArray[np.int32] | None = None
        for record in located.records:
            spans = self._looked_into(record, name, starts[record.rows], sizes[record.rows])
            if spans is None:
                return None
            found_starts[record.rows], found_sizes[record.rows] = spans.starts, spans.sizes
            if spans.shape is not None:
                shape = np.zeros((len(starts), 3), np.int32) if shape is None else shape
                shape[record.rows] = spans.shape
        return Inner(found_starts, found_sizes, shape)

    def _looked_into(self, records: Records, name: str, starts: I64, sizes: I64) -> Inner | None:
        """The same in one shard; the cells themselves have to be read."""
        data, position = records.data, starts
        if data is None:
            fetched = records.shard.source.gather(starts, sizes)
            data, position = fetched.data, fetched.starts
        try:
            inside = self._inner(name, data, position, sizes)
        except DecodeError as error:
            if error.sample is not None:
                error.sample = int(records.rows[error.sample])
            raise
        return (
            None if inside is None else Inner(inside.starts - position + starts, inside.sizes, inside.shape)
        )

    def _spans(self, field: str, indices: I64) -> Spans | None:
        # What is on a server, or packed, would have to be fetched to be looked into.
        if is_remote(self.path) or not self.shards.in_place(indices):
            return None
        located = self.shards.locate(indices, [field, *self._flags([field])])
        try:
            valid = self._valid(field, located)
            cells = self._looked_up(field, located)
        except DecodeError as error:
            raise self._placed(error, indices, field) from None
        if cells is None or not all(
            isinstance(records.shard.source, MappedSource) for records in located.records
        ):
            return None
        sizes = cells.sizes if valid is None else np.where(valid, cells.sizes, -1)
        files = np.zeros(len(indices), np.int32)
        for number, records in enumerate(located.records):
            files[records.rows] = number
        sources = [records.shard.source for records in located.records]
        return Spans(sources, cells.starts, sizes, files, cells.shape)

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        """Whole samples, and packed shards as a whole. On a server, the tables of shards are read for it."""
        groups = list(self.shards.groups(indices))
        numbers = [number for number, _ in groups]
        if self.shards.remote:
            self.shards.open_together(numbers)
        elif not self.shards.are_open(numbers):
            # Where a table has not been read yet, nobody knows.
            return None
        starts, sizes = np.zeros_like(indices), np.zeros_like(indices)
        files, sources = np.zeros(len(indices), np.int32), list[Source]()
        # Of a packed shard, the first of its samples stands for the file.
        chosen = np.ones(len(indices), np.bool_)
        for position, (number, rows) in enumerate(groups):
            if self.shards.is_packed(number):
                file = self.shards.file(number)
                sizes[rows[0]], chosen[rows[1:]] = file.size, False
            else:
                shard, starts[rows], sizes[rows] = self.shards.runs(number, indices[rows])
                file = shard.source
            files[rows] = position
            sources.append(file)
        spans = Spans(sources, starts, sizes, files)
        return spans if chosen.all() else spans.take(chosen)

    def _bytes_of(self, fields: Sequence[str]) -> int | None:
        """The bytes of all shards: reading a sample fetches all of its columns."""
        return sum(self._shard_bytes()) if self.shards.remote else None

    def _block_sizes(self) -> I64:
        """Estimate how many samples begin in each 8 MiB of a shard: exact offsets are in many tables."""
        counts, sizes = np.diff(self.shards.firsts), np.array(self._shard_bytes(), dtype=np.int64)
        sizes[[self.shards.is_packed(number) for number in range(len(sizes))]] = 1
        blocks = -(-sizes // BLOCK_BYTES)
        shard = np.repeat(np.arange(len(sizes)), blocks)
        block = np.arange(len(shard)) - starts_of(blocks)[shard]
        begins = -(-block * BLOCK_BYTES * counts[shard] // sizes[shard])
        return np.diff(np.append(self.shards.firsts[shard] + begins, self.length))

    def where(self, sample: int) -> str:
        return self._file_of(int(self.shards.numbers(np.array([sample]))[0]))

    def close(self) -> None:
        self.shards.close()


def dense(field: Field, cells: Ragged, valid: Flags | None) -> Column:
    """The column of these cells: one array where all are alike; where some are missing, only the others."""
    if valid is not None:
        sizes = np.where(valid, cells.sizes, 0)
        cells = cells if (cells.sizes == sizes).all() else cells.take(valid)
        shape = cells.shape
        return Ragged(cells.data, starts_of(sizes), shape, None if valid.all() else valid)
    if field.cell is None:
        return cells
    dtype, shape_ = field.cell
    if isinstance(field, Bool):
        return np.asarray(cells.data != 0)
    array: AnyArray = cells.data.view(dtype)
    return array.reshape(len(cells), *shape_)
