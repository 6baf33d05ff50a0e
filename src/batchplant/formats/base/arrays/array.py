"""GridArray: a grid as an N-d array that is read when it is sliced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from ....data.arrays import ChunkedArray
from ....errors import SchemaError
from ....storage.cache import ChunkCache
from ....storage.spans import SourceRun
from .grid import Grid, Index


class GridArray(ChunkedArray):
    """Chunks come out of the cache that the rows of the same array have."""

    def __init__(self, path: str, field: str, grid: Grid, cache: ChunkCache) -> None:
        if grid.dtype.hasobject:
            raise SchemaError("text and bytes of differing length are no array", path=path, field=field)
        super().__init__(path, field, grid.shape, grid.dtype, grid.chunks)
        self._grid, self._cache = grid, cache

    def _chunk(self, index: Index) -> npt.NDArray[Any]:
        chunk: npt.NDArray[Any] = self._grid.chunk(self._cache, index)
        return chunk

    def _ahead(self, chunks: Sequence[Index]) -> None:
        self._grid.ahead(self._cache, chunks)

    def _places(self, chunks: Sequence[Index]) -> list[SourceRun] | None:
        store = self._grid.store
        return store.runs(self._grid.located(chunks)) if store.slow else None

    def _stored(self) -> int | None:
        return self._grid.store.size(self._grid.name)
