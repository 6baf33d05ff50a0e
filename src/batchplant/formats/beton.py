""".beton, the format of FFCV 1.0 (version 2). Little-endian.

====================  =======================================================================
header, 24 bytes      version u16 = 2, fields u16, page size u32, samples u64, allocations at u64
descriptors           per field 1041 bytes: type u8, name 16 bytes (NUL padded), arguments 1024 bytes
table                 per sample one aligned NumPy struct with a member for each field:
                      Int i8, Float f8, image (mode u1, width u2, height u2, ptr u8),
                      Bytes and JSON (ptr u8, size u8), arrays ptr u8
pages                 from the next multiple of the page size on; all cells of a sample lie in one page
allocations           to the end of the file: (sample u8, ptr u8, size u8), in no order; the only
                      place that knows the size of a JPEG
====================  =======================================================================

What FFCV has no type for (text, missing values, sizes that vary, images that are not RGB) lives in its
Bytes type. Between table and pages, where FFCV never looks, we write our schema, so that kinds, dtypes,
class names and long field names come back: ``bpschema``, u32 length, u32 CRC32C, JSON. A cell of size 0
still takes a byte, since FFCV finds cells by their ptr alone; that byte is 0xFF where the cell is missing.
A uint64 is stored as the int64 of the same bits: FFCV sees those from 2**63 on as negative numbers.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from ..codecs.media.image import probe
from ..codecs.media.image_rules import ImageTarget
from ..data.layout import Layout
from ..data.reader import Reader
from ..data.writer import WriteOptions, Writer
from ..errors import BatchplantError, DamagedError, EncodeError, OptionError, Problem, SchemaError
from ..schema import EVERY_KIND, Bytes, Field, Float, Image, Int, Json, Schema, Tensor, as_field
from ..schema.columns import I32, I64, U8, AnyArray, AnyDType, Column, Columns, Ragged, column_runs
from ..storage import NOTE_ERRORS, Spool, is_remote, open_source, parse
from ..storage.spans import Spans
from .base.format import Capabilities, Format, Probe

# -- layout -------------------------------------------------------------------------------------------
# The structs of a .beton file, and which of FFCV's types holds a field of ours.

FLOAT, INT, RGB, BYTES, ARRAY, JSON, TORCH, CUSTOM = 0, 1, 2, 3, 4, 5, 6, 255
HEADER = np.dtype(
    [("version", "<u2"), ("fields", "<u2"), ("page", "<u4"), ("samples", "<u8"), ("allocations", "<u8")]
)
DESCRIPTOR = np.dtype([("type", "u1"), ("name", "S16"), ("arguments", "u1", 1024)])
ALLOCATION = np.dtype([("sample", "<u8"), ("ptr", "<u8"), ("size", "<u8")])
ARRAY_ARGUMENTS = np.dtype([("shape", "<u8", 32), ("length", "<u8")])
_BLOB = np.dtype([("ptr", "<u8"), ("size", "<u8")])
MEMBERS = {
    FLOAT: np.dtype("<f8"),
    INT: np.dtype("<i8"),
    RGB: np.dtype([("mode", "u1"), ("width", "<u2"), ("height", "<u2"), ("ptr", "<u8")]),
    BYTES: _BLOB,
    ARRAY: np.dtype("<u8"),
    JSON: _BLOB,
    TORCH: np.dtype("<u8"),
}
ALLOCATING = (RGB, BYTES, ARRAY, JSON, TORCH)
JPEG, RAW = 0, 1
PAGE_LEAST, PAGE_USUAL, PAGE_END = 1 << 21, 1 << 23, 1 << 32
# Width and height are u16.
MAX_SIDE_PIXELS = 65535
NOTE_MAGIC = b"bpschema"
MISSING_MARK = 0xFF


def layout(field: Field) -> int:
    """FFCV's type that a field of ours is stored in."""
    if field.optional:
        return BYTES
    if isinstance(field, Tensor):
        sizes = field.cell[1] if field.cell is not None else ()
        return ARRAY if 1 <= len(sizes) <= 32 and 0 not in sizes else BYTES
    if isinstance(field, Image):
        return RGB if field.mode == "RGB" else BYTES
    return {"int": INT, "bool": INT, "float": FLOAT, "json": JSON}.get(field.kind, BYTES)


def table_dtype(types: Sequence[int]) -> AnyDType:
    return np.dtype([(f"f{number}", MEMBERS[kind]) for number, kind in enumerate(types)], align=True)


