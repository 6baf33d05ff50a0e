"""Apache Parquet, columns in row groups.

A row group keeps some thousand samples, column by column, packed; the footer at the end of the file says
where. Only the columns that are asked for are read. Reading in a quasi-random order decodes each row group
once; in a random order, of more than the cache holds, a sample costs the pages that it is in. A folder of
files is one dataset, and folders called NAME=VALUE in it are fields.

What a field is stands in the metadata of its column; see the guide for how fields are stored, and for what
the types of other programs become. Images are bytes, or Hugging Face's struct of bytes and path.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import numpy as np

from .. import _native
from ..codecs import scalars
from ..codecs.arrow import (
    KEY,
    arrow_schema,
    featured_schema,
    from_arrow,
    pyarrow,
    refuses,
    schema_of,
    to_arrow,
    unfit,
)
from ..codecs.arrow.hugging_face import path_structs, plain_files, with_files
from ..codecs.arrow.types import is_any_list, is_binary, is_file_struct, is_text
from ..codecs.cells import decode_cell, encode_samples
from ..data.expressions import Bounds
from ..data.layout import Layout
from ..data.writer import WriteOptions, Writer
from ..errors import BatchplantError, DamagedError, EncodeError, OptionError, SchemaError, located
from ..schema import (
    EVERY_KIND,
    Audio,
    Bool,
    Duration,
    Field,
    Float,
    Image,
    Int,
    Schema,
    Tensor,
    Text,
    Time,
    Video,
)
from ..schema.columns import I64, Column, Columns
from ..storage import NOTE_ERRORS, Entry, Partial, Source, Spool, is_remote, join, parse, tree
from ..storage.index import FileGroup
from ..storage.patterns import independent
from ..storage.spans import Spans
from .base.format import Capabilities, Format, Probe
from .base.records import GivenSchema, given_schema
from .base.tables import ParquetFile, ParquetRows, cell_bounds
from .base.tables.buffered import RowBuffer, SavedRows, row_sizes
from .base.tables.footer import ENCRYPTED, MAGIC, STRUCT, Struct, footer_bytes, read_struct, struct_bytes
from .base.tables.parquet import Cells, first_line

if TYPE_CHECKING:
    import pyarrow as pa

# -- reading ------------------------------------------------------------------------------------------
# Reading Parquet: a file, a URL, or a folder of files with partitions in the names of its folders.

# What Hive, and everybody after it, calls a folder of which the value is missing.
MISSING = "__HIVE_DEFAULT_PARTITION__"
SUFFIXES = (".parquet", ".pq")
# Folders in which Parquet files are the parts of something else.
OTHER_TABLES = ("_delta_log/", "metadata/")
# Rows that are read to see what a column of bytes holds.
PROBED_ROWS = 16
# A row group of which more cells are needed on average is read sequentially, unless the row groups together
# are larger than MAX_SEQUENTIAL_BYTES: then each would be read again and again.
MAX_SINGLE_CELLS, MAX_SEQUENTIAL_BYTES = 4, 256 << 20


class CellLocations:
    """Starts and sizes of the cells of a field in some files.

    A start is 0 if it was not looked up yet, -1 if the cell is not stored plainly. ``parts``: the files that
    have the column, by number. File n has the row groups from ``firsts[n]`` on, row group g the rows from
    ``edges[g]`` on.
    """

    def __init__(
        self,
        field: str,
        parts: Mapping[int, ParquetFile],
        firsts: I64,
        edges: I64,
        max_sequential_bytes: int = MAX_SEQUENTIAL_BYTES,
    ) -> None:
        self._field, self._parts, self._firsts, self._edges = field, parts, firsts, edges
        self._max_sequential_bytes = max_sequential_bytes
        # Zero pages take no memory until cells are located.
        self.starts, self.sizes = np.zeros(edges[-1], np.int64), np.zeros(edges[-1], np.int64)
        # Files whose remembered locations were looked up.
        self._recalled: set[int] = set()
        self._process, self._lock = os.getpid(), threading.Lock()

    def find(self, groups: I64) -> None:
        """Locate the cells of row groups, each of which is named once per needed cell."""
        # Another thread may have held the lock when the process was forked.
        if self._process != os.getpid():
            self._process, self._lock = os.getpid(), threading.Lock()
        # Batches that are read at the same time need the same row groups.
        with self._lock:
            self._find(groups)

    def _find(self, groups: I64) -> None:
        for number in np.unique(self._files_of(groups)).tolist():
            self._recall(number)
        sought = groups[self.starts[self._edges[groups]] == 0]
        new = np.unique(sought)
        files = self._files_of(new)
        inside = {number: new[files == number] for number in self._parts if (files == number).any()}
        # Larger row groups do not stay in memory until all of their cells were used.
        size = sum(self._size(number, numbers) for number, numbers in inside.items())
        sequential = len(sought) > MAX_SINGLE_CELLS * len(new) and size <= self._max_sequential_bytes
        for number, groups_of_file in inside.items():
            results = self._parts[number].cells(
                (groups_of_file - self._firsts[number]).tolist(), self._field, sequential
            )
            for group, cells in zip(groups_of_file.tolist(), results, strict=True):
                self._put(slice(*self._edges[group : group + 2].tolist()), cells)
            self._remember(number)
        for group in new[~np.isin(files, list(inside))].tolist():
            self._put(slice(*self._edges[group : group + 2].tolist()), None)

    def _files_of(self, groups: I64) -> I64:
        return np.searchsorted(self._firsts, groups, side="right") - 1

    def _rows_of(self, number: int) -> slice:
        return slice(*self._edges[self._firsts[number : number + 2]].tolist())

    def _put(self, rows: slice, cells: Cells | None) -> None:
        # Starts last: other threads look at them first.
        self.sizes[rows] = -1 if cells is None else cells[1]
        self.starts[rows] = -1 if cells is None else cells[0]

    def _recall(self, number: int) -> None:
        """Load the remembered locations of a file, once."""
        if number in self._parts and number not in self._recalled:
            remembered = self._parts[number].recalled(self._field)
            if remembered is not None:
                self._put(self._rows_of(number), remembered)
            self._recalled.add(number)

    def _remember(self, number: int) -> None:
        """Remember the locations of a file once they are complete."""
        rows = self._rows_of(number)
        if self.starts[rows].all() and (self.starts[rows] > 0).any():
            self._parts[number].remember(self._field, (self.starts[rows], self.sizes[rows]))

    def _size(self, number: int, groups: I64) -> int:
        """Bytes of the column in row groups of a file."""
        part, inside = self._parts[number], (groups - self._firsts[number]).tolist()
        return sum(size for group in inside for _, size in part.runs(group, [self._field]))


class ParquetReader(ParquetRows):
    """Reads .parquet files and folders of them.

    ``fields``: only these. ``schema``: the kinds of some fields, in place of those that the types mean.
    ``cache``: bytes of decoded row groups to keep (default 256 MiB).
    """

    _files: Sequence[ParquetFile]

    def __init__(
        self,
        path: str,
        *,
        fields: Iterable[str] | None = None,
        schema: GivenSchema | str | None = None,
        cache: int | None = None,
    ) -> None:
        self.path = path
        overrides = given_schema(schema) if schema is not None else {}
        values_of_files = dict(_files(path)) if tree.is_folder(path) else {path: {}}
        if not values_of_files:
            raise DamagedError("there is no Parquet file in it", path=path)
        keys = list(next(iter(values_of_files.values())))
        if any(list(texts) != keys for texts in values_of_files.values()):
            raise SchemaError("its files lie in different partitions; open the folders one by one", path=path)
        partition_fields = {key: _kind([texts[key] for texts in values_of_files.values()]) for key in keys}
        values = [
            {name: _value(partition_fields[name], text) for name, text in texts.items()}
            for texts in values_of_files.values()
        ]
        # Several footers at a time.
        with ThreadPoolExecutor(8, thread_name_prefix="batchplant-open") as pool:
            opened = map if len(values) < 2 else pool.map
            self._files = list(opened(ParquetFile, values_of_files, values))
        try:
            self.schema = self._joined_schema()
            if not self.schema:
                raise SchemaError("there is no column in it")
            self._set_units(np.concatenate([file.rows for file in self._files]), cache)
            self._set_window()
            self._firsts = np.cumsum([0, *(len(file.rows) for file in self._files)])
            self._locations: dict[str, CellLocations] = {}
            self.schema = self._with_partitions(keys, partition_fields)
            if fields is not None:
                self.schema = self.schema.select(list(fields))
            encrypted = {name for file in self._files for name in file.encrypted()}
            locked = [name for name in self.schema if name in encrypted]
            if locked:
                raise SchemaError(
                    f"encrypted columns are not read: {', '.join(locked)}; choose others with fields=[…]"
                )
            for name, field in overrides.items():
                self.schema.select([name])
                self.schema = Schema({**self.schema, name: field})
        except BatchplantError as error:
            for file in self._files:
                file.close()
            raise error.at(path=path) from None
        # The library raises what it likes on nonsense.
        except Exception as error:
            raise DamagedError(f"the schema is damaged: {error}", path=path) from None

    def _layout(self) -> Layout:
        return dataclasses.replace(
            super()._layout(), boundaries=self._boundaries, stored_bytes=self._stored_bytes
        )

    def _boundaries(self) -> I64:
        """The first rows of files, of which none is the next shard of the one before."""
        firsts = self._starts[self._firsts[:-1]]
        starts = independent([file.path for file in self._files], firsts)
        return np.unique(starts[(starts > 0) & (starts < self.length)])

    def _with_partitions(self, keys: list[str], partition_fields: dict[str, Field]) -> Schema:
        """The fields, those of the folders' names among them; in our order and kinds where we wrote it."""
        if not keys:
            return self.schema
        all_fields: dict[str, Field] = {**self.schema, **partition_fields}
        try:
            noted = Schema.from_json(parse((self._files[0].schema.metadata or {})[KEY]))
        except (*NOTE_ERRORS, SchemaError):
            return Schema(all_fields)
        if set(noted) != set(all_fields):
            return Schema(all_fields)
        fields = {name: noted[name] if name in partition_fields else all_fields[name] for name in noted}
        for file in self._files:
            file.values = {name: _value(noted[name], value) for name, value in file.values.items()}
        return Schema(fields)

    def _joined_schema(self) -> Schema:
        """Return the fields of all files and of their names; a field that a file lacks is optional."""
        pa = pyarrow()
        first = self._files[0]
        # Some files may have been written without the features of Hugging Face.
        arrow = first.schema
        if len(self._files) > 1:
            schemas = [plain_files(file.schema) for file in self._files]
            try:
                arrow = pa.unify_schemas(schemas, promote_options="permissive")
            except pa.ArrowException as error:
                raise SchemaError(f"the files have different columns: {first_line(error)}") from None
        plain = [field.name for field in arrow if not (field.metadata or {}).get(KEY)]
        columns = [(file, [name for name in plain if name in file.schema.names]) for file in self._files]
        nulls = set().union(*(file.nulls(names) for file, names in columns))
        with located(path=first.path):
            gaps = set().union(*(file.gaps(names) for file, names in columns))
            schema = schema_of(arrow, self._sample(first, plain), nulls=nulls, gaps=gaps)
        fields: dict[str, Field] = dict(schema)
        for name in fields:
            if any(name not in file.schema.names for file in self._files):
                fields[name] = dataclasses.replace(fields[name], optional=True)
        return Schema(fields)

    def _sample(self, file: ParquetFile, names: Sequence[str]) -> pa.Table | None:
        """Return a few rows of the columns that may be images."""
        kinds = {name: file.schema.field(name).type for name in names if name in file.schema.names}
        looked = [name for name, kind in kinds.items() if is_binary(kind) or is_file_struct(kind)]
        if not looked or not len(file.rows):
            return None
        try:
            return with_files(file.first_cells(looked, PROBED_ROWS), file.path, self.path)
        # Reading the column meets the same damage, and reports its location.
        except Exception:
            return None

    def _path_of(self, unit: int) -> str:
        return self._files[self._file_of(unit)[0]].path

    def _columns_in(self, number: int, fields: Sequence[str]) -> dict[str, str]:
        file = self._files[number]
        return {name: name for name in fields if name in file.schema.names and name not in file.values}

    def _fixed_bounds(self, number: int, fields: Sequence[str]) -> dict[str, Bounds]:
        inside, values = self._columns_in(number, fields), self._files[number].values
        return {
            name: cell_bounds(self.schema[name], _constant(self.schema[name], values.get(name), 1))
            for name in fields
            if name not in inside
        }

    def _load_rows(self, unit: int, rows: I64 | None, fields: Sequence[str]) -> Columns:
        number, group = self._file_of(unit)
        file, inside = self._files[number], list(self._columns_in(number, fields))
        count = int(file.rows[group]) if rows is None else len(rows)
        columns = Columns()
        if inside:
            table = file.load(group, inside) if rows is None else file.load_rows(group, inside, rows)
            table = with_files(path_structs(self.schema, table), file.path, self.path)
            columns = from_arrow(self.schema, inside, table)
        for name in fields:
            if name not in columns:
                columns[name] = _constant(self.schema[name], file.values.get(name), count)
        return Columns((name, columns[name]) for name in fields)

    def _spans(self, field: str, indices: I64) -> Spans | None:
        schemas = [file.schema for file in self._files if field in file.schema.names]
        # A column of text holds the paths of its images, not their bytes.
        if not isinstance(self.schema[field], Image) or any(is_text(s.field(field).type) for s in schemas):
            return None
        locations = self._locations_of(field)
        units, _ = self._units_of(indices)
        unknown = locations.starts[indices] == 0
        if unknown.any():
            locations.find(units[unknown])
        start = locations.starts[indices]
        if (start < 0).any():
            return None
        files = (np.searchsorted(self._firsts, units, side="right") - 1).astype(np.int32)
        spans = Spans([file.source for file in self._files], start, locations.sizes[indices], files)
        return spans if len(self._files) == 1 else spans.compact()

    def _locations_of(self, field: str) -> CellLocations:
        if field not in self._locations:
            files = {n: file for n, file in enumerate(self._files) if self._columns_in(n, [field])}
            self._locations.setdefault(field, CellLocations(field, files, self._firsts, self._starts))
        return self._locations[field]

    def _stored_bytes(self, fields: Sequence[str]) -> int:
        units = range(len(self._starts) - 1)
        return sum(size for unit in units for _, _, size in self._unit_runs(unit, fields) or ())

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        images = [name for name in fields if isinstance(self.schema[name], Image)]
        units, _ = _native.distinct(self._units_of(indices)[0])
        if not images or len(indices) > MAX_SINGLE_CELLS * len(units):
            return super()._read(indices, fields)
        cells = {name: self._spans(name, indices) for name in images}
        missing = [name for name in fields if cells.get(name) is None]
        columns = super()._read(indices, missing) if missing else Columns()
        columns.update((name, spans.gather()) for name, spans in cells.items() if spans is not None)
        return Columns((name, columns[name]) for name in fields)

    def _known(self, field: str, indices: I64) -> Spans | None:
        locations = self._locations.get(field)
        are_known = locations is not None and locations.starts[indices].all()
        return self._spans(field, indices) if are_known else None

    def _fingerprint_source(self, fields: Sequence[str]) -> Source | None:
        """Describe all files of a folder."""
        files = [Entry(file.path, file.size, file.tag) for file in self._files]
        if [entry.name for entry in files] == [self.path]:
            return super()._fingerprint_source(fields)
        if not all(entry.tag for entry in files):
            return None
        return FileGroup(self.path, files, state={}, options=self._init_args[1])

    def facts(self) -> dict[str, object]:
        footer = self._files[0].footer
        counts = {"files": len(self._files)} if len(self._files) != 1 else {}
        written = {"written by": footer.created_by} if footer.created_by else {}
        return {**counts, **super().facts(), "compression": ", ".join(footer.codecs) or "none", **written}


