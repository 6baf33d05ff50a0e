"""Augmentation of decoded images, (samples, height, width, channels): what covers or mixes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import OptionError
from ..schema.columns import I64
from .base import Draws, Op, Spec, Tensors, per_sample
from .cutting import check_fill
from .dtypes import choose


class ImageOp(Op):
    """An op on uint8 images that keeps their size."""

    def infer(self, spec: Spec) -> Spec:
        spec.channels(self)
        if spec.dtype != np.uint8:
            raise OptionError(f"{type(self).__name__} needs uint8 images, not {spec}")
        return spec


class FillOp(Op):
    """An op on images of any dtype that fills places with a colour: one number, or one per channel."""

    fill: Any

    def infer(self, spec: Spec) -> Spec:
        check_fill(self.fill, spec.channels(self), spec)
        return spec


class Cutout(FillOp):
    """Fill a random square with a colour."""

    def __init__(self, crop_size: int, fill: int | Sequence[int] = 0, *, share: str | None = None) -> None:
        self.crop_size = int(crop_size)
        self.fill = np.array(fill)
        self.share = share

    def infer(self, spec: Spec) -> Spec:
        height, width, _ = super().infer(spec).image(self)
        if not 0 < self.crop_size <= min(height, width):
            raise OptionError(f"Cutout of {self.crop_size} does not fit images of {width}×{height}")
        return spec

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        size = self.crop_size
        top = draws.integers(batch.shape[1] - size + 1)
        left = draws.integers(batch.shape[2] - size + 1)
        for row in range(len(batch)):
            batch[row, top[row] : top[row] + size, left[row] : left[row] + size] = self.fill
        return batch

    def on_device(self, batch: Any, ids: I64, draws: Draws, tensors: Tensors) -> Any:
        size, torch = self.crop_size, tensors.torch
        top = tensors.send(per_sample(draws.integers(batch.shape[1] - size + 1), 4))
        left = tensors.send(per_sample(draws.integers(batch.shape[2] - size + 1), 4))
        y = torch.arange(batch.shape[1], device=batch.device).view(1, -1, 1, 1)
        x = torch.arange(batch.shape[2], device=batch.device).view(1, 1, -1, 1)
        inside = (y >= top) & (y < top + size) & (x >= left) & (x < left + size)
        return choose(inside, tensors.send(self.fill).to(batch.dtype), batch)


class Poison(ImageOp):
    """Lay a mask of opacity ``alpha`` over the images of some samples."""

    def __init__(
        self, mask: Any, alpha: Any, indices: Sequence[int], clamp: tuple[int, int] = (0, 255)
    ) -> None:
        self.mask, self.alpha = np.asarray(mask, dtype=np.float32), np.asarray(alpha, dtype=np.float32)
        self.indices, self.clamp = np.unique(np.asarray(indices, dtype=np.int64)), clamp

    def infer(self, spec: Spec) -> Spec:
        shape = super().infer(spec).image(self)
        alpha = self.alpha.shape if self.alpha.ndim != 2 else (*self.alpha.shape, 1)
        try:
            fits = np.broadcast_shapes(self.mask.shape, alpha, shape) == shape
        except ValueError:
            fits = False
        if not fits:
            raise OptionError(
                f"Poison's mask {self.mask.shape} and alpha {self.alpha.shape} do not fit {spec}"
            )
        return spec

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        rows = np.flatnonzero(np.isin(ids, self.indices))
        alpha = self.alpha[..., None] if self.alpha.ndim == 2 else self.alpha
        if len(rows):
            laid = batch[rows].astype(np.float32) * (1 - alpha) + self.mask * alpha
            batch[rows] = np.clip(laid, *self.clamp).astype(batch.dtype)
        return batch

    def on_device(self, batch: Any, ids: I64, draws: Draws, tensors: Tensors) -> Any:
        alpha = tensors.send(self.alpha[..., None] if self.alpha.ndim == 2 else self.alpha)
        laid = (batch.float() * (1 - alpha) + tensors.send(self.mask) * alpha).clamp(*self.clamp)
        chosen = tensors.send(per_sample(np.isin(ids, self.indices), 4))
        return tensors.torch.where(chosen, laid.to(batch.dtype), batch)


class ImageMixup(ImageOp):
    """Mix every image with the one before it in the batch; use LabelMixup with the same arguments."""

    mixes = True

    def __init__(self, alpha: float, same_lambda: bool = True) -> None:
        self.alpha, self.same_lambda = check_alpha(alpha), bool(same_lambda)
        self.share = f"mixup {self.alpha} {self.same_lambda}"

    def _parts(self, draws: Draws) -> Any:
        return per_sample(mixup_parts(self.alpha, self.same_lambda, len(draws), draws), 4).astype(np.float32)

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        part = self._parts(draws)
        mixed = part * batch + (1 - part) * np.roll(batch, 1, axis=0)
        return mixed.astype(batch.dtype)

    def on_device(self, batch: Any, ids: I64, draws: Draws, tensors: Tensors) -> Any:
        part = tensors.send(self._parts(draws))
        return (part * batch + (1 - part) * batch.roll(1, 0)).to(batch.dtype)


def check_alpha(alpha: float) -> float:
    if not alpha > 0 or math.isinf(alpha):
        raise OptionError(f"mixup's alpha must be above 0, not {alpha}")
    return float(alpha)


def mixup_parts(alpha: float, same: bool, count: int, draws: Draws) -> Any:
    """How much of itself every sample keeps."""
    generator = draws.generator()
    return np.full(count, generator.beta(alpha, alpha)) if same else generator.beta(alpha, alpha, count)
