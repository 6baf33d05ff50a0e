"""Decompressed size of a column chunk, computed from page headers before anything is decompressed.

A page states its decompressed size. That bounds its contents, except for two encodings of texts and bytes:
a dictionary repeats a value by its number, and DELTA_BYTE_ARRAY repeats the prefix of the value before it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ....codecs.arrow import pyarrow
from ....errors import DamagedError
from ....schema.columns import U8
from ....storage import limits
from .footer import BYTE_ARRAY, Chunk, Leaf
from .thrift import Struct, read_struct, varint

DATA, DICTIONARY, DATA_2 = 0, 2, 3
# An encoding of values; a field of page headers.
PLAIN, CRC = 0, 4
BY_DICTIONARY, BY_PREFIX = (2, 8), 7
# Headers are small, unless they hold bounds; pyarrow refuses larger ones.
HEADER_BYTES, MAX_HEADER_BYTES = 512, 16 << 20
UNPACK = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}


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
