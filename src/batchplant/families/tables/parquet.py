"""Parquet files, read row group by row group; many of them as one dataset.

``PartsReader`` is what formats build on whose data are Parquet files: a plain file, a folder with a partition
in every name, the files of a version of a Delta table.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ... import limits
from ...codecs.arrow import KEY, from_arrow, pyarrow, schema_of
from ...codecs.arrow.files import is_missing, with_files
from ...codecs.arrow.infer import check_names, has_gaps, is_whole_list
from ...codecs.arrow.sizes import plain_size
from ...codecs.arrow.types import is_file_struct
from ...codecs.cells import encode_samples
from ...columns import I64, Column, Columns, Spans, spans_of
from ...errors import BatchplantError, DamagedError, SchemaError
from ...schema import Field, Schema
from ...storage import MappedSource, open_source
from .footer import Footer
from .held import Held
from .pages import Claim, claim_of
from .reader import TableReader

# What `verify` calls the checksums of Parquet's pages.
CHECKED = "CRC of every page that has one"


class ParquetPart:
    """One Parquet file. ``values``: of the columns that are not in it, such as those of its partition."""

    def __init__(self, path: str, values: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.values = dict(values or {})
        self._source = open_source(path)
        self._idle: list[Any] = []
        self._claims: dict[tuple[int, int], Claim] = {}
        try:
            # Before the library: it may end the process at a damaged one.
            self.footer = Footer(self._source)
            file = self._open(None)
            self._metadata = file.metadata
            self.schema = file.schema_arrow
            # Names are decoded only when they are asked for.
            check_names(self.schema)
            self._leaves = _leaves_of(self.schema)
            if sum(map(len, self._leaves.values())) != len(self.footer.leaves):
                raise DamagedError("the schema in its metadata has other columns than the file")
            self.rows = np.array([group.rows for group in self.footer.groups], dtype=np.int64)
            self._idle.append(file)
        except BatchplantError as error:
            raise error.at(path=path) from None
        # The library raises what it likes on nonsense.
        except Exception as error:
            raise DamagedError(f"the footer cannot be read: {_first_line(error)}", path=path) from None

    def _open(self, metadata: Any, held: Held | None = None, dictionaries: Sequence[str] = ()) -> Any:
        pa = pyarrow()
        import pyarrow.parquet as pq

        source = self._source
        if isinstance(source, MappedSource):
            stream = pa.BufferReader(pa.py_buffer(source.view(0, source.size)))
        else:
            stream = pa.PythonFile(held or source.file(), mode="r")
        return pq.ParquetFile(
            stream,
            metadata=metadata,
            read_dictionary=dictionaries or None,
            page_checksum_verification=True,
        )

    def load(self, group: int, names: Sequence[str]) -> Any:
        """These columns of a row group, as a table; no other is read."""
        leaves = {leaf: name for name in names for leaf in self._leaves[name]}
        held = None if isinstance(self._source, MappedSource) else self._fetched(group, list(leaves))
        claims = {leaf: self._claim(group, leaf, name, held) for leaf, name in leaves.items()}
        repeated = {leaves[leaf]: leaf for leaf, claim in claims.items() if claim.by_dictionary}
        if repeated or held is not None:
            paths = [".".join(self.footer.leaves[leaf].path) for leaf, one in claims.items() if one[1]]
            file = self._open(self._metadata, held, paths)
            table = file.reader.read_row_group(group, column_indices=list(leaves), use_threads=True)
            return self._plain(group, table, repeated)
        # A ParquetFile is not for several threads at once.
        try:
            file = self._idle.pop()
        except IndexError:
            file = self._open(self._metadata)
        table = file.reader.read_row_group(group, column_indices=list(leaves), use_threads=True)
        self._idle.append(file)
        return table

    def _fetched(self, group: int, leaves: Sequence[int]) -> Held:
        """The bytes of these columns, which the headers of pages and the library are then read from."""
        runs = np.array(self._runs(group, leaves), np.int64).reshape(-1, 2)
        held = Held(self._source)
        held.fetch(runs[:, 0], runs[:, 1])
        return held

    def _runs(self, group: int, leaves: Sequence[int]) -> list[tuple[int, int]]:
        chunks = [self.footer.groups[group].chunks[leaf] for leaf in leaves]
        return [(one.start, one.size) for one in chunks if one is not None]

    def runs(self, group: int, names: Sequence[str]) -> list[tuple[int, int]]:
        """Start and size of what reading these columns of a row group takes."""
        return self._runs(group, [leaf for name in names for leaf in self._leaves[name]])

    def _claim(self, group: int, leaf: int, name: str, held: Held | None) -> Claim:
        """What a column unpacks to; DamagedError where that is too much."""
        known = self._claims.get((group, leaf))
        if known is not None and held is None:
            return known
        chunk = self.footer.groups[group].chunks[leaf]
        if chunk is None:
            raise SchemaError("this column is encrypted", field=name)
        view = (held or self._source).view(chunk.start, chunk.size)
        try:
            found = claim_of(view, chunk, self.footer.leaves[leaf])
            limits.check("its column", found.size, chunk.size)
        except DamagedError as error:
            said = f"row group {group} cannot be read: {error.message}"
            offset = chunk.start if error.offset is None else error.offset
            raise DamagedError(said, field=name, offset=offset) from None
        self._claims[group, leaf] = found
        return found

    def _plain(self, group: int, table: Any, repeated: Mapping[str, int]) -> Any:
        """The table with its own types, where columns were read as numbers and a dictionary."""
        for name, leaf in repeated.items():
            column, chunk = table.column(name), self.footer.groups[group].chunks[leaf]
            assert chunk is not None
            try:
                limits.check(f"column {name} of row group {group}", plain_size(column), chunk.size)
            except DamagedError as error:
                raise error.at(field=name, offset=chunk.start) from None
            number = table.schema.get_field_index(name)
            field = self.schema.field(name)
            table = table.set_column(number, field, column.cast(field.type))
        return table

    def nulls(self, names: Sequence[str]) -> set[str]:
        """The columns among these that may have missing values, by the file's own statistics."""
        return {name for name in names if self._may_miss(name)}

    def _may_miss(self, name: str) -> bool:
        if not self.schema.field(name).nullable:
            return False
        leaves = self._leaves[name]
        kind = self.schema.field(name).type
        if is_file_struct(kind):
            leaves = leaves[[one.name for one in kind].index("bytes") :][:1]
        chunks = [group.chunks[leaf] for group in self.footer.groups for leaf in leaves]
        # Nobody counted them where the number is None.
        some = any(chunk is None or chunk.nulls != 0 for chunk in chunks)
        return some and not (is_file_struct(kind) and self._has_paths(name, leaves[0]))

    def _has_paths(self, name: str, leaf: int) -> bool:
        """Whether files that lack their bytes, which are in this leaf, have a path."""
        try:
            for number, group in enumerate(self.footer.groups):
                chunk = group.chunks[leaf]
                lack = chunk is None or chunk.nulls != 0
                if lack and is_missing(self.load(number, [name]).column(name)):
                    return False
        # Whoever reads it will meet the same damage, and say where.
        except Exception:
            return False
        return True

    def gaps(self, names: Sequence[str]) -> set[str]:
        """The lists of whole numbers inside of which some are missing, as the first row group shows in which
        there may be any."""
        found = set()
        for name in names:
            [leaf, *_] = self._leaves[name]
            chunks = [group.chunks[leaf] for group in self.footer.groups]
            first = next(
                (n for n, chunk in enumerate(chunks) if chunk is not None and chunk.nulls != 0), None
            )
            if first is None or not is_whole_list(self.schema.field(name).type):
                continue
            # Whoever reads it will meet the same damage, and say where.
            with contextlib.suppress(Exception):
                if has_gaps(self.load(first, [name]).column(name)):
                    found.add(name)
        return found

    def encrypted(self) -> list[str]:
        """The columns that nobody can read without a key."""
        locked = set(self.footer.encrypted)
        return [name for name, leaves in self._leaves.items() if locked.intersection(leaves)]

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
            return with_files(part.load(0, looked).slice(0, 16), part.path, self.path)
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
        columns = Columns()
        if inside:
            found = with_files(part.load(group, inside), part.path, self.path)
            columns = from_arrow(self.schema, inside, found)
        for name in fields:
            if name not in columns:
                columns[name] = _constant(self.schema[name], part.values.get(name), count)
        return Columns((name, columns[name]) for name in fields)

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        """The columns of the row groups."""
        runs = []
        for unit in np.unique(self._units_of(indices)[0]).tolist():
            part, group = self._part_of(unit)
            inside = [name for name in fields if name in part.schema.names and name not in part.values]
            runs += [(part.path, *run) for run in part.runs(group, inside)]
        return spans_of(runs)

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
