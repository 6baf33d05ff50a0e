"""Pixels of the planes that JPEGs store, to the last bit as libjpeg makes them.

The colours of most JPEGs have half the width, or half of both sides. libjpeg blends the two (or four) nearest
of them for a pixel, by 3 to 1; other decoders repeat them. Then YCbCr becomes RGB in whole numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ...columns import I64, U8
from .resample import kernels

# As fractions of 65,536: what red gets of Cr, blue of Cb, and green loses of both.
RED_CR, BLUE_CB, GREEN_CB, GREEN_CR = 91881, 116130, 22554, 46802
# libjpeg blends no colours of pictures that have fewer in a row.
LEAST_BLENDED = 3


def planes(shape: I64, sampling: U8) -> tuple[I64, I64, I64]:
    """How pictures of these shapes are stored, by row of the batch.

    That is: how many pixels share a colour, in a column and in a row; height and width of the colours; the
    bytes of all three planes. ``sampling``: 0x11, 0x21 or 0x22, in a row and in a column.
    """
    shared = np.stack([sampling & 15, sampling >> 4], axis=1).astype(np.int64)
    small = -(-shape // shared)
    return shared, small, shape.prod(axis=1) + 2 * small.prod(axis=1)


def to_rgb(memory: Any, place: I64, shape: I64, sampling: U8, out: Any, out_place: I64) -> Any:
    """Make (height, width, 3) at ``out_place`` in ``out`` of the planes at ``place`` in ``memory``.

    On the current stream, where ``memory`` is on a CUDA device. What comes back has to live until it is done.
    """
    shared, small, _ = planes(shape, sampling)
    made = kernels() if out.is_cuda else None
    if made is None:
        for row in range(len(shape)):
            _one(memory[int(place[row]) :], shape[row], shared[row], small[row], out[int(out_place[row]) :])
        return None
    facts = np.empty((len(shape), 8), dtype=np.int64)
    facts[:, 0] = memory.data_ptr() + place
    facts[:, 1] = facts[:, 0] + shape.prod(axis=1)
    facts[:, 2] = facts[:, 1] + small.prod(axis=1)
    facts[:, 3] = out.data_ptr() + out_place
    facts[:, 4:6], facts[:, 6:8] = shape, shared
    pinned = torch.from_numpy(facts).pin_memory()
    made.to_rgb(pinned.to(out.device, non_blocking=True), int(shape[:, 0].max()), int(shape[:, 1].max()))
    return pinned


def _one(memory: Any, shape: I64, shared: I64, small: I64, out: Any) -> None:
    """The same by torch, of one picture."""
    height, width = shape.tolist()
    sizes = [height * width, *[int(small.prod())] * 2]
    luma, cb, cr = (part.to(torch.int32) for part in memory[: sum(sizes)].split(sizes))
    y = luma.view(height, width)
    blue, red = (
        _blended(part.view(*small.tolist()), (height, width), shared.tolist()) - 128 for part in (cb, cr)
    )
    half = 1 << 15
    pixels = torch.stack(
        [
            y + ((RED_CR * red + half) >> 16),
            y + ((-GREEN_CB * blue - GREEN_CR * red + half) >> 16),
            y + ((BLUE_CB * blue + half) >> 16),
        ],
        dim=-1,
    )
    out[: pixels.numel()] = pixels.clamp(0, 255).to(torch.uint8).reshape(-1)


def _blended(plane: Any, size: tuple[int, int], shared: list[int]) -> Any:
    """A plane of colours, as large as the picture."""
    near, other = [], []
    for length, among, each in zip(size, plane.shape, shared, strict=True):
        at = torch.arange(length, device=plane.device)
        near.append(at // each)
        # Of two that share a colour, the first looks at the one before, the second at the one behind.
        beside = near[-1] + (2 * (at % 2) - 1) * (each - 1)
        other.append(beside.clamp(0, among - 1) if plane.shape[1] >= LEAST_BLENDED else near[-1])
    second = torch.arange(size[1], device=plane.device) % 2
    if shared[0] == 2:
        rows = 3 * plane[near[0]] + plane[other[0]]
        return (3 * rows[:, near[1]] + rows[:, other[1]] + 8 - second) >> 4
    rows = plane[near[0]]
    return (3 * rows[:, near[1]] + rows[:, other[1]] + 1 + second) >> 2
