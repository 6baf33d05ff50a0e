"""Reading Iceberg: which files a snapshot has, and what a field is called in each."""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ...codecs import arrow
from ...data.expressions import Condition
from ...errors import DamagedError, NotFoundError, OptionError, UnknownFormatError
from ...schema import Field
from ...storage import like, parse
from ...storage.urls import options_at
from ..base.lake import LakeReader, Part, State, as_time, count, first_line, shown, utc, wrapped
from .table import FIELDS, has_keys, library, local, named, open_catalog, reached_by

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema as TableSchema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.snapshots import Snapshot

    from ..base.lake import ColumnStats

ID = b"PARQUET:field_id"


class IcebergReader(LakeReader):
    """Reads Iceberg tables: the latest state, or an older one: a ``snapshot``, a ``ref`` (branch or tag), or
    the one that was current ``at`` a time in ISO 8601.

    A table of a catalog that pyiceberg's configuration names is ``iceberg://CATALOG/NAMESPACE.TABLE``.
    ``catalog``: the name of such a one, or its properties (``name``: what it is called, where its database
    keeps several); the path is then the table's name in it.
    ``schema``: kinds for some fields, in place of those that were found. ``schema_id``: the number of the
    table's own schema that is used; by default the one that the snapshot had, and for the latest state the
    current one. ``outside``: also read files that do not lie in the table's folder. ``where``: leave out
    files in which this cannot be true, as ``open`` does.
    """

    def __init__(
        self,
        path: str,
        *,
        snapshot: int | None = None,
        at: str | datetime.datetime | None = None,
        ref: str | None = None,
        catalog: str | Mapping[str, str] | None = None,
        schema: Mapping[str, Field] | None = None,
        schema_id: int | None = None,
        outside: bool = False,
        where: Condition | None = None,
    ) -> None:
        if sum(choice is not None for choice in (snapshot, at, ref)) > 1:
            raise OptionError("choose a snapshot, a ref or a time", path=path)
        self._reach = options_at(path)
        path, catalog = named(path, catalog)
        self.path = path if catalog is not None else like(path, path.removeprefix("file://"))
        self._table = _load(self.path, catalog, outside)
        with wrapped(self.path):
            chosen = self._choose(snapshot, at, ref)
            latest = snapshot is None and at is None and ref is None
            self._fields = self._schema_at(None if latest else chosen, schema_id)
            self._facts = self._history(chosen)
            parts = list(self._parts_of(chosen))
            described = self._describe()
        self._options = {
            "snapshot": snapshot, "at": at, "ref": ref, "catalog": catalog, "schema": schema,
            "schema_id": schema_id, "outside": outside, "where": where,
        }  # fmt: skip
        self._reopen = functools.partial(IcebergReader, path, **self._options)
        # Workers that unpickle this reader must see the same rows, whatever was committed meanwhile.
        pinned = {"snapshot": None if chosen is None else chosen.snapshot_id, "at": None, "ref": None}
        fields = {"schema_id": self._fields.schema_id}
        self._init_args = (path,), {**self._options, **({} if chosen is None else pinned), **fields}
        self._state = {"table": str(self._table.metadata.table_uuid), **pinned, **fields}
        self._set_parts(parts, described, schema, where)

    def _choose(
        self, snapshot: int | None, at: str | datetime.datetime | None, ref: str | None
    ) -> Snapshot | None:
        table = self._table
        if snapshot is not None:
            chosen = table.snapshot_by_id(int(snapshot))
        elif ref is not None:
            chosen = table.snapshot_by_name(ref)
        elif at is not None:
            chosen = table.snapshot_as_of_timestamp(round(as_time(at).timestamp() * 1000))
        else:
            return table.current_snapshot()
        if chosen is None:
            requested = next(choice for choice in (snapshot, ref, at) if choice is not None)
            raise OptionError(f"there is no snapshot {requested}", path=self.path)
        return chosen

    def _schema_at(self, snapshot: Snapshot | None, number: int | None) -> TableSchema:
        """An older snapshot has the fields that the table had then."""
        if number is None:
            number = None if snapshot is None else snapshot.schema_id
        if number is None:
            return self._table.schema()
        if number not in self._table.schemas():
            raise OptionError(f"the table has no schema {number}", path=self.path)
        return self._table.schemas()[number]

    def _describe(self) -> pa.Schema:
        """The Arrow schema of the table, our descriptions in its metadata."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        try:
            descriptions = parse(self._table.properties.get(FIELDS, "{}"))
        except ValueError:
            descriptions = {}
        described = schema_to_pyarrow(self._fields)
        fields = []
        for column, field in zip(self._fields.fields, described, strict=True):
            description = descriptions.get(str(column.field_id)) if isinstance(descriptions, dict) else None
            fields.append(field.with_metadata({arrow.KEY: json.dumps(description)} if description else None))
        return arrow.pyarrow().schema(fields)

    # -- files -----------------------------------------------------------------------------------------

    def _parts_of(self, snapshot: Snapshot | None) -> Iterator[Part]:
        from pyiceberg.manifest import FileFormat
        from pyiceberg.table import FileScanTask

        from .files import files_of

        if snapshot is None:
            return
        table = self._table
        files, deletes = files_of(table, snapshot)
        tasks = {task.file.file_path: task for task in self._plan(snapshot)} if deletes else {}
        by_library = self._needs_library()
        for _, file in files:
            task = tasks.get(file.file_path) or FileScanTask(file)
            path = self._place(file.file_path)
            if by_library or task.delete_files or file.file_format != FileFormat.PARQUET:
                scan = _Scan(table, self._fields, task)
                rows = len(scan(self._fields.fields[0].name)) if task.delete_files else file.record_count
                yield Part(path, rows, file.file_size_in_bytes, scan=scan)
            else:
                if file.record_count < 0:
                    raise DamagedError(f"a file of {file.record_count} rows", path=path)
                stats = functools.partial(self._stats, file)
                yield Part(path, file.record_count, file.file_size_in_bytes, stats=stats)

    def _stats(self, file: DataFile, name: str) -> ColumnStats:
        """Return the statistics of a field in a file, from its manifest."""
        from pyiceberg.conversions import from_bytes
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        field = self._fields.find_field(name)
        kind = schema_to_pyarrow(field.field_type)

        def bound(bounds: Mapping[int, bytes] | None) -> pa.Scalar:
            data = (bounds or {}).get(field.field_id)
            value = None if data is None else from_bytes(field.field_type, data)
            return arrow.pyarrow().scalar(value, kind)

        missing = (file.null_value_counts or {}).get(field.field_id)
        return bound(file.lower_bounds), bound(file.upper_bounds), missing

    def _place(self, location: str) -> str:
        path: str = getattr(self._table.io, "place", str)(location)
        if path.startswith("file:"):
            return local(path)
        return reached_by(self._table, path, self._reach)

    def _place_of_table(self) -> str:
        # What a table is called, only its catalog can tell.
        return self.path if self._options["catalog"] is None else self._place(self._table.location())

    def _plan(self, snapshot: Snapshot) -> Iterable[FileScanTask]:
        try:
            return self._table.scan(snapshot_id=snapshot.snapshot_id).plan_files()
        except (ValueError, NotImplementedError) as error:
            raise UnknownFormatError(f"its deleted rows are not read yet: {first_line(error)}") from None

    def _needs_library(self) -> bool:
        """True if a file does not tell by itself what it holds: nested fields that changed, defaults.

        Or only the catalog has the keys to it.
        """
        if has_keys(self._table):
            return True
        fields = self._fields.fields
        nested = any(field.field_type.is_struct or "struct<" in str(field.field_type) for field in fields)
        default = any(getattr(field, "initial_default", None) is not None for field in fields)
        return default or (nested and len(self._table.metadata.schemas) > 1)

    def _column_in(self, file: pa.Schema, part: Part, name: str) -> str | None:
        field_id = str(self._fields.find_field(name).field_id).encode()
        numbers = {(column.metadata or {}).get(ID): column.name for column in file}
        if None not in numbers:
            return numbers.get(field_id)
        # A file that was not written for this table: by the names that the table gives its columns.
        mapping = self._table.name_mapping()
        names = {name}
        if mapping is not None:
            names = {name for field in mapping if field.field_id == int(field_id) for name in field.names}
        return next((column.name for column in file if column.name in names), None)

    # -- what `info` shows -----------------------------------------------------------------------------

    def _history(self, chosen: Snapshot | None) -> dict[str, Any]:
        history: dict[str, Any] = {
            "table version": self._table.metadata.format_version,
            "snapshot": "none yet" if chosen is None else str(chosen.snapshot_id),
        }
        if not self._table.spec().is_unpartitioned():
            history["partitioned by"] = ", ".join(snapshot.name for snapshot in self._table.spec().fields)
        return history | shown(states_of(self._table), "snapshot")

    def facts(self) -> dict[str, object]:
        return {**super().facts(), **self._facts}


def states_of(table: Table) -> list[State]:
    """The snapshots, those that were current last first."""
    metadata = table.metadata
    names: dict[int, list[str]] = {}
    for name, ref in metadata.refs.items():
        names.setdefault(ref.snapshot_id, []).append(name)
    # A snapshot may become current again, by a rollback.
    when = {snapshot.snapshot_id: snapshot.timestamp_ms for snapshot in metadata.snapshot_log}
    states = []
    for snapshot in metadata.snapshots:
        summary, number = snapshot.summary, snapshot.snapshot_id
        operation = "unknown" if summary is None else summary.operation.value
        rows = None if summary is None else count(summary.get("added-records"))
        time = utc(max(snapshot.timestamp_ms, when.get(number, 0)))
        refs = tuple(sorted(names.get(number, ())))
        states.append(State(number, time, operation, rows, number == metadata.current_snapshot_id, refs))
    return sorted(states, key=lambda state: (state.at, state.current), reverse=True)


class _Scan:
    """One field of one file as pyiceberg reads it, without what was deleted."""

    def __init__(self, table: Table, schema: TableSchema, task: FileScanTask) -> None:
        self._table, self._schema, self._task = table, schema, task

    def __call__(self, name: str) -> pa.ChunkedArray:
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan

        columns = self._schema.select(name)
        table = ArrowScan(self._table.metadata, self._table.io, columns, AlwaysTrue()).to_table([self._task])
        return table.column(name)


def _load(path: str, catalog: str | Mapping[str, str] | None, outside: bool) -> Table:
    library()
    from pyiceberg.exceptions import NoSuchTableError

    from .files import from_folder

    if catalog is None:
        return from_folder(path, outside)
    opened = open_catalog(catalog)
    with wrapped(path):
        try:
            return opened.load_table(path)
        except NoSuchTableError:
            message = "the catalog has no such table"
            if not isinstance(catalog, str) and "name" not in catalog:
                message += (
                    '; one in an SQL database keeps them by its own name: give "name" with its properties'
                )
            raise NotFoundError(message) from None
