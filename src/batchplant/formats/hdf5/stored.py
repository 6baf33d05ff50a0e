"""Sources of a dataset's bytes: one contiguous run, chunks, or the library.

The library is asked where things lie when a file is opened, and then no more: the bytes are read from the
mapping and unpacked here, by as many threads as there are, which the library's one lock would not allow.
Only for filters that are not ours the library unpacks.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import os
import struct
import threading
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _native
from ...codecs import npy
from ...data.arrays import Array, ChunkedArray, Index, RunArray, read_chunks
from ...errors import DamagedError, DataError, SchemaError, exceptions_as, located
from ...schema import Bytes, Field, Int, Tensor, Text
from ...schema.columns import I64, U8, AnyArray, AnyDType, Column, Flags, Ragged, dense_of, starts_of
from ...storage import MappedSource, Source, limits
from ...storage.cache import ChunkCache, ChunkKeys
from ...storage.spans import SourceRun, Spans
from ..base.arrays.compression import Coding
from ..base.arrays.grid import DecodedChunks

# -- heap ---------------------------------------------------------------------------------------------
# Cells of varying length. They lie in heaps, which never are compressed: runs of bytes in the file.
#
# A heap is ``GCOL``, a version, its size, and objects: number, references, size, bytes up to a multiple of 8.
# An object of number 0 is the free space at the end. We read them here and not through the library, which
# copies cell by cell under one lock, and which a damaged heap can hold up for ever. So images are decoded
# where they lie.

# What stands in place of a cell of varying length: how many values, in which heap, under which number.
DESCRIPTOR = np.dtype([("count", "<u4"), ("heap", "<u8"), ("number", "<u4")])
HEAD_BYTES = 16
# The library lets cells share a heap as long as it is no larger than this.
SHARED = 65536
OBJECT = struct.Struct("<H6xQ")
# Numbers of objects have 16 bits.
MAX_OBJECTS = 65536


def locate_cells(
    source: Source, cache: ChunkCache, base: int, descriptors: AnyArray, width: int
) -> tuple[I64, I64]:
    """Starts and sizes of cells in the file; an error has the row as ``sample``.

    ``base`` is where the addresses of the file begin, ``width`` the bytes of one value.
    """
    sizes = descriptors["count"].astype(np.int64) * width
    starts = np.zeros(len(sizes), dtype=np.int64)
    rows = np.flatnonzero(sizes)
    if not len(rows):
        return starts, sizes
    bad = descriptors["heap"][rows] > np.uint64(max(0, source.size - base - 2 * HEAD_BYTES))
    if bad.any():
        raise DamagedError("it lies in a heap outside of the file", sample=int(rows[np.argmax(bad)]))
    heaps = descriptors["heap"].astype(np.int64) + base
    numbers = descriptors["number"].astype(np.int64)
    rows = _locate_first_in_heap(source, heaps, numbers, sizes, starts, rows)
    rows = rows[np.argsort(heaps[rows], kind="stable")]
    first = 0
    for end in (np.flatnonzero(np.diff(heaps[rows], append=-1)) + 1).tolist():
        in_heap = rows[first:end]
        first = end
        row = in_heap.item(0)
        heap = heaps.item(row)
        try:
            load = functools.partial(_objects, source, heap)
            places, room = cache.get(("heap", heap), load, lambda table: 2 * table[0].nbytes + 256)
        except DamagedError as error:
            raise DamagedError(error.message, offset=heap, sample=row) from None
        if len(in_heap) == 1:
            # The usual case in a random batch, and much quicker than arrays of one number.
            number = numbers.item(row)
            bad_row = None if number < len(room) and room.item(number) >= sizes.item(row) else row
            starts[row] = places.item(number) if bad_row is None else 0
        else:
            offset = np.minimum(numbers[in_heap], len(places) - 1)
            bad = (offset != numbers[in_heap]) | (room[offset] < sizes[in_heap])
            bad_row = int(in_heap[np.argmax(bad)]) if bad.any() else None
            starts[in_heap] = places[offset]
        if bad_row is not None:
            raise DamagedError("it is not in its heap", sample=bad_row, offset=heap)
    return starts, sizes


def heap_ranges(source: Source, base: int, descriptors: AnyArray, width: int) -> tuple[I64, I64]:
    """Locate cells in a heap collection that holds small cells, or one large one; others stay unknown."""
    starts = np.minimum(descriptors["heap"], np.uint64(source.size)).astype(np.int64) + base
    sizes = descriptors["count"].astype(np.int64) * width
    return starts, np.where(
        sizes > 0, np.clip(source.size - starts, 0, np.maximum(SHARED, sizes + 2 * HEAD_BYTES)), 0
    )


def _locate_first_in_heap(
    source: Source, heaps: I64, numbers: I64, sizes: I64, starts: I64, rows: I64
) -> I64:
    """Fill in the cells that come first in their heap, as large ones do; return the other rows."""
    heads = source.gather(heaps[rows], np.full(len(rows), 2 * HEAD_BYTES)).data.reshape(-1, 2 * HEAD_BYTES)
    length = heads[:, 8:16].copy().view("<u8")[:, 0]
    good = (heads[:, :4] == np.frombuffer(b"GCOL", np.uint8)).all(axis=1) & (heads[:, 4] == 1)
    good &= (length >= 2 * HEAD_BYTES) & (length <= (source.size - heaps[rows]).astype(np.uint64))
    if not good.all():
        row = int(rows[np.argmin(good)])
        raise DamagedError("it lies in no heap", sample=row, offset=int(heaps[row]))
    number = heads[:, 16:18].copy().view("<u2")[:, 0]
    size = heads[:, 24:32].copy().view("<u8")[:, 0]
    is_first = (number == numbers[rows]) & (size >= sizes[rows].astype(np.uint64))
    is_first &= size <= length - np.uint64(2 * HEAD_BYTES)
    starts[rows[is_first]] = heaps[rows[is_first]] + 2 * HEAD_BYTES
    return rows[~is_first]


def _objects(source: Source, heap: int) -> tuple[I64, I64]:
    """Start and size of every object of a heap, by number; a size of -1 where there is none."""
    length = int.from_bytes(source.view(heap + 8, 8).tobytes(), "little")
    data = source.view(heap, length).data
    objects: list[tuple[int, int, int]] = []
    offset = HEAD_BYTES
    while offset + HEAD_BYTES <= length and len(objects) < MAX_OBJECTS:
        number, size = OBJECT.unpack_from(data, offset)
        offset += HEAD_BYTES
        if number == 0 or size > length - offset:
            break
        objects.append((number, heap + offset, size))
        offset += (size + 7) // 8 * 8
    table = np.array(objects, dtype=np.int64).reshape(-1, 3)
    places = np.zeros(int(table[:, 0].max(initial=0)) + 1, dtype=np.int64)
    room = np.full(len(places), -1, dtype=np.int64)
    places[table[:, 0]], room[table[:, 0]] = table[:, 1], table[:, 2]
    return places, room


# -- stored -------------------------------------------------------------------------------------------

SHUFFLE, FLETCHER, DEFLATE = 2, 3, 1
OURS = {SHUFFLE, FLETCHER, DEFLATE}
# More samples than this have to take some room in the file.
MAX_EMPTY_CHUNKS = 1_000_000
# Bytes of a dataset of offsets, flags or shapes that are kept in memory.
MAX_KEPT_BYTES = 256 << 20


class Stored:
    """The samples of one dataset, ``width`` bytes each."""

    # Samples in one chunk; 0 where there are no chunks.
    chunk: int = 0

    def __init__(self, source: Source, length: int, width: int) -> None:
        self.source = source
        self.length = length
        self.width = width

    def rows(self, indices: I64, offset: int, width: int) -> U8:
        """``width`` bytes from ``offset`` on of each of these samples: (samples, width)."""
        raise NotImplementedError

    def starts(self, indices: I64) -> I64 | None:
        """Starts of these samples in the file; None if they are not contiguous there."""
        return None

    def needs(self, indices: I64) -> tuple[I64, I64]:
        """Start and size of what reading these samples takes."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what it holds."""


