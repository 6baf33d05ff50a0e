"""Layout of a ``.bpindex`` file.

Layout, little-endian: ``BPIDX1\\n\\0`` (8 bytes), u32 length of the JSON that follows, u32 CRC32C of it,
the JSON, zeros up to a multiple of 64, then the arrays, each from a multiple of 64 on. The JSON::

    {"kind": "tfrecord", "version": 1,              which scanner made it, and in which layout of its own
     "stamp": {"size": …, "mtime": …, "sample": …}, what the file was like that it belongs to
     "facts": {…},                                  whatever the scanner wants to remember
     "arrays": {name: {"dtype": "<i8", "shape": […], "start": …, "crc": …}}}

``start`` counts from the first array. ``crc`` is the CRC32C of the array's bytes.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import stat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ... import _native
from ...schema import MOST_BYTES
from ...schema.columns import U8, AnyArray, as_bytes
from .. import parse_object
from ..files import open_with_status

MAGIC = b"BPIDX1\n\0"
ALIGN = 64
# No dtype that could hold a Python object.
DTYPES = ("|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f4", "<f8")
MAX_HEADER_BYTES = 16 << 20

Arrays = dict[str, AnyArray]
Facts = dict[str, Any]
Parts = list[tuple[int, U8]]


class Index:
    """Result of a scan: ``arrays`` by name, read-only, and ``facts`` as JSON.

    ``place``: the file that contains it, None if it is only in memory; ``stored``: its bytes there.
    ``built``: whether the file was scanned for it just now; ``sent``: whether it was written just now.
    ``remark``: why it is where it is.
    """

    def __init__(self, arrays: Arrays, facts: Facts, place: str | None = None, stored: int = 0) -> None:
        self.arrays = arrays
        self.facts = facts
        self.place = place
        self.stored = stored
        self.built = False
        self.sent = False
        # Whether it was made for a local copy of an object, which only the bytes can tell.
        self.copied = False
        self.remark: str | None = None

    @property
    def size(self) -> int:
        """The fact ``size``, the number of scanned bytes; ValueError if it is invalid."""
        size = self.facts["size"]
        if type(size) is not int or not 0 <= size < MOST_BYTES:
            raise ValueError(f"a size of {size!r}")
        return size

    def has(self, **dtypes: str) -> bool:
        """Return whether it has these one-dimensional arrays of these dtypes; KeyError if one is missing."""
        return all(
            self.arrays[name].ndim == 1 and self.arrays[name].dtype.str[1:] == dtype
            for name, dtype in dtypes.items()
        )


class Content(NamedTuple):
    """A file of this layout: its JSON, where its arrays begin, and all of its bytes."""

    header: Facts
    first: int
    data: U8

    def array(self, entry: Facts) -> AnyArray:
        """Return an array, in place."""
        if entry["dtype"] not in DTYPES:
            raise ValueError("it has an array of another dtype")
        dtype, size = np.dtype(entry["dtype"]), 1
        for length in entry["shape"]:
            if type(length) is not int or length < 0:
                raise ValueError("it has an array of no shape")
            size *= length
        start, size = self.first + entry["start"], size * dtype.itemsize
        if start % ALIGN or not self.first <= start <= start + size <= len(self.data):
            raise ValueError("it has an array that is not in the file")
        data = self.data[start : start + size]
        if _native.crc32c(data.data) != entry["crc"]:
            raise ValueError("it has a damaged array")
        return data.view(dtype).reshape(entry["shape"])

    def arrays(self, entries: Facts) -> Arrays:
        return {str(name): self.array(entry) for name, entry in entries.items()}


def parse(data: U8) -> Content:
    """Parse a file of this layout; ValueError and the like if it is not one."""
    head = data[:16].tobytes()
    size, crc = int.from_bytes(head[8:12], "little"), int.from_bytes(head[12:16], "little")
    if head[:8] != MAGIC or size > min(len(data) - 16, MAX_HEADER_BYTES):
        raise ValueError("it is no index")
    text = data[16 : 16 + size].tobytes()
    if _native.crc32c(text) != crc:
        raise ValueError("its header is damaged")
    return Content(parse_object(text), -(-(16 + size) // ALIGN) * ALIGN, data)


def read(path: Path) -> Content:
    """Map and parse a local file; OSError if another user may have put it there.

    It is mapped, so its owner could change offsets after they were checked. In a folder that everybody may
    write to, only files of the folder's owner, root and this user are accepted.
    """
    fd, facts = open_with_status(path)
    try:
        folder = os.stat(path.parent)
        if folder.st_mode & stat.S_IWOTH and facts.st_uid not in (os.geteuid(), 0, folder.st_uid):
            raise PermissionError(errno.EPERM, "it belongs to another user", path)
        return parse(np.frombuffer(mmap.mmap(fd, 0, access=mmap.ACCESS_READ), dtype=np.uint8))
    finally:
        os.close(fd)


def lay_out(arrays: Arrays, end: int = 0) -> tuple[Facts, Parts, int]:
    """Return the JSON entries of arrays that begin at ``end``, their starts and bytes, and the new end."""
    entries, parts = {}, []
    for name, array in arrays.items():
        data = as_bytes(array)
        start = -(-end // ALIGN) * ALIGN
        crc = _native.crc32c(data.data)
        entries[name] = {"dtype": array.dtype.str, "shape": array.shape, "start": start, "crc": crc}
        parts.append((start, data))
        end = start + len(data)
    return entries, parts, end


def packed(header: Facts, parts: Parts) -> Parts:
    """Return all parts of a file: their starts and bytes."""
    text = json.dumps(header).encode()
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError(f"the facts of the index {header['kind']} are too many; keep them in arrays")
    head = MAGIC + len(text).to_bytes(4, "little") + _native.crc32c(text).to_bytes(4, "little") + text
    first = -(-len(head) // ALIGN) * ALIGN
    return [(0, as_bytes(head)), *((first + start, data) for start, data in parts)]


def size_of(parts: Parts) -> int:
    return max(start + len(data) for start, data in parts)


def joined(parts: Parts) -> U8:
    """Return the bytes of a whole file, in memory."""
    out = np.zeros(size_of(parts), dtype=np.uint8)
    for start, data in parts:
        out[start : start + len(data)] = data
    return out
