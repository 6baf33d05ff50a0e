"""Writing Parquet: one file, or a folder with a file for each partition."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from ...codecs import scalars
from ...codecs.arrow import KEY, arrow_schema, featured_schema, pyarrow, refuses, to_arrow, unfit
from ...codecs.arrow.types import is_any_list
from ...codecs.cells import decode_cell
from ...data.writer import WriteOptions, Writer
from ...errors import BatchplantError, EncodeError, OptionError
from ...schema import Audio, Bool, Duration, Field, Float, Image, Int, Schema, Tensor, Text, Time, Video
from ...schema.columns import I64, Column, Columns
from ...storage import Partial, Spool
from ..base.tables.buffered import RowBuffer, SavedRows, row_sizes
from ..base.tables.footer import STRUCT, Struct, footer_bytes, read_struct, struct_bytes
from .reader import MISSING

if TYPE_CHECKING:
    import pyarrow as pa

# So small that a quasi-random epoch can keep the row groups of a window decoded.
ROW_GROUP_BYTES = 4 << 20
# Of a page.
MIN_PAGE_BYTES, MAX_PAGE_BYTES = 128 << 10, 1 << 20
MAX_PARTITIONS = 1000
# That partitions hold in memory together.
MAX_WAITING_GROUPS = 16
# A folder's name has at most 255 bytes.
LONGEST_VALUE = 200
COMPRESSIONS = ("none", "snappy", "gzip", "brotli", "lz4", "zstd")
# FileMetaData
_ROWS, _ROW_GROUPS = 3, 4
# RowGroup, ColumnChunk, ColumnMetaData: the fields that are offsets in the file.
_GROUP_COLUMNS, _GROUP_OFFSET, _GROUP_ORDINAL = 1, 5, 7
_CHUNK_DATA, _CHUNK_OFFSETS = 3, (2, 4, 6)
_DATA_OFFSETS = (9, 10, 11, 14)
# Of a ColumnChunk, where its OffsetIndex lies and how long it is; in that, the pages, and where each lies.
_INDEX_OFFSET, _INDEX_SIZE = 4, 5
_PAGES, _PAGE_OFFSET = 1, 1


class ParquetWriter(Writer):
    """Writes .parquet files, or folders of them.

    ``compression``: zstd, snappy, gzip, brotli, lz4 or none; encoded images, sound and video are never
    packed again. ``level``: how hard it tries. ``row_group_size``: bytes of cells in a row group (default
    4 MiB: small, so that shuffled reading is quick). ``partition_by``: fields whose values become folders,
    NAME=VALUE. ``hugging_face``: with the features of Hugging Face's datasets, for which an image is a struct
    of its bytes and a path; False: a column of bytes.
    """

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        compression: str = "zstd",
        level: int | None = None,
        row_group_size: int = ROW_GROUP_BYTES,
        partition_by: str | Iterable[str] = (),
        hugging_face: bool = True,
    ) -> None:
        if compression not in COMPRESSIONS:
            raise OptionError(f"compression is one of {', '.join(COMPRESSIONS)}, not {compression!r}")
        # Which levels there are, the compression says; it takes only small numbers.
        if level is not None and abs(level) > 1000:
            raise OptionError(f"{compression} has no level {level}")
        if row_group_size < 1:
            raise OptionError(f"row_group_size must be at least 1 byte, not {row_group_size}")
        pyarrow()
        self._group_size = row_group_size
        names = partition_by.split(",") if isinstance(partition_by, str) else list(partition_by)
        self._keys = [name for name in names if name]
        _check_keys(schema, self._keys)
        self._inside = Schema((name, field) for name, field in schema.items() if name not in self._keys)
        self._arrow = (featured_schema if hugging_face else arrow_schema)(self._inside)
        if self._keys:
            description = json.dumps(schema.to_json(), ensure_ascii=False).encode()
            self._arrow = self._arrow.with_metadata({**(self._arrow.metadata or {}), KEY: description})
        self._how = _how(self._inside, self._arrow, compression, level)
        super().__init__(path, schema, options)

    @classmethod
    def refuses(cls, field: Field) -> str | None:
        return refuses(field)

    def _begin(self, state: dict[str, Any] | None) -> None:
        self._files: dict[tuple[str, ...], _File] = {}
        self._footers = self.partial.spool("footers")
        self._saved = SavedRows(self.partial.folder, self._arrow)
        # Of the rows since the buffers of all partitions were last counted.
        self._uncounted_bytes = 0
        if state is not None:
            for folders, groups in state["files"]:
                self._file(tuple(folders)).groups = [(start, offset, size) for start, offset, size in groups]
            self._saved.restore(state["rows"], self._buffers())
            self._uncounted_bytes = state["uncounted_bytes"]

    def _buffers(self) -> list[RowBuffer]:
        return [file.buffer for file in self._files.values()]

    def _file(self, folders: tuple[str, ...]) -> _File:
        if folders not in self._files:
            if len(self._files) >= MAX_PARTITIONS:
                raise OptionError(
                    f"there would be more than {MAX_PARTITIONS} partitions; use a field with fewer values"
                )
            name = f"{len(self._files)}.parquet"
            self._files[folders] = _File(self.partial, name, self._footers, self._arrow, self._how)
        return self._files[folders]

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        problems = unfit(self.schema, columns)
        for name in self._keys:
            for row in range(columns.rows):
                value = decode_cell(self.schema[name], columns[name], row)
                if value in ("", MISSING) or len(quote(str(value), safe="")) > LONGEST_VALUE:
                    error = EncodeError("this text cannot be a folder's name", field=name)
                    problems.setdefault(row, error)
        return problems

    def _write(self, columns: Columns) -> None:
        sizes = row_sizes(Columns((name, columns[name]) for name in self._inside))
        if not self._keys:
            self._add(self._file(()), columns, sizes)
            return
        # Buffers are counted after rows of a fixed size, not after each batch, whose size others choose.
        ends = np.cumsum(sizes)
        start = done = 0
        while start < columns.rows:
            group_end = done + self._group_size - self._uncounted_bytes
            end = min(int(np.searchsorted(ends, group_end)) + 1, columns.rows)
            self._write_partitions(columns.take(slice(start, end)), sizes[start:end])
            self._uncounted_bytes += int(ends[end - 1]) - done
            start, done = end, int(ends[end - 1])
            if self._uncounted_bytes >= self._group_size:
                self._uncounted_bytes = 0
                self._bound_buffers()

    def _write_partitions(self, columns: Columns, sizes: I64) -> None:
        texts = [
            [_text(self.schema[key], columns[key], row) for row in range(columns.rows)] for key in self._keys
        ]
        rows: dict[tuple[str, ...], list[int]] = {}
        for row, folders in enumerate(zip(*texts, strict=True)):
            rows.setdefault(
                tuple(f"{quote(k, safe=' ')}={v}" for k, v in zip(self._keys, folders, strict=True)), []
            ).append(row)
        inside = Columns((name, columns[name]) for name in self._inside)
        for folders, row_numbers in rows.items():
            self._add(self._file(folders), inside.take(np.array(row_numbers)), sizes[row_numbers])

    def _add(self, file: _File, columns: Columns, sizes: I64) -> None:
        batch = to_arrow(self._inside, columns, self._arrow)
        # Batches are as large as whoever writes likes; row groups are not.
        for table in file.buffer.fill(batch, sizes, self._group_size):
            file.write(table)

    def _bound_buffers(self) -> None:
        """Write the largest of the row groups that are not full, while they are too large together."""
        while sum(buffer.bytes for buffer in self._buffers()) > MAX_WAITING_GROUPS * self._group_size:
            file = max(self._files.values(), key=lambda file: file.buffer.bytes)
            file.write(file.buffer.take())

    def _state(self) -> dict[str, Any]:
        return {
            "files": [[list(folders), file.groups] for folders, file in self._files.items()],
            "rows": self._saved.save(self._buffers()),
            "uncounted_bytes": self._uncounted_bytes,
        }

    def _finish(self) -> str:
        if not self._keys:
            file = self._file(())
            file.finish()
            return file.name
        target = self.partial.folder / "table"
        target.mkdir(exist_ok=True)
        if not self._files:
            self._file(()).finish()
        for folders, file in self._files.items():
            file.finish()
            where = target.joinpath(*folders)
            where.mkdir(parents=True, exist_ok=True)
            self.partial.put(file.name, where / "part-0.parquet")
        return "table"

    def remarks(self) -> list[str]:
        if not self._keys:
            return []
        return [f"the samples are ordered by {', '.join(self._keys)}, for each value is a folder of its own"]


def _check_keys(schema: Schema, keys: Sequence[str]) -> None:
    for key in keys:
        field = schema.select([key])[key]
        if not isinstance(field, Int | Text | Bool):
            raise OptionError(
                f"partition_by needs a field of whole numbers, text or booleans; {key!r} is {field}"
            )
    if keys and len(set(keys)) >= len(schema):
        raise OptionError("partition_by names every field; at least one has to stay in the files")


def _how(schema: Schema, described: pa.Schema, compression: str, level: int | None) -> dict[str, Any]:
    """Arguments of pyarrow's ParquetWriter."""
    media = [name for name, field in schema.items() if isinstance(field, Image | Audio | Video)]
    columns = _leaves(described)
    few = [leaf for leaf, name in columns.items() if _repeats(schema[name])]
    ranged = [
        name
        for name, field in schema.items()
        if isinstance(field, Int | Float | Bool | Text) or (isinstance(field, Tensor) and not field.shape)
    ]
    return {
        "compression": {leaf: "none" if name in media else compression for leaf, name in columns.items()},
        "compression_level": None
        if level is None
        else {leaf: level for leaf in columns if columns[leaf] not in media},
        "use_dictionary": few,
        "write_statistics": ranged,
        # So that filters skip pages, not only row groups.
        "write_page_index": True,
        "data_page_size": _page_size(schema),
    }


