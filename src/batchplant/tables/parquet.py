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

from ..codecs.arrow import KEY, from_arrow, pyarrow, schema_of
from ..codecs.arrow.infer import check_names
from ..codecs.arrow.types import is_file_struct
from ..codecs.cells import encode_samples
from ..columns import I64, Column, Columns
from ..errors import BatchplantError, DamagedError, SchemaError
from ..schema import Field, Schema
from ..storage import MappedSource, open_source
from .reader import TableReader

MAGIC = b"PAR1"
# No encoding keeps more rows in a byte; a file that says so is lying.
ROWS_PER_BYTE = 2**20


class ParquetPart:
    """One Parquet file. ``values``: of the columns that are not in it, such as those of its partition."""

    def __init__(self, path: str, values: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.values = dict(values or {})
        self._source = open_source(path)
        self._idle: list[Any] = []
        try:
            tail = self._source.view(max(0, self._source.size - 4), min(4, self._source.size)).tobytes()
            if self._source.size < 12 or tail != MAGIC:
                raise DamagedError("a Parquet file ends with PAR1; this is none, or it was cut short")
            file = self._open(None)
            self.metadata = file.metadata
            self.schema = file.schema_arrow
            # Names are decoded only when they are asked for.
            check_names(self.schema)
            self._leaves = _leaves_of(self.schema)
            self.rows = self._rows()
            self._idle.append(file)
        except BatchplantError as error:
            raise error.at(path=path) from None
        # The library raises what it likes on nonsense.
        except Exception as error:
            raise DamagedError(f"the footer cannot be read: {_first_line(error)}", path=path) from None

    def _open(self, metadata: Any) -> Any:
        pa = pyarrow()
        import pyarrow.parquet as pq

        source = self._source
        if isinstance(source, MappedSource):
            stream = pa.BufferReader(pa.py_buffer(source.view(0, source.size)))
        else:
            stream = pa.PythonFile(source.file(), mode="r")
        return pq.ParquetFile(stream, metadata=metadata)

    def _rows(self) -> I64:
        """The rows of every row group; numbers that contradict each other are damage."""
        metadata = self.metadata
        groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
        rows = np.array([group.num_rows for group in groups], dtype=np.int64)
        if sum(rows.tolist()) != metadata.num_rows or (rows < 0).any():
            raise DamagedError(f"the row groups do not add up to {metadata.num_rows} rows")
        if metadata.num_rows > self._source.size * ROWS_PER_BYTE:
            raise DamagedError(f"it promises {metadata.num_rows} rows in {self._source.size} bytes")
        for number, group in enumerate(groups):
            column = group.column(0) if group.num_columns else None
            # A list has at least one value, or a place where it would be.
            if column is not None and column.num_values < group.num_rows:
                raise DamagedError(
                    f"row group {number} has {column.num_values} values in {group.num_rows} rows"
                )
        return rows

    def load(self, group: int, names: Sequence[str]) -> Any:
        """These columns of a row group, as a table; no other is read."""
        # A ParquetFile is not for several threads at once.
        try:
            file = self._idle.pop()
        except IndexError:
            file = self._open(self.metadata)
        indices = [leaf for name in names for leaf in self._leaves[name]]
        table = file.reader.read_row_group(group, column_indices=indices, use_threads=True)
        self._idle.append(file)
        return table

    def nulls(self, names: Sequence[str]) -> set[str]:
        """The columns among these that may have missing values, by the file's own statistics."""
        groups = [self.metadata.row_group(n) for n in range(self.metadata.num_row_groups)]
        return {name for name in names if any(self._may_miss(group, name) for group in groups)}

    def _may_miss(self, group: Any, name: str) -> bool:
        if not self.schema.field(name).nullable:
            return False
        leaves = self._leaves[name]
        kind = self.schema.field(name).type
        if is_file_struct(kind):
            leaves = leaves[[one.name for one in kind].index("bytes") :][:1]
        for leaf in leaves:
            found = group.column(leaf).statistics
            if found is None or not found.has_null_count or found.null_count:
                return True
        return False

    @property
    def size(self) -> int:
        return self._source.size

    def close(self) -> None:
        self._idle.clear()
        self._source.close()


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__


def _leaves_of(schema: Any) -> dict[str, list[int]]:
    """The columns of the file that each column of the table is made of."""
    found: dict[str, list[int]] = {}
    first = 0
    for field in schema:
        count = _leaf_count(field.type)
        found[field.name] = list(range(first, first + count))
        first += count
    return found


def _leaf_count(kind: Any) -> int:
    pa = pyarrow()
    if isinstance(kind, pa.BaseExtensionType):
        return _leaf_count(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return 1
    return sum(_leaf_count(kind.field(n).type) for n in range(kind.num_fields)) if kind.num_fields else 1


class PartsReader(TableReader):
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
        self._firsts = np.cumsum([0, *(len(part.rows) for part in parts)])

    def _joined(self) -> Schema:
        """The fields of all files, and those that their names tell; what a file lacks is missing there."""
        if not self._parts:
            raise DamagedError("there is no Parquet file in it", path=self.path)
        pa = pyarrow()
        first = self._parts[0]
        schemas = [part.schema for part in self._parts]
        try:
            arrow = schemas[0]
            if len(schemas) > 1:
                arrow = pa.unify_schemas(schemas, promote_options="permissive")
        except pa.ArrowException as error:
            raise SchemaError(
                f"the files have different columns: {_first_line(error)}", path=self.path
            ) from None
        plain = [one.name for one in arrow if not (one.metadata or {}).get(KEY)]
        nulls = set().union(*(p.nulls([n for n in plain if n in p.schema.names]) for p in self._parts))
        try:
            found = schema_of(arrow, self._sample(first, plain), nulls=nulls)
        except BatchplantError as error:
            raise error.at(path=first.path) from None
        fields: dict[str, Field] = dict(found)
        for name in fields:
            if any(name not in part.schema.names for part in self._parts):
                fields[name] = dataclasses.replace(fields[name], optional=True)
        return Schema(fields)

    def _sample(self, part: ParquetPart, names: Sequence[str]) -> Any:
        """A few rows of the columns that may be pictures."""
        pa = pyarrow()
        kinds = [part.schema.field(name).type for name in names if name in part.schema.names]
        looked = [
            name
            for name, kind in zip((n for n in names if n in part.schema.names), kinds, strict=True)
            if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_struct(kind)
        ]
        if not looked or not len(part.rows):
            return None
        try:
            return part.load(0, looked).slice(0, 16)
        # Whoever reads it will meet the same damage, and say where.
        except Exception:
            return None

    def _part_of(self, unit: int) -> tuple[ParquetPart, int]:
        number = int(np.searchsorted(self._firsts, unit, side="right")) - 1
        return self._parts[number], unit - int(self._firsts[number])

    def _path_of(self, unit: int) -> str:
        return self._part_of(unit)[0].path

    def _load(self, unit: int, fields: Sequence[str]) -> Columns:
        part, group = self._part_of(unit)
        inside = [name for name in fields if name in part.schema.names and name not in part.values]
        count = int(part.rows[group])
        columns = from_arrow(self.schema, inside, part.load(group, inside)) if inside else Columns()
        for name in fields:
            if name not in columns:
                columns[name] = _constant(self.schema[name], part.values.get(name), count)
        return Columns((name, columns[name]) for name in fields)

    def facts(self) -> dict[str, Any]:
        used: set[str] = set()
        for part in self._parts[:1]:
            if part.metadata.num_row_groups:
                group = part.metadata.row_group(0)
                used = {group.column(n).compression.lower() for n in range(group.num_columns)}
        found = {"files": len(self._parts)} if len(self._parts) != 1 else {}
        written = self._parts[0].metadata.created_by if self._parts else None
        return {
            **found,
            **super().facts(),
            "compression": ", ".join(sorted(used)).replace("uncompressed", "none") or "none",
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
