"""Protobuf's wire format: the fields of a message, one after another, without a description of the message.

Nothing is copied: a field that has a length is given as where its bytes lie, so a tensor inside a message can
be used where it is. A message inside a message is looked into only by who knows that it is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..errors import DamagedError
from ..schema.columns import I64, U8

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MASK = (1 << 64) - 1


class Part(NamedTuple):
    """One field of a message: ``value`` of a varint, else the bytes from ``start`` to ``end``."""

    number: int
    kind: int
    value: int
    start: int
    end: int


def read_varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """An unsigned integer of up to 64 bits, and where it ends."""
    value = shift = 0
    while shift < 70:
        if at >= end:
            raise DamagedError("the message ends inside a number", offset=at)
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK, at
        shift += 7
    raise DamagedError("a number of more than 64 bits", offset=at)


def parts(data: memoryview, start: int, end: int) -> Iterator[Part]:
    """The fields of the message that lies between these two places."""
    at = start
    while at < end:
        began = at
        tag, at = read_varint(data, at, end)
        number, kind, value = tag >> 3, tag & 7, 0
        first = last = at
        if kind == VARINT:
            value, last = read_varint(data, at, end)
        elif kind == BYTES:
            size, first = read_varint(data, at, end)
            last = first + size
        elif kind in (FIXED32, FIXED64):
            last = at + (4 if kind == FIXED32 else 8)
        else:
            raise DamagedError(f"a field of the wire type {kind}", offset=began)
        if number == 0 or last > end:
            raise DamagedError("a field reaches beyond its message", offset=began)
        yield Part(number, kind, value, first, last)
        at = last


def messages(data: memoryview, start: int, end: int, number: int) -> Iterator[tuple[int, int]]:
    """Where the messages in the fields of this number lie."""
    return ((one.start, one.end) for one in parts(data, start, end) if one[:2] == (number, BYTES))


def signed(value: int) -> int:
    """A varint as the signed number of 64 bits that it stands for."""
    return value - (1 << 64) if value >> 63 else value


def text(data: memoryview, part: Part) -> str:
    """UTF-8; what is none is replaced, for it is only shown."""
    return bytes(data[part.start : part.end]).decode("utf-8", "replace")


def name(data: memoryview, part: Part) -> str:
    """UTF-8, exactly."""
    try:
        return bytes(data[part.start : part.end]).decode("utf-8")
    except UnicodeDecodeError:
        raise DamagedError("a name is not UTF-8 text", offset=part.start) from None


def unpack(data: U8, start: int) -> I64:
    """The varints that fill these bytes, as signed numbers; ``start`` is where they lie, for errors."""
    last = np.flatnonzero(data < 0x80)
    if len(data) and (not len(last) or last[-1] != len(data) - 1):
        raise DamagedError("the message ends inside a number", offset=start + len(data))
    firsts = np.concatenate([[0], last[:-1] + 1]) if len(last) else last
    sizes = last - firsts + 1
    if len(sizes) and sizes.max() > 10:
        raise DamagedError("a number of more than 64 bits", offset=start + int(firsts[sizes.argmax()]))
    found = np.zeros(len(last), dtype=np.uint64)
    for byte in range(int(sizes.max()) if len(sizes) else 0):
        rows = np.flatnonzero(sizes > byte)
        found[rows] |= (data[firsts[rows] + byte] & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * byte)
    return found.view(np.int64)


def varint(value: int) -> bytes:
    """An integer in groups of 7 bits; a negative one as its 64-bit two's complement."""
    value &= _MASK
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """A field that is a varint."""
    return varint(field << 3 | VARINT) + varint(value)


def block(field: int, content: bytes) -> bytes:
    """A field that has a length: bytes, text or a message."""
    return head(field, len(content)) + content


def head(field: int, size: int) -> bytes:
    """What stands before the bytes of a field that has a length."""
    return varint(field << 3 | BYTES) + varint(size)
