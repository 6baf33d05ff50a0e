"""The files of chunks: which one to read, and whether it is what the index says."""

from __future__ import annotations

import numpy as np

from ...errors import BatchplantError, DamagedError, NotFoundError
from ...storage import Source, is_remote, join, limits, open_source, tree
from ..base.shards import Opened, table_of
from . import tables
from .index import Chunk, Index
from .packing import unpack


def open_file(folder: str, index: Index, chunk: Chunk) -> Source:
    """The file of a chunk."""
    path, _ = file_of(folder, index, chunk)
    try:
        return open_source(path)
    except NotFoundError:
        raise DamagedError("the index lists it, but it is not there", path=path) from None


def load(
    folder: str, index: Index, chunk: Chunk, source: Source, *, by_table: bool, block: int | None
) -> Opened:
    """A chunk as the usual samples, whatever it is; ``block``: tokens of a sample, where they are cut so."""
    path, packed = file_of(folder, index, chunk)
    # Old versions of LitData (0.2.30) did not count the table.
    sizes = chunk.size, chunk.size + 4 * (chunk.samples + 2)
    try:
        if not (packed and index.level == "chunk"):
            _check_size(source, sizes)
        if by_table and index.tables is not None:
            if tables.has_table(source):
                return tables.opened(source, chunk.samples, index.tables)
            if [(name, table) for name, (table, _) in index.tables.items()] != index.columns:
                raise DamagedError("it holds no Arrow table, as the first chunk does")
        if packed:
            source = unpack(source, index.level, chunk.samples, sizes[1])
            if index.level == "chunk":
                _check_size(source, sizes)
        opened = Opened(source, table_of(source, chunk.samples, path))
        return opened if block is None else _in_blocks(index, chunk, opened, block)
    except BatchplantError as error:
        raise error.at(path=path) from None


def _check_size(source: Source, sizes: tuple[int, int]) -> None:
    if source.size not in sizes:
        raise DamagedError(f"it has {source.size} bytes, and the index says {sizes[0]}")


def _in_blocks(index: Index, chunk: Chunk, opened: Opened, block: int) -> Opened:
    start, width = 4 * len(opened.table) + 4, np.dtype(str(index.columns[0][1].dtype)).itemsize
    dim = chunk.dim or 0
    if start + dim * width > opened.source.size:
        raise DamagedError(f"the index says {dim} tokens, more than it has")
    ends = start + np.arange(dim // block + 1, dtype=np.int64) * (block * width)
    return Opened(opened.source, ends.astype(np.uint32), head=start)


def check_counts(folder: str, index: Index) -> None:
    """DamagedError where a file is too small for the samples that the index says."""
    for chunk in index.chunks:
        path, packed = file_of(folder, index, chunk)
        size = tree.size_below(path)
        if 4 * (chunk.samples + 2) > (limits.allowed(size) if packed else size):
            raise DamagedError(f"{chunk.samples} samples do not fit into its {size} bytes", path=path)


def file_of(folder: str, index: Index, chunk: Chunk) -> tuple[str, bool]:
    """The file to read, and whether it is packed; LitData may have unpacked it already."""
    path = join(folder, chunk.name)
    if index.unpacked_whole:
        raw = join(folder, chunk.name.replace(f".{index.compression}", ""))
        if raw != path and not is_remote(raw) and tree.is_file(raw):
            return raw, False
    return path, index.compression is not None
