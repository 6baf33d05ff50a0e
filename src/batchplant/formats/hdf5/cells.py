"""From stored bytes to the cells of a field, and where those lie."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ... import _native
from ...data.arrays import Array, ChunkedArray, Index, RunArray
from ...errors import DamagedError, DataError
from ...schema import Field
from ...schema.columns import I64, U8, AnyArray, AnyDType, Column, Flags, Ragged, dense_of, starts_of
from ...storage import MappedSource, Source
from ...storage.cache import ChunkCache, ChunkKeys
from ...storage.spans import SourceRun, Spans
from . import stored
from .stored import Chunks, Run, Stored, cached

if TYPE_CHECKING:
    from .layout import Part

NULL_TERMINATED, NULL_PADDED, SPACE_PADDED = 0, 1, 2


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
        return self._rows.rows(indices, self.part.offset, self.part.width).reshape(-1).view(stored.DESCRIPTOR)

    def needs(self, indices: I64) -> tuple[I64, I64]:
        """About: heaps are not looked into for it."""
        return stored.heap_ranges(
            self.source, self.base, self._descriptors(indices), self.part.dtype.itemsize
        )

    def runs(self, indices: I64) -> tuple[I64, I64]:
        descriptors = self._descriptors(indices)
        try:
            return stored.locate_cells(
                self.source, self.cache, self.base, descriptors, self.part.dtype.itemsize
            )
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
