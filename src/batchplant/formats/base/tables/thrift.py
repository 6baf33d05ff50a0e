"""Thrift's compact protocol, in which Parquet keeps its footer and the headers of its pages.

A structure is a dict here: id → (type, value). A list is (type of its items, items). Nothing is believed:
what leads out of the bytes, or is nested deeper than anything that Parquet has, is a ValueError.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

TRUE, FALSE, BYTE, INTS, DOUBLE, BINARY, LISTS, STRUCT = 1, 2, 3, (4, 5, 6), 7, 8, (9, 10), 12
DEEPEST = 24

Struct = dict[int, tuple[int, Any]]


def read_struct(
    data: bytes, at: int = 0, each: tuple[int, Callable[[Struct], object]] | None = None
) -> tuple[Struct, int]:
    """The structure that begins at a place, and where it ends.

    ``each``: the number of a field that is a list of structures, and what is given each of them as it is
    read, so that they need not all be there at once; the list itself stays empty.
    """
    try:
        return _struct(data, at, 0, each)
    except IndexError:
        raise ValueError("it ends too early") from None


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _struct(
    data: bytes, at: int, depth: int, each: tuple[int, Callable[[Struct], object]] | None = None
) -> tuple[Struct, int]:
    if depth > DEEPEST:
        raise ValueError("its structures are nested too deep")
    found: Struct = {}
    field = 0
    # Footers have very many values: what is small and common is read right here.
    while head := data[at]:
        at += 1
        kind = head & 15
        if head >> 4:
            field += head >> 4
        else:
            number, at = varint(data, at)
            field = (number >> 1) ^ -(number & 1)
        if 4 <= kind <= 6:
            number = data[at]
            at += 1
            if number > 127:
                number, at = varint(data, at - 1)
            found[field] = kind, (number >> 1) ^ -(number & 1)
        elif kind == BINARY:
            size = data[at]
            at += 1
            if size > 127:
                size, at = varint(data, at - 1)
            if size > len(data) - at:
                raise ValueError(f"{size} bytes are said to follow, and {len(data) - at} are left")
            found[field] = kind, data[at : at + size]
            at += size
        elif each is not None and field == each[0] and kind in LISTS:
            found[field] = kind, (STRUCT, [])
            _, at = _list(data, at, depth + 1, each[1])
        else:
            value, at = _value(data, at, kind, depth)
            found[field] = kind, value
    return found, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind == STRUCT:
        return _struct(data, at, depth + 1)
    if kind in LISTS:
        return _list(data, at, depth + 1)
    if kind in (TRUE, FALSE):
        return kind == TRUE, at
    if kind in INTS:
        number, at = varint(data, at)
        return (number >> 1) ^ -(number & 1), at
    if kind == BINARY:
        size, at = varint(data, at)
    elif kind in (BYTE, DOUBLE):
        size = 1 if kind == BYTE else 8
    else:
        raise ValueError(f"values of type {kind} are unknown")
    if size > len(data) - at:
        raise ValueError(f"{size} bytes are said to follow, and {len(data) - at} are left")
    return data[at : at + size], at + size


def _list(
    data: bytes, at: int, depth: int, take: Callable[[Struct], object] | None = None
) -> tuple[tuple[int, list[Any]], int]:
    if depth > DEEPEST:
        raise ValueError("its lists are nested too deep")
    head = data[at]
    at += 1
    kind, count = head & 15, head >> 4
    if count == 15:
        count, at = varint(data, at)
    # Every item takes a byte at least.
    if count > len(data) - at:
        raise ValueError(f"a list of {count} items in {len(data) - at} bytes")
    # In a list a truth is a byte of its own.
    inner = BYTE if kind in (TRUE, FALSE) else kind
    items: list[Any] = []
    if take is not None and kind != STRUCT:
        raise ValueError("a list of something else than structures")
    add = take or items.append
    for _ in range(count):
        value, at = _value(data, at, inner, depth)
        add(value)
    return (kind, items), at


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
