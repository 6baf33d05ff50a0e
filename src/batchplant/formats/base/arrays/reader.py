"""GridReader: a dataset whose fields are arrays in chunks. A format says which arrays there are."""

from __future__ import annotations

import base64
import binascii
import contextlib
import copy
import dataclasses
import math
import struct
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ....codecs import npy
from ....codecs.infer import infer_image
from ....data.arrays import Array
from ....data.layout import Layout
from ....data.reader import Reader
from ....errors import (
    BatchplantError,
    DamagedError,
    FieldNameError,
    OptionError,
    Problem,
    SchemaError,
    UnsafeError,
    located,
    no_such,
)
from ....schema import Bytes, Field, Float, Int, Schema, Tensor, Text
from ....schema.columns import I64, U8, AnyArray, AnyDType, Column, Columns, Ragged, as_bytes, starts_of
from ....storage import Source
from ....storage.cache import ChunkCache
from ....storage.index import FileGroup
from ....storage.spans import SourceRun, Spans, spans_of
from .grid import Grid, GridArray
from .layout import METADATA_KEY, OFFSETS, SHAPE, VALID, VALUES, DatasetMetadata, fixed, parts_of
from .store import Store, ZipStore, open_store

SCALE, OFFSET, FILLS, UNSIGNED = "scale_factor", "add_offset", ("_FillValue", "missing_value"), "_Unsigned"
NAMES = (SCALE, OFFSET, *FILLS, UNSIGNED)
# Whole numbers up to here are exact as float64.
MAX_EXACT_INT = 2**53


@dataclasses.dataclass(frozen=True)
class Rule:
    """Meaning of stored numbers: ``stored * scale + offset``, or nothing where they are in ``fills``."""

    stored: AnyDType
    dtype: AnyDType
    scale: float | None
    offset: float | None
    fills: tuple[Any, ...]

    def decode(self, stored: AnyArray) -> AnyArray:
        stored = stored.view(self.stored)
        missing = np.isin(stored, self.fills) if self.fills else np.zeros(stored.shape, dtype=np.bool_)
        wide = self.stored.kind in "iu" and self.stored.itemsize == 8
        if wide and self.scale is None and self.offset is None and not missing.all():
            valid = stored[~missing]
            if int(valid.max()) > MAX_EXACT_INT or int(valid.min()) < -MAX_EXACT_INT:
                raise SchemaError("whole numbers beyond 2**53 do not fit beside NaN; decode=False reads them")
        numbers = stored.astype(self.dtype)
        if self.scale is not None:
            numbers *= self.dtype.type(self.scale)
        if self.offset is not None:
            numbers += self.dtype.type(self.offset)
        numbers[missing] = np.nan
        return numbers

    def decode_column(self, column: Column) -> Column:
        if not isinstance(column, Ragged):
            return self.decode(np.ascontiguousarray(column))
        packed = column.take(slice(None))
        values = self.decode(packed.data.view(self.stored))
        offsets = packed.offsets // self.stored.itemsize * self.dtype.itemsize
        return Ragged(as_bytes(values), offsets, None, packed.valid)

    def decoded(self, field: Field) -> Field:
        """The field of the values that numbers of this field stand for."""
        if isinstance(field, Tensor):
            return dataclasses.replace(field, dtype=self.dtype.name)
        return Float(self.dtype.name, optional=field.optional)

    def summary(self) -> str:
        parts = [f"{SCALE} {self.scale:g}"] if self.scale is not None else []
        parts += [f"{OFFSET} {self.offset:g}"] if self.offset is not None else []
        parts += [f"missing: {', '.join(map(str, self.fills))}"] if self.fills else []
        return ", ".join(parts) or "unsigned"


def rule_of(field: Field, attributes: Mapping[str, Any]) -> Rule | None:
    """Return the rule in the attributes of a field; None if there is none."""
    if not isinstance(field, Int | Float | Tensor) or not any(name in attributes for name in NAMES):
        return None
    stored = np.dtype(field.dtype)
    if stored.kind not in "iuf" or (isinstance(field, Int) and field.names):
        return None
    if stored.kind == "i" and str(attributes.get(UNSIGNED)).lower() == "true":
        stored = np.dtype(f"u{stored.itemsize}")
    scale, offset = (_number(attributes.get(name)) for name in (SCALE, OFFSET))
    fills = tuple(dict.fromkeys(fill for name in FILLS for fill in _fills(attributes.get(name), stored)))
    # NaN is missing as it is, and 1 and 0 change nothing.
    scale, offset = (None if scale == 1 else scale), (None if offset == 0 else offset)
    if scale is None and offset is None and not fills and stored == field.dtype:
        return None
    small = stored.itemsize <= (2 if stored.kind in "iu" else 4)
    return Rule(stored, np.dtype(np.float32 if small else np.float64), scale, offset, fills)


