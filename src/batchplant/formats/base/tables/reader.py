"""TableReader: base class of readers whose samples lie in units that are decoded as a whole and cached."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from .... import _native
from ....data.filters import ScanRun
from ....data.layout import Layout
from ....data.reader import Reader
from ....errors import BatchplantError, DamagedError
from ....schema.columns import I64, Column, Columns, Flags, Ragged, as_bytes, starts_of
from ....storage.cache import ChunkCache
from ....storage.spans import SourceRun, Spans, concat_spans, spans_of

# More rows than any file has; sums of row counts never overflow.
MAX_ROWS = 2**48


class TableReader(Reader):
    """A format's reader sets ``schema``, calls :meth:`_set_units`, and implements :meth:`_load`."""

    # Name of a unit in messages, and its plural.
    unit_name, unit_names = "row group", "row groups"

    def _load(self, unit: int, fields: Sequence[str]) -> Columns:
        """Return the cells of these fields in a unit; any exception counts as damage."""
        raise NotImplementedError

    def _unit_runs(self, unit: int, fields: Sequence[str]) -> list[SourceRun] | None:
        """Byte ranges (file, start, size) of a unit; None: unknown."""
        return None

    def _known(self, field: str, indices: I64) -> Spans | None:
        """Return the spans of cells if they are known without reading."""
        return None

    def _set_units(self, rows: Any, cache: int | None = None) -> None:
        """Set the number of samples of each unit. ``cache``: bytes of decoded units to keep."""
        rows = np.asarray(rows, dtype=np.int64)
        total = sum(rows.tolist())
        if (rows < 0).any() or total > MAX_ROWS:
            raise DamagedError(f"it says that there are {total} rows", path=self.path)
        self._starts = starts_of(rows)
        self.length = total
        self._cache = ChunkCache(cache)
        self._window: _Window | None = None

    def _decoded(self, unit: int, fields: tuple[str, ...]) -> Columns:
        """Decode a unit."""
        try:
            columns = self._load(unit, fields)
            count = int(self._starts[unit + 1] - self._starts[unit])
            if fields and columns.rows != count:
                raise DamagedError(f"{columns.rows} rows where {count} were promised")
            return columns
        except Exception as error:
            raise self._damage(unit, error) from None

    def _damage(self, unit: int, error: Exception) -> BatchplantError:
        if isinstance(error, BatchplantError):
            if error.sample is not None:
                error.sample += int(self._starts[unit])
            return error.at(path=self._path_of(unit))
        # Libraries raise anything on nonsense.
        message = str(error).strip().split("\n")[0] or type(error).__name__
        return DamagedError(f"{self.unit_name} {unit} cannot be read: {message}", path=self._path_of(unit))

    def _path_of(self, unit: int) -> str:
        """Return the file of a unit."""
        return self.path

    def _unit(self, unit: int, fields: tuple[str, ...]) -> Unit:
        return self._cache.get(
            (unit, fields), lambda: Unit(self._decoded(unit, fields)), lambda unit: unit.size
        )

    def _units_of(self, indices: I64) -> tuple[I64, I64]:
        """Return the unit of every sample and its row in that unit."""
        return _native.pieces_of(self._starts, np.ascontiguousarray(indices))

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        names = tuple(fields)
        if not len(indices):
            return self._nothing(names)
        units, rows = self._units_of(indices)
        used, piece = _native.distinct(units)
        if len(used) == 1:
            return take_rows(self._unit(used[0], names).columns, rows)
        window = self._window
        # Consecutive batches often need the same units.
        if window is not None and window.names == names and window.numbers == used:
            return _gather(window, piece, rows)
        cached = self._cache.all_of([(unit, names) for unit in used])
        if cached is not None:
            self._window = _Window(used, names, cached)
            return _gather(self._window, piece, rows)
        parts, done = [], 0
        while done < len(used):
            # All units of a batch at a time, unless they are more than the cache may hold.
            group = [self._unit(used[done], names)]
            max_units = max(1, self._cache.max_bytes // max(1, group[0].size))
            group += [self._unit(unit, names) for unit in used[done + 1 : done + max_units]]
            window = _Window(used[done : done + len(group)], names, group)
            if len(group) == len(used):
                self._window = window
                return _gather(window, piece, rows)
            positions = np.flatnonzero((piece >= done) & (piece < done + len(group)))
            parts.append((positions, _gather(window, piece[positions] - done, rows[positions])))
            done += len(group)
        back = np.argsort(np.concatenate([positions for positions, _ in parts]))
        return Columns.concat([columns for _, columns in parts]).take(back)

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        """Return the spans of cells with known locations, and of whole units for the other fields."""
        cells = {name: self._known(name, indices) for name in fields}
        read_whole = [name for name, spans in cells.items() if spans is None]
        runs = self._batch_runs(indices, read_whole) if read_whole else []
        if runs is None:
            return None
        return concat_spans([spans_of(runs), *(spans for spans in cells.values() if spans is not None)])

    def _batch_runs(self, indices: I64, fields: Sequence[str]) -> list[SourceRun] | None:
        """Byte ranges that reading these samples takes; None: unknown."""
        runs_of_units = [
            self._unit_runs(unit, fields) for unit in np.unique(self._units_of(indices)[0]).tolist()
        ]
        return None if None in runs_of_units else [run for runs in runs_of_units for run in runs or ()]

    def _nothing(self, fields: Sequence[str]) -> Columns:
        columns = Columns()
        for name in fields:
            cell = self.schema[name].cell
            columns[name] = (
                Ragged(np.empty(0, np.uint8), np.zeros(1, np.int64))
                if cell is None
                else np.empty((0, *cell[1]), cell[0])
            )
        return columns

    def _consecutive(self, size: int, fields: tuple[str, ...]) -> Iterator[Columns]:
        waiting: list[Columns] = []
        have = 0
        for columns in self._ahead(fields):
            start = 0
            while columns.rows - start >= size - have:
                waiting.append(columns.take(slice(start, start + size - have)))
                start += size - have
                yield Columns.concat(waiting)
                waiting, have = [], 0
            if start < columns.rows:
                waiting.append(columns.take(slice(start, None)))
                have += columns.rows - start
        if waiting:
            yield Columns.concat(waiting)

    def _scan_runs(self, fields: Sequence[str]) -> Iterator[ScanRun]:
        """Yield units, decoded past the cache: they are not needed again soon."""
        for unit, (start, end) in enumerate(itertools.pairwise(self._starts.tolist())):
            if start < end:
                yield ScanRun(start, end, functools.partial(self._decoded, unit, tuple(fields)))

    def _ahead(self, fields: tuple[str, ...]) -> Iterator[Columns]:
        """Yield all units in order while the next one is being decoded."""
        count = len(self._starts) - 1
        pool = ThreadPoolExecutor(1, thread_name_prefix="batchplant-ahead")
        task: Future[Columns] | None = None
        try:
            for unit in range(count):
                now = task or pool.submit(self._decoded, unit, fields)
                columns = now.result()
                task = pool.submit(self._decoded, unit + 1, fields) if unit + 1 < count else None
                yield columns
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _layout(self) -> Layout:
        return Layout(block_sizes=lambda: np.diff(self._starts))

    def where(self, sample: int) -> str:
        return self._path_of(int(self._units_of(np.array([sample]))[0][0]))

    def facts(self) -> dict[str, object]:
        max_rows = int(np.diff(self._starts).max(initial=0))
        return {self.unit_names: len(self._starts) - 1, f"rows of a {self.unit_name}": f"up to {max_rows}"}

    def close(self) -> None:
        self._cache.clear()
        self._window = None


class Unit:
    """A decoded unit."""

    __slots__ = ("columns", "size")

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.size = size_of(columns)


class _Window:
    """Decoded units from which batches gather rows natively."""

    def __init__(self, numbers: list[int], names: tuple[str, ...], units: list[Unit]) -> None:
        self.numbers, self.names = numbers, names
        self.first = units[0].columns
        self.pieces: dict[str, _native.Pieces] = {}
        # For columns with missing cells: the validity of each unit; None: all valid.
        self.valid: dict[str, list[Flags | None]] = {}
        for name in names:
            pieces = self.pieces[name] = _native.Pieces(len(units))
            for number, unit in enumerate(units):
                column = unit.columns[name]
                if isinstance(column, Ragged):
                    pieces.put(number, column.data, column.offsets)
                    if column.valid is not None:
                        self.valid.setdefault(name, [None] * len(units))[number] = column.valid
                else:
                    pieces.put(number, as_bytes(column))


def size_of(columns: Columns) -> int:
    """Bytes of decoded columns."""
    return sum(
        column.data.nbytes + column.offsets.nbytes if isinstance(column, Ragged) else column.nbytes
        for column in columns.values()
    )


def take_rows(columns: Columns, rows: I64) -> Columns:
    """Select rows; arrays are copies that the caller may change."""
    first, count = int(rows[0]), len(rows)
    run = int(rows[-1]) - first == count - 1 and bool((np.diff(rows) == 1).all())
    selection: Any = slice(first, first + count) if run else rows
    return Columns(
        (
            name,
            column.take(selection)
            if isinstance(column, Ragged)
            else column[selection].copy()
            if run
            else column[rows],
        )
        for name, column in columns.items()
    )


def _gather(window: _Window, piece: I64, rows: I64) -> Columns:
    """Gather row ``rows[i]`` of unit ``piece[i]`` of the window for every i."""
    return Columns((name, _gather_column(window, name, piece, rows)) for name in window.names)


def _gather_column(window: _Window, name: str, piece: I64, rows: I64) -> Column:
    first, pieces = window.first[name], window.pieces[name]
    if not isinstance(first, Ragged):
        width = first.dtype.itemsize * math.prod(first.shape[1:])
        values = pieces.rows(width, piece, rows) if width else np.empty(0, np.uint8)
        return values.view(first.dtype).reshape(len(rows), *first.shape[1:])
    cells = Ragged(*pieces.cells(piece, rows))
    if name in window.valid:
        cells.valid = np.ones(len(rows), dtype=np.bool_)
        for number, valid in enumerate(window.valid[name]):
            if valid is not None:
                matches = piece == number
                cells.valid[matches] = valid[rows[matches]]
    return cells
