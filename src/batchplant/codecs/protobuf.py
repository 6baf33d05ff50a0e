"""Protobuf's wire format: the fields of a message, one after another, without a description of the message.

Nothing is copied: a field with a length is given by the range of its bytes, so a tensor inside a message can
be used in place. The caller has to know which fields are messages.
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


def read_varint(data: memoryview, position: int, end: int) -> tuple[int, int]:
    """Return an unsigned integer of up to 64 bits, and its end."""
    value = shift = 0
    while shift < 70:
        if position >= end:
            raise DamagedError("the message ends inside a number", offset=position)
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK, position
        shift += 7
    raise DamagedError("a number of more than 64 bits", offset=position)


def parts(data: memoryview, start: int, end: int) -> Iterator[Part]:
    """Yield the fields of the message in this range."""
    position = start
    while position < end:
        tag_start = position
        tag, position = read_varint(data, position, end)
        number, kind, value = tag >> 3, tag & 7, 0
        first = last = position
        if kind == VARINT:
            value, last = read_varint(data, position, end)
        elif kind == BYTES:
            size, first = read_varint(data, position, end)
            last = first + size
        elif kind in (FIXED32, FIXED64):
            last = position + (4 if kind == FIXED32 else 8)
        else:
            raise DamagedError(f"a field of the wire type {kind}", offset=tag_start)
        if number == 0 or last > end:
            raise DamagedError("a field reaches beyond its message", offset=tag_start)
        yield Part(number, kind, value, first, last)
        position = last


def messages(data: memoryview, start: int, end: int, number: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of the messages in the fields of this number."""
    return ((part.start, part.end) for part in parts(data, start, end) if part[:2] == (number, BYTES))


class Message:
    """The fields of a message by number. One of another wire type than is asked for counts as absent."""

    def __init__(self, data: memoryview, start: int = 0, end: int | None = None) -> None:
        self.data, self.start = data, start
        self._parts: dict[int, list[Part]] = {}
        for part in parts(data, start, len(data) if end is None else end):
            self._parts.setdefault(part.number, []).append(part)

    def parts(self, number: int, kind: int | None = None) -> list[Part]:
        """Return the fields of this number and wire type."""
        return [part for part in self._parts.get(number, ()) if kind in (None, part.kind)]

    def number(self, number: int, default: int = 0) -> int:
        """Return a varint as a signed number; of several the last one counts, as everywhere in protobuf."""
        values = [part.value for part in self.parts(number, VARINT)]
        return signed(values[-1]) if values else default

    def texts(self, number: int) -> list[str]:
        """Return texts for display; invalid bytes are replaced."""
        return [text(self.data, part) for part in self.parts(number, BYTES)]

    def text(self, number: int) -> str:
        """Return a text for display; empty where there is none."""
        return ["", *self.texts(number)][-1]

    def messages(self, number: int) -> list[Message]:
        return [Message(self.data, part.start, part.end) for part in self.parts(number, BYTES)]


def signed(value: int) -> int:
    """Return a varint as a signed number of 64 bits."""
    return value - (1 << 64) if value >> 63 else value


def text(data: memoryview, part: Part) -> str:
    """Return UTF-8 text for display; invalid bytes are replaced."""
    return bytes(data[part.start : part.end]).decode("utf-8", "replace")


def name(data: memoryview, part: Part) -> str:
    """Return UTF-8 text, exactly."""
    try:
        return bytes(data[part.start : part.end]).decode("utf-8")
    except UnicodeDecodeError:
        raise DamagedError("a name is not UTF-8 text", offset=part.start) from None


def unpack(data: U8, start: int) -> I64:
    """Return the varints that fill these bytes, as signed numbers; ``start`` is their offset, for errors."""
    last = np.flatnonzero(data < 0x80)
    if len(data) and (not len(last) or last[-1] != len(data) - 1):
        raise DamagedError("the message ends inside a number", offset=start + len(data))
    firsts = np.concatenate([[0], last[:-1] + 1]) if len(last) else last
    sizes = last - firsts + 1
    if len(sizes) and sizes.max() > 10:
        raise DamagedError("a number of more than 64 bits", offset=start + int(firsts[sizes.argmax()]))
    values = np.zeros(len(last), dtype=np.uint64)
    for byte in range(int(sizes.max()) if len(sizes) else 0):
        rows = np.flatnonzero(sizes > byte)
        values[rows] |= (data[firsts[rows] + byte] & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * byte)
    return values.view(np.int64)


def varint(value: int) -> bytes:
    """Return an integer in groups of 7 bits; a negative one as its 64-bit two's complement."""
    value &= _MASK
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """Return a field that is a varint."""
    return varint(field << 3 | VARINT) + varint(value)


def block(field: int, content: bytes) -> bytes:
    """Return a field with a length: bytes, text or a message."""
    return head(field, len(content)) + content


def head(field: int, size: int) -> bytes:
    """Return the bytes before the content of a field with a length."""
    return varint(field << 3 | BYTES) + varint(size)
