"""The unpacked bytes of a file of text, for one who passes over them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from ...errors import DamagedError
from ...schema.columns import I64, U8
from ...storage import Source, index, limits
from ...storage.compressed import inflate

PIECE = 4 << 20
# Rows are counted when so many bytes were unpacked, and twice as many, and so on.
COUNTED = 64 << 20


class Scanner(Protocol):
    """Common part of the native text scanners."""

    @property
    def starts(self) -> I64: ...

    def feed(self, piece: U8, base: int, final: bool) -> int: ...


class ScanEndsError(Exception):
    """Raised by a scanner that needs no more of the file."""


class Content:
    """The unpacked bytes of a file, for one who passes over them."""

    def __init__(self, source: Source, packed: bool, report: index.Report) -> None:
        self._source = source
        self._packed = packed
        self._report = report
        # Known after a pass.
        self.size = 0

    def pieces(self) -> Iterator[U8]:
        if self._packed:
            yield from inflate(self._source, "gzip", self._report)
            return
        for offset in range(0, self._source.size, PIECE):
            yield self._source.view(offset, min(PIECE, self._source.size - offset))

    def head(self, size: int) -> U8:
        """The first bytes, at least so many unless there are fewer."""
        if not self._packed:
            return self._source.view(0, min(size, self._source.size))
        head: list[U8] = [np.empty(0, dtype=np.uint8)]
        for piece in self.pieces():
            head.append(piece)
            if sum(map(len, head)) >= size:
                break
        return np.concatenate(head)

    def before(self, offset: int) -> bytes:
        """The byte before a place of a file that is not packed."""
        return self._source.view(offset - 1, 1).tobytes()

    def scan(self, scanner: Scanner, start: int) -> None:
        """Hand everything from ``start`` on to a scanner."""
        self.size = 0
        (self._scan_packed if self._packed else self._scan_plain)(scanner, start)

    def scan_again(self, scanner: Scanner, start: int) -> None:
        """Hand the bytes to a second scanner, until it raises ScanEndsError."""
        size = self.size
        try:
            self.scan(scanner, start)
        except ScanEndsError:
            pass
        finally:
            self.size = size

    def _scan_plain(self, scanner: Scanner, offset: int) -> None:
        self.size = self._source.size
        size = PIECE
        while offset < self.size:
            piece = self._source.view(offset, min(size, self.size - offset))
            final = offset + len(piece) == self.size
            used = scanner.feed(piece, offset, final)
            offset += used
            self._report(offset)
            if final:
                return
            # A long row is not looked at over and over again.
            size = max(PIECE, 2 * (len(piece) - used))
        scanner.feed(np.empty(0, dtype=np.uint8), offset, True)

    def _scan_packed(self, scanner: Scanner, start: int) -> None:
        offset, skip, waiting, have = start, start, [np.empty(0, dtype=np.uint8)], 0
        stored, looked = self._source.size, COUNTED
        for piece in self.pieces():
            self.size += len(piece)
            piece, skip = piece[skip:], max(0, skip - len(piece))
            waiting.append(piece)
            have += len(piece)
            # A long row is not looked at over and over again.
            if have <= len(waiting[0]) and len(waiting[0]) + have <= limits.allowed(stored):
                continue
            data = np.concatenate(waiting)
            used = scanner.feed(data, offset, False)
            if len(data) - used > limits.allowed(stored):
                raise DamagedError(limits.too_large("a row", None, stored), offset=offset + used)
            offset, waiting, have = offset + used, [data[used:]], 0
            if self.size >= looked:
                looked = 2 * self.size
                limits.check_rows(len(scanner.starts), stored)
        scanner.feed(np.concatenate(waiting), offset, True)


def joined(first: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    """Merge the statistics of a JSON key in the first record with those of the others."""
    dims, others = first["dims"] or later["dims"], later["dims"] or first["dims"]
    uneven = dims[1:] != others[1:]
    return {
        "name": first["name"], "classes": first["classes"] | later["classes"],
        "records": first["records"] + later["records"], "elements": first["elements"] | later["elements"],
        "dims": [-1, *dims[1:]] if dims[:1] != others[:1] else dims,
        "irregular": first["irregular"] or later["irregular"] or uneven,
        "empty": first["empty"] or later["empty"],
    }  # fmt: skip
