"""The device form of warps: where every pixel of the result lies in the picture, then what is there."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..columns import I32
from .base import F64, Tensors


def warp_tensor(batch: Any, inverse: F64, canvases: I32, bilinear: bool, fill: Any, tensors: Tensors) -> Any:
    """Pictures (n, height, width, channels) of a tensor; the matrices as the engine takes them."""
    torch = tensors.torch
    count, height, width, channels = batch.shape
    y, x = torch.meshgrid(
        torch.arange(height, device=batch.device) + 0.5, torch.arange(width, device=batch.device) + 0.5,
        indexing="ij",
    )  # fmt: skip
    grid = torch.stack([x.reshape(-1), y.reshape(-1), torch.ones_like(x).reshape(-1)])
    inside = torch.ones((count, height * width), dtype=torch.bool, device=batch.device)
    for number in range(inverse.shape[1] - 1, -1, -1):
        at = tensors.send(inverse[:, number]) @ grid
        across, down = at[:, 0] / at[:, 2], at[:, 1] / at[:, 2]
        size = tensors.send(canvases[:, number].astype(np.float64))
        inside &= (across >= 0) & (across < size[:, 1:]) & (down >= 0) & (down < size[:, :1])
    flat = batch.reshape(count, height * width, channels)
    # What is nowhere is not looked at.
    across, down = (torch.where(inside, one, torch.zeros_like(one)) for one in (across, down))

    def taken(row: Any, column: Any) -> Any:
        at = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
        return flat.gather(1, at[..., None].expand(-1, -1, channels))

    if bilinear:
        across, down = across - 0.5, down - 0.5
        left, top = across.floor(), down.floor()
        right_share, lower_share = (across - left)[..., None], (down - top)[..., None]
        column, row = left.long(), top.long()
        upper = taken(row, column) * (1 - right_share) + taken(row, column + 1) * right_share
        lower = taken(row + 1, column) * (1 - right_share) + taken(row + 1, column + 1) * right_share
        made = (upper * (1 - lower_share) + lower * lower_share).round().to(batch.dtype)
    else:
        made = taken(down.long(), across.long())
    colour = tensors.send(np.asarray(fill)).to(batch.dtype)
    return torch.where(inside[..., None], made, colour).reshape(batch.shape)
