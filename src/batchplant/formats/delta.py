"""Delta Lake: a folder of Parquet files, and in ``_delta_log`` what every transaction added and removed.

The package deltalake reads the log and writes to it. The rows are read from the files themselves, row group
by row group. What our fields are stands in the metadata of the table's columns.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import functools
import itertools
import json
import math
import os
import time
import urllib.parse
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..codecs import arrow
from ..data.expressions import Condition
from ..errors import DamagedError, NotFoundError, OptionError, UnknownFormatError, UnsafeError, needs
from ..schema import EVERY_KIND, Field, Schema
from ..storage import absolute, check_regular, is_remote, join, like, tree
from ..storage.remote.obstore_client import options_for
from .base.format import Capabilities, Format, Probe
from .base.lake import (
    MAX_SHOWN_STATES,
    Compacted,
    LakeReader,
    LakeWriter,
    Part,
    Progress,
    State,
    Upkeep,
    Vacuumed,
    as_time,
    check_same_fields,
    conflict,
    count,
    first_line,
    shown,
    stored_schema,
    stored_size,
    utc,
    wrapped,
)

if TYPE_CHECKING:
    import pyarrow as pa

# -- reading ------------------------------------------------------------------------------------------
# Reading Delta: which files a version has, and what lies in none of them.

# What a reader has to understand about a table, and this one does.
FEATURES = {"columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
PHYSICAL = b"delta.columnMapping.physicalName"
LOG = "_delta_log"


def library() -> Any:
    with needs("Delta Lake needs the package deltalake", "delta"):
        import deltalake
    return deltalake


def open_table(path: str, version: int | None = None, storage: Mapping[str, str] | None = None) -> Any:
    deltalake = library()
    _check_log(path)
    options = {**options_for(path), **(storage or {})} or None
    with wrapped(path):
        try:
            latest = deltalake.DeltaTable(path, storage_options=options) if version is not None else None
            # The library would look for each of the versions up to there.
            if latest is not None and not 0 <= (version or 0) <= latest.version():
                raise OptionError(f"there is no version {version}; the latest is {latest.version()}")
            return deltalake.DeltaTable(path, version=version, storage_options=options)
        except deltalake.exceptions.TableNotFoundError as error:
            raise NotFoundError(f"there is no Delta table: {first_line(error)}") from None
        except deltalake.exceptions.DeltaError as error:
            if version is not None and "version" in str(error).lower():
                raise OptionError(f"there is no version {version}: {first_line(error)}") from None
            raise


def _check_log(path: str) -> None:
    """The library takes an entry of no bytes for one that changed nothing, and waits for pipes."""
    log = join(path, LOG)
    if is_remote(path):
        for remote in tree.entries(log) if tree.is_folder(log) else ():
            if remote.name.endswith(".json") and not remote.folder and not remote.size:
                raise DamagedError("this entry of the log is empty", path=join(log, remote.name))
        return
    if not os.path.isdir(log):
        return
    with os.scandir(log) as entries:
        for entry in entries:
            check_regular(entry.path)
            if entry.name.endswith(".json") and entry.is_file() and not entry.stat().st_size:
                raise DamagedError("this entry of the log is empty", path=entry.path)


class DeltaReader(LakeReader):
    """Reads Delta tables: the latest state, or with ``version`` or ``at`` (a time in ISO 8601) an older one.

    ``schema``: kinds for some fields, in place of those that were found. ``storage``: what deltalake needs to
    reach a remote store. ``outside``: also read files that do not lie in the table's folder. ``where``: leave
    out files in which this cannot be true, as ``open`` does.
    """

    def __init__(
        self,
        path: str,
        *,
        version: int | None = None,
        at: str | datetime.datetime | None = None,
        schema: Mapping[str, Field] | None = None,
        storage: Mapping[str, str] | None = None,
        outside: bool = False,
        where: Condition | None = None,
    ) -> None:
        if version is not None and at is not None:
            raise OptionError("choose a version or a time, not both", path=path)
        self.path = path = like(path, path.removeprefix("file://"))
        table = open_table(path, version, storage)
        with wrapped(path):
            if at is not None:
                table.load_as_version(as_time(at))
            described = arrow.pyarrow().schema(table.schema())
            _check_features(table, path)
            self._facts = _facts(table)
            self._state = {"table": str(table.metadata().id), "version": table.version()}
            parts = sorted(
                _parts(table, path, described, outside), key=lambda entry: (entry[0], entry[1].path)
            )
        options = {"version": version, "at": at, "schema": schema, "storage": storage, "outside": outside}
        self._options = {**options, "where": where}
        self._reopen = functools.partial(DeltaReader, path, **self._options)
        # Workers that unpickle this reader must see the same rows, whatever was committed meanwhile.
        self._init_args = (path,), {**self._options, "version": table.version(), "at": None}
        self._set_parts([part for _, part in parts], described, schema, where)

    def facts(self) -> dict[str, object]:
        return {**super().facts(), **self._facts}


def _check_features(table: Any, path: str) -> None:
    needed = set(table.protocol().reader_features or ()) - FEATURES
    if needed:
        raise UnknownFormatError(
            f"the table uses {', '.join(sorted(needed))}, which batchplant cannot read yet", path=path
        )


def _facts(table: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"version": table.version()}
    for name, value in (("name", table.metadata().name), ("about", table.metadata().description)):
        facts |= {name: value} if value else {}
    if table.metadata().partition_columns:
        facts["partitioned by"] = ", ".join(table.metadata().partition_columns)
    states = [_state(entry, table.version()) for entry in table.history(MAX_SHOWN_STATES)]
    return facts | shown([state for state in states if state.id <= table.version()], "version")


def _parts(table: Any, path: str, described: pa.Schema, outside: bool) -> Iterator[tuple[int, Part]]:
    """When each file was written, and the file. The log itself keeps no order."""
    actions = arrow.pyarrow().table(table.get_add_actions(flatten=False))
    deleted = _deleted(table)
    names = {field.name: (field.metadata or {}).get(PHYSICAL, b"").decode() for field in described}
    names = {name: physical for name, physical in names.items() if physical}
    plain = [
        name
        for name in ("path", "size_bytes", "modification_time", "num_records")
        if name in actions.column_names
    ]
    for number, action in enumerate(actions.select(plain).to_pylist()):
        file, rows = _place(path, action["path"], outside), action.get("num_records")
        if rows is not None and rows < 0:
            raise DamagedError(f"a file of {rows} rows", path=file)
        constants = _constants(actions, number, described)
        deleted_rows = deleted.pop(absolute(file), None)
        partial = None if names else functools.partial(_stats, actions, number)
        part = Part(file, rows, action["size_bytes"], constants, names, deleted_rows, stats=partial)
        yield action["modification_time"] or 0, part
    if deleted:
        raise DamagedError(f"rows are deleted from {next(iter(deleted))}, which is no file of the table")


def _place(path: str, listed_path: str, outside: bool) -> str:
    """The file of an action: its path is relative to the table, and quoted as a URL."""
    file = urllib.parse.unquote(listed_path).removeprefix("file://")
    root = path.rstrip("/") if is_remote(path) else os.path.abspath(path)
    if not is_remote(file):
        file = join(path, file) if is_remote(path) else os.path.normpath(os.path.join(path, file))
    file, plain = like(path, file), absolute(file)
    if not outside and (not plain.startswith(f"{root}/") or ".." in plain.split("/")):
        raise UnsafeError(
            f"the table lists {file}, which lies outside its folder; outside=True reads it anyway"
        )
    return file


def _constants(actions: Any, number: int, described: pa.Schema) -> dict[str, Any]:
    """The values of the columns that a table is partitioned by."""
    for column in ("partition", "partition_values"):
        if column in actions.column_names:
            values = actions.column(column)[number]
            return (
                {name: values[name].cast(described.field(name).type) for name in values}
                if values.is_valid
                else {}
            )
    return {}


def _stats(actions: Any, number: int, name: str) -> tuple[Any, Any, int | None]:
    """Return the statistics of a field in a file, from the log."""
    low, high, missing = (actions.column(column)[number][name] for column in ("min", "max", "null_count"))
    return low, high, missing.as_py()


def _deleted(table: Any) -> dict[str, Any]:
    """File → the rows that deletion vectors mark."""
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return {}
    vectors = arrow.pyarrow().table(table.deletion_vectors())
    return {
        row["filepath"].removeprefix("file://"): np.flatnonzero(~np.array(row["selection_vector"], np.bool_))
        for row in vectors.to_pylist()
    }


# -- writing ------------------------------------------------------------------------------------------
# Writing Delta: Parquet files first, then one entry of the log that makes them count.

# A time without a zone would need a feature that not every reader has.
ZONE = "UTC"
# As many columns as others describe, and texts as long as they keep.
COLUMNS, LETTERS = 32, 32


class DeltaWriter(LakeWriter):
    __doc__ = LakeWriter.__doc__
    title = "Delta"

    def _described(self) -> pa.Schema:
        library()
        return stored_schema(self.schema, small=True, zone=ZONE)

    def _exists(self) -> bool:
        return tree.is_folder(join(self.path, LOG))

    def _existing(self) -> tuple[Schema, Any, list[str]]:
        table = open_table(self.path)
        fields = arrow.schema_of(arrow.pyarrow().schema(table.schema()))
        return fields, table.version(), list(table.metadata().partition_columns)

    def _create(self, folder: Path) -> None:
        deltalake = library()
        folder.mkdir()
        with wrapped(self.path):
            table = deltalake.DeltaTable.create(folder, self._arrow, partition_by=self._keys)
            if self._keys:
                self._write_by_library(table, self._how())
                return
            added = list(self._add_files(folder))
            if added:
                table.create_write_transaction(added, "append", self._arrow, commit_properties=self._how())

    def _how(self, **options: Any) -> Any:
        deltalake = library()
        return deltalake.CommitProperties(app_transactions=[deltalake.Transaction(self._id, 1)], **options)

    def _is_committed(self, id: str) -> bool:
        return open_table(self.path).transaction_version(id) is not None

    def _commit(self) -> None:
        deltalake = library()
        appends = self.mode == "append"
        far = is_remote(self.path)
        if far and not self._exists():
            with wrapped(self.path):
                deltalake.DeltaTable.create(
                    self.path, self._arrow, mode="ignore", partition_by=self._keys,
                    storage_options=options_for(self.path),
                )  # fmt: skip
        table = open_table(self.path, None if appends else self._base)
        # A retry would leave rows in place that another process appended meanwhile.
        properties = self._how() if appends else self._how(max_commit_retries=0)
        added: list[Any] = []
        try:
            if appends:
                self._add_columns(table)
            if far or table.metadata().partition_columns or table.protocol().min_writer_version > 2:
                # How to get there, and whatever else the table wants of its rows, the library sees to.
                self._write_by_library(table, properties)
                return
            added = self._all_files(Path(self.path))
            table.create_write_transaction(
                added, self.mode, table.schema() if appends else self._arrow, commit_properties=properties
            )
        except deltalake.exceptions.CommitFailedError as error:
            _remove(self.path, added)
            raise conflict(self.path, error) from None
        # Ctrl-C may come after the commit: then the files belong to the table, else nobody sees them.
        except BaseException:
            with wrapped(self.path):
                raise

    def _all_files(self, folder: Path) -> list[Any]:
        added: list[Any] = []
        try:
            for file in self._add_files(folder):
                added.append(file)
        except BaseException:
            _remove(folder, added)
            raise
        return added

    def _add_columns(self, table: Any) -> None:
        """Fields that the table lacks become columns of it, None in the rows that it has."""
        fields = arrow.schema_of(arrow.pyarrow().schema(table.schema()))
        fresh = check_same_fields(fields, self.schema)
        if fresh:
            added = Schema({name: dataclasses.replace(self.schema[name], optional=True) for name in fresh})
            columns = library().Schema.from_arrow(stored_schema(added, small=True, zone=ZONE))
            table.alter.add_columns(columns.fields)

    def _add_files(self, folder: Path) -> Iterator[Any]:
        """Write the rows into the table's folder, where nobody sees them before they are committed."""
        from deltalake.transaction import AddAction

        now = time.time_ns() // 1_000_000
        unique = uuid.uuid4()
        for number, groups in enumerate(self._files(self._arrow)):
            file = folder / f"part-{number:05d}-{unique}.{self._compression}.parquet"
            try:
                rows = self._write_file(groups, self._arrow, str(file))
            except BaseException:
                file.unlink(missing_ok=True)
                raise
            yield AddAction(file.name, file.stat().st_size, {}, now, True, stats_of(str(file), rows))

    def _write_by_library(self, table: Any, properties: Any) -> None:
        pa = arrow.pyarrow()
        batches = (batch for group in self._row_groups() for batch in group.to_batches())
        library().write_deltalake(
            table,
            pa.RecordBatchReader.from_batches(self._arrow, batches),
            mode="overwrite" if self.mode == "overwrite" else "append",
            schema_mode="overwrite" if self.mode == "overwrite" else None,
            commit_properties=properties,
        )


