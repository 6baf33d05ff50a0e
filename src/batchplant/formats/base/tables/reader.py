"""TableReader: samples in units that are decoded whole, and kept while there is room for them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from .... import _native
from ....data.reader import Reader
from ....errors import BatchplantError, DamagedError
from ....schema.columns import (
    I64,
    Column,
    Columns,
    Flags,
    Ragged,
    Spans,
    as_bytes,
    concat_spans,
    spans_of,
    starts_of,
)
from ....storage.cache import ChunkCache

# More rows than any file has; sums of row counts never overflow.
MOST_ROWS = 2**48


class TableReader(Reader):
    """A format's reader sets ``schema``, calls :meth:`_set_units`, and implements :meth:`_load`."""

    # What a unit is called in messages, and several.
    unit_name, unit_names = "row group", "row groups"

    def _load(self, unit: int, fields: Sequence[str]) -> Columns:
        """The cells of these fields in a whole unit; whatever it raises is taken for damage."""
        raise NotImplementedError

    def _unit_runs(self, unit: int, fields: Sequence[str]) -> list[tuple[str, int, int]] | None:
        """Where the bytes lie that a whole unit takes: file, start, size; None where nobody knows."""
        return None

    def _known(self, field: str, indices: I64) -> Spans | None:
        """Where cells lie as they are, if that is known without reading."""
        return None

    # -- what it gets ----------------------------------------------------------------------------------

    def _set_units(self, rows: Any, cache: int | None = None) -> None:
        """How many samples each unit has. ``cache``: bytes of decoded units to keep."""
        rows = np.asarray(rows, dtype=np.int64)
        total = sum(rows.tolist())
        if (rows < 0).any() or total > MOST_ROWS:
            raise DamagedError(f"it says that there are {total} rows", path=self.path)
        self._starts = starts_of(rows)
        self.length = total
        self._cache = ChunkCache(cache)
        self._window: _Window | None = None

    def _decoded(self, unit: int, fields: tuple[str, ...]) -> Columns:
        """A whole unit."""
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
        # Libraries raise what they like on nonsense.
        message = str(error).strip().split("\n")[0] or type(error).__name__
        return DamagedError(f"{self.unit_name} {unit} cannot be read: {message}", path=self._path_of(unit))

    def _path_of(self, unit: int) -> str:
        """The file that a unit lies in."""
        return self.path

    def _unit(self, unit: int, fields: tuple[str, ...]) -> Unit:
        return self._cache.get(
            (unit, fields), lambda: Unit(self._decoded(unit, fields)), lambda one: one.size
        )

    def _units_of(self, indices: I64) -> tuple[I64, I64]:
        """The unit of every sample, and its row there."""
        return _native.pieces_of(self._starts, np.ascontiguousarray(indices))

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        names = tuple(fields)
        if not len(indices):
            return self._nothing(names)
        units, rows = self._units_of(indices)
        used, piece = _native.distinct(units)
        if len(used) == 1:
            return taken(self._unit(used[0], names).columns, rows)
        window = self._window
        # One batch after another asks for the same units.
        if window is not None and window.names == names and window.numbers == used:
            return _picked(window, piece, rows)
        kept = self._cache.all_of([(unit, names) for unit in used])
        if kept is not None:
            self._window = _Window(used, names, kept)
            return _picked(self._window, piece, rows)
        parts, done = [], 0
        while done < len(used):
            # All units of a batch at a time, unless they are more than the cache may hold.
            units_here = [self._unit(used[done], names)]
            most = max(1, self._cache.most // max(1, units_here[0].size))
            units_here += [self._unit(unit, names) for unit in used[done + 1 : done + most]]
            window = _Window(used[done : done + len(units_here)], names, units_here)
            if len(units_here) == len(used):
                self._window = window
                return _picked(window, piece, rows)
            here = np.flatnonzero((piece >= done) & (piece < done + len(units_here)))
            parts.append((here, _picked(window, piece[here] - done, rows[here])))
            done += len(units_here)
        back = np.argsort(np.concatenate([here for here, _ in parts]))
        return Columns.concat([columns for _, columns in parts]).take(back)

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        """The cells of which it is known where they lie, and of the other fields whole units."""
        cells = {name: self._known(name, indices) for name in fields}
        rest = [name for name, found in cells.items() if found is None]
        runs = self._batch_runs(indices, rest) if rest else []
        if runs is None:
            return None
        return concat_spans([spans_of(runs), *(one for one in cells.values() if one is not None)])

    def _batch_runs(self, indices: I64, fields: Sequence[str]) -> list[tuple[str, int, int]] | None:
        """Where the bytes lie that reading these samples takes; None where nobody knows."""
        found = [self._unit_runs(unit, fields) for unit in np.unique(self._units_of(indices)[0]).tolist()]
        return None if None in found else [run for runs in found for run in runs or ()]

    def _nothing(self, fields: Sequence[str]) -> Columns:
        found = Columns()
        for name in fields:
            cell = self.schema[name].cell
            found[name] = (
                Ragged(np.empty(0, np.uint8), np.zeros(1, np.int64))
                if cell is None
                else np.empty((0, *cell[1]), cell[0])
            )
        return found

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

    def _scan_runs(self, fields: Sequence[str]) -> Iterator[tuple[int, int]]:
        return ((start, end) for start, end in itertools.pairwise(self._starts.tolist()) if start < end)

    def _scan_run(self, start: int, end: int, fields: Sequence[str]) -> Columns:
        """A whole unit, which nobody is likely to want soon again."""
        return self._decoded(int(np.searchsorted(self._starts, start, side="right")) - 1, tuple(fields))

    def _ahead(self, fields: tuple[str, ...]) -> Iterator[Columns]:
        """All units in order, the next being decoded while one is in use."""
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

    def blocks(self) -> I64 | None:
        return np.repeat(np.arange(len(self._starts) - 1), np.diff(self._starts))

    def where(self, sample: int) -> str:
        return self._path_of(int(self._units_of(np.array([sample]))[0][0]))

    def facts(self) -> dict[str, Any]:
        most = int(np.diff(self._starts).max(initial=0))
        return {self.unit_names: len(self._starts) - 1, f"rows of a {self.unit_name}": f"up to {most}"}

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
    """Some units, their bytes at hand: batches take rows from all over them."""

    def __init__(self, numbers: list[int], names: tuple[str, ...], units: list[Unit]) -> None:
        self.numbers, self.names = numbers, names
        self.first = units[0].columns
        self.pieces: dict[str, _native.Pieces] = {}
        # Of columns in which cells may be missing, for each unit; None where all are there.
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
    """The bytes that decoded columns take."""
    return sum(
        column.data.nbytes + column.offsets.nbytes if isinstance(column, Ragged) else column.nbytes
        for column in columns.values()
    )


def taken(columns: Columns, rows: I64) -> Columns:
    """These rows; arrays are copies that the caller may change."""
    first, count = int(rows[0]), len(rows)
    run = int(rows[-1]) - first == count - 1 and bool((np.diff(rows) == 1).all())
    wanted: Any = slice(first, first + count) if run else rows
    return Columns(
        (
            name,
            column.take(wanted)
            if isinstance(column, Ragged)
            else column[wanted].copy()
            if run
            else column[rows],
        )
        for name, column in columns.items()
    )


def _picked(window: _Window, piece: I64, rows: I64) -> Columns:
    """Row ``rows[i]`` of unit ``piece[i]`` of the window at place i."""
    return Columns((name, _picked_column(window, name, piece, rows)) for name in window.names)


def _picked_column(window: _Window, name: str, piece: I64, rows: I64) -> Column:
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
                here = piece == number
                cells.valid[here] = valid[rows[here]]
    return cells
