"""Parquet files, read row group by row group; many of them as one dataset.

``ParquetFilesReader`` is the base class of formats whose data are Parquet files: a plain file, a folder with
a partition in every name, the files of a version of a Delta table.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ....codecs.arrow import KEY, from_arrow, pyarrow, schema_of
from ....codecs.arrow.hugging_face import path_structs, plain_files, with_files
from ....codecs.arrow.types import is_binary, is_file_struct, is_text
from ....codecs.cells import encode_samples
from ....errors import BatchplantError, DamagedError, SchemaError
from ....schema import Field, Image, Schema
from ....schema.columns import I64, Column, Columns, Ragged, starts_of
from ....storage import Entry, Source
from ....storage.index import FileGroup
from ....storage.spans import SourceRun, Spans
from .parquet_file import Cells, ParquetFile, first_line
from .parquet_rows import WINDOW_BYTES, ParquetRows, TableFile, cell_bounds

# A row group of which more cells are needed on average is read sequentially, unless the row groups together
# are larger than MAX_SEQUENTIAL_BYTES: then each would be read again and again.
MAX_SINGLE_CELLS, MAX_SEQUENTIAL_BYTES = 4, 2 * WINDOW_BYTES


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
        numbers: I64 = np.searchsorted(self._firsts, groups, side="right") - 1
        return numbers

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


# Rows that are read to see what a column of bytes holds.
PROBED_ROWS = 16
# Name of the checksums of Parquet's pages in `verify`.
CHECKED = "CRC of every page that has one"


class ParquetFilesReader(ParquetRows):
    """Parquet files as one dataset, a row group a unit. A format calls :meth:`_set_parts`."""

    _parts: Sequence[ParquetFile]

    def _set_parts(
        self,
        parts: Sequence[ParquetFile],
        *,
        schema: Schema | None = None,
        overrides: Mapping[str, Field] | None = None,
        cache: int | None = None,
    ) -> None:
        """``schema``: all fields, if they are known; ``overrides``: other kinds for some fields."""
        self._parts = parts
        self.schema = self._joined_schema() if schema is None else schema
        for name, field in (overrides or {}).items():
            self.schema.select([name])
            self.schema = Schema({**self.schema, name: field})
        if not self.schema:
            raise SchemaError("there is no column in it", path=self.path)
        self._set_units(np.concatenate([np.zeros(0, np.int64), *(part.rows for part in parts)]), cache)
        self._set_window(parts)
        self._firsts = np.cumsum([0, *(len(part.rows) for part in parts)])
        self._locations: dict[str, CellLocations] = {}

    def _joined_schema(self) -> Schema:
        """Return the fields of all files and of their names; a field that a file lacks is optional."""
        if not self._parts:
            raise DamagedError("there is no Parquet file in it", path=self.path)
        pa = pyarrow()
        first = self._parts[0]
        # Some files may have been written without the features of Hugging Face.
        schemas = [part.schema if len(self._parts) == 1 else plain_files(part.schema) for part in self._parts]
        try:
            arrow = schemas[0]
            if len(schemas) > 1:
                arrow = pa.unify_schemas(schemas, promote_options="permissive")
        except pa.ArrowException as error:
            raise SchemaError(
                f"the files have different columns: {first_line(error)}", path=self.path
            ) from None
        plain = [field.name for field in arrow if not (field.metadata or {}).get(KEY)]
        nulls = set().union(*(p.nulls([n for n in plain if n in p.schema.names]) for p in self._parts))
        try:
            gaps = set().union(*(p.gaps([n for n in plain if n in p.schema.names]) for p in self._parts))
            schema = schema_of(arrow, self._sample(first, plain), nulls=nulls, gaps=gaps)
        except BatchplantError as error:
            raise error.at(path=first.path) from None
        fields: dict[str, Field] = dict(schema)
        for name in fields:
            if any(name not in part.schema.names for part in self._parts):
                fields[name] = dataclasses.replace(fields[name], optional=True)
        return Schema(fields)

    def _sample(self, part: ParquetFile, names: Sequence[str]) -> Any:
        """Return a few rows of the columns that may be images."""
        kinds = {name: part.schema.field(name).type for name in names if name in part.schema.names}
        looked = [name for name, kind in kinds.items() if is_binary(kind) or is_file_struct(kind)]
        if not looked or not len(part.rows):
            return None
        try:
            return with_files(part.first_cells(looked, PROBED_ROWS), part.path, self.path)
        # Reading the column meets the same damage, and reports its location.
        except Exception:
            return None

    def _part_numbers(self, units: I64) -> I64:
        numbers: I64 = np.searchsorted(self._firsts, units, side="right") - 1
        return numbers

    def _part_of(self, unit: int) -> tuple[ParquetFile, int]:
        number = int(np.searchsorted(self._firsts, unit, side="right")) - 1
        return self._parts[number], unit - int(self._firsts[number])

    def _path_of(self, unit: int) -> str:
        return self._part_of(unit)[0].path

    def _are_planned(self, units: Sequence[int]) -> bool:
        return any(self._part_of(unit)[0].is_planned for unit in units)

    def _load(self, unit: int, fields: Sequence[str]) -> Columns:
        return self._load_rows(unit, None, fields)

    def _load_rows(self, unit: int, rows: I64 | None, fields: Sequence[str]) -> Columns:
        part, group = self._part_of(unit)
        inside = self._inside(part, fields)
        count = int(part.rows[group]) if rows is None else len(rows)
        columns = Columns()
        if inside:
            table = part.load(group, inside) if rows is None else part.load_rows(group, inside, rows)
            table = with_files(path_structs(self.schema, table), part.path, self.path)
            columns = from_arrow(self.schema, inside, table)
        for name in fields:
            if name not in columns:
                columns[name] = _constant(self.schema[name], part.values.get(name), count)
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
        file = self._part_numbers(units).astype(np.int32)
        spans = Spans([part.source for part in self._parts], start, locations.sizes[indices], file)
        return spans if len(self._parts) == 1 else spans.compact()

    def _has_text(self, field: str) -> bool:
        """True if a column holds the paths of its images, not their bytes."""
        parts = [part for part in self._parts if field in part.schema.names]
        return any(is_text(part.schema.field(field).type) for part in parts)

    def _locations_of(self, field: str) -> CellLocations:
        if field not in self._locations:
            parts = {n: part for n, part in enumerate(self._parts) if self._inside(part, [field])}
            self._locations.setdefault(field, CellLocations(field, parts, self._firsts, self._starts))
        return self._locations[field]

    def _bytes_of(self, fields: Sequence[str]) -> int:
        inside = [(part, self._inside(part, fields)) for part in self._parts]
        groups = ((part, group, names) for part, names in inside for group in range(len(part.rows)))
        return sum(size for part, group, names in groups for _, size in part.runs(group, names))

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        images = [name for name in fields if isinstance(self.schema[name], Image)]
        if not images or len(indices) > MAX_SINGLE_CELLS * len(np.unique(self._units_of(indices)[0])):
            return super()._read(indices, fields)
        cells = {name: self._spans(name, indices) for name in images}
        others = [name for name in fields if cells.get(name) is None]
        columns = super()._read(indices, others) if others else Columns()
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
        return (
            None if locations is None or not locations.starts[indices].all() else self._spans(field, indices)
        )

    def _unit_runs(self, unit: int, fields: Sequence[str]) -> list[SourceRun]:
        part, group = self._part_of(unit)
        return [(part.source, *run) for run in part.runs(group, self._inside(part, fields))]

    def _fingerprint_source(self, fields: Sequence[str]) -> Source | None:
        """Describe all files of a folder."""
        files = [Entry(part.path, part.size, part.tag) for part in self._parts]
        if [entry.name for entry in files] == [self.path]:
            return super()._fingerprint_source(fields)
        if not all(entry.tag for entry in files):
            return None
        return FileGroup(self.path, files, state={}, options=self._init_args[1])

    def _row_runs(self, unit: int, rows: I64, fields: Sequence[str]) -> list[SourceRun]:
        part, group = self._part_of(unit)
        return [(part.source, *run) for run in part.row_runs(group, self._inside(part, fields), rows)]

    def _inside(self, part: ParquetFile, fields: Sequence[str]) -> list[str]:
        """Return the fields that are columns of a file."""
        return [name for name in fields if name in part.schema.names and name not in part.values]

    def _file(self, number: int, fields: Sequence[str]) -> TableFile:
        part = self._parts[number]
        inside = self._inside(part, list(self.schema))
        fixed = {
            name: cell_bounds(self.schema[name], _constant(self.schema[name], part.values.get(name), 1))
            for name in fields
            if name not in inside
        }
        return TableFile(part, {name: name for name in inside}, fixed)

    def own_checks(self) -> tuple[str, ...]:
        return (CHECKED,)

    def facts(self) -> dict[str, Any]:
        used: set[str] = set()
        for part in self._parts[:1]:
            used = set(part.footer.codecs)
        counts = {"files": len(self._parts)} if len(self._parts) != 1 else {}
        written = self._parts[0].footer.created_by if self._parts else ""
        return {
            **counts,
            **super().facts(),
            "compression": ", ".join(sorted(used)) or "none",
            **({"written by": written} if written else {}),
        }

    def close(self) -> None:
        super().close()
        for part in self._parts:
            part.close()


def _constant(field: Field, value: Any, count: int) -> Column:
    """Return a column that repeats a value."""
    column = encode_samples(Schema({"x": field}), [{"x": value}])
    return column.take(np.zeros(count, dtype=np.int64))["x"]


def open_parts(paths: Sequence[str], make: Callable[[str], ParquetFile]) -> list[ParquetFile]:
    """Open files, several footers at a time."""
    if len(paths) < 2:
        return [make(path) for path in paths]
    with ThreadPoolExecutor(8, thread_name_prefix="batchplant-open") as pool:
        return list(pool.map(make, paths))
