"""ZIP files: members used in place or unpacked within bounds, and archives that are written as data comes.

The directory is parsed by Python's zipfile. What it says is checked against the file before it is followed,
and a member is never unpacked to more than the limit allows.
"""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ..errors import DamagedError, Problem, exceptions_as, located
from ..schema.columns import U8
from . import MappedSource, Source, Spool, limits

# Bytes that may stand before the content of a member, its name among them.
MAX_HEADER_BYTES = 512

ZIP_ERRORS = (
    zipfile.BadZipFile, NotImplementedError, struct.error, zlib.error, ValueError, EOFError, OverflowError,
    RuntimeError, OSError, IndexError,
)  # fmt: skip
# 1980-01-01, so that equal data gives equal files.
DOS_DATE = 0x21
# Sizes and offsets from here on need the 64-bit fields.
LARGE = 0xFFFFFFFF
UTF8 = 0x800
# Name of the check in a report of `verify`.
CHECKED = "CRC of every ZIP member"


class ZipMembers:
    """The members of an archive by name."""

    def __init__(self, source: Source) -> None:
        self._source = source
        with (
            exceptions_as(DamagedError, "not a ZIP file", *ZIP_ERRORS, path=source.path),
            zipfile.ZipFile(source.file()) as archive,
        ):
            infos = archive.infolist()
            self.infos = {info.filename: info for info in infos}
            self.comment = archive.comment
        self._repeated = [info for info in infos if info is not self.infos[info.filename]]
        # zipfile accepts a truncated comment.
        end = source.size - 22 - len(self.comment)
        tail = source.view(end, 22).tobytes() if end >= 0 else b""
        if tail[:4] == b"PK\5\6" and int.from_bytes(tail[20:], "little") != len(self.comment):
            raise DamagedError("the ZIP file is cut short", path=source.path, offset=source.size)

    def __contains__(self, name: str) -> bool:
        return name in self.infos

    def __iter__(self) -> Iterator[str]:
        return iter(self.infos)

    def __len__(self) -> int:
        return len(self.infos)

    def info(self, name: str) -> zipfile.ZipInfo:
        if name not in self.infos:
            raise DamagedError(f"there is no member {name}")
        return self.infos[name]

    def stored(self, name: str) -> bool:
        """Return whether the bytes of a member are stored uncompressed."""
        return self.info(name).compress_type == zipfile.ZIP_STORED

    def will_need(self, names: Iterable[str]) -> None:
        """Prefetch the headers of these members, which will be read one by one."""
        if not isinstance(self._source, MappedSource):
            starts = np.array([self.infos[name].header_offset for name in names], np.int64)
            starts = starts[starts < self._source.size]
            self._source.request(starts, np.minimum(MAX_HEADER_BYTES, self._source.size - starts))

    def start(self, name: str) -> int:
        """Return the offset of a member's bytes, after its local header."""
        member = self.info(name)
        head = self._source.view(member.header_offset, 30).tobytes()
        if head[:4] != b"PK\3\4" or member.flag_bits & 1:
            raise DamagedError(f"member {name} is damaged or encrypted", offset=member.header_offset)
        return int(member.header_offset + 30 + sum(struct.unpack("<HH", head[26:30])))

    def size(self, name: str) -> int:
        """Return the bytes of a member: stored, or claimed to unpack to."""
        member = self.info(name)
        return member.compress_size if self.stored(name) else member.file_size

    def head(self, name: str, size: int) -> U8:
        """Return the first bytes of a member."""
        if self.stored(name):
            return self._source.view(self.start(name), min(size, self.size(name)))
        member, start = self.info(name), self.start(name)
        if member.compress_type != zipfile.ZIP_DEFLATED:
            return self.view(name)[:size]
        packed = self._source.view(start, member.compress_size)
        with exceptions_as(DamagedError, f"member {name}", zlib.error, offset=start):
            return np.frombuffer(zlib.decompressobj(-15).decompress(packed.data, size), dtype=np.uint8)

    def view(self, name: str) -> U8:
        """Return the bytes of a member, mapped if it is stored uncompressed."""
        member, start = self.info(name), self.start(name)
        data = self._source.view(start, member.compress_size)
        if member.compress_type == zipfile.ZIP_STORED:
            return data
        if member.compress_type != zipfile.ZIP_DEFLATED:
            raise DamagedError(f"member {name} is compressed in an unknown way", offset=start)
        with located(offset=start):
            limits.check(f"member {name}", member.file_size, member.compress_size)
        with exceptions_as(DamagedError, f"member {name}", zlib.error, offset=start):
            # A bound of 0 would mean none.
            unpacked = zlib.decompressobj(-15).decompress(data.data, max(1, member.file_size))
        if len(unpacked) != member.file_size:
            raise DamagedError(f"member {name} is cut short", offset=start)
        return np.frombuffer(unpacked, dtype=np.uint8)

    def problems(self, path: str) -> Iterator[Problem]:
        """Yield members with a wrong CRC-32, and names that occur twice."""
        for info in self._repeated:
            yield Problem(f"two members are called {info.filename}", path, offset=info.header_offset)
        for name, member in self.infos.items():
            try:
                if zlib.crc32(self.view(name).data) != member.CRC:
                    yield Problem(f"the checksum of {name} is wrong", path, offset=member.header_offset)
            except DamagedError as error:
                yield Problem.of(error.at(path=path))


