"""Images that lie in Parquet files as they are: neither packed nor by a dictionary, each behind its size.

Those of a row group are found together, by their sizes, and need no library then: an image costs its own
bytes, not those of its row group. Nothing is believed: cells that do not fill their pages are read as usual.
Where those of a whole file were found, the user's cache remembers it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....schema.columns import I64, U8
from ....storage import MappedSource, index
from .footer import BYTE_ARRAY, Footer
from .pagemap import page_map
from .pages import CRC, DATA, DATA_2, PLAIN, page_header
from .thrift import Struct

PREFIX = 4
# What the cache has of it.
KIND = "parquet-cells"
# What is read of a page to see what is in it: its header may hold two values, of 4 KiB at most.
HEAD = 12 << 10

# Starts and sizes; both are -1 of a cell that does not lie in the file as it is.
Cells = tuple[I64, I64]


def recalled(source: MappedSource, rows: int, leaf: int) -> Cells | None:
    """Where all cells of a column lie, as was found out before; None where nobody remembers."""

    def fits(found: index.Index) -> bool:
        start, size = found.arrays["starts"], found.arrays["sizes"]
        if not start.dtype == size.dtype == np.int64 or not start.shape == size.shape == (rows,):
            return False
        apart = (start == -1) & (size == -1)
        # Not where a cell ends: that may be more than a number holds.
        return bool((apart | ((start > 0) & (size >= 0) & (start <= source.size - size))).all())

    found = index.recall(source, KIND, str(leaf), check=fits)
    return None if found is None else (found.arrays["starts"], found.arrays["sizes"])


def remember(source: MappedSource, leaf: int, cells: Cells) -> None:
    """Have it known to whoever opens the file next."""

    def known(_: object, report: index.Report) -> tuple[index.Arrays, index.Facts]:
        return {"starts": cells[0], "sizes": cells[1]}, {}

    index.remember(source, KIND, str(leaf), known)


def cells_of(
    source: MappedSource, footer: Footer, groups: Sequence[int], leaf: int, whole: bool
) -> list[Cells | None]:
    """Starts and sizes of the cells of a column in row groups; None where they are something else.

    ``whole``: most of the cells are read next, so the kernel reads all of the column, in order.
    """
    about = footer.leaves[leaf]
    found: list[Cells | None] = [None] * len(groups)
    chunks = [(number, footer.groups[group].chunks[leaf]) for number, group in enumerate(groups)]
    plain = [(number, one) for number, one in chunks if one is not None and not one.codec]
    if not plain or about.kind != BYTE_ARRAY or about.lists:
        return found
    if whole:
        source.will_need(*np.array([(one.start, one.size) for _, one in plain], np.int64).T)
    pages = []
    for number, chunk in plain:
        group = groups[number]
        told = page_map(source, footer.groups[group], chunk, about, mapped=True)
        if told is not None:
            each = [np.full(len(told.starts), number), told.starts, told.sizes, np.diff(told.rows)]
            pages.append(np.stack(each, axis=1))
    if not pages:
        return found
    which, start, size, rows = (np.ascontiguousarray(one) for one in np.concatenate(pages).T)
    heads = source.gather(start, np.minimum(size, HEAD))
    before = np.array(
        [_before_cells(heads[row], int(size[row]), about.levels) for row in range(len(start))], np.int64
    )
    good = (before >= 0) & (rows <= (size - before) // PREFIX)
    start, size, rows = start + before, np.where(good, size - before, 0), np.where(good, rows, 0)
    # As many as there are rows: none is missing.
    sizes, filled = source.prefixed_sizes(start, size, rows, past=not whole)
    good &= filled != 0
    ends = np.cumsum(sizes + PREFIX)
    first = np.cumsum(rows) - rows
    starts = ends - sizes + np.repeat(start - np.append(0, ends)[first], rows)
    for one in np.unique(which).tolist():
        here = np.flatnonzero(which == one)
        if good[here].all():
            cells = slice(int(first[here[0]]), int(first[here[-1]] + rows[here[-1]]))
            found[one] = starts[cells], sizes[cells]
    return found


def _before_cells(head: U8 | None, size: int, levels: int) -> int:
    """The bytes of a page that stand before its cells; -1 where cells are written otherwise."""
    try:
        assert head is not None
        header, at = page_header(head, 0)
        kind = header[1][1]
        about: Struct = header[{DATA: 5, DATA_2: 8}[kind]][1]
        # A checksum is checked by the library.
        if about[2 if kind == DATA else 4][1] != PLAIN or at + header[3][1] != size or CRC in header:
            return -1
        # What is missing is told by levels.
        if kind == DATA_2:
            at += about[5][1] + about[6][1]
        elif levels:
            at += PREFIX + int.from_bytes(head[at : at + PREFIX].tobytes(), "little")
        return at if 0 <= at <= size else -1
    except (ValueError, KeyError, TypeError):
        return -1
