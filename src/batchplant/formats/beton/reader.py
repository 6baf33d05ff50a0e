"""Reading .beton: the tables stay in the mapping, a sample costs what it touches."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _native
from ...data.reader import Reader
from ...errors import DamagedError, Problem, SchemaError
from ...schema import Bytes, Field, Float, Image, Int, Json, Schema, Tensor, as_field
from ...schema.columns import I32, I64, Column, Columns, Ragged, Spans
from ...storage import NOTE_ERRORS, is_remote, open_source, parse
from .layout import (
    ALLOCATING,
    ALLOCATION,
    ARRAY,
    ARRAY_ARGUMENTS,
    BYTES,
    CUSTOM,
    DESCRIPTOR,
    FLOAT,
    HEADER,
    INT,
    JPEG,
    JSON,
    MEMBERS,
    MISSING_MARK,
    NOTE_MAGIC,
    PAGE_END,
    RAW,
    RGB,
    TORCH,
    layout,
    table_dtype,
)

# Tables of a file on a server that are fetched when it is opened, and what is fetched of a schema.
SMALL_TABLES = 8 << 20
NOTE_LEAST = 4096


class BetonReader(Reader):
    """Reads .beton files. ``custom``: how FFCV's custom fields are laid out, ``{"name": Bytes()}``."""

    def __init__(self, path: str, *, custom: Mapping[str, Field | str] | None = None) -> None:
        self.path = path
        self._source = open_source(path)
        header = self._source.array(HEADER, 0, 1)[0]
        if header["version"] != 2:
            raise DamagedError(f"version {header['version']} is not FFCV's version 2", path=path, offset=0)
        self.length = int(header["samples"])
        self.page = int(header["page"])
        self._allocations_at = int(header["allocations"])
        descriptors = self._source.array(DESCRIPTOR, HEADER.itemsize, int(header["fields"]))
        self._table_at = HEADER.itemsize + descriptors.nbytes
        self.schema, self.types = self._fields(
            descriptors, {name: as_field(one) for name, one in (custom or {}).items()}
        )
        self._dtype = self._row_dtype()
        end = self._table_at + self.length * self._dtype.itemsize
        if not end <= self._allocations_at <= self._source.size or self.page == 0 or not self.types:
            raise DamagedError(
                f"the header promises {self.length} samples and allocations at byte {self._allocations_at}, "
                f"which {self._source.size} bytes cannot hold",
                path=path,
                offset=0,
            )
        tables = self._source.size - self._allocations_at + end - self._table_at
        # One look at a server instead of three; who only wants the schema need not wait for large ones.
        if is_remote(path) and tables <= SMALL_TABLES:
            self._ask_for_tables()
        self.schema = self._noted(end) or self.schema
        self._numbers = {name: number for number, name in enumerate(self.schema)}

    def _row_dtype(self) -> np.dtype[Any]:
        return table_dtype(self.types)

    def _fields(self, descriptors: Any, custom: dict[str, Field]) -> tuple[Schema, list[int]]:
        fields: dict[str, Field] = {}
        types: list[int] = []
        for number, descriptor in enumerate(descriptors):
            offset = HEADER.itemsize + number * DESCRIPTOR.itemsize
            name = descriptor["name"].decode("latin-1")
            kind = int(descriptor["type"])
            if kind == CUSTOM and name in custom:
                field, kind = custom[name], layout(custom[name])
            elif kind == CUSTOM:
                raise SchemaError(
                    "FFCV wrote it with a custom field type; say how it is laid out, for example "
                    f"open(path, custom={{{name!r}: Bytes()}})",
                    path=self.path,
                    field=name,
                )
            elif kind in (ARRAY, TORCH):
                field = self._array_field(descriptor["arguments"], offset)
            elif kind in MEMBERS:
                field = {FLOAT: Float(), INT: Int(), RGB: Image(), BYTES: Bytes(), JSON: Json()}[kind]
            else:
                raise DamagedError(f"field type {kind} is unknown", path=self.path, field=name, offset=offset)
            if not name or name in fields:
                raise DamagedError(f"two fields are called {name!r}", path=self.path, offset=offset)
            fields[name] = field
            types.append(kind)
        return Schema(fields), types

    def _array_field(self, arguments: npt.NDArray[np.uint8], offset: int) -> Tensor:
        head = arguments[: ARRAY_ARGUMENTS.itemsize].view(ARRAY_ARGUMENTS)[0]
        sizes = np.trim_zeros(head["shape"], "b")
        try:
            text = arguments[ARRAY_ARGUMENTS.itemsize :][: int(head["length"])].tobytes()
            [(_, dtype)] = parse(text)
            field = Tensor(dtype, tuple(int(size) for size in sizes))
            if layout(field) != ARRAY or np.prod(sizes, dtype=object) * np.dtype(dtype).itemsize >= PAGE_END:
                raise ValueError(f"shape {sizes.tolist()}")
        except (*NOTE_ERRORS, SyntaxError) as error:
            raise DamagedError(
                f"not an array's description: {error}", path=self.path, offset=offset
            ) from None
        return field

    def _noted(self, offset: int) -> Schema | None:
        """Our own schema, where we wrote the file."""
        room = self._allocations_at - offset
        head = self._source.view(offset, max(0, min(room, NOTE_LEAST)))
        if room < 16 or head[:8].tobytes() != NOTE_MAGIC:
            return None
        length, crc = (int(number) for number in head[8:16].view("<u4"))
        text = head[16 : 16 + length].tobytes()
        if length > len(text):
            text = self._source.view(offset + 16, min(length, room - 16)).tobytes()
        try:
            if _native.crc32c(text) != crc:
                raise ValueError("its checksum is wrong")
            schema = Schema.from_json(parse(text))
            if [layout(field) for field in schema.values()] != self.types:
                raise ValueError("it does not agree with FFCV's field types")
        except (*NOTE_ERRORS, SchemaError) as error:
            raise DamagedError(
                f"batchplant's schema is damaged: {error}", path=self.path, offset=offset
            ) from None
        return schema

    def _ask_for_tables(self) -> None:
        """Have both tables fetched side by side, with the schema behind the first."""
        end = self._table_at + self.length * self._dtype.itemsize + NOTE_LEAST
        starts = np.array([self._table_at, self._allocations_at], dtype=np.int64)
        ends = np.array([min(end, self._allocations_at), self._source.size], dtype=np.int64)
        self._source.will_need(starts, ends - starts)

    @functools.cached_property
    def _table(self) -> npt.NDArray[Any]:
        if is_remote(self.path):
            self._ask_for_tables()
        return self._source.array(self._dtype, self._table_at, self.length)

    @functools.cached_property
    def _allocations(self) -> npt.NDArray[Any]:
        room = self._source.size - self._allocations_at
        if room % ALLOCATION.itemsize:
            raise DamagedError(
                f"the allocation table has {room} bytes, no multiple of {ALLOCATION.itemsize}",
                path=self.path,
                offset=self._allocations_at,
            )
        return self._source.array(ALLOCATION, self._allocations_at, room // ALLOCATION.itemsize)

    @functools.cached_property
    def _by_ptr(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Allocated ptrs in order, and their sizes. An empty cell may share its ptr: the largest is last."""
        order = np.lexsort((self._allocations["size"], self._allocations["ptr"]))
        return self._allocations["ptr"][order], self._allocations["size"][order]

    def _allocated(self, name: str, ptrs: npt.NDArray[np.uint64], indices: I64) -> I64:
        """The sizes of the cells at these ptrs."""
        allocating = [number for number, kind in enumerate(self.types) if kind in ALLOCATING]
        table = self._allocations
        # Our writer, and FFCV's with one worker, allocate in the order of samples: nothing to search.
        if len(table) == self.length * len(allocating):
            likely = table[indices * len(allocating) + allocating.index(self._numbers[name])]
            if (likely["ptr"] == ptrs).all():
                return likely["size"].astype(np.int64)
        known, sizes = self._by_ptr
        offset = np.searchsorted(known, ptrs, side="right") - 1
        found = (offset >= 0) & (known[offset] == ptrs) if len(known) else np.zeros(len(ptrs), dtype=np.bool_)
        if not found.all():
            row = int(np.argmin(found))
            raise self._damaged(
                "the allocation table does not know this image", name, indices, row, ptrs[row]
            )
        return sizes[offset].astype(np.int64)

    def _damaged(self, message: str, name: str, indices: I64, row: int, offset: Any) -> DamagedError:
        return DamagedError(message, path=self.path, sample=indices[row], field=name, offset=int(offset))

    def _runs(self, name: str, indices: I64) -> tuple[I64, I64, I32 | None]:
        """Starts, sizes (-1: missing) and raw shapes of the cells of a field that has its own bytes."""
        kind = self.types[self._numbers[name]]
        field = self.schema[name]
        rows = self._table[f"f{self._numbers[name]}"][indices]
        shape = None
        if kind == RGB:
            starts = rows["ptr"].astype(np.int64)
            shape = np.empty((len(rows), 3), dtype=np.int32)
            shape[:, 0], shape[:, 1], shape[:, 2] = rows["height"], rows["width"], 3
            sizes = shape.prod(axis=1, dtype=np.int64)
            encoded = rows["mode"] == JPEG
            if (bad := rows["mode"] > RAW).any():
                row = int(np.argmax(bad))
                raise self._damaged(f"image mode {rows['mode'][row]}", name, indices, row, starts[row])
            if encoded.any():
                sizes[encoded] = self._allocated(name, rows["ptr"][encoded], indices[encoded])
                shape[encoded] = 0
        elif kind in (BYTES, JSON):
            starts, sizes = rows["ptr"].astype(np.int64), rows["size"].astype(np.int64)
            if kind == JSON:
                sizes = sizes - 1
            elif field.optional and (empty := np.flatnonzero(sizes == 0)).size:
                marks = self._gather(name, indices[empty], starts[empty], np.ones(len(empty), dtype=np.int64))
                sizes[empty[marks.data == MISSING_MARK]] = -1
        else:
            assert field.cell is not None
            starts = rows.astype(np.int64)
            sizes = np.full(len(rows), field.cell[0].itemsize * int(np.prod(field.cell[1])), dtype=np.int64)
        self._check_bounds(
            name, indices, starts, np.where(sizes == -1, 0, sizes) if field.optional else sizes
        )
        return starts, sizes, shape

    def _check_bounds(self, name: str, indices: I64, starts: I64, sizes: I64) -> None:
        outside = self._source.outside(starts, sizes)
        if outside is not None:
            message = f"the cell claims {sizes[outside]} bytes, and the file ends at {self._source.size}"
            raise self._damaged(message, name, indices, outside, starts[outside])

    def _gather(self, name: str, indices: I64, starts: I64, sizes: I64) -> Ragged:
        self._check_bounds(name, indices, starts, sizes)
        return self._source.gather(starts, sizes)

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        return Columns((name, self._read_field(name, indices)) for name in fields)

    def _read_field(self, name: str, indices: I64) -> Column:
        field = self.schema[name]
        if self.types[self._numbers[name]] in (INT, FLOAT):
            values = self._table[f"f{self._numbers[name]}"][indices]
            narrow = values.astype(getattr(field, "dtype", "bool"))
            if not np.array_equal(narrow.astype(values.dtype), values, equal_nan=True):
                raise DamagedError(f"a number does not fit {field}", path=self.path, field=name)
            return narrow
        starts, sizes, shape = self._runs(name, indices)
        ragged = self._gather(name, indices, starts, np.maximum(sizes, 0))
        if field.cell is None:
            ragged.shape = shape if shape is not None and shape.any() else None
            ragged.valid = sizes >= 0 if field.optional and (sizes < 0).any() else None
            return ragged
        dtype, cell = field.cell
        if (wrong := sizes != dtype.itemsize * int(np.prod(cell))).any():
            row = int(np.argmax(wrong))
            raise self._damaged(f"{sizes[row]} bytes are not {field}", name, indices, row, starts[row])
        return ragged.data.view(dtype).reshape(len(indices), *cell)

    def _spans(self, field: str, indices: I64) -> Spans | None:
        number = self._numbers[field]
        if self.types[number] in (INT, FLOAT):
            member = MEMBERS[self.types[number]]
            if getattr(self.schema[field], "dtype", None) != member.name:
                return None
            inside = self._dtype.fields[f"f{number}"][1]  # type: ignore[index]
            starts = self._table_at + indices * self._dtype.itemsize + inside
            return Spans([self.path], starts, np.full(len(indices), member.itemsize, dtype=np.int64))
        starts, sizes, shape = self._runs(field, indices)
        return Spans([self.path], starts, sizes, shape=shape if shape is not None and shape.any() else None)

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        # All others stand in the table, which is in memory.
        own = {name for name, kind in zip(self.schema, self.types, strict=False) if kind in ALLOCATING}
        found = [name for name in fields if name in own]
        return super()._ranges(found, indices) if found else None

    def blocks(self) -> I64 | None:
        for number, kind in enumerate(self.types):
            if kind in ALLOCATING:
                member = self._table[f"f{number}"]
                ptrs = member if kind in (ARRAY, TORCH) else member["ptr"]
                return (ptrs // np.uint64(self.page)).astype(np.int64)
        return None

    def facts(self) -> dict[str, Any]:
        note = self._table_at + self.length * self._dtype.itemsize
        ours = self._allocations_at - note >= 16 and self._source.view(note, 8).tobytes() == NOTE_MAGIC
        return {
            "page size": self.page,
            "pages": max(0, self._allocations_at - note) // self.page,
            "allocations": (self._source.size - self._allocations_at) // ALLOCATION.itemsize,
            "written by": "batchplant" if ours else "FFCV or alike",
        }

    def _verify(self) -> Iterator[Problem]:
        table = self._allocations
        expected = self.length * sum(kind in ALLOCATING for kind in self.types)
        if len(table) != expected:
            yield Problem(f"{len(table)} allocations where {expected} are needed", self.path)
        for start in range(0, len(table), 1 << 20):
            part = table[start : start + (1 << 20)]
            first, last = part["ptr"], part["ptr"] + np.maximum(part["size"], 1) - np.uint64(1)
            page = np.uint64(self.page)
            bad = (part["sample"] >= self.length) | (last < first) | (last >= self._allocations_at)
            bad |= (first < self._table_at) | (first // page != last // page)
            for row in np.flatnonzero(bad):
                yield Problem(
                    f"allocation {start + row} ({part[row]['size']} bytes) crosses a page or leaves the data",
                    self.path,
                    int(min(part[row]["sample"], 2**62)),
                    None,
                    int(min(first[row], 2**62)),
                )

    def close(self) -> None:
        self._source.close()
