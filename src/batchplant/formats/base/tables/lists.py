"""Decoder of (nested) lists of numbers, several times as fast as pyarrow.

Arrays, embeddings and tokens are stored so. If a value is missing, a list is empty or anything is wrong,
pyarrow reads the column instead, and reports the problem.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .... import _native
from ....codecs.arrow import numbers, pyarrow
from ....schema.columns import U8
from .footer import FIXED, Chunk, Leaf
from .pages import BY_DICTIONARY, CRC, DATA, DATA_2, DICTIONARY, PLAIN, page_header, unpack
from .thrift import Struct, varint

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

    lists: Sequence[Any]
    number: Any
    dtype: np.dtype[Any]
    stored: np.dtype[Any]


class _Page(NamedTuple):
    """Encoded values of a page, their number and their encoding."""

    values: U8
    value_count: int
    encoding: int


def decode_lists(data: U8, chunk: Chunk, leaf: Leaf, kind: Any) -> Any:
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


def _nest_of(kind: Any, leaf: Leaf) -> _Nest | None:
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


def _decoded(data: U8, chunk: Chunk, leaf: Leaf, nest: _Nest) -> Any:
    lists, dictionary = _native.ParquetLists(leaf.lists, chunk.values), None
    values = np.empty(chunk.values, nest.dtype)
    done = offset = 0
    while done < chunk.values:
        header, body = page_header(data, offset)
        kind, unpacked, packed = (header[number][1] for number in (1, 2, 3))
        offset = body + packed
        page = data[body:offset]
        if packed < 0 or len(page) != packed:
            raise ValueError("it ends too early")
        if CRC in header and zlib.crc32(page.data) != header[CRC][1] & 0xFFFFFFFF:
            raise ValueError("its checksum is wrong")
        if kind == DICTIONARY:
            count, encoding = (header[7][1][number][1] for number in (1, 2))
            if encoding not in (PLAIN, OLD_PLAIN):
                raise ValueError("packed in another way")
            entries = _unpacked(page, chunk.codec, unpacked)
            dictionary = np.frombuffer(entries, nest.stored, count).astype(nest.dtype)
        elif kind in (DATA, DATA_2):
            read = _first if kind == DATA else _second
            data_page = read(page, header, chunk.codec, unpacked, leaf, lists)
            _put(data_page, nest, dictionary, values[done : done + data_page.value_count])
            done += data_page.value_count
    if done != chunk.values:
        raise ValueError("it has too many values")
    return _array(nest, values, lists.offsets())


def _first(
    page: U8, header: Struct, codec: int, unpacked: int, leaf: Leaf, lists: _native.ParquetLists
) -> _Page:
    """Parse a data page (version 1): levels are compressed too, each after its size."""
    about: Struct = header[5][1]
    count, encoding, *levels = (about[number][1] for number in (1, 2, 3, 4))
    page = _unpacked(page, codec, unpacked)
    repetition, page = _behind_size(page)
    definition, page = _behind_size(page)
    if levels != [RLE, RLE] or not lists.add(repetition, definition, leaf.levels, count):
        raise ValueError("something is missing")
    return _Page(page, count, encoding)


def _behind_size(data: U8) -> tuple[U8, U8]:
    """Split off the bytes that follow their own 4-byte size."""
    end = 4 + int.from_bytes(data[:4].tobytes(), "little")
    return data[4:end], data[end:]


def _second(
    page: U8, header: Struct, codec: int, unpacked: int, leaf: Leaf, lists: _native.ParquetLists
) -> _Page:
    """Parse a data page (version 2): levels are not compressed."""
    about: Struct = header[8][1]
    count, encoding, definition, repetition = (about[number][1] for number in (1, 4, 5, 6))
    values_start = repetition + definition
    if min(repetition, definition) < 0 or values_start > len(page):
        raise ValueError("its levels are longer than it is")
    if not lists.add(page[:repetition], page[repetition:values_start], leaf.levels, count):
        raise ValueError("something is missing")
    is_packed = about.get(7, (0, True))[1]
    return _Page(
        _unpacked(page[values_start:], codec if is_packed else 0, unpacked - values_start), count, encoding
    )


def _put(page: _Page, nest: _Nest, dictionary: Any, out: Any) -> None:
    """Decode the values of a page into ``out``."""
    if page.encoding == PLAIN:
        out[:] = np.frombuffer(page.values, nest.stored)
    elif page.encoding in BY_DICTIONARY and dictionary is not None:
        bits = f"u{nest.dtype.itemsize}"
        width, packed = int(page.values[0]), page.values[1:]
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