class Run(Stored):
    """All samples one after another."""

    def __init__(self, source: Source, length: int, width: int, start: int) -> None:
        super().__init__(source, length, width)
        self.start = start
        source.check_bounds(start, length * width)

    def rows(self, indices: I64, offset: int, width: int) -> U8:
        return self.source.gather_rows(self.start + offset, self.width, width, indices)

    def starts(self, indices: I64) -> I64:
        return self.start + indices * self.width

    def needs(self, indices: I64) -> tuple[I64, I64]:
        return self.starts(indices), np.full(len(indices), self.width, dtype=np.int64)


class InMemory(Stored):
    """In memory: all samples, or the one value that all samples have."""

    def __init__(self, source: Source, data: U8) -> None:
        super().__init__(source, len(data), data.shape[1])
        self._data = data

    def rows(self, indices: I64, offset: int, width: int) -> U8:
        return np.ascontiguousarray(self._data[indices, offset : offset + width])

    def needs(self, indices: I64) -> tuple[I64, I64]:
        return np.empty(0, np.int64), np.empty(0, np.int64)


class CachedDataset(Stored):
    """A small dataset that is asked for with every sample, of a file on a server: read whole, once."""

    def __init__(self, inner: Stored) -> None:
        super().__init__(inner.source, inner.length, inner.width)
        self._inner = inner
        self._data: U8 | None = None

    def rows(self, indices: I64, offset: int, width: int) -> U8:
        if self._data is None:
            self._data = self._inner.rows(np.arange(self.length), 0, self.width)
        return np.ascontiguousarray(self._data[indices, offset : offset + width])


