"""Reading Arrow: IPC files and streams, Feather, and the folders that Hugging Face's datasets save."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ... import _native
from ...codecs.arrow import KEY, from_arrow, schema_of
from ...codecs.arrow.files import path_structs, with_files
from ...errors import BatchplantError, DamagedError, Problem, SchemaError
from ...schema import Field, Schema
from ...schema.columns import I64, Column, Columns, Ragged, starts_of
from ...storage import MappedSource
from ...storage.spans import Spans, concat_spans, spans_of
from ..base.format import Probe
from ..base.ipc import Part
from ..base.ipc.layout import FEATHER_1, MAGIC, SCHEMA, read_message
from ..base.records import GivenSchema, given_schema
from ..base.tables import TableReader
from .inplace import Places, places_of, shape_of
from .saved import SPLITS, STATE, saved_files


class ArrowReader(TableReader):
    """Reads .arrow, .feather and .ipc files, streams, and folders of datasets.save_to_disk.

    ``schema``: the kinds of some fields, in place of those that the types mean. ``split``: which part of a
    folder that holds several. ``cache``: bytes of decoded record batches to keep (default 256 MiB).
    ``feather1``: also Feather's first version, which a damaged file can crash the process with.
    """

    unit_name, unit_names = "record batch", "record batches"

    def __init__(
        self,
        path: str,
        *,
        schema: GivenSchema | str | None = None,
        split: str | None = None,
        cache: int | None = None,
        feather1: bool = False,
    ) -> None:
        self.path = path
        given = given_schema(schema) if schema is not None else {}
        self._parts = [Part(file, feather1) for file in saved_files(path, split)]
        try:
            self.schema = self._joined(given)
            rows = [count for part in self._parts for count in part.rows]
            self._set_units(rows, cache)
        except BatchplantError as error:
            raise error.at(path=path) from None
        # The library raises what it likes on nonsense, and names are looked at only when they are asked for.
        except Exception as error:
            raise DamagedError(f"the schema is damaged: {error}", path=path) from None
        self._firsts = np.cumsum([0, *(len(part.rows) for part in self._parts)])
        self._part_of_unit = np.repeat(np.arange(len(self._parts)), np.diff(self._firsts))
        self._found_places: dict[str, list[Places] | None] = {}
        self._found_values: dict[str, _native.Pieces] = {}

    def _joined(self, given: Any) -> Schema:
        first = self._parts[0]
        for part in self._parts[1:]:
            if not part.schema.equals(first.schema):
                raise SchemaError(f"its columns differ from those of {first.path}", path=part.path)
        nulls = set().union(*(part.nulls() for part in self._parts))
        gaps = set().union(*(part.gaps() for part in self._parts))
        # What is described needs no look at it.
        rows = first.first_rows([field.name for field in first.schema if not (field.metadata or {}).get(KEY)])
        fields: dict[str, Field] = dict(schema_of(first.schema, rows, nulls=nulls, gaps=gaps))
        for name, field in given.items():
            Schema(fields).select([name])
            fields[name] = field
        if not fields:
            raise SchemaError("there is no column in it")
        return Schema(fields)

    def _path_of(self, unit: int) -> str:
        return self._parts[int(self._part_of_unit[unit])].path

    def _load(self, unit: int, fields: Sequence[str]) -> Columns:
        number = int(self._part_of_unit[unit])
        part = self._parts[number]
        found = part.load(unit - int(self._firsts[number]), list(fields))
        found = path_structs(self.schema, found)
        return from_arrow(self.schema, fields, with_files(found, part.path, self.path))

    # -- cells where they lie --------------------------------------------------------------------------

    def _in_place(self, name: str) -> list[Places] | None:
        """Locations of a field's cells in each file; None if they have to be decoded."""
        if name not in self._found_places:
            self._found_places[name] = self._find_places(name)
        return self._found_places[name]

    def _find_places(self, name: str) -> list[Places] | None:
        result = []
        for part in self._parts:
            first = part.starts().get(name)
            if first is None or first[1] is None or part.table is not None:
                return None
            shape = shape_of(self.schema[name], part.schema.field(name).type, (first[0], first[1]))
            places = None if shape is None else places_of(shape, part.batches)
            if places is None:
                return None
            result.append(places)
        return result

    def _runs(self, part: int, places: Places, units: I64, rows: I64, indices: I64) -> tuple[I64, I64]:
        """Starts and sizes in a file of the cells at these rows of these batches."""
        shape, batch = places.shape, units - self._firsts[part]
        if places.offsets is None:
            return places.values[batch] + rows * shape.width, np.full(len(rows), shape.width, dtype=np.int64)
        source, kind = self._parts[part].source, np.int64 if shape.offset == 8 else np.int32
        at = places.offsets[batch] // shape.offset + rows
        if isinstance(source, MappedSource):
            data = source.view(0, source.size // shape.offset * shape.offset)
            numbers, place = data.view(kind), at
        else:
            numbers, place = self._offsets(part, places, kind, batch, rows)
        first, last = numbers[place].astype(np.int64), numbers[place + 1].astype(np.int64)
        bad = (first < 0) | (last < first) | (last > places.sizes[batch] // shape.width)
        if bad.any():
            row = int(np.argmax(bad))
            raise DamagedError(
                "the cell lies outside of its column",
                path=source.path, sample=int(indices[row]), offset=int(at[row] * shape.offset),
            )  # fmt: skip
        return places.values[batch] + first * shape.width, (last - first) * shape.width

    def _offsets(self, part: int, places: Places, kind: Any, batch: I64, rows: I64) -> tuple[Any, I64]:
        """The offsets of all cells of these batches, fetched once, and where those of the rows are."""
        assert places.offsets is not None
        source, used = self._parts[part].source, np.unique(batch)
        starts, counts = places.offsets[used], np.array([self._parts[part].rows[one] + 1 for one in used])
        keys = [(part, int(start)) for start in starts]
        if self._cache.all_of(keys) is None:
            source.request(starts, counts * places.shape.offset)
        found = [
            self._cache.get(key, functools.partial(source.array, kind, key[1], int(count)), _bytes_of)
            for key, count in zip(keys, counts, strict=True)
        ]
        begins = starts_of(counts)[np.searchsorted(used, batch)]
        return np.concatenate(found) if found else np.empty(0, kind), begins + rows

    def _located(self, places: list[Places], units: I64, rows: I64, indices: I64) -> tuple[I64, I64]:
        """Starts and sizes of these cells, each in the file that it lies in."""
        if len(self._parts) == 1:
            return self._runs(0, places[0], units, rows, indices)
        start, size = np.zeros(len(indices), np.int64), np.zeros(len(indices), np.int64)
        for part, at in self._each_part(units):
            start[at], size[at] = self._runs(part, places[part], units[at], rows[at], indices[at])
        return start, size

    def _each_part(self, units: I64) -> Iterator[tuple[int, Any]]:
        """The files that these batches lie in, and which of the samples are in each."""
        if len(self._parts) == 1:
            yield 0, slice(None)
            return
        parts = self._part_of_unit[units]
        for part in np.unique(parts):
            yield int(part), np.flatnonzero(parts == part)

    def _spans(self, field: str, indices: I64) -> Spans | None:
        places = self._in_place(field)
        if places is None:
            return None
        units, rows = self._units_of(indices)
        start, size = self._located(places, units, rows, indices)
        return Spans(
            [part.source for part in self._parts], start, size, self._part_of_unit[units].astype(np.int32)
        )

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        """The cells where they lie as they are; else the record batches."""
        found = [spans for name in fields if (spans := self._spans(name, indices)) is not None]
        if len(found) < len(fields):
            runs = []
            for unit in np.unique(self._units_of(indices)[0]).tolist():
                number = int(self._part_of_unit[unit])
                part = self._parts[number]
                if part.table is not None:
                    return None
                message = part.batches[unit - int(self._firsts[number])].message
                runs.append((part.source, message.offset, message.end - message.offset))
            found = [spans_of(runs)]
        return concat_spans(found)

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        places = {name: self._in_place(name) for name in fields} if len(indices) else {}
        rest = [name for name in fields if places.get(name) is None]
        columns = super()._read(indices, rest) if rest or not places else Columns()
        units, rows = self._units_of(indices)
        for name, one in places.items():
            if one is not None:
                columns[name] = self._gather(name, one, units, rows, indices)
        return Columns((name, columns[name]) for name in fields)

    def _gather(self, name: str, places: list[Places], units: I64, rows: I64, indices: I64) -> Column:
        cell = self.schema[name].cell
        source = self._parts[0].source
        plain = len(self._parts) == 1 and cell is not None and places[0].offsets is None
        if plain and isinstance(source, MappedSource) and source.is_warm():
            values = self._values(name, places[0]).rows(places[0].shape.width, units, rows)
            return values.view(cell[0]).reshape(len(units), *cell[1])  # type: ignore[index]
        start, size = self._located(places, units, rows, indices)
        if len(self._parts) == 1:
            found = self._parts[0].source.gather(start, size)
        else:
            offsets = starts_of(size)
            found = Ragged(np.empty(offsets[-1], dtype=np.uint8), offsets)
            for part, at in self._each_part(units):
                self._parts[part].source.gather_into(start[at], size[at], found.data, offsets[:-1][at])
        return found if cell is None else found.data.view(cell[0]).reshape(len(units), *cell[1])

    def _values(self, name: str, places: Places) -> _native.Pieces:
        """The values of a field whose cells have one width, a piece for each batch."""
        if name not in self._found_values:
            pieces, source = _native.Pieces(len(places.values)), self._parts[0].source
            for number, (start, size) in enumerate(zip(places.values, places.sizes, strict=True)):
                pieces.put(number, source.view(int(start), int(size)))
            self._found_values[name] = pieces
        return self._found_values[name]

    def facts(self) -> dict[str, Any]:
        first = self._parts[0]
        packed = any(batch.packed for part in self._parts for batch in part.batches)
        found = {"files": len(self._parts)} if len(self._parts) > 1 else {}
        in_place = [name for name in self.schema if self._in_place(name) is not None]
        return {
            **found,
            "layout": "Feather 1" if first.table is not None else "file" if first.file else "stream",
            **super().facts(),
            "compressed": packed,
            "used in place": ", ".join(in_place) or "none",
        }

    def _verify(self) -> Iterator[Problem]:
        for part in self._parts:
            if not part.ended:
                yield Problem("the stream has no end; it may have been cut short", part.path)

    def close(self) -> None:
        super().close()
        self._found_values.clear()
        for part in self._parts:
            part.close()


def _bytes_of(found: Any) -> int:
    return int(found.nbytes)


def sniff(probe: Probe) -> bool:
    """Files begin with ARROW1 or FEA1, streams with a message of a schema; folders list their files."""
    if probe.folder:
        return SPLITS in probe.names or (STATE in probe.names and "dataset_info.json" in probe.names)
    if probe.head.startswith((MAGIC + b"\0\0", FEATHER_1)):
        return True
    if not probe.head.startswith(b"\xff\xff\xff\xff"):
        return False
    try:
        first = read_message(probe.source, 0)
    except DamagedError:
        return False
    return first is not None and first.kind == SCHEMA
