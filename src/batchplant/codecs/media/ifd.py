"""Directories of TIFF files, which EXIF data are too: tags and their values, read and written.

Values are little-endian, whatever the file's byte order is. What points outside of the bytes is left out.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator
from typing import Any, NamedTuple

import numpy as np

# Bytes of one value, and of the numbers it is made of, by type.
SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}
UNITS = {**SIZES, 5: 4, 10: 4}
_LETTERS = {1: "B", 3: "H", 4: "I", 6: "b", 8: "h", 9: "i", 13: "I"}
ASCII, SHORT, LONG, UNDEFINED = 2, 3, 4, 7
ORIENTATION = 274
ICC = 34675
# Tags whose value is the place of another directory: EXIF, GPS, interoperability.
SUBDIRECTORIES = (34665, 34853, 40965)
# Tags of the layout of pixels in one file; they are not carried into another.
STRUCTURE = frozenset(
    tag
    for first, last in (
        (254, 259), (262, 263), (266, 266), (273, 273), (277, 281), (284, 284), (288, 293), (297, 297),
        (301, 301), (317, 325), (330, 334), (336, 347), (512, 532), (700, 700), (32997, 32998), (ICC, ICC),
        (50838, 50839),
    )
    for tag in range(first, last + 1)
)  # fmt: skip


class Value(NamedTuple):
    """The type of a tag's values, and their bytes."""

    kind: int
    data: bytes

    def numbers(self) -> list[int]:
        """As whole numbers; empty where they are none."""
        if self.kind not in _LETTERS:
            return []
        return list(struct.unpack(f"<{len(self.data) // UNITS[self.kind]}{_LETTERS[self.kind]}", self.data))


Directory = dict[int, "Value | Directory"]


def order_of(data: Any) -> str | None:
    """struct's sign of the byte order; None where this is no TIFF."""
    return {b"II*\0": "<", b"MM\0*": ">"}.get(bytes(data[:4])) if len(data) >= 8 else None


def first_offset(data: Any, order: str) -> int:
    return int(struct.unpack_from(order + "I", data, 4)[0])


def entries(data: Any, offset: int, order: str) -> Iterator[tuple[int, int, int, int, int]]:
    """(tag, type, count, offset of the entry, offset of the value), of values inside the data."""
    if not 8 <= offset <= len(data) - 2:
        return
    (count,) = struct.unpack_from(order + "H", data, offset)
    for entry in range(offset + 2, min(offset + 2 + 12 * count, len(data) - 11), 12):
        tag, kind, values = struct.unpack_from(order + "HHI", data, entry)
        size = SIZES.get(kind, 0) * values
        value_offset = entry + 8 if size <= 4 else struct.unpack_from(order + "I", data, entry + 8)[0]
        if size and value_offset + size <= len(data):
            yield tag, kind, values, entry, value_offset


def next_offset(data: Any, offset: int, order: str) -> int:
    """The place of the directory that follows; 0 where there is none."""
    if not 8 <= offset <= len(data) - 2:
        return 0
    end = offset + 2 + 12 * struct.unpack_from(order + "H", data, offset)[0]
    return int(struct.unpack_from(order + "I", data, end)[0]) if end + 4 <= len(data) else 0


def read(
    data: Any, offset: int, order: str, tags: Container[int] | None = None, max_bytes: int = 1 << 30
) -> Directory:
    """The directory at a place with those below it; only some tags where they are named.

    All values together have at most ``max_bytes`` bytes: entries may point to the same bytes again and again.
    """
    return _read(data, offset, order, tags, [min(max_bytes, len(data))], 0)


def _read(
    data: Any, offset: int, order: str, tags: Container[int] | None, budget: list[int], depth: int
) -> Directory:
    directory: Directory = {}
    for tag, kind, count, _, where in entries(data, offset, order):
        if (tags is not None and tag not in tags) or tag in directory:
            continue
        size = SIZES[kind] * count
        budget[0] -= size
        if budget[0] < 0:
            break
        if tag in SUBDIRECTORIES and kind in (LONG, 13) and depth < 3:
            below = struct.unpack_from(order + "I", data, where)[0]
            directory[tag] = _read(data, below, order, None, budget, depth + 1)
            continue
        raw = bytes(data[where : where + size])
        if order == ">" and UNITS[kind] > 1:
            raw = np.frombuffer(raw, f">u{UNITS[kind]}").astype(f"<u{UNITS[kind]}").tobytes()
        directory[tag] = Value(kind, raw)
    return directory


def write(directory: Directory, offset: int) -> bytes:
    """The bytes of a directory and of those below it, to stand at a place of a little-endian file."""
    fixed = 2 + 12 * len(directory) + 4
    table = [struct.pack("<H", len(directory))]
    payloads: list[bytes] = []
    used = offset + fixed

    def put(data: bytes) -> int:
        nonlocal used
        position = used
        data += b"\0" * (len(data) % 2)
        payloads.append(data)
        used += len(data)
        return position

    for tag in sorted(directory):
        value = directory[tag]
        if not isinstance(value, Value):
            table.append(struct.pack("<HHII", tag, LONG, 1, put(write(value, used))))
        elif len(value.data) <= 4:
            count = len(value.data) // SIZES[value.kind]
            table.append(struct.pack("<HHI", tag, value.kind, count) + value.data.ljust(4, b"\0"))
        else:
            count = len(value.data) // SIZES[value.kind]
            table.append(struct.pack("<HHII", tag, value.kind, count, put(value.data)))
    return b"".join([*table, bytes(4), *payloads])
