"""Pictures that lie in Parquet files as they are: neither packed nor by a dictionary, each behind its size.

Those of a row group are found together, by their sizes, and need no library then: a picture costs its own
bytes, not those of its row group. Nothing is believed: cells that do not fill their pages are read as usual.
"""

from __future__ import annotations

import numpy as np

from ... import _native
from ...columns import I64
from ...storage import Source
from .footer import BYTE_ARRAY, Chunk, Group, Leaf
from .pagemap import page_map
from .pages import DATA, DATA_2, page_header
from .thrift import Struct

PLAIN, PREFIX = 0, 4


def cells_of(source: Source, group: Group, chunk: Chunk, leaf: Leaf) -> tuple[I64, I64] | None:
    """Starts and sizes of the cells of a column of a mapped file; None where they are something else."""
    if leaf.kind != BYTE_ARRAY or leaf.lists or chunk.codec:
        return None
    pages = page_map(source, group, chunk, leaf, mapped=True)
    if pages is None:
        return None
    starts, sizes = [], []
    for page, size, rows in np.stack([pages.starts, pages.sizes, np.diff(pages.rows)], axis=1).tolist():
        before = _before_cells(source, page, size, leaf)
        if before is None:
            return None
        # As many as there are rows: none is missing.
        found = _native.prefixed_sizes(source.view(page + before, size - before), rows)
        if found is None:
            return None
        ends = np.cumsum(found + PREFIX)
        starts.append(page + before + ends - found)
        sizes.append(found)
    return np.concatenate(starts), np.concatenate(sizes)


def _before_cells(source: Source, page: int, size: int, leaf: Leaf) -> int | None:
    """The bytes of a page that stand before its cells; None where cells are written otherwise."""
    data = source.view(page, size)
    try:
        header, at = page_header(data, 0)
        kind = header[1][1]
        about: Struct = header[{DATA: 5, DATA_2: 8}[kind]][1]
        if about[2 if kind == DATA else 4][1] != PLAIN or at + header[3][1] != size:
            return None
        # What is missing is told by levels.
        if kind == DATA_2:
            at += about[5][1] + about[6][1]
        elif leaf.levels:
            at += PREFIX + int.from_bytes(data[at : at + PREFIX].tobytes(), "little")
        return at if 0 <= at <= size else None
    except (ValueError, KeyError, TypeError):
        return None
