"""How many bytes samples have: known where their place in files is, read where nothing else tells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import DataError
from ..schema.columns import I64, column_runs
from .reader import Reader

# Samples that are read at a time.
READ_AT_ONCE = 64


def sizes_of(reader: Reader, fields: Sequence[str], indices: I64) -> I64:
    """The bytes of samples; none of one that cannot be read."""
    try:
        known = _known_sizes(reader, fields, indices)
        if known is not None:
            return known
    except DataError:
        pass
    found: list[I64] = []
    for start in range(0, len(indices), READ_AT_ONCE):
        part = indices[start : start + READ_AT_ONCE]
        try:
            found.append(_held(reader, fields, part))
        except DataError:
            found.extend(_one(reader, fields, int(index)) for index in part)
    return np.concatenate([np.zeros(0, dtype=np.int64), *found])


def are_known(reader: Reader, fields: Sequence[str]) -> bool:
    """Whether nothing has to be read to tell the sizes."""
    try:
        return _known_sizes(reader, fields, np.zeros(min(len(reader), 1), dtype=np.int64)) is not None
    except DataError:
        return True


def same_size(reader: Reader, fields: Sequence[str]) -> int | None:
    """The bytes that every sample has; None where they differ."""
    cells = [reader.schema[name].cell for name in fields]
    known = [one[0].itemsize * math.prod(one[1]) for one in cells if one is not None]
    return sum(known) if len(known) == len(cells) else None


def _known_sizes(reader: Reader, fields: Sequence[str], indices: I64) -> I64 | None:
    vary = [name for name in fields if reader.schema[name].cell is None]
    always = same_size(reader, [name for name in fields if name not in vary]) or 0
    total: I64 | None = None
    for name in vary:
        spans = reader.spans(name, indices)
        if spans is None:
            return None
        sizes: I64 = np.maximum(spans.size, 0)
        total = sizes if total is None else np.add(total, sizes, out=total)
    if total is None:
        return np.full(len(indices), always, dtype=np.int64)
    return np.add(total, always, out=total)


def _held(reader: Reader, fields: Sequence[str], indices: Any) -> I64:
    sizes = [np.maximum(column_runs(one)[2], 0) for one in reader.read(indices, fields).values()]
    found: I64 = np.sum(sizes, axis=0, dtype=np.int64)
    return found


def _one(reader: Reader, fields: Sequence[str], index: int) -> I64:
    try:
        return _held(reader, fields, [index])
    except DataError:
        return np.zeros(1, dtype=np.int64)
