"""Reading Parquet: a file, a URL, or a folder of files with partitions in the names of its folders."""

from __future__ import annotations

import dataclasses
import os
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np

from ... import _native
from ...codecs.arrow import KEY, from_arrow, pyarrow, schema_of
from ...codecs.arrow.hugging_face import path_structs, plain_files, with_files
from ...codecs.arrow.types import is_binary, is_file_struct, is_text
from ...codecs.cells import encode_samples
from ...data.expressions import Bounds
from ...data.layout import Layout
from ...errors import BatchplantError, DamagedError, SchemaError, located
from ...schema import Bool, Duration, Field, Image, Int, Schema, Text, Time
from ...schema.columns import I64, Column, Columns, Ragged, starts_of
from ...storage import NOTE_ERRORS, Entry, Source, is_remote, join, parse, tree
from ...storage.index import FileGroup
from ...storage.patterns import independent
from ...storage.spans import Spans
from ..base.format import Probe
from ..base.records import GivenSchema, given_schema
from ..base.tables import ParquetFile, ParquetRows, cell_bounds
from ..base.tables.footer import ENCRYPTED, MAGIC
from ..base.tables.parquet import Cells, first_line

if TYPE_CHECKING:
    import pyarrow as pa

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
        sequential = len(sought) > MAX_SINGLE_CELLS * len(new) and not self._are_scattered(inside)
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

    def _are_scattered(self, groups: Mapping[int, I64]) -> bool:
        """True if row groups do not stay in memory until all of their cells were used."""
        return (
            sum(self._size(number, numbers) for number, numbers in groups.items())
            > self._max_sequential_bytes
        )

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
        keys, partition_fields = _partitions(list(values_of_files.values()), path)
        values = [_typed(texts, partition_fields) for texts in values_of_files.values()]
        self._files = _opened(list(values_of_files), values)
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
        if not isinstance(self.schema[field], Image) or self._has_text(field):
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

    def _has_text(self, field: str) -> bool:
        """True if a column holds the paths of its images, not their bytes."""
        files = [file for file in self._files if field in file.schema.names]
        return any(is_text(file.schema.field(field).type) for file in files)

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
        columns.update((name, self._copy_cells(spans)) for name, spans in cells.items() if spans is not None)
        return Columns((name, columns[name]) for name in fields)

    def _copy_cells(self, spans: Spans) -> Ragged:
        """Copy cells from their locations in the files."""
        offsets = starts_of(spans.size)
        data = np.empty(offsets[-1], np.uint8)
        for source, rows, starts, sizes in spans.by_source():
            source.gather_into(starts, sizes, data, offsets[rows])
        return Ragged(data, offsets)

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


def _opened(paths: Sequence[str], values: Sequence[Mapping[str, Any]]) -> list[ParquetFile]:
    """Open files, several footers at a time."""
    if len(paths) < 2:
        return list(map(ParquetFile, paths, values))
    with ThreadPoolExecutor(8, thread_name_prefix="batchplant-open") as pool:
        return list(pool.map(ParquetFile, paths, values))


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


def _partitions(values: list[dict[str, str | None]], path: str) -> tuple[list[str], dict[str, Field]]:
    """The names of the partitions, and what kind of values they have."""
    keys = list(values[0])
    if any(list(value) != keys for value in values):
        raise SchemaError("its files lie in different partitions; open the folders one by one", path=path)
    return keys, {key: _kind([value[key] for value in values]) for key in keys}


def _kind(values: list[str | None]) -> Field:
    present = [value for value in values if value is not None]
    numbers = all(re.fullmatch(r"0|-?[1-9]\d{0,17}", value) for value in present) and bool(present)
    field: Field = Int() if numbers else Text()
    return dataclasses.replace(field, optional=True) if len(present) < len(values) else field


def _typed(values: dict[str, str | None], fields: dict[str, Field]) -> dict[str, Any]:
    return {name: _value(fields[name], value) for name, value in values.items()}


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
