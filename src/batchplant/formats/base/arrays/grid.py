"""Grid: one array that is stored in chunks, and how rows of it are read."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from .... import _native
from ....codecs import npy
from ....data.arrays import READ_BYTES, ChunkedArray, Index, chunk_threads, each_or_error, read_chunks
from ....errors import BatchplantError, DamagedError, DataError, SchemaError, located
from ....schema import Bytes, Field, Text
from ....schema.columns import I32, I64, U8, AnyArray, AnyDType, Column, Ragged, as_bytes, starts_of
from ....storage import Source, limits
from ....storage.cache import ChunkCache, ChunkKeys
from ....storage.spans import SourceRun
from .compression import Coding, sums_of
from .store import Blob, ChunkLocation, SourceRange, Store, human


class DecodedChunks:
    """Chunks of an array by their index. A format says where one lies, and loads one without threads."""

    @property
    def chunk_bytes(self) -> int:
        raise NotImplementedError

    @functools.cached_property
    def native_coding(self) -> _native.ChunkCoding | None:
        """The steps from bytes to values; None where native threads cannot go them."""
        return None

    def chunk_key(self, index: Index) -> tuple[Any, ...] | None:
        """Return the key of a chunk in the cache; None: chunks lie decoded where they are."""
        raise NotImplementedError

    def chunk_source(self, index: Index) -> tuple[Any, int, int]:
        """Return a chunk's bytes, or the path of a file with start and size in it; ``b""``: neither."""
        raise NotImplementedError

    def load_chunk(self, index: Index) -> Any:
        """Return a chunk, made by this thread: its values, or Ragged; fill values where it is missing."""
        raise NotImplementedError

    def shaped(self, values: U8) -> AnyArray:
        """Return the values of a whole chunk as an array."""
        raise NotImplementedError

    def read_chunks(self, cache: ChunkCache, indices: Sequence[Index]) -> Sequence[Any]:
        """Return several chunks, decoded side by side; an error in place of one that is damaged."""
        keys = [self.chunk_key(index) for index in indices]
        if None in keys:
            return each_or_error(self.load_chunk, indices, self.chunk_bytes)
        return cache.get_all(keys, lambda places: self._decode([indices[n] for n in places]), size_of)

    def _decode(self, indices: Sequence[Index]) -> list[Any]:
        chunks: list[Any] = [None] * len(indices)
        # A larger one is checked against its stored bytes first, which loading it does.
        if self.native_coding is not None and self.chunk_bytes <= limits.max_bytes():
            sources, runs = [], np.zeros((2, len(indices)), dtype=np.int64)
            for number, index in enumerate(indices):
                source: tuple[Any, int, int] = b"", 0, -1
                # Loading it says what is wrong.
                with contextlib.suppress(BatchplantError):
                    source = self.chunk_source(index)
                sources.append(source[0])
                runs[:, number] = source[1:]
            decoded = chunk_threads().decode(self.native_coding, sources, *runs)
            chunks = [None if values is None else self.shaped(values) for values in decoded]
        failed = [number for number, chunk in enumerate(chunks) if chunk is None]
        loaded = each_or_error(self.load_chunk, [indices[number] for number in failed], self.chunk_bytes)
        for number, chunk in zip(failed, loaded, strict=True):
            chunks[number] = chunk
        return chunks


def size_of(chunk: Any) -> int:
    """Return the bytes of a chunk."""
    if isinstance(chunk, Ragged):
        return int(chunk.data.nbytes + chunk.offsets.nbytes)
    return int(chunk.nbytes)


# What an open mapping is charged with in the cache: it holds no memory, but a process may have only so many.
MAPPING_CHARGE_BYTES = 64 << 10
MAX_CHUNK_BYTES = 1 << 40
# NumPy's own limit.
MAX_DIMENSIONS = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32
# Files of an array that are kept mapped.
MAX_MAPPED_FILES = 4096
# Larger chunks of plain values on a server are not fetched whole: rows are read by ranges.
MAX_WHOLE_CHUNK_BYTES = 1 << 20


