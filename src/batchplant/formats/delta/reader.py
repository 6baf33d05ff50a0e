"""Reading Delta: which files a version has, and what lies in none of them."""

from __future__ import annotations

import datetime
import functools
import os
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...codecs import arrow
from ...data.expressions import Condition
from ...errors import (
    DamagedError,
    NotFoundError,
    OptionError,
    UnknownFormatError,
    UnsafeError,
    needs,
)
from ...schema import Field
from ...storage import absolute, check_regular, is_remote, join, like, tree
from ...storage.remote.obstore_client import options_for
from ..base.lake import LakeReader, Part, as_time, first_line, wrapped

if TYPE_CHECKING:
    import pyarrow as pa

# What a reader has to understand about a table, and this one does.
FEATURES = {"columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
PHYSICAL = b"delta.columnMapping.physicalName"
# Versions that `info` shows.
HISTORY = 10
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
    for entry in table.history(HISTORY):
        if entry.get("version", 0) <= table.version():
            when = datetime.datetime.fromtimestamp(entry["timestamp"] / 1000, datetime.UTC)
            mode = entry.get("operationParameters", {}).get("mode", "")
            facts[f"version {entry['version']}"] = (
                f"{when:%Y-%m-%d %H:%M:%S}Z {entry['operation']} {mode}".strip()
            )
    return facts


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
