"""Reading LitData."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...codecs.arrow import column_of
from ...errors import (
    BatchplantError,
    DamagedError,
    NotFoundError,
    OptionError,
    Problem,
    SchemaError,
    UnsafeError,
    located,
)
from ...schema import Bool, Bytes, Field, Float, Int, Json, Schema, Tensor, Text
from ...schema.columns import I64, U8, Columns, Flags, Ragged, as_bytes, concat_columns
from ...storage import Source, is_remote, join, limits, open_source, tree
from ...storage.compressed import UnpackedSource
from ...storage.spans import Spans
from ..base.ipc import Part
from ..base.records import GivenSchema, given_schema
from ..base.shards.reader import Inner, Opened, Shards, ShardsReader, records_of, table_of
from . import cells, layout
from .cells import Encoding
from .layout import Chunk, Index, unpack

# -- tables -------------------------------------------------------------------------------------------
# Chunks that are Arrow tables: so LitData keeps samples that are dicts of texts, numbers, bytes and lists.
#
# Such a chunk has the usual table, in which all samples are empty, and behind it an Arrow IPC file, its
# size as u32, and ``LDARW01`` and a zero. It is read as if its rows were the usual samples.

MAGIC = b"LDARW01\0"
TAIL = 4 + len(MAGIC)

Tables = dict[str, tuple[Encoding, bool]]


def field_of(encoding: Encoding, *, optional: bool) -> Field:
    """The field of a column of these tables."""
    kinds: dict[str, type[Field]] = {
        "int": Int, "float": Float, "bool": Bool, "str": Text, "bytes": Bytes, "json": Json,
    }  # fmt: skip
    return kinds[encoding.text](optional=optional)


def has_table(source: Source) -> bool:
    return source.size > TAIL and source.view(source.size - len(MAGIC), len(MAGIC)).tobytes() == MAGIC


def open_table(source: Source, samples: int, tables: Tables) -> Opened:
    """The rows of a chunk's table as samples."""
    size = int(source.array("<u4", source.size - TAIL, 1)[0])
    start = source.size - TAIL - size
    if start < 0:
        raise DamagedError(f"a table of {size} bytes does not lie in it", offset=source.size - TAIL)
    try:
        part = Part(UnpackedSource(source.path, source.view(start, size)))
    except SchemaError as error:
        raise DamagedError(f"its table is not one of LitData: {error.message}", offset=start) from None
    if sum(part.rows) != samples:
        raise DamagedError(f"its table has {sum(part.rows)} rows, and the index says {samples} samples")
    columns = Columns.read(tables, lambda name: _column(part, name, tables[name], samples))
    absent: dict[str, Flags] = {}
    for name, column in columns.items():
        if isinstance(column, Ragged) and column.valid is not None:
            absent[name] = ~column.valid
    packed = [
        cells.packed(table, field_of(table, optional=optional), columns[name])
        for name, (table, optional) in tables.items()
    ]
    records = records_of(packed, [True] * len(packed))
    table = (4 * (samples + 2) + records.offsets).astype("<u4")
    head = np.array([samples], "<u4")
    chunk = np.concatenate([as_bytes(head), as_bytes(table), records.data])
    return Opened(UnpackedSource(source.path, chunk), table, absent)


def _column(part: Part, name: str, declared: tuple[Encoding, bool], samples: int) -> Ragged | np.ndarray:
    encoding, optional = declared
    field = field_of(encoding, optional=optional)
    if name not in part.schema.names:
        if not optional:
            raise DamagedError("its table has no such column")
        # No sample of this chunk had the key.
        return Ragged.from_cells([None] * samples)
    columns, first = [], 0
    for number, rows in enumerate(part.rows):
        try:
            columns.append(column_of(field, part.load(number, [name]).column(name)))
        except BatchplantError as error:
            error.sample = None if error.sample is None else first + error.sample
            raise
        # The library raises what it likes on nonsense.
        except Exception as error:
            message = str(error).strip().split("\n")[0]
            raise DamagedError(f"its table cannot be read: {message}") from None
        first += rows
    return concat_columns(columns)


