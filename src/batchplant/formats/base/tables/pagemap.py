"""Positions, rows and value bounds of the pages of a column chunk.

They come from Parquet's page index, or else, in mapped files only, from the headers of the pages. An index
that does not add up is ignored.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ....schema.columns import I64, Flags
from ....storage import Source
from .footer import MAX_BOUND_BYTES, Chunk, Group, Leaf
from .pages import BY_DICTIONARY, DATA, DATA_2, DICTIONARY, page_header
from .thrift import LISTS, Struct, read_struct

# An index is at most this large, or as large as its column chunk.
MAX_INDEX_BYTES = 64 << 20
# Bytes that are read to see the header of a page.
HEADER_BYTES = 64 << 10
# A smaller dictionary is always read: to see which pages need it takes a look at every page.
SMALL_DICTIONARY_BYTES = 16 << 10
Bound = tuple[bytes | None, bytes | None, int | None]


@dataclasses.dataclass
class PageMap:
    """The data pages of a column chunk.

    ``rows``: the first row of each, then the number of rows. ``bounds``: least, greatest and missing values
    of each; None if unknown. ``coded``: pages that need the dictionary, if known. ``head``: start and size of
    the dictionary, if there is one.
    """

    rows: I64
    starts: I64
    sizes: I64
    head: tuple[int, int] | None
    bounds: list[Bound] | None = None
    coded: Flags | None = None

    def holding(self, rows: I64) -> I64:
        """Return the pages that hold these ascending rows."""
        return np.flatnonzero(np.diff(np.searchsorted(rows, self.rows)))


def page_map(source: Source, group: Group, chunk: Chunk, leaf: Leaf, mapped: bool) -> PageMap | None:
    """Return the pages by their index, else by their headers; None if neither works."""
    try:
        if chunk.pages is not None:
            return _by_index(source, group, chunk, mapped)
        # The header of a page of lists counts values, not rows.
        return _by_headers(source, group, chunk) if mapped and not leaf.lists else None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


def _by_index(source: Source, group: Group, chunk: Chunk, mapped: bool) -> PageMap | None:
    index = _indexed(source, chunk.pages, chunk)
    if index is None:
        return None
    locations = _items(index[1])
    starts, sizes, firsts = (
        np.array([location[number][1] for location in locations], dtype=np.int64) for number in (1, 2, 3)
    )
    pages = PageMap(np.append(firsts, group.rows), starts, sizes, _dictionary(chunk, starts))
    if not _fits(pages, chunk):
        return None
    if mapped and pages.head is not None and pages.head[1] > SMALL_DICTIONARY_BYTES:
        pages.coded = _coded(source, pages)
    return pages


def _coded(source: Source, pages: PageMap) -> Flags:
    """Return a flag for each page: it needs the dictionary."""
    flags = []
    for start, size in zip(pages.starts.tolist(), pages.sizes.tolist(), strict=True):
        header, _ = page_header(source.view(start, size), 0)
        kind = header[1][1]
        about: Struct = header[{DATA: 5, DATA_2: 8}[kind]][1]
        flags.append(about[2 if kind == DATA else 4][1] in BY_DICTIONARY)
    return np.array(flags, dtype=np.bool_)


def page_bounds(source: Source, chunk: Chunk, pages: PageMap, leaf: Leaf) -> list[Bound] | None:
    """Return least, greatest and missing values of each page; None if unknown."""
    if pages.bounds is not None or chunk.page_bounds is None or leaf.lists:
        return pages.bounds
    try:
        index = _indexed(source, chunk.page_bounds, chunk)
        if index is None:
            return None
        count = len(pages.starts)
        empty, low, high = (_items(index[number]) for number in (1, 2, 3))
        nulls = _items(index[5]) if 5 in index else [None] * count
        if not len(empty) == len(low) == len(high) == len(nulls) == count:
            return None
        columns = zip(empty, low, high, nulls, np.diff(pages.rows).tolist(), strict=True)
        # In a Thrift list, true is the byte 1.
        pages.bounds = [
            (None, None, rows)
            if none in (b"\1", True)
            else (_bytes(lowest), _bytes(highest), _count(missing))
            for none, lowest, highest, missing, rows in columns
        ]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    return pages.bounds


def _by_headers(source: Source, group: Group, chunk: Chunk) -> PageMap | None:
    data = source.view(chunk.start, chunk.size)
    offset = rows = 0
    firsts, starts, sizes, bounds, coded = [], [], [], [], []
    head = None
    while offset < len(data) and rows < group.rows:
        header, body = page_header(data, offset)
        kind, packed = header[1][1], header[3][1]
        if not 0 <= packed <= len(data) - body:
            return None
        if kind == DICTIONARY:
            head = (chunk.start + offset, body + packed - offset)
        if kind in (DATA, DATA_2):
            about: Struct = header[5 if kind == DATA else 8][1]
            count, encoding = about[1][1], about[2 if kind == DATA else 4][1]
            if count <= 0:
                return None
            firsts.append(rows)
            starts.append(chunk.start + offset)
            sizes.append(body + packed - offset)
            bounds.append(_header_bounds(about.get(5 if kind == DATA else 8, (0, {}))[1]))
            coded.append(encoding in BY_DICTIONARY)
            rows += count
        offset = body + packed
    firsts.append(group.rows)
    numbers, offsets, lengths = (np.array(values, dtype=np.int64) for values in (firsts, starts, sizes))
    pages = PageMap(numbers, offsets, lengths, head, bounds, np.array(coded, dtype=np.bool_))
    return pages if rows == group.rows and _fits(pages, chunk) else None


def _header_bounds(statistics: Struct) -> Bound:
    """Return the bounds in a page's header; the deprecated fields are ignored, their order is undefined."""
    low, high = statistics.get(6, (0, None))[1], statistics.get(5, (0, None))[1]
    return _bytes(low), _bytes(high), _count(statistics.get(3, (0, None))[1])


def _dictionary(chunk: Chunk, starts: I64) -> tuple[int, int] | None:
    """Return start and size of the bytes before the first data page: the dictionary."""
    first = int(starts[0]) if len(starts) else chunk.start
    return (chunk.start, first - chunk.start) if first > chunk.start else None


def _fits(pages: PageMap, chunk: Chunk) -> bool:
    """True if the pages lie in their column chunk, in order, and have all rows."""
    ends = pages.starts + pages.sizes
    return bool(
        len(pages.starts)
        and pages.rows[0] == 0
        and (np.diff(pages.rows) > 0).all()
        and (pages.sizes > 0).all()
        and pages.starts[0] >= chunk.start
        and ends[-1] <= chunk.start + chunk.size
        and (ends[:-1] <= pages.starts[1:]).all()
    )


def _indexed(source: Source, run: tuple[int, int] | None, chunk: Chunk) -> Struct | None:
    if run is None or not 0 < run[1] <= max(MAX_INDEX_BYTES, chunk.size):
        return None
    return read_struct(source.only(*run).tobytes())[0]


def _items(value: tuple[int, Any]) -> list[Any]:
    if value[0] not in LISTS:
        raise ValueError("no list")
    items: list[Any] = value[1][1]
    return items


def _bytes(value: Any) -> bytes | None:
    return value if isinstance(value, bytes) and len(value) <= MAX_BOUND_BYTES else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
