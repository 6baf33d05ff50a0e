"""Protobuf messages as the mirror of TensorFlow reads them: fields as views, damage as a DecodeError.

The wire format itself is :mod:`batchplant.codecs.protobuf`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...codecs import protobuf
from ...codecs.protobuf import BYTES, VARINT, block, signed, varint
from ...errors import DamagedError, DecodeError

__all__ = ["BYTES", "VARINT", "block", "fields", "read_varint", "signed", "varint", "varints"]


def varints(values: Iterable[int]) -> bytes:
    """Integers one after another, as a packed field holds them."""
    return b"".join(map(varint, values))


def read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """An unsigned integer and where it ends."""
    try:
        return protobuf.read_varint(data, at, len(data))
    except DamagedError as error:
        raise DecodeError(error.message, offset=error.offset) from None


def fields(data: memoryview) -> Iterator[tuple[int, int, int, memoryview]]:
    """(number, wire type, value, bytes) of each field; the value of a varint, the bytes of any other."""
    try:
        for part in protobuf.parts(data, 0, len(data)):
            yield part.number, part.kind, part.value, data[part.start : part.end]
    except DamagedError as error:
        raise DecodeError(error.message, offset=error.offset) from None