def _page_size(schema: Schema) -> int:
    """So large that a page has one array, or a few: then a sample is read without its row group."""
    cells = [field.cell for field in schema.values() if isinstance(field, Tensor)]
    sizes = [dtype.itemsize * math.prod(shape) for dtype, shape in filter(None, cells)]
    return min(MAX_PAGE_BYTES, max([MIN_PAGE_BYTES, *sizes])) if sizes else MAX_PAGE_BYTES


def _repeats(field: Field) -> bool:
    """True if few values come again and again; plain, a number of 8 bits would take four times as much."""
    return isinstance(field, Int | Text) or (isinstance(field, Tensor) and field.dtype in ("int8", "uint8"))


def _leaves(described: pa.Schema) -> dict[str, str]:
    """Map leaf paths of the file to columns: lists add path elements of their own."""
    leaves: dict[str, str] = {}

    def add(kind: pa.DataType, path: str, name: str) -> None:
        if is_any_list(kind):
            add(kind.value_type, f"{path}.list.element", name)
        elif pyarrow().types.is_struct(kind):
            for field in kind:
                add(field.type, f"{path}.{field.name}", name)
        else:
            leaves[path] = name

    for field in described:
        add(field.type, field.name, field.name)
    return leaves


def _text(field: Field, column: Column, row: int) -> str:
    """A value as a folder's name says it."""
    value = decode_cell(field, column, row)
    if value is None:
        return MISSING
    if isinstance(field, Time | Duration):
        value = scalars.texts_of(field, np.array([scalars.count_of(field, value)]))[0].decode()
    return str(value).lower() if isinstance(value, bool) else quote(str(value), safe=" ")


