"""Iceberg: Parquet files, manifests that list them, and a metadata file for every state of the table.

The package pyiceberg reads and writes the metadata; the rows are read from the files themselves, row group by
row group. A table that we write has its catalog, an SQLite file, in its own folder.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...codecs import arrow
from ...codecs.scalars import unfit_rows
from ...data.writer import WriteOptions
from ...errors import BatchplantError, EncodeError, ExistsError, OptionError
from ...schema import EVERY_KIND, Schema
from ...schema.columns import Columns
from ...storage import Partial, is_remote, join, tree
from ...storage.uploads import remove_all
from ..base.format import Capabilities, Format, Probe
from ..base.lake import (
    Compacted,
    LakeWriter,
    Progress,
    State,
    Upkeep,
    Vacuumed,
    check_same_fields,
    conflict,
    count,
    stored_schema,
    stored_size,
    wrapped,
)
from .reader import IcebergReader, states_of
from .table import (
    CATALOG,
    FIELDS,
    METADATA,
    NAME,
    SCHEME,
    has_keys,
    library,
    local,
    named,
    open_catalog,
    reached_by,
    transaction,
)

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.typedef import Record

# -- writing ------------------------------------------------------------------------------------------
# Writing Iceberg: Parquet files first, then one commit to the catalog that makes them count.

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
        from .files import folder_catalog

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
        from .files import writable

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
        from .files import TableFiles, commit_files

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


# -- upkeep -------------------------------------------------------------------------------------------
# The upkeep of Iceberg tables: pyiceberg commits, and which files nobody needs is found out here.

# Of files that were put together, before compression.
ROW_GROUP = 32 << 20
# What a table's folders hold that is its own; whatever else lies there is somebody's.
ENDINGS = (".parquet", ".orc", ".avro", ".puffin", ".stats", ".metadata.json")


class IcebergUpkeep(Upkeep):
    """``catalog``: the name of a pyiceberg catalog, or its properties; the path is then the table's name."""

    state = "snapshot"

    def __init__(self, path: str, *, catalog: str | Mapping[str, str] | None = None) -> None:
        library()
        path, catalog = named(path, catalog)
        super().__init__(path)
        self._catalog = None if catalog is None else open_catalog(catalog)

    @contextlib.contextmanager
    def _open(self) -> Iterator[Table]:
        """The table, to be changed."""
        from .files import writable

        if self._catalog is None and is_remote(self.path):
            raise OptionError(
                "a table in a bucket is changed through its catalog (catalog=…, or iceberg://CATALOG/TABLE)",
                path=self.path,
            )
        with writable(self.path, self._catalog) as table:
            yield table

    def history(self) -> list[State]:
        from .files import from_folder

        with wrapped(self.path):
            table = from_folder(self.path) if self._catalog is None else self._catalog.load_table(self.path)
            return states_of(table)

    def restore(self, state: State) -> None:
        with self._open() as table:
            if table.metadata.current_snapshot_id != state.id:
                with table.manage_snapshots() as change:
                    change.set_current_snapshot(snapshot_id=state.id)

    # -- vacuum ----------------------------------------------------------------------------------------

    def vacuum(self, older_than: datetime.timedelta, *, dry_run: bool) -> Vacuumed:
        from .files import names_of

        cutoff = int(time.time() * 1000 - older_than / datetime.timedelta(milliseconds=1))
        with self._open() as table:
            metadata = table.metadata
            expired = _expired(metadata, cutoff)
            remaining = [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id not in expired]
            needed = {_place(table, name) for snapshot in remaining for name in names_of(table, snapshot)}
            needed |= {_place(table, name) for name in _described(table)}
            unneeded: set[str] = set()
            for snapshot in metadata.snapshots:
                if snapshot.snapshot_id in expired:
                    # One whose files are gone in part has nothing more to lose.
                    with contextlib.suppress(BatchplantError):
                        unneeded.update(_place(table, name) for name in names_of(table, snapshot))
            unneeded = (unneeded | set(_strays(table, cutoff))) - needed
            # Files outside of the table's own folder may belong to others.
            files = sorted(file for file in unneeded if file.startswith(_root(table) + "/"))
            size = sum(stored_size(reached_by(table, file)) for file in files)
            if not dry_run:
                if expired:
                    with table.maintenance.expire_snapshots() as expire:
                        expire.by_ids(sorted(expired))
                # From here on no state has them.
                _remove(table, files)
        return Vacuumed(files, size, sorted(expired), not dry_run)

    # -- compact ---------------------------------------------------------------------------------------

    def compact(self, file_size: int, *, dry_run: bool, progress: Progress | None) -> Compacted:
        with self._open() as table:
            groups, unmerged = _small(table, file_size)
            files = list(itertools.chain.from_iterable(groups))
            size = sum(file.file_size_in_bytes for file in files)
            if dry_run or not files:
                merged = sum(_files_of(group, file_size) for group in groups)
                return Compacted(len(files), merged, size, unmerged, not dry_run)
            added = _rewrite(table, groups, file_size, progress)
        return Compacted(len(files), added, size, unmerged, True)


