"""A dataset as an N-d array: its chunks, or one run of values, without the library."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...data.arrays import Array, ChunkedArray, Index, RunArray
from ...errors import BatchplantError
from ...schema import Field
from ...schema.columns import I64, U8, dense_of
from ...storage import MappedSource
from .stored import Chunks, Run, Stored
from .types import Part


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


def _values(dtype: np.dtype[Any], part: Part, item: int, data: U8) -> npt.NDArray[Any]:
    """The values of one part among those of all elements; truth values and times are stored as numbers."""
    layout: Any = {"names": ["x"], "formats": [part.dtype], "offsets": [part.offset], "itemsize": item}
    values: npt.NDArray[Any] = data.view(np.dtype(layout))["x"]
    if dtype.kind == "b":
        return np.asarray(values != 0)
    return values.astype(values.dtype.newbyteorder("="), copy=False).view(dtype)


class Hdf5Chunks(ChunkedArray):
    """Chunks of a dataset, unpacked and kept in the cache that its rows have."""

    def __init__(self, path: str, name: str, stored: Chunks, dtype: np.dtype[Any], decode: Any) -> None:
        super().__init__(path, name, stored.dims, dtype, stored.shape)
        self._chunks, self._decode = stored, decode
        self._in_place = not stored.filters and isinstance(stored.source, MappedSource)

    def _chunk(self, index: Index) -> npt.NDArray[Any]:
        at = self._chunks.find(index)
        if at is None:
            one = self._decode(np.frombuffer(self._chunks.fill, dtype=np.uint8))
            return np.broadcast_to(one.reshape((1,) * self.ndim), self.chunks)
        if self._in_place:
            return self._load(at, index)
        return self._chunks.cache.get(
            (self._chunks.key, self.field, index), lambda: self._load(at, index), _size
        )

    def _load(self, at: int, index: Index) -> npt.NDArray[Any]:
        result: npt.NDArray[Any]
        try:
            result = self._decode(self._chunks.unpack(at)).reshape(self.chunks)
        except BatchplantError as error:
            error.message = f"chunk {'.'.join(map(str, index))}: {error.message}"
            raise
        return result

    def _known(self, chunks: Sequence[Index]) -> list[int]:
        return [at for at in map(self._chunks.find, chunks) if at is not None]

    def _ahead(self, chunks: Sequence[Index]) -> None:
        known = self._known(chunks)
        if not isinstance(self._chunks.source, MappedSource):
            self._chunks.source.will_need(self._chunks.places[known], self._chunks.sizes[known])

    def _places(self, chunks: Sequence[Index]) -> list[tuple[str, int, int]] | None:
        known = self._known(chunks)
        places: I64 = self._chunks.places[known]
        sizes: I64 = self._chunks.sizes[known]
        runs = zip(places.tolist(), sizes.tolist(), strict=True)
        return [(self._chunks.source.path, start, size) for start, size in runs]

    def _stored(self) -> int | None:
        return int(self._chunks.sizes.sum())


def _size(found: npt.NDArray[Any]) -> int:
    return math.prod(found.shape) * found.itemsize
