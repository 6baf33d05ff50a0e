"""Directories of a TIFF file, classic or BigTIFF: tags, and the chain of pages. Sizes are checked first."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from ....codecs.media.tiff import MAX_PAGES
from ....errors import DamagedError, SchemaError
from ....schema.columns import AnyArray
from ....storage import Source

SUBFILE_TYPE, DESCRIPTION, SUB_IFDS = 254, 270, 330
CODES = {
    1: "u1", 2: "u1", 3: "u2", 4: "u4", 5: "u4", 6: "i1", 7: "u1", 8: "i2", 9: "i4", 10: "i4", 11: "f4",
    12: "f8", 13: "u4", 16: "u8", 17: "i8", 18: "u8",
}  # fmt: skip
RATIONALS = (5, 10)
MAX_TAGS, MAX_VALUES, MAX_TEXT = 4096, 1 << 16, 64 << 20
# Directories that overlap could be read without end: a tag has 12 bytes, and is read a few times.
TAG_BYTES, READS, MAX_READ_TAGS = 12, 4, 1 << 22


class Directory:
    """Tags of a page. Values that lie elsewhere in the file are read when they are asked for."""

    def __init__(self, file: TiffFile, offset: int) -> None:
        self.offset, self._file = offset, file
        source, order = file.source, file.order
        code, width, number = ("Q", 20, "Q") if file.big else ("H", 12, "I")
        start = offset + struct.calcsize(order + code)
        (count,) = struct.unpack(order + code, source.view(offset, start - offset).tobytes())
        file.tags_left -= count
        if not 0 < count <= MAX_TAGS or file.tags_left < 0:
            raise DamagedError(f"a directory claims {count} tags", offset=offset)
        end = start + width * count
        table = source.view(start, end - start + struct.calcsize(number)).tobytes()
        self._tags: dict[int, tuple[int, int, int]] = {}
        for place in range(0, width * count, width):
            tag, kind, values = struct.unpack_from(f"{order}HH{number}", table, place)
            inline = place + 4 + struct.calcsize(number)
            size = values * np.dtype(CODES.get(kind, "u1")).itemsize * (1 + (kind in RATIONALS))
            where = start + inline
            if size > struct.calcsize(number):
                (where,) = struct.unpack_from(order + number, table, inline)
            if kind in CODES:
                self._tags.setdefault(tag, (kind, values, where))
        (self.next,) = struct.unpack_from(order + number, table, width * count)

    def __contains__(self, tag: int) -> bool:
        return tag in self._tags

    def values(self, tag: int, most: int = MAX_VALUES) -> AnyArray:
        """Return the values of a tag; none where it is missing, DamagedError for more than ``most``."""
        kind, count, where = self._tags.get(tag, (1, 0, 0))
        if count > most:
            raise DamagedError(
                f"the tag {tag} has {count} values, and at most {most} are needed", offset=where
            )
        dtype = np.dtype(self._file.order + CODES[kind])
        count *= 1 + (kind in RATIONALS)
        if not count:
            return np.empty(0, dtype.newbyteorder("="))
        data = self._file.source.view(where, count * dtype.itemsize)
        return np.frombuffer(data.tobytes(), dtype).astype(dtype.newbyteorder("="))

    def read(self, start: int, size: int) -> bytes:
        """Return bytes of the file."""
        return self._file.source.view(start, size).tobytes()

    def number(self, tag: int, default: int) -> int:
        """Return the first value of a tag as a whole number."""
        kind, count, where = self._tags.get(tag, (1, 0, 0))
        if not count or kind in (*RATIONALS, 11, 12):
            return default
        size = np.dtype(CODES[kind]).itemsize
        return int(
            np.frombuffer(self._file.source.view(where, size).tobytes(), self._file.order + CODES[kind])[0]
        )

    def text(self, tag: int) -> str:
        return (
            self.values(tag, MAX_TEXT).astype(np.uint8).tobytes().split(b"\0")[0].decode("utf-8", "replace")
        )


class TiffFile:
    """The header of a file, and its directories."""

    def __init__(self, source: Source) -> None:
        head = source.view(0, min(16, source.size)).tobytes()
        self.source = source
        self.tags_left = min(READS * (source.size // TAG_BYTES) + MAX_TAGS, MAX_READ_TAGS)
        self.order: Any = {b"II": "<", b"MM": ">"}.get(head[:2], "")
        version = int.from_bytes(head[2:4], "big" if self.order == ">" else "little")
        self.big = version == 43
        if not self.order or version not in (42, 43) or len(head) < (16 if self.big else 8):
            raise DamagedError("not a TIFF that can be read: its header is no TIFF's", offset=0)
        if not self.big and source.size >> 32:
            raise SchemaError("a TIFF above 4 GiB has to be a BigTIFF; NDPI of that size is not read")
        if self.big and head[4:8] != struct.pack(self.order + "HH", 8, 0):
            raise DamagedError("not a TIFF that can be read: offsets have another size than 8", offset=4)
        (self._first,) = struct.unpack(
            self.order + ("Q" if self.big else "I"), head[8:16] if self.big else head[4:8]
        )

    def pages(self) -> Iterator[Directory]:
        """Yield the directories of the chain; DamagedError where it leads back or is too long."""
        seen: set[int] = set()
        offset = self._first
        while offset:
            if offset in seen or len(seen) == MAX_PAGES:
                raise DamagedError("its pages have no end", offset=offset)
            seen.add(offset)
            page = Directory(self, offset)
            yield page
            offset = page.next
        if not seen:
            raise DamagedError("not a TIFF that can be read: it has no pages", offset=4)

    def below(self, page: Directory) -> list[Directory]:
        """Return the directories that a page names as its own: levels of a pyramid."""
        offsets = page.values(SUB_IFDS).tolist()
        if len(offsets) > MAX_PAGES or len(set(offsets)) < len(offsets):
            raise DamagedError(f"a page names {len(offsets)} levels", offset=page.offset)
        return [Directory(self, int(offset)) for offset in offsets]