def _constant(field: Field, value: Any, count: int) -> Column:
    """Return a column that repeats a value."""
    column = encode_samples(Schema({"x": field}), [{"x": value}])
    return column.take(np.zeros(count, dtype=np.int64))["x"]


def _files(folder: str) -> list[tuple[str, dict[str, str | None]]]:
    """The Parquet files below a folder, in order, each with the values that its folders name."""
    files: list[tuple[list[Any], str, dict[str, str | None]]] = []
    for inside, _ in tree.walk(folder):
        *steps, name = inside.split("/")
        if name.lower().endswith(SUFFIXES) and not any(step[0] in "._" for step in (*steps, name)):
            # The files of a folder come before those of the folders in it.
            order = [*((1, _natural(step)) for step in steps), (0, _natural(name))]
            files.append((order, join(folder, inside), _values_of(steps)))
    # Programs call folders of files so, too; one without any stands in the place of a file that is missing.
    # Servers have no empty folders.
    for entry in () if is_remote(folder) else tree.entries(folder):
        named = entry.folder and entry.name.lower().endswith(SUFFIXES) and entry.name[0] not in "._"
        below = join(folder, entry.name, "")
        if named and not any(path.startswith(below) for _, path, _ in files):
            raise DamagedError("this is a folder without Parquet files; a file is needed here", path=below)
    return [(path, values) for _, path, values in sorted(files, key=lambda entry: entry[0])]


