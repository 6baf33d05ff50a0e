"""Decompressed size of a column chunk, computed from page headers before anything is decompressed.

A page states its decompressed size. That bounds its contents, except for two encodings of texts and bytes:
a dictionary repeats a value by its number, and DELTA_BYTE_ARRAY repeats the prefix of the value before it.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from ....codecs.arrow import pyarrow
from ....errors import DamagedError
from ....schema.columns import I64, U8, Flags
from ....storage import Source, limits
from .footer import BYTE_ARRAY, MAX_BOUND_BYTES, Chunk, Group, Leaf
from .thrift import LISTS, Struct, read_struct, varint

DATA, DICTIONARY, DATA_2 = 0, 2, 3
# An encoding of values; a field of page headers.
PLAIN, CRC = 0, 4
BY_DICTIONARY, BY_PREFIX = (2, 8), 7
# Headers are small, unless they hold bounds; pyarrow refuses larger ones.
HEADER_BYTES, MAX_HEADER_BYTES = 512, 16 << 20
UNPACK = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
# An index is at most this large, or as large as its column chunk.
MAX_INDEX_BYTES = 64 << 20
# Bytes that are read to see the header of a page.
PROBED_HEADER_BYTES = 64 << 10
# A smaller dictionary is always read: to see which pages need it takes a look at every page.
SMALL_DICTIONARY_BYTES = 16 << 10
Bound = tuple[bytes | None, bytes | None, int | None]


class Claim(NamedTuple):
    """Size of a column in memory; ``by_dictionary``: without repeated values, which could be too much."""

    size: int
    by_dictionary: bool


def claim_of(data: U8, chunk: Chunk, leaf: Leaf) -> Claim:
    """Add up what pages state; DamagedError if a page states too much, or nonsense."""
    offset = values = total = coded = dictionary = 0
    entries: tuple[U8, int] | None = None
    max_bytes = limits.allowed(chunk.size)
    while offset < len(data) and values < chunk.values:
        try:
            header, body = page_header(data, offset)
            kind, unpacked, packed = (header[number][1] for number in (1, 2, 3))
            if unpacked < 0 or not 0 <= packed <= len(data) - body:
                raise ValueError(f"{packed} bytes of {len(data) - body}")
            about: Struct = header[{DATA: 5, DATA_2: 8}[kind]][1] if kind in (DATA, DATA_2) else {}
            count, encoding = (about[1][1], about[4 if kind == DATA_2 else 2][1]) if about else (0, 0)
            if count < 0:
                raise ValueError(f"{count} values")
        except (ValueError, KeyError, TypeError) as error:
            problem = f"field {error} is missing" if isinstance(error, KeyError) else error
            raise DamagedError(f"a page is damaged: {problem}", offset=chunk.start + offset) from None
        if unpacked > max_bytes:
            raise DamagedError(limits.too_large("a page", unpacked, chunk.size), offset=chunk.start + offset)
        values += count
        total += count * leaf.width
        if kind == DICTIONARY:
            dictionary, entries = max(dictionary, unpacked), (data[body : body + packed], unpacked)
        elif leaf.kind == BYTE_ARRAY and encoding in BY_DICTIONARY:
            coded += count
        elif leaf.kind == BYTE_ARRAY and encoding == BY_PREFIX:
            total += unpacked
            if total + count * unpacked > max_bytes:
                page = data[body : body + packed]
                total += _repeated(page, unpacked, about, kind == DATA_2, chunk.codec, leaf, count)
            else:
                total += count * unpacked
        elif leaf.kind == BYTE_ARRAY:
            total += unpacked
        offset = body + packed
    total += dictionary
    if coded and entries is not None and total + coded * dictionary > max_bytes:
        dictionary = _longest(*entries, chunk.codec)
    by_dictionary = total + coded * dictionary > max_bytes
    return Claim(total + (0 if by_dictionary else coded * dictionary), by_dictionary)


def _longest(page: U8, unpacked: int, codec: int) -> int:
    """The bytes of the longest value of a dictionary; those of all where it is not what it should be."""
    try:
        body = unpack(page, codec, unpacked).tobytes()
        offset = longest = 0
        while offset < len(body):
            size = int.from_bytes(body[offset : offset + 4], "little")
            offset += 4 + size
            longest = max(longest, size)
        return longest if offset == len(body) else unpacked
    # Damage is reported by the reader of the page.
    except (ValueError, KeyError, OSError):
        return unpacked


def unpack(page: U8, codec: int, size: int) -> U8:
    """Decompress a page; KeyError for unsupported codecs. Too little data is not noticed."""
    if not codec:
        return page
    return np.frombuffer(pyarrow().Codec(UNPACK[codec]).decompress(page.data, size), np.uint8)


def page_header(data: U8, offset: int) -> tuple[Struct, int]:
    """Parse the header of a page; return it and the offset of the page's data."""
    for size_limit in (HEADER_BYTES, MAX_HEADER_BYTES):
        piece = data[offset : offset + size_limit].tobytes()
        try:
            header, size = read_struct(piece)
            return header, offset + size
        except ValueError:
            if size_limit == MAX_HEADER_BYTES or len(piece) < size_limit:
                raise
    raise AssertionError


def _repeated(
    page: U8, unpacked: int, about: Struct, second: bool, codec: int, leaf: Leaf, count: int
) -> int:
    """Bytes that the values of a page repeat from the values before them."""
    worst = count * unpacked
    try:
        # Levels precede the values; in version 2 uncompressed, with their sizes in the header.
        before = about[5][1] + about[6][1] if second else 0
        is_packed = not second or about.get(7, (0, True))[1]
        body = unpack(page[before:], codec if is_packed else 0, unpacked - before)
        offset = 0
        for _ in range(0 if second else (leaf.lists > 0) + (leaf.levels > 0)):
            offset += 4 + int.from_bytes(body[offset : offset + 4].tobytes(), "little")
        return min(worst, _delta_sum(body[offset:].tobytes(), count))
    # Damage is reported by the reader of the page.
    except (ValueError, KeyError, TypeError, IndexError, OSError):
        return worst


def _delta_sum(data: bytes, max_count: int) -> int:
    """Sum the numbers in DELTA_BINARY_PACKED data, none of them below 0."""
    numbers, offset = [], 0
    for _ in range(4):
        value, offset = varint(data, offset)
        numbers.append(value)
    block, parts, count, first = numbers
    if not 0 < block <= 1 << 20 or not 0 < parts <= block or block % parts or count > max_count:
        raise ValueError("blocks that cannot be")
    miniblock = block // parts
    last = total = _unzigzag(first)
    remaining = count - 1
    while remaining > 0:
        low, offset = varint(data, offset)
        widths, offset = data[offset : offset + parts], offset + parts
        for width in widths:
            if remaining <= 0:
                break
            size = miniblock * width // 8
            bits = np.unpackbits(np.frombuffer(data, np.uint8, size, offset), bitorder="little")
            offset += size
            shifts: Any = np.int64(1) << np.arange(width, dtype=np.int64)
            deltas = bits.reshape(miniblock, width).astype(np.int64) @ shifts
            lengths = last + np.cumsum(deltas[:remaining] + _unzigzag(low))
            if (lengths < 0).any():
                raise ValueError("a length below 0")
            total += int(lengths.sum())
            last = int(lengths[-1])
            remaining -= len(lengths)
        if len(widths) < parts:
            raise ValueError("it ends too early")
    return total


def _unzigzag(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


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
