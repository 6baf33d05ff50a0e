"""The side-car of checksums, ``NAME.crc``.

Layout, little-endian: ``BPCRC2\\n\\0`` (8 bytes); u32 length of the JSON that follows; the JSON
``{"fields": […], "schema": […]}``; per sample one u32 for each field; u64 number of samples; u32 CRC-32C of
all bytes before it.

The number of a cell is the CRC-32C of its bytes, and of raw pixels also of height, width and channels (three
i32) behind them; that of a missing cell is 0xFFFFFFFF. ``schema`` is the one that the file is opened with. It
is left out where the format keeps none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from .. import _native
from ..errors import DamagedError, SchemaError, exceptions_as
from ..schema import Schema
from ..schema.columns import Columns, Ragged, column_runs
from . import NOTE_ERRORS, like, open_source, parse_object, tree

SUFFIX = ".crc"
SIDE_CAR = "{name}" + SUFFIX
MAGIC = b"BPCRC2\n\0"
MISSING = 0xFFFFFFFF
END = 12
PIECE = 4 << 20

Sums = npt.NDArray[np.uint32]


class Checksums(NamedTuple):
    """Content of a side-car. ``schema``: that of the dataset, if it is stored."""

    fields: list[str]
    sums: Sums
    schema: Schema | None = None


class Growing(Protocol):
    """A file that is being written."""

    size: int

    def write(self, data: bytes) -> None: ...
    def read_at(self, size: int, offset: int) -> bytes: ...


def of_columns(fields: Iterable[str], columns: Columns) -> Sums:
    """Return the checksum of every cell: one row per sample, one column per field."""
    sums = []
    for name in fields:
        column = columns[name]
        data, starts, sizes = column_runs(column)
        crcs = _native.crc32c_runs(data, starts, np.maximum(sizes, 0))
        if isinstance(column, Ragged) and column.shape is not None:
            shapes = np.ascontiguousarray(column.shape, dtype="<i4")
            for row in np.flatnonzero(column.raw).tolist():
                crcs[row] = _native.crc32c(shapes[row].tobytes(), int(crcs[row]))
        crcs[sizes < 0] = MISSING
        sums.append(crcs)
    return np.ascontiguousarray(np.stack(sums, axis=1)) if sums else np.empty((columns.rows, 0), np.uint32)


def header(fields: Sequence[str], schema: Schema | None = None) -> bytes:
    """Return the first bytes of the file: magic and JSON header."""
    content = {"fields": list(fields)} | ({} if schema is None else {"schema": schema.to_json()})
    text = json.dumps(content).encode()
    return MAGIC + len(text).to_bytes(4, "little") + text


def finish(file: Growing, samples: int, crc: int = 0) -> None:
    """Write the end of the file: the number of samples, and the checksum of all bytes before it.

    ``crc``: that of the bytes which come before this file.
    """
    file.write(samples.to_bytes(8, "little"))
    for offset in range(0, file.size, PIECE):
        crc = _native.crc32c(file.read_at(min(PIECE, file.size - offset), offset), crc)
    file.write(int(crc).to_bytes(4, "little"))


def grow(path: Path, file: Growing, added: int) -> int:
    """Complete the rows of ``added`` samples that go behind those of a side-car; return their offset in it.

    The old rows are not read again: their checksum follows from that of the file and its last bytes.
    """
    with open(path, "rb") as old:
        if old.read(8) != MAGIC:
            raise ValueError("they have another layout; write them anew")
        insert_offset = old.seek(-END, os.SEEK_END)
        end = old.read(END)
    samples = int.from_bytes(end[:8], "little") + added
    finish(file, samples, _shortened(int.from_bytes(end[8:], "little"), end[:8]))
    return insert_offset


def _shortened(crc: int, last: bytes) -> int:
    """Return the CRC-32C of bytes, given that of the same bytes followed by ``last``."""
    # Each value of the table's high byte occurs once, so every step can be undone.
    table = [_native.crc32c(bytes([n]), 0xFFFFFFFF) ^ 0xFFFFFFFF for n in range(256)]
    index_of_high_byte = {entry >> 24: n for n, entry in enumerate(table)}
    state = crc ^ 0xFFFFFFFF
    for byte in reversed(last):
        index = index_of_high_byte[state >> 24]
        state = ((state ^ table[index]) << 8 & 0xFFFFFFFF) | (index ^ byte)
    return state ^ 0xFFFFFFFF


def load(path: str) -> Checksums | None:
    """Return the checksums beside a dataset; None if there is no side-car."""
    name = like(path, path.rstrip("/") + SUFFIX)
    if not tree.exists(name):
        return None
    source = open_source(name)
    with exceptions_as(DamagedError, "the checksums cannot be read", *NOTE_ERRORS, SchemaError, path=name):
        return _parse(source.view(0, source.size).data)


def _parse(data: memoryview) -> Checksums:
    if data[:8] != MAGIC:
        raise ValueError("it is no side-car of checksums")
    start, end = 12 + int.from_bytes(data[8:12], "little"), len(data) - END
    if start > end or _native.crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise ValueError("it is cut short, or changed since it was written")
    content = parse_object(data[12:start])
    fields = [str(name) for name in content["fields"]]
    schema = Schema.from_json(content["schema"]) if "schema" in content else None
    sums = np.frombuffer(data[:end], dtype="<u4", offset=start).reshape(-1, max(1, len(fields)))
    if int.from_bytes(data[end:-4], "little") != len(sums):
        raise ValueError(f"it has {len(sums)} rows, and not as many as it says")
    return Checksums(fields, sums, schema)
