"""The upkeep of Lance tables, by pylance: each step is a version."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from ...storage import absolute
from ..base.lake import Compacted, Progress, State, Upkeep, Vacuumed, count, wrapped
from .reader import open_table, time_of


class LanceUpkeep(Upkeep):
    """``storage``: what pylance needs to reach a remote store."""

    def __init__(self, path: str, *, storage: Mapping[str, str] | None = None) -> None:
        super().__init__(path)
        self._storage = storage

    def _open(self) -> Any:
        return open_table(self.path, None, None, self._storage)

    def history(self) -> list[State]:
        table = self._open()
        with wrapped(self.path):
            return list(reversed(_states(table)))

    def vacuum(self, older_than: datetime.timedelta, *, dry_run: bool) -> Vacuumed:
        table = self._open()
        options = {"error_if_tagged_old_versions": False}
        with wrapped(self.path):
            plan = table.explain_cleanup_old_versions(older_than, include_files=True, **options)
            before = {state.id for state in _states(table)}
            # The library names them from the root of the store.
            root = absolute(self.path).rstrip("/").rpartition("/")[2]
            files = [file.path.rpartition(f"{root}/")[2] for file in plan.candidate_files]
            if dry_run:
                cut = datetime.datetime.now(datetime.UTC) - older_than
                old = [state for state in _states(table) if not state.current and not state.refs]
                return Vacuumed(
                    files, plan.stats.bytes_removed, [state.id for state in old if state.at < cut], False
                )
            removed = table.cleanup_old_versions(older_than, **options)
            remaining = {state.id for state in _states(self._open())}
        return Vacuumed(files, removed.bytes_removed, sorted(before - remaining), True)

    def restore(self, state: State) -> None:
        table = self._open()
        if state.id == table.version:
            return
        with wrapped(self.path):
            table.checkout_version(state.id).restore()

    def compact(self, file_size: int, *, dry_run: bool, progress: Progress | None) -> Compacted:
        table = self._open()
        with wrapped(self.path):
            fragments = [fragment.metadata for fragment in table.get_fragments()]
            sizes = [sum(file.file_size_bytes or 0 for file in part.files) for part in fragments]
            rows = sum(part.physical_rows for part in fragments)
            small = [size for size in sizes if size < file_size]
            if len(small) < 2:
                return Compacted(0, 0, 0, 0, not dry_run)
            if dry_run:
                return Compacted(len(small), max(1, -(-sum(small) // file_size)), sum(small), 0, False)
            target = max(1, rows * file_size // max(1, sum(sizes)))
            metrics = table.optimize.compact_files(target_rows_per_fragment=target)
        if progress is not None:
            progress(metrics.fragments_removed, metrics.fragments_removed)
        return Compacted(metrics.fragments_removed, metrics.fragments_added, sum(small), 0, True)


def _states(table: Any) -> list[State]:
    tags: dict[int, list[str]] = {}
    for name, tag in table.tags.list().items():
        tags.setdefault(int(tag["version"]), []).append(name)
    states, before = [], 0
    for entry in table.versions():
        number, rows = int(entry["version"]), count(entry["metadata"].get("total_rows")) or 0
        operation = _operation(table, number)
        added = {"APPEND": rows - before, "OVERWRITE": rows}.get(operation)
        refs = tuple(sorted(tags.get(number, ())))
        states.append(State(number, time_of(entry), operation, added, number == table.version, refs))
        before = rows
    return states


def _operation(table: Any, version: int) -> str:
    """Return the name of the transaction that made a version."""
    transaction = table.read_transaction(version)
    return "unknown" if transaction is None else type(transaction.operation).__name__.upper()
