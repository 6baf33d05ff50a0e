"""Decoder of (nested) lists of numbers, several times as fast as pyarrow.

Arrays, embeddings and tokens are stored so. If a value is missing, a list is empty or anything is wrong,
pyarrow reads the column instead, and reports the problem.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .... import _native
from ....codecs.arrow import numbers, pyarrow
from ....schema.columns import U8, AnyDType
from .footer import FIXED, Chunk, Leaf
from .pages import BY_DICTIONARY, DATA, DICTIONARY, PLAIN, PageHeader, page_header, unpack
from .thrift import varint

if TYPE_CHECKING:
    import pyarrow as pa

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
