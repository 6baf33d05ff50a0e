"""What a JPEG leaves of images, computed on a device without encoding one.

Everything that libjpeg does between pixels and pixels, in its own integers and with its own rounding (all of
them exact in float64): colours to YCbCr, half as many of them (4:2:0), the cosine transform, quantisation,
and back.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..schema.columns import I64
from .base import Tensors

# The cosine transform times 2**13, in the whole numbers that libjpeg's accurate one works with; its transpose
# goes back.
_EVEN = ((8192, 8192, 8192, 8192), (10703, 4433, -4433, -10703), (8192, -8192, -8192, 8192),
         (4433, -10704, 10704, -4433))  # fmt: skip
_ODD = ((11363, 9633, 6437, 2260), (9633, -2259, -11362, -6436), (6437, -11362, 2261, 9633),
        (2260, -6436, 9633, -11363))  # fmt: skip
_BITS = 13
# More of them are kept between the two passes.
_KEPT = 2

# Annex K of the standard.
_LUMA = (
    (16, 11, 10, 16, 24, 40, 51, 61), (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56), (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77), (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101), (72, 92, 95, 98, 112, 100, 103, 99),
)  # fmt: skip
_CHROMA = (
    (17, 18, 24, 47, 99, 99, 99, 99), (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99), (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)  # fmt: skip


def _matrix() -> Any:
    rows = []
    for even, odd in zip(_EVEN, _ODD, strict=True):
        rows += [(*even, *even[::-1]), (*odd, *(-one for one in odd[::-1]))]
    return np.array(rows, dtype=np.int64)


def _steps(table: Any, qualities: I64) -> I64:
    """The quantisation of every image, (n, 1, 8, 1, 8)."""
    scale = np.where(qualities < 50, 5000 // qualities, 200 - 2 * qualities)[:, None, None]
    steps: I64 = ((np.asarray(table) * scale + 50) // 100).clip(1, 255)
    return steps[:, None, :, None, :]


def through_jpeg(images: Any, qualities: I64, tensors: Tensors) -> Any:
    """Images (n, height, width, 1 or 3) of bytes as a JPEG of their quality leaves them."""
    matrix = tensors.send(_matrix()).double()
    luma, chroma = (tensors.send(_steps(table, qualities)).double() for table in (_LUMA, _CHROMA))
    levels = images.double()
    if images.shape[-1] == 1:
        return _through(levels[..., 0], matrix, luma).to(images.dtype)[..., None]
    red, green, blue = levels.unbind(-1)
    height, width = images.shape[1:3]
    y = ((19595 * red + 38470 * green + 7471 * blue + 32768) / 65536).floor()
    cb = ((-11059 * red - 21709 * green + 32768 * blue + (128 << 16) + 32767) / 65536).floor()
    cr = ((32768 * red - 27439 * green - 5329 * blue + (128 << 16) + 32767) / 65536).floor()
    y = _through(y, matrix, luma)
    cb, cr = (_doubled(_through(_halved(one), matrix, chroma), height, width) - 128 for one in (cb, cr))
    red = y + ((91881 * cr + 32768) / 65536).floor()
    green = y + ((-22554 * cb - 46802 * cr + 32768) / 65536).floor()
    blue = y + ((116130 * cb + 32768) / 65536).floor()
    return tensors.torch.stack([red, green, blue], -1).clamp(0, 255).to(images.dtype)


def _grown(plane: Any, height: int, width: int) -> Any:
    """With the last row and column repeated."""
    down, right = height - plane.shape[1], width - plane.shape[2]
    if right:
        plane = _cat(plane, plane[:, :, -1:].expand(-1, -1, right), 2)
    return _cat(plane, plane[:, -1:].expand(-1, down, -1), 1) if down else plane


def _cat(one: Any, other: Any, axis: int) -> Any:
    shape = list(one.shape)
    shape[axis] += other.shape[axis]
    made = one.new_empty(shape)
    made.narrow(axis, 0, one.shape[axis]).copy_(one)
    made.narrow(axis, one.shape[axis], other.shape[axis]).copy_(other)
    return made


def _through(plane: Any, matrix: Any, steps: Any) -> Any:
    """One channel (n, height, width), transformed, quantised, and back."""
    count, height, width = plane.shape
    plane = _grown(plane, -(-height // 8) * 8, -(-width // 8) * 8)
    blocks = plane.reshape(count, plane.shape[1] // 8, 8, plane.shape[2] // 8, 8) - 128
    found = _cut(_down(matrix, _cut(blocks @ matrix.T, _BITS - _KEPT)), _BITS + _KEPT)
    # The transform gives eight times what is quantised.
    whole = ((found.abs() + (4 * steps).floor()) / (8 * steps)).floor() * found.sign() * steps
    back = _cut(_cut(_down(matrix.T, whole), _BITS - _KEPT) @ matrix, _BITS + _KEPT + 3) + 128
    return back.clamp(0, 255).reshape(plane.shape)[:, :height, :width]


def _down(matrix: Any, blocks: Any) -> Any:
    """The matrix times the columns of every block."""
    return (matrix @ blocks.transpose(2, 3)).transpose(2, 3)


def _cut(values: Any, bits: int) -> Any:
    return ((values + 2 ** (bits - 1)) / 2**bits).floor()


def _halved(plane: Any) -> Any:
    """Means of two by two; rounded up and down in turn."""
    height, width = plane.shape[1:]
    grown = _grown(plane, height + height % 2, -(-width // 16) * 16)
    sums = grown[:, ::2, ::2] + grown[:, 1::2, ::2] + grown[:, ::2, 1::2] + grown[:, 1::2, 1::2]
    sums[:, :, ::2] += 1
    sums[:, :, 1::2] += 2
    return (sums / 4).floor()


def _doubled(plane: Any, height: int, width: int) -> Any:
    """Twice the size: three parts of the nearer value, one of the farther, on both axes."""
    plane = plane[:, :, : (width + 1) // 2]
    count, rows, columns = plane.shape
    if columns <= 2:
        return plane.repeat_interleave(2, 1).repeat_interleave(2, 2)[:, :height, :width]
    above = _cat(plane[:, :1], plane[:, :-1], 1)
    below = _cat(plane[:, 1:], plane[:, -1:], 1)
    lines = plane.new_empty((count, rows, 2, columns))
    lines[:, :, 0], lines[:, :, 1] = 3 * plane + above, 3 * plane + below
    lines = lines.view(count, 2 * rows, columns)
    before = _cat(lines[:, :, :1], lines[:, :, :-1], 2)
    after = _cat(lines[:, :, 1:], lines[:, :, -1:], 2)
    made = lines.new_empty((count, 2 * rows, columns, 2))
    made[..., 0] = ((3 * lines + before + 8) / 16).floor()
    made[..., 1] = ((3 * lines + after + 7) / 16).floor()
    return made.view(count, 2 * rows, 2 * columns)[:, :height, :width]
