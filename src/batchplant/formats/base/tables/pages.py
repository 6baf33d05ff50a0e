"""Pages of a column chunk: their headers, their decompressed size, and where they lie; lists of numbers.

A page states its decompressed size. That bounds its contents, except for two encodings of texts and bytes:
a dictionary repeats a value by its number, and DELTA_BYTE_ARRAY repeats the prefix of the value before it.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .... import _native
from ....codecs.arrow import numbers, pyarrow
from ....errors import DamagedError, exceptions_as
from ....schema.columns import I64, U8, AnyDType, Flags
from ....storage import Source, limits
from .footer import BYTE_ARRAY, FIXED, LISTS, MAX_BOUND_BYTES, Chunk, Group, Leaf, Struct, read_struct, varint

if TYPE_CHECKING:
    import pyarrow as pa

DATA, DICTIONARY, DATA_2 = 0, 2, 3
# Field of a page header that describes pages of a kind.
_ABOUT = {DATA: 5, DICTIONARY: 7, DATA_2: 8}
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


class PageHeader(NamedTuple):
    """Header of a page, whose data are ``size`` bytes from ``body`` on.

    ``levels``: bytes of repetition and definition levels that precede the values unpacked (version 2);
    ``level_encodings``: how levels are stored inside of the values' bytes (version 1).
    """

    kind: int
    unpacked: int
    size: int
    body: int
    value_count: int
    encoding: int
    levels: tuple[int, int]
    level_encodings: tuple[int, int] | None
    is_packed: bool
    checksum: int | None
    statistics: Struct

    @property
    def end(self) -> int:
        return self.body + self.size

    @property
    def has_values(self) -> bool:
        return self.kind in (DATA, DATA_2)


def page_header(data: U8, offset: int) -> PageHeader:
    """Parse the header of a page; ValueError if it is damaged."""
    for size_limit in (HEADER_BYTES, MAX_HEADER_BYTES):
        piece = data[offset : offset + size_limit].tobytes()
        try:
            header, size = read_struct(piece)
            return _parsed(header, offset + size)
        except KeyError as error:
            raise ValueError(f"field {error} is missing") from None
        except TypeError:
            raise ValueError("a field has another type") from None
        except ValueError:
            if size_limit == MAX_HEADER_BYTES or len(piece) < size_limit:
                raise
    raise AssertionError


def _parsed(header: Struct, body: int) -> PageHeader:
    kind, unpacked, size = (_whole(header[number]) for number in (1, 2, 3))
    about: Struct = header[_ABOUT[kind]][1] if kind in _ABOUT else {1: (5, 0), 2: (5, 0)}
    second = kind == DATA_2
    count, encoding = _whole(about[1]), _whole(about[4 if second else 2])
    levels = (_whole(about[6]), _whole(about[5])) if second else (0, 0)
    if min(unpacked, size, count, *levels) < 0:
        raise ValueError(f"{count} values in {size} bytes")
    return PageHeader(
        kind, unpacked, size, body, count, encoding, levels,
        level_encodings=(_whole(about[3]), _whole(about[4])) if kind == DATA else None,
        is_packed=not second or about.get(7, (0, True))[1],
        checksum=_whole(header[CRC]) & 0xFFFFFFFF if CRC in header else None,
        statistics=about.get(8 if second else 5, (0, {}))[1] if kind in (DATA, DATA_2) else {},
    )  # fmt: skip


def _whole(value: tuple[int, Any]) -> int:
    if type(value[1]) is not int:
        raise TypeError(value)
    return value[1]


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
        with exceptions_as(DamagedError, "a page is damaged", ValueError, offset=chunk.start + offset):
            header = page_header(data, offset)
            if header.end > len(data):
                raise ValueError(f"{header.size} bytes of {len(data) - header.body}")
        unpacked, count = header.unpacked, header.value_count if header.has_values else 0
        if unpacked > max_bytes:
            raise DamagedError(limits.too_large("a page", unpacked, chunk.size), offset=chunk.start + offset)
        page = data[header.body : header.end]
        values += count
        total += count * leaf.width
        if header.kind == DICTIONARY:
            dictionary, entries = max(dictionary, unpacked), (page, unpacked)
        elif leaf.kind == BYTE_ARRAY and header.encoding in BY_DICTIONARY:
            coded += count
        elif leaf.kind == BYTE_ARRAY:
            total += unpacked
            if header.encoding == BY_PREFIX:
                is_small = total + count * unpacked <= max_bytes
                total += count * unpacked if is_small else _repeated(page, header, chunk.codec, leaf)
        offset = header.end
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


def _repeated(page: U8, header: PageHeader, codec: int, leaf: Leaf) -> int:
    """Bytes that the values of a page repeat from the values before them."""
    worst = header.value_count * header.unpacked
    try:
        # Levels precede the values; in version 2 uncompressed, with their sizes in the header.
        before = sum(header.levels)
        body = unpack(page[before:], codec if header.is_packed else 0, header.unpacked - before)
        offset = 0
        for _ in range(0 if header.kind == DATA_2 else (leaf.lists > 0) + (leaf.levels > 0)):
            offset += 4 + int.from_bytes(body[offset : offset + 4].tobytes(), "little")
        return min(worst, _delta_sum(body[offset:].tobytes(), header.value_count))
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
    # The dictionary lies before the first data page.
    head_size = int(starts[0]) - chunk.start if len(starts) else 0
    head = (chunk.start, head_size) if head_size > 0 else None
    pages = PageMap(np.append(firsts, group.rows), starts, sizes, head)
    if not _fits(pages, chunk):
        return None
    if mapped and head_size > SMALL_DICTIONARY_BYTES:
        runs = zip(starts.tolist(), sizes.tolist(), strict=True)
        headers = (page_header(source.view(start, size), 0) for start, size in runs)
        pages.coded = np.array([header.encoding in BY_DICTIONARY for header in headers], dtype=np.bool_)
    return pages


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
        header = page_header(data, offset)
        if header.end > len(data):
            return None
        if header.kind == DICTIONARY:
            head = (chunk.start + offset, header.end - offset)
        if header.has_values:
            if not header.value_count:
                return None
            firsts.append(rows)
            starts.append(chunk.start + offset)
            sizes.append(header.end - offset)
            # The deprecated fields are ignored: their order is undefined.
            high, low, missing = (header.statistics.get(number, (0, None))[1] for number in (5, 6, 3))
            bounds.append((_bytes(low), _bytes(high), _count(missing)))
            coded.append(header.encoding in BY_DICTIONARY)
            rows += header.value_count
        offset = header.end
    firsts.append(group.rows)
    numbers, offsets, lengths = (np.array(values, dtype=np.int64) for values in (firsts, starts, sizes))
    pages = PageMap(numbers, offsets, lengths, head, bounds, np.array(coded, dtype=np.bool_))
    return pages if rows == group.rows and _fits(pages, chunk) else None


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
    return value[1][1]


def _bytes(value: Any) -> bytes | None:
    return value if isinstance(value, bytes) and len(value) <= MAX_BOUND_BYTES else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


OLD_PLAIN, RLE = 2, 3
INT32, INT64, FLOAT, DOUBLE = 1, 2, 4, 5
SNAPPY, GZIP, ZSTD = 1, 2, 6
# Deeper nests are left to pyarrow.
MAX_LIST_DEPTH, MAX_LEVELS = 7, 15
# Numbers by the name of their Arrow type: the type that the file has, and its dtype.
_STORED = {
    **dict.fromkeys(("int8", "uint8", "int16", "uint16", "int32", "uint32"), (INT32, "<i4")),
    **dict.fromkeys(("int64", "uint64"), (INT64, "<i8")),
    "float": (FLOAT, "<f4"),
    "double": (DOUBLE, "<f8"),
    "halffloat": (FIXED, "<f2"),
}


class _Nest(NamedTuple):
    """Types of nested lists from the outside in, and of their numbers: in Arrow, in memory, in the file."""

    lists: Sequence[pa.DataType]
    number: pa.DataType
    dtype: AnyDType
    stored: AnyDType


def decode_lists(data: U8, chunk: Chunk, leaf: Leaf, kind: pa.DataType) -> pa.ChunkedArray | None:
    """Decode the pages of a column to an Arrow column of this type; None: leave it to pyarrow."""
    nest = _nest_of(kind, leaf)
    if nest is None:
        return None
    try:
        array = _decoded(data, chunk, leaf, nest)
        if isinstance(kind, pyarrow().BaseExtensionType):
            array = pyarrow().ExtensionArray.from_storage(kind, array)
        return pyarrow().chunked_array([array])
    # pyarrow meets the problem too, and reports it.
    except (ValueError, KeyError, TypeError, IndexError, OSError):
        return None


def _nest_of(kind: pa.DataType, leaf: Leaf) -> _Nest | None:
    types, lists = pyarrow().types, []
    if isinstance(kind, pyarrow().BaseExtensionType):
        kind = kind.storage_type
    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        lists.append(kind)
        kind = kind.value_type
    stored, dtype = _STORED.get(str(kind), (None, ""))
    if stored != leaf.kind or not 0 < len(lists) == leaf.lists <= MAX_LIST_DEPTH or leaf.levels > MAX_LEVELS:
        return None
    nest = _Nest(lists, kind, np.dtype(kind.to_pandas_dtype()), np.dtype(dtype))
    return nest if leaf.width == nest.stored.itemsize else None


def _decoded(data: U8, chunk: Chunk, leaf: Leaf, nest: _Nest) -> pa.Array:
    lists, dictionary = _native.ParquetLists(leaf.lists, chunk.values), None
    values = np.empty(chunk.values, nest.dtype)
    done = offset = 0
    while done < chunk.values:
        header = page_header(data, offset)
        offset = header.end
        page = data[header.body : offset]
        if len(page) != header.size:
            raise ValueError("it ends too early")
        if header.checksum not in (None, zlib.crc32(page.data)):
            raise ValueError("its checksum is wrong")
        if header.kind == DICTIONARY:
            if header.encoding not in (PLAIN, OLD_PLAIN):
                raise ValueError("packed in another way")
            entries = _unpacked(page, chunk.codec, header.unpacked)
            dictionary = np.frombuffer(entries, nest.stored, header.value_count).astype(nest.dtype)
        elif header.has_values:
            unpacked = _values(page, header, chunk.codec, leaf, lists)
            _put(unpacked, header.encoding, nest, dictionary, values[done : done + header.value_count])
            done += header.value_count
    if done != chunk.values:
        raise ValueError("it has too many values")
    return _array(nest, values, lists.offsets())


def _values(page: U8, header: PageHeader, codec: int, leaf: Leaf, lists: _native.ParquetLists) -> U8:
    """Take the levels of a data page, and return its encoded values."""
    if header.kind == DATA:
        # Levels are compressed too, each after its size.
        page = _unpacked(page, codec, header.unpacked)
        repetition, page = _behind_size(page)
        definition, page = _behind_size(page)
    else:
        first, start = header.levels[0], sum(header.levels)
        if start > len(page):
            raise ValueError("its levels are longer than it is")
        repetition, definition = page[:first], page[first:start]
        page = _unpacked(page[start:], codec if header.is_packed else 0, header.unpacked - start)
    is_known = header.level_encodings in (None, (RLE, RLE))
    if not is_known or not lists.add(repetition, definition, leaf.levels, header.value_count):
        raise ValueError("something is missing")
    return page


def _behind_size(data: U8) -> tuple[U8, U8]:
    """Split off the bytes that follow their own 4-byte size."""
    end = 4 + int.from_bytes(data[:4].tobytes(), "little")
    return data[4:end], data[end:]


def _put(values: U8, encoding: int, nest: _Nest, dictionary: Any, out: Any) -> None:
    """Decode the values of a page into ``out``."""
    if encoding == PLAIN:
        out[:] = np.frombuffer(values, nest.stored)
    elif encoding in BY_DICTIONARY and dictionary is not None:
        bits = f"u{nest.dtype.itemsize}"
        width, packed = int(values[0]), values[1:]
        if not _native.parquet_look_up(packed, width, dictionary.view(bits), out.view(bits)):
            raise ValueError("a number that the dictionary does not have")
    else:
        raise ValueError("packed in another way")


def _unpacked(page: U8, codec: int, size: int) -> U8:
    """Decompress a page; ValueError if the data state another size than the header."""
    if codec == SNAPPY:
        stated_size = varint(page[:10].tobytes(), 0)[0]
    elif codec == GZIP:
        stated_size = int.from_bytes(page[-4:].tobytes(), "little")
    else:
        stated_size = size if codec in (0, ZSTD) else -1
    if stated_size != size:
        raise ValueError("it unpacks to another size")
    return unpack(page, codec, size)


def _array(nest: _Nest, values: Any, offsets: Sequence[Any]) -> Any:
    pa = pyarrow()
    array = pa.Array.from_buffers(nest.number, len(values), [None, pa.py_buffer(values)])
    for kind, starts in zip(reversed(nest.lists), reversed(offsets), strict=True):
        if pa.types.is_fixed_size_list(kind):
            if (np.diff(starts) != kind.list_size).any():
                raise ValueError("lists of another size")
            array = pa.FixedSizeListArray.from_arrays(array, type=kind)
        elif pa.types.is_large_list(kind):
            array = pa.LargeListArray.from_arrays(numbers(starts.astype(np.int64)), array, type=kind)
        else:
            array = pa.ListArray.from_arrays(numbers(starts), array, type=kind)
    return array