def short_names(names: Iterable[str]) -> list[bytes]:
    """FFCV's names: ASCII, at most 16 bytes, all different."""
    result: list[bytes] = []
    for name in names:
        short = name.encode("ascii", "replace").replace(b"?", b"_")[:16]
        number = 2
        while short in result:
            short = short[: 15 - len(str(number))] + f"~{number}".encode()
            number += 1
        result.append(short)
    return result


def sniff(probe: Probe) -> bool:
    """There is no magic: version, page size and every field type have to make sense."""
    head = probe.head
    if len(head) < HEADER.itemsize + DESCRIPTOR.itemsize:
        return False
    header = np.frombuffer(head[: HEADER.itemsize], dtype=HEADER)[0]
    page, fields = int(header["page"]), int(header["fields"])
    types = head[HEADER.itemsize :: DESCRIPTOR.itemsize][:fields]
    return (
        int(header["version"]) == 2
        and page >= PAGE_LEAST
        and page & (page - 1) == 0
        and fields > 0
        and HEADER.itemsize + fields * DESCRIPTOR.itemsize <= int(header["allocations"]) <= probe.size
        and all(kind <= TORCH or kind == CUSTOM for kind in types)
    )


# -- reader -------------------------------------------------------------------------------------------
# Reading .beton: the tables stay in the mapping, a sample costs what it touches.

