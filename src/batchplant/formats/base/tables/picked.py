"""Some rows of Parquet files: where a condition can be true, and a reader of them that reads little else."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ....data.expressions import Bound, Bounds, can_match, fields_of, how_of
from ....data.expressions.binding import BYTES, NUMBER
from ....data.filters import Pruned, numbers_in, ranges_of
from ....errors import DamagedError
from ....schema import Field
from ....schema.columns import I64, Column, Columns, Masked, Ragged, Spans, concat_columns, dense_of
from ....storage import is_remote
from .part import ParquetPart
from .reader import TableReader
from .scattered import Scattered, by_unit

# Rows of a file on a server that are read by pages, at most: what a batch reads is soon needed again.
SINGLE_ROWS = 4
# Decoded row groups that a quasi-random epoch shuffles at a time: with the next they stay in the cache.
WINDOW_BYTES, MOST_WINDOW = 128 << 20, 32


class File(NamedTuple):
    """One file of a table: None where a library reads it. ``columns``: field → column of the file.

    ``fixed``: what is known of fields that are no columns. ``kept``: of a row group the rows that count; None
    stands for all.
    """

    part: ParquetPart | None
    columns: Mapping[str, str]
    fixed: Mapping[str, Bounds]
    kept: Callable[[int], I64 | None] = lambda group: None


class ParquetRows(TableReader):
    """Row groups of Parquet files, which also tell where a condition can be true, and give single rows."""

    _firsts: I64

    def _set_window(self, parts: Iterable[ParquetPart]) -> None:
        """Fewer row groups at a time where they are large. The files alone decide, as they do on any rank."""
        sizes = [group.size for part in parts for group in part.footer.groups if group.size > 0]
        fit = WINDOW_BYTES * len(sizes) // max(1, sum(sizes))
        self.window = max(1, fit) if sizes and fit < MOST_WINDOW else None

    def _file(self, number: int, fields: Sequence[str]) -> File:
        """A file, and what is known of these fields."""
        raise NotImplementedError

    def _load_rows(self, unit: int, rows: I64 | None, fields: Sequence[str]) -> Columns:
        """The cells of some rows of a unit, in ascending order; None: of all."""
        raise NotImplementedError

    def _row_runs(self, unit: int, rows: I64, fields: Sequence[str]) -> list[tuple[str, int, int]] | None:
        """Where the bytes lie that reading these rows of a unit takes: file, start, size; None: unknown."""
        raise NotImplementedError

    def _picked(self, rows: I64) -> Picked:
        return Picked(self, rows)

    @functools.cached_property
    def _scattered(self) -> Scattered:
        units = len(self._starts) - 1
        return Scattered(units, self._cache.most, self._decoded_size, self._unit_runs, self._row_runs)

    def _decoded_size(self, unit: int, fields: Sequence[str]) -> int:
        """About how many bytes a unit takes in memory."""
        rows = int(self._starts[unit + 1] - self._starts[unit])
        cells = {name: self.schema[name].cell for name in fields}
        fixed = sum(dtype.itemsize * math.prod(shape) for dtype, shape in filter(None, cells.values()))
        packed = self._unit_runs(unit, [name for name, cell in cells.items() if cell is None])
        return rows * fixed + sum(size for _, _, size in packed or ())

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        units, rows = self._units_of(indices)
        names = tuple(fields)
        if self._is_local:
            scattered = self._scattered.wants(units, rows, names)
        else:
            scattered = self._are_single(units, names) and self._scattered.saves(units, rows, names)
        self._scattered.note(units)
        if scattered:
            # Whoever reads all of it says what is wrong, and where.
            with contextlib.suppress(Exception):
                return self._read_pages(by_unit(units, rows), fields)
        return super()._read(indices, fields)

    def _are_single(self, units: I64, names: tuple[str, ...]) -> bool:
        """Whether a few rows of a file on a server are read by themselves: no loader asks for row groups."""
        used = np.unique(units).tolist()
        held = (self._cache.all_of([(unit, names)]) is not None for unit in used)
        return len(units) <= SINGLE_ROWS and not self._are_planned(used) and not any(held)

    def _are_planned(self, units: Sequence[int]) -> bool:
        """Whether a loader has asked for the bytes of units ahead, or nobody knows."""
        return True

    def _read_pages(self, wanted: Sequence[tuple[int, I64, I64]], fields: Sequence[str]) -> Columns:
        """The pages that rows are in, of each unit; arrays go where they belong at once."""
        order = np.concatenate([places for _, _, places in wanted])
        dense: dict[str, Any] = {}
        ragged: dict[str, list[Column]] = {}
        for unit, rows, places in wanted:
            once, which = np.unique(rows, return_inverse=True)
            found = self._load_rows(unit, once, fields)
            if found.rows != len(once):
                raise DamagedError(f"{found.rows} rows where {len(once)} were promised")
            for name, column in (found if len(once) == len(rows) else found.take(which)).items():
                if isinstance(column, Ragged):
                    ragged.setdefault(name, []).append(column)
                    continue
                if name not in dense:
                    dense[name] = np.empty((len(order), *column.shape[1:]), column.dtype)
                dense[name][places] = column
        for name, parts in ragged.items():
            dense[name] = Columns({name: concat_columns(parts)}).take(np.argsort(order))[name]
        return Columns((name, dense[name]) for name in fields)

    def _batch_runs(self, indices: I64, fields: Sequence[str]) -> list[tuple[str, int, int]] | None:
        units, rows = self._units_of(indices)
        if not self._is_local or not self._scattered.wants(units, rows, tuple(fields)):
            return super()._batch_runs(indices, fields)
        found = [self._row_runs(unit, np.unique(some), fields) for unit, some, _ in by_unit(units, rows)]
        return None if None in found else [run for runs in found for run in runs or ()]

    def _unread(self, fields: Sequence[str], indices: I64) -> Spans | None:
        """On a server without the units that are decoded, where all of them stay in the cache."""
        names = tuple(fields)
        if self._is_local or not names or not self._scattered.all_fit(names):
            return self._ranges(fields, indices)
        units, _ = self._units_of(indices)
        held = [unit for unit in np.unique(units).tolist() if self._cache.all_of([(unit, names)]) is not None]
        return self._ranges(fields, indices[~np.isin(units, held)])

    @property
    def _is_local(self) -> bool:
        """On a server, a request costs more than the rest of a row group."""
        return not is_remote(self.path)

    def _prune(self, bound: Bound) -> Pruned | None:
        names = fields_of(bound)
        runs: list[tuple[int, int]] = []
        skipped = whole = left = looked = 0
        for number, first in enumerate(self._firsts[:-1].tolist()):
            file = self._file(number, names)
            units = range(first, int(self._firsts[number + 1]))
            for group, (unit, found) in enumerate(zip(units, self._groups(file, bound, units), strict=True)):
                size, read, look = self._sizes(file, group, found, names)
                whole, left, looked, skipped = whole + size, left + read, looked + look, skipped + (not found)
                start, kept = int(self._starts[unit]), file.kept(group)
                edges = np.array(found, dtype=np.int64).reshape(-1, 2)
                edges = start + (edges if kept is None else np.searchsorted(kept, edges))
                runs += [(one, end) for one, end in edges.tolist() if one < end]
        ranges = ranges_of(runs)
        return Pruned(ranges, self.unit_names, len(self._starts) - 1, skipped, whole, whole - left, looked)

    def _groups(self, file: File, bound: Bound, units: range) -> list[list[tuple[int, int]]]:
        """For each row group the runs of rows in which the condition can be true."""

        def fixed(name: str) -> Bounds:
            return file.fixed.get(name, Bounds())

        if file.part is None:
            every = np.diff(self._starts[units.start : units.stop + 1]).tolist()
            return [[(0, rows)] if can_match(bound, fixed) else [] for rows in every]
        fields = {
            name: (file.columns[name], self.schema[name]) for name in fields_of(bound) if name in file.columns
        }
        return file.part.by_page.can_match(bound, fields, fixed)

    def _sizes(
        self, file: File, group: int, found: Sequence[tuple[int, int]], names: Sequence[str]
    ) -> tuple[int, int, int]:
        """The bytes of a row group, those of them that have to be read, and those for the condition alone."""
        if file.part is None:
            return 0, 0, 0
        size = sum(one for _, one in file.part.runs(group, list(file.columns.values())))
        if not found:
            return size, 0, 0
        columns = [file.columns[name] for name in names if name in file.columns]
        asked = sum(one for _, one in file.part.runs(group, columns))
        if list(found) == [(0, int(file.part.rows[group]))]:
            return size, size, asked
        rows, saved = numbers_in(np.array(found, dtype=np.int64)), 0
        for column in columns:
            plan = file.part.by_page.plan(group, column, rows)
            if plan is not None:
                saved += plan.chunk.size - plan.size
        return size, size - saved, asked - saved


class Picked(TableReader):
    """These rows of another table reader, in ascending order; a unit is what is left of one of its units."""

    def __init__(self, base: ParquetRows, rows: I64) -> None:
        self.base, self._rows = base, rows
        self.path, self.format, self.schema, self.window = base.path, base.format, base.schema, base.window
        units, inside = base._units_of(rows)
        edges = np.flatnonzero(np.diff(units, prepend=-1))
        self._units = units[edges]
        self._inside = np.split(inside, edges[1:])
        self._set_units([len(some) for some in self._inside] if len(rows) else [], base._cache.most)

    def _load(self, unit: int, fields: Sequence[str]) -> Columns:
        return self.base._load_rows(int(self._units[unit]), self._inside[unit], fields)

    def _path_of(self, unit: int) -> str:
        return self.base._path_of(int(self._units[unit]))

    def _spans(self, field: str, indices: I64) -> Spans | None:
        return self.base._spans(field, self._rows[indices])

    def _known(self, field: str, indices: I64) -> Spans | None:
        return self.base._known(field, self._rows[indices])

    def _unit_runs(self, unit: int, fields: Sequence[str]) -> list[tuple[str, int, int]] | None:
        return self.base._row_runs(int(self._units[unit]), self._inside[unit], fields)


def cell_bounds(field: Field, column: Column) -> Bounds:
    """What one cell tells of rows that all have it."""
    if isinstance(column, Ragged) and column.valid is not None and not column.valid[0]:
        return Bounds(1, 1)
    how = how_of(field)
    value: Any = None
    if how == BYTES and isinstance(column, Ragged):
        cell = column[0]
        value = None if cell is None else cell.tobytes()
    elif how == NUMBER:
        dense = dense_of(field)
        values = Masked(column, *dense).values if isinstance(column, Ragged) and dense else column
        found = np.asarray(values)[:1]
        value = found[0].item()
    # NaN lies between no bounds.
    if value is None or value != value:
        return Bounds()
    return Bounds(1, 0, value, value)