def cached(stored: Stored) -> Stored:
    """The dataset, in memory where that pays."""
    small = stored.length * stored.width <= MAX_KEPT_BYTES
    return CachedDataset(stored) if small and not isinstance(stored.source, MappedSource) else stored


class Chunks(Stored, DecodedChunks):
    """Chunks of ``shape[0]`` samples, each perhaps only a part of them, unpacked and kept for a while.

    ``numbers`` are those of the chunks that there are, ascending, counted along the last axis first.
    """

    def __init__(
        self,
        source: Source,
        cache: ChunkCache,
        key: object,
        *,
        dims: tuple[int, ...],
        shape: tuple[int, ...],
        item: int,
        fill: bytes,
        filters: list[tuple[int, tuple[int, ...]]],
        table: I64,
    ) -> None:
        super().__init__(source, dims[0], item * math.prod(dims[1:]))
        self.dims, self.shape, self.item, self.fill, self.filters = dims, shape, item, fill, filters
        self.numbers, self.places, self.sizes, self.masks = table
        self.chunk = shape[0]
        self.bytes = item * math.prod(shape)
        self.cache, self.key = cache, key
        self.grid = tuple(-(-size // part) for size, part in zip(dims[1:], shape[1:], strict=True))
        self._across = math.prod(self.grid)
        self._spans_columns = all(part == size for size, part in zip(dims[1:], shape[1:], strict=True))
        self._check()

    def _check(self) -> None:
        bad = self.source.outside(self.places, self.sizes)
        if bad is not None:
            raise DamagedError("a chunk lies outside of the file", offset=int(self.places[bad]))
        if self.filters:
            smallest, lies = int(self.sizes.min()) if len(self.sizes) else 0, False
            limits.check("a chunk", self.bytes, int(self.sizes.max(initial=0)))
        else:
            smallest, lies = self.bytes, bool((self.sizes != self.bytes).any())
        # What no chunk backs is fill values.
        limits.check("a row", self.width, int(self.sizes.sum()))
        stored = self.chunk * len(np.unique(self.numbers // max(1, self._across)))
        if (np.diff(self.numbers) <= 0).any():
            raise DamagedError("two chunks are said to be one")
        if lies or (smallest < 1 and len(self.sizes)) or self.length - stored > MAX_EMPTY_CHUNKS:
            raise DamagedError(f"{self.length} samples are more than its chunks can hold")

    def starts(self, indices: I64) -> I64 | None:
        if self.filters or not self._spans_columns:
            return None
        block = indices // self.chunk
        position = np.searchsorted(self.numbers, block)
        exists = position < len(self.numbers)
        if not exists.all() or not (self.numbers[position] == block).all():
            return None
        return self.places[position] + (indices - block * self.chunk) * self.width

    def needs(self, indices: I64) -> tuple[I64, I64]:
        starts = self.starts(indices)
        if starts is not None:
            return starts, np.full(len(indices), self.width, dtype=np.int64)
        blocks = np.unique(indices // self.chunk)
        edges = np.searchsorted(self.numbers, [blocks * self._across, (blocks + 1) * self._across])
        picked = [np.arange(first, last) for first, last in edges.T.tolist()]
        chosen = np.concatenate([np.empty(0, np.int64), *picked])
        return self.places[chosen], self.sizes[chosen]

    def rows(self, indices: I64, offset: int, width: int) -> U8:
        starts = self.starts(indices)
        if starts is not None:
            return self.source.gather(starts + offset, np.full(len(indices), width)).data.reshape(-1, width)
        # Of an element only its part, or of a row of elements all.
        item = width if width < self.width else self.item
        out = np.empty((len(indices), *self.dims[1:], item), dtype=np.uint8)
        boxes = np.zeros((len(indices), 3, out.ndim), dtype=np.int64)
        boxes[:, :, 0] = np.stack([indices, np.ones_like(indices), np.arange(len(indices))], axis=1)
        boxes[:, 1, 1:] = out.shape[1:]
        boxes[:, 0, -1] = offset
        native = _native.ChunkBoxes(boxes, [1] * out.ndim, (*self.shape, self.item))

        def load(chunks: Sequence[Index]) -> Sequence[Any]:
            return self.read_chunks(self.cache, [index[:-1] for index in chunks])

        read_chunks(native, load, out, self.bytes, lambda chunk: int(indices[native.place(chunk)]))
        return out.reshape(-1, width)

    def find(self, index: Index) -> int | None:
        """The place in ``numbers`` of the chunk with these numbers on each axis; None: it is not there."""
        number = 0
        for offset, size in zip(index, (1, *self.grid), strict=True):
            number = number * size + offset
        position = int(np.searchsorted(self.numbers, number))
        return position if position < len(self.numbers) and self.numbers[position] == number else None

    # -- chunks: arrays of bytes, those of an element along the last axis ------------------------------

    @property
    def chunk_bytes(self) -> int:
        return self.bytes

    def chunk_key(self, index: Index) -> tuple[Any, ...] | None:
        in_place = not self.filters and isinstance(self.source, MappedSource)
        return None if in_place else (self.key, index)

    def chunk_source(self, index: Index) -> tuple[Any, int, int]:
        number = self.find(index)
        if number is None or self.masks[number]:
            return b"", 0, -1
        return self.source.view(int(self.places[number]), int(self.sizes[number])), 0, -1

    def load_chunk(self, index: Index) -> AnyArray:
        number = self.find(index)
        if number is None:
            return np.broadcast_to(np.frombuffer(self.fill, dtype=np.uint8), (*self.shape, self.item))
        return self.shaped(self.unpack(number))

    def shaped(self, values: U8) -> AnyArray:
        return values.reshape(*self.shape, self.item)

    @functools.cached_property
    def native_coding(self) -> _native.ChunkCoding | None:
        names = {SHUFFLE: "shuffle", FLETCHER: "fletcher32", DEFLATE: "gzip"}
        if not {code for code, _ in self.filters} <= set(names):
            return None
        steps = [(names[code], max(1, values[0]) if values else 1) for code, values in reversed(self.filters)]
        return Coding(tuple(steps)).native(self.bytes)

    def unpack(self, number: int) -> U8:
        """The bytes of the chunk at a place in ``numbers``."""
        start = int(self.places[number])
        data = self.source.view(start, int(self.sizes[number]))
        with located(offset=start):
            for step in range(len(self.filters) - 1, -1, -1):
                if not int(self.masks[number]) >> step & 1:
                    data = _undo(self.filters[step], data, self.bytes)
            if data.size != self.bytes:
                raise DamagedError(f"a chunk has {data.size} bytes in place of {self.bytes}")
        return data


class Library(Chunks):
    """Chunks that only the library can unpack.

    It does not see the file, for damaged ones can hold it up for ever: each chunk is put into a small file in
    memory, and read from there.
    """

    def __init__(self, *args: Any, kind: bytes, flags: tuple[int, ...], **chunk_options: Any) -> None:
        super().__init__(*args, **chunk_options)
        self._kind = kind
        self._flags = flags
        # Whose the file in memory is, if there is one, and whose the lock.
        self._process, self._owner = -1, os.getpid()
        self._lock = threading.Lock()

    def unpack(self, number: int) -> U8:
        start, mask = int(self.places[number]), int(self.masks[number])
        data = self.source.view(start, int(self.sizes[number]))
        # Another thread may have held the lock when the process was forked.
        if self._owner != os.getpid():
            self._lock, self._process, self._owner = threading.Lock(), -1, os.getpid()
        out = np.empty(self.bytes, dtype=np.uint8)
        # The library raises what it likes.
        with exceptions_as(DamagedError, "a chunk cannot be unpacked", Exception, offset=start):
            import h5py

            with self._lock:
                dataset = self._scratch(mask)
                dataset.write_direct_chunk((0,) * len(self.shape), data.tobytes())
                dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, out, dataset.get_type())
        return out

    def _scratch(self, mask: int) -> Any:
        """A dataset of one chunk with the same type and filters, in memory.

        One for each mask, without the filters that it leaves out: the library itself forgets masks.
        """
        import h5py

        if self._process == -1:
            # Files in memory need names of their own.
            name = f"batchplant {os.urandom(8).hex()}"
            self._file = h5py.File(name, "w", driver="core", backing_store=False, rdcc_nbytes=0)
            self._process = os.getpid()
        if str(mask) not in self._file:
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_chunk(self.shape)
            for step, ((code, values), flags) in enumerate(zip(self.filters, self._flags, strict=True)):
                if not mask >> step & 1:
                    plist.set_filter(code, flags, values)
            kind, space = h5py.h5t.decode(self._kind), h5py.h5s.create_simple(self.shape)
            h5py.h5d.create(self._file.id, str(mask).encode(), kind, space, plist)
        return self._file[str(mask)].id

    def close(self) -> None:
        if self._process == os.getpid():
            with self._lock:
                self._file.close()
                self._process = -1


def _undo(step: tuple[int, tuple[int, ...]], data: U8, limit: int) -> U8:
    kind, values = step
    if kind == DEFLATE:
        with exceptions_as(DamagedError, "a chunk cannot be inflated", zlib.error):
            # A little more than it should be, so that too much is noticed.
            return np.frombuffer(zlib.decompressobj().decompress(data.data, limit + 16), dtype=np.uint8)
    if kind == SHUFFLE:
        item = max(1, values[0]) if values else 1
        count = data.size // item
        out = np.empty_like(data)
        # Byte by byte of the elements: several times as fast as transposing them at once.
        for byte in range(item):
            out[byte : count * item : item] = data[byte * count : (byte + 1) * count]
        out[count * item :] = data[count * item :]
        return out
    if data.size < 4:
        raise DamagedError("a chunk is too short for its checksum")
    stated = int.from_bytes(data[-4:].tobytes(), "little")
    if not _is_sum(fletcher32(data[:-4]), stated):
        raise DamagedError("the checksum of a chunk is wrong")
    return data[:-4]


def _is_sum(sums: tuple[int, int], stated: int) -> bool:
    # Old versions of the library wrote the bytes of each half the other way round, and it takes both.
    swapped = (stated & 0xFF00FF) << 8 | stated >> 8 & 0xFF00FF
    return any(sums == ((order & 0xFFFF) % 65535, (order >> 16) % 65535) for order in (stated, swapped))


def fletcher32(data: U8) -> tuple[int, int]:
    """Both sums of HDF5's Fletcher-32, modulo 65535."""
    even = data if data.size % 2 == 0 else np.append(data, np.uint8(0))
    words: npt.NDArray[np.uint64] = even.view(">u2").astype(np.uint64)
    weights = np.arange(len(words), 0, -1, dtype=np.uint64) % np.uint64(65535)
    return int(words.sum()) % 65535, int((words * weights).sum()) % 65535


# -- cells --------------------------------------------------------------------------------------------
# From stored bytes to the cells of a field, and where those lie.

NULL_TERMINATED, NULL_PADDED, SPACE_PADDED = 0, 1, 2


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a stored element: ``width`` bytes at ``offset``.

    kind: ``number``, ``string`` (of fixed length) or ``vlen``; the dtype is that of the values, in the
    file's byte order; shape that of an array inside of the element.
    """

    name: str
    kind: str
    offset: int
    width: int
    dtype: AnyDType
    shape: tuple[int, ...] = ()
    text: bool = False
    utf8: bool = False
    padding: int = 0
    names: tuple[str, ...] | None = None
    # Why it has no field, where there is something wrong with it alone.
    refused: str | None = None

    def field(self, shape: tuple[int, ...]) -> Field:
        """The field that it is in a dataset whose samples have this shape."""
        if self.refused is not None:
            raise SchemaError(self.refused)
        if self.kind == "number":
            field = npy.field_of(self.dtype, (*shape, *self.shape))
            if self.names is not None and isinstance(field, Int):
                return Int(field.dtype, self.names)
            return field
        if shape or self.shape:
            raise SchemaError("arrays of text or of varying length have no field kind")
        if self.text:
            return Text()
        return Bytes() if self.dtype == np.uint8 else Tensor(self.dtype.newbyteorder("=").name, (None,))


class Cells:
    """The cells of one field. ``valid`` and ``shapes`` are datasets beside it, where there are."""

    def __init__(
        self, source: Source, field: Field, *, valid: Stored | None = None, shapes: Stored | None = None
    ) -> None:
        self.source = source
        self.field = field
        self.valid = None if valid is None else cached(valid)
        self.shapes = None if shapes is None else cached(shapes)

    def read(self, indices: I64) -> Column:
        raise NotImplementedError

    def runs(self, indices: I64) -> tuple[I64, I64] | None:
        """Starts and sizes in the file; missing cells may have any. None: there are no such runs."""
        return None

    def needs(self, indices: I64) -> tuple[I64, I64] | None:
        """Starts and sizes of what reading the cells takes; None if they are unknown."""
        return self.runs(indices)

    def spans(self, indices: I64) -> Spans | None:
        runs = self.runs(indices)
        if runs is None:
            return None
        valid = self._valid(indices)
        sizes = runs[1] if valid is None else np.where(valid, runs[1], -1)
        return Spans([self.source], runs[0], sizes, shape=self._shapes(indices))

    def _valid(self, indices: I64) -> Flags | None:
        if self.valid is None:
            return None
        flags = self.valid.rows(indices, 0, 1)[:, 0] != 0
        return None if flags.all() else flags

    def _shapes(self, indices: I64) -> npt.NDArray[np.int32] | None:
        if self.shapes is None:
            return None
        shapes = self.shapes.rows(indices, 0, 12).view("<i4").astype(np.int32)
        if ((shapes < 0) | (shapes[:, 2:] > 4)).any():
            raise DamagedError("the shape of an image makes no sense")
        return shapes if shapes.any() else None


class Numbers(Cells):
    """Cells of one size."""

    def __init__(
        self, source: Source, field: Field, stored: Stored, part: Part, item: int, **beside: Any
    ) -> None:
        super().__init__(source, field, **beside)
        self.stored = stored
        self.part = part
        self.item = item
        self.inner = stored.width // item if item else 0
        self._dense = dense_of(field)

    def raw(self, indices: I64) -> U8:
        """(samples, bytes of a cell)."""
        if self.inner == 1:
            return self.stored.rows(indices, self.part.offset, self.part.width)
        rows = self.stored.rows(indices, 0, self.stored.width)
        if self.part.width == self.item:
            return rows
        elements = rows.reshape(len(indices), self.inner, self.item)
        inside = slice(self.part.offset, self.part.offset + self.part.width)
        return np.ascontiguousarray(elements[:, :, inside]).reshape(len(indices), -1)

    def read(self, indices: I64) -> Column:
        assert self._dense is not None
        dtype, shape = self._dense
        raw = self.raw(indices)
        values: AnyArray
        if dtype.kind == "b":
            values = (raw != 0).reshape(len(indices), *shape)
        else:
            stored = self.part.dtype
            native = raw.reshape(-1).view(stored).astype(stored.newbyteorder("="), copy=False)
            # Times are kept as whole numbers.
            values = native.view(dtype).reshape(len(indices), *shape)
        if not self.field.optional:
            return values
        valid = self._valid(indices)
        width = dtype.itemsize * int(np.prod(shape))
        present = np.ones(len(indices), dtype=np.bool_) if valid is None else valid
        offsets = starts_of(present * np.int64(width))
        return Ragged(np.ascontiguousarray(values[present]).reshape(-1).view(np.uint8), offsets, None, valid)

    def needs(self, indices: I64) -> tuple[I64, I64]:
        return self.stored.needs(indices)

    def runs(self, indices: I64) -> tuple[I64, I64] | None:
        plain = self.inner == 1 or self.part.width == self.item
        starts = self.stored.starts(indices) if plain and self.part.dtype.isnative else None
        if starts is None:
            return None
        width = self.part.width * self.inner
        return starts + self.part.offset, np.full(len(indices), width, dtype=np.int64)


class Strings(Numbers):
    """Texts of a fixed length, without their padding."""

    def read(self, indices: I64) -> Column:
        raw = self.raw(indices)
        width = raw.shape[1]
        if self.part.padding == NULL_TERMINATED:
            ends = raw == 0
            sizes = np.where(ends.any(axis=1), ends.argmax(axis=1), width)
        else:
            significant = raw != (ord(" ") if self.part.padding == SPACE_PADDED else 0)
            sizes = np.where(significant.any(axis=1), width - significant[:, ::-1].argmax(axis=1), 0)
        sizes = sizes.astype(np.int64)
        offsets = starts_of(sizes)
        data = np.empty(offsets[-1], dtype=np.uint8)
        _native.copy_runs(raw.reshape(-1), np.arange(len(raw)) * width, sizes, data, offsets[:-1])
        return Ragged(data, offsets)

    def runs(self, indices: I64) -> tuple[I64, I64] | None:
        return None


class Ranges(Cells):
    """Cells of varying length that are runs in the file."""

    def read(self, indices: I64) -> Column:
        runs = self.runs(indices)
        assert runs is not None
        bad = self.source.outside(*runs)
        if bad is not None:
            raise DamagedError("the cell lies outside of the file", sample=int(indices[bad]))
        cells = self.source.gather(*runs)
        cells.valid, cells.shape = self._valid(indices), self._shapes(indices)
        return cells


class Varying(Ranges):
    """In heaps."""

    def __init__(
        self,
        source: Source,
        field: Field,
        stored: Stored,
        part: Part,
        base: int,
        cache: ChunkCache,
        **beside: Any,
    ) -> None:
        super().__init__(source, field, **beside)
        self.stored = stored
        self.part = part
        self.base = base
        self.cache = cache
        self._rows = cached(stored)

    def _descriptors(self, indices: I64) -> AnyArray:
        return self._rows.rows(indices, self.part.offset, self.part.width).reshape(-1).view(DESCRIPTOR)

    def needs(self, indices: I64) -> tuple[I64, I64]:
        """About: heaps are not looked into for it."""
        return heap_ranges(self.source, self.base, self._descriptors(indices), self.part.dtype.itemsize)

    def runs(self, indices: I64) -> tuple[I64, I64]:
        descriptors = self._descriptors(indices)
        try:
            return locate_cells(self.source, self.cache, self.base, descriptors, self.part.dtype.itemsize)
        except DamagedError as error:
            row, error.sample = error.sample, None
            raise error.at(sample=None if row is None else int(indices[row])) from None

    def spans(self, indices: I64) -> Spans | None:
        return super().spans(indices) if self.part.dtype.isnative else None

    def read(self, indices: I64) -> Column:
        cells = super().read(indices)
        if isinstance(cells, Ragged) and not self.part.dtype.isnative:
            cells.data = cells.data.view(self.part.dtype).byteswap().view(np.uint8)
        return cells


class Packed(Ranges):
    """One after another in one dataset, and in another where they end."""

    def __init__(self, source: Source, field: Field, data: Stored, offsets: Stored, **beside: Any) -> None:
        super().__init__(source, field, **beside)
        self.data = data
        self.offsets = cached(offsets)

    def runs(self, indices: I64) -> tuple[I64, I64]:
        begins = self.offsets.rows(indices, 0, 8).view("<i8")[:, 0]
        sizes = self.offsets.rows(indices + 1, 0, 8).view("<i8")[:, 0] - begins
        bad = (begins < 0) | (sizes < 0) | (begins > self.data.length - sizes)
        if bad.any():
            raise DamagedError("its offsets are damaged", sample=int(indices[np.argmax(bad)]))
        starts = self.data.starts(np.zeros(1, dtype=np.int64))
        # Nothing was written where all cells are empty.
        return begins + (0 if starts is None else starts[0]), sizes


# -- array --------------------------------------------------------------------------------------------
# A dataset as an N-d array: its chunks, or one run of values, without the library.


def array_of(path: str, name: str, field: Field, stored: Stored, part: Part, item: int) -> Array | None:
    """The array that a dataset of numbers is; None where its rows have to be read one by one."""
    dense = dense_of(field)
    if dense is None or field.optional or part.shape or part.kind != "number":
        return None
    decode = functools.partial(_values, dense[0], part, item)
    shape = (stored.length, *dense[1])
    if isinstance(stored, Run):
        return RunArray(path, name, shape, dense[0], stored.source, stored.start, item=item, decode=decode)
    return Hdf5Chunks(path, name, stored, dense[0], decode) if isinstance(stored, Chunks) else None


def _values(dtype: AnyDType, part: Part, item: int, data: U8) -> AnyArray:
    """The values of one part among those of all elements; truth values and times are stored as numbers."""
    layout: Any = {"names": ["x"], "formats": [part.dtype], "offsets": [part.offset], "itemsize": item}
    values: AnyArray = data.view(np.dtype(layout))["x"]
    if dtype.kind == "b":
        return np.asarray(values != 0)
    return values.astype(values.dtype.newbyteorder("="), copy=False).view(dtype)


class Hdf5Chunks(ChunkedArray):
    """Chunks of a dataset, unpacked and kept in the cache that its rows have."""

    def __init__(self, path: str, name: str, stored: Chunks, dtype: AnyDType, decode: Any) -> None:
        super().__init__(path, name, stored.dims, dtype, stored.shape)
        self._chunks, self._decode = stored, decode

    def _load_chunks(self, indices: Sequence[Index]) -> Sequence[AnyArray | DataError]:
        self._ahead(indices)
        chunks = self._chunks.read_chunks(self._chunks.cache, indices)
        return [self._values(chunk, index) for chunk, index in zip(chunks, indices, strict=True)]

    def _values(self, chunk: Any, index: Index) -> AnyArray | DataError:
        if isinstance(chunk, DataError):
            error = copy.copy(chunk)
            error.message = f"chunk {'.'.join(map(str, index))}: {error.message}"
            return error
        return self._decode(chunk)[..., 0]

    def chunk_keys(self, starts: I64, size: Sequence[int]) -> ChunkKeys | None:
        keys = [self._chunks.chunk_key(index) for index in self._touched(starts, size)[0].indices]
        return (self._chunks.cache, [*keys]) if keys and keys[0] is not None else None

    def _known(self, chunks: Sequence[Index]) -> list[int]:
        return [number for number in map(self._chunks.find, chunks) if number is not None]

    def _ahead(self, chunks: Sequence[Index]) -> None:
        if not isinstance(self._chunks.source, MappedSource):
            numbers = self._known(chunks)
            self._chunks.source.request(self._chunks.places[numbers], self._chunks.sizes[numbers])

    def _places(self, chunks: Sequence[Index]) -> list[SourceRun] | None:
        numbers = self._known(chunks)
        places: I64 = self._chunks.places[numbers]
        sizes: I64 = self._chunks.sizes[numbers]
        runs = zip(places.tolist(), sizes.tolist(), strict=True)
        return [(self._chunks.source, start, size) for start, size in runs]

    def _stored(self) -> int | None:
        return int(self._chunks.sizes.sum())
