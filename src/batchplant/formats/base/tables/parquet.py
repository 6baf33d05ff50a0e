"""Parquet files, read row group by row group; many of them as one dataset.

``PartsReader`` is what formats build on whose data are Parquet files: a plain file, a folder with a partition
in every name, the files of a version of a Delta table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ....codecs.arrow import KEY, from_arrow, pyarrow, schema_of
from ....codecs.arrow.files import path_structs, with_files
from ....codecs.arrow.hugging_face import plain_files
from ....codecs.arrow.types import is_binary, is_file_struct, is_text
from ....codecs.cells import encode_samples
from ....errors import BatchplantError, DamagedError, SchemaError
from ....schema import Field, Image, Schema
from ....schema.columns import I64, Column, Columns, Ragged, Spans, starts_of
from ....storage import Entry, Source
from ....storage.index import Whole
from .part import ParquetPart, first_line
from .picked import File, ParquetRows, cell_bounds
from .places import FEW, Places

# Rows that show what bytes are.
PROBED_ROWS = 16
# What `verify` calls the checksums of Parquet's pages.
CHECKED = "CRC of every page that has one"


class PartsReader(ParquetRows):
    """Parquet files as one dataset, a row group a unit. A format calls :meth:`_set_parts`."""

    _parts: Sequence[ParquetPart]

    def _set_parts(
        self,
        parts: Sequence[ParquetPart],
        *,
        schema: Schema | None = None,
        given: Mapping[str, Field] | None = None,
        cache: int | None = None,
    ) -> None:
        """``schema``: all fields, where somebody else knows them; ``given``: other kinds for some."""
        self._parts = parts
        self.schema = self._joined() if schema is None else schema
        for name, field in (given or {}).items():
            self.schema.select([name])
            self.schema = Schema({**self.schema, name: field})
        if not self.schema:
            raise SchemaError("there is no column in it", path=self.path)
        self._set_units(np.concatenate([np.zeros(0, np.int64), *(part.rows for part in parts)]), cache)
        self._set_window(parts)
        self._firsts = np.cumsum([0, *(len(part.rows) for part in parts)])
        self._places: dict[str, Places] = {}

    def _joined(self) -> Schema:
        """The fields of all files, and those that their names tell; what a file lacks is missing there."""
        if not self._parts:
            raise DamagedError("there is no Parquet file in it", path=self.path)
        pa = pyarrow()
        first = self._parts[0]
        # Of two files of ours one may have been written without the features of Hugging Face.
        schemas = [part.schema if len(self._parts) == 1 else plain_files(part.schema) for part in self._parts]
        try:
            arrow = schemas[0]
            if len(schemas) > 1:
                arrow = pa.unify_schemas(schemas, promote_options="permissive")
        except pa.ArrowException as error:
            raise SchemaError(
                f"the files have different columns: {first_line(error)}", path=self.path
            ) from None
        plain = [one.name for one in arrow if not (one.metadata or {}).get(KEY)]
        nulls = set().union(*(p.nulls([n for n in plain if n in p.schema.names]) for p in self._parts))
        try:
            gaps = set().union(*(p.gaps([n for n in plain if n in p.schema.names]) for p in self._parts))
            found = schema_of(arrow, self._sample(first, plain), nulls=nulls, gaps=gaps)
        except BatchplantError as error:
            raise error.at(path=first.path) from None
        fields: dict[str, Field] = dict(found)
        for name in fields:
            if any(name not in part.schema.names for part in self._parts):
                fields[name] = dataclasses.replace(fields[name], optional=True)
        return Schema(fields)

    def _sample(self, part: ParquetPart, names: Sequence[str]) -> Any:
        """A few rows of the columns that may be images."""
        kinds = {name: part.schema.field(name).type for name in names if name in part.schema.names}
        looked = [name for name, kind in kinds.items() if is_binary(kind) or is_file_struct(kind)]
        if not looked or not len(part.rows):
            return None
        try:
            return with_files(part.first_cells(looked, PROBED_ROWS), part.path, self.path)
        # Whoever reads it will meet the same damage, and say where.
        except Exception:
            return None

    def _part_numbers(self, units: I64) -> I64:
        found: I64 = np.searchsorted(self._firsts, units, side="right") - 1
        return found

    def _part_of(self, unit: int) -> tuple[ParquetPart, int]:
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
        places = self._places_of(field)
        units, _ = self._units_of(indices)
        unknown = places.starts[indices] == 0
        if unknown.any():
            places.find(units[unknown])
        start = places.starts[indices]
        if (start < 0).any():
            return None
        file = self._part_numbers(units).astype(np.int32)
        spans = Spans([part.path for part in self._parts], start, places.sizes[indices], file)
        return spans if len(self._parts) == 1 else spans.compact()

    def _has_text(self, field: str) -> bool:
        """Whether a column holds the paths of its images, not their bytes."""
        parts = [part for part in self._parts if field in part.schema.names]
        return any(is_text(part.schema.field(field).type) for part in parts)

    def _places_of(self, field: str) -> Places:
        if field not in self._places:
            parts = {n: part for n, part in enumerate(self._parts) if self._inside(part, [field])}
            self._places.setdefault(field, Places(field, parts, self._firsts, self._starts))
        return self._places[field]

    def _bytes_of(self, fields: Sequence[str]) -> int:
        inside = [(part, self._inside(part, fields)) for part in self._parts]
        groups = ((part, group, names) for part, names in inside for group in range(len(part.rows)))
        return sum(size for part, group, names in groups for _, size in part.runs(group, names))

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        images = [name for name in fields if isinstance(self.schema[name], Image)]
        if not images or len(indices) > FEW * len(np.unique(self._units_of(indices)[0])):
            return super()._read(indices, fields)
        cells = {name: self._spans(name, indices) for name in images}
        rest = [name for name in fields if cells.get(name) is None]
        found = super()._read(indices, rest) if rest else Columns()
        found.update((name, self._copied(spans)) for name, spans in cells.items() if spans is not None)
        return Columns((name, found[name]) for name in fields)

    def _copied(self, spans: Spans) -> Ragged:
        """Cells from where they lie."""
        offsets = starts_of(spans.size)
        data = np.empty(offsets[-1], np.uint8)
        parts = {part.path: part for part in self._parts}
        for number, path in enumerate(spans.files):
            rows = np.flatnonzero(spans.file == number)
            parts[path].copied(spans.start[rows], spans.size[rows], data, offsets[rows])
        return Ragged(data, offsets)

    def _known(self, field: str, indices: I64) -> Spans | None:
        places = self._places.get(field)
        return None if places is None or not places.starts[indices].all() else self._spans(field, indices)

    def _unit_runs(self, unit: int, fields: Sequence[str]) -> list[tuple[str, int, int]]:
        part, group = self._part_of(unit)
        return [(part.path, *run) for run in part.runs(group, self._inside(part, fields))]

    def _comes_from(self, fields: Sequence[str]) -> Source | None:
        """All files of a folder; one that lies elsewhere is what the reader was not made with."""
        files = [Entry(part.path, part.size, part.tag) for part in self._parts]
        if [one.name for one in files] == [self.path]:
            return super()._comes_from(fields)
        if not all(one.tag for one in files):
            return None
        return Whole(self.path, files, state={}, options=self._made_with[1])

    def _row_runs(self, unit: int, rows: I64, fields: Sequence[str]) -> list[tuple[str, int, int]]:
        part, group = self._part_of(unit)
        return [(part.path, *run) for run in part.row_runs(group, self._inside(part, fields), rows)]

    def _inside(self, part: ParquetPart, fields: Sequence[str]) -> list[str]:
        """The fields that are columns of a file."""
        return [name for name in fields if name in part.schema.names and name not in part.values]

    def _file(self, number: int, fields: Sequence[str]) -> File:
        part = self._parts[number]
        inside = self._inside(part, list(self.schema))
        fixed = {
            name: cell_bounds(self.schema[name], _constant(self.schema[name], part.values.get(name), 1))
            for name in fields
            if name not in inside
        }
        return File(part, {name: name for name in inside}, fixed)

    def own_checks(self) -> tuple[str, ...]:
        return (CHECKED,)

    def facts(self) -> dict[str, Any]:
        used: set[str] = set()
        for part in self._parts[:1]:
            used = set(part.footer.codecs)
        found = {"files": len(self._parts)} if len(self._parts) != 1 else {}
        written = self._parts[0].footer.created_by if self._parts else ""
        return {
            **found,
            **super().facts(),
            "compression": ", ".join(sorted(used)) or "none",
            **({"written by": written} if written else {}),
        }

    def close(self) -> None:
        super().close()
        for part in self._parts:
            part.close()


def _constant(field: Field, value: Any, count: int) -> Column:
    """A column that holds one value."""
    one = encode_samples(Schema({"x": field}), [{"x": value}])
    return one.take(np.zeros(count, dtype=np.int64))["x"]


def open_parts(paths: Sequence[str], make: Callable[[str], ParquetPart]) -> list[ParquetPart]:
    """The files, several footers at a time."""
    if len(paths) < 2:
        return [make(path) for path in paths]
    with ThreadPoolExecutor(8, thread_name_prefix="batchplant-open") as pool:
        return list(pool.map(make, paths))
