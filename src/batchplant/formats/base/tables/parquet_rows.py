"""Single rows of Parquet files: rows that can match a filter, and rows of random batches, read by pages."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .... import _native
from ....data.expressions import Bound, Bounds, can_match, comparison_of, fields_of
from ....data.expressions.binding import BYTES, NUMBER
from ....data.filters import Pruned, numbers_in, ranges_of
from ....errors import BatchplantError, DamagedError
from ....schema import Field
from ....schema.columns import I64, Column, Columns, Masked, Ragged, concat_columns, dense_of
from ....storage import is_remote
from ....storage.spans import SourceRun, Spans
from .parquet_file import ParquetFile
from .reader import TableReader

# Name of the checksums of Parquet's pages in `verify`.
CHECKED = "CRC of every page that has one"
# Remote rows are read by pages only in such small requests: batches soon need the rest of a row group.
MAX_SINGLE_ROWS = 4
# More row groups than these fit in a window of any size.
MAX_WINDOW_GROUPS = 32


class ParquetRows(TableReader):
    """Base class of readers of Parquet files: prunes row groups and pages, and reads single rows by pages."""

    # The files; in place of one that no ParquetFile reads, its error, or None if a library reads it.
    _files: Sequence[ParquetFile | BatchplantError | None]
    # Number of the first row group of each file among those of all files, and the number of all.
    _firsts: I64

    def _set_window(self) -> None:
        """Shrink the window if row groups are large; only the files decide, so all ranks agree."""
        files = [file for file in self._files if isinstance(file, ParquetFile)]
        sizes = [group.size for file in files for group in file.footer.groups if group.size > 0]
        fit = self.tuning.window_bytes * len(sizes) // max(1, sum(sizes))
        self.window = max(1, fit) if sizes and fit < MAX_WINDOW_GROUPS else None

    # -- what a format implements ----------------------------------------------------------------------

    def _columns_in(self, number: int, fields: Sequence[str]) -> dict[str, str]:
        """Map fields to columns of a file; those that it lacks are left out."""
        raise NotImplementedError

    def _fixed_bounds(self, number: int, fields: Sequence[str]) -> Mapping[str, Bounds]:
        """Return the bounds of those fields that are no columns of a file."""
        raise NotImplementedError

    def _live_rows(self, number: int, group: int) -> I64 | None:
        """Return the rows of a row group that are not deleted; None: all."""
        return None

    def _load_rows(self, unit: int, rows: I64 | None, fields: Sequence[str]) -> Columns:
        """Return the cells of ascending rows of a unit; None: of all rows."""
        raise NotImplementedError

    # -- files -----------------------------------------------------------------------------------------

    def _file_of(self, unit: int) -> tuple[int, int]:
        """Return the number of the file that has a unit, and that of the row group in it."""
        number = int(np.searchsorted(self._firsts, unit, side="right")) - 1
        return number, unit - int(self._firsts[number])

    def _parquet(self, number: int) -> ParquetFile | None:
        """Return a file; None if it cannot be read, or a library reads it."""
        file = self._files[number]
        return file if isinstance(file, ParquetFile) else None

    def _load(self, unit: int, fields: Sequence[str]) -> Columns:
        return self._load_rows(unit, None, fields)

    def _unit_runs(self, unit: int, fields: Sequence[str]) -> list[SourceRun] | None:
        return self._row_runs(unit, None, fields)

    def _row_runs(self, unit: int, rows: I64 | None, fields: Sequence[str]) -> list[SourceRun] | None:
        """Byte ranges (file, start, size) of these rows of a unit, or of all; None: unknown."""
        number, group = self._file_of(unit)
        file = self._parquet(number)
        if file is None:
            return None
        columns = list(dict.fromkeys(self._columns_in(number, fields).values()))
        runs = (
            file.runs(group, columns)
            if rows is None
            else file.row_runs(group, columns, self._rows_in_file(number, group, rows))
        )
        return [(file.source, *run) for run in runs]

    def _rows_in_file(self, number: int, group: int, rows: I64) -> I64:
        """Return the numbers that rows of a unit have in their row group, deleted ones counted."""
        live_rows = self._live_rows(number, group)
        return rows if live_rows is None else live_rows[rows]

    def own_checks(self) -> tuple[str, ...]:
        return (CHECKED,)

    def close(self) -> None:
        super().close()
        for file in self._files:
            if isinstance(file, ParquetFile):
                file.close()

    # -- single rows -----------------------------------------------------------------------------------

    def _row_reader(self, rows: I64) -> SelectedRows:
        return SelectedRows(self, rows)

    @functools.cached_property
    def _page_policy(self) -> PageReadPolicy:
        return PageReadPolicy(self)

    def _decoded_size(self, unit: int, fields: Sequence[str]) -> int:
        """Estimate the bytes of a decoded unit."""
        rows = int(self._starts[unit + 1] - self._starts[unit])
        cells = {name: self.schema[name].cell for name in fields}
        fixed = sum(dtype.itemsize * math.prod(shape) for dtype, shape in filter(None, cells.values()))
        packed = self._unit_runs(unit, [name for name, cell in cells.items() if cell is None])
        return rows * fixed + sum(size for _, _, size in packed or ())

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        units, rows = self._units_of(indices)
        names = tuple(fields)
        if self._is_local:
            scattered = self._page_policy.wants(units, rows, names)
        else:
            scattered = self._are_single(units, names) and self._page_policy.saves(units, rows, names)
        self._page_policy.note(units)
        if scattered:
            # Reading the whole unit reports the problem and its location.
            with contextlib.suppress(Exception):
                return self._read_pages(by_unit(units, rows), fields)
        return super()._read(indices, fields)

    def _are_single(self, units: I64, names: tuple[str, ...]) -> bool:
        """True for a few remote rows whose row groups are neither cached nor prefetched by a loader."""
        used = np.unique(units).tolist()
        cached = (self._cache.all_of([(unit, names)]) is not None for unit in used)
        return len(units) <= MAX_SINGLE_ROWS and not self._are_planned(used) and not any(cached)

    def _are_planned(self, units: Sequence[int]) -> bool:
        """True if a loader prefetches the bytes of these units, or if that is unknown."""
        files = [self._parquet(self._file_of(unit)[0]) for unit in units]
        return any(file is None or file.is_planned for file in files)

    def _read_pages(self, requests: Sequence[tuple[int, I64, I64]], fields: Sequence[str]) -> Columns:
        """Read rows by pages, unit by unit, into arrays of the whole batch."""
        order = np.concatenate([places for _, _, places in requests])
        dense: dict[str, Any] = {}
        ragged: dict[str, list[Column]] = {}
        for unit, rows, places in requests:
            once, inverse = np.unique(rows, return_inverse=True)
            columns = self._load_rows(unit, once, fields)
            if columns.rows != len(once):
                raise DamagedError(f"{columns.rows} rows where {len(once)} were promised")
            for name, column in (columns if len(once) == len(rows) else columns.take(inverse)).items():
                if isinstance(column, Ragged):
                    ragged.setdefault(name, []).append(column)
                    continue
                if name not in dense:
                    dense[name] = np.empty((len(order), *column.shape[1:]), column.dtype)
                dense[name][places] = column
        for name, parts in ragged.items():
            dense[name] = Columns({name: concat_columns(parts)}).take(np.argsort(order))[name]
        return Columns((name, dense[name]) for name in fields)

    def _batch_runs(self, indices: I64, fields: Sequence[str]) -> list[SourceRun] | None:
        units, rows = self._units_of(indices)
        if not self._is_local or not self._page_policy.wants(units, rows, tuple(fields)):
            return super()._batch_runs(indices, fields)
        runs_of_units = [
            self._row_runs(unit, np.unique(unit_rows), fields) for unit, unit_rows, _ in by_unit(units, rows)
        ]
        return None if None in runs_of_units else [run for runs in runs_of_units for run in runs or ()]

    def _unread(self, fields: Sequence[str], indices: I64) -> Spans | None:
        """Return byte ranges; remote units that stay in the cache are left out."""
        names = tuple(fields)
        if self._is_local or not names or not self._page_policy.all_fit(names):
            return self._ranges(fields, indices)
        units, _ = self._units_of(indices)
        cached = [
            unit for unit in np.unique(units).tolist() if self._cache.all_of([(unit, names)]) is not None
        ]
        return self._ranges(fields, indices[~np.isin(units, cached)])

    @property
    def _is_local(self) -> bool:
        """True for local files. A remote request costs more than the rest of a row group."""
        return not is_remote(self.path)

    def _prune(self, bound: Bound) -> Pruned | None:
        names = fields_of(bound)
        runs: list[tuple[int, int]] = []
        skipped = total = to_read = looked = 0
        for number, first in enumerate(self._firsts[:-1].tolist()):
            columns = self._columns_in(number, list(self.schema))
            for group, matches in enumerate(self._groups(number, bound, columns)):
                size, read, look = self._sizes(number, group, matches, columns, names)
                total, to_read, looked = total + size, to_read + read, looked + look
                skipped += not matches
                start, live_rows = int(self._starts[first + group]), self._live_rows(number, group)
                edges = np.array(matches, dtype=np.int64).reshape(-1, 2)
                edges = start + (edges if live_rows is None else np.searchsorted(live_rows, edges))
                runs += [(first_row, end) for first_row, end in edges.tolist() if first_row < end]
        ranges = ranges_of(runs)
        return Pruned(ranges, self.unit_names, len(self._starts) - 1, skipped, total, total - to_read, looked)

    def _groups(self, number: int, bound: Bound, columns: Mapping[str, str]) -> list[list[tuple[int, int]]]:
        """Return, for each row group, the runs of rows in which the condition can be true."""
        names = fields_of(bound)
        fixed_bounds, file = self._fixed_bounds(number, list(names)), self._parquet(number)

        def fixed(name: str) -> Bounds:
            return fixed_bounds.get(name, Bounds())

        if file is None:
            sizes = np.diff(self._starts[self._firsts[number] : self._firsts[number + 1] + 1]).tolist()
            return [[(0, rows)] if can_match(bound, fixed) else [] for rows in sizes]
        fields = {name: (columns[name], self.schema[name]) for name in names if name in columns}
        return file.page_reader.can_match(bound, fields, fixed)

    def _sizes(
        self,
        number: int,
        group: int,
        matches: Sequence[tuple[int, int]],
        columns: Mapping[str, str],
        names: Iterable[str],
    ) -> tuple[int, int, int]:
        """Return the bytes of a row group, those to read, and those that the condition needs."""
        file = self._parquet(number)
        if file is None:
            return 0, 0, 0
        size = sum(length for _, length in file.runs(group, list(columns.values())))
        if not matches:
            return size, 0, 0
        needed = [columns[name] for name in names if name in columns]
        condition_bytes = sum(length for _, length in file.runs(group, needed))
        if list(matches) == [(0, int(file.rows[group]))]:
            return size, size, condition_bytes
        rows = numbers_in(np.array(matches, dtype=np.int64))
        plans = [file.page_reader.plan(group, column, rows) for column in needed]
        saved = sum(plan.chunk.size - plan.size for plan in plans if plan is not None)
        return size, size - saved, condition_bytes - saved


class SelectedRows(TableReader):
    """View of ascending rows of another reader; each unit holds the selected rows of one of its units."""

    def __init__(self, base: ParquetRows, rows: I64) -> None:
        self.base, self._rows = base, rows
        self.path, self.format, self.schema, self.window = base.path, base.format, base.schema, base.window
        units, inside = base._units_of(rows)
        edges = np.flatnonzero(np.diff(units, prepend=-1))
        self._units = units[edges]
        self._inside = np.split(inside, edges[1:])
        self._set_units(
            [len(rows_of_unit) for rows_of_unit in self._inside] if len(rows) else [], base._cache.max_bytes
        )

    def _load(self, unit: int, fields: Sequence[str]) -> Columns:
        return self.base._load_rows(int(self._units[unit]), self._inside[unit], fields)

    def _path_of(self, unit: int) -> str:
        return self.base._path_of(int(self._units[unit]))

    def _spans(self, field: str, indices: I64) -> Spans | None:
        return self.base._spans(field, self._rows[indices])

    def _known(self, field: str, indices: I64) -> Spans | None:
        return self.base._known(field, self._rows[indices])

    def _unit_runs(self, unit: int, fields: Sequence[str]) -> list[SourceRun] | None:
        return self.base._row_runs(int(self._units[unit]), self._inside[unit], fields)


def cell_bounds(field: Field, column: Column) -> Bounds:
    """Return the bounds of rows that all have this cell."""
    if isinstance(column, Ragged) and column.valid is not None and not column.valid[0]:
        return Bounds(1, 1)
    kind_of_value = comparison_of(field)
    value: Any = None
    if kind_of_value == BYTES and isinstance(column, Ragged):
        cell = column[0]
        value = None if cell is None else cell.tobytes()
    elif kind_of_value == NUMBER:
        dense = dense_of(field)
        values = Masked(column, *dense).values if isinstance(column, Ragged) and dense else column
        first = np.asarray(values)[:1]
        value = first[0].item()
    # NaN lies between no bounds.
    if value is None or value != value:
        return Bounds()
    return Bounds(1, 0, value, value)


# If a batch needs more rows of a row group on average, it is decoded as a whole.
MAX_ROWS_BY_PAGE = 2
# Pages are read if they are less than this fraction of the row group.
MAX_PAGE_FRACTION = 0.5
# Row groups that are sampled to estimate the decoded size of all.
SAMPLED_GROUPS = 64

Runs = list[SourceRun]


class PageReadPolicy:
    """Decides whether rows are read by pages instead of by row groups.

    Random orders need single rows of more row groups than the cache holds: then a row costs its pages only. A
    row group that is needed again soon, as in quasi-random orders, is decoded as a whole and cached.
    """

    def __init__(self, reader: ParquetRows) -> None:
        self._reader, self._cache_bytes = reader, reader._cache.max_bytes
        units = len(reader._starts) - 1
        # Clock (requested row groups so far) of the last request of each row group.
        self._last_request = np.full(units, -(1 << 62), np.int64)
        self._clock = 0
        # Bytes of each row group that were read for single rows.
        self._spent = np.zeros(units, np.int64)
        self._sizes: dict[tuple[str, ...], float] = {}

    def wants(self, units: I64, rows: I64, names: tuple[str, ...]) -> bool:
        """True if these local rows, each of its unit, should be read by pages."""
        used, _ = _native.distinct(units)
        if not names or not len(used) or len(units) > MAX_ROWS_BY_PAGE * len(used):
            return False
        size = self._size(names)
        if self.all_fit(names):
            return False
        lately = self._last_request[used] > self._clock - self._cache_bytes / size
        if lately.mean() > 0.5:
            return False
        first = used[0]
        runs = self._reader._row_runs(first, np.unique(rows[units == first]), names)
        return runs is not None and _bytes(runs) < MAX_PAGE_FRACTION * _bytes(
            self._reader._unit_runs(first, names)
        )

    def saves(self, units: I64, rows: I64, names: tuple[str, ...]) -> bool:
        """True if the pages of these rows and of earlier ones are smaller than their row groups."""
        used = np.unique(units).tolist()
        for unit in used:
            page_bytes = _bytes(self._reader._row_runs(unit, np.unique(rows[units == unit]), names))
            if not names or self._spent[unit] + page_bytes >= _bytes(self._reader._unit_runs(unit, names)):
                return False
            self._spent[unit] += page_bytes
        return bool(used)

    def all_fit(self, names: tuple[str, ...]) -> bool:
        """True if these fields of all row groups fit in the cache."""
        return self._size(names) * len(self._last_request) <= self._cache_bytes

    def note(self, units: I64) -> None:
        """Record a request of these units. Races between threads only blur the clock."""
        used, _ = _native.distinct(units)
        self._last_request[used] = self._clock
        self._clock += len(used)

    def _size(self, names: tuple[str, ...]) -> float:
        if names not in self._sizes:
            looked = np.unique(
                np.linspace(0, len(self._last_request) - 1, SAMPLED_GROUPS).astype(np.int64)
            ).tolist()
            self._sizes[names] = max(
                1.0, sum(self._reader._decoded_size(unit, names) for unit in looked) / len(looked)
            )
        return self._sizes[names]


def _bytes(runs: Runs | None) -> int:
    return sum(size for _, _, size in runs or ())


def by_unit(units: I64, rows: I64) -> list[tuple[int, I64, I64]]:
    """Group rows by unit: (unit, its rows, their positions in the batch)."""
    order = np.lexsort((rows, units))
    edges = np.flatnonzero(np.diff(units[order], prepend=-1))
    groups = itertools.pairwise([*edges.tolist(), len(order)])
    return [(int(units[order[a]]), rows[order[a:b]], order[a:b]) for a, b in groups]
