"""Encoded images of a batch in memory: in mapped files and fetched blocks if possible, else read."""

from __future__ import annotations

import numpy as np

from .. import _native
from ..codecs.media import image
from ..data.reader import Reader
from ..schema.columns import I32, I64, U8
from ..storage.spans import Located


def locate(reader: Reader, field: str, ids: I64) -> Located:
    """Locate the cells of a field in memory. Any thread may ask."""
    spans = reader.spans(field, ids)
    located = None if spans is None else spans.locate()
    if located is not None:
        return located
    column = reader.read(ids, [field]).ragged(field)
    start = np.ascontiguousarray(column.starts)
    return Located([column.data], np.zeros(len(ids), dtype=np.int32), start, column.sizes, column.shape)


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
    turns = np.ones(len(cells.start), dtype=np.uint8)
    for row in np.flatnonzero(~cells.raw).tolist():
        turns[row] = image.orientation(cells.cell(row))
    return turns
