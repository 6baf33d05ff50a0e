"""Changes to decoded pictures: batches of (samples, height, width, channels), uint8 unless said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..columns import I64
from ..errors import OptionError
from .base import Draws, Op, Spec, check_probability, per_sample
from .decode import pair_of


class PictureOp(Op):
    """An op on uint8 pictures that keeps their size."""

    def infer(self, spec: Spec) -> Spec:
        spec.picture(self)
        if spec.dtype != np.uint8:
            raise OptionError(f"{type(self).__name__} needs uint8 pictures, not {spec}")
        return spec


class ColourOp(PictureOp):
    """A PictureOp on three channels, done to each sample with probability ``p``."""

    p: float

    def infer(self, spec: Spec) -> Spec:
        if spec.picture(self)[2] != 3:
            raise OptionError(f"{type(self).__name__} needs three channels, not {spec}")
        return super().infer(spec)

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        chosen = draws.chance(self.p)
        strength = self.strength(draws)[chosen]
        if chosen.any():
            batch[chosen] = _levels(self.change(batch[chosen].astype(np.float32), strength))
        return batch

    def strength(self, draws: Draws) -> Any:
        """One number for each sample of the batch."""
        return np.zeros(len(draws))

    def change(self, pictures: Any, strength: Any) -> Any:
        """The pictures, as float32, changed."""
        raise NotImplementedError


def _levels(values: Any) -> npt.NDArray[np.uint8]:
    """Cut to 0..255; fractions are dropped, as FFCV and torchvision do."""
    found: npt.NDArray[np.uint8] = np.clip(values, 0, 255).astype(np.uint8)
    return found


def luma(pictures: Any) -> Any:
    """The gray of every pixel, exactly as Pillow's ``convert("L")``; all its steps are exact in float32."""
    red, green, blue = (pictures[..., channel] for channel in range(3))
    return np.floor((19595 * red + 38470 * green + 7471 * blue + 32768) / 65536)


def _around_one(magnitude: float, draws: Draws) -> Any:
    return draws.uniform(max(0.0, 1 - magnitude), 1 + magnitude)


def _blend(pictures: Any, other: Any, ratio: Any) -> Any:
    ratio = per_sample(ratio, 4).astype(np.float32)
    return ratio * pictures + (1 - ratio) * other


class _Magnitude(ColourOp):
    def __init__(self, magnitude: float, p: float = 0.5, *, share: str | None = None) -> None:
        if magnitude < 0:
            raise OptionError(f"magnitude must not be negative, as {magnitude} is")
        self.magnitude = float(magnitude)
        self.p = check_probability(p, "p")
        self.share = share

    def strength(self, draws: Draws) -> Any:
        return _around_one(self.magnitude, draws)


class RandomBrightness(_Magnitude):
    """Multiply by a random number from 1 - magnitude to 1 + magnitude."""

    def change(self, pictures: Any, strength: Any) -> Any:
        return _blend(pictures, np.float32(0), strength)


class RandomContrast(_Magnitude):
    """Move every pixel away from, or towards, the mean luma of its picture."""

    def change(self, pictures: Any, strength: Any) -> Any:
        # Summed exactly, so that it does not depend on how many pictures are summed side by side.
        mean = luma(pictures).mean(axis=(1, 2), dtype=np.float64).astype(np.float32)
        return _blend(pictures, per_sample(mean, 4), strength)


class RandomSaturation(_Magnitude):
    """Move every pixel away from, or towards, its own gray."""

    def change(self, pictures: Any, strength: Any) -> Any:
        return _blend(pictures, luma(pictures)[..., None], strength)


class RandomHue(_Magnitude):
    """Turn the hue by a random part of the circle, from -magnitude to magnitude (at most 0.5)."""

    def __init__(self, magnitude: float, p: float = 0.5, *, share: str | None = None) -> None:
        super().__init__(magnitude, p, share=share)
        if magnitude > 0.5:
            raise OptionError(f"magnitude of a hue is at most 0.5, not {magnitude}")

    def strength(self, draws: Draws) -> Any:
        return draws.uniform(-self.magnitude, self.magnitude)

    def change(self, pictures: Any, strength: Any) -> Any:
        red, green, blue = (pictures[..., channel] / 255 for channel in range(3))
        high = np.maximum(np.maximum(red, green), blue)
        low = np.minimum(np.minimum(red, green), blue)
        spread = high - low
        part = np.where(spread == 0, 1, spread)
        hue = np.where(
            high == red,
            (green - blue) / part,
            np.where(high == green, 2 + (blue - red) / part, 4 + (red - green) / part),
        )
        hue = (hue / 6 + per_sample(strength, 3)) % 1.0
        saturation = spread / np.where(high == 0, 1, high)
        return np.rint(255 * np.stack([_hsv_channel(n, hue, saturation, high) for n in (5, 3, 1)], axis=-1))


def _hsv_channel(n: int, hue: Any, saturation: Any, value: Any) -> Any:
    k = (n + hue * 6) % 6
    return value - value * saturation * np.clip(np.minimum(k, 4 - k), 0, 1)


