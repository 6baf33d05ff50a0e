"""Writing Iceberg: Parquet files first, then one commit to the catalog that makes them count."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...codecs import arrow
from ...codecs.scalars import unfit_rows
from ...data.writer import WriteOptions
from ...errors import BatchplantError, EncodeError, ExistsError, OptionError
from ...schema import Schema
from ...schema.columns import Columns
from ...storage import Partial, is_remote
from ..base.lake import LakeWriter, check_same_fields, conflict, stored_schema, wrapped
from .reader import IcebergReader
from .table import CATALOG, FIELDS, METADATA, NAME, library, named, open_catalog, transaction

# From the first to before the last.
YEARS = 1, 10_000
# A property of snapshots.
TRANSACTION = "batchplant.transaction"


class IcebergWriter(LakeWriter):
    """``mode``: ``create`` a table; ``append`` rows to one; ``overwrite`` its rows, the older snapshots stay.

    The last two are one transaction: all rows appear at once, or none. ``partition_by``: fields by whose
    values the files of a new table are told apart. ``catalog``: the name of a pyiceberg
    catalog, or its properties; the path is then the table's name in it. Without one, the catalog is an SQLite
    file in the table's folder. ``row_group`` and ``file_size``: bytes before compression.
    """

    title = "Iceberg"
    replaces_fields = False

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        mode: str = "create",
        partition_by: str | Iterable[str] = (),
        catalog: str | Mapping[str, str] | None = None,
        compression: str = "zstd",
        row_group: int = 32 << 20,
        file_size: int = 512 << 20,
    ) -> None:
        library()
        path, catalog = named(path, catalog)
        self._given = catalog
        self._catalog = None if catalog is None else open_catalog(catalog)
        self._name = NAME if catalog is None else path
        super().__init__(
            path,
            schema,
            options,
            mode=mode,
            partition_by=partition_by,
            compression=compression,
            row_group=row_group,
            file_size=file_size,
        )

    def _open_partial(self) -> Partial:
        if self._catalog is not None and self.mode == "create" and self._exists():
            raise ExistsError("the catalog has this table; use mode append or overwrite", path=self.path)
        if self._catalog is None and self.mode != "create" and is_remote(self.path):
            raise OptionError(
                "rows are added to a table in a bucket through a catalog (catalog=…): only that can tell two "
                "writers apart",
                path=self.path,
            )
        return super()._open_partial()

    def _described(self) -> Any:
        return stored_schema(self.schema, small=False, zone=None)

    def _exists(self) -> bool:
        if self._catalog is not None:
            with wrapped(self.path):
                return bool(self._catalog.table_exists(self._name))
        if os.path.exists(os.path.join(self.path, CATALOG)):
            return True
        if os.path.isdir(os.path.join(self.path, METADATA)):
            raise OptionError(
                "the table belongs to a catalog that is not in its folder; name it with catalog",
                path=self.path,
            )
        return False

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        problems = super()._unfit(columns)
        for name, field in self.schema.items():
            # The library notes the least and the most of a column, in Python's calendar.
            for row in unfit_rows(field, columns[name], YEARS):
                problems.setdefault(
                    row, EncodeError("Iceberg's library knows the years 1 to 9999", field=name)
                )
        return problems

    def _existing(self) -> tuple[Schema, Any, list[str]]:
        with IcebergReader(self.path, catalog=self._given) as reader:
            current = reader._table.current_snapshot()
            keys = [field.name for field in reader._table.spec().fields]
            return reader.schema, None if current is None else current.snapshot_id, keys

    def _is_committed(self, id: str) -> bool:
        with IcebergReader(self.path, catalog=self._given) as reader:
            snapshots = reader._table.metadata.snapshots
            return any(snapshot.summary and snapshot.summary.get(TRANSACTION) == id for snapshot in snapshots)

    # -- commits ---------------------------------------------------------------------------------------

    def _finish(self) -> str | None:
        if self._catalog is None:
            return super()._finish()
        if self._exists():
            self._commit_patiently()
        else:
            self._make(self._catalog, None)
        return None

    def _create(self, folder: Path) -> None:
        from .folder import folder_catalog

        location = str(self.path) if is_remote(self.path) else f"file://{os.path.abspath(self.path)}"
        with (
            transaction(self.path),
            contextlib.closing(folder_catalog(str(folder), location)) as catalog,
        ):
            self._make(catalog, location)

    def _make(self, catalog: Any, location: str | None) -> None:
        from pyiceberg.catalog import Catalog

        with transaction(self.path):
            catalog.create_namespace_if_not_exists(Catalog.namespace_from(self._name))
            change = catalog.create_table_transaction(self._name, self._arrow, location=location)
            if self._keys:
                with change.update_spec() as spec:
                    for key in self._keys:
                        spec.add_identity(key)
            self._add(change)

    def _commit(self) -> None:
        from .folder import writable

        with writable(self.path, self._catalog) as table:
            self._change(table)

    def _change(self, table: Any) -> None:
        from pyiceberg.expressions import AlwaysTrue

        current = table.current_snapshot()
        if self.mode == "overwrite" and (None if current is None else current.snapshot_id) != self._base:
            raise conflict(self.path)
        change = table.transaction()
        fresh = check_same_fields(self._existing()[0], self.schema)
        if fresh:
            added = [self._arrow.field(name).with_nullable(True) for name in fresh]
            with change.update_schema() as update:
                update.union_by_name(arrow.pyarrow().schema(added))
        if self.mode == "overwrite":
            change.delete(AlwaysTrue())
        self._add(change, fresh)

    def _add(self, change: Any, fresh: list[str] | None = None) -> None:
        """Write the rows, and commit them; ``fresh``: the fields that the table did not have (None: all)."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        pa = arrow.pyarrow()
        table, columns = change._table, change.table_metadata.schema()
        if fresh is None or fresh:
            stored = change.table_metadata.properties.get(FIELDS, "{}")
            descriptions = {} if fresh is None else json.loads(stored)
            for name in self.schema if fresh is None else fresh:
                field = self.schema[name].to_json() | ({"optional": True} if fresh else {})
                descriptions[str(columns.find_field(name).field_id)] = field
            change.set_properties({FIELDS: json.dumps(descriptions, ensure_ascii=False)})
        numbered = schema_to_pyarrow(columns)
        described = pa.schema([numbered.field(name) for name in self._arrow.names])
        # It imports pyiceberg.
        from .datafiles import TableFiles, commit_files

        files = TableFiles(
            table, change.table_metadata, described, row_group=self._row_group, file_size=self._file_size,
            compression=self._compression,
        )  # fmt: skip
        with files:
            for rows in self._row_groups():
                files.add(rows)
            if added_files := files.finish():
                commit_files(change, added_files, {TRANSACTION: self._id})
        files.commit(change)
