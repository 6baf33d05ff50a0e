"""The device form of ops that cut images: by index where pixels only move, else by weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .base import F64, Tensors
from .dtypes import choose, signed

if TYPE_CHECKING:
    from .cutting import Cuts


def cut_tensor(
    batch: Any, cuts: Cuts, size: list[int], fill: Any, filter: str | None, tensors: Tensors
) -> Any:
    """Images (n, height, width, channels) of a tensor, cut; ``filter`` None: every pixel stays as it is."""
    torch = tensors.torch
    count, height, width, _ = batch.shape
    places = cuts.places if cuts.places is not None else np.tile([0, 0, *size], (count, 1))
    # For rows and columns: where the box begins and ends, and its place; from which end it is laid.
    sides = [
        (cuts.boxes[:, 1], cuts.boxes[:, 3], places[:, 0], places[:, 2], cuts.downs, size[0], height),
        (cuts.boxes[:, 0], cuts.boxes[:, 2], places[:, 1], places[:, 3], cuts.flips, size[1], width),
    ]
    steps, inside = zip(*(_steps(*side[2:6]) for side in sides), strict=True)
    if filter is None:
        y, x = (
            tensors.send(np.clip(side[0][:, None].astype(np.int64) + step, 0, side[6] - 1))
            for side, step in zip(sides, steps, strict=True)
        )
        row = torch.arange(count, device=batch.device).view(-1, 1, 1)
        made = signed(batch)[row, y[:, :, None], x[:, None, :]].view(batch.dtype)
    else:
        grows = np.zeros(count, dtype=np.bool_)
        for low, high, _, length, _, _, _ in sides:
            grows |= (high - low) < length
        down, across = (
            tensors.send(_weights(low, high, length, step, source, filter, grows))
            for (low, high, _, length, _, _, source), step in zip(sides, steps, strict=True)
        )
        middle = torch.einsum("nxw,nhwc->nhxc", across, batch.float())
        if filter != "area":
            middle = middle.round().clamp(0, 255)
        made = torch.einsum("nyh,nhxc->nyxc", down, middle).round().clamp(0, 255).to(batch.dtype)
    if cuts.places is None:
        return made
    seen = tensors.send(inside[0][:, :, None, None] & inside[1][:, None, :, None])
    return choose(seen, made, tensors.send(np.asarray(fill)).to(batch.dtype))


def _steps(place: Any, length: Any, mirrored: Any, result: int) -> tuple[Any, Any]:
    """Which pixel of its place each of the result is, as the image counts them; and whether it is one."""
    at = np.arange(result)[None] - place[:, None]
    inside = (at >= 0) & (at < length[:, None])
    if mirrored is not None:
        at = np.where(mirrored[:, None], length[:, None] - 1 - at, at)
    return at, inside


def _weights(low: Any, high: Any, length: Any, step: Any, source: int, filter: str, grows: Any) -> F64:
    """(n, result, source): how much of every source pixel a result has; as the engine does it."""
    scale = ((high - low) / np.maximum(length, 1))[:, None, None]
    begin, step = low[:, None, None], step[:, :, None].astype(np.float64)
    pixel = np.arange(source, dtype=np.float64)[None, None]
    middle = begin + (step + 0.5) * scale
    if filter == "nearest":
        # Added up, as Pillow does it: the last bit decides which of two pixels is taken.
        ways = np.repeat(scale[:, :, 0], int(length.max(initial=1)), axis=1)
        ways[:, 0] = low + scale[:, 0, 0] * 0.5
        at = np.clip(step[:, :, 0].astype(np.int64), 0, ways.shape[1] - 1)
        middle = np.take_along_axis(np.cumsum(ways, axis=1), at, axis=1)[:, :, None]
        taken: F64 = (np.clip(np.floor(middle), 0, source - 1) == pixel).astype(np.float64)
        return taken
    if filter == "area":
        from_ = begin + step * scale
        found = np.clip(np.minimum(from_ + scale, pixel + 1) - np.maximum(from_, pixel), 0, None)
        if grows.any():
            first = np.floor(from_ + np.where(begin % 1, 1e-6, 0.0))
            share = (step + 1) - (first + 1 - begin) / scale
            share = np.where(share <= 0, 0.0, share - np.floor(share))
            pair = (pixel == np.clip(first, 0, source - 1)) * (1 - share)
            pair = pair + (pixel == np.clip(first + 1, 0, source - 1)) * share
            found = np.where(grows[:, None, None], pair, found)
    else:
        away = np.abs(pixel + 0.5 - middle) / np.maximum(scale, 1.0)
        found = _kernel(away, filter)
    total: F64 = found / np.where((sums := found.sum(axis=2, keepdims=True)) == 0, 1.0, sums)
    return total


def _kernel(away: Any, filter: str) -> Any:
    if filter == "bilinear":
        return np.clip(1 - away, 0, None)
    near = (1.5 * away - 2.5) * away * away + 1
    far = ((away - 5) * away + 8) * away * -0.5 + 2
    return np.where(away < 1, near, np.where(away < 2, far, 0.0))
