"""The upkeep of Delta tables, by deltalake: each step is an entry of the log."""

from __future__ import annotations

import collections
import datetime
import math
from collections.abc import Mapping
from typing import Any

from ...codecs import arrow
from ...errors import DamagedError
from ...storage import join
from ..base.lake import (
    Compacted,
    Progress,
    State,
    Upkeep,
    Vacuumed,
    conflict,
    count,
    first_line,
    stored_size,
    utc,
    wrapped,
)
from .reader import library, open_table

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
