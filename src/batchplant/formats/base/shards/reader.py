"""The index of a folder of shards; shards, opened when samples of them are wanted; cells of samples."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from .... import _native
from ....data.layout import Layout
from ....data.reader import Reader
from ....errors import (
    BatchplantError,
    DamagedError,
    DecodeError,
    NotFoundError,
    SchemaError,
    exceptions_as,
    no_such,
)
from ....schema import Bool, Field, Schema
from ....schema.columns import I64, U8, AnyArray, Column, Columns, Flags, Ragged, as_bytes, starts_of
from ....storage import (
    NOTE_ERRORS,
    MappedSource,
    RemoteSource,
    Source,
    is_remote,
    join,
    limits,
    open_source,
    parse_object,
    read_beside,
)
from ....storage.cache import ChunkCache
from ....storage.notes import without_gc
from ....storage.spans import Spans
from ..format import Probe
from ..records import BLOCK_BYTES, GivenSchema, given_schema

INDEX = "index.json"
# Offsets are 32 bits.
MAX_SHARD_BYTES = (1 << 32) - 1
# So much of it tells what it is of.
INDEX_HEAD_BYTES = 64 << 10

T = TypeVar("T")
# An encoding of a format.
E = TypeVar("E")
METADATA_KEY = "batchplant"
# A sample's flags of the optional fields, one byte each: 1 where it is missing.
MISSING = "__missing__"


def index_head(probe: Probe) -> bytes:
    """Return the first bytes of a folder's index; empty if there is none."""
    # Behind a URL, a listing tells what a request would.
    if not probe.folder or (is_remote(probe.path) and INDEX not in probe.names):
        return b""
    try:
        source = open_source(join(probe.path, INDEX))
        return source.view(0, min(source.size, INDEX_HEAD_BYTES)).tobytes()
    except BatchplantError:
        return b""


def read_index(folder: str, title: str, parse: Callable[[dict[str, Any]], T]) -> T:
    """Parse the index of a folder; ``title``: name of the format in messages."""
    path = join(folder, INDEX)
    data = read_beside(path)
    if data is None:
        raise NotFoundError(f"no such file; a folder of {title} has one", path=path)
    with exceptions_as(DamagedError, f"not an index of {title}", *NOTE_ERRORS, path=path), without_gc():
        return parse(parse_object(data))


class ShardMetadata(NamedTuple):
    """Our metadata in an index. ``missing``: the column that flags missing cells; ``document``: as JSON."""

    schema: Schema
    missing: str | None
    document: Any

    @classmethod
    def of(cls, schema: Schema) -> ShardMetadata:
        """The one of a dataset of our own."""
        missing = missing_name(schema)
        return cls(schema, missing, {"schema": schema.to_json(), "missing": missing})

    @classmethod
    def parse(
        cls, document: Any, columns: Mapping[str, E], holds: Callable[[E, Field], bool], flags: E | None
    ) -> ShardMetadata:
        """DamagedError unless its fields are the columns; any error where it is no metadata.

        ``holds``: whether a column can have the cells of a field. ``flags``: the encoding of the flags.
        """
        content = cls(Schema.from_json(document["schema"]), document["missing"], document)
        encodings = dict(columns)
        stored_flags = None if content.missing is None else encodings.pop(content.missing, None)
        if (
            stored_flags != flags
            or encodings.keys() != set(content.schema)
            or not all(holds(encodings[name], field) for name, field in content.schema.items())
        ):
            raise DamagedError("its note names other fields than its columns are")
        return content


def optional_fields(schema: Schema) -> list[str]:
    return [name for name, field in schema.items() if field.optional]


def missing_name(schema: Schema) -> str | None:
    """Name of the column of flags; None if no cell can be missing."""
    if not optional_fields(schema):
        return None
    name = MISSING
    while name in schema:
        name += "_"
    return name


def count(value: object) -> int:
    """A number of samples or bytes in an index; ValueError for anything else."""
    if type(value) is not int or not 0 <= value <= MAX_SHARD_BYTES:
        raise ValueError(f"{str(value)[:40]} is no number of samples or bytes")
    return value


# Shards that are kept open, and what each takes at least: the first bytes of an object on a server. A process
# may map some 65,000 files.
MAX_OPEN_SHARDS = 4096
MIN_OPEN_BYTES = 64 << 10
# Shards on a server that are opened side by side.
OPEN_THREADS = 16


