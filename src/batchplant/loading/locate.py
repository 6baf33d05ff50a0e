"""Where the encoded images of a batch lie in memory: in mapped files where they can, else read."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _native
from ..codecs.media import image
from ..data.reader import Reader
from ..schema.columns import I32, I64, U8, Ragged, Spans
from ..storage import MappedSource, is_remote, mapped
from ..storage.local import mapped_source
from ..storage.remote import opened

# Beyond this many files per batch that no reader has mapped, mapping each costs more than reading it.
MAPPED_FILES = 64


class Located(NamedTuple):
    """Encoded cells in memory: cell i is ``size[i]`` bytes at ``start[i]`` of ``bases[base[i]]``.

    ``shape``: (height, width, channels) of a cell that is raw pixels, zeros of an encoded file; None where
    all are encoded.
    """

    bases: list[U8]
    base: I32
    start: I64
    size: I64
    shape: I32 | None

    def cell(self, row: int) -> U8:
        base: U8 = self.bases[self.base[row]]
        return base[self.start[row] : self.start[row] + self.size[row]]

    @property
    def raw(self) -> npt.NDArray[np.bool_]:
        """Which cells are raw pixels."""
        none = np.zeros(len(self.start), dtype=np.bool_)
        return none if self.shape is None else (self.shape != 0).any(axis=1, out=none)

    def take(self, rows: I64) -> Located:
        shape = None if self.shape is None else self.shape[rows]
        start, size = (np.ascontiguousarray(one[rows]) for one in (self.start, self.size))
        return Located(self.bases, np.ascontiguousarray(self.base[rows]), start, size, shape)


class Locator:
    """Finds the cells of a reader in memory. Any thread may ask."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._maps: OrderedDict[str, U8] = OrderedDict()
        self._lock = threading.Lock()
        # Cells of files that no reader has mapped, read ahead: by field and the bytes of samples' numbers.
        self.staged: dict[tuple[str, bytes], Located] = {}

    def find(self, field: str, ids: I64) -> Located:
        staged = self.staged.get((field, ids.tobytes())) if self.staged else None
        if staged is not None:
            return staged
        spans = self._reader.spans(field, ids)
        if spans is not None and any(map(is_remote, spans.files)):
            found = _fetched(spans)
            if found is not None:
                return found
        bases = None if spans is None else self._bases(spans.files)
        if spans is not None and bases is not None:
            return _placed(spans, bases)
        column = self._reader.read(ids, [field])[field]
        assert isinstance(column, Ragged)
        start = np.ascontiguousarray(column.starts)
        return Located([column.data], np.zeros(len(ids), dtype=np.int32), start, column.sizes, column.shape)

    def _bases(self, files: Sequence[str]) -> list[U8] | None:
        """These files, mapped; None where reading the cells is better."""
        found = [mapped(path) for path in files]
        missing = sum(base is None for base in found)
        if missing > MAPPED_FILES or any(map(is_remote, files)):
            return None
        try:
            return [
                self._map(path) if base is None else base for path, base in zip(files, found, strict=True)
            ]
        except OSError:
            # A file that went away: the reader knows how to say so.
            return None

    def _map(self, path: str) -> U8:
        with self._lock:
            found = self._maps.pop(path, None)
            self._maps[path] = found = MappedSource(path).data if found is None else found
            # Those used last stay; in a folder of a million images, each is a file.
            while len(self._maps) > 2 * MAPPED_FILES:
                self._maps.popitem(last=False)
            return found


def _placed(spans: Spans, bases: list[U8]) -> Located:
    """Cells in mapped files, or in what was read of them ahead."""
    base, start = spans.file, spans.start
    for number, path in enumerate(spans.files):
        source = mapped_source(path)
        if source is None or not source.staged:
            continue
        if base is spans.file:
            base, start = base.copy(), start.copy()
        own = np.flatnonzero(spans.file == number)
        for memory, rows, places in source.staged.parts(spans.start[own], spans.size[own]):
            base[own[rows]], start[own[rows]] = len(bases), places
            bases.append(memory)
    return Located(bases, base, start, spans.size, spans.shape)


def _fetched(spans: Spans) -> Located | None:
    """Cells of remote files in the blocks that were fetched; None where no reader has one of them open."""
    sources = {number: opened(spans.files[number]) for number in np.unique(spans.file).tolist()}
    bases: list[U8] = []
    base, start = np.zeros(len(spans), dtype=np.int32), np.zeros(len(spans), dtype=np.int64)
    for number, source in sources.items():
        rows = np.flatnonzero(spans.file == number)
        starts, sizes = spans.start[rows], spans.size[rows]
        if source is None or source.outside(starts, sizes.clip(0)) is not None:
            return None
        arrays, which, places = source.locate(starts, sizes)
        base[rows], start[rows] = which + len(bases), places
        bases += arrays
    return Located(bases, base, start, spans.size, spans.shape)


def sizes_of(cells: Located) -> I32:
    """(height, width) of every image; zeros where the header tells none."""
    raw = cells.raw
    all_raw = bool(raw.all())
    sizes = _native.prefetch_images(cells.bases, cells.base, cells.start, cells.size, headers=not all_raw)
    if cells.shape is not None:
        if all_raw:
            return cells.shape[:, :2].copy()
        sizes[raw] = cells.shape[raw, :2]
    return sizes


def turns_of(cells: Located) -> U8:
    """EXIF's orientation of every image; 1 for raw pixels."""
    found = np.ones(len(cells.start), dtype=np.uint8)
    for row in np.flatnonzero(~cells.raw).tolist():
        found[row] = image.orientation(cells.cell(row))
    return found
