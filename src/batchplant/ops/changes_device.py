"""The changes of ``changes`` made to tensors on a device: the same levels, within one.

Every change is made once, to all images of a batch that it was drawn for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..schema.columns import I64
from .base import Tensors, per_sample
from .changes import Change, Changes
from .colour import luma
from .jpeg_device import through_jpeg
from .warping_device import warp_tensor

# Amounts (n, AMOUNTS) and the images (n, height, width, channels) that they are for.
Form = Callable[[Any, Any, Tensors], Any]


def change_on_device(
    images: Any, changes: Changes, tensors: Tensors, fill: Any = 0, smooth: bool = False
) -> Any:
    """``changes.change`` for a tensor; the images given are left as they are."""
    for step in range(changes.codes.shape[1]):
        codes = changes.codes[:, step]
        made = images
        for code in np.unique(codes):
            if code == Change.NONE:
                continue
            rows = np.flatnonzero(codes == code)
            amounts = changes.amounts[rows, step]
            at = tensors.send(rows)
            some = images if len(rows) == len(images) else images[at]
            if code == Change.AFFINE:
                changed = _move(some, amounts, tensors, fill, smooth)
            else:
                changed = FORMS[Change(code)](some, amounts, tensors)
            if some is images:
                made = changed
            else:
                made = made.clone() if made is images else made
                made[at] = changed
        images = made
    return images


def _ratio(amounts: Any, tensors: Tensors) -> Any:
    return tensors.send(per_sample(amounts[:, 0].astype(np.float32), 4))


def _blend(start: Any, end: Any, amounts: Any, tensors: Tensors) -> Any:
    level = start + _ratio(amounts, tensors) * (end - start)
    return level.clamp(0, 255).to(tensors.torch.uint8)


def _brightness(images: Any, amounts: Any, tensors: Tensors) -> Any:
    return _blend(0, images.float(), amounts, tensors)


def _contrast(images: Any, amounts: Any, tensors: Tensors) -> Any:
    levels = images.float()
    gray = luma(levels, tensors.torch) if levels.shape[-1] == 3 else levels
    mean = gray.flatten(1).mean(1, dtype=tensors.torch.float64)
    return _blend((mean + 0.5).floor().float().view(-1, 1, 1, 1), levels, amounts, tensors)


def _saturation(images: Any, amounts: Any, tensors: Tensors) -> Any:
    if images.shape[-1] != 3:
        return images
    levels = images.float()
    return _blend(luma(levels, tensors.torch)[..., None], levels, amounts, tensors)


def _sharpness(images: Any, amounts: Any, tensors: Tensors) -> Any:
    height, width = images.shape[1:3]
    if height < 3 or width < 3:
        return images
    levels = images.float()
    middle = levels[:, 1:-1, 1:-1]
    lines = levels[:, :-2] + levels[:, 1:-1] + levels[:, 2:]
    around = lines[:, :, :-2] + lines[:, :, 1:-1] + lines[:, :, 2:]
    made = images.clone()
    made[:, 1:-1, 1:-1] = _blend(((around + 4 * middle + 6) / 13).floor(), middle, amounts, tensors)
    return made


def _posterize(images: Any, amounts: Any, tensors: Tensors) -> Any:
    bits = amounts[:, 0].astype(np.int64).clip(0, 8)
    return images & tensors.send(per_sample(((0xFF << (8 - bits)) & 0xFF).astype(np.uint8), 4))


def _solarize(images: Any, amounts: Any, tensors: Tensors) -> Any:
    return tensors.torch.where(images < _ratio(amounts, tensors), images, 255 - images)


def _invert(images: Any, amounts: Any, tensors: Tensors) -> Any:
    return 255 - images


def _looked_up(images: Any, tables: Any) -> Any:
    """Every level by the table of its image and channel, (n, channels, 256)."""
    planes = images.permute(0, 3, 1, 2)
    found = tables.gather(2, planes.flatten(2).long())
    return found.view(planes.shape).permute(0, 2, 3, 1).contiguous()


def _autocontrast(images: Any, amounts: Any, tensors: Tensors) -> Any:
    torch = tensors.torch
    low = images.amin((1, 2))[..., None].double()
    high = images.amax((1, 2))[..., None].double()
    levels = torch.arange(256, device=images.device, dtype=torch.float64)
    # A number over a tensor would be its reciprocal times the number, rounded twice.
    scale = torch.full_like(high, 255.0) / (high - low).clamp(min=1)
    tables = (levels * scale - low * scale).clamp(0, 255)
    return _looked_up(images, torch.where(high <= low, levels, tables).to(torch.uint8))


def _equalize(images: Any, amounts: Any, tensors: Tensors) -> Any:
    torch, device = tensors.torch, images.device
    count, height, width, channels = images.shape
    own = torch.arange(count * channels, device=device).view(count, 1, 1, channels) * 256
    at = (images.long() + own).flatten()
    ones = torch.ones(1, device=device, dtype=torch.int64).expand_as(at)
    seen = torch.zeros(count * channels * 256, device=device, dtype=torch.int64).scatter_add_(0, at, ones)
    seen = seen.view(count, channels, 256)
    levels = torch.arange(256, device=device)
    lightest = torch.where(seen > 0, levels, 0).amax(2, keepdim=True)
    step = (height * width - seen.gather(2, lightest)) // 255
    below = step // 2 + seen.cumsum(2) - seen
    tables = torch.where(step == 0, levels, (below // step.clamp(min=1)).clamp(max=255))
    return _looked_up(images, tables.to(torch.uint8))


def _jpeg(images: Any, amounts: Any, tensors: Tensors) -> Any:
    return through_jpeg(images, amounts[:, 0].astype(np.int64), tensors)


FORMS: dict[Change, Form] = {
    Change.BRIGHTNESS: _brightness,
    Change.CONTRAST: _contrast,
    Change.SATURATION: _saturation,
    Change.SHARPNESS: _sharpness,
    Change.POSTERIZE: _posterize,
    Change.SOLARIZE: _solarize,
    Change.INVERT: _invert,
    Change.AUTOCONTRAST: _autocontrast,
    Change.EQUALIZE: _equalize,
    Change.JPEG: _jpeg,
}


def _move(images: Any, matrices: Any, tensors: Tensors, fill: Any, smooth: bool) -> Any:
    """Every pixel from where the matrix (n, AMOUNTS) of its image says."""
    count, height, width, channels = images.shape
    if smooth:
        inverse = np.broadcast_to(np.eye(3), (count, 1, 3, 3)).copy()
        inverse[:, 0, :2] = matrices.reshape(-1, 2, 3)
        canvases = np.broadcast_to(np.array([height, width], np.int32), (count, 1, 2))
        return warp_tensor(images, inverse, canvases, True, fill, tensors)
    torch, device = tensors.torch, images.device
    # Pillow's fixed-point arithmetic, so that ties fall the same way.
    first, right, down = (tensors.send(part) for part in _fixed(matrices))
    row = torch.arange(height, device=device).view(1, 1, -1, 1)
    column = torch.arange(width, device=device).view(1, 1, 1, -1)
    x, y = ((first + right * column + down * row) >> 16).unbind(1)
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    at = (y.clamp(0, height - 1) * width + x.clamp(0, width - 1)).view(count, -1, 1)
    flat = images.reshape(count, height * width, channels)
    found = flat.gather(1, at.expand(-1, -1, channels)).view(images.shape)
    return torch.where(inside[..., None], found, tensors.send(np.asarray(fill, np.uint8)))


def _fixed(matrices: Any) -> tuple[I64, I64, I64]:
    """In 16.16 bits, (n, 2, 1, 1) each: where the first pixel comes from, and one step right and down."""
    pairs = matrices.reshape(-1, 2, 3)
    first = pairs[..., 2] + pairs[..., 0] * 0.5 + pairs[..., 1] * 0.5
    first, right, down = (
        np.floor(part * 65536.0 + 0.5).astype(np.int64)[..., None, None]
        for part in (first, pairs[..., 0], pairs[..., 1])
    )
    return first, right, down
