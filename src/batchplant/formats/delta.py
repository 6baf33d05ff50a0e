"""Delta Lake: a folder of Parquet files, and in ``_delta_log`` what every transaction added and removed.

The package deltalake reads the log and writes to it. The rows are read from the files themselves, row group
by row group. What our fields are stands in the metadata of the table's columns.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import time
import urllib.parse
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..codecs import arrow
from ..errors import (
    DamagedError,
    MissingLibraryError,
    NotFoundError,
    OptionError,
    UnknownFormatError,
    UnsafeError,
)
from ..families.lake import (
    LakeReader,
    LakeWriter,
    Part,
    as_time,
    check_same_fields,
    conflict,
    first_line,
    stored_schema,
    wrapped,
)
from ..format import Format, Probe
from ..schema import EVERY_KIND, Field, Schema
from ..storage import absolute, check_regular, is_remote, join, like, tree
from ..storage.remote.libraries import options_for

LOG = "_delta_log"
# What a reader has to understand about a table, and this one does.
FEATURES = {"columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
PHYSICAL = b"delta.columnMapping.physicalName"
# A time without a zone would need a feature that not every reader has.
ZONE = "UTC"
# Versions that `info` shows.
HISTORY = 10


def _library() -> Any:
    try:
        import deltalake
    except ImportError:
        raise MissingLibraryError(
            'Delta Lake needs the package deltalake: pip install "batchplant[delta]"'
        ) from None
    return deltalake


def _open(path: str, version: int | None = None, storage: Mapping[str, str] | None = None) -> Any:
    library = _library()
    _check_log(path)
    options = {**options_for(path), **(storage or {})} or None
    with wrapped(path):
        try:
            latest = library.DeltaTable(path, storage_options=options) if version is not None else None
            # The library would look for each of the versions up to there.
            if latest is not None and not 0 <= (version or 0) <= latest.version():
                raise OptionError(f"there is no version {version}; the latest is {latest.version()}")
            return library.DeltaTable(path, version=version, storage_options=options)
        except library.exceptions.TableNotFoundError as error:
            raise NotFoundError(f"there is no Delta table: {first_line(error)}") from None
        except library.exceptions.DeltaError as error:
            if version is not None and "version" in str(error).lower():
                raise OptionError(f"there is no version {version}: {first_line(error)}") from None
            raise


class DeltaReader(LakeReader):
    """Reads Delta tables: the latest state, or with ``version`` or ``at`` (a time in ISO 8601) an older one.

    ``schema``: kinds for some fields, in place of those that were found. ``storage``: what deltalake needs to
    reach a remote store. ``outside``: also read files that do not lie in the table's folder.
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
    ) -> None:
        if version is not None and at is not None:
            raise OptionError("choose a version or a time, not both", path=path)
        self.path = path = like(path, path.removeprefix("file://"))
        table = _open(path, version, storage)
        with wrapped(path):
            if at is not None:
                table.load_as_version(as_time(at))
            described = arrow.pyarrow().schema(table.schema())
            _check_features(table, path)
            self._facts = _facts(table)
            parts = sorted(_parts(table, path, described, outside), key=lambda one: (one[0], one[1].path))
        # Workers that unpickle this reader must see the same rows, whatever was committed meanwhile.
        self._made_with = (path,), {
            "version": table.version(), "schema": schema, "storage": storage, "outside": outside,
        }  # fmt: skip
        self._set_parts([part for _, part in parts], described, schema)

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), **self._facts}


def _check_features(table: Any, path: str) -> None:
    needed = set(table.protocol().reader_features or ()) - FEATURES
    if needed:
        raise UnknownFormatError(
            f"the table uses {', '.join(sorted(needed))}, which batchplant cannot read yet", path=path
        )


def _check_log(path: str) -> None:
    """The library takes an entry of no bytes for one that changed nothing, and waits for pipes."""
    log = join(path, LOG)
    if is_remote(path):
        for one in tree.entries(log) if tree.is_folder(log) else ():
            if one.name.endswith(".json") and not one.folder and not one.size:
                raise DamagedError("this entry of the log is empty", path=join(log, one.name))
        return
    if not os.path.isdir(log):
        return
    with os.scandir(log) as entries:
        for entry in entries:
            check_regular(entry.path)
            if entry.name.endswith(".json") and entry.is_file() and not entry.stat().st_size:
                raise DamagedError("this entry of the log is empty", path=entry.path)


def _facts(table: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"version": table.version()}
    for name, value in (("name", table.metadata().name), ("about", table.metadata().description)):
        found |= {name: value} if value else {}
    if table.metadata().partition_columns:
        found["partitioned by"] = ", ".join(table.metadata().partition_columns)
    for one in table.history(HISTORY):
        if one.get("version", 0) <= table.version():
            when = datetime.datetime.fromtimestamp(one["timestamp"] / 1000, datetime.UTC)
            mode = one.get("operationParameters", {}).get("mode", "")
            found[f"version {one['version']}"] = (
                f"{when:%Y-%m-%d %H:%M:%S}Z {one['operation']} {mode}".strip()
            )
    return found