# -- chunks -------------------------------------------------------------------------------------------
# The files of chunks: which one to read, and whether it is what the index says.


def open_file(folder: str, index: Index, chunk: Chunk) -> Source:
    """The file of a chunk."""
    path, _ = file_of(folder, index, chunk)
    try:
        return open_source(path)
    except NotFoundError:
        raise DamagedError("the index lists it, but it is not there", path=path) from None


def load(
    folder: str, index: Index, chunk: Chunk, source: Source, *, by_table: bool, block: int | None
) -> Opened:
    """A chunk as the usual samples, whatever it is; ``block``: tokens of a sample, where they are cut so."""
    path, packed = file_of(folder, index, chunk)
    # Old versions of LitData (0.2.30) did not count the table.
    sizes = chunk.size, chunk.size + 4 * (chunk.samples + 2)
    with located(path=path):
        if not (packed and index.level == "chunk"):
            _check_size(source, sizes)
        if by_table and index.tables is not None:
            if has_table(source):
                return open_table(source, chunk.samples, index.tables)
            if [(name, table) for name, (table, _) in index.tables.items()] != index.columns:
                raise DamagedError("it holds no Arrow table, as the first chunk does")
        if packed:
            source = unpack(source, index.level, chunk.samples, sizes[1])
            if index.level == "chunk":
                _check_size(source, sizes)
        opened = Opened(source, table_of(source, chunk.samples, path))
        return opened if block is None else _in_blocks(index, chunk, opened, block)


def _check_size(source: Source, sizes: tuple[int, int]) -> None:
    if source.size not in sizes:
        raise DamagedError(f"it has {source.size} bytes, and the index says {sizes[0]}")


