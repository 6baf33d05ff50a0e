"""Augmentation of the colours of decoded images: (samples, height, width, 3), uint8.

Every formula is written once, for arrays and for tensors: ``change`` gets NumPy or torch as ``xp``, and uses
what both have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import OptionError
from ..schema.columns import I64
from .augment import ImageOp
from .base import Draws, Op, Spec, Tensors, check_probability, per_sample
from .cutting import engine


class ColourOp(ImageOp):
    """A ImageOp on three channels, done to each sample with probability ``p``."""

    p: float

    def infer(self, spec: Spec) -> Spec:
        if spec.channels(self) != 3:
            raise OptionError(f"{type(self).__name__} needs three channels, not {spec}")
        return super().infer(spec)

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        chosen = draws.chance(self.p)
        if isinstance(self, _Magnitude) and type(self) in NATIVE:
            return _jittered(batch, chosen, [self], draws)
        strength = self.strength(draws)[chosen]
        if chosen.any():
            batch[chosen] = _levels(self.change(batch[chosen].astype(np.float32), strength, np))
        return batch

    def on_device(self, batch: Any, ids: I64, draws: Draws, tensors: Tensors) -> Any:
        chosen = tensors.send(per_sample(draws.chance(self.p), 4))
        changed = self.changed_on_device(batch, self.strength(draws), tensors)
        return tensors.torch.where(chosen, changed, batch)

    def changed_on_device(self, batch: Any, strength: Any, tensors: Tensors) -> Any:
        changed = self.change(batch.float(), tensors.send(strength), tensors.torch)
        return changed.clamp(0, 255).to(batch.dtype)

    def strength(self, draws: Draws) -> Any:
        """One number for each sample of the batch, ready to multiply images with."""
        return np.zeros((len(draws), 1, 1, 1))

    def change(self, images: Any, strength: Any, xp: Any) -> Any:
        """The images, as float32, changed."""
        raise NotImplementedError


def _levels(values: Any) -> npt.NDArray[np.uint8]:
    """Cut to 0..255; fractions are dropped, as FFCV and torchvision do."""
    found: npt.NDArray[np.uint8] = np.clip(values, 0, 255).astype(np.uint8)
    return found


def luma(images: Any, xp: Any = np) -> Any:
    """The gray of every pixel, exactly as Pillow's ``convert("L")``; all its steps are exact in float32."""
    red, green, blue = (images[..., channel] for channel in range(3))
    return xp.floor((19595 * red + 38470 * green + 7471 * blue + 32768) / 65536)


def _blend(images: Any, other: Any, ratio: Any, xp: Any) -> Any:
    ratio = xp.asarray(ratio, dtype=xp.float32)
    return ratio * images + (1 - ratio) * other


class _Magnitude(ColourOp):
    # Its column in the amounts that the engine takes.
    _column: int

    def __init__(self, magnitude: float, p: float = 0.5, *, share: str | None = None) -> None:
        if magnitude < 0:
            raise OptionError(f"magnitude must not be negative, as {magnitude} is")
        self.magnitude = float(magnitude)
        self.p = check_probability(p, "p")
        self.share = share

    def strength(self, draws: Draws) -> Any:
        return per_sample(draws.uniform(max(0.0, 1 - self.magnitude), 1 + self.magnitude), 4)


class RandomBrightness(_Magnitude):
    """Multiply by a random number from 1 - magnitude to 1 + magnitude."""

    _column = 0

    def change(self, images: Any, strength: Any, xp: Any) -> Any:
        return _blend(images, 0, strength, xp)


class RandomContrast(_Magnitude):
    """Move every pixel away from, or towards, the mean luma of its image."""

    _column = 1

    def change(self, images: Any, strength: Any, xp: Any) -> Any:
        # Summed exactly, so that it does not depend on how many images are summed side by side.
        mean = luma(images, xp).mean(axis=(1, 2), dtype=xp.float64)
        return _blend(images, xp.asarray(mean, dtype=xp.float32).reshape(-1, 1, 1, 1), strength, xp)


class RandomSaturation(_Magnitude):
    """Move every pixel away from, or towards, its own gray."""

    _column = 2

    def change(self, images: Any, strength: Any, xp: Any) -> Any:
        return _blend(images, luma(images, xp)[..., None], strength, xp)


