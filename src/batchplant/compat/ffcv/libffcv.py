"""The functions of FFCV's native library that operations of users call."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ... import _native
from ...schema.columns import AnyArray


def read(fileno: int, destination: AnyArray, offset: int) -> int:
    """Fill the destination from an offset of a file; return the number of bytes read."""
    return os.preadv(fileno, [destination.data.cast("B")], int(offset))


def memcpy(source: Any, dest: Any) -> None:
    """Copy the bytes of one array to the start of another. numba can compile it."""
    data = source.reshape(-1).view(np.uint8)
    dest.reshape(-1).view(np.uint8)[: data.size] = data


def resize_crop(
    source: Any, start_row: int, end_row: int, start_col: int, end_col: int, destination: Any
) -> None:
    """Resize a part of an image into the destination; each pixel is the mean of what it covers."""
    part = np.ascontiguousarray(source[start_row:end_row, start_col:end_col])
    high, wide = destination.shape[:2]
    # To enlarge, repeat pixels first: the mean needs at least one for each new pixel.
    part = part.repeat(-(-high // part.shape[0]), axis=0).repeat(-(-wide // part.shape[1]), axis=1)
    destination[...] = _native.resize_area(part, wide, high)


def imdecode(source: Any, dst: Any, source_height: int, source_width: int, *_: object) -> int:
    """Decode a whole JPEG to the start of the destination."""
    pixels = _native.jpeg_decode(np.ascontiguousarray(source).data, "RGB")
    if pixels.shape[:2] != (source_height, source_width):
        raise ValueError(f"the JPEG is {pixels.shape[1]}×{pixels.shape[0]}")
    memcpy(pixels, dst)
    return 0
