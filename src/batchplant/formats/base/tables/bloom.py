"""Bloom filters of Parquet: whether a value can be in a column of a row group.

The only kind that there is: blocks of 256 bits, eight of which are set for a value, chosen by its XXH64.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from ....storage import Source
from .footer import Chunk, Leaf
from .thrift import Struct, read_struct

# The header of a filter is smaller; a filter is read only as far as it is asked.
HEADER = 64
BLOCK = 32
MOST_BYTES = 128 << 20
SALT = (
    0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31,
)  # fmt: skip
_PACKED = {1: ("<i", "<I"), 2: ("<q", "<Q"), 4: ("<f",), 5: ("<d",)}


def bloom_filter(source: Source, chunk: Chunk, leaf: Leaf) -> Callable[[Any], bool] | None:
    """Whether a value can be in the column; None where it has no filter, or none that is understood."""
    if chunk.bloom is None:
        return None
    start, size = chunk.bloom
    try:
        head = source.only(start, min(HEADER, source.size - start)).tobytes()
        header, length = read_struct(head)
        count: int = header[1][1]
        plain = all(1 in _choice(header, number) for number in (2, 3, 4))
        inside = 0 < count <= min(MOST_BYTES, source.size - start - length)
        if not plain or not inside or count % BLOCK or size not in (-1, length + count):
            return None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None

    def holds(value: Any) -> bool:
        data = _stored(value, leaf)
        if data is None:
            return True
        hashed = xxh64(data)
        number = ((hashed >> 32) * (count // BLOCK)) >> 32
        block = source.only(start + length + number * BLOCK, BLOCK).tobytes()
        words = struct.unpack("<8I", block)
        low = hashed & 0xFFFFFFFF
        return all(
            word >> ((low * salt & 0xFFFFFFFF) >> 27) & 1 for word, salt in zip(words, SALT, strict=True)
        )

    return holds


def _choice(header: Struct, number: int) -> Struct:
    """One of several: how blocks are laid out, which hash, how it is packed."""
    found: Struct = header[number][1]
    return found


def _stored(value: Any, leaf: Leaf) -> bytes | None:
    """A value as the file would hold it; None where that is not known."""
    if isinstance(value, bytes):
        return value
    # A number of another sign is the same bytes; 0.0 and -0.0 are not, and equal.
    if isinstance(value, bool) or leaf.unit is not None or (isinstance(value, float) and value == 0):
        return None
    for packed in _PACKED.get(leaf.kind, ()):
        try:
            return struct.pack(packed, value)
        except (struct.error, OverflowError):
            continue
    return None


_MASK = (1 << 64) - 1
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5,
)  # fmt: skip


def _turned(value: int, by: int) -> int:
    return (value << by | value >> (64 - by)) & _MASK


def _round(state: int, word: int) -> int:
    return _turned((state + word * _P2) & _MASK, 31) * _P1 & _MASK


def xxh64(data: bytes) -> int:
    """XXH64 with seed 0."""
    size, at = len(data), 0
    if size >= 32:
        states = [(_P1 + _P2) & _MASK, _P2, 0, -_P1 & _MASK]
        while at + 32 <= size:
            words = struct.unpack_from("<4Q", data, at)
            states = [_round(state, word) for state, word in zip(states, words, strict=True)]
            at += 32
        turns = zip(states, (1, 7, 12, 18), strict=True)
        found = sum(_turned(state, by) for state, by in turns) & _MASK
        for state in states:
            found = ((found ^ _round(0, state)) * _P1 + _P4) & _MASK
    else:
        found = _P5
    found = (found + size) & _MASK
    while at + 8 <= size:
        (word,) = struct.unpack_from("<Q", data, at)
        found = (_turned(found ^ _round(0, word), 27) * _P1 + _P4) & _MASK
        at += 8
    if at + 4 <= size:
        (word,) = struct.unpack_from("<I", data, at)
        found = (_turned(found ^ word * _P1 & _MASK, 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        found = _turned(found ^ byte * _P5 & _MASK, 11) * _P1 & _MASK
    found = (found ^ found >> 33) * _P2 & _MASK
    found = (found ^ found >> 29) * _P3 & _MASK
    return found ^ found >> 32
