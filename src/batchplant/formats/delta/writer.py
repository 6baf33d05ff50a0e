"""Writing Delta: Parquet files first, then one entry of the log that makes them count."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import itertools
import json
import math
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...codecs import arrow
from ...schema import Schema
from ...storage import is_remote, join, tree
from ...storage.remote.obstore_client import options_for
from ..base.lake import LakeWriter, check_same_fields, conflict, stored_schema, wrapped
from .reader import LOG, library, open_table

if TYPE_CHECKING:
    import pyarrow as pa

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
