"""Columns of an Arrow file whose cells can be used where they lie."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...codecs.arrow import pyarrow, storage
from ...codecs.arrow.types import is_file_struct, is_list
from ...schema import Audio, Bool, Bytes, Field, Float, Image, Int, Json, Tensor, Text, Video
from ...schema.columns import I64
from ..base.ipc.layout import Batch, tree_size


@dataclasses.dataclass(frozen=True)
class Shape:
    """Layout of a column: cells of ``width`` bytes each, or runs with offsets of ``offset`` bytes that count
    units of ``width``. ``nodes``: what may have missing values; ``values`` and ``offsets`` are buffers."""

    nodes: tuple[int, ...]
    values: int
    width: int
    offsets: int | None = None
    offset: int = 0


@dataclasses.dataclass(frozen=True)
class Places:
    """Locations of a column's cells in the file, batch by batch."""

    shape: Shape
    values: I64
    sizes: I64
    offsets: I64 | None


def shape_of(field: Field, kind: Any, first: tuple[int, int]) -> Shape | None:
    """Return the layout of a field's cells in a column of this type; None if they have to be decoded.

    ``first``: the numbers of the column's first node and buffer.
    """
    node, buffer = first
    nodes = tuple(range(node, node + tree_size(kind)[0]))
    if isinstance(field, Bytes | Text | Json | Image | Audio | Video):
        return _bytes_shape(field, kind, nodes, buffer)
    if isinstance(field, Bool) or (isinstance(field, Int | Float) and field.optional):
        return None
    if isinstance(field, Int | Float):
        # Dates and times of day have 32 bits in Arrow, times of another unit other counts.
        same = kind == storage(field) and kind.bit_width == 8 * np.dtype(field.dtype).itemsize
        return Shape(nodes, buffer + 1, np.dtype(field.dtype).itemsize) if same else None
    return _tensor_shape(field, kind, nodes, buffer) if isinstance(field, Tensor) else None


def _bytes_shape(field: Field, kind: Any, nodes: tuple[int, ...], buffer: int) -> Shape | None:
    types = pyarrow().types
    if is_file_struct(kind):
        number = [field.name for field in kind].index("bytes")
        before = tree_size(kind.field(0).type) if number else (0, 0)
        if before[1] is None:
            return None
        inside = (nodes[0], nodes[1 + before[0]])
        return _bytes_shape(field, kind.field("bytes").type, inside, buffer + 1 + before[1])
    text = isinstance(field, Text | Json)
    if types.is_large_string(kind) if text else types.is_large_binary(kind):
        return Shape(nodes, buffer + 2, 1, buffer + 1, 8)
    if types.is_string(kind) if text else types.is_binary(kind):
        return Shape(nodes, buffer + 2, 1, buffer + 1, 4)
    return None


def _tensor_shape(field: Tensor, kind: Any, nodes: tuple[int, ...], buffer: int) -> Shape | None:
    pa = pyarrow()
    dtype = np.dtype(field.dtype)
    if dtype.kind not in "iuf" or dtype.itemsize > 8 or field.optional:
        return None
    if field.shape and not is_list(field):
        return None
    offsets, wide = None, 0
    for size in field.shape:
        if size is None and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            offsets, wide = buffer + 1, 8 if pa.types.is_large_list(kind) else 4
            buffer += 2
        elif size is not None and pa.types.is_fixed_size_list(kind) and kind.list_size == size:
            buffer += 1
        else:
            return None
        kind = kind.value_type
    if kind != pa.from_numpy_dtype(dtype):
        return None
    width = dtype.itemsize * math.prod(size for size in field.shape if size is not None)
    return Shape(nodes, buffer + 1, width, offsets, wide)


def places_of(shape: Shape, batches: Sequence[Batch]) -> Places | None:
    """Locate the cells in these batches; None if some are missing, compressed or incomplete."""
    values, sizes, offsets = (np.zeros(len(batches), dtype=np.int64) for _ in range(3))
    for number, batch in enumerate(batches):
        if batch.packed or shape.values >= len(batch.buffers) or max(shape.nodes) >= len(batch.nulls):
            return None
        if batch.nulls[list(shape.nodes)].any():
            return None
        body = batch.message.body
        start, size = (int(part) for part in batch.buffers[shape.values])
        values[number], sizes[number] = body + start, size
        if shape.offsets is None:
            if size < batch.rows * shape.width:
                return None
            continue
        start, size = (int(part) for part in batch.buffers[shape.offsets])
        offsets[number] = body + start
        if batch.rows and size < (batch.rows + 1) * shape.offset:
            return None
    if shape.offsets is None:
        return Places(shape, values, sizes, None)
    # Offsets are looked up in the mapping as numbers.
    return None if (offsets % shape.offset).any() else Places(shape, values, sizes, offsets)
