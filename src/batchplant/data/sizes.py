"""Sizes of samples in bytes: known where their spans are, else found by reading them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..errors import DataError
from ..schema.columns import I64, column_runs
from .reader import Reader

READ_ROWS = 64


def sizes_of(reader: Reader, fields: Sequence[str], indices: I64) -> I64:
    """Return the bytes of samples; 0 for one that cannot be read."""
    try:
        sizes = known_sizes(reader, fields, indices)
        if sizes is not None:
            return sizes
    except DataError:
        pass
    parts: list[I64] = []
    for start in range(0, len(indices), READ_ROWS):
        part = indices[start : start + READ_ROWS]
        try:
            parts.append(_read_sizes(reader, fields, part))
        except DataError:
            parts.extend(_read_size(reader, fields, index) for index in part.tolist())
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def are_known(reader: Reader, fields: Sequence[str]) -> bool:
    """Return True if the sizes are known without reading samples."""
    try:
        return known_sizes(reader, fields, np.zeros(min(len(reader), 1), dtype=np.int64)) is not None
    except DataError:
        return True


def same_size(reader: Reader, fields: Sequence[str]) -> int | None:
    """Return the bytes that every sample has; None if they differ."""
    cells = [reader.schema[name].cell for name in fields]
    fixed = [cell[0].itemsize * math.prod(cell[1]) for cell in cells if cell is not None]
    return sum(fixed) if len(fixed) == len(cells) else None


def known_sizes(reader: Reader, fields: Sequence[str], indices: I64) -> I64 | None:
    """Return the bytes of samples where they are known without reading them; else None."""
    varying = [name for name in fields if reader.schema[name].cell is None]
    fixed = same_size(reader, [name for name in fields if name not in varying]) or 0
    total: I64 | None = None
    cell_sizes = reader._layout().cell_sizes if varying else None
    for name in varying:
        if cell_sizes is not None:
            sizes = cell_sizes(name, indices)
        else:
            spans = reader._spans(name, indices)
            sizes = None if spans is None else np.maximum(spans.size, 0)
        if sizes is None:
            return None
        total = sizes if total is None else np.add(total, sizes, out=total)
    if total is None:
        return np.full(len(indices), fixed, dtype=np.int64)
    return np.add(total, fixed, out=total)


def _read_sizes(reader: Reader, fields: Sequence[str], indices: I64) -> I64:
    sizes = [np.maximum(column_runs(column)[2], 0) for column in reader.read(indices, fields).values()]
    return np.sum(sizes, axis=0, dtype=np.int64)


def _read_size(reader: Reader, fields: Sequence[str], index: int) -> I64:
    try:
        return _read_sizes(reader, fields, np.array([index]))
    except DataError:
        return np.zeros(1, dtype=np.int64)
