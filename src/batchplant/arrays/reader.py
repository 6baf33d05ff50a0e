"""GridReader: a dataset whose fields are arrays in chunks. A format says which arrays there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ..chunks import ChunkCache
from ..codecs import npy
from ..codecs.infer import infer_image
from ..columns import I64, Column, Columns, Ragged, Spans, as_bytes, starts_of
from ..errors import BatchplantError, DamagedError, OptionError, Problem, SchemaError
from ..reader import Reader
from ..schema import Bytes, Field, Schema, Text
from .grid import Grid
from .layout import NOTE, OFFSETS, SHAPE, VALID, VALUES, Note, fixed, parts_of
from .store import Store, open_store

# The field of an array that stands alone.
PLAIN = "data"
LOOKED_AT = 16


class GridReader(Reader):
    """Arrays in chunks as a dataset. A format implements :meth:`_find`."""

    # The names that tell the top of a dataset.
    roots: tuple[str, ...] = ()

    def __init__(
        self,
        path: str,
        *,
        fields: Iterable[str] | None = None,
        missing: str = "auto",
        cache: int | None = None,
    ) -> None:
        if missing not in ("auto", "fill", "error"):
            raise OptionError(f"missing is auto, fill or error, not {missing!r}")
        self.path = path
        self._cache = ChunkCache(cache)
        self.store = open_store(path, self.roots)
        try:
            self._grids, attributes = self._find(self.store)
            note = attributes.get(NOTE)
            wanted = None if fields is None else list(fields)
            self.note = None if note is None else Note.from_json(note)
            self._open_plain(wanted) if self.note is None else self._open_noted(self.note, wanted)
        except BatchplantError as error:
            self.store.close()
            raise error.at(path=path) from None
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError) as error:
            self.store.close()
            raise DamagedError(f"its metadata is damaged: {error}", path=path) from None
        damage = self.note is not None if missing == "auto" else missing == "error"
        for grid in self.parts.values():
            grid.may_miss = not damage

    # -- what a format implements ----------------------------------------------------------------------

    def _find(self, store: Store) -> tuple[dict[str, Grid], dict[str, Any]]:
        """Every array by its path (the top itself: an empty path), and the attributes of the top."""
        raise NotImplementedError

    def _differing(self) -> Iterator[Problem]:
        """Metadata that contradicts itself."""
        return iter(())

    # -- opening ---------------------------------------------------------------------------------------

    def _open_noted(self, note: Note, wanted: Sequence[str] | None) -> None:
        self.schema = note.schema if wanted is None else note.schema.select(wanted)
        self.length = note.samples
        self.parts: dict[tuple[str, str], Grid] = {}
        for name, field in self.schema.items():
            for part, (dtype, row) in parts_of(field).items():
                path = f"{note.paths[name]}/{part}" if part else note.paths[name]
                if path not in self._grids:
                    raise DamagedError(f"there is no array {path}", field=name)
                grid = self._as_noted(self._grids[path], dtype, row)
                if (grid.dtype, grid.row) != (dtype, row):
                    message = f"{path} has rows of {grid.dtype} {grid.row}, and {dtype} {row} are needed"
                    raise DamagedError(message, field=name)
                if part != VALUES or fixed(field) is not None:
                    need = note.samples + (part == OFFSETS)
                    if grid.shape[0] != need:
                        raise DamagedError(
                            f"{path} has {grid.shape[0]} rows, and {need} are needed", field=name
                        )
                self.parts[name, part] = grid

    def _as_noted(self, grid: Grid, dtype: np.dtype[Any], row: tuple[int, ...]) -> Grid:
        """The array with this dtype and row, where the format has to store it as another."""
        return grid

    def _open_plain(self, wanted: Sequence[str] | None) -> None:
        named: dict[str, Grid] = {}
        for path, grid in self._grids.items():
            name = path.replace("/", ".") or PLAIN
            if grid.shape and (wanted is None or name in wanted):
                if name in named:
                    raise SchemaError(f"two arrays are called {name}")
                named[name] = grid
        for name in wanted or ():
            if name not in named:
                raise SchemaError(f"there is no array {name!r}; there are: {', '.join(self._grids)}")
        if not named:
            raise DamagedError("there are no arrays in it")
        if len({grid.shape[0] for grid in named.values()}) > 1:
            said = ", ".join(f"{name} {grid.shape[0]}" for name, grid in named.items())
            raise SchemaError(f"the arrays differ in length ({said}); choose equal ones with fields=[…]")
        fields = {name: self._field_of(name, named[name]) for name in (wanted or named)}
        self.schema = Schema(fields)
        self.length = next(iter(named.values())).shape[0]
        self.parts = {(name, ""): named[name] for name in fields}

    def _field_of(self, name: str, grid: Grid) -> Field:
        try:
            if not grid.dtype.hasobject:
                return npy.field_of(grid.dtype, grid.row)
            if len(grid.shape) != 1:
                raise SchemaError("text and bytes of more than one axis have no field kind")
            if not grid.dtype.metadata:
                return Text()
            # Bytes may be pictures; the first few tell.
            cells = grid.rows(self._cache, np.arange(min(LOOKED_AT, grid.shape[0])))
            assert isinstance(cells, Ragged)
            return infer_image(cells) or Bytes()
        except BatchplantError as error:
            raise error.at(field=name) from None

    # -- reading ---------------------------------------------------------------------------------------

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        found = Columns()
        for name in fields:
            try:
                found[name] = self._read_field(name, indices)
            except BatchplantError as error:
                raise error.at(path=self.path, field=name) from None
            except MemoryError:
                message = "its cells do not fit into memory"
                raise DamagedError(message, path=self.path, field=name) from None
        return found

    def _read_field(self, name: str, indices: I64) -> Column:
        field = self.schema[name]
        if self.note is None:
            return self.parts[name, ""].rows(self._cache, indices, field)
        if (name, "") in self.parts:
            return self.parts[name, ""].rows(self._cache, indices)
        valid = self._rows(name, VALID, indices)
        values = self.parts[name, VALUES]
        if (name, OFFSETS) not in self.parts:
            rows = values.rows(self._cache, indices)
            assert not isinstance(rows, Ragged)
            return Ragged(as_bytes(rows[valid]), starts_of(valid * values.width), None, valid)
        starts, counts = self._runs(name, indices)
        shape = self._rows(name, SHAPE, indices)
        if shape is not None and ((shape < 0) | (shape[:, 2:] > 4)).any():
            raise DamagedError("the shape of a picture is damaged")
        data = values.runs(self._cache, starts, counts, indices)
        shape = shape if shape is not None and shape.any() else None
        return Ragged(data, starts_of(counts * values.width), shape, valid)

    def _rows(self, name: str, part: str, indices: I64) -> Any:
        grid = self.parts.get((name, part))
        return None if grid is None else grid.rows(self._cache, indices)

    def _runs(self, name: str, indices: I64) -> tuple[I64, I64]:
        """Where cells begin in ``values``, and how many rows of it they have."""
        starts, ends = self._rows(name, OFFSETS, indices), self._rows(name, OFFSETS, indices + 1)
        bad = (starts < 0) | (ends < starts) | (ends > self.parts[name, VALUES].shape[0])
        if bad.any():
            raise DamagedError("its offsets are damaged", sample=int(indices[int(np.argmax(bad))]))
        return starts, ends - starts

    def _spans(self, field: str, indices: I64) -> Spans | None:
        try:
            return self._find_spans(field, indices)
        except BatchplantError as error:
            raise error.at(path=self.path, field=field) from None

    def _find_spans(self, field: str, indices: I64) -> Spans | None:
        ragged = (field, OFFSETS) in self.parts
        grid = self.parts.get((field, VALUES if ragged else ""))
        if grid is None or not grid.plain or (not ragged and self.schema[field].cell is None):
            return None
        starts, counts = self._runs(field, indices) if ragged else (indices, np.ones_like(indices))
        found = grid.places(self._cache, starts, counts)
        if found is None:
            return None
        files, file, start, size = found
        valid, shape = self._rows(field, VALID, indices), self._rows(field, SHAPE, indices)
        if valid is not None:
            size = np.where(valid, size, -1)
        return Spans(files or [self.path], start, size, file, shape if shape is None or shape.any() else None)

    def blocks(self) -> I64 | None:
        """By the chunks of the field that has the most bytes."""
        if not self.length:
            return None
        heavy = {name: self.parts.get((name, ""), self.parts.get((name, VALUES))) for name in self.schema}
        name, grid = max(
            heavy.items(), key=lambda one: 0 if one[1] is None else one[1].width * one[1].shape[0]
        )
        assert grid is not None
        rows = np.arange(self.length, dtype=np.int64)
        return (self._runs(name, rows)[0] if (name, OFFSETS) in self.parts else rows) // grid.chunks[0]

    def facts(self) -> dict[str, Any]:
        return {
            f"chunks of {name}{'/' if part else ''}{part}": grid.said()
            for (name, part), grid in self.parts.items()
            if part in ("", VALUES)
        }

    def own_checks(self) -> tuple[str, ...]:
        kept = [one for grid in self.parts.values() for one in grid.own_checks()]
        return tuple(dict.fromkeys([*self.store.own_checks, *kept]))

    def _verify(self) -> Iterator[Problem]:
        yield from self.store.problems()
        yield from self._differing()
        for (name, part), grid in self.parts.items():
            if part == OFFSETS:
                ends = grid.rows(self._cache, np.array([0, self.length]))
                assert not isinstance(ends, Ragged)
                if ends.tolist() != [0, self.parts[name, VALUES].shape[0]]:
                    yield Problem("its offsets do not cover its values", self.path, field=name)

    def close(self) -> None:
        self._cache.clear()
        for grid in self.parts.values():
            grid.forget()
        self.store.close()