def _number(value: Any) -> float | None:
    number = value[0] if isinstance(value, list) and len(value) == 1 else value
    good = isinstance(number, int | float) and not isinstance(number, bool)
    return float(number) if good and math.isfinite(number) else None


def _fills(value: Any, stored: AnyDType) -> list[Any]:
    """The values that mean that there is none, as stored."""
    fills = []
    for fill in value if isinstance(value, list) else [value]:
        if isinstance(fill, str):
            fill = from_text(fill)
        if fill is None or isinstance(fill, bool) or not isinstance(fill, int | float) or fill != fill:
            continue
        if stored.kind == "u" and fill < 0:
            # Stored with a sign that it does not have.
            fill += 2 ** (8 * stored.itemsize)
        with contextlib.suppress(OverflowError, ValueError):
            if stored.kind == "f":
                fills.append(np.array(fill).astype(stored).item())
            elif float(fill).is_integer() and np.iinfo(stored).min <= fill <= np.iinfo(stored).max:
                fills.append(int(fill))
    return fills


def from_text(text: str) -> float | None:
    """A number as text, or as xarray packs it in Zarr 3."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        data = base64.b64decode(text, validate=True)
        return float(struct.unpack("<d", data)[0]) if len(data) == 8 else None
    except (binascii.Error, ValueError):
        return None


class PackedReader(Reader):
    """A reader whose attributes may say what its numbers stand for; open, it calls :meth:`_unpack`."""

    _rules: Mapping[str, Rule] = types.MappingProxyType({})

    def _said(self) -> Mapping[str, Mapping[str, Any]]:
        """The attributes of the fields, as far as they are known without much work."""
        return self.attributes

    def _unpack(self, decode: bool | None) -> None:
        self._rules = {}
        if decode is False:
            return
        attributes, fields = self._said(), dict(self.schema)
        every = {name: rule_of(field, attributes.get(name, {})) for name, field in fields.items()}
        rules = {name: rule for name, rule in every.items() if rule is not None}
        if decode:
            self._rules = rules
            decoded = {name: rule.decoded(fields[name]) for name, rule in rules.items()}
            self.schema = Schema({**fields, **decoded})
        elif rules:
            examples = "; ".join(f"{name} ({rule.summary()})" for name, rule in list(rules.items())[:5])
            warnings.warn(
                f"{self.path}: numbers are read as stored, but stand for others: {examples}; decode=True "
                "gives those, decode=False leaves them and says nothing",
                stacklevel=2,
            )

    def _unpacked(self, columns: Columns) -> Columns:
        for name in self._rules.keys() & columns.keys():
            with located(path=self.path, field=name):
                columns[name] = self._rules[name].decode_column(columns[name])
        return columns

    def _without_rules(self, attributes: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Attributes without what has been applied."""
        remaining = {
            name: {key: value for key, value in values.items() if name not in self._rules or key not in NAMES}
            for name, values in attributes.items()
        }
        return {name: values for name, values in remaining.items() if values}


# The field of an array that stands alone.
PLAIN = "data"
PROBED_SAMPLES = 16
# Rows of plain values are read without the rest of their chunk: no more of them make a block.
BLOCK_BYTES = 8 << 20


# Every array by its path (the top itself: an empty path), or why it is not read.
Grids = Mapping[str, Grid | BatchplantError]


def each_grid(make: Callable[[str, Any], Grid], documents: Mapping[str, Any]) -> Grids:
    """The arrays of these documents. What is wrong with one is said to who asks for it."""
    grids: dict[str, Grid | BatchplantError] = {}
    for name, document in documents.items():
        try:
            grids[name] = make(name, document)
        except BatchplantError as error:
            # Its traceback would keep alive what it leads to.
            grids[name] = error.with_traceback(None)
    return grids


