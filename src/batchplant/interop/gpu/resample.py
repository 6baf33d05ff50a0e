"""Crop, resize, flip, normalise and lay out a batch of images of differing sizes, on any torch device.

For each side of each image a table lists the source pixels of a result pixel and their weights. The rules are
those of the engine (native/images/resample.cpp); results differ by rounding alone. One Triton kernel then
makes the whole batch; without Triton, torch does it image by image.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ...ops.base import F64
from ...schema.columns import I64, AnyArray, Flags

# Thinner parts of a pixel are rounding errors; the engine uses the same limit.
SLIVER = 1e-3
# Steps between two neighbours, as many as in the engine.
LINEAR_STEPS = 2048
# The first source pixel and the weights of every result pixel.
Taps = tuple[Tensor, Tensor]
SUPPORT = {"bilinear": 1.0, "bicubic": 2.0}


class Views(Protocol):
    """Images by row."""

    def __getitem__(self, row: int, /) -> Tensor: ...


class Sources(NamedTuple):
    """Images on the device: where each begins, its strides (row, pixel, channel), height and width.

    ``corner``: row and column of the first pixel that is there; pixels above it or left of it are not needed.
    ``views``: the pixels that are there, as tensors (height, width, channels). ``memory``: owner of the
    pixels, which must outlive the kernel.
    """

    start: I64
    strides: I64
    sizes: I64
    corner: I64
    views: Views
    memory: Tensor | list[Tensor]


def max_taps(filter: str, lengths: F64, result: int) -> int:
    """Return the largest number of source pixels of a result pixel, for boxes of these lengths."""
    scale = float(max(lengths.max(initial=0.0) / result, 1.0))
    if filter == "nearest":
        return 1
    return int(scale) + 2 if filter == "area" else int(2 * SUPPORT[filter] * scale) + 3


def taps(
    low: Tensor, high: Tensor, source: Tensor, linear: Tensor, result: int, filter: str, count: int
) -> Taps:
    """(first source pixel, weights) of every result pixel: int32 (n, result), float32 (n, result, count).

    ``low`` and ``high`` bound the box in ``source`` pixels, all float64 (n, 1). ``linear``: with the filter
    area, blend two neighbours, as that filter does with images that grow on either side.
    """
    i = torch.arange(result, dtype=torch.float64, device=low.device)[None]
    k = torch.arange(count, dtype=torch.float64, device=low.device)
    if filter != "area":
        return _pillow_taps(low, (high - low) / result, source, i, k, filter)
    # Inverted twice, as in the engine: where a result pixel ends just at the edge of a source pixel, the last
    # bit decides which of two it covers. Divided as tensors: torch would multiply a number by the reciprocal.
    inverse = torch.full_like(low, result) / (high - low)
    first, weight = _area_taps(low, high, 1 / inverse, i, k)
    linear_first, share = _linear_taps(low, high, inverse, i)
    first = torch.where(linear, linear_first, first)
    pair = torch.stack([1 - share, share], dim=-1)
    pair = torch.nn.functional.pad(pair, (0, count - 2))
    weight = torch.where(linear[..., None], pair, weight)
    return first.to(torch.int32), weight.to(torch.float32)


def nearest_taps(low: F64, high: F64, source: I64, result: int) -> tuple[AnyArray, AnyArray]:
    """Return the same for the filter nearest, as arrays: one pixel each, by cumulative sums as in Pillow."""
    scale = (high - low) / result
    steps = np.repeat(scale[:, None], result, axis=1)
    steps[:, 0] = low + scale * 0.5
    first = np.minimum(np.maximum(np.floor(np.cumsum(steps, axis=1)), 0), source[:, None] - 1)
    return first.astype(np.int32), np.ones((*first.shape, 1), dtype=np.float32)


def _area_taps(low: Tensor, high: Tensor, scale: Tensor, i: Tensor, k: Tensor) -> Taps:
    start = low + i * scale
    end = torch.minimum(start + scale, high)
    first = start.floor()
    first = first + ((first + 1 - start <= SLIVER) & (first + 1 < high.ceil()))
    pixel = first[..., None] + k
    part = torch.minimum(pixel + 1, end[..., None]) - torch.maximum(pixel, start[..., None])
    part = torch.where((k > 0) & (end[..., None] - pixel <= SLIVER), 0, part.clamp(min=0))
    return first, part / part.sum(dim=-1, keepdim=True)


def _linear_taps(low: Tensor, high: Tensor, inverse: Tensor, i: Tensor) -> Taps:
    origin = low.floor()
    start, count = low - origin, high.ceil() - origin
    # As in the engine: a box that begins within a pixel comes from a division.
    slip = torch.where(start == 0, 0.0, 1e-6)
    first = (start + i * (1 / inverse) + slip).floor()
    share = ((i + 1) - (first + 1 - start) * inverse).to(torch.float32)
    share = torch.where(share <= 0, 0, share - share.floor())
    share = (share * LINEAR_STEPS).round() / LINEAR_STEPS
    over = first + 1 >= count
    return origin + torch.where(over, count - 1, first), torch.where(over, 0, share).to(torch.float64)


def _pillow_taps(low: Tensor, scale: Tensor, source: Tensor, i: Tensor, k: Tensor, filter: str) -> Taps:
    wide = scale.clamp(min=1)
    support = SUPPORT[filter] * wide
    center = low + (i + 0.5) * scale
    first = torch.minimum((center - support + 0.5).clamp(min=0).floor(), source - 1)
    last = torch.minimum((center + support + 0.5).clamp(min=0).floor(), source)
    pixel = first[..., None] + k
    x = ((pixel - center[..., None] + 0.5) / wide[..., None]).abs()
    if filter == "bilinear":
        weight = (1 - x).clamp(min=0)
    else:
        near, far = (1.5 * x - 2.5) * x * x + 1, (((x - 5) * x + 8) * x - 4) * -0.5
        weight = torch.where(x < 1, near, torch.where(x < 2, far, 0))
    weight = torch.where(pixel < torch.maximum(last, first + 1)[..., None], weight, 0)
    return first.to(torch.int32), (weight / weight.sum(dim=-1, keepdim=True)).to(torch.float32)


@functools.cache
def _kernels() -> ModuleType | None:
    """Return the Triton kernels; None without Triton."""
    try:
        from . import resample_kernel
    except ImportError:
        return None
    return resample_kernel


def parameters_of(sources: Sources, boxes: F64, flip: Flags | None) -> I64:
    """Return the parameters of ``resample``, a row for each image."""
    parameters = np.empty((len(boxes), 11), dtype=np.int64)
    parameters[:, :4] = boxes.view(np.int64)
    parameters[:, 4:6] = sources.sizes
    # Address of the first pixel of the whole image; the kernel never reads pixels that are not there.
    parameters[:, 6] = sources.start - (sources.corner * sources.strides[:, :2]).sum(axis=1)
    parameters[:, 7:10] = sources.strides
    parameters[:, 10] = 0 if flip is None else flip
    return parameters


def resample(
    sources: Sources, parameters: I64, out: Tensor, *, filter: str, channels_first: bool,
    scale: Tensor | None, offset: Tensor | None, upload: Callable[[AnyArray], Tensor],
) -> None:  # fmt: skip
    """Fill ``out`` (n, height, width, channels), or channels first, with boxes of the sources.

    ``parameters``: of ``parameters_of``. ``scale`` and ``offset``: factor and summand of the levels of each
    channel; None for neither. ``upload`` copies a NumPy array to the device.
    """
    boxes = parameters[:, :4].view(np.float64)
    height, width = out.shape[2:] if channels_first else out.shape[1:3]
    table = upload(parameters)
    wide = max_taps(filter, boxes[:, 2] - boxes[:, 0], width)
    high = max_taps(filter, boxes[:, 3] - boxes[:, 1], height)
    kernels = _kernels() if out.is_cuda else None
    if filter == "nearest":
        down = nearest_taps(boxes[:, 1], boxes[:, 3], sources.sizes[:, 0], height)
        across = nearest_taps(boxes[:, 0], boxes[:, 2], sources.sizes[:, 1], width)
        rows, columns = ((upload(first), upload(weight)) for first, weight in (down, across))
    elif kernels is not None:
        rows, columns = kernels.taps(table, (height, width), (high, wide), filter)
    else:
        edges = table[:, :4].contiguous().view(torch.float64)
        x0, y0, x1, y1 = (edges[:, i : i + 1] for i in range(4))
        sizes = table[:, 4:6].to(torch.float64)
        linear = ((x1 - x0) < width) | ((y1 - y0) < height)
        rows = taps(y0, y1, sizes[:, :1], linear, height, filter, high)
        columns = taps(x0, x1, sizes[:, 1:], linear, width, filter, wide)
    if kernels is not None:
        strides = out.stride()
        if channels_first:
            strides = (strides[0], strides[2], strides[3], strides[1])
        kernels.resample(table, rows, columns, out, strides, (height, width), filter, scale, offset)
        return
    channels_last = out.permute(0, 2, 3, 1) if channels_first else out
    for image in range(len(boxes)):
        top, left = sources.corner[image].tolist()
        first = rows[0][image] - top, columns[0][image] - left
        weight = rows[1][image], columns[1][image]
        levels = _resample_image(sources.views[image], first, weight, flip=bool(parameters[image, 10]))
        channels_last[image].copy_(levels if scale is None else levels * scale + offset)


def _resample_image(image: Tensor, first: Taps, weight: Taps, *, flip: bool) -> Tensor:
    levels = image.to(torch.float32)
    for side in (0, 1):
        taps = torch.arange(weight[side].shape[-1], device=levels.device)
        # Taps of weight zero may lie outside of the image.
        pixels = (first[side][:, None].to(torch.int64) + taps).clamp(0, levels.shape[side] - 1)
        neighbours = levels[pixels] if side == 0 else levels[:, pixels]
        share = weight[side][:, :, None, None] if side == 0 else weight[side][None, :, :, None]
        levels = (neighbours * share).sum(dim=side + 1)
    levels = (levels + 0.5).floor().clamp(0, 255)
    return levels.flip(1) if flip else levels