def _remove(folder: str | Path, added: list[Any]) -> None:
    """Files that no transaction knows."""
    for action in added:
        Path(folder, action.path).unlink(missing_ok=True)


def stats_of(path: str, rows: int) -> str:
    """The statistics of a Parquet file that was just written, as the log has them."""
    import pyarrow.parquet as pq

    pa = arrow.pyarrow()
    stats: dict[str, Any] = {"numRecords": rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    metadata = pq.read_metadata(path)
    schema = metadata.schema.to_arrow_schema()
    # Behind a list or a struct, columns of the file have other numbers.
    plain = itertools.takewhile(lambda field: not pa.types.is_nested(field.type), schema)
    for number, field in enumerate(itertools.islice(plain, COLUMNS)):
        row_groups = map(metadata.row_group, range(metadata.num_row_groups))
        groups = [group.column(number).statistics for group in row_groups]
        if not groups or any(group is None or group.null_count is None for group in groups):
            continue
        stats["nullCount"][field.name] = sum(group.null_count for group in groups)
        bounded = [group for group in groups if group.has_min_max]
        # A row group in which all is missing has no bounds, and needs none.
        if not bounded or any(group.num_values and not group.has_min_max for group in groups):
            continue
        # Python's dates end at the year 9999.
        with contextlib.suppress(OverflowError, ValueError):
            low = _bound_json(min(group.min for group in bounded), lower=True)
            high = _bound_json(max(group.max for group in bounded), lower=False)
            if low is not None and high is not None:
                stats["minValues"][field.name], stats["maxValues"][field.name] = low, high
    return json.dumps(stats)


def _bound_json(value: Any, *, lower: bool) -> Any:
    """A bound as JSON; None where there is no good one."""
    if isinstance(value, bool | bytes):
        return None
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, str):
        return value[:LETTERS] if lower or len(value) <= LETTERS else None
    if isinstance(value, datetime.datetime):
        # Cut off at milliseconds, the greatest one too: every reader knows that.
        return value.astimezone(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, datetime.date) else None


