"""Images that Parquet files store plainly: uncompressed, without a dictionary, each after its size.

The sizes of a row group are walked once. From then on an image costs its own bytes, not those of its row
group, and needs no library. Cells that do not fill their pages exactly are read as usual. The locations of
a whole file are remembered in the user's cache.
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
# Kind of the entry in the user's cache.
KIND = "parquet-cells"
# Bytes of a page that hold its header, which may contain two bounds of 4 KiB each.
PAGE_HEAD_BYTES = 12 << 10

# Starts and sizes; both are -1 of a cell that does not lie in the file as it is.
Cells = tuple[I64, I64]


def recalled(source: MappedSource, rows: int, leaf: int) -> Cells | None:
    """Return the remembered locations of all cells of a column, or None."""

    def fits(cached: index.Index) -> bool:
        start, size = cached.arrays["starts"], cached.arrays["sizes"]
        if not start.dtype == size.dtype == np.int64 or not start.shape == size.shape == (rows,):
            return False
        apart = (start == -1) & (size == -1)
        # Compare without adding start and size: the sum may overflow.
        return bool((apart | ((start > 0) & (size >= 0) & (start <= source.size - size))).all())

    remembered = index.recall(source, KIND, str(leaf), check=fits)
    return None if remembered is None else (remembered.arrays["starts"], remembered.arrays["sizes"])


def remember(source: MappedSource, leaf: int, cells: Cells) -> None:
    """Save the locations of a column's cells in the user's cache."""

    def build(_: object, report: index.Report) -> tuple[index.Arrays, index.Facts]:
        return {"starts": cells[0], "sizes": cells[1]}, {}

    index.remember(source, KIND, str(leaf), build)


def cells_of(
    source: MappedSource, footer: Footer, groups: Sequence[int], leaf: int, sequential: bool
) -> list[Cells | None]:
    """Return starts and sizes of the cells of a column in row groups; None if they are not stored plainly.

    ``sequential``: most of the cells are read next, so the kernel may read the column ahead.
    """
    about = footer.leaves[leaf]
    results: list[Cells | None] = [None] * len(groups)
    chunks = [(number, footer.groups[group].chunks[leaf]) for number, group in enumerate(groups)]
    plain = [(number, chunk) for number, chunk in chunks if chunk is not None and not chunk.codec]
    if not plain or about.kind != BYTE_ARRAY or about.lists:
        return results
    if sequential:
        source.request(*np.array([(chunk.start, chunk.size) for _, chunk in plain], np.int64).T)
    pages = []
    for number, chunk in plain:
        group = groups[number]
        page_index = page_map(source, footer.groups[group], chunk, about, mapped=True)
        if page_index is not None:
            page_columns = [
                np.full(len(page_index.starts), number),
                page_index.starts,
                page_index.sizes,
                np.diff(page_index.rows),
            ]
            pages.append(np.stack(page_columns, axis=1))
    if not pages:
        return results
    numbers, start, size, rows = (np.ascontiguousarray(column) for column in np.concatenate(pages).T)
    heads = source.gather(start, np.minimum(size, PAGE_HEAD_BYTES))
    before = np.array(
        [_before_cells(heads[row], int(size[row]), about.levels) for row in range(len(start))], np.int64
    )
    good = (before >= 0) & (rows <= (size - before) // PREFIX)
    start, size, rows = start + before, np.where(good, size - before, 0), np.where(good, rows, 0)
    # As many cells as rows: none is missing.
    sizes, filled = source.prefixed_sizes(start, size, rows, past=not sequential)
    good &= filled != 0
    ends = np.cumsum(sizes + PREFIX)
    first = np.cumsum(rows) - rows
    starts = ends - sizes + np.repeat(start - np.append(0, ends)[first], rows)
    for number in np.unique(numbers).tolist():
        matches = np.flatnonzero(numbers == number)
        if good[matches].all():
            cells = slice(int(first[matches[0]]), int(first[matches[-1]] + rows[matches[-1]]))
            results[number] = starts[cells], sizes[cells]
    return results


def _before_cells(head: U8 | None, size: int, levels: int) -> int:
    """Return the bytes before the first cell of a page; -1 if its cells are not stored plainly."""
    try:
        assert head is not None
        header, offset = page_header(head, 0)
        kind = header[1][1]
        about: Struct = header[{DATA: 5, DATA_2: 8}[kind]][1]
        # A checksum is checked by the library.
        if about[2 if kind == DATA else 4][1] != PLAIN or offset + header[3][1] != size or CRC in header:
            return -1
        # Definition levels mark missing cells.
        if kind == DATA_2:
            offset += about[5][1] + about[6][1]
        elif levels:
            offset += PREFIX + int.from_bytes(head[offset : offset + PREFIX].tobytes(), "little")
        return offset if 0 <= offset <= size else -1
    except (ValueError, KeyError, TypeError):
        return -1
