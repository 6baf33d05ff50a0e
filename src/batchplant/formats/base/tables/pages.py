"""How much a column of a row group unpacks to, by the headers of its pages, before anything is unpacked.

A page says how large it is unpacked. That bounds what is in it, but for two encodings of texts and bytes: a
dictionary repeats a value by its number, and DELTA_BYTE_ARRAY repeats the beginning of the value before it.
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
# An encoding of values, and the number of a header's field.
PLAIN, CRC = 0, 4
BY_DICTIONARY, BY_PREFIX = (2, 8), 7
# Headers are small, unless they hold the least and the greatest value; larger ones pyarrow refuses itself.
HEADER, HEADER_MOST = 512, 16 << 20
UNPACK = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}


class Claim(NamedTuple):
    """The bytes of a column in memory; without what a dictionary repeats, if that could be too much."""

    size: int
    by_dictionary: bool


def claim_of(data: U8, chunk: Chunk, leaf: Leaf) -> Claim:
    """What a column says that it unpacks to; DamagedError where a page says too much, or nonsense."""
    at = values = total = coded = dictionary = 0
    entries: tuple[U8, int] | None = None
    most = limits.allowed(chunk.size)
    while at < len(data) and values < chunk.values:
        try:
            header, body = page_header(data, at)
            kind, unpacked, packed = (header[number][1] for number in (1, 2, 3))
            if unpacked < 0 or not 0 <= packed <= len(data) - body:
                raise ValueError(f"{packed} bytes of {len(data) - body}")
            about: Struct = header[{DATA: 5, DATA_2: 8}[kind]][1] if kind in (DATA, DATA_2) else {}
            count, encoding = (about[1][1], about[4 if kind == DATA_2 else 2][1]) if about else (0, 0)
            if count < 0:
                raise ValueError(f"{count} values")
        except (ValueError, KeyError, TypeError) as error:
            said = f"field {error} is missing" if isinstance(error, KeyError) else error
            raise DamagedError(f"a page is damaged: {said}", offset=chunk.start + at) from None
        if unpacked > most:
            raise DamagedError(limits.too_large("a page", unpacked, chunk.size), offset=chunk.start + at)
        values += count
        total += count * leaf.width
        if kind == DICTIONARY:
            dictionary, entries = max(dictionary, unpacked), (data[body : body + packed], unpacked)
        elif leaf.kind == BYTE_ARRAY and encoding in BY_DICTIONARY:
            coded += count
        elif leaf.kind == BYTE_ARRAY and encoding == BY_PREFIX:
            total += unpacked
            if total + count * unpacked > most:
                page = data[body : body + packed]
                total += _repeated(page, unpacked, about, kind == DATA_2, chunk.codec, leaf, count)
            else:
                total += count * unpacked
        elif leaf.kind == BYTE_ARRAY:
            total += unpacked
        at = body + packed
    total += dictionary
    if coded and entries is not None and total + coded * dictionary > most:
        dictionary = _longest(*entries, chunk.codec)
    by_dictionary = total + coded * dictionary > most
    return Claim(total + (0 if by_dictionary else coded * dictionary), by_dictionary)


def _longest(page: U8, unpacked: int, codec: int) -> int:
    """The bytes of the longest value of a dictionary; those of all where it is not what it should be."""
    try:
        body = unpack(page, codec, unpacked).tobytes()
        at = longest = 0
        while at < len(body):
            size = int.from_bytes(body[at : at + 4], "little")
            at += 4 + size
            longest = max(longest, size)
        return longest if at == len(body) else unpacked
    # Whoever reads the page says what is wrong with it.
    except (ValueError, KeyError, OSError):
        return unpacked


def unpack(page: U8, codec: int, size: int) -> U8:
    """A page, or what of it is packed; KeyError where nobody can. Less than it says is not noticed."""
    if not codec:
        return page
    return np.frombuffer(pyarrow().Codec(UNPACK[codec]).decompress(page.data, size), np.uint8)


def page_header(data: U8, at: int) -> tuple[Struct, int]:
    """The header of a page, and where the page itself begins."""
    for most in (HEADER, HEADER_MOST):
        piece = data[at : at + most].tobytes()
        try:
            found, size = read_struct(piece)
            return found, at + size
        except ValueError:
            if most == HEADER_MOST or len(piece) < most:
                raise
    raise AssertionError


def _repeated(
    page: U8, unpacked: int, about: Struct, second: bool, codec: int, leaf: Leaf, count: int
) -> int:
    """The bytes that the values of a page take from the values before them."""
    worst = count * unpacked
    try:
        # Levels stand before the values; in the second version not packed, with their sizes in the header.
        before = about[5][1] + about[6][1] if second else 0
        is_packed = not second or about.get(7, (0, True))[1]
        body = unpack(page[before:], codec if is_packed else 0, unpacked - before)
        at = 0
        for _ in range(0 if second else (leaf.lists > 0) + (leaf.levels > 0)):
            at += 4 + int.from_bytes(body[at : at + 4].tobytes(), "little")
        return min(worst, _delta_sum(body[at:].tobytes(), count))
    # Whoever reads the page says what is wrong with it.
    except (ValueError, KeyError, TypeError, IndexError, OSError):
        return worst


def _delta_sum(data: bytes, most: int) -> int:
    """The sum of numbers in DELTA_BINARY_PACKED, none of them below 0."""
    numbers, at = [], 0
    for _ in range(4):
        value, at = varint(data, at)
        numbers.append(value)
    block, parts, count, first = numbers
    if not 0 < block <= 1 << 20 or not 0 < parts <= block or block % parts or count > most:
        raise ValueError("blocks that cannot be")
    each = block // parts
    last = total = _unzigzag(first)
    left = count - 1
    while left > 0:
        low, at = varint(data, at)
        widths, at = data[at : at + parts], at + parts
        for width in widths:
            if left <= 0:
                break
            size = each * width // 8
            bits = np.unpackbits(np.frombuffer(data, np.uint8, size, at), bitorder="little")
            at += size
            shifts: Any = np.int64(1) << np.arange(width, dtype=np.int64)
            deltas = bits.reshape(each, width).astype(np.int64) @ shifts
            found = last + np.cumsum(deltas[:left] + _unzigzag(low))
            if (found < 0).any():
                raise ValueError("a length below 0")
            total += int(found.sum())
            last = int(found[-1])
            left -= len(found)
        if len(widths) < parts:
            raise ValueError("it ends too early")
    return total


def _unzigzag(value: int) -> int:
    return (value >> 1) ^ -(value & 1)
