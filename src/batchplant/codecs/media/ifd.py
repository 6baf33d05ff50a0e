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
FOLDERS = (34665, 34853, 40965)
# What says how the pixels are stored. It belongs to one file and is not carried into another.
STRUCTURE = frozenset(
    one
    for first, last in (
        (254, 259), (262, 263), (266, 266), (273, 273), (277, 281), (284, 284), (288, 293), (297, 297),
        (301, 301), (317, 325), (330, 334), (336, 347), (512, 532), (700, 700), (32997, 32998), (ICC, ICC),
        (50838, 50839),
    )
    for one in range(first, last + 1)
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


def entries(data: Any, at: int, order: str) -> Iterator[tuple[int, int, int, int, int]]:
    """(tag, type, count, place of the entry, place of the value) of a directory, values inside the data."""
    if not 8 <= at <= len(data) - 2:
        return
    (count,) = struct.unpack_from(order + "H", data, at)
    for place in range(at + 2, min(at + 2 + 12 * count, len(data) - 11), 12):
        tag, kind, values = struct.unpack_from(order + "HHI", data, place)
        size = SIZES.get(kind, 0) * values
        where = place + 8 if size <= 4 else struct.unpack_from(order + "I", data, place + 8)[0]
        if size and where + size <= len(data):
            yield tag, kind, values, place, where


def next_offset(data: Any, at: int, order: str) -> int:
    """The place of the directory that follows; 0 where there is none."""
    if not 8 <= at <= len(data) - 2:
        return 0
    end = at + 2 + 12 * struct.unpack_from(order + "H", data, at)[0]
    return int(struct.unpack_from(order + "I", data, end)[0]) if end + 4 <= len(data) else 0


def read(
    data: Any, at: int, order: str, tags: Container[int] | None = None, most: int = 1 << 30
) -> Directory:
    """The directory at a place with those below it; only some tags where they are named.

    All values together have at most ``most`` bytes: entries may point to the same bytes again and again.
    """
    return _read(data, at, order, tags, [min(most, len(data))], 0)


def _read(
    data: Any, at: int, order: str, tags: Container[int] | None, left: list[int], depth: int
) -> Directory:
    found: Directory = {}
    for tag, kind, count, _, where in entries(data, at, order):
        if (tags is not None and tag not in tags) or tag in found:
            continue
        size = SIZES[kind] * count
        left[0] -= size
        if left[0] < 0:
            break
        if tag in FOLDERS and kind in (LONG, 13) and depth < 3:
            below = struct.unpack_from(order + "I", data, where)[0]
            found[tag] = _read(data, below, order, None, left, depth + 1)
            continue
        raw = bytes(data[where : where + size])
        if order == ">" and UNITS[kind] > 1:
            raw = np.frombuffer(raw, f">u{UNITS[kind]}").astype(f"<u{UNITS[kind]}").tobytes()
        found[tag] = Value(kind, raw)
    return found


def write(directory: Directory, at: int) -> bytes:
    """The bytes of a directory and of those below it, to stand at a place of a little-endian file."""
    fixed = 2 + 12 * len(directory) + 4
    table = [struct.pack("<H", len(directory))]
    rest: list[bytes] = []
    used = at + fixed

    def put(data: bytes) -> int:
        nonlocal used
        place = used
        data += b"\0" * (len(data) % 2)
        rest.append(data)
        used += len(data)
        return place

    for tag in sorted(directory):
        one = directory[tag]
        if not isinstance(one, Value):
            table.append(struct.pack("<HHII", tag, LONG, 1, put(write(one, used))))
        elif len(one.data) <= 4:
            count = len(one.data) // SIZES[one.kind]
            table.append(struct.pack("<HHI", tag, one.kind, count) + one.data.ljust(4, b"\0"))
        else:
            count = len(one.data) // SIZES[one.kind]
            table.append(struct.pack("<HHII", tag, one.kind, count, put(one.data)))
    return b"".join([*table, bytes(4), *rest])
