"""Cells of shards: arrays and numbers, behind heads that say their shapes or bare; pixels as Pillow's."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ....codecs import npy
from ....codecs.infer import infer_image
from ....errors import DecodeError
from ....schema import Bytes, Field, Image, Tensor
from ....schema.columns import I64, U8, AnyArray, Column, Ragged, as_bytes
from .reader import Inner, numbers_at, wrong


def bare_cells(column: AnyArray) -> Ragged:
    """Cells of one size."""
    width = column.dtype.itemsize * math.prod(column.shape[1:])
    return Ragged(as_bytes(column), np.arange(len(column) + 1, dtype=np.int64) * width)


def zero_cell(field: Tensor) -> bytes:
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


def image_field(cells: Ragged, usual: Image) -> Field:
    """The field of encoded images that the first cells tell; ``usual`` without any."""
    return (infer_image(cells) or Bytes()) if len(cells) else usual


# Pillow's modes that are pixels of so many bytes.
CHANNELS = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}
MODES = {count: mode for mode, count in CHANNELS.items()}


def pillow_pixels(data: U8, starts: I64, sizes: I64) -> Inner:
    """Locate the pixels in the cells; return their shapes, too."""
    wrong(sizes < 12, "it is too short for an image of Pillow")
    width, height, length = numbers_at(data, starts, 3, "<u4").astype(np.int64).T
    wrong(length > np.minimum(sizes - 12, 16), "it is too short for an image of Pillow")
    channels = np.zeros(len(starts), dtype=np.int64)
    for row, (start, count) in enumerate(zip((starts + 12).tolist(), length.tolist(), strict=True)):
        mode = data[start : start + count].tobytes().decode("latin1")
        if mode not in CHANNELS:
            raise DecodeError(f"pixels of Pillow's mode {mode!r} are not read here", sample=row)
        channels[row] = CHANNELS[mode]
    head = 12 + length
    remaining = sizes - head
    # Two numbers of 32 bits; with the channels, the product stays below 2**63 only as a real.
    wrong(
        width.astype(np.float64) * height * channels != remaining, "its pixels are more or fewer than it says"
    )
    shape = np.stack([height, width, channels], axis=1)
    wrong(np.maximum(height, width) > 0x7FFFFFFF, "it is too large for an image")
    return Inner(starts + head, remaining, shape.astype(np.int32))


def pillow_cells(column: Ragged) -> Ragged:
    """The cells of pixels."""
    cells = []
    for row, cell in enumerate(column):
        assert cell is not None
        assert column.shape is not None
        height, width, channels = column.shape[row].tolist()
        mode = MODES[channels].encode()
        cells.append(np.array([width, height, len(mode)], "<u4").tobytes() + mode + cell.tobytes())
    return Ragged.from_cells(cells)


def pillow_field(cells: Ragged) -> Field:
    """The field that the first cells tell."""
    modes = set()
    for cell in cells:
        assert cell is not None
        modes.add(cell[12:][: int.from_bytes(cell[8:12].tobytes(), "little")].tobytes().decode("latin1"))
    mode = modes.pop() if len(modes) == 1 else None
    return Image("raw", mode if mode in CHANNELS or mode is None else "RGB")
