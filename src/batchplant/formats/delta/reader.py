"""Reading Delta: which files a version has, and what lies in none of them."""

from __future__ import annotations

import datetime
import functools
import os
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...codecs import arrow
from ...data.expressions import Condition
from ...errors import DamagedError, OptionError, UnknownFormatError, UnsafeError
from ...schema import Field
from ...storage import absolute, is_remote, join, like
from ..base.lake import LakeReader, Part, as_time, wrapped
from .table import open_table

# What a reader has to understand about a table, and this one does.
FEATURES = {"columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
PHYSICAL = b"delta.columnMapping.physicalName"
# Versions that `info` shows.
HISTORY = 10


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
            parts = sorted(_parts(table, path, described, outside), key=lambda one: (one[0], one[1].path))
        asked = {"version": version, "at": at, "schema": schema, "storage": storage, "outside": outside}
        self._asked = {**asked, "where": where}
        self._reopen = functools.partial(DeltaReader, path, **self._asked)
        # Workers that unpickle this reader must see the same rows, whatever was committed meanwhile.
        self._init_args = (path,), {**self._asked, "version": table.version(), "at": None}
        self._set_parts([part for _, part in parts], described, schema, where)

    def facts(self) -> dict[str, Any]:
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
    for one in table.history(HISTORY):
        if one.get("version", 0) <= table.version():
            when = datetime.datetime.fromtimestamp(one["timestamp"] / 1000, datetime.UTC)
            mode = one.get("operationParameters", {}).get("mode", "")
            facts[f"version {one['version']}"] = (
                f"{when:%Y-%m-%d %H:%M:%S}Z {one['operation']} {mode}".strip()
            )
    return facts


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
        partial = None if names else functools.partial(_said, actions, number)
        part = Part(file, rows, one["size_bytes"], constants, names, gone, said=partial)
        yield one["modification_time"] or 0, part
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


def _said(actions: Any, number: int, name: str) -> tuple[Any, Any, int | None]:
    """Return the statistics of a field in a file, from the log."""
    low, high, missing = (actions.column(one)[number][name] for one in ("min", "max", "null_count"))
    return low, high, missing.as_py()


def _deleted(table: Any) -> dict[str, Any]:
    """File → the rows that deletion vectors mark."""
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return {}
    found = arrow.pyarrow().table(table.deletion_vectors())
    return {
        one["filepath"].removeprefix("file://"): np.flatnonzero(~np.array(one["selection_vector"], np.bool_))
        for one in found.to_pylist()
    }