class ZipSpool:
    """Writes an archive into a spool, member after member; a second spool remembers the directory.

    Both grow only at their ends, so that a writer that resumes goes on where its spools end.
    """

    def __init__(self, file: Spool, directory: Spool) -> None:
        self._file, self._directory = file, directory

    def add(self, name: str, *parts: Any, align: int = 1, compress: bool = False) -> int:
        """Write these bytes as a member that begins at a multiple of ``align``; return its offset."""
        views = [memoryview(part) for part in parts]
        size, crc = sum(view.nbytes for view in views), 0
        for view in views:
            crc = zlib.crc32(view, crc)
        if compress:
            packer = zlib.compressobj(wbits=-15)
            views = [memoryview(b"".join([*map(packer.compress, views), packer.flush()]))]
        packed = sum(view.nbytes for view in views)
        kind = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
        label, offset = name.encode(), self._file.size
        large = max(size, packed) >= LARGE
        extra = struct.pack("<HHQQ", 1, 16, size, packed) if large else b""
        gap = -(offset + 30 + len(label) + len(extra)) % align
        if gap:
            # An extra field has four bytes of header; PyTorch pads in the same way.
            gap += align * -(-max(0, 4 - gap) // align)
            extra += struct.pack("<HH", 0x4246, gap - 4) + b"Z" * (gap - 4)
        sizes = (LARGE, LARGE) if large else (packed, size)
        version = 45 if large else 20
        head = struct.pack(
            "<4s5H3I2H", b"PK\3\4", version, UTF8, kind, 0, DOS_DATE, crc, *sizes, len(label), len(extra)
        )
        self._file.write(head + label + extra)
        start = self._file.size
        for view in views:
            if view.nbytes:
                self._file.write(view)
        line = json.dumps([name, kind, crc, packed, size, offset])
        self._directory.write(line.encode() + b"\n")
        return start

    def finish(self, comment: bytes = b"") -> None:
        """Write the central directory."""
        start, parts = self._file.size, []
        for line in self._directory.read_at(self._directory.size, 0).splitlines():
            name, kind, crc, *numbers = json.loads(line)
            packed, size, offset = numbers
            wide = [number for number in (size, packed, offset) if number >= LARGE]
            extra = struct.pack(f"<HH{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
            packed, size, offset = (min(number, LARGE) for number in numbers)
            head = struct.pack(
                "<4s6H3I5H2I", b"PK\1\2", 45, 45 if wide else 20, UTF8, kind, 0, DOS_DATE, crc, packed, size,
                len(name.encode()), len(extra), 0, 0, 0, 0, offset,
            )  # fmt: skip
            parts.append(head + name.encode() + extra)
        self._file.write(b"".join(parts))
        count = len(parts)
        size, end = self._file.size - start, self._file.size
        if count >= 0xFFFF or end >= LARGE:
            self._file.write(
                struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, start)
            )
            self._file.write(struct.pack("<4sIQI", b"PK\6\7", 0, end, 1))
        small = min(count, 0xFFFF), min(count, 0xFFFF), min(size, LARGE), min(start, LARGE), len(comment)
        self._file.write(struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, *small) + comment)
