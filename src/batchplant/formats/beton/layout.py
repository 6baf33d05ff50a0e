"""The structs of a .beton file, and which of FFCV's types holds a field of ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ...schema import Field, Image, Tensor
from ..base.format import Probe

FLOAT, INT, RGB, BYTES, ARRAY, JSON, TORCH, CUSTOM = 0, 1, 2, 3, 4, 5, 6, 255
HEADER = np.dtype(
    [("version", "<u2"), ("fields", "<u2"), ("page", "<u4"), ("samples", "<u8"), ("allocations", "<u8")]
)
DESCRIPTOR = np.dtype([("type", "u1"), ("name", "S16"), ("arguments", "u1", 1024)])
ALLOCATION = np.dtype([("sample", "<u8"), ("ptr", "<u8"), ("size", "<u8")])
ARRAY_ARGUMENTS = np.dtype([("shape", "<u8", 32), ("length", "<u8")])
_BLOB = np.dtype([("ptr", "<u8"), ("size", "<u8")])
MEMBERS = {
    FLOAT: np.dtype("<f8"),
    INT: np.dtype("<i8"),
    RGB: np.dtype([("mode", "u1"), ("width", "<u2"), ("height", "<u2"), ("ptr", "<u8")]),
    BYTES: _BLOB,
    ARRAY: np.dtype("<u8"),
    JSON: _BLOB,
    TORCH: np.dtype("<u8"),
}
ALLOCATING = (RGB, BYTES, ARRAY, JSON, TORCH)
JPEG, RAW = 0, 1
PAGE_LEAST, PAGE_USUAL, PAGE_END = 1 << 21, 1 << 23, 1 << 32
# Width and height are u16.
SIDE_MOST = 65535
NOTE_MAGIC = b"bpschema"
MISSING_MARK = 0xFF


def layout(field: Field) -> int:
    """FFCV's type that a field of ours is stored in."""
    if field.optional:
        return BYTES
    if isinstance(field, Tensor):
        sizes = field.cell[1] if field.cell is not None else ()
        return ARRAY if 1 <= len(sizes) <= 32 and 0 not in sizes else BYTES
    if isinstance(field, Image):
        return RGB if field.mode == "RGB" else BYTES
    return {"int": INT, "bool": INT, "float": FLOAT, "json": JSON}.get(field.kind, BYTES)


def table_dtype(types: Sequence[int]) -> np.dtype[Any]:
    return np.dtype([(f"f{number}", MEMBERS[kind]) for number, kind in enumerate(types)], align=True)


def short_names(names: Iterable[str]) -> list[bytes]:
    """FFCV's names: ASCII, at most 16 bytes, all different."""
    result: list[bytes] = []
    for name in names:
        short = name.encode("ascii", "replace").replace(b"?", b"_")[:16]
        number = 2
        while short in result:
            short = short[: 15 - len(str(number))] + f"~{number}".encode()
            number += 1
        result.append(short)
    return result


def sniff(probe: Probe) -> bool:
    """There is no magic: version, page size and every field type have to make sense."""
    head = probe.head
    if len(head) < HEADER.itemsize + DESCRIPTOR.itemsize:
        return False
    header = np.frombuffer(head[: HEADER.itemsize], dtype=HEADER)[0]
    page, fields = int(header["page"]), int(header["fields"])
    types = head[HEADER.itemsize :: DESCRIPTOR.itemsize][:fields]
    return (
        int(header["version"]) == 2
        and page >= PAGE_LEAST
        and page & (page - 1) == 0
        and fields > 0
        and HEADER.itemsize + fields * DESCRIPTOR.itemsize <= int(header["allocations"]) <= probe.size
        and all(kind <= TORCH or kind == CUSTOM for kind in types)
    )