def _values_of(steps: list[str]) -> dict[str, str | None]:
    result: dict[str, str | None] = {}
    for step in steps:
        name, equals, value = step.partition("=")
        if equals and name:
            result[unquote(name)] = None if value == MISSING else unquote(value)
    return result


def _natural(name: str) -> list[Any]:
    """Sort key: part-2 before part-10."""
    return [(1, "", int(part)) if part.isdecimal() else (0, part, 0) for part in re.split(r"(\d+)", name)]


def _kind(values: list[str | None]) -> Field:
    present = [value for value in values if value is not None]
    numbers = all(re.fullmatch(r"0|-?[1-9]\d{0,17}", value) for value in present) and bool(present)
    field: Field = Int() if numbers else Text()
    return dataclasses.replace(field, optional=True) if len(present) < len(values) else field


def _value(field: Field, value: Any) -> Any:
    """Parse a folder's name as a value of its field."""
    if value is None:
        return None
    if isinstance(field, Bool):
        return str(value) == "true"
    if isinstance(field, Time | Duration):
        return field.parse(str(value))
    return int(value) if isinstance(field, Int) else str(value)


def sniff(probe: Probe) -> bool:
    """Files begin with PAR1. A folder holds such files, or folders called NAME=VALUE."""
    if not probe.folder:
        return probe.head.startswith((MAGIC, ENCRYPTED)) and probe.size >= 12
    if any(name in OTHER_TABLES for name in probe.names):
        return False
    if any(name.lower().endswith(SUFFIXES) for name in probe.names):
        return True
    if not any(re.fullmatch(r"[^=]+=[^/]*/", name) for name in probe.names):
        return False
    return any(name.lower().endswith(SUFFIXES) for name, _ in tree.walk(probe.path))


# -- writing ------------------------------------------------------------------------------------------
# Writing Parquet: one file, or a folder with a file for each partition.

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
    # Of these few values come again and again; plain, a number of 8 bits would take four times as much.
    repeating = {
        name
        for name, field in schema.items()
        if isinstance(field, Int | Text) or (isinstance(field, Tensor) and field.dtype in ("int8", "uint8"))
    }
    few = [leaf for leaf, name in columns.items() if name in repeating]
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


# -- format -------------------------------------------------------------------------------------------

FORMAT = Format(
    name="parquet",
    title="Apache Parquet",
    suffixes=(".parquet", ".pq"),
    spec="https://parquet.apache.org/docs/file-format/",
    reader=ParquetReader,
    writer=ParquetWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    folder=None,
    extra="arrow",
    notes="only the columns asked for are read; folders with partitions; zstd by default",
    can=Capabilities(
        random_access=True,
        compression=("snappy", "gzip", "brotli", "lz4", "zstd"),
        compressed="page",
        column_pruning=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        ecosystem=("pyarrow", "pandas", "Polars", "DuckDB", "Spark", "Hugging Face"),
    ),
)
