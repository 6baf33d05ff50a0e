"""Where the pages of a column of a row group are, which rows each has, and between what its values lie.

Parquet's page index says it; where a file has none, the headers of the pages do, which are read only where
that costs nothing: in a mapped file. Nothing here is believed: what does not add up is as if it were not
there.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ....schema.columns import I64, Flags
from ....storage import Source
from .footer import LONGEST_BOUND, Chunk, Group, Leaf
from .pages import BY_DICTIONARY, DATA, DATA_2, DICTIONARY, page_header
from .thrift import LISTS, Struct, read_struct

# No index of pages is larger than this, or than the column that it is of.
MOST_INDEX = 64 << 20
# What is read at a time to see the header of a page.
HEADER_BYTES = 64 << 10
# Pages that hold the first rows, at most: each has many.
MAX_FIRST_PAGES = 64
# A smaller dictionary is read in any case: to see who needs it takes a look at every page.
SMALL_DICTIONARY = 16 << 10
Bound = tuple[bytes | None, bytes | None, int | None]


@dataclasses.dataclass
class PageMap:
    """The pages of values of one column of a row group.

    ``rows``: the first row of each, and the number of all rows behind them. ``bounds``: least, greatest and
    missing values of each; None where nothing is known of any. ``coded``: which need the dictionary, where
    that is known. ``head``: start and size of the dictionary, where there is one.
    """

    rows: I64
    starts: I64
    sizes: I64
    head: tuple[int, int] | None
    bounds: list[Bound] | None = None
    coded: Flags | None = None

    def holding(self, rows: I64) -> I64:
        """The pages that these rows, in ascending order, are in."""
        return np.flatnonzero(np.diff(np.searchsorted(rows, self.rows)))


def page_map(source: Source, group: Group, chunk: Chunk, leaf: Leaf, mapped: bool) -> PageMap | None:
    """The pages by their index, else by their headers; None where neither tells."""
    try:
        if chunk.pages is not None:
            return _by_index(source, group, chunk, mapped)
        # In lists a page tells how many values it has, not how many rows.
        return _by_headers(source, group, chunk) if mapped and not leaf.lists else None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


def _by_index(source: Source, group: Group, chunk: Chunk, mapped: bool) -> PageMap | None:
    found = _indexed(source, chunk.pages, chunk)
    if found is None:
        return None
    places = _items(found[1])
    starts, sizes, firsts = (
        np.array([place[number][1] for place in places], dtype=np.int64) for number in (1, 2, 3)
    )
    made = PageMap(np.append(firsts, group.rows), starts, sizes, _dictionary(chunk, starts))
    if not _fits(made, chunk):
        return None
    if mapped and made.head is not None and made.head[1] > SMALL_DICTIONARY:
        made.coded = _coded(source, made)
    return made


def _coded(source: Source, pages: PageMap) -> Flags:
    """Which pages say that they need the dictionary; looked at where it costs nothing."""
    found = []
    for start, size in zip(pages.starts.tolist(), pages.sizes.tolist(), strict=True):
        header, _ = page_header(source.view(start, size), 0)
        kind = header[1][1]
        about: Struct = header[{DATA: 5, DATA_2: 8}[kind]][1]
        found.append(about[2 if kind == DATA else 4][1] in BY_DICTIONARY)
    return np.array(found, dtype=np.bool_)


def page_bounds(source: Source, chunk: Chunk, pages: PageMap, leaf: Leaf) -> list[Bound] | None:
    """What is known of each page."""
    if pages.bounds is not None or chunk.page_bounds is None or leaf.lists:
        return pages.bounds
    try:
        found = _indexed(source, chunk.page_bounds, chunk)
        if found is None:
            return None
        count = len(pages.starts)
        empty, low, high = (_items(found[number]) for number in (1, 2, 3))
        nulls = _items(found[5]) if 5 in found else [None] * count
        if not len(empty) == len(low) == len(high) == len(nulls) == count:
            return None
        each = zip(empty, low, high, nulls, np.diff(pages.rows).tolist(), strict=True)
        # In a list, true is the byte 1.
        pages.bounds = [
            (None, None, rows) if none in (b"\1", True) else (_bytes(least), _bytes(most), _count(missing))
            for none, least, most, missing, rows in each
        ]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    return pages.bounds


def _by_headers(source: Source, group: Group, chunk: Chunk) -> PageMap | None:
    data = source.view(chunk.start, chunk.size)
    at = rows = 0
    firsts, starts, sizes, bounds, coded = [], [], [], [], []
    head = None
    while at < len(data) and rows < group.rows:
        header, body = page_header(data, at)
        kind, packed = header[1][1], header[3][1]
        if not 0 <= packed <= len(data) - body:
            return None
        if kind == DICTIONARY:
            head = (chunk.start + at, body + packed - at)
        if kind in (DATA, DATA_2):
            about: Struct = header[5 if kind == DATA else 8][1]
            count, encoding = about[1][1], about[2 if kind == DATA else 4][1]
            if count <= 0:
                return None
            firsts.append(rows)
            starts.append(chunk.start + at)
            sizes.append(body + packed - at)
            bounds.append(_said(about.get(5 if kind == DATA else 8, (0, {}))[1]))
            coded.append(encoding in BY_DICTIONARY)
            rows += count
        at = body + packed
    firsts.append(group.rows)
    numbers, places, lengths = (np.array(one, dtype=np.int64) for one in (firsts, starts, sizes))
    made = PageMap(numbers, places, lengths, head, bounds, np.array(coded, dtype=np.bool_))
    return made if rows == group.rows and _fits(made, chunk) else None


def first_pages(source: Source, group: Group, chunk: Chunk, rows: int) -> PageMap | None:
    """The dictionary and the pages of the first rows of a column that lies in no list, by their headers.

    Nothing behind them is read. None where the headers are damaged.
    """
    at, end, seen = chunk.start, chunk.start + chunk.size, 0
    firsts, starts, sizes = [0], [], []
    head = None
    try:
        for _ in range(MAX_FIRST_PAGES):
            if seen >= min(rows, group.rows):
                break
            header, body = page_header(source.only(at, min(HEADER_BYTES, end - at)), 0)
            kind, size = header[1][1], body + header[3][1]
            if not body <= size <= end - at:
                return None
            if kind == DICTIONARY:
                head = at, size
            if kind in (DATA, DATA_2):
                count = header[5 if kind == DATA else 8][1][1][1]
                if not 0 < count <= group.rows - seen:
                    return None
                seen += count
                firsts.append(seen)
                starts.append(at)
                sizes.append(size)
            at += size
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    numbers, places, lengths = (np.array(one, dtype=np.int64) for one in (firsts, starts, sizes))
    made = PageMap(numbers, places, lengths, head)
    return made if seen >= min(rows, group.rows) and _fits(made, chunk) else None


def _said(statistics: Struct) -> Bound:
    """What a header says of its page; only what newer files say, which is well defined."""
    low, high = statistics.get(6, (0, None))[1], statistics.get(5, (0, None))[1]
    return _bytes(low), _bytes(high), _count(statistics.get(3, (0, None))[1])


def _dictionary(chunk: Chunk, starts: I64) -> tuple[int, int] | None:
    """What stands before the first page of values."""
    first = int(starts[0]) if len(starts) else chunk.start
    return (chunk.start, first - chunk.start) if first > chunk.start else None


def _fits(pages: PageMap, chunk: Chunk) -> bool:
    """Whether the pages lie in their column, one behind the other, and have all rows."""
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
    if run is None or not 0 < run[1] <= max(MOST_INDEX, chunk.size):
        return None
    return read_struct(source.only(*run).tobytes())[0]


def _items(value: tuple[int, Any]) -> list[Any]:
    if value[0] not in LISTS:
        raise ValueError("no list")
    items: list[Any] = value[1][1]
    return items


def _bytes(value: Any) -> bytes | None:
    return value if isinstance(value, bytes) and len(value) <= LONGEST_BOUND else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