def _in_blocks(index: Index, chunk: Chunk, opened: Opened, block: int) -> Opened:
    start, width = 4 * len(opened.table) + 4, np.dtype(str(index.columns[0][1].dtype)).itemsize
    dim = chunk.dim or 0
    if start + dim * width > opened.source.size:
        raise DamagedError(f"the index says {dim} tokens, more than it has")
    ends = start + np.arange(dim // block + 1, dtype=np.int64) * (block * width)
    return Opened(opened.source, ends.astype(np.uint32), head=start)


def check_counts(folder: str, index: Index) -> None:
    """DamagedError where a file is too small for the samples that the index says."""
    for chunk in index.chunks:
        path, packed = file_of(folder, index, chunk)
        size = tree.size_below(path)
        if 4 * (chunk.samples + 2) > (limits.allowed(size) if packed else size):
            raise DamagedError(f"{chunk.samples} samples do not fit into its {size} bytes", path=path)


def file_of(folder: str, index: Index, chunk: Chunk) -> tuple[str, bool]:
    """The file to read, and whether it is packed; LitData may have unpacked it already."""
    path = join(folder, chunk.name)
    if index.unpacked_whole:
        raw = join(folder, chunk.name.replace(f".{index.compression}", ""))
        if raw != path and not is_remote(raw) and tree.is_file(raw):
            return raw, False
    return path, index.compression is not None


# -- reader -------------------------------------------------------------------------------------------


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
        self.index = index = layout.read(path)
        if block_size is not None and (not index.bare or block_size < 1):
            takes = "is 1 or more" if index.bare else "is for sets of tokens, and this is none"
            raise OptionError(f"block_size {takes}", path=path)
        if block_size is not None and any(chunk.dim is None for chunk in index.chunks):
            # LitData does not count where the first sample of a chunk is empty, and cannot read it either.
            raise DamagedError("its index does not count the tokens; open it without block_size", path=path)
        self._block = block_size
        # Whether chunks are Arrow tables: then those know more keys than the first sample had.
        self.by_table = index.tables is not None and self._has_table()
        self.columns = index.columns
        if self.by_table and index.tables is not None:
            self.columns = [(name, table) for name, (table, _) in index.tables.items()]
        self._encodings = dict(self.columns)
        self.width = len(self.columns)
        self.shards = Shards(
            [
                chunk.samples if block_size is None else (chunk.dim or 0) // block_size
                for chunk in index.chunks
            ],
            [(name, None) for name, _ in self.columns],
            lambda number: open_file(path, index, index.chunks[number]),
            self._load,
            lambda number: self.by_table or index.compression is not None,
            remote=is_remote(path),
            bare=index.bare,
        )
        self.length = int(self.shards.firsts[-1])
        # An order takes 8 bytes a sample: a forged index must not claim more samples than its files hold.
        if 8 * self.length > limits.allowed():
            check_counts(path, index)
        self.missing = None if index.note is None else index.note.missing
        self._set_schema(self._inferred_schema(), schema)
        allowed = () if schema is None else given_schema(schema)
        self._pickles = {
            name for name, column in self.columns if column.form == "pickle" and name not in allowed
        }

    def _has_table(self) -> bool:
        if not self.index.chunks:
            return False
        try:
            return has_table(open_source(join(self.path, self.index.chunks[0].name)))
        except NotFoundError:
            # Reading the chunk raises the same error.
            return False

    def _load(self, number: int, source: Source) -> Opened:
        chunk = self.index.chunks[number]
        return load(self.path, self.index, chunk, source, by_table=self.by_table, block=self._block)

    def _inferred_schema(self) -> Schema:
        if self.by_table and self.index.tables is not None:
            declared = self.index.tables.items()
            return Schema({name: field_of(encoding, optional=may) for name, (encoding, may) in declared})
        if self._block is not None:
            [(name, encoding)] = self.columns
            return Schema({name: Tensor(str(encoding.dtype), (self._block,))})
        if self.index.note is not None:
            return self.index.note.schema
        first = self._first_cells([name for name, encoding in self.columns if cells.is_ambiguous(encoding)])
        none = Ragged.from_cells([])
        return Schema(
            {name: cells.field_of(encoding, first.get(name, none)) for name, encoding in self.columns}
        )

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
        return None if cells.holds(self._encodings[name], field) else self._encodings[name].text

    def _look(self, name: str) -> bool:
        return cells.needs_look(self._encodings[name])

    def _inner(self, name: str, data: U8 | None, starts: I64, sizes: I64) -> Inner | None:
        return cells.inner(self._encodings[name], self.schema[name], data, starts, sizes)

    def _make(self, name: str, stored: Ragged) -> Ragged:
        return cells.decoded(self._encodings[name], self.schema[name], stored)

    def _file_of(self, number: int) -> str:
        return file_of(self.path, self.index, self.index.chunks[number])[0]

    def _shard_bytes(self) -> list[int]:
        return [chunk.size for chunk in self.index.chunks]

    # -- checking --------------------------------------------------------------------------------------

    def _verify(self) -> Iterator[Problem]:
        for number in range(len(self.index.chunks)):
            try:
                shard = self.shards.open(number)
            except BatchplantError as error:
                yield Problem.of(error)
                continue
            table, size = shard.table.astype(np.int64), shard.source.size
            if shard.head is None and (
                (np.diff(table) < 0).any() or table[-1] != size or table[0] != 4 * len(table) + 4
            ):
                message = f"its offsets do not rise from the first sample to its end, {size}"
                yield Problem(message, self._file_of(number), offset=4)

    def facts(self) -> dict[str, object]:
        packed = self.index.compression
        if packed is not None and self.index.level != "chunk":
            packed = f"{packed}, by {self.index.level}"
        facts: dict[str, object] = {"chunks": len(self.index.chunks), "compression": packed}
        if self.index.bare:
            facts["tokens"] = sum(chunk.dim or 0 for chunk in self.index.chunks)
        if self.by_table:
            facts["layout"] = "Arrow tables"
        if self._pickles:
            facts["not read"] = f"{', '.join(sorted(self._pickles))} (pickled)"
        return {name: value for name, value in facts.items() if value is not None}
