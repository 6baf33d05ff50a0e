"""Arrays and numbers in cells of shards: behind heads that say their shapes, or bare."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ....codecs import npy
from ....codecs.infer import infer_image
from ....schema import Bytes, Field, Image, Tensor
from ....schema.columns import I64, AnyArray, Column, Ragged, as_bytes
from .runs import wrong


def bare(column: AnyArray) -> Ragged:
    """Cells of one size."""
    width = column.dtype.itemsize * math.prod(column.shape[1:])
    return Ragged(as_bytes(column), np.arange(len(column) + 1, dtype=np.int64) * width)


def zeros(field: Tensor) -> bytes:
    """The cell that stands for a missing array."""
    array = np.zeros([size or 0 for size in field.shape], field.dtype)
    return array.tobytes() if field.flat else npy.write(array)


def with_heads(field: Tensor, column: Column, head: Callable[[tuple[int, ...]], bytes]) -> Ragged:
    """The values of arrays, each behind the head of its shape."""
    inner = tuple(size or 0 for size in field.shape[1:])
    width = np.dtype(field.dtype).itemsize * math.prod(inner)
    heads: dict[tuple[int, ...], bytes] = {}
    cells = []
    for cell in column:
        assert cell is not None
        if isinstance(column, Ragged) and field.flat:
            shape, values = (cell.size // width, *inner) if field.shape else (), cell.tobytes()
        else:
            array = npy.read(cell) if isinstance(column, Ragged) else cell
            shape, values = array.shape, array.tobytes()
        if shape not in heads:
            heads[shape] = head(shape)
        cells.append(heads[shape] + values)
    return Ragged.from_cells(cells)


def check_shapes(field: Tensor, axes: tuple[int | None, ...], shapes: I64, itemsize: int, sizes: I64) -> None:
    """Compare stated shapes with the field's axes, and with the bytes of the values."""
    for axis, size in enumerate(axes):
        if size is not None:
            wrong(shapes[:, axis] != size, f"its shape does not fit {field}")
    # The product fits only into a real.
    values = np.prod(shapes.astype(np.float64), axis=1) * itemsize
    wrong(values != sizes, "its values are more or fewer than its shape says")


def without_heads(field: Tensor, cells: Ragged, heads: I64, shapes: I64) -> Ragged:
    """Arrays behind NumPy's heads, in place of those of the format."""
    arrays, dtype = [], np.dtype(field.dtype)
    for cell, head, shape in zip(cells, heads.tolist(), shapes.tolist(), strict=True):
        assert cell is not None
        arrays.append(npy.header_bytes(dtype, tuple(shape)) + cell[head:].tobytes())
    return Ragged.from_cells(arrays)


def image_of(cells: Ragged, usual: Image) -> Field:
    """The field of encoded images that the first cells tell; ``usual`` without any."""
    return (infer_image(cells) or Bytes()) if len(cells) else usual
