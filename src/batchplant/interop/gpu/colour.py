"""Pixels of the planes that JPEGs store, to the last bit as libjpeg makes them.

The colours of most JPEGs have half the width, or half of both sides. libjpeg blends the two (or four) nearest
of them for a pixel, by 3 to 1; other decoders repeat them. Then YCbCr becomes RGB in whole numbers.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import torch

from ...schema.columns import I64, U8

# As fractions of 65,536: what red gets of Cr, blue of Cb, and green loses of both.
RED_CR, BLUE_CB, GREEN_CB, GREEN_CR = 91881, 116130, 22554, 46802
# libjpeg blends no colours of images that have fewer in a row.
LEAST_BLENDED = 3


def kernels(tensor: Any) -> Any:
    """The Triton kernels for JPEGs; None where there is no Triton, or a tensor is not where it works."""
    return _kernels() if tensor.is_cuda else None


def has_kernels() -> bool:
    return _kernels() is not None


@functools.cache
def _kernels() -> Any:
    try:
        from . import jpeg_kernel
    except ImportError:
        return None
    return jpeg_kernel


class Planes(NamedTuple):
    """Brightness, Cb and Cr of images, or of what is needed of them, on a device; a row for each image.

    place: where in ``memory`` the three begin. line: bytes from row to row, of the brightness and of the
    colours. corner: row and column of the first sample that is there, (n, 2, 2) of both. shape: height and
    width of the images. shared: how many pixels have one colour, in a column and in a row.
    """

    memory: Any
    place: I64
    line: I64
    corner: I64
    shape: I64
    shared: I64


def shared_by(sampling: U8) -> I64:
    """Of 0x11, 0x21 or 0x22: how many pixels have one colour, in a column and in a row."""
    return np.stack([sampling & 15, sampling >> 4], axis=1).astype(np.int64)


def to_rgb(planes: Planes, window: I64, out: Any, out_place: I64) -> None:
    """Make the pixels (rows, columns, 3) of windows (top, left, rows, columns) in ``out``."""
    for row in range(len(window)):
        _one(planes, row, window[row].tolist(), out[int(out_place[row]) :])


def rgb_facts(planes: Planes, window: I64, out: Any, out_place: I64) -> I64:
    """The same as the kernel is told of it."""
    # As if all of every image were there: what is not is never looked at.
    away = (planes.corner * np.stack([planes.line, np.ones_like(planes.line)], axis=2)).sum(axis=2)
    line = window[:, 3] * 3
    facts = np.empty((len(window), 15), dtype=np.int64)
    facts[:, :3] = planes.memory.data_ptr() + planes.place - away[:, [0, 1, 1]]
    facts[:, 3] = out.data_ptr() + out_place - window[:, 0] * line - window[:, 1] * 3
    facts[:, 4:6], facts[:, 6] = planes.line, line
    facts[:, 7:9], facts[:, 9:11], facts[:, 11:] = planes.shape, planes.shared, window
    return facts


def _one(planes: Planes, row: int, window: list[int], out: Any) -> None:
    """Of one image."""
    top, left, rows, columns = window
    device = planes.memory.device
    y, x = torch.arange(top, top + rows, device=device), torch.arange(left, left + columns, device=device)

    def sample(which: int, down: Any, across: Any) -> Any:
        kind = min(which, 1)
        line, (first, begin) = int(planes.line[row, kind]), planes.corner[row, kind].tolist()
        at = int(planes.place[row, which]) + (down - first)[:, None] * line + (across - begin)[None]
        return planes.memory[at].to(torch.int32)

    level = sample(0, y, x)
    blue, red = (_blended(planes, row, sample, which, y, x) - 128 for which in (1, 2))
    half = 1 << 15
    pixels = torch.stack(
        [
            level + ((RED_CR * red + half) >> 16),
            level + ((-GREEN_CB * blue - GREEN_CR * red + half) >> 16),
            level + ((BLUE_CB * blue + half) >> 16),
        ],
        dim=-1,
    )
    out[: pixels.numel()] = pixels.clamp(0, 255).to(torch.uint8).reshape(-1)


def _blended(planes: Planes, row: int, sample: Any, which: int, y: Any, x: Any) -> Any:
    """A colour for every pixel."""
    small = (-(-planes.shape[row] // planes.shared[row])).tolist()
    near, other = [], []
    for at, among, each in zip((y, x), small, planes.shared[row].tolist(), strict=True):
        near.append(at // each)
        # Of two that have one colour, the first looks at the one before, the second at the one behind.
        beside = near[-1] + (2 * (at % 2) - 1) * (each - 1)
        other.append(beside.clamp(0, among - 1) if small[1] >= LEAST_BLENDED else near[-1])
    here, beside = sample(which, near[0], near[1]), sample(which, near[0], other[1])
    if planes.shared[row, 0] == 2:
        here = 3 * here + sample(which, other[0], near[1])
        beside = 3 * beside + sample(which, other[0], other[1])
        return (3 * here + beside + 8 - x % 2) >> 4
    return (3 * here + beside + 1 + x % 2) >> 2