class _File:
    """One Parquet file in the making, of row groups whose footers wait in a spool of their own."""

    def __init__(
        self, partial: Partial, name: str, footers: Spool, schema: pa.Schema, options: dict[str, Any]
    ) -> None:
        self.name = name
        self.buffer = RowBuffer(schema)
        # Of every row group: where it begins; where its footer lies among the footers, and its size.
        self.groups: list[tuple[int, int, int]] = []
        self._spool = partial.spool(name)
        self._footers = footers
        self._schema, self._how = schema, options

    def write(self, table: pa.Table) -> None:
        """Write a row group as a Parquet file of its own, and take its footer off."""
        import pyarrow.parquet as pq

        start = self._spool.size
        # The library ends a page only at the end of an array, or after 1024 values.
        rows = self._how["data_page_size"] // 4 * table.num_rows // max(1, self.buffer.taken_bytes)
        table = pyarrow().Table.from_batches(table.to_batches(max_chunksize=max(1, rows)), self._schema)
        try:
            with pq.ParquetWriter(_Sink(self._spool), self._schema, **self._how) as out:
                if table.num_rows:
                    out.write_table(table, row_group_size=table.num_rows)
        except pyarrow().ArrowMemoryError:
            raise
        except pyarrow().ArrowException as error:
            raise EncodeError(f"Parquet cannot hold it: {error}") from None
        size = int.from_bytes(self._spool.read_at(4, self._spool.size - 8), "little")
        end = self._spool.size - 8 - size
        self.groups.append((start, self._footers.size, size))
        self._footers.write(self._spool.read_at(size, end))
        self._spool.resize(end)

    def finish(self) -> None:
        if self.buffer.batches or not self.groups:
            self.write(self.buffer.take())
        parts = [(start, self._footers.read_at(size, group)) for start, group, size in self.groups]
        self._spool.write(merge(parts, self._spool.size, self._spool.read_at))


