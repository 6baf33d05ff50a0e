"""RGB pixels from the planes of JPEGs, bit for bit as libjpeg makes them.

The chroma planes of most JPEGs have half the width, or half of both sides. libjpeg blends the two (or four)
nearest samples for a pixel, by 3 to 1; other decoders repeat them. Then it converts YCbCr to RGB in integers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...schema.columns import I64, U8

# In 1/65,536: how much of Cr is added to red, of Cb to blue, and of both subtracted from green.
RED_CR, BLUE_CB, GREEN_CB, GREEN_CR = 91881, 116130, 22554, 46802
# libjpeg does not blend chroma planes that are narrower.
MIN_BLENDED_COLUMNS = 3


def kernels(tensor: Tensor) -> ModuleType | None:
    """Return the Triton kernels for JPEGs; None without Triton, or for a tensor that is not on CUDA."""
    return _kernels() if tensor.is_cuda else None


def has_kernels() -> bool:
    return _kernels() is not None


@functools.cache
def _kernels() -> ModuleType | None:
    try:
        from . import jpeg_kernel
    except ImportError:
        return None
    return jpeg_kernel


class Planes(NamedTuple):
    """Brightness, Cb and Cr of windows of images, on a device; a row for each image.

    offset: where in ``memory`` the three planes begin. line: bytes from row to row, of the brightness and of
    the colours. corner: row and column of the first sample that is there, (n, 2, 2) of both. shape: height
    and width of the images. subsampling: how many pixels share a colour, in a column and in a row.
    """

    memory: Tensor
    offset: I64
    line: I64
    corner: I64
    shape: I64
    subsampling: I64


def subsampling_factors(sampling: U8) -> I64:
    """Number of pixels that share a colour, in a column and in a row, by sampling: 0x11, 0x21 or 0x22."""
    return np.stack([sampling & 15, sampling >> 4], axis=1).astype(np.int64)


def to_rgb(planes: Planes, window: I64, out: Tensor, out_offset: I64) -> None:
    """Write the pixels (rows, columns, 3) of windows (top, left, rows, columns) to ``out``, with torch."""
    for row in range(len(window)):
        _image_to_rgb(planes, row, window[row].tolist(), out[int(out_offset[row]) :])


def rgb_parameters(planes: Planes, window: I64, out: Tensor, out_offset: I64) -> I64:
    """Parameters of the kernel that does the same as ``to_rgb``, a row for each image."""
    # Addresses of the first samples of whole images; the kernel never reads those outside of the windows.
    corner_offset = (planes.corner * np.stack([planes.line, np.ones_like(planes.line)], axis=2)).sum(axis=2)
    line = window[:, 3] * 3
    parameters = np.empty((len(window), 15), dtype=np.int64)
    parameters[:, :3] = planes.memory.data_ptr() + planes.offset - corner_offset[:, [0, 1, 1]]
    parameters[:, 3] = out.data_ptr() + out_offset - window[:, 0] * line - window[:, 1] * 3
    parameters[:, 4:6], parameters[:, 6] = planes.line, line
    parameters[:, 7:9], parameters[:, 9:11], parameters[:, 11:] = planes.shape, planes.subsampling, window
    return parameters


def _image_to_rgb(planes: Planes, row: int, window: list[int], out: Tensor) -> None:
    top, left, rows, columns = window
    device = planes.memory.device
    y, x = torch.arange(top, top + rows, device=device), torch.arange(left, left + columns, device=device)

    def sample(plane: int, down: Tensor, across: Tensor) -> Tensor:
        kind = min(plane, 1)
        line, (first_row, first_column) = int(planes.line[row, kind]), planes.corner[row, kind].tolist()
        columns_from = (across - first_column)[None]
        index = int(planes.offset[row, plane]) + (down - first_row)[:, None] * line + columns_from
        return planes.memory[index].to(torch.int32)

    level = sample(0, y, x)
    blue, red = (_blend_colour(planes, row, sample, plane, y, x) - 128 for plane in (1, 2))
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


def _blend_colour(
    planes: Planes, row: int, sample: Callable[..., Tensor], plane: int, y: Tensor, x: Tensor
) -> Tensor:
    """Blend the nearest samples of a chroma plane for every pixel."""
    plane_size = (-(-planes.shape[row] // planes.subsampling[row])).tolist()
    near, far = [], []
    for pixel, size, factor in zip((y, x), plane_size, planes.subsampling[row].tolist(), strict=True):
        near.append(pixel // factor)
        # Of two pixels that share a sample, the first blends with the previous one, the second with the next.
        neighbour = near[-1] + (2 * (pixel % 2) - 1) * (factor - 1)
        far.append(neighbour.clamp(0, size - 1) if plane_size[1] >= MIN_BLENDED_COLUMNS else near[-1])
    nearest, beside = sample(plane, near[0], near[1]), sample(plane, near[0], far[1])
    if planes.subsampling[row, 0] == 2:
        nearest = 3 * nearest + sample(plane, far[0], near[1])
        beside = 3 * beside + sample(plane, far[0], far[1])
        return (3 * nearest + beside + 8 - x % 2) >> 4
    return (3 * nearest + beside + 1 + x % 2) >> 2
