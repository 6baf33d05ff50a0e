"""The few parts of protobuf's wire format that the messages here need beyond the native parser."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..codecs.protobuf import block, varint
from ..errors import DecodeError

__all__ = ["block", "fields", "read_varint", "signed", "varint", "varints"]
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MASK = (1 << 64) - 1


def varints(values: Iterable[int]) -> bytes:
    return b"".join(map(varint, values))


def read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """An unsigned integer and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise DecodeError("the message ends inside a number", offset=at)
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK, at
    raise DecodeError("a number of more than 64 bits", offset=at)


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def fields(data: memoryview) -> Iterator[tuple[int, int, int, memoryview]]:
    """(number, wire type, value, bytes) of each field; the value of a varint, the bytes of any other."""
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        number, kind, value = tag >> 3, tag & 7, 0
        start = end = at
        if kind == VARINT:
            value, end = read_varint(data, at)
        elif kind == BYTES:
            size, start = read_varint(data, at)
            end = start + size
        elif kind in (FIXED64, FIXED32):
            end = at + (8 if kind == FIXED64 else 4)
        else:
            raise DecodeError(f"a field of wire type {kind}", offset=at)
        if number == 0 or end > len(data):
            raise DecodeError("a field reaches beyond the message", offset=at)
        yield number, kind, value, data[start:end]
        at = end