class _Sink(io.RawIOBase):
    """File object for pyarrow that counts positions from the row group's start."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._start = spool.size

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._spool.write(data)
        return len(data)

    def tell(self) -> int:
        return self._spool.size - self._start


def merge(footers: Sequence[tuple[int, bytes]], end: int, read: Callable[[int, int], bytes]) -> bytes:
    """Return the end of a file that follows its parts: moved page indexes, then one footer of all row groups.

    Each footer of a part comes with the start of the part.

    ``read`` gives so many bytes of the file from a place on.
    """
    struct: Struct = {}
    moved = b""
    for start, data in footers:
        part = read_struct(data)[0]
        groups = part.get(_ROW_GROUPS, (9, (STRUCT, [])))[1][1]
        for group in groups:
            _move(group, start)
            for chunk in group[_GROUP_COLUMNS][1][1] if start else ():
                moved += _move_pages(chunk, start, end + len(moved), read)
        if not struct:
            struct = part
            continue
        groups_of_file = struct[_ROW_GROUPS][1][1]
        for group in groups:
            group[_GROUP_ORDINAL] = (4, min(len(groups_of_file), 32767))
            groups_of_file.append(group)
        struct[_ROWS] = (struct[_ROWS][0], struct[_ROWS][1] + part[_ROWS][1])
    return moved + footer_bytes(struct)


def _move(group: Struct, by: int) -> None:
    """Shift everything in a row group that is a place in the file."""
    _shift(group, (_GROUP_OFFSET,), by)
    for chunk in group[_GROUP_COLUMNS][1][1]:
        _shift(chunk, _CHUNK_OFFSETS, by)
        if _CHUNK_DATA in chunk:
            _shift(chunk[_CHUNK_DATA][1], _DATA_OFFSETS, by)


def _move_pages(chunk: Struct, by: int, to: int, read: Callable[[int, int], bytes]) -> bytes:
    """The places of the pages of a column, shifted, which lie at another place from now on."""
    if _INDEX_OFFSET not in chunk:
        return b""
    pages = read_struct(read(chunk[_INDEX_SIZE][1], chunk[_INDEX_OFFSET][1]))[0]
    for page in pages[_PAGES][1][1]:
        _shift(page, (_PAGE_OFFSET,), by)
    data = struct_bytes(pages)
    chunk[_INDEX_OFFSET] = (chunk[_INDEX_OFFSET][0], to)
    chunk[_INDEX_SIZE] = (chunk[_INDEX_SIZE][0], len(data))
    return data


def _shift(struct: Struct, fields: Sequence[int], by: int) -> None:
    for field in fields:
        # 0 stands for none.
        if field in struct and struct[field][1] > 0:
            struct[field] = (struct[field][0], struct[field][1] + by)
