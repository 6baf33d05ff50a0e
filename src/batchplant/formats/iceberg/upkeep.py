"""The upkeep of Iceberg tables: pyiceberg commits, and which files nobody needs is found out here."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ...errors import BatchplantError, OptionError
from ...storage import is_remote, tree
from ...storage.uploads import remove_all
from ..base.lake import Compacted, Progress, State, Upkeep, Vacuumed, count, stored_size, utc, wrapped
from .table import METADATA, has_keys, library, local, named, open_catalog, reached_by

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.typedef import Record

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
        from .folder import writable

        if self._catalog is None and is_remote(self.path):
            raise OptionError(
                "a table in a bucket is changed through its catalog (catalog=…, or iceberg://CATALOG/TABLE)",
                path=self.path,
            )
        with writable(self.path, self._catalog) as table:
            yield table

    def history(self) -> list[State]:
        from .folder import from_folder

        with wrapped(self.path):
            table = from_folder(self.path) if self._catalog is None else self._catalog.load_table(self.path)
            return _states(table)

    def restore(self, state: State) -> None:
        with self._open() as table:
            if table.metadata.current_snapshot_id != state.id:
                with table.manage_snapshots() as change:
                    change.set_current_snapshot(snapshot_id=state.id)

    # -- vacuum ----------------------------------------------------------------------------------------

    def vacuum(self, older_than: datetime.timedelta, *, dry_run: bool) -> Vacuumed:
        from .manifests import names_of

        cutoff = int(time.time() * 1000 - older_than / datetime.timedelta(milliseconds=1))
        with self._open() as table:
            metadata = table.metadata
            expired = _expired(metadata, cutoff)
            remaining = [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id not in expired]
            needed = {_place(table, name) for snapshot in remaining for name in names_of(table, snapshot)}
            needed |= {_place(table, snapshot) for snapshot in _described(table)}
            unneeded: set[str] = set()
            for snapshot in metadata.snapshots:
                if snapshot.snapshot_id in expired:
                    # One whose files are gone in part has nothing more to lose.
                    with contextlib.suppress(BatchplantError):
                        unneeded.update(_place(table, name) for name in names_of(table, snapshot))
            unneeded = (unneeded | set(_strays(table, cutoff))) - needed
            files = sorted(snapshot for snapshot in unneeded if _inside(table, snapshot))
            size = sum(stored_size(reached_by(table, snapshot)) for snapshot in files)
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


def _states(table: Table) -> list[State]:
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


def _inside(table: Table, path: str) -> bool:
    """True if a file lies in the table's own folder: others may belong to others."""
    return path.startswith(_root(table) + "/")


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
    from .manifests import files_of

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

    from .datafiles import TableFiles

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
