"""The ops of pictures on tensors: the same draws and the same arithmetic as on arrays, on any device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ...columns import I64
from ...ops import augment
from ...ops.base import Draws, Op
from ...ops.decode import ChannelsFirst, Normalize, RandomHorizontalFlip
from ..torch import Convert, ModuleWrapper, ToDevice, ToTensor, ToTorchImage, View, torch_dtype

Run = Callable[[Any, I64, Draws], Any]


def on_device(op: Op) -> Run | None:
    """How an op runs on tensors of pictures; None where it does not."""
    if isinstance(op, ToTensor | ToDevice | ToTorchImage | Convert | View | ModuleWrapper):
        return op.run
    make = _MADE.get(type(op))
    return None if make is None else lambda batch, ids, draws: make(op, batch, ids, draws)


def _sent(values: Any, batch: Any, dtype: Any = torch.float32) -> Any:
    """One number for each sample, on the device, ready to multiply pictures with."""
    found = torch.from_numpy(np.ascontiguousarray(values))
    if batch.is_cuda:
        found = found.pin_memory()
    return found.to(batch.device, dtype, non_blocking=True).view(-1, 1, 1, 1)


def _flip(op: Any, batch: Any, ids: I64, draws: Draws) -> Any:
    return torch.where(_sent(op.flips(draws), batch, torch.bool), batch.flip(2), batch)


def _normalize(op: Any, batch: Any, ids: I64, draws: Draws) -> Any:
    mean, std = (torch.tensor(one.tolist(), dtype=torch.float32) for one in (op.mean, op.std))
    if batch.is_cuda:
        mean, std = (one.pin_memory().to(batch.device, non_blocking=True) for one in (mean, std))
    return ((batch.to(torch.float32) - mean) / std).to(torch_dtype(op.dtype))


def _channels_first(op: Any, batch: Any, ids: I64, draws: Draws) -> Any:
    return batch.permute(0, 3, 1, 2).contiguous()


def _levels(values: Any) -> Any:
    return values.clamp(0, 255).to(torch.uint8)


def _luma(pictures: Any) -> Any:
    red, green, blue = pictures.unbind(-1)
    return torch.floor((19595 * red + 38470 * green + 7471 * blue + 32768) / 65536)


def _brightness(pictures: Any, strength: Any) -> Any:
    return strength * pictures


def _contrast(pictures: Any, strength: Any) -> Any:
    mean = _luma(pictures).to(torch.float64).mean(dim=(1, 2)).to(torch.float32).view(-1, 1, 1, 1)
    return strength * pictures + (1 - strength) * mean


def _saturation(pictures: Any, strength: Any) -> Any:
    return strength * pictures + (1 - strength) * _luma(pictures)[..., None]


def _hue(pictures: Any, strength: Any) -> Any:
    red, green, blue = (pictures / 255).unbind(-1)
    high = torch.maximum(torch.maximum(red, green), blue)
    spread = high - torch.minimum(torch.minimum(red, green), blue)
    part = torch.where(spread == 0, 1, spread)
    hue = torch.where(high == green, 2 + (blue - red) / part, 4 + (red - green) / part)
    hue = torch.where(high == red, (green - blue) / part, hue)
    hue = torch.remainder(hue / 6 + strength[..., 0], 1.0)
    saturation = spread / torch.where(high == 0, 1, high)
    channels = []
    for n in (5, 3, 1):
        k = torch.remainder(n + hue * 6, 6)
        channels.append(high - high * saturation * torch.minimum(k, 4 - k).clamp(0, 1))
    return torch.round(255 * torch.stack(channels, dim=-1))


_CHANGES: dict[type[Op], Callable[[Any, Any], Any]] = {
    augment.RandomBrightness: _brightness,
    augment.RandomContrast: _contrast,
    augment.RandomSaturation: _saturation,
    augment.RandomHue: _hue,
    augment.RandomGrayscale: lambda pictures, _: _luma(pictures)[..., None].expand_as(pictures),
}


def _colour(op: Any, batch: Any, ids: I64, draws: Draws) -> Any:
    chosen = draws.chance(op.p)
    strength = _sent(op.strength(draws), batch)
    changed = _levels(_CHANGES[type(op)](batch.to(torch.float32), strength))
    return torch.where(_sent(chosen, batch, torch.bool), changed, batch)


def _jitter(op: Any, batch: Any, ids: I64, draws: Draws) -> Any:
    chosen = draws.chance(op.p)
    changed = batch
    for step in op._steps:
        strength = _sent(step.strength(draws), batch)
        changed = _levels(_CHANGES[type(step)](changed.to(torch.float32), strength))
    return torch.where(_sent(chosen, batch, torch.bool), changed, batch)


def _solarize(op: Any, batch: Any, ids: I64, draws: Draws) -> Any:
    chosen = draws.chance(op.p)
    changed = torch.where(batch >= op.threshold, 255 - batch, batch)
    return torch.where(_sent(chosen, batch, torch.bool), changed, batch)


def _cutout(op: Any, batch: Any, ids: I64, draws: Draws) -> Any:
    height, width, channels = batch.shape[1:]
    top = _sent(draws.integers(height - op.crop_size + 1), batch, torch.int64)
    left = _sent(draws.integers(width - op.crop_size + 1), batch, torch.int64)
    y = torch.arange(height, device=batch.device).view(1, -1, 1, 1)
    x = torch.arange(width, device=batch.device).view(1, 1, -1, 1)
    inside = (y >= top) & (y < top + op.crop_size) & (x >= left) & (x < left + op.crop_size)
    fill = torch.tensor(np.broadcast_to(op.fill, (channels,)).tolist(), dtype=batch.dtype)
    if batch.is_cuda:
        fill = fill.pin_memory().to(batch.device, non_blocking=True)
    return torch.where(inside, fill, batch)


def _mixup(op: Any, batch: Any, ids: I64, draws: Draws) -> Any:
    parts = augment.mixup_parts(op.alpha, op.same_lambda, len(batch), draws)
    part = _sent(np.asarray(parts, np.float32), batch)
    mixed = part * batch + (1 - part) * batch.roll(1, 0)
    return mixed.to(batch.dtype)


_MADE: dict[type[Op], Callable[[Any, Any, I64, Draws], Any]] = {
    RandomHorizontalFlip: _flip,
    Normalize: _normalize,
    ChannelsFirst: _channels_first,
    augment.ColorJitter: _jitter,
    augment.RandomSolarization: _solarize,
    augment.Cutout: _cutout,
    augment.ImageMixup: _mixup,
    **dict.fromkeys(_CHANGES, _colour),
}
