"""The first cells of a column of bytes, out of the first bytes of its first page.

A page may be as large as its row group: pyarrow ends a page behind 1,024 values at the earliest. To see what
a column holds, a few cells are enough, so a page is not read, and not unpacked, to its end.
"""

from __future__ import annotations

import contextlib
import zlib

from ....codecs.arrow import pyarrow
from ....schema.columns import U8
from ....storage import Source
from .footer import BYTE_ARRAY, Chunk, Leaf
from .pages import DATA, DATA_2, DICTIONARY, PLAIN, UNPACK, page_header
from .thrift import Struct, varint

# Bytes of the column that are read, the next number where no cell ends in them.
FIRST_BYTES = (64 << 10, 1 << 20, 8 << 20)
# What they may unpack to, times their size.
MAX_EXPANSION = 4
# Unpacked bytes that are asked of a library at a time: behind the last whole one it fails.
PIECE_BYTES = 16 << 10


def first_cells(source: Source, chunk: Chunk, leaf: Leaf, count: int) -> list[bytes]:
    """Some of the first cells of a column that lies in no list; none where its pages tell them otherwise.

    Of a dictionary, each is there once.
    """
    if leaf.kind != BYTE_ARRAY or leaf.lists:
        return []
    for size in FIRST_BYTES:
        data = source.only(chunk.start, min(size, chunk.size))
        # Whoever reads the pages says what is wrong with them.
        with contextlib.suppress(ValueError, KeyError, TypeError, IndexError, AttributeError, OSError):
            found = _cells(_values(data, chunk.codec, leaf), count)
            if found:
                return found
        if size >= chunk.size:
            break
    return []


def _values(data: U8, codec: int, leaf: Leaf) -> bytes:
    """The values of the first page, as far as they are here."""
    header, body = page_header(data, 0)
    kind, page = header[1][1], data[body : body + header[3][1]]
    most = MAX_EXPANSION * len(data)
    if kind == DICTIONARY:
        return unpack_head(page, codec, most)
    about: Struct = header[{DATA: 5, DATA_2: 8}[kind]][1]
    if about[2 if kind == DATA else 4][1] != PLAIN:
        return b""
    if kind == DATA:
        values = unpack_head(page, codec, most)
        return values[4 + int.from_bytes(values[:4], "little") :] if leaf.levels else values
    levels = about[5][1] + about[6][1]
    return unpack_head(page[max(0, levels) :], codec if about.get(7, (0, True))[1] else 0, most)


def _cells(values: bytes, count: int) -> list[bytes]:
    found: list[bytes] = []
    at = 0
    while len(found) < count and at + 4 <= len(values):
        end = at + 4 + int.from_bytes(values[at : at + 4], "little")
        if end > len(values):
            break
        found.append(values[at + 4 : end])
        at = end
    return found


def unpack_head(data: U8, codec: int, most: int) -> bytes:
    """What the first bytes of a packed page unpack to, up to ``most`` bytes; KeyError: nobody can."""
    name = UNPACK[codec] if codec else ""
    if not codec:
        return data[:most].tobytes()
    if name == "snappy":
        return _snappy_head(data.tobytes(), most)
    if name == "gzip":
        return zlib.decompressobj(47).decompress(data.tobytes(), most)
    if name != "zstd":
        raise KeyError(name)
    pa = pyarrow()
    stream, found = pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), name), b""
    with contextlib.suppress(OSError):
        while len(found) < most and (piece := stream.read(PIECE_BYTES)):
            found += piece
    return found


def _snappy_head(data: bytes, most: int) -> bytes:
    """The same of Snappy, whose libraries unpack only the whole."""
    _, at = varint(data, 0)
    made = bytearray()
    while at < len(data) and len(made) < most:
        tag = data[at]
        size, at = tag >> 2, at + 1
        if not tag & 3:
            # A literal, whose size may stand in up to four more bytes.
            more = max(0, size - 59)
            size = (int.from_bytes(data[at : at + more], "little") if more else size) + 1
            made += data[at + more : at + more + size]
            at += more + size
            continue
        width = (1, 2, 4)[(tag & 3) - 1]
        if at + width > len(data):
            break
        back = int.from_bytes(data[at : at + width], "little")
        if width == 1:
            size, back = (size & 7) + 4, (tag >> 5 << 8) + back
        else:
            size += 1
        at += width
        if not 0 < back <= len(made):
            raise ValueError("a copy of what is not there")
        start = len(made) - back
        # It may reach into what it makes.
        pattern = bytes(made[start : start + size])
        made += (pattern * (size // len(pattern) + 1))[:size]
    return bytes(made)