@dataclasses.dataclass
class Grid(DecodedChunks):
    """An array of ``shape`` in ``chunks``.

    ``locate`` says where a chunk is (None: it is missing), ``decode`` makes an array (or Ragged, of text
    and bytes) of its bytes. ``plain``: these bytes are the values themselves, in C order, behind a header
    whose size ``header`` says. ``cropped``: the last chunk holds only the rows that there are. ``fill``
    makes the value of a missing chunk. ``packing`` is for people.
    """

    store: Store
    name: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: AnyDType
    locate: Callable[[Index], ChunkLocation | None]
    decode: Callable[[U8], Any]
    fill: Callable[[], Any]
    plain: bool = False
    packing: str = "none"
    header: Callable[[U8], int] | None = None
    cropped: bool = False
    # Chunks of samples in one file.
    per_file: int = 1
    # Whether the table of a file of several chunks has a checksum.
    summed: bool = False
    # Whether a missing chunk is one of fill values, or damage.
    may_miss: bool = True
    # How native threads decode whole chunks, where they can.
    coding: Coding | None = None

    def __post_init__(self) -> None:
        if len(self.shape) > MAX_DIMENSIONS:
            message = (
                f"arrays of {len(self.shape)} dimensions are not read; NumPy has at most {MAX_DIMENSIONS}"
            )
            raise SchemaError(message, path=self._path)
        sizes = [*self.shape, *self.chunks]
        good = len(self.shape) == len(self.chunks) and all(type(size) is int for size in sizes)
        if not good or min(self.shape, default=0) < 0 or min(self.chunks, default=1) < 1:
            raise DamagedError(f"an array of shape {self.shape} in chunks {self.chunks}", path=self._path)
        if self.chunk_bytes > MAX_CHUNK_BYTES or max(self.shape, default=0) > 2**60:
            raise DamagedError(f"it claims chunks of {self.chunk_bytes} bytes", path=self._path)

    @property
    def _path(self) -> str:
        return self.store.full(self.name)

    @property
    def row(self) -> tuple[int, ...]:
        return self.shape[1:]

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return self.dtype.itemsize * math.prod(self.row)

    @property
    def chunk_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.chunks)

    @property
    def whole_rows(self) -> bool:
        """True if a chunk holds rows one after another, nothing between."""
        return self.chunks[1:] == self.row and not self.dtype.hasobject

    @property
    def by_range(self) -> bool:
        """True if rows are read out of chunks on a server without the rest of the chunks."""
        large = self.chunk_bytes > MAX_WHOLE_CHUNK_BYTES
        return self.store.slow and self.plain and self.header is None and self.whole_rows and large

    @functools.cached_property
    def _stored(self) -> int | None:
        """The bytes of all chunks; asked for only where something large is claimed."""
        return self.store.size(self.name)

    def check(self, description: str, size: int) -> None:
        """DamagedError where the array claims more than its stored bytes may unpack to, or fill values be."""
        if size > limits.max_bytes() and self._stored is not None:
            with located(path=self._path):
                limits.check(description, size, self._stored)

    def as_one(self) -> Grid:
        """A single value as an array of one."""
        locate, decode = self.locate, self.decode

        def decode_one(data: U8) -> Any:
            chunk = decode(data)
            return chunk if isinstance(chunk, Ragged) else chunk.reshape(1)

        return dataclasses.replace(
            self, shape=(1,), chunks=(1,), locate=lambda _: locate(()), decode=decode_one
        )

    # -- chunks ----------------------------------------------------------------------------------------

    def chunk(self, cache: ChunkCache, index: Index) -> Any:
        """One chunk: an array of the chunk's shape, or of what the array has left there; or Ragged."""
        if self.plain:
            blob = self.blob(cache, index)
            if blob is None:
                return self._filled(index)
            return blob.data.view(self.dtype).reshape(-1, *self.chunks[1:])
        return cache.get(self.chunk_key(index), functools.partial(self.load_chunk, index), size_of)

    def read_chunks(self, cache: ChunkCache, indices: Sequence[Index]) -> Sequence[Any]:
        self.ahead(cache, indices)
        if self.plain:
            return each_or_error(functools.partial(self.chunk, cache), indices, self.chunk_bytes)
        return super().read_chunks(cache, indices)

    @functools.cached_property
    def native_coding(self) -> _native.ChunkCoding | None:
        return None if self.coding is None else self.coding.native(self.chunk_bytes)

    def chunk_key(self, index: Index) -> tuple[Any, ...]:
        return self.name, index

    def chunk_source(self, index: Index) -> tuple[Any, int, int]:
        location = self.locate(index)
        if location is None:
            return b"", 0, -1
        file = self.store.file(location.name)
        if file is not None:
            return file, location.start, -1 if location.size is None else location.size
        data = self.store.read(*location)
        return b"" if data is None else data, 0, -1

    def shaped(self, values: U8) -> AnyArray:
        return values.view(self.dtype).reshape(self.chunks)

    def load_chunk(self, index: Index) -> Any:
        location = self.locate(index)
        data = None if location is None else self.store.read(*location)
        if location is None or data is None:
            return self._filled(index)
        try:
            chunk = self.decode(data)
            if not isinstance(chunk, Ragged):
                self._check(chunk, index)
        except BatchplantError as error:
            raise error.at(path=self.store.full(location.name), offset=location.start or None) from None
        # Filters of numcodecs raise what they like.
        except Exception as error:
            message = f"the chunk is damaged: {type(error).__name__}: {error}"
            raise DamagedError(message, path=self.store.full(location.name)) from None
        return chunk

    def _check(self, chunk: AnyArray, index: Index) -> None:
        """A chunk at the edge may be cut to what is left; rows may have been appended since."""
        expected = [min(c, s - i * c) for i, c, s in zip(index, self.chunks, self.shape, strict=True)]
        grown = self.cropped and chunk.ndim and expected[0] < chunk.shape[0] < self.chunks[0]
        sizes = list(zip(chunk.shape, expected, self.chunks, strict=False))[bool(grown) :]
        if chunk.ndim != len(expected) or any(have not in (clipped, full) for have, clipped, full in sizes):
            raise DamagedError(f"the chunk has the shape {chunk.shape}, and {tuple(expected)} is needed")

    def _filled(self, index: Index) -> Any:
        if not self.may_miss:
            name = ".".join(map(str, index))
            message = f"chunk {name} is missing; missing='fill' reads it as fill values"
            raise DamagedError(message, path=self._path)
        value = self.fill()
        if self.dtype.hasobject:
            self.check("a chunk", 8 * self.chunks[0])
            return Ragged.from_cells([value] * self.chunks[0])
        return np.broadcast_to(np.asarray(value, dtype=self.dtype), self.chunks)

    def blob(self, cache: ChunkCache, index: Index) -> Blob | None:
        """Locate a chunk of plain values; None if it is missing."""
        return cache.get((self.name, "place", index), functools.partial(self._place, index), _blob_size)

    def _place(self, index: Index) -> Blob | None:
        location = self.locate(index)
        blob = None if location is None else self.store.place(*location)
        if location is None or blob is None:
            return None
        data, before = blob.data, 0
        try:
            if self.header is not None:
                before = self.header(data)
                data = data[before:]
            self._check_size(len(data), index)
        except DamagedError as error:
            offset = location.start + before or None
            raise error.at(path=self.store.full(location.name), offset=offset) from None
        return Blob(data, blob.source, blob.start + before)

    def _check_size(self, size: int, index: Index) -> None:
        """DamagedError where a chunk of plain values has fewer or more bytes than it may."""
        min_bytes = self.chunk_bytes
        if self.cropped:
            min_bytes = min(min_bytes, (self.shape[0] - index[0] * self.chunks[0]) * self.width)
        if not min_bytes <= size <= self.chunk_bytes or size * self.chunks[0] % self.chunk_bytes:
            raise DamagedError(f"the chunk has {size} bytes, and {min_bytes} are needed")

    def _source_range(self, number: int, sample: int) -> SourceRange | None:
        """The file that a chunk of whole rows lies in, and where; None where it is missing."""
        index = (number, *(0,) * len(self.row))
        location = self.locate(index)
        part = None if location is None else self.store.source_range(location.name)
        if location is None or part is None:
            return None
        try:
            size = part.size - location.start if location.size is None else location.size
            part.source.check_bounds(part.start + location.start, size)
            self._check_size(size, index)
        except BatchplantError as error:
            raise error.at(path=self.store.full(location.name), sample=int(sample)) from None
        return SourceRange(part.source, part.start + location.start, size)

    # -- rows ------------------------------------------------------------------------------------------

    def rows(self, cache: ChunkCache, indices: I64, field: Field | None = None) -> Column:
        """These rows; text and bytes ragged, where ``field`` says that they are."""
        if self.dtype.hasobject:
            return self._ragged_rows(cache, indices)
        numbers = self._number_rows(cache, indices)
        if isinstance(field, Text | Bytes):
            return npy.rows(numbers, np.arange(len(numbers)), field)
        return numbers

    def _number_rows(self, cache: ChunkCache, indices: I64) -> AnyArray:
        if not len(indices) or not self.width:
            return np.empty((len(indices), *self.row), dtype=self.dtype)
        numbers = indices // self.chunks[0]
        inside = indices - numbers * self.chunks[0]
        if self._files is not None and self._know(cache, numbers, indices):
            values = self._files.rows(self.width, numbers, inside)
            return values.view(self.dtype).reshape(len(indices), *self.row)
        out: AnyArray = np.empty((len(indices), *self.row), dtype=self.dtype)
        # Rows that follow each other are one run.
        places = np.flatnonzero(np.diff(indices, prepend=-2) != 1)
        counts = np.diff(places, append=len(indices))
        self._copy(cache, indices[places], counts, out, places, lambda row: int(indices[row]))
        return out

    @functools.cached_property
    def _files(self) -> _native.Pieces | None:
        """The files of an array whose chunks are plain rows, as they become known; else None."""
        count = -(-self.shape[0] // self.chunks[0])
        good = self.plain and self.whole_rows and count <= MAX_MAPPED_FILES and not self.store.slow
        return _native.Pieces(count) if good else None

    def forget(self) -> None:
        """Let go of the files."""
        self.__dict__.pop("_files", None)

    def _know(self, cache: ChunkCache, numbers: I64, samples: I64) -> bool:
        """True if the chunks of these numbers all lie in mapped files; those are known from now on."""
        assert self._files is not None
        for number in self._files.missing(numbers):
            try:
                blob = self.blob(cache, (number, *(0,) * len(self.row)))
            except BatchplantError as error:
                sample = samples[int(np.argmax(numbers == number))]
                raise error.at(sample=int(sample)) from None
            if blob is None or blob.source is None:
                return False
            # Another thread may have been quicker.
            with contextlib.suppress(ValueError):
                self._files.put(number, np.ascontiguousarray(blob.data))
        return True

    def _copy(
        self, cache: ChunkCache, starts: I64, counts: I64, out: AnyArray, places: I64,
        sample_of: Callable[[int], int],
    ) -> None:  # fmt: skip
        """Copy runs of rows to their places in the output; ``sample_of`` a row of it, for errors."""
        if self.by_range:
            self._copy_ranges(starts, counts, as_bytes(out), places, sample_of)
            return
        boxes = self._boxes(starts, counts, places)
        load = functools.partial(self.read_chunks, cache)
        read_chunks(boxes, load, out, self.chunk_bytes, lambda chunk: sample_of(boxes.place(chunk)))

    def _boxes(self, starts: I64, counts: I64, places: I64) -> _native.ChunkBoxes:
        """Runs of rows as boxes."""
        boxes = np.zeros((len(starts), 3, len(self.shape)), dtype=np.int64)
        boxes[:, :, 0] = np.stack([starts, counts, places], axis=1)
        boxes[:, 1, 1:] = self.row
        return _native.ChunkBoxes(boxes, [1] * len(self.shape), self.chunks)

    def _by_chunk(self, starts: I64, counts: I64) -> tuple[I64, I64, I64, I64]:
        """Runs of rows cut where chunks end: run, chunk, first row and number of rows of each piece."""
        size = self.chunks[0]
        first = starts // size
        pieces = np.where(counts > 0, (starts + counts - 1) // size - first + 1, 0)
        run = np.repeat(np.arange(len(starts)), pieces)
        numbers = first[run] + np.arange(len(run)) - np.repeat(starts_of(pieces)[:-1], pieces)
        begins = np.maximum(starts[run], numbers * size)
        return run, numbers, begins, np.minimum((starts + counts)[run], (numbers + 1) * size) - begins

    def _copy_ranges(
        self, starts: I64, counts: I64, out: U8, places: I64, sample_of: Callable[[int], int]
    ) -> None:
        """The same without reading whole chunks."""
        width, size = self.width, self.chunks[0]
        run, numbers, begins, counts = self._by_chunk(starts, counts)
        places = places[run] + begins - starts[run]
        ranges = []
        for number, members in _groups(numbers):
            part = self._source_range(number, sample_of(int(places[members[0]])))
            begin, sizes = (begins[members] - number * size) * width, counts[members] * width
            if part is not None:
                ranges.append((part.source, part.start + begin, sizes, places[members] * width))
                continue
            rows = self._filled((number, *(0,) * len(self.row)))[: int(counts[members].max())]
            filled, zeros = as_bytes(np.ascontiguousarray(rows)), np.zeros_like(begin)
            _native.copy_runs(filled, zeros, sizes, out, places[members] * width)
        if len(ranges) > 1:
            for source, begin, sizes, _ in ranges:
                source.request(begin, sizes)
        for source, begin, sizes, where in ranges:
            source.gather_into(begin, sizes, out, where)

    def ahead(self, cache: ChunkCache, chunks: Sequence[Index]) -> None:
        """These chunks will be read now: begin to fetch those that are not in the cache, side by side."""
        if self.store.slow:
            self.store.ahead(self.located(chunk for chunk in chunks if not self._is_held(cache, chunk)))

    def _is_held(self, cache: ChunkCache, index: Index) -> bool:
        key = (self.name, "place", index) if self.plain else (self.name, index)
        return cache.all_of([key]) is not None

    @property
    def unpacked_bytes(self) -> int:
        """The bytes of all chunks in memory."""
        counts = (-(-size // chunk) for size, chunk in zip(self.shape, self.chunks, strict=True))
        return self.chunk_bytes * math.prod(counts)

    def runs_of(self, starts: I64, counts: I64, cache: ChunkCache | None = None) -> list[ChunkLocation]:
        """Byte ranges that reading runs of rows takes: the rows, or their chunks that no cache has."""
        if not self.by_range:
            chunks = self._boxes(starts, counts, np.zeros_like(starts)).indices
            return self.located(chunk for chunk in chunks if cache is None or not self._is_held(cache, chunk))
        _, numbers, begins, counts = self._by_chunk(starts, counts)
        locate = functools.cache(self.locate)
        runs = []
        for number, begin, count in zip(numbers.tolist(), begins.tolist(), counts.tolist(), strict=True):
            location = locate((number, *(0,) * len(self.row)))
            if location is not None:
                first = location.start + (begin - number * self.chunks[0]) * self.width
                runs.append(ChunkLocation(location.name, first, count * self.width))
        return runs

    def located(self, chunks: Iterable[Index]) -> list[ChunkLocation]:
        """Locate these chunks; missing ones are left out."""
        return [location for location in map(self.locate, chunks) if location is not None]

    def _ragged_rows(self, cache: ChunkCache, indices: I64) -> Ragged:
        groups, parts = list(_groups(indices // self.chunks[0])), list[Ragged]()
        step = max(1, READ_BYTES // self.chunk_bytes)
        for start in range(0, len(groups), step):
            some = groups[start : start + step]
            chunks = self.read_chunks(cache, [(number,) for number, _ in some])
            for (number, members), chunk in zip(some, chunks, strict=True):
                if isinstance(chunk, DataError):
                    raise copy.copy(chunk).at(sample=int(indices[members[0]]))
                parts.append(chunk.take(indices[members] - number * self.chunks[0]))
        if not parts:
            return Ragged.from_cells([])
        return Ragged.concat(parts).take(np.argsort(np.concatenate([members for _, members in groups])))

    def runs(self, cache: ChunkCache, starts: I64, counts: I64, samples: I64) -> U8:
        """Runs of rows, one after another; a run may go over the border of chunks. Bounds are checked."""
        if not self.whole_rows:
            raise DamagedError(
                f"chunks of {self.chunks} do not hold whole rows of {self.row}", path=self._path
            )
        self.check("a cell", int(counts.max(initial=0)) * self.width)
        offsets = starts_of(counts)
        out = np.empty((int(offsets[-1]), *self.row), dtype=self.dtype)
        if out.size:
            sample_of = lambda row: int(samples[np.searchsorted(offsets, row, side="right") - 1])  # noqa: E731
            self._copy(cache, starts, counts, out, offsets[:-1], sample_of)
        return as_bytes(out)

    def places(
        self, cache: ChunkCache, starts: I64, counts: I64
    ) -> tuple[list[Source], I32, I64, I64] | None:
        """Sources, and source, start and size of each run; None where some run is no plain run of bytes."""
        if not self.plain or not self.whole_rows or not self.width or self.store.slow:
            return None
        size = self.chunks[0]
        number = starts // size
        if ((starts + counts - 1) // size > number)[counts > 0].any():
            return None
        sources: dict[Source, int] = {}
        file, begin = np.zeros(len(starts), dtype=np.int32), (starts - number * size) * self.width
        for number_of_group, members in _groups(np.where(counts > 0, number, -1)):
            blob = (
                self.blob(cache, (number_of_group, *(0,) * len(self.row))) if number_of_group >= 0 else None
            )
            if number_of_group >= 0 and (blob is None or blob.source is None):
                return None
            if blob is not None and blob.source is not None:
                file[members] = sources.setdefault(blob.source, len(sources))
                begin[members] += blob.start
        begin[counts <= 0] = 0
        return list(sources), file, begin, counts * self.width

    def own_checks(self) -> list[str]:
        """The checksums that its chunks have, as `verify` names them."""
        checks = sums_of(self.packing)
        return [*checks, "CRC of every shard's table"] if self.summed else checks

    def summary(self) -> str:
        """For `info`."""
        shape = "×".join(map(str, self.chunks))
        return f"{shape} {self.dtype} ({human(self.chunk_bytes)}), {self.packing}"


def _groups(numbers: I64) -> Iterator[tuple[int, I64]]:
    """(number, where it occurs) of each number, in order."""
    if not len(numbers):
        return
    if (numbers == numbers[0]).all():
        yield int(numbers[0]), np.arange(len(numbers))
        return
    # A scan asks for one chunk after another.
    order = np.argsort(numbers, kind="stable") if (np.diff(numbers) < 0).any() else np.arange(len(numbers))
    ordered = numbers[order]
    borders = np.flatnonzero(np.diff(ordered)) + 1
    for part in np.split(order, borders):
        yield int(numbers[part[0]]), part


def _blob_size(blob: Blob | None) -> int:
    return 0 if blob is None else MAPPING_CHARGE_BYTES if blob.source is not None else blob.data.nbytes


class GridArray(ChunkedArray):
    """Chunks come out of the cache that the rows of the same array have."""

    def __init__(self, path: str, field: str, grid: Grid, cache: ChunkCache) -> None:
        if grid.dtype.hasobject:
            raise SchemaError("text and bytes of differing length are no array", path=path, field=field)
        super().__init__(path, field, grid.shape, grid.dtype, grid.chunks)
        self._grid, self._cache = grid, cache

    def _load_chunks(self, indices: Sequence[Index]) -> Sequence[AnyArray | DataError]:
        return self._grid.read_chunks(self._cache, indices)

    def chunk_keys(self, starts: I64, size: Sequence[int]) -> ChunkKeys | None:
        if self._grid.plain:
            return None
        return self._cache, [(self._grid.name, index) for index in self._touched(starts, size)[0].indices]

    def _places(self, chunks: Sequence[Index]) -> list[SourceRun] | None:
        store = self._grid.store
        return store.runs(self._grid.located(chunks)) if store.slow else None

    def _stored(self) -> int | None:
        return self._grid.store.size(self._grid.name)
