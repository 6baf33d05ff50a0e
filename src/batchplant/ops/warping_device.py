"""The device form of warps: where every pixel of the result lies in the image, then what is there."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..schema.columns import I32
from .base import F64, Tensors


def warp_tensor(batch: Any, inverse: F64, canvases: I32, bilinear: bool, fill: Any, tensors: Tensors) -> Any:
    """Images (n, height, width, channels) of a tensor; the matrices as the engine takes them."""
    torch = tensors.torch
    count, height, width, channels = batch.shape
    x = torch.arange(width, device=batch.device).double() + 0.5
    y = torch.arange(height, device=batch.device).double()[:, None] + 0.5
    inside = torch.ones((count, height, width), dtype=torch.bool, device=batch.device)
    for number in range(inverse.shape[1] - 1, -1, -1):
        # In float64, as the engine: what lies at an edge falls to the same side. And no product of matrices,
        # which torch may be told to round (TF32).
        sent = tensors.send(np.ascontiguousarray(inverse[:, number]).view(np.int64)).view(torch.float64)
        parts = sent.view(count, 3, 3, 1, 1).unbind(1)
        across, down, depth = (part[:, 0] * x + (part[:, 1] * y + part[:, 2]) for part in parts)
        across, down = across / depth, down / depth
        high, wide = tensors.send(canvases[:, number].reshape(count, 2, 1, 1)).unbind(1)
        inside &= (across >= 0) & (across < wide) & (down >= 0) & (down < high)
    inside, across, down = (one.reshape(count, height * width) for one in (inside, across, down))
    flat = batch.reshape(count, height * width, channels)
    # What is nowhere is not looked at.
    across, down = (torch.where(inside, one, torch.zeros_like(one)) for one in (across, down))

    def taken(row: Any, column: Any) -> Any:
        at = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
        return flat.gather(1, at[..., None].expand(-1, -1, channels))

    if bilinear:
        across, down = across - 0.5, down - 0.5
        left, top = across.floor(), down.floor()
        right_share, lower_share = (across - left).float()[..., None], (down - top).float()[..., None]
        column, row = left.long(), top.long()
        upper = taken(row, column) * (1 - right_share) + taken(row, column + 1) * right_share
        lower = taken(row + 1, column) * (1 - right_share) + taken(row + 1, column + 1) * right_share
        made = (upper * (1 - lower_share) + lower * lower_share).round().to(batch.dtype)
    else:
        made = taken(down.long(), across.long())
    colour = tensors.send(np.asarray(fill)).to(batch.dtype)
    return torch.where(inside[..., None], made, colour).reshape(batch.shape)