def _expired(metadata: TableMetadata, cutoff: int) -> set[int]:
    """The snapshots that nobody can have opened since a time as the latest state, and that no ref names."""
    ended: dict[int, int] = {}
    for snapshot in metadata.snapshots:
        if snapshot.parent_snapshot_id is not None:
            ended[snapshot.parent_snapshot_id] = max(
                ended.get(snapshot.parent_snapshot_id, 0), snapshot.timestamp_ms
            )
    log = metadata.snapshot_log
    for snapshot, following in itertools.pairwise(log):
        ended[snapshot.snapshot_id] = max(ended.get(snapshot.snapshot_id, 0), following.timestamp_ms)
    heads = {ref.snapshot_id for ref in metadata.refs.values()} | {metadata.current_snapshot_id}
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    usual = count(metadata.properties.get("history.expire.min-snapshots-to-keep")) or 1
    for ref in metadata.refs.values():
        # As many of a branch as the table says, whatever their age.
        snapshot = by_id.get(ref.snapshot_id)
        for _ in range(ref.min_snapshots_to_keep or usual):
            if snapshot is None:
                break
            heads.add(snapshot.snapshot_id)
            snapshot = by_id.get(snapshot.parent_snapshot_id)
    return {
        number
        for number, snapshot in by_id.items()
        if number not in heads and max(snapshot.timestamp_ms, ended.get(number, 0)) < cutoff
    }


def _described(table: Table) -> Iterator[str]:
    """Metadata that is kept: the current one, those that it lists, statistics."""
    metadata = table.metadata
    yield table.metadata_location
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    statistics = (*metadata.statistics, *metadata.partition_statistics)
    yield from (entry.statistics_path for entry in statistics)


def _place(table: Table, name: str) -> str:
    """Normalize the location of a file."""
    return local(str(getattr(table.io, "place", str)(name)))


def _root(table: Table) -> str:
    return _place(table, f"{table.location()}/x").removesuffix("/x")


def _strays(table: Table, cutoff: int) -> Iterator[str]:
    """Files of an age that no snapshot may have ever had, of writers that were killed; on a disk only."""
    root = _root(table)
    if is_remote(root):
        return
    for folder in ("data", METADATA):
        top = os.path.join(root, folder)
        for name, _ in tree.walk(top):
            path = os.path.join(top, name)
            with contextlib.suppress(OSError):
                about = os.lstat(path)
                if name.endswith(ENDINGS) and about.st_mtime * 1000 < cutoff:
                    yield path


def _remove(table: Table, files: list[str]) -> None:
    if files and is_remote(files[0]) and not has_keys(table):
        # The library would leave a folder in the place of each.
        remove_all([reached_by(table, file) for file in files])
        return
    for file in files:
        # Another process is at it, too.
        with contextlib.suppress(FileNotFoundError):
            table.io.delete(file)


def _small(table: Table, file_size: int) -> tuple[list[list[DataFile]], int]:
    """For each partition the files that can be put together; how many small ones cannot."""
    from .files import files_of

    snapshot = table.current_snapshot()
    if snapshot is None:
        return [], 0
    files, deletes = files_of(table, snapshot)
    # Rows are deleted from these by other files, which would not know the new ones.
    with wrapped(table.location()):
        planned = table.scan(snapshot_id=snapshot.snapshot_id).plan_files() if deletes else ()
        marked = {task.file.file_path for task in planned if task.delete_files}
    groups: dict[Record, list[DataFile]] = {}
    unmerged = 0
    for _, file in files:
        if file.file_size_in_bytes >= file_size:
            continue
        if file.file_path in marked or file.spec_id != table.metadata.default_spec_id:
            unmerged += 1
        else:
            groups.setdefault(file.partition, []).append(file)
    return [group for group in groups.values() if _files_of(group, file_size) < len(group)], unmerged


def _files_of(group: list[DataFile], file_size: int) -> int:
    """Number of files of this size hold the same."""
    size: int = sum(file.file_size_in_bytes for file in group)
    return max(1, -(-size // file_size))


def _rewrite(table: Table, groups: list[list[DataFile]], file_size: int, progress: Progress | None) -> int:
    """The rows of these files in fewer ones, as one transaction; how many."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
    from pyiceberg.table import FileScanTask

    from .files import TableFiles

    schema = table.schema()
    scan = ArrowScan(table.metadata, table.io, schema, AlwaysTrue())
    out = TableFiles(
        table, table.metadata, schema_to_pyarrow(schema), row_group=ROW_GROUP, file_size=file_size,
        compression="zstd", stored=True,
    )  # fmt: skip
    total, done = sum(map(len, groups)), 0
    change = table.transaction()
    with out:
        for group in groups:
            for file in group:
                out.add(scan.to_table([FileScanTask(file)]))
                done += 1
                if progress is not None:
                    progress(done, total)
        added = out.finish()
        with change.update_snapshot().overwrite() as update:
            for file in itertools.chain.from_iterable(groups):
                update.delete_data_file(file)
            for file in added:
                update.append_data_file(file)
    out.commit(change)
    return len(added)


# -- format -------------------------------------------------------------------------------------------


def sniff(probe: Probe) -> bool:
    if f"{METADATA}/" not in probe.names:
        return False
    return any(name.endswith(".metadata.json") for name in tree.names(join(probe.path, METADATA)))


FORMAT = Format(
    name="iceberg",
    title="Apache Iceberg",
    suffixes=(".iceberg",),
    spec="https://iceberg.apache.org/spec/",
    reader=IcebergReader,
    writer=IcebergWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    folder=True,
    extra="iceberg",
    scheme=SCHEME,
    upkeep=IcebergUpkeep,
    notes="any snapshot or time; append and overwrite as one transaction; any pyiceberg catalog",
    can=Capabilities(
        random_access=True,
        compression=("snappy", "gzip", "brotli", "lz4", "zstd"),
        compressed="page",
        column_pruning=True,
        concurrent_writers=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        ecosystem=("Spark", "Trino", "Flink", "pyiceberg", "DuckDB"),
    ),
)
