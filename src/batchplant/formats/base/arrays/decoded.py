"""DecodedChunks: decodes chunks in native threads and keeps them in a cache. Zarr, N5 and HDF5 share it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from .... import _native
from ....data.arrays import Index
from ....data.arrays.parallel import chunk_threads, each_or_error
from ....errors import BatchplantError
from ....schema.columns import U8, AnyArray, Ragged
from ....storage import limits
from ....storage.cache import ChunkCache


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
