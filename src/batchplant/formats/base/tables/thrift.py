"""Thrift's compact protocol, in which Parquet keeps its footer and the headers of its pages.

A structure is a dict: id → (type, value). A list is (type of its items, items). Lengths beyond the data and
nesting deeper than Parquet's are a ValueError.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

TRUE, FALSE, BYTE, INTS, DOUBLE, BINARY, LISTS, STRUCT = 1, 2, 3, (4, 5, 6), 7, 8, (9, 10), 12
MAX_DEPTH = 24

Struct = dict[int, tuple[int, Any]]


def read_struct(
    data: bytes, offset: int = 0, on_struct: tuple[int, Callable[[Struct], object]] | None = None
) -> tuple[Struct, int]:
    """Return the structure that begins at an offset, and its end.

    ``on_struct``: number of a field that is a list of structures, and a function that gets each of them as it
    is read, so that they need not be in memory at once; the list itself stays empty.
    """
    try:
        return _struct(data, offset, 0, on_struct)
    except IndexError:
        raise ValueError("it ends too early") from None


def varint(data: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[offset]
        offset += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, offset
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _struct(
    data: bytes, offset: int, depth: int, on_struct: tuple[int, Callable[[Struct], object]] | None = None
) -> tuple[Struct, int]:
    if depth > MAX_DEPTH:
        raise ValueError("its structures are nested too deep")
    struct: Struct = {}
    field = 0
    # Footers have very many values: small and common ones are read inline.
    while head := data[offset]:
        offset += 1
        kind = head & 15
        if head >> 4:
            field += head >> 4
        else:
            number, offset = varint(data, offset)
            field = (number >> 1) ^ -(number & 1)
        if 4 <= kind <= 6:
            number = data[offset]
            offset += 1
            if number > 127:
                number, offset = varint(data, offset - 1)
            struct[field] = kind, (number >> 1) ^ -(number & 1)
        elif kind == BINARY:
            size = data[offset]
            offset += 1
            if size > 127:
                size, offset = varint(data, offset - 1)
            if size > len(data) - offset:
                raise ValueError(f"{size} bytes are said to follow, and {len(data) - offset} are left")
            struct[field] = kind, data[offset : offset + size]
            offset += size
        elif on_struct is not None and field == on_struct[0] and kind in LISTS:
            struct[field] = kind, (STRUCT, [])
            _, offset = _list(data, offset, depth + 1, on_struct[1])
        else:
            value, offset = _value(data, offset, kind, depth)
            struct[field] = kind, value
    return struct, offset + 1


def _value(data: bytes, offset: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind == STRUCT:
        return _struct(data, offset, depth + 1)
    if kind in LISTS:
        return _list(data, offset, depth + 1)
    if kind in (TRUE, FALSE):
        return kind == TRUE, offset
    if kind in INTS:
        number, offset = varint(data, offset)
        return (number >> 1) ^ -(number & 1), offset
    if kind == BINARY:
        size, offset = varint(data, offset)
    elif kind in (BYTE, DOUBLE):
        size = 1 if kind == BYTE else 8
    else:
        raise ValueError(f"values of type {kind} are unknown")
    if size > len(data) - offset:
        raise ValueError(f"{size} bytes are said to follow, and {len(data) - offset} are left")
    return data[offset : offset + size], offset + size


def _list(
    data: bytes, offset: int, depth: int, take: Callable[[Struct], object] | None = None
) -> tuple[tuple[int, list[Any]], int]:
    if depth > MAX_DEPTH:
        raise ValueError("its lists are nested too deep")
    head = data[offset]
    offset += 1
    kind, count = head & 15, head >> 4
    if count == 15:
        count, offset = varint(data, offset)
    # Every item takes a byte at least.
    if count > len(data) - offset:
        raise ValueError(f"a list of {count} items in {len(data) - offset} bytes")
    # In a list a boolean is a byte of its own.
    inner = BYTE if kind in (TRUE, FALSE) else kind
    items: list[Any] = []
    if take is not None and kind != STRUCT:
        raise ValueError("a list of something else than structures")
    add = take or items.append
    for _ in range(count):
        value, offset = _value(data, offset, inner, depth)
        add(value)
    return (kind, items), offset


# -- writing ------------------------------------------------------------------------------------------------


def struct_bytes(struct: Struct) -> bytes:
    """A structure as bytes."""
    out = io.BytesIO()
    _write_struct(out, struct)
    return out.getvalue()


def _varint_bytes(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _zigzag(value: int) -> bytes:
    return _varint_bytes((value << 1) ^ (value >> 63))


def _write_struct(out: io.BytesIO, struct: Struct) -> None:
    last = 0
    for field in sorted(struct):
        kind, value = struct[field]
        if kind in (TRUE, FALSE):
            kind = TRUE if value else FALSE
        near = 0 < field - last <= 15
        out.write(bytes([(field - last) << 4 | kind]) if near else bytes([kind]) + _zigzag(field))
        _write_value(out, kind, value)
        last = field
    out.write(b"\0")


def _write_value(out: io.BytesIO, kind: int, value: Any) -> None:
    if kind in (BYTE, DOUBLE):
        out.write(value)
    elif kind in INTS:
        out.write(_zigzag(value))
    elif kind == BINARY:
        out.write(_varint_bytes(len(value)) + value)
    elif kind in LISTS:
        inner, items = value
        small = len(items) < 15
        out.write(
            bytes([len(items) << 4 | inner]) if small else bytes([0xF0 | inner]) + _varint_bytes(len(items))
        )
        for item in items:
            out.write(item) if inner in (TRUE, FALSE) else _write_value(out, inner, item)
    elif kind == STRUCT:
        _write_struct(out, value)
