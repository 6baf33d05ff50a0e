"""The side-car of checksums, ``NAME.crc``, for formats that have none of their own.

Layout: ``BPCRC1\\n\\0`` (8 bytes), u32 length of the JSON that follows, the JSON ``{"fields": […]}``, then
per sample one u32 for each field: the CRC32C of the cell's bytes (0 for a missing cell). Little-endian.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from . import _native
from .columns import Columns, column_runs
from .errors import DamagedError

SUFFIX = ".crc"
SIDE_CAR = "{name}" + SUFFIX
MAGIC = b"BPCRC1\n\0"

Sums = npt.NDArray[np.uint32]


def of_columns(fields: Iterable[str], columns: Columns) -> Sums:
    """The checksum of every cell: one row per sample, one column per field."""
    sums = []
    for name in fields:
        data, starts, sizes = column_runs(columns[name])
        sums.append(_native.crc32c_runs(data, starts, np.maximum(sizes, 0)))
    return np.ascontiguousarray(np.stack(sums, axis=1)) if sums else np.empty((0, 0), np.uint32)


def header(fields: Sequence[str]) -> bytes:
    text = json.dumps({"fields": list(fields)}).encode()
    return MAGIC + len(text).to_bytes(4, "little") + text


def load(path: str) -> tuple[list[str], Sums] | None:
    """The fields and checksums beside a dataset; None where there is no side-car."""
    name = path.rstrip("/") + SUFFIX
    if "://" in path or not os.path.isfile(name):
        return None
    data = Path(name).read_bytes()
    try:
        if data[:8] != MAGIC:
            raise ValueError("it is no side-car of checksums")
        start = 12 + int.from_bytes(data[8:12], "little")
        fields = [str(one) for one in json.loads(data[12:start])["fields"]]
        sums = np.frombuffer(data, dtype="<u4", offset=start).reshape(-1, max(1, len(fields)))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(f"the checksums cannot be read: {error}", path=name) from None
    return fields, sums