class RandomHue(_Magnitude):
    """Turn the hue by a random part of the circle, from -magnitude to magnitude (at most 0.5)."""

    _column = 3

    def __init__(self, magnitude: float, p: float = 0.5, *, share: str | None = None) -> None:
        super().__init__(magnitude, p, share=share)
        if magnitude > 0.5:
            raise OptionError(f"magnitude of a hue is at most 0.5, not {magnitude}")

    def strength(self, draws: Draws) -> Any:
        return per_sample(draws.uniform(-self.magnitude, self.magnitude), 4)

    def change(self, images: Any, strength: Any, xp: Any) -> Any:
        red, green, blue = (images[..., channel] / 255 for channel in range(3))
        high = xp.maximum(xp.maximum(red, green), blue)
        low = xp.minimum(xp.minimum(red, green), blue)
        spread = high - low
        part = xp.where(spread == 0, 1, spread)
        hue = xp.where(
            high == red,
            (green - blue) / part,
            xp.where(high == green, 2 + (blue - red) / part, 4 + (red - green) / part),
        )
        hue = (hue / 6 + strength[..., 0]) % 1.0
        saturation = spread / xp.where(high == 0, 1, high)
        channels = []
        for n in (5, 3, 1):
            k = (n + hue * 6) % 6
            channels.append(high - high * saturation * xp.clip(xp.minimum(k, 4 - k), 0, 1))
        return xp.round(255 * xp.stack(channels, -1))


# Those that the engine does, all in one pass.
NATIVE = (RandomBrightness, RandomContrast, RandomSaturation, RandomHue)


def _jittered(batch: Any, chosen: Any, steps: Sequence[_Magnitude], draws: Draws) -> Any:
    amounts = np.full((len(batch), len(NATIVE)), np.nan, dtype=np.float32)
    for step in steps:
        amounts[chosen, step._column] = step.strength(draws)[chosen].reshape(-1)
    batch = np.ascontiguousarray(batch)
    engine().jitter(batch, amounts)
    return batch


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
        amounts = (brightness, contrast, saturation, hue)
        self._steps = [kind(amount) for kind, amount in zip(NATIVE, amounts, strict=True) if amount]
        self.brightness, self.contrast, self.saturation, self.hue = amounts
        self.p = check_probability(p, "p")
        self.share = share

    def infer(self, spec: Spec) -> Spec:
        for step in self._steps:
            spec = step.infer(spec)
        return spec

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        return _jittered(batch, draws.chance(self.p), self._steps, draws)

    def on_device(self, batch: Any, ids: I64, draws: Draws, tensors: Tensors) -> Any:
        chosen = tensors.send(per_sample(draws.chance(self.p), 4))
        changed = batch
        for step in self._steps:
            changed = step.changed_on_device(changed, step.strength(draws), tensors)
        return tensors.torch.where(chosen, changed, batch)


class RandomGrayscale(ColourOp):
    """Gray with probability ``p``, in three equal channels."""

    def __init__(self, p: float = 0.1, *, share: str | None = None) -> None:
        self.p = check_probability(p, "p")
        self.share = share

    def change(self, images: Any, strength: Any, xp: Any) -> Any:
        return xp.stack([luma(images, xp)] * 3, -1)


class RandomSolarization(ColourOp):
    """Invert the levels from ``threshold`` on."""

    def __init__(self, threshold: int = 128, p: float = 0.5, *, share: str | None = None) -> None:
        self.threshold = int(threshold)
        self.p = check_probability(p, "p")
        self.share = share

    def change(self, images: Any, strength: Any, xp: Any) -> Any:
        return xp.where(images >= self.threshold, 255 - images, images)


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
        """The weights of the kernel of every sample."""
        half = self.kernel_size // 2
        offsets = np.arange(-half, half + 1)
        kernel = np.exp(-0.5 * (offsets / draws.uniform(*self.sigma)[:, None]) ** 2)
        return (kernel / kernel.sum(axis=1, keepdims=True)).astype(np.float32)

    def change(self, images: Any, strength: Any, xp: Any) -> Any:
        half = self.kernel_size // 2
        for axis in (1, 2):
            size = images.shape[axis]
            padded = xp.concatenate(_around(images, half, axis, xp), axis)
            parts = []
            for step in range(self.kernel_size):
                shifted = padded[:, step : step + size] if axis == 1 else padded[:, :, step : step + size]
                parts.append(strength[:, step].reshape(-1, 1, 1, 1) * shifted)
            images = sum(parts)
        return xp.round(images)


def _around(images: Any, half: int, axis: int, xp: Any) -> list[Any]:
    """The images between what lies beside them: mirrored at the edge, without the edge itself."""

    def part(first: int, end: int) -> Any:
        return images[:, first:end] if axis == 1 else images[:, :, first:end]

    size = images.shape[axis]
    if size > half:
        before, after = part(1, half + 1), part(size - half - 1, size - 1)
        return [xp.flip(before, (axis,)), images, xp.flip(after, (axis,))]
    return [part(0, 1)] * half + [images] + [part(size - 1, size)] * half
