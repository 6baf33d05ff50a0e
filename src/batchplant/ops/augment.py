"""Augmentation of decoded pictures, (samples, height, width, channels): what moves, covers or mixes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..columns import I32, I64
from ..errors import OptionError
from .base import Draws, Op, Spec, Tensors, per_sample
from .decode import pair_of
from .geometry import Motion, shifted


class PictureOp(Op):
    """An op on uint8 pictures that keeps their size."""

    def infer(self, spec: Spec) -> Spec:
        spec.picture(self)
        if spec.dtype != np.uint8:
            raise OptionError(f"{type(self).__name__} needs uint8 pictures, not {spec}")
        return spec


class FillOp(Op):
    """An op on pictures of any dtype that fills places with a colour: one number, or one per channel."""

    fill: Any

    def infer(self, spec: Spec) -> Spec:
        channels = spec.picture(self)[2]
        if self.fill.shape not in ((), (1,), (channels,)):
            raise OptionError(f"the fill has {self.fill.size} numbers, and the pictures are {spec}")
        if spec.dtype is not None and spec.dtype.kind in "iu":
            limits = np.iinfo(spec.dtype)
            if not limits.min <= self.fill.min() <= self.fill.max() <= limits.max:
                raise OptionError(f"the fill {self.fill.tolist()} is out of range for {spec.dtype}")
        return spec


class Cutout(FillOp):
    """Fill a random square with a colour."""

    def __init__(self, crop_size: int, fill: int | Sequence[int] = 0, *, share: str | None = None) -> None:
        self.crop_size = int(crop_size)
        self.fill = np.array(fill)
        self.share = share

    def infer(self, spec: Spec) -> Spec:
        height, width, _ = super().infer(spec).picture(self)
        if not 0 < self.crop_size <= min(height, width):
            raise OptionError(f"Cutout of {self.crop_size} does not fit pictures of {width}×{height}")
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
        return torch.where(inside, tensors.send(self.fill).to(batch.dtype), batch)


class RandomTranslate(FillOp):
    """Shift by up to ``padding`` pixels each way, the rest filled with a colour."""

    def __init__(self, padding: int, fill: int | Sequence[int] = 0, *, share: str | None = None) -> None:
        if padding < 0:
            raise OptionError(f"padding must not be negative, as {padding} is")
        self.padding = int(padding)
        self.fill = np.array(fill)
        self.share = share

    def _corner(self, draws: Draws) -> tuple[I64, I64]:
        """Top and left of what is seen, in the padded picture."""
        return draws.integers(2 * self.padding + 1), draws.integers(2 * self.padding + 1)

    def move(self, sizes: I32, draws: Draws) -> Motion:
        top, left = self._corner(draws)
        return shifted(sizes, self.padding - left, self.padding - top)

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        count, height, width, channels = batch.shape
        pad = self.padding
        room = np.empty((height + 2 * pad, width + 2 * pad, channels), dtype=batch.dtype)
        room[:] = self.fill
        top, left = self._corner(draws)
        for row in range(count):
            room[pad : pad + height, pad : pad + width] = batch[row]
            batch[row] = room[top[row] : top[row] + height, left[row] : left[row] + width]
        return batch

    def on_device(self, batch: Any, ids: I64, draws: Draws, tensors: Tensors) -> Any:
        size = tuple(batch.shape[1:3])
        return _padded_windows(batch, self.padding, self.fill, self._corner(draws), size, tensors)


class RandomCrop(FillOp):
    """A random part of ``size``, after ``padding`` on every side."""

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int = 0,
        fill: int | Sequence[int] = 0,
        *,
        share: str | None = None,
    ) -> None:
        if padding < 0:
            raise OptionError(f"padding must not be negative, as {padding} is")
        self.size = pair_of(size)
        self.padding, self.fill, self.share = int(padding), np.array(fill), share

    def infer(self, spec: Spec) -> Spec:
        height, width, channels = super().infer(spec).picture(self)
        if self.size[0] > height + 2 * self.padding or self.size[1] > width + 2 * self.padding:
            raise OptionError(f"RandomCrop of {self.size} does not fit pictures of {width}×{height}")
        return Spec(spec.dtype, (*self.size, channels))

    def _corner(self, sizes: Any, draws: Draws) -> tuple[I64, I64]:
        """Top and left of what is seen, in the padded picture; ``sizes``: height, width, or those of each."""
        room = np.asarray(sizes) + 2 * self.padding - self.size + 1
        return draws.integers(room[..., 0]), draws.integers(room[..., 1])

    def move(self, sizes: I32, draws: Draws) -> Motion:
        top, left = self._corner(sizes, draws)
        return shifted(sizes, self.padding - left, self.padding - top, after=self.size)

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        count, height, width, channels = batch.shape
        pad, (high, wide) = self.padding, self.size
        room = np.empty((height + 2 * pad, width + 2 * pad, channels), dtype=batch.dtype)
        room[:] = self.fill
        top, left = self._corner((height, width), draws)
        out = np.empty((count, high, wide, channels), dtype=batch.dtype)
        for row in range(count):
            room[pad : pad + height, pad : pad + width] = batch[row]
            out[row] = room[top[row] : top[row] + high, left[row] : left[row] + wide]
        return out

    def on_device(self, batch: Any, ids: I64, draws: Draws, tensors: Tensors) -> Any:
        corner = self._corner(batch.shape[1:3], draws)
        return _padded_windows(batch, self.padding, self.fill, corner, self.size, tensors)


def _padded_windows(
    batch: Any, pad: int, fill: Any, corner: tuple[I64, I64], size: tuple[int, int], tensors: Tensors
) -> Any:
    """Of tensors: from every picture, with ``pad`` pixels of ``fill`` around it, the window at its corner."""
    torch = tensors.torch
    count, height, width, channels = batch.shape
    room = torch.empty(
        (count, height + 2 * pad, width + 2 * pad, channels), dtype=batch.dtype, device=batch.device
    )
    room[:] = tensors.send(fill).to(batch.dtype)
    room[:, pad : pad + height, pad : pad + width] = batch
    y, x = (tensors.send(at[:, None] + np.arange(side)) for at, side in zip(corner, size, strict=True))
    row = torch.arange(count, device=batch.device).view(-1, 1, 1)
    return room[row, y[:, :, None], x[:, None, :]]


class Poison(PictureOp):
    """Lay a mask of opacity ``alpha`` over the pictures of some samples."""

    def __init__(
        self, mask: Any, alpha: Any, indices: Sequence[int], clamp: tuple[int, int] = (0, 255)
    ) -> None:
        self.mask, self.alpha = np.asarray(mask, dtype=np.float32), np.asarray(alpha, dtype=np.float32)
        self.indices, self.clamp = np.unique(np.asarray(indices, dtype=np.int64)), clamp

    def infer(self, spec: Spec) -> Spec:
        shape = super().infer(spec).picture(self)
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


class ImageMixup(PictureOp):
    """Mix every picture with the one before it in the batch; use LabelMixup with the same arguments."""

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