class Opened(NamedTuple):
    """A shard whose table is known: where its samples begin, and the last one ends.

    ``absent``: by the name of a column, which samples lack a cell of it, where the shard itself says so.
    ``head``: before this byte there is no sample; None: the table lies before them, whose size tells it.
    """

    source: Source
    table: npt.NDArray[np.uint32]
    absent: dict[str, Flags] | None = None
    head: int | None = None


class Records(NamedTuple):
    """Samples of one shard: ``rows`` of those asked for, which lie at ``starts`` of it.

    ``data``: what they were read into, at ``at``; None where only their sizes are to be fetched.
    """

    rows: I64
    shard: Opened
    local: I64
    starts: I64
    sizes: I64
    data: U8 | None
    at: I64


class Located(NamedTuple):
    """Locations of cells: starts and sizes for each column, in the data of their records."""

    records: list[Records]
    cells: dict[str, tuple[I64, I64]]


class Shards:
    """All shards, safe from many threads.

    ``counts``: the samples of each. ``columns``: names, with the size of all cells or None where samples tell
    it. ``bare``: samples tell no sizes; the one column is all of each. ``file`` opens the file of a shard,
    ``load`` reads its table, and ``packed`` says whether it has to be unpacked for that. ``remote``: shards
    lie on a server; then their tables, or the files of packed ones, are fetched side by side and stay.
    """

    def __init__(
        self,
        counts: Sequence[int],
        columns: Sequence[tuple[str, int | None]],
        file: Callable[[int], Source],
        load: Callable[[int, Source], Opened],
        packed: Callable[[int], bool],
        *,
        remote: bool,
        bare: bool = False,
    ) -> None:
        # The first sample of each, and behind the last.
        self.firsts = starts_of(np.array(counts, dtype=np.int64))
        self._places = {name: number for number, (name, _) in enumerate(columns)}
        self._fixed = np.array([size or 0 for _, size in columns], dtype=np.int64)
        self._varying = [number for number, (_, size) in enumerate(columns) if size is None]
        self._file, self._load, self._bare = file, load, bare
        # Whether all of a shard has to be unpacked to read a sample of it.
        self.is_packed = packed
        self.remote = remote
        self._open = ChunkCache(MAX_OPEN_SHARDS * MIN_OPEN_BYTES)
        self._unpacked = ChunkCache()
        # Packed files on a server: what was asked for ahead is held by their sources.
        self._files = ChunkCache(MAX_OPEN_SHARDS)

    def open(self, number: int) -> Opened:
        """A shard whose table was read; a packed one is unpacked."""
        if self.is_packed(number):
            return self._unpacked.get(
                number, lambda: self._load(number, self.file(number)), lambda shard: shard.source.size
            )
        # A mapped table takes no memory.
        return self._open.get(
            number,
            lambda: self._load(number, self._file(number)),
            lambda shard: MIN_OPEN_BYTES + (shard.table.nbytes if shard.table.flags.owndata else 0),
        )

    def file(self, number: int) -> Source:
        """The file of a shard as it lies there."""
        if not self.remote:
            return self._file(number)
        return self._files.get(number, lambda: self._file(number), lambda file: 1)

    def open_together(self, numbers: Sequence[int]) -> None:
        """Open shards on a server side by side; of packed ones only the files."""
        waiting = [
            functools.partial(self.file if self.is_packed(number) else self.open, number)
            for number in numbers
            if (self._files if self.is_packed(number) else self._open).all_of([number]) is None
        ]
        if len(waiting) > 1:
            with ThreadPoolExecutor(min(OPEN_THREADS, len(waiting)), "batchplant-shards") as threads:
                for done in [threads.submit(task) for task in waiting]:
                    done.result()

    def are_open(self, numbers: Sequence[int]) -> bool:
        """True if all of these are, as they are in their files."""
        return not any(map(self.is_packed, numbers)) and self._open.all_of(numbers) is not None

    def in_place(self, indices: I64) -> bool:
        """True if none of these samples lies in a shard that has to be unpacked."""
        return not any(map(self.is_packed, np.unique(self.numbers(indices)).tolist()))

    # -- where cells lie -------------------------------------------------------------------------------

    def numbers(self, indices: I64) -> I64:
        """The shards that samples are in."""
        return np.searchsorted(self.firsts, indices, side="right") - 1

    def groups(self, indices: I64) -> Iterator[tuple[int, I64]]:
        """The shards of these samples, and the rows that each has."""
        numbers = self.numbers(indices)
        if len(numbers) and (numbers == numbers[0]).all():
            yield int(numbers[0]), np.arange(len(indices))
            return
        order = np.argsort(numbers, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
            if len(rows):
                yield int(numbers[rows[0]]), rows

    def runs(self, number: int, indices: I64) -> tuple[Opened, I64, I64]:
        """Locate samples of a shard, bounds checked."""
        shard = self.open(number)
        local = indices - self.firsts[number]
        starts = shard.table[local].astype(np.int64)
        sizes = shard.table[local + 1] - starts
        head = 4 * len(shard.table) + 4 if shard.head is None else shard.head
        bad = shard.source.outside(starts, sizes, head=head)
        if bad is not None:
            raise DamagedError(
                f"the shard says that it lies from {starts[bad]} to {starts[bad] + sizes[bad]}",
                path=shard.source.path, sample=int(indices[bad]), offset=int(4 + 4 * local[bad]),
            )  # fmt: skip
        return shard, starts, sizes

    def _records(self, number: int, rows: I64, indices: I64, *, whole: bool) -> Records:
        shard, starts, sizes = self.runs(number, indices[rows])
        local = indices[rows] - self.firsts[number]
        source = shard.source
        if not isinstance(source, RemoteSource):
            source.request(starts, sizes)
            return Records(rows, shard, local, starts, sizes, source.view(0, source.size), starts)
        if not whole:
            return Records(rows, shard, local, starts, sizes, None, starts)
        records = source.gather(starts, sizes)
        return Records(rows, shard, local, starts, sizes, records.data, records.starts)

    def _sizes(self, records: Records, indices: I64) -> I64:
        """The sizes of the cells of all columns: (samples, columns); checked against that of the sample."""
        if self._bare:
            return records.sizes[:, None]
        count = len(self._varying)
        sizes = np.tile(self._fixed, (len(records.rows), 1))
        remaining = records.sizes - 4 * count - self._fixed.sum()
        if count and (remaining >= 0).all():
            if records.data is None:
                heads = records.shard.source.gather(records.starts, np.full(len(records.rows), 4 * count))
                stated = heads.data.view("<u4").reshape(-1, count)
            else:
                stated = numbers_at(records.data, records.at, count, "<u4")
            sizes[:, self._varying] = stated
            remaining = remaining - stated.sum(axis=1, dtype=np.int64)
        bad = remaining != 0
        if bad.any():
            row = int(np.argmax(bad))
            raise DamagedError(
                f"its cells take {records.sizes[row] - remaining[row]} bytes, and it has "
                f"{records.sizes[row]}",
                path=records.shard.source.path, sample=int(indices[records.rows[row]]),
                offset=int(records.starts[row]),
            )  # fmt: skip
        return sizes

    def locate(self, indices: I64, fields: Sequence[str], *, whole: bool = False) -> Located:
        """Locate the cells of these columns. ``whole``: all of each sample will be read."""
        cells = {name: (np.zeros_like(indices), np.zeros_like(indices)) for name in fields}
        records = []
        if self.remote:
            self.open_together(np.unique(self.numbers(indices)).tolist())
        head = 0 if self._bare else 4 * len(self._varying)
        for number, rows in self.groups(indices):
            located = self._records(number, rows, indices, whole=whole)
            records.append(located)
            sizes = self._sizes(located, indices)
            ends = np.cumsum(sizes, axis=1) + (located.at + head)[:, None]
            for name in fields:
                starts, counts = cells[name]
                counts[rows] = sizes[:, self._places[name]]
                starts[rows] = ends[:, self._places[name]] - counts[rows]
        return Located(records, cells)

    def gather(self, located: Located, starts: I64, sizes: I64) -> Ragged:
        """A copy of these runs, one for each row."""
        offsets = starts_of(sizes)
        data = np.empty(offsets[-1], dtype=np.uint8)
        for record in located.records:
            ranges = np.ascontiguousarray(starts[record.rows]), np.ascontiguousarray(sizes[record.rows])
            if record.data is not None and not isinstance(record.shard.source, MappedSource):
                _native.copy_runs(record.data, *ranges, data, offsets[record.rows])
            else:
                record.shard.source.gather_into(*ranges, data, offsets[record.rows])
        return Ragged(data, offsets)

    def close(self) -> None:
        self._open.clear()
        self._unpacked.clear()
        self._files.clear()


def table_of(source: Source, samples: int, path: str) -> npt.NDArray[np.uint32]:
    """The table of a shard, which the index says has so many samples."""
    count = int(source.array("<u4", 0, 1)[0])
    if count != samples:
        message = f"it has {count} samples, and the index says {samples}"
        raise DamagedError(message, path=path, offset=0)
    if not isinstance(source, RemoteSource):
        return source.array("<u4", 4, count + 1)
    # A copy: a part of a block, or of the first bytes, would hold all of it.
    return source.only(4, 4 * (count + 1)).view("<u4").copy()


def numbers_at(data: U8, starts: I64, count: int, dtype: str) -> AnyArray:
    """``count`` numbers of this dtype at each start: (starts, count)."""
    numbers = data[starts[:, None] + np.arange(count * np.dtype(dtype).itemsize)]
    return np.ascontiguousarray(numbers).view(dtype)


def wrong(bad: npt.NDArray[np.bool_], message: str) -> None:
    """A DecodeError for the first row where something is."""
    if bad.any():
        raise DecodeError(message, sample=int(np.argmax(bad)))


def records_of(cells: Sequence[Ragged], stated: Sequence[bool]) -> Ragged:
    """The samples of these columns: the sizes of those that are told, and then the cells."""
    rows = len(cells[0])
    varying = [cells_of_column for cells_of_column, tells in zip(cells, stated, strict=True) if tells]
    heads = np.empty((rows, len(varying)), "<u4")
    for number, cells_of_column in enumerate(varying):
        heads[:, number] = cells_of_column.sizes
    parts = [Ragged(as_bytes(heads), np.arange(rows + 1) * 4 * len(varying)), *cells]
    sizes = [part.sizes for part in parts]
    offsets = starts_of(np.sum(sizes, axis=0))
    data, offset = np.empty(offsets[-1], dtype=np.uint8), offsets[:-1].copy()
    for part, size in zip(parts, sizes, strict=True):
        _native.copy_runs(part.data, np.ascontiguousarray(part.starts), size, data, offset)
        offset += size
    return Ragged(data, offsets)


# Cells that tell what a column holds.
PROBED = 4


@dataclasses.dataclass(frozen=True)
class Inner:
    """Locate a field's cells inside of those of its column; return the shapes of raw pixels, too."""

    starts: I64
    sizes: I64
    shape: npt.NDArray[np.int32] | None = None


class ShardsReader(Reader):
    """A format sets ``missing`` (the column of the flags), and calls ``_set_shards`` and ``_set_schema``."""

    shards: Shards
    missing: str | None
    # The columns of shards by name, each with how its cells are encoded.
    columns: Sequence[tuple[str, Any]]

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

    def _file_of(self, number: int) -> tuple[str, str | None]:
        """The file of a shard, and how it is packed, where all of it has to be unpacked."""
        raise NotImplementedError

    def _open_file(self, number: int) -> Source:
        """The file of a shard, which the index lists."""
        path, _ = self._file_of(number)
        try:
            return open_source(path)
        except NotFoundError:
            raise DamagedError("the index lists it, but it is not there", path=path) from None

    def _load(self, number: int, source: Source) -> Opened:
        """A shard of this file, unpacked where it is packed."""
        raise NotImplementedError

    def _is_packed(self, number: int) -> bool:
        raise NotImplementedError

    def _check_files(self) -> None:
        """DamagedError where a file is too small for the samples that the index says."""
        raise NotImplementedError

    def _shard_bytes(self) -> list[int]:
        """The bytes of each shard, as the index says them."""
        raise NotImplementedError

    # -- fields ----------------------------------------------------------------------------------------

    def _set_shards(self, counts: Sequence[int], sizes: Sequence[int | None], *, bare: bool = False) -> None:
        """Set up shards of so many samples; ``sizes``: those of the cells of columns where they are fixed."""
        self._encodings = dict(self.columns)
        columns = [(name, size) for (name, _), size in zip(self.columns, sizes, strict=True)]
        self.shards = Shards(
            counts,
            columns,
            self._open_file,
            self._load,
            self._is_packed,
            remote=is_remote(self.path),
            bare=bare,
        )
        self.length = int(self.shards.firsts[-1])
        # An order takes 8 bytes a sample: a forged index must not claim more samples than its files hold.
        if 8 * self.length > limits.allowed():
            self._check_files()

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
        located = self.shards.locate(indices, columns_read, whole=len(columns_read) == len(self.columns))
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

    def _layout(self) -> Layout:
        # Reading a sample fetches all of its columns.
        return Layout(
            block_sizes=self._block_sizes,
            stored_bytes=lambda fields: sum(self._shard_bytes()) if self.shards.remote else None,
        )

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
        return self._file_of(int(self.shards.numbers(np.array([sample]))[0]))[0]

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
