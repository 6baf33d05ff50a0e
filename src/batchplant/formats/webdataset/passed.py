"""Beginnings of small members, which the scan of a remote archive keeps from the bytes that pass.

The fields are told by them afterwards, and to fetch them then would be to fetch all that lies between.
"""

from __future__ import annotations

import numpy as np

from ... import _native
from ...schema import Int, Tensor
from ...schema.columns import I64, U8, starts_of
from ...storage import Source
from .layout import kind_of

# The most of a member that is kept: a number, or the header of an NPY file.
MOST = 128


class Passed(Source):
    """An archive, and the beginnings of members that are numbers or arrays."""

    def __init__(self, source: Source) -> None:
        super().__init__(source.path, source.size)
        self._source = source
        self._found: list[tuple[I64, I64, U8]] = []
        self._known: tuple[I64, I64, I64, U8] | None = None

    def add(self, piece: U8, offset: int) -> None:
        """Look at bytes that begin with a header, at this place of the archive."""
        scanner = _native.TarScanner()
        if scanner.scan(piece, self.size - offset) is not None:
            return
        found = scanner.finish()
        if found["failure"] is not None:
            return
        wanted = [
            kind_of(name.decode(errors="replace").lower()) in (Int, Tensor) for name in found["extensions"]
        ]
        chosen = np.repeat(np.array(wanted, dtype=np.bool_), np.diff(found["extension_offsets"]))
        starts, sizes = found["starts"], np.minimum(found["sizes"], MOST)
        chosen &= starts + sizes <= len(piece)
        starts, sizes = starts[chosen], sizes[chosen]
        to = starts_of(sizes)
        data = np.empty(int(to[-1]), dtype=np.uint8)
        _native.copy_runs(piece, starts, sizes, data, to[:-1])
        self._found.append((starts + offset, sizes, data))

    def _view(self, start: int, size: int) -> U8:
        return self._source.view(start, size)

    def _gather(self, starts: I64, sizes: I64, out: U8, out_starts: I64) -> None:
        if self._known is None:
            none = np.empty(0, dtype=np.int64)
            parts = list(zip(*self._found, strict=True)) or [(none,), (none,), (np.empty(0, np.uint8),)]
            begins, lengths, data = (np.concatenate(part) for part in parts)
            order = np.argsort(begins, kind="stable")
            self._known = begins[order], lengths[order], starts_of(lengths)[:-1][order], data
        begins, lengths, at, data = self._known
        row = np.minimum(np.searchsorted(begins, starts), max(len(begins) - 1, 0))
        here = np.zeros(len(starts), dtype=np.bool_)
        if len(begins):
            here = (begins[row] == starts) & (sizes <= lengths[row])
        _native.copy_runs(data, at[row[here]], sizes[here], out, out_starts[here])
        self._source.gather_into(starts[~here], sizes[~here], out, out_starts[~here])