# Tables of a file on a server that are fetched when it is opened, and what is fetched of a schema.
SMALL_TABLES_BYTES = 8 << 20
MIN_NOTE_BYTES = 4096


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
            descriptors, {name: as_field(field) for name, field in (custom or {}).items()}
        )
        self._dtype = self._row_dtype()
        end = self._table_at + self.length * self._dtype.itemsize
        if not end <= self._allocations_at <= self._source.size or self.page == 0 or not self.types:
            message = (
                f"the header promises {self.length} samples and allocations at byte {self._allocations_at}, "
                f"which {self._source.size} bytes cannot hold"
            )
            raise DamagedError(message, path=path, offset=0)
        tables = self._source.size - self._allocations_at + end - self._table_at
        # One request to a server instead of three; large tables are fetched when they are needed.
        if is_remote(path) and tables <= SMALL_TABLES_BYTES:
            self._ask_for_tables()
        self.schema = self._noted(end) or self.schema
        self._numbers = {name: number for number, name in enumerate(self.schema)}

    def _row_dtype(self) -> AnyDType:
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
                message = "FFCV wrote it with a custom field type; say how it is laid out, for example "
                message += f"open(path, custom={{{name!r}: Bytes()}})"
                raise SchemaError(message, path=self.path, field=name)
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

    def _array_field(self, arguments: U8, offset: int) -> Tensor:
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
        room = self._allocations_at - offset
        head = self._source.view(offset, max(0, min(room, MIN_NOTE_BYTES)))
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
        end = self._table_at + self.length * self._dtype.itemsize + MIN_NOTE_BYTES
        starts = np.array([self._table_at, self._allocations_at], dtype=np.int64)
        ends = np.array([min(end, self._allocations_at), self._source.size], dtype=np.int64)
        self._source.request(starts, ends - starts)

    @functools.cached_property
    def _table(self) -> AnyArray:
        if is_remote(self.path):
            self._ask_for_tables()
        return self._source.array(self._dtype, self._table_at, self.length)

    @functools.cached_property
    def _allocations(self) -> AnyArray:
        room = self._source.size - self._allocations_at
        if room % ALLOCATION.itemsize:
            message = f"the allocation table has {room} bytes, no multiple of {ALLOCATION.itemsize}"
            raise DamagedError(message, path=self.path, offset=self._allocations_at)
        return self._source.array(ALLOCATION, self._allocations_at, room // ALLOCATION.itemsize)

    @functools.cached_property
    def _by_ptr(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Allocated ptrs in order, and their sizes. An empty cell may share its ptr: the largest is last."""
        order = np.lexsort((self._allocations["size"], self._allocations["ptr"]))
        return self._allocations["ptr"][order], self._allocations["size"][order]

    def _allocated(self, name: str, ptrs: npt.NDArray[np.uint64], indices: I64) -> I64:
        allocating = [number for number, kind in enumerate(self.types) if kind in ALLOCATING]
        table = self._allocations
        # Our writer, and FFCV's with one worker, allocate in the order of samples: nothing to search.
        if len(table) == self.length * len(allocating):
            likely = table[indices * len(allocating) + allocating.index(self._numbers[name])]
            if (likely["ptr"] == ptrs).all():
                return likely["size"].astype(np.int64)
        pointers, sizes = self._by_ptr
        offset = np.searchsorted(pointers, ptrs, side="right") - 1
        unknown = offset < 0
        unknown[~unknown] = pointers[offset[~unknown]] != ptrs[~unknown]
        if unknown.any():
            row, message = int(np.argmax(unknown)), "the allocation table does not know this image"
            raise self._damaged(message, name, indices, row, ptrs[row])
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
                ones = np.ones(len(empty), dtype=np.int64)
                self._check_bounds(name, indices[empty], starts[empty], ones)
                marks = self._source.gather(starts[empty], ones)
                sizes[empty[marks.data == MISSING_MARK]] = -1
        else:
            assert field.cell is not None
            starts = rows.astype(np.int64)
            sizes = np.full(len(rows), field.cell[0].itemsize * int(np.prod(field.cell[1])), dtype=np.int64)
        taken = np.where(sizes == -1, 0, sizes) if field.optional else sizes
        self._check_bounds(name, indices, starts, taken)
        return starts, sizes, shape

    def _check_bounds(self, name: str, indices: I64, starts: I64, sizes: I64) -> None:
        outside = self._source.outside(starts, sizes)
        if outside is not None:
            message = f"the cell claims {sizes[outside]} bytes, and the file ends at {self._source.size}"
            raise self._damaged(message, name, indices, outside, starts[outside])

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
        ragged = self._source.gather(starts, np.maximum(sizes, 0))
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
            assert self._dtype.fields is not None
            inside = self._dtype.fields[f"f{number}"][1]
            starts = self._table_at + indices * self._dtype.itemsize + inside
            return Spans([self._source], starts, np.full(len(indices), member.itemsize, dtype=np.int64))
        starts, sizes, shape = self._runs(field, indices)
        shape = shape if shape is not None and shape.any() else None
        return Spans([self._source], starts, sizes, shape=shape)

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        # All others stand in the table, which is in memory.
        allocated = {name for name, kind in zip(self.schema, self.types, strict=False) if kind in ALLOCATING}
        chosen = [name for name in fields if name in allocated]
        return super()._ranges(chosen, indices) if chosen else None

    def _layout(self) -> Layout:
        return Layout(blocks=self._pages)

    def _pages(self) -> I64 | None:
        for number, kind in enumerate(self.types):
            if kind in ALLOCATING:
                member = self._table[f"f{number}"]
                ptrs = member if kind in (ARRAY, TORCH) else member["ptr"]
                return (ptrs // np.uint64(self.page)).astype(np.int64)
        return None

    def facts(self) -> dict[str, object]:
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


# -- writer -------------------------------------------------------------------------------------------
# Writing .beton: cells go to their place as they come, the tables follow at the end.

SMALL_FILE_BYTES = 4 * PAGE_USUAL


class BetonWriter(Writer):
    """Writes .beton files that FFCV reads. ``page_size``: a power of two from 2 MiB on.

    Without it, pages are 2 MiB in small files and 8 MiB, as FFCV's, in others; a sample that is larger than
    a page makes the page grow. Cells go to their place at once, behind room for the table: as much as
    ``length`` samples need, or a page. Only when more come are the pages copied once at the end.
    """

    def __init__(
        self, path: str, schema: Schema, options: WriteOptions, *, page_size: int | None = None
    ) -> None:
        self._page = page_size or PAGE_LEAST
        self._fixed = page_size is not None
        # Used again for every write: fresh memory would cost more than the copy into it.
        self._scratch = np.empty(0, dtype=np.uint8)
        if self._page & (self._page - 1) or not PAGE_LEAST <= self._page < PAGE_END:
            raise OptionError(f"page_size must be a power of two from 2 MiB to 2 GiB, not {page_size}")
        self._types = [layout(field) for field in schema.values()]
        self._dtype = table_dtype(self._types)
        super().__init__(path, schema, options)

    @classmethod
    def refuses(cls, field: Field) -> str | None:
        if isinstance(field, Float) and np.dtype(field.dtype).itemsize > 8:
            return f".beton cannot hold {field.dtype} exactly"
        return None

    def remarks(self) -> list[str]:
        return [
            f"the images of {name!r} are {field.mode or 'not all RGB'}; FFCV's image type holds RGB, "
            "so they are stored as bytes, which FFCV reads as such; to_rgb (--to-rgb) makes them RGB"
            for name, field in self.schema.items()
            if isinstance(field, Image) and layout(field) != RGB
        ]

    @classmethod
    def image_target(cls, field: Image) -> ImageTarget:
        if layout(field) == RGB:
            return ImageTarget(frozenset({"jpeg", "raw"}), frozenset({"RGB"}))
        return ImageTarget()

    def _begin(self, state: dict[str, Any] | None) -> None:
        self._pages, self._rows = self.partial.spool("pages"), self.partial.spool("table")
        self._allocations = self.partial.spool("allocations")
        start = self._first_page(self.options.length or 0)
        state = state or {"origin": start, "cursor": start, "page": self._page}
        self._origin, self._cursor, self._page = state["origin"], state["cursor"], state["page"]

    def _state(self) -> dict[str, Any]:
        return {"origin": self._origin, "cursor": self._cursor, "page": self._page}

    def _note(self) -> bytes:
        text = json.dumps(self.schema.to_json(), ensure_ascii=False).encode()
        return NOTE_MAGIC + np.array([len(text), _native.crc32c(text)], "<u4").tobytes() + text

    def _table_at(self) -> int:
        return HEADER.itemsize + len(self._types) * DESCRIPTOR.itemsize

    def _table_end(self, samples: int) -> int:
        return self._table_at() + samples * self._dtype.itemsize + len(self._note())

    def _first_page(self, samples: int) -> int:
        return -(-self._table_end(samples) // self._page) * self._page

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        problems: dict[int, BatchplantError] = {}
        totals = np.zeros(columns.rows, dtype=np.int64)
        for name, kind in zip(self.schema, self._types, strict=True):
            column = columns[name]
            if kind in ALLOCATING:
                totals += np.maximum(column_runs(column)[2], 0) + 1
            if isinstance(column, Ragged):
                large = (probe(column)[:, 1:3] > MAX_SIDE_PIXELS).any(axis=1) if kind == RGB else ()
                for row in np.flatnonzero(large):
                    message = f".beton holds images of at most {MAX_SIDE_PIXELS} pixels a side"
                    problems[int(row)] = EncodeError(message, field=name)
        for row in np.flatnonzero(totals >= PAGE_END // 2):
            problems[int(row)] = EncodeError(f"{totals[row]} bytes exceed .beton's largest page")
        return problems

    def _write(self, columns: Columns) -> None:
        runs = {
            name: column_runs(columns[name])
            for name, kind in zip(self.schema, self._types, strict=True)
            if kind in ALLOCATING
        }
        # A JSON cell ends with a NUL; every cell takes a byte at least.
        sizes = np.zeros((columns.rows, len(runs)), dtype=np.int64)
        for number, (_, _, row_sizes) in enumerate(runs.values()):
            sizes[:, number] = np.maximum(row_sizes, 0)
        sizes += np.array([kind == JSON for kind in self._types if kind in ALLOCATING], dtype=np.int64)
        ptrs = self._place(np.maximum(sizes, 1))
        rows = np.zeros(columns.rows, dtype=self._dtype)
        allocated = np.zeros(sizes.shape, dtype=ALLOCATION)
        allocated["sample"] = (self.written + np.arange(columns.rows))[:, None]
        column = 0
        for number, (name, kind) in enumerate(zip(self.schema, self._types, strict=True)):
            member = rows[f"f{number}"]
            if kind in (INT, FLOAT):
                # A uint64 is kept as the int64 of the same bits.
                member[...] = columns[name]
                continue
            allocated["ptr"][:, column], allocated["size"][:, column] = ptrs[:, column], sizes[:, column]
            if kind == ARRAY:
                member[...] = ptrs[:, column]
            else:
                member["ptr"] = ptrs[:, column]
                if kind == RGB:
                    self._image(columns[name], member)
                else:
                    member["size"] = sizes[:, column]
            column += 1
        if runs and columns.rows:
            self._copy(ptrs, list(runs.values()))
        self._rows.write(rows)
        self._allocations.write(allocated)

    def _place(self, sizes: I64) -> I64:
        """Assign positions to cells: samples one after another, none across the end of a page."""
        totals = sizes.sum(axis=1)
        starts = np.empty(len(totals), dtype=np.int64)
        for row, total in enumerate(totals.tolist()):
            # What lies in smaller pages lies in larger ones too, so the page may grow at any time.
            if not self._fixed and self._cursor - self._origin >= SMALL_FILE_BYTES:
                self._page = max(self._page, PAGE_USUAL)
            while total > self._page:
                self._page *= 2
            if self._cursor % self._page + total > self._page:
                self._cursor = -(-self._cursor // self._page) * self._page
            starts[row] = self._cursor
            self._cursor += total
        return starts[:, None] + np.cumsum(sizes, axis=1) - sizes

    def _copy(self, ptrs: I64, runs: list[tuple[Any, I64, I64]]) -> None:
        first = int(ptrs[0, 0])
        if self._scratch.size < self._cursor - first:
            self._scratch = np.empty(self._cursor - first, dtype=np.uint8)
        buffer = self._scratch[: self._cursor - first]
        buffer.fill(0)
        for number, (data, starts, row_sizes) in enumerate(runs):
            _native.copy_runs(
                data, starts, np.maximum(row_sizes, 0), buffer, np.ascontiguousarray(ptrs[:, number] - first)
            )
            buffer[ptrs[row_sizes < 0, number] - first] = MISSING_MARK
        self._pages.write_at(buffer, first)

    def _image(self, column: Column, member: Any) -> None:
        assert isinstance(column, Ragged)
        headers = probe(column)
        member["mode"] = np.where(column.raw, RAW, JPEG)
        member["width"], member["height"] = headers[:, 1], headers[:, 2]

    def _finish(self) -> str:
        # The page may have grown since; that alone moves nothing.
        if self._table_end(self.written) > self._origin:
            self._move(self._first_page(self.written))
        end = -(-self._cursor // self._page) * self._page if self._cursor > self._origin else self._origin
        file = self._pages
        file.resize(end)
        file.write_at(self._header(end), 0)
        self._copy_rows(self._rows, self._dtype, file, self._table_at())
        file.write_at(self._note(), self._table_at() + self.written * self._dtype.itemsize)
        self._copy_rows(self._allocations, ALLOCATION, file, end)
        return file.path.name

    def _move(self, start: int) -> None:
        """Make room for the table in front of the pages."""
        moved = self.partial.spool("moved")
        self._shift = -(-(start - self._origin) // self._page) * self._page
        done = self._origin
        while done < self._pages.size:
            part = self._pages.read_at(1 << 24, done)
            moved.write_at(part, done + self._shift)
            done += len(part)
        self._pages = moved
        self._cursor += self._shift
        self._origin += self._shift

    _shift = 0

    def _copy_rows(self, rows: Spool, dtype: AnyDType, file: Spool, offset: int) -> None:
        """Copy table or allocations behind the header, ptrs made absolute."""
        step = dtype.itemsize * (1 << 16)
        for done in range(0, rows.size, step):
            part = np.frombuffer(bytearray(rows.read_at(step, done)), dtype=dtype)
            for member in self._ptrs(part):
                member += np.uint64(self._shift)
            file.write_at(part, offset + done)

    def _ptrs(self, rows: AnyArray) -> list[AnyArray]:
        if rows.dtype == ALLOCATION:
            return [rows["ptr"]]
        kinds = [(f"f{number}", kind) for number, kind in enumerate(self._types) if kind in ALLOCATING]
        return [rows[name] if kind == ARRAY else rows[name]["ptr"] for name, kind in kinds]

    def _header(self, allocations: int) -> bytes:
        header = np.array([(2, len(self._types), self._page, self.written, allocations)], dtype=HEADER)
        descriptors = np.zeros(len(self._types), dtype=DESCRIPTOR)
        names = short_names(self.schema)
        for row, short, field in zip(descriptors, names, self.schema.values(), strict=True):
            row["type"], row["name"] = layout(field), short
            if row["type"] == ARRAY:
                assert field.cell is not None
                dtype, shape = field.cell
                text = json.dumps(dtype.descr).encode()
                head = np.zeros(1, dtype=ARRAY_ARGUMENTS)
                head["shape"][0, : len(shape)], head["length"] = shape, len(text)
                row["arguments"][: head.nbytes + len(text)] = np.frombuffer(head.tobytes() + text, np.uint8)
        return header.tobytes() + descriptors.tobytes()


# -- format -------------------------------------------------------------------------------------------

FORMAT = Format(
    name="beton",
    title=".beton (FFCV)",
    suffixes=(".beton",),
    spec="https://github.com/libffcv/ffcv",
    reader=BetonReader,
    writer=BetonWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    notes="all seven field types; JPEG and raw images; pages grow with the data",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        column_pruning=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        max_size="65,535 pixels a side",
        ecosystem=("FFCV",),
    ),
)