def _parts(table: Any, path: str, described: Any, outside: bool) -> Iterator[tuple[int, Part]]:
    """When each file was written, and the file. The log itself keeps no order."""
    actions = arrow.pyarrow().table(table.get_add_actions(flatten=False))
    deleted = _deleted(table)
    names = {one.name: (one.metadata or {}).get(PHYSICAL, b"").decode() for one in described}
    names = {name: physical for name, physical in names.items() if physical}
    plain = [
        name
        for name in ("path", "size_bytes", "modification_time", "num_records")
        if name in actions.column_names
    ]
    for number, one in enumerate(actions.select(plain).to_pylist()):
        file, rows = _place(path, one["path"], outside), one.get("num_records")
        if rows is not None and rows < 0:
            raise DamagedError(f"a file of {rows} rows", path=file)
        constants = _constants(actions, number, described)
        gone = deleted.pop(absolute(file), None)
        yield one["modification_time"] or 0, Part(file, rows, one["size_bytes"], constants, names, gone)
    if deleted:
        raise DamagedError(f"rows are deleted from {next(iter(deleted))}, which is no file of the table")


def _place(path: str, found: str, outside: bool) -> str:
    """The file of an action: its path is relative to the table, and quoted as a URL."""
    file = urllib.parse.unquote(found).removeprefix("file://")
    root = path.rstrip("/") if is_remote(path) else os.path.abspath(path)
    if not is_remote(file):
        file = join(path, file) if is_remote(path) else os.path.normpath(os.path.join(path, file))
    file, plain = like(path, file), absolute(file)
    if not outside and (not plain.startswith(f"{root}/") or ".." in plain.split("/")):
        raise UnsafeError(
            f"the table lists {file}, which lies outside its folder; outside=True reads it anyway"
        )
    return file


def _constants(actions: Any, number: int, described: Any) -> dict[str, Any]:
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


def _deleted(table: Any) -> dict[str, Any]:
    """File → the rows that deletion vectors mark."""
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return {}
    found = arrow.pyarrow().table(table.deletion_vectors())
    return {
        one["filepath"].removeprefix("file://"): np.flatnonzero(~np.array(one["selection_vector"], np.bool_))
        for one in found.to_pylist()
    }


class DeltaWriter(LakeWriter):
    __doc__ = LakeWriter.__doc__
    title = "Delta"

    def _described(self) -> Any:
        _library()
        return stored_schema(self.schema, small=True, zone=ZONE)

    def _exists(self) -> bool:
        return tree.is_folder(join(self.path, LOG))

    def _existing(self) -> tuple[Schema, Any]:
        table = _open(self.path)
        return arrow.schema_of(arrow.pyarrow().schema(table.schema())), table.version()

    def _create(self, folder: Path) -> None:
        library = _library()
        folder.mkdir()
        with wrapped(self.path):
            table = library.DeltaTable.create(folder, self._arrow)
            added = list(self._add_files(folder))
            if added:
                table.create_write_transaction(added, "append", self._arrow, commit_properties=self._how())

    def _how(self, **more: Any) -> Any:
        library = _library()
        return library.CommitProperties(app_transactions=[library.Transaction(self._id, 1)], **more)

    def _is_committed(self, id: str) -> bool:
        return _open(self.path).transaction_version(id) is not None

    def _commit(self) -> None:
        library = _library()
        appends = self.mode == "append"
        far = is_remote(self.path)
        if far and not self._exists():
            with wrapped(self.path):
                library.DeltaTable.create(
                    self.path, self._arrow, mode="ignore", storage_options=options_for(self.path)
                )
        table = _open(self.path, None if appends else self._base)
        # A retry would leave rows in place that another process appended meanwhile.
        how = self._how() if appends else self._how(max_commit_retries=0)
        added: list[Any] = []
        try:
            if appends:
                self._add_columns(table)
            if far or table.metadata().partition_columns or table.protocol().min_writer_version > 2:
                # How to get there, and whatever else the table wants of its rows, the library sees to.
                self._write_by_library(table, how)
                return
            added = self._all_files(Path(self.path))
            table.create_write_transaction(
                added, self.mode, table.schema() if appends else self._arrow, commit_properties=how
            )
        except library.exceptions.CommitFailedError as error:
            _remove(self.path, added)
            raise conflict(self.path, error) from None
        # Ctrl-C may come after the commit: then the files belong to the table, else nobody sees them.
        except BaseException:
            with wrapped(self.path):
                raise

    def _all_files(self, folder: Path) -> list[Any]:
        added: list[Any] = []
        try:
            for one in self._add_files(folder):
                added.append(one)
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
            columns = _library().Schema.from_arrow(stored_schema(added, small=True, zone=ZONE))
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
            yield AddAction(file.name, file.stat().st_size, {}, now, True, json.dumps({"numRecords": rows}))

    def _write_by_library(self, table: Any, how: Any) -> None:
        pa = arrow.pyarrow()
        batches = (batch for group in self._row_groups() for batch in group.to_batches())
        _library().write_deltalake(
            table,
            pa.RecordBatchReader.from_batches(self._arrow, batches),
            mode=self.mode,
            schema_mode=None if self.mode == "append" else "overwrite",
            commit_properties=how,
        )


def _remove(folder: str | Path, added: list[Any]) -> None:
    """Files that no transaction knows."""
    for one in added:
        Path(folder, one.path).unlink(missing_ok=True)


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
    notes="any version or time; append and overwrite as one transaction; read row group by row group",
)