class ColorJitter(Op):
    """Brightness, contrast, saturation and hue, one after another, to each sample with probability ``p``."""

    def __init__(
        self,
        brightness: float = 0.0,
        contrast: float = 0.0,
        saturation: float = 0.0,
        hue: float = 0.0,
        p: float = 1.0,
        *,
        share: str | None = None,
    ) -> None:
        kinds = (RandomBrightness, RandomContrast, RandomSaturation, RandomHue)
        amounts = (brightness, contrast, saturation, hue)
        self._steps = [kind(amount) for kind, amount in zip(kinds, amounts, strict=True) if amount]
        self.brightness, self.contrast, self.saturation, self.hue = amounts
        self.p = check_probability(p, "p")
        self.share = share

    def infer(self, spec: Spec) -> Spec:
        for step in self._steps:
            spec = step.infer(spec)
        return spec

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        chosen = draws.chance(self.p)
        strengths = [step.strength(draws)[chosen] for step in self._steps]
        if chosen.any():
            pictures = batch[chosen]
            for step, strength in zip(self._steps, strengths, strict=True):
                pictures = _levels(step.change(pictures.astype(np.float32), strength))
            batch[chosen] = pictures
        return batch


class RandomGrayscale(ColourOp):
    """Gray with probability ``p``, in three equal channels."""

    def __init__(self, p: float = 0.1, *, share: str | None = None) -> None:
        self.p = check_probability(p, "p")
        self.share = share

    def change(self, pictures: Any, strength: Any) -> Any:
        return np.repeat(luma(pictures)[..., None], 3, axis=-1)


class RandomSolarization(ColourOp):
    """Invert the levels from ``threshold`` on."""

    def __init__(self, threshold: int = 128, p: float = 0.5, *, share: str | None = None) -> None:
        self.threshold = int(threshold)
        self.p = check_probability(p, "p")
        self.share = share

    def change(self, pictures: Any, strength: Any) -> Any:
        return np.where(pictures >= self.threshold, 255 - pictures, pictures)


class GaussianBlur(ColourOp):
    """Blur with a Gaussian kernel of ``kernel_size`` pixels and a random sigma."""

    def __init__(
        self,
        kernel_size: int = 3,
        sigma: Sequence[float] = (0.1, 2.0),
        p: float = 0.5,
        *,
        share: str | None = None,
    ) -> None:
        if kernel_size < 1 or kernel_size % 2 == 0 or not 0 < sigma[0] <= sigma[1]:
            raise OptionError("kernel_size is odd, and sigma is (low, high) above 0")
        self.kernel_size, self.sigma = kernel_size, (float(sigma[0]), float(sigma[1]))
        self.p = check_probability(p, "p")
        self.share = share

    def strength(self, draws: Draws) -> Any:
        return draws.uniform(*self.sigma)

    def change(self, pictures: Any, strength: Any) -> Any:
        half = self.kernel_size // 2
        offsets = np.arange(-half, half + 1)
        kernel = np.exp(-0.5 * (offsets / np.asarray(strength)[:, None]) ** 2)
        kernel = (kernel / kernel.sum(axis=1, keepdims=True)).astype(np.float32)
        for axis in (1, 2):
            size = pictures.shape[axis]
            # Mirrored at the edge, without repeating the edge itself.
            around = np.pad(np.arange(size), half, mode="reflect" if size > half else "edge")
            pictures = sum(
                per_sample(kernel[:, step], 4) * np.take(pictures, around[step : step + size], axis=axis)
                for step in range(self.kernel_size)
            )
        return np.rint(pictures)


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


class RandomTranslate(FillOp):
    """Shift by up to ``padding`` pixels each way, the rest filled with a colour."""

    def __init__(self, padding: int, fill: int | Sequence[int] = 0, *, share: str | None = None) -> None:
        if padding < 0:
            raise OptionError(f"padding must not be negative, as {padding} is")
        self.padding = int(padding)
        self.fill = np.array(fill)
        self.share = share

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        count, height, width, channels = batch.shape
        pad = self.padding
        room = np.empty((height + 2 * pad, width + 2 * pad, channels), dtype=batch.dtype)
        room[:] = self.fill
        top, left = draws.integers(2 * pad + 1), draws.integers(2 * pad + 1)
        for row in range(count):
            room[pad : pad + height, pad : pad + width] = batch[row]
            batch[row] = room[top[row] : top[row] + height, left[row] : left[row] + width]
        return batch


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

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        count, height, width, channels = batch.shape
        pad, (high, wide) = self.padding, self.size
        room = np.empty((height + 2 * pad, width + 2 * pad, channels), dtype=batch.dtype)
        room[:] = self.fill
        top, left = draws.integers(height + 2 * pad - high + 1), draws.integers(width + 2 * pad - wide + 1)
        out = np.empty((count, high, wide, channels), dtype=batch.dtype)
        for row in range(count):
            room[pad : pad + height, pad : pad + width] = batch[row]
            out[row] = room[top[row] : top[row] + high, left[row] : left[row] + wide]
        return out


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


class ImageMixup(PictureOp):
    """Mix every picture with the one before it in the batch; use LabelMixup with the same arguments."""

    def __init__(self, alpha: float, same_lambda: bool = True) -> None:
        self.alpha, self.same_lambda = check_alpha(alpha), bool(same_lambda)
        self.share = f"mixup {self.alpha} {self.same_lambda}"

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        part = per_sample(mixup_parts(self.alpha, self.same_lambda, len(batch), draws), 4).astype(np.float32)
        mixed = part * batch + (1 - part) * np.roll(batch, 1, axis=0)
        return mixed.astype(batch.dtype)


def check_alpha(alpha: float) -> float:
    if not alpha > 0 or math.isinf(alpha):
        raise OptionError(f"mixup's alpha must be above 0, not {alpha}")
    return float(alpha)


def mixup_parts(alpha: float, same: bool, count: int, draws: Draws) -> Any:
    """How much of itself every sample keeps."""
    generator = draws.generator()
    return np.full(count, generator.beta(alpha, alpha)) if same else generator.beta(alpha, alpha, count)
