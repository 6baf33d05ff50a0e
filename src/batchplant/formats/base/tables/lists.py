"""Lists of numbers, in lists or not, decoded here: it takes a fraction of the time that the library takes.

That is how arrays, embeddings and tokens lie in Parquet files. Where a value is missing or a list is empty,
and where anything is wrong, the library reads the column, and says what it is.
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
# Levels of more bits are nobody's.
DEEPEST, MOST_LEVELS = 7, 15
# Numbers by the name of their Arrow type: the type that the file has, and its dtype.
_STORED = {
    **dict.fromkeys(("int8", "uint8", "int16", "uint16", "int32", "uint32"), (INT32, "<i4")),
    **dict.fromkeys(("int64", "uint64"), (INT64, "<i8")),
    "float": (FLOAT, "<f4"),
    "double": (DOUBLE, "<f8"),
    "halffloat": (FIXED, "<f2"),
}


class _Nest(NamedTuple):
    """The types of lists, from outside in; of the numbers in them, in Arrow, in memory and in the file."""

    lists: Sequence[Any]
    number: Any
    dtype: np.dtype[Any]
    stored: np.dtype[Any]


class _Page(NamedTuple):
    """The values of a page, how many there are, and how they are packed."""

    values: U8
    many: int
    encoding: int


def decode_lists(data: U8, chunk: Chunk, leaf: Leaf, kind: Any) -> Any:
    """The pages of a column as an Arrow column of that type; None where that is for the library to do."""
    nest = _nest_of(kind, leaf)
    if nest is None:
        return None
    try:
        array = _decoded(data, chunk, leaf, nest)
        if isinstance(kind, pyarrow().BaseExtensionType):
            array = pyarrow().ExtensionArray.from_storage(kind, array)
        return pyarrow().chunked_array([array])
    # The library meets it too.
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
    if stored != leaf.kind or not 0 < len(lists) == leaf.lists <= DEEPEST or leaf.levels > MOST_LEVELS:
        return None
    found = _Nest(lists, kind, np.dtype(kind.to_pandas_dtype()), np.dtype(dtype))
    return found if leaf.width == found.stored.itemsize else None


def _decoded(data: U8, chunk: Chunk, leaf: Leaf, nest: _Nest) -> Any:
    lists, dictionary = _native.ParquetLists(leaf.lists, chunk.values), None
    values = np.empty(chunk.values, nest.dtype)
    done = at = 0
    while done < chunk.values:
        header, body = page_header(data, at)
        kind, unpacked, packed = (header[number][1] for number in (1, 2, 3))
        at = body + packed
        page = data[body:at]
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
            found = read(page, header, chunk.codec, unpacked, leaf, lists)
            _put(found, nest, dictionary, values[done : done + found.many])
            done += found.many
    if done != chunk.values:
        raise ValueError("it has too many values")
    return _array(nest, values, lists.offsets())


def _first(
    page: U8, header: Struct, codec: int, unpacked: int, leaf: Leaf, lists: _native.ParquetLists
) -> _Page:
    """A data page: all of it is packed, and levels stand behind their size."""
    about: Struct = header[5][1]
    count, encoding, *levels = (about[number][1] for number in (1, 2, 3, 4))
    page = _unpacked(page, codec, unpacked)
    repetition, page = _behind_size(page)
    definition, page = _behind_size(page)
    if levels != [RLE, RLE] or not lists.add(repetition, definition, leaf.levels, count):
        raise ValueError("something is missing")
    return _Page(page, count, encoding)


def _behind_size(data: U8) -> tuple[U8, U8]:
    """What stands behind its own size, and the rest."""
    end = 4 + int.from_bytes(data[:4].tobytes(), "little")
    return data[4:end], data[end:]


def _second(
    page: U8, header: Struct, codec: int, unpacked: int, leaf: Leaf, lists: _native.ParquetLists
) -> _Page:
    """A data page of the second version: levels are not packed."""
    about: Struct = header[8][1]
    count, encoding, definition, repetition = (about[number][1] for number in (1, 4, 5, 6))
    both = repetition + definition
    if min(repetition, definition) < 0 or both > len(page):
        raise ValueError("its levels are longer than it is")
    if not lists.add(page[:repetition], page[repetition:both], leaf.levels, count):
        raise ValueError("something is missing")
    is_packed = about.get(7, (0, True))[1]
    return _Page(_unpacked(page[both:], codec if is_packed else 0, unpacked - both), count, encoding)


def _put(page: _Page, nest: _Nest, dictionary: Any, out: Any) -> None:
    """The values of a page, where they belong."""
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
    """A page, where it is known to unpack to all that it says."""
    if codec == SNAPPY:
        told = varint(page[:10].tobytes(), 0)[0]
    elif codec == GZIP:
        told = int.from_bytes(page[-4:].tobytes(), "little")
    else:
        told = size if codec in (0, ZSTD) else -1
    if told != size:
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