# -- upkeep -------------------------------------------------------------------------------------------
# The upkeep of Delta tables, by deltalake: each step is an entry of the log.

# What a table's own files end with.
ENDINGS = (".parquet", ".bin")
# What the log calls the rows that an operation added.
ROWS = ("num_added_rows", "numOutputRows", "num_output_rows")


class DeltaUpkeep(Upkeep):
    """``storage``: what deltalake needs to reach a remote store."""

    def __init__(self, path: str, *, storage: Mapping[str, str] | None = None) -> None:
        super().__init__(path)
        self._storage = storage

    def _open(self) -> Any:
        return open_table(self.path, None, self._storage)

    def history(self) -> list[State]:
        table = self._open()
        with wrapped(self.path):
            return [_state(entry, table.version()) for entry in table.history()]

    def vacuum(self, older_than: datetime.timedelta, *, dry_run: bool) -> Vacuumed:
        table = self._open()
        # The library counts in hours; none too few.
        hours = math.ceil(older_than / datetime.timedelta(hours=1))
        options = {"enforce_retention_duration": False, "full": True}
        with wrapped(self.path):
            # Also those that no version ever had: of writers that were killed.
            files = table.vacuum(hours, dry_run=True, **options)
            if not all(file.endswith(ENDINGS) for file in files):
                # It would take what somebody else put there along.
                options["full"] = False
                files = table.vacuum(hours, dry_run=True, **options)
            size = sum(stored_size(join(self.path, file)) for file in files)
            if not dry_run and files:
                files = table.vacuum(hours, dry_run=False, **options)
        return Vacuumed(files, size, [], not dry_run)

    def restore(self, state: State) -> None:
        table, deltalake = self._open(), library()
        if state.id == table.version():
            return
        commit_properties = deltalake.CommitProperties(max_commit_retries=0)
        with wrapped(self.path):
            try:
                table.restore(state.id, commit_properties=commit_properties)
            except deltalake.exceptions.CommitFailedError as error:
                raise conflict(self.path, error) from None
            except deltalake.exceptions.DeltaError as error:
                if "file" in str(error).lower():
                    message = f"files of version {state.id} are gone, vacuumed perhaps: {first_line(error)}"
                    raise DamagedError(message) from None
                raise

    def compact(self, file_size: int, *, dry_run: bool, progress: Progress | None) -> Compacted:
        table, deltalake = self._open(), library()
        small = _small(table, file_size)
        if dry_run or not small:
            size = sum(map(sum, small))
            merged = sum(max(1, -(-sum(sizes) // file_size)) for sizes in small)
            return Compacted(sum(map(len, small)), merged, size, 0, not dry_run)
        with wrapped(self.path):
            try:
                metrics = table.optimize.compact(target_size=file_size)
            except deltalake.exceptions.CommitFailedError as error:
                raise conflict(self.path, error) from None
        removed, added = metrics["numFilesRemoved"], metrics["numFilesAdded"]
        if progress is not None:
            progress(removed, removed)
        return Compacted(removed, added, sum(map(sum, small)), 0, True)


def _state(entry: Mapping[str, Any], current: int) -> State:
    metrics = entry.get("operationMetrics") or {}
    rows = next((count(metrics[name]) for name in ROWS if name in metrics), None)
    operation = str(entry.get("operation", "unknown"))
    if operation == "WRITE":
        operation = f"WRITE {(entry.get('operationParameters') or {}).get('mode', '')}".strip()
    return State(entry["version"], utc(entry["timestamp"]), operation, rows, entry["version"] == current)


def _small(table: Any, file_size: int) -> list[list[int]]:
    """The sizes of the files of each partition that has several with room for more."""
    actions = arrow.pyarrow().table(table.get_add_actions(flatten=False))
    sizes = actions.column("size_bytes").to_pylist()
    parts = [name for name in ("partition", "partition_values") if name in actions.column_names]
    keys = actions.column(parts[0]).to_pylist() if parts else [None] * len(sizes)
    sizes_by_partition: dict[str, list[int]] = collections.defaultdict(list)
    for key, size in zip(keys, sizes, strict=True):
        if size < file_size:
            sizes_by_partition[repr(key)].append(size)
    return [group for group in sizes_by_partition.values() if len(group) > 1]


# -- format -------------------------------------------------------------------------------------------


def sniff(probe: Probe) -> bool:
    return f"{LOG}/" in probe.names


FORMAT = Format(
    name="delta",
    title="Delta Lake",
    suffixes=(".delta",),
    spec="https://github.com/delta-io/delta/blob/master/PROTOCOL.md",
    reader=DeltaReader,
    writer=DeltaWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    folder=True,
    extra="delta",
    upkeep=DeltaUpkeep,
    notes="any version or time; append and overwrite as one transaction; read row group by row group",
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
        ecosystem=("Spark", "deltalake", "Polars", "DuckDB", "Trino"),
    ),
)