class GridReader(PackedReader):
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
        decode: bool | None = None,
    ) -> None:
        if missing not in ("auto", "fill", "error"):
            raise OptionError(f"missing is auto, fill or error, not {missing!r}")
        self.path = path
        self._left_out: dict[str, str] = {}
        self._cache = ChunkCache(cache)
        self.store = self._open_store(path)
        try:
            self._grids, self._top = self._find(self.store)
            metadata = self._top.get(METADATA_KEY)
            selected = None if fields is None else list(fields)
            self.own_metadata = None if metadata is None else DatasetMetadata.from_json(metadata)
            if self.own_metadata is None:
                self._open_plain(selected)
            else:
                self._open_described(self.own_metadata, selected)
            for (name, _), grid in self.parts.items():
                with located(field=name):
                    grid.check("a row", grid.width)
                    grid.check(f"an array of {grid.shape[0]:,} rows", grid.shape[0])
        except BatchplantError as error:
            self.store.close()
            raise error.at(path=path) from None
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError) as error:
            self.store.close()
            raise DamagedError(f"its metadata is damaged: {error}", path=path) from None
        damage = self.own_metadata is not None if missing == "auto" else missing == "error"
        for grid in self.parts.values():
            grid.may_miss = not damage
        self._unpack(decode)
        self._metadata_hash = self.store.metadata

    # -- what a format implements ----------------------------------------------------------------------

    def _open_store(self, path: str) -> Store:
        """Return what has the documents and chunks."""
        return open_store(path, self.roots)

    def _find(self, store: Store) -> tuple[Grids, dict[str, Any]]:
        """Every array, and the attributes of the top."""
        raise NotImplementedError

    def _attributes_of(self, path: str) -> dict[str, Any]:
        """Return the user's attributes of an array."""
        return {}

    @property
    def attributes(self) -> dict[str, dict[str, Any]]:
        """``""`` → the attributes of the top, a field → its own."""
        attributes = {}
        # Those of an array that stands alone are its field's.
        if "" not in self._grids:
            attributes[""] = {
                name: value for name, value in self._top.items() if name not in (METADATA_KEY, "n5")
            }
        for (name, part), grid in self.parts.items():
            if part in ("", VALUES):
                attributes[name] = self._attributes_of(grid.name)
        return self._without_rules(attributes)

    @property
    def arrays(self) -> Grids:
        """Every array by its path."""
        return self._grids

    def last_rows(self, grid: Grid, count: int) -> U8:
        """The bytes of the last rows of an array."""
        rows = grid.rows(self._cache, np.arange(grid.shape[0] - count, grid.shape[0]))
        assert not isinstance(rows, Ragged)
        return as_bytes(rows)

    def _differing(self) -> Iterator[Problem]:
        """Metadata that contradicts itself."""
        return iter(())

    # -- opening ---------------------------------------------------------------------------------------

    def _open_described(self, metadata: DatasetMetadata, selected: Sequence[str] | None) -> None:
        self.schema = metadata.schema if selected is None else metadata.schema.select(selected)
        self.length = metadata.samples
        self.parts: dict[tuple[str, str], Grid] = {}
        for name, field in self.schema.items():
            for part, (dtype, row) in parts_of(field).items():
                path = f"{metadata.paths[name]}/{part}" if part else metadata.paths[name]
                if path not in self._grids:
                    raise DamagedError(f"there is no array {path}", field=name)
                grid = self._as_described(self._grid(path, name), dtype, row)
                if (grid.dtype, grid.row) != (dtype, row):
                    message = f"{path} has rows of {grid.dtype} {grid.row}, and {dtype} {row} are needed"
                    raise DamagedError(message, field=name)
                if part != VALUES or fixed(field) is not None:
                    need = metadata.samples + (part == OFFSETS)
                    if grid.shape[0] != need:
                        raise DamagedError(
                            f"{path} has {grid.shape[0]} rows, and {need} are needed", field=name
                        )
                self.parts[name, part] = grid

    def _grid(self, path: str, name: str) -> Grid:
        grid = self._grids[path]
        if not isinstance(grid, Grid):
            raise copy.copy(grid).at(field=name)
        return grid

    def _as_described(self, grid: Grid, dtype: AnyDType, row: tuple[int, ...]) -> Grid:
        """The array with this dtype and row, where the format has to store it as another."""
        return grid

    def _open_plain(self, selected: Sequence[str] | None) -> None:
        named: dict[str, Grid] = {}
        fields: dict[str, Field] = {}
        singles: set[str] = set()
        paths = {path: path.replace("/", ".") or PLAIN for path in self._grids}
        for path, name in paths.items():
            if selected is not None and name not in selected:
                continue
            if name in named:
                raise SchemaError(f"two arrays are called {name}")
            try:
                grid = self._grid(path, name)
                singles |= set() if grid.shape else {name}
                named[name] = grid if grid.shape else grid.as_one()
                fields[name] = self._field_of(name, named[name])
            except (SchemaError, UnsafeError) as error:
                # One that is not read takes nothing away from the others.
                if selected is not None or len(paths) == 1:
                    raise
                named.pop(name, None)
                self._left_out[name] = error.message
        # A single value is no column, unless there are only such.
        for name in singles & set(named) if selected is None and set(named) - singles else ():
            del named[name], fields[name]
            self._left_out[name] = "a single value has no samples"
        for name in selected or ():
            if name not in named:
                raise FieldNameError(no_such("array", name, paths.values()))
        if not named:
            details = "; ".join(f"{name}: {why}" for name, why in list(self._left_out.items())[:5])
            raise (SchemaError if details else DamagedError)(
                f"there are no arrays in it{': ' * bool(details)}{details}"
            )
        if len({grid.shape[0] for grid in named.values()}) > 1:
            details = ", ".join(f"{name} {grid.shape[0]}" for name, grid in named.items())
            raise SchemaError(f"the arrays differ in length ({details}); choose equal ones with fields=[…]")
        self.schema = Schema({name: fields[name] for name in (selected or named)})
        self.length = next(iter(named.values())).shape[0]
        self.parts = {(name, ""): named[name] for name in self.schema}

    def _field_of(self, name: str, grid: Grid) -> Field:
        with located(field=name):
            if not grid.dtype.hasobject:
                return npy.field_of(grid.dtype, grid.row)
            if len(grid.shape) != 1:
                raise SchemaError("text and bytes of more than one axis have no field kind")
            if not grid.dtype.metadata:
                return Text()
            # Bytes may be images; the first few tell.
            cells = grid.rows(self._cache, np.arange(min(PROBED_SAMPLES, grid.shape[0])))
            assert isinstance(cells, Ragged)
            return infer_image(cells) or Bytes()

    # -- reading ---------------------------------------------------------------------------------------

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        return self._unpacked(Columns.read(fields, lambda name: self._read_field(name, indices), self.path))

    def _read_field(self, name: str, indices: I64) -> Column:
        field = self.schema[name]
        if self.own_metadata is None:
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
            raise DamagedError("the shape of an image is damaged")
        data = values.runs(self._cache, starts, counts, indices)
        shape = shape if shape is not None and shape.any() else None
        return Ragged(data, starts_of(counts * values.width), shape, valid)

    def _rows(self, name: str, part: str, indices: I64) -> Any:
        grid = self.parts.get((name, part))
        return None if grid is None else grid.rows(self._cache, indices)

    def _runs(self, name: str, indices: I64) -> tuple[I64, I64]:
        """Return the first row of each cell in ``values``, and its number of rows."""
        starts, ends = self._rows(name, OFFSETS, indices), self._rows(name, OFFSETS, indices + 1)
        bad = (starts < 0) | (ends < starts) | (ends > self.parts[name, VALUES].shape[0])
        if bad.any():
            raise DamagedError("its offsets are damaged", sample=int(indices[int(np.argmax(bad))]))
        return starts, ends - starts

    def _spans(self, field: str, indices: I64) -> Spans | None:
        with located(path=self.path, field=field):
            return self._find_spans(field, indices)

    def _find_spans(self, field: str, indices: I64) -> Spans | None:
        if field in self._rules:
            return None
        ragged = (field, OFFSETS) in self.parts
        grid = self.parts.get((field, VALUES if ragged else ""))
        if grid is None or not grid.plain or (not ragged and self.schema[field].cell is None):
            return None
        starts, counts = self._runs(field, indices) if ragged else (indices, np.ones_like(indices))
        locations = grid.places(self._cache, starts, counts)
        if locations is None:
            return None
        sources, file, start, size = locations
        valid, shape = self._rows(field, VALID, indices), self._rows(field, SHAPE, indices)
        if valid is not None:
            size = np.where(valid, size, -1)
        return Spans(
            sources or [self.path], start, size, file, shape if shape is None or shape.any() else None
        )

    def _array(self, field: str) -> Array | None:
        """Also of an array that is no field, because it was not chosen or is longer than the others."""
        grid = self.parts.get((field, ""))
        if grid is None and field not in self.schema:
            paths = {path.replace("/", ".") or PLAIN: path for path in self._grids}
            if field not in paths:
                raise FieldNameError(no_such("array", field, paths), path=self.path)
            grid = self._grid(paths[field], field)
            grid = grid if grid.shape else grid.as_one()
        if grid is None or field in self._rules:
            return None
        return GridArray(self.path, field, grid, self._cache)

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        """Rows of large plain chunks, other chunks whole; offsets of cells of differing length are read."""
        return self._runs_of(fields, indices) if self.store.slow else super()._ranges(fields, indices)

    def _layout(self) -> Layout:
        return Layout(blocks=self._chunk_blocks, unread=self._unread if self.store.slow else None)

    def _unread(self, fields: Sequence[str], indices: I64) -> Spans | None:
        chunks = [grid for (name, _), grid in self.parts.items() if name in fields and not grid.by_range]
        # Where the cache has no room for all chunks, one that is there now may be gone when it is needed.
        fits = sum(grid.unpacked_bytes for grid in chunks) <= self._cache.max_bytes
        return self._runs_of(fields, indices, self._cache if fits else None)

    def _runs_of(self, fields: Sequence[str], indices: I64, cache: ChunkCache | None = None) -> Spans | None:
        ranges: list[SourceRun] = []
        ones = np.ones_like(indices)
        for (name, part), grid in self.parts.items():
            if name not in fields:
                continue
            starts, counts = indices, ones + (part == OFFSETS)
            if part == VALUES and (name, OFFSETS) in self.parts:
                starts, counts = self._runs(name, indices)
            runs = self.store.runs(grid.runs_of(starts, counts, cache))
            if runs is None:
                return None
            ranges += runs
        return spans_of(ranges)

    def _fingerprint_source(self, fields: Sequence[str]) -> Source | None:
        """The metadata as it was read, and the chunks of these fields as they lie there now."""
        if isinstance(self.store, ZipStore):
            return super()._fingerprint_source(fields)
        files = self.store.files({grid.name for (name, _), grid in self.parts.items() if name in fields})
        if files is None:
            return None
        options = self._init_args[1]
        return FileGroup(
            self.path,
            files,
            state={"metadata": self._metadata_hash},
            options=options,
            fresh=self._without_cache,
        )

    def _without_cache(self) -> GridReader:
        """One that has no chunk in its cache; this one, where what lies there now is another dataset."""
        args, options = self._init_args
        with contextlib.suppress(BatchplantError):
            # That its numbers stay as they are was said when this one was opened.
            reader = type(self)(*args, **{**options, "decode": bool(options.get("decode"))})
            if reader._metadata_hash == self._metadata_hash:
                return reader
            reader.close()
        return self

    def _chunk_blocks(self) -> I64 | None:
        """By the chunks of the field with the most bytes; large ones of plain values in several blocks."""
        if not self.length:
            return None
        heavy = {name: self.parts.get((name, ""), self.parts.get((name, VALUES))) for name in self.schema}
        name, grid = max(
            heavy.items(), key=lambda item: 0 if item[1] is None else item[1].width * item[1].shape[0]
        )
        assert grid is not None
        rows = np.arange(self.length, dtype=np.int64)
        first = self._runs(name, rows)[0] if (name, OFFSETS) in self.parts else rows
        chunk = grid.chunks[0]
        if not (grid.plain and grid.whole_rows and grid.width):
            return first // chunk
        piece = min(chunk, max(1, BLOCK_BYTES // grid.width))
        return first // chunk * -(-chunk // piece) + first % chunk // piece

    def facts(self) -> dict[str, Any]:
        facts = {
            f"chunks of {name}{'/' if part else ''}{part}": grid.summary()
            for (name, part), grid in self.parts.items()
            if part in ("", VALUES)
        }
        if self._left_out:
            facts["left out"] = "; ".join(f"{name}: {why}" for name, why in self._left_out.items())
        return facts

    def own_checks(self) -> tuple[str, ...]:
        checks = [check for grid in self.parts.values() for check in grid.own_checks()]
        return tuple(dict.fromkeys([*self.store.own_checks, *checks]))

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
