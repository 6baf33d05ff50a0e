"""TableReader: samples in units that are decoded whole, and kept while there is room for them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from .. import _native
from ..chunks import ChunkCache
from ..columns import I64, Column, Columns, Ragged, starts_of
from ..errors import BatchplantError, DamagedError
from ..reader import Reader

# More rows than any file has; sums of row counts never overflow.
MOST_ROWS = 2**48


class TableReader(Reader):
    """A format's reader sets ``schema``, calls :meth:`_set_units`, and implements :meth:`_load`."""

    # What a unit is called in messages.
    unit_name = "row group"

    def _load(self, unit: int, fields: Sequence[str]) -> Columns:
        """The cells of these fields in a whole unit; whatever it raises is taken for damage."""
        raise NotImplementedError

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
        self._failed: dict[tuple[int, tuple[str, ...]], BatchplantError] = {}

    def _decoded(self, unit: int, fields: tuple[str, ...]) -> Columns:
        """A whole unit. One that could not be read is not tried again: every sample of it would ask."""
        known = self._failed.get((unit, fields))
        if known is not None:
            raise copy.copy(known)
        try:
            columns = self._load(unit, fields)
            count = int(self._starts[unit + 1] - self._starts[unit])
            if fields and columns.rows != count:
                raise DamagedError(f"{columns.rows} rows where {count} were promised")
            return columns
        except Exception as error:
            made = self._failed[unit, fields] = self._damage(unit, error)
            raise copy.copy(made) from None

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

    def _unit(self, unit: int, fields: tuple[str, ...]) -> Columns:
        return self._cache.get((unit, fields), lambda: self._decoded(unit, fields), size_of)

    def _units_of(self, indices: I64) -> tuple[I64, I64]:
        """The unit of every sample, and its row there."""
        units = np.searchsorted(self._starts, indices, side="right") - 1
        return units, indices - self._starts[units]

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        names = tuple(fields)
        if not len(indices):
            return self._nothing(names)
        units, rows = self._units_of(indices)
        if (units == units[0]).all():
            return taken(self._unit(int(units[0]), names), rows)
        order = np.argsort(units, kind="stable")
        edges = np.flatnonzero(np.diff(units[order], prepend=-1))
        parts = [
            taken(self._unit(int(units[places[0]]), names), rows[places])
            for places in np.split(order, edges[1:])
        ]
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        return gathered(parts, back)

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

    def scan(self, size: int = 1024, fields: Iterable[str] | None = None) -> Iterator[Columns]:
        """All samples in order. The arrays may lie in what was decoded: copy them to change them."""
        names = tuple(self._schema_of(fields))
        waiting: list[Columns] = []
        have = 0
        for columns in self._ahead(names):
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
        rows = np.diff(self._starts)
        if not len(rows):
            return {f"{self.unit_name}s": 0}
        most = int(rows.max())
        return {f"{self.unit_name}s": len(rows), f"rows of a {self.unit_name}": f"up to {most}"}

    def close(self) -> None:
        self._cache.clear()


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


def gathered(parts: Sequence[Columns], back: I64) -> Columns:
    """The parts one after another, then row ``back[i]`` of them at place i."""
    return Columns((name, _gathered([part[name] for part in parts], back)) for name in parts[0])


def _gathered(parts: Sequence[Column], back: I64) -> Column:
    if not isinstance(parts[0], Ragged):
        return np.concatenate(parts)[back]  # type: ignore[arg-type]
    ragged = [part for part in parts if isinstance(part, Ragged)]
    # Where each cell of the parts, in their order, goes to.
    sizes = np.concatenate([part.sizes for part in ragged])
    offsets = starts_of(sizes[back])
    data = np.empty(offsets[-1], dtype=np.uint8)
    goes = np.empty(len(back), dtype=np.int64)
    goes[back] = offsets[:-1]
    first = 0
    for part in ragged:
        last = first + len(part)
        _native.copy_runs(part.data, np.ascontiguousarray(part.starts), part.sizes, data, goes[first:last])
        first = last
    valid = None
    if any(part.valid is not None for part in ragged):
        valid = np.concatenate([np.ones(len(p), np.bool_) if p.valid is None else p.valid for p in ragged])[
            back
        ]
    return Ragged(data, offsets, valid=valid)
