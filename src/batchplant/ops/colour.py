"""Augmentation that changes pixels where they are: colour, levels, noise, erased boxes.

Images are decoded, (samples, height, width, channels). Levels are those of Pillow, and so of torchvision for
images of Pillow. The native core makes most changes (:mod:`.changes`).
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Sequence
from statistics import NormalDist
from types import ModuleType

import numpy as np
import numpy.typing as npt

from .. import _native
from ..errors import OptionError
from ..ops.base import Tensor
from ..schema.columns import I64, AnyArray, Flags
from .base import F64, Batch, Draws, Op, Spec, Tensors, check_probability, per_sample
from .changes import Change, Changes, change, change_on_device, luma, numbers_of, numbers_on_device
from .cutting import check_fill, engine
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

    fill: AnyArray

    def infer(self, spec: Spec) -> Spec:
        check_fill(self.fill, spec.channels(self), spec)
        return spec


class ColourOp(ImageOp):
    """An ImageOp on three channels, done to each sample with probability ``p``."""

    p: float

    def infer(self, spec: Spec) -> Spec:
        if spec.channels(self) != 3:
            raise OptionError(f"{type(self).__name__} needs three channels, not {spec}")
        return super().infer(spec)

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        chosen = draws.chance(self.p)
        if isinstance(self, _Magnitude) and type(self) in NATIVE:
            return _jitter(batch, chosen, [self], draws)
        strength = self.strength(draws)[chosen]
        if chosen.any():
            batch[chosen] = _levels(self.change(batch[chosen].astype(np.float32), strength, np))
        return batch

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        chosen = tensors.send(per_sample(draws.chance(self.p), 4))
        changed = self.changed_on_device(batch, self.strength(draws), tensors)
        return tensors.torch.where(chosen, changed, batch)

    def changed_on_device(self, batch: Batch, strength: AnyArray, tensors: Tensors) -> Tensor:
        changed = self.change(batch.float(), tensors.send(strength), tensors.torch)
        return changed.clamp(0, 255).to(batch.dtype)

    def strength(self, draws: Draws) -> AnyArray:
        """One number for each sample of the batch, ready to multiply images with."""
        return np.zeros((len(draws), 1, 1, 1))

    def change(self, images: Batch, strength: Batch, xp: ModuleType) -> Batch:
        """The images, as float32, changed."""
        raise NotImplementedError


def _levels(values: AnyArray) -> npt.NDArray[np.uint8]:
    """Cut to 0..255; fractions are dropped, as FFCV and torchvision do."""
    return np.clip(values, 0, 255).astype(np.uint8)


def _blend(images: Batch, base: Batch, ratio: Batch, xp: ModuleType) -> Batch:
    ratio = xp.asarray(ratio, dtype=xp.float32)
    return ratio * images + (1 - ratio) * base


class _Magnitude(ColourOp):
    # Its column in the amounts that the engine takes.
    _column: int

    def __init__(self, magnitude: float, p: float = 0.5, *, share: str | None = None) -> None:
        if magnitude < 0:
            raise OptionError(f"magnitude must not be negative, as {magnitude} is")
        self.magnitude = float(magnitude)
        self.p = check_probability(p, "p")
        self.share = share

    def strength(self, draws: Draws) -> AnyArray:
        return per_sample(draws.uniform(max(0.0, 1 - self.magnitude), 1 + self.magnitude), 4)


class RandomBrightness(_Magnitude):
    """Multiply by a random number from 1 - magnitude to 1 + magnitude."""

    _column = 0

    def change(self, images: Batch, strength: Batch, xp: ModuleType) -> Batch:
        return _blend(images, 0, strength, xp)


class RandomContrast(_Magnitude):
    """Move every pixel away from, or towards, the mean luma of its image, up to ``magnitude`` of the way."""

    _column = 1

    def change(self, images: Batch, strength: Batch, xp: ModuleType) -> Batch:
        # Summed exactly, so that it does not depend on how many images are summed side by side.
        mean = luma(images, xp).mean(axis=(1, 2), dtype=xp.float64)
        return _blend(images, xp.asarray(mean, dtype=xp.float32).reshape(-1, 1, 1, 1), strength, xp)


class RandomSaturation(_Magnitude):
    """Move every pixel away from, or towards, its own gray, up to ``magnitude`` of the way."""

    _column = 2

    def change(self, images: Batch, strength: Batch, xp: ModuleType) -> Batch:
        return _blend(images, luma(images, xp)[..., None], strength, xp)


class RandomHue(_Magnitude):
    """Turn the hue by a random part of the circle, from -magnitude to magnitude (at most 0.5)."""

    _column = 3

    def __init__(self, magnitude: float, p: float = 0.5, *, share: str | None = None) -> None:
        super().__init__(magnitude, p, share=share)
        if magnitude > 0.5:
            raise OptionError(f"magnitude of a hue is at most 0.5, not {magnitude}")

    def strength(self, draws: Draws) -> AnyArray:
        return per_sample(draws.uniform(-self.magnitude, self.magnitude), 4)

    def change(self, images: Batch, strength: Batch, xp: ModuleType) -> Batch:
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


# The engine does these in one pass.
NATIVE = (RandomBrightness, RandomContrast, RandomSaturation, RandomHue)


def _jitter(batch: Batch, chosen: Flags, steps: Sequence[_Magnitude], draws: Draws) -> Batch:
    amounts = np.full((len(batch), len(NATIVE)), np.nan, dtype=np.float32)
    for step in steps:
        amounts[chosen, step._column] = step.strength(draws)[chosen].reshape(-1)
    batch = np.ascontiguousarray(batch)
    engine().jitter(batch, amounts)
    return batch


class ColorJitter(Op):
    """Brightness, contrast, saturation and hue, one after another, to each sample with probability ``p``.

    brightness, contrast, saturation: the largest change of each, as ``magnitude`` of
    :class:`RandomBrightness`, :class:`RandomContrast` and :class:`RandomSaturation`. hue: that of
    :class:`RandomHue`. 0 leaves it alone.
    """

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

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        return _jitter(batch, draws.chance(self.p), self._steps, draws)

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
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

    def change(self, images: Batch, strength: Batch, xp: ModuleType) -> Batch:
        return xp.stack([luma(images, xp)] * 3, -1)


class RandomSolarization(ColourOp):
    """Invert the levels from ``threshold`` on."""

    def __init__(self, threshold: int = 128, p: float = 0.5, *, share: str | None = None) -> None:
        self.threshold = int(threshold)
        self.p = check_probability(p, "p")
        self.share = share

    def change(self, images: Batch, strength: Batch, xp: ModuleType) -> Batch:
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

    def strength(self, draws: Draws) -> AnyArray:
        """The weights of the kernel of every sample."""
        half = self.kernel_size // 2
        offsets = np.arange(-half, half + 1)
        kernel = np.exp(-0.5 * (offsets / draws.uniform(*self.sigma)[:, None]) ** 2)
        return (kernel / kernel.sum(axis=1, keepdims=True)).astype(np.float32)

    def change(self, images: Batch, strength: Batch, xp: ModuleType) -> Batch:
        half = self.kernel_size // 2
        for axis in (1, 2):
            size = images.shape[axis]
            padded = xp.concatenate(_pad_mirrored(images, half, axis, xp), axis)
            parts = []
            for step in range(self.kernel_size):
                shifted = padded[:, step : step + size] if axis == 1 else padded[:, :, step : step + size]
                parts.append(strength[:, step].reshape(-1, 1, 1, 1) * shifted)
            images = sum(parts)
        return xp.round(images)


def _pad_mirrored(images: Batch, half: int, axis: int, xp: ModuleType) -> list[Batch]:
    """The images between what lies beside them: mirrored at the edge, without the edge itself."""

    def part(first: int, end: int) -> Batch:
        return images[:, first:end] if axis == 1 else images[:, :, first:end]

    size = images.shape[axis]
    if size > half:
        before, after = part(1, half + 1), part(size - half - 1, size - 1)
        return [xp.flip(before, (axis,)), images, xp.flip(after, (axis,))]
    return [part(0, 1)] * half + [images] + [part(size - 1, size)] * half


def span_of(value: float | Sequence[float], name: str, low: float, high: float) -> tuple[float, float]:
    """(low, high), of a number or of two, within these limits."""
    pair = [float(number) for number in np.atleast_1d(np.asarray(value, dtype=np.float64)).flat]
    pair = pair * 2 if len(pair) == 1 else pair
    if len(pair) != 2 or not low <= pair[0] <= pair[1] <= high or math.isinf(pair[1]):
        upper = "on" if math.isinf(high) else f"to {high:g}"
        raise OptionError(f"{name} is a number or (low, high), from {low:g} {upper}, not {value!r}")
    return pair[0], pair[1]


class _Level(ImageOp):
    """One change, made to each sample with probability ``p``."""

    _change: Change

    def __init__(self, p: float = 0.5, *, share: str | None = None) -> None:
        self.p = check_probability(p, "p")
        self.share = share

    def _changes(self, draws: Draws) -> Changes:
        chosen = draws.chance(self.p)
        changes = Changes.none(len(draws), 1)
        changes.codes[chosen, 0] = self._change
        changes.amounts[:, 0, 0] = self._amounts(draws)
        return changes

    def _amounts(self, draws: Draws) -> npt.ArrayLike:
        return 0.0

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        return change(batch, self._changes(draws))

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        return change_on_device(batch, self._changes(draws), tensors)


class Invert(_Level):
    """The negative: every level becomes 255 minus itself."""

    _change = Change.INVERT


class AutoContrast(_Level):
    """Stretch the levels of each channel, so that its darkest becomes 0 and its lightest 255."""

    _change = Change.AUTOCONTRAST


class Equalize(_Level):
    """Equalise the histogram of each channel: all levels become as frequent as each other, about."""

    _change = Change.EQUALIZE


class Posterize(_Level):
    """Keep the highest ``bits`` of every level: a number from 1 to 8, or drawn from (low, high)."""

    _change = Change.POSTERIZE

    def __init__(self, bits: int | Sequence[int] = 4, p: float = 0.5, *, share: str | None = None) -> None:
        low, high = span_of(bits, "bits", 1, 8)
        self.bits = (int(low), int(high)) if low < high else int(low)
        super().__init__(p, share=share)

    def _amounts(self, draws: Draws) -> npt.ArrayLike:
        return _draw_integer(self.bits, draws)


class Sharpness(_Level):
    """Away from, or towards, the smoothed image: 0 is smoothed, 1 as it is, 2 sharpened.

    ``factor``: a number, or drawn from (low, high).
    """

    _change = Change.SHARPNESS

    def __init__(
        self, factor: float | Sequence[float] = (0.0, 2.0), p: float = 0.5, *, share: str | None = None
    ) -> None:
        self.factor = span_of(factor, "factor", 0, 1e6)
        super().__init__(p, share=share)

    def _amounts(self, draws: Draws) -> npt.ArrayLike:
        return draws.uniform(*self.factor)


class JpegArtifacts(_Level):
    """Encode as a JPEG and decode again: what a low quality leaves of an image. One or three channels.

    ``quality``: from 1 to 100, a number, or drawn from (low, high). Colours are kept at half the size.
    """

    _change = Change.JPEG

    def __init__(
        self, quality: int | Sequence[int] = (40, 90), p: float = 0.5, *, share: str | None = None
    ) -> None:
        low, high = span_of(quality, "quality", 1, 100)
        self.quality = (int(low), int(high)) if low < high else int(low)
        super().__init__(p, share=share)

    def infer(self, spec: Spec) -> Spec:
        if super().infer(spec).shape[-1] not in (1, 3):
            raise OptionError(f"a JPEG has one or three channels, not as {spec}")
        return spec

    def _amounts(self, draws: Draws) -> npt.ArrayLike:
        return _draw_integer(self.quality, draws)


def _draw_integer(bounds: int | tuple[int, int], draws: Draws) -> I64:
    low, high = (bounds, bounds) if isinstance(bounds, int) else bounds
    return low + draws.integers(high - low + 1)


class GaussianNoise(ImageOp):
    """Add noise of the normal distribution to every level, each channel by itself.

    ``sigma``: its standard deviation in levels, a number, or drawn from (low, high).
    """

    def __init__(
        self, sigma: float | Sequence[float] = (0.0, 20.0), p: float = 0.5, *, share: str | None = None
    ) -> None:
        self.sigma = span_of(sigma, "sigma", 0, 255)
        self.p = check_probability(p, "p")
        self.share = share

    def infer(self, spec: Spec) -> Spec:
        # Every frame of a clip has noise of its own.
        if len(spec.shape) == 4:
            super().infer(spec.replace(shape=spec.shape[1:]))
            return spec
        return super().infer(spec)

    def _sigmas(self, draws: Draws) -> tuple[AnyArray, npt.NDArray[np.float32]]:
        """The key of each sample's noise, and how much of it there is."""
        chosen, sigma = draws.chance(self.p), draws.uniform(*self.sigma)
        return draws.bits(1)[:, 0], np.where(chosen, sigma, 0).astype(np.float32)

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        keys, sigmas = self._sigmas(draws)
        batch = np.ascontiguousarray(batch)
        # Frames of a clip as the rows of one image.
        rows = math.prod(batch.shape[1:-2])
        _native.add_noise(
            batch.reshape(len(batch), rows, *batch.shape[-2:]), keys, sigmas, quantiles(), engine()
        )
        return batch

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        keys, sigmas = self._sigmas(draws)
        shape = batch.shape
        numbers = numbers_on_device(keys, batch[0].numel() if len(batch) else 0, tensors)
        noise = tensors.send(quantiles())[numbers].view(shape)
        steps = (tensors.send(per_sample(sigmas, len(shape))) * noise + 0.5).floor()
        return (batch.float() + steps).clamp(0, 255).to(batch.dtype)


@functools.cache
def quantiles() -> npt.NDArray[np.float32]:
    """4096 values of the normal distribution, equally likely, of variance 1."""
    upper = [NormalDist().inv_cdf((2048.5 + n) / 4096) for n in range(2048)]
    values: F64 = np.array([-value for value in reversed(upper)] + upper)
    quantiles: npt.NDArray[np.float32] = (values / values.std()).astype(np.float32)
    # Cached: all callers share it.
    quantiles.flags.writeable = False
    return quantiles


TRIES = 10


class RandomErasing(Op):
    """Erase a random rectangle with probability ``p``; as torchvision's.

    scale: the part of the image that it covers, from low to high; ratio: its height over its width.
    value: what it is filled with: a number, one for each channel, or "random": for each pixel another, of the
    normal distribution in images of floats, and any level in others. Channels may be first or last.
    """

    _channels_first = False

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float | Sequence[float] | str = 0,
        *,
        share: str | None = None,
    ) -> None:
        self.p = check_probability(p, "p")
        self.scale, self.ratio = (float(scale[0]), float(scale[1])), (float(ratio[0]), float(ratio[1]))
        if not 0 <= self.scale[0] <= self.scale[1] <= 1 or not 0 < self.ratio[0] <= self.ratio[1]:
            raise OptionError(f"scale is (low, high) from 0 to 1, and ratio above 0, not {scale} and {ratio}")
        if isinstance(value, str) and value != "random":
            raise OptionError(f'value is a number, one for each channel, or "random", not {value!r}')
        self.value = value
        self._fill = np.array(0 if isinstance(value, str) else value)
        self.share = share

    def infer(self, spec: Spec) -> Spec:
        last = spec
        if spec.channels_first and len(spec.shape) == 3:
            last = spec.replace(shape=(*spec.shape[1:], spec.shape[0]), channels_first=False)
        check_fill(self._fill, last.channels(self), last)
        return spec

    def for_spec(self, spec: Spec) -> RandomErasing:
        suited = copy.copy(self)
        suited._channels_first = spec.channels_first
        return suited

    def _boxes(self, height: int, width: int, draws: Draws) -> tuple[I64, I64, I64, I64]:
        """(top, bottom, left, right) of what is erased of every image; of most, nothing may be."""
        chosen = draws.chance(self.p)
        area = height * width * draws.uniform(*self.scale, TRIES)
        low, high_aspect = np.log(self.ratio).tolist()
        aspect = np.exp(draws.uniform(low, high_aspect, TRIES))
        high, wide = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
        fits = (high < height) & (wide < width)
        first = fits.argmax(axis=1)[:, None]
        high, wide = (
            np.where(chosen & fits.any(axis=1), np.take_along_axis(side, first, axis=1)[:, 0], 0).astype(
                np.int64
            )
            for side in (high, wide)
        )
        y0, x0 = draws.integers(height - high + 1), draws.integers(width - wide + 1)
        return y0, y0 + high, x0, x0 + wide

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        # The same memory, as (n, height, width, channels).
        seen = np.moveaxis(batch, 1, -1) if self._channels_first else batch
        height, width, channels = seen.shape[1:]
        keys = draws.bits(1)[:, 0]
        for row, (y0, y1, x0, x1) in enumerate(zip(*self._boxes(height, width, draws), strict=True)):
            if y0 == y1 or x0 == x1:
                continue
            if self.value != "random":
                seen[row, y0:y1, x0:x1] = self._fill
                continue
            line = width * channels
            numbers = numbers_of(keys[row : row + 1], int(y0) * line, int(y1) * line)
            part = numbers.reshape(-1, width, channels)[:, x0:x1]
            seen[row, y0:y1, x0:x1] = quantiles()[part] if batch.dtype.kind == "f" else part >> 4
        return batch

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        torch = tensors.torch
        seen = batch.permute(0, 2, 3, 1) if self._channels_first else batch
        height, width = seen.shape[1:3]
        keys = draws.bits(1)[:, 0]
        y0, y1, x0, x1 = (tensors.send(per_sample(side, 4)) for side in self._boxes(height, width, draws))
        y = torch.arange(height, device=batch.device).view(1, -1, 1, 1)
        x = torch.arange(width, device=batch.device).view(1, 1, -1, 1)
        inside = (y >= y0) & (y < y1) & (x >= x0) & (x < x1)
        if self.value == "random":
            numbers = numbers_on_device(keys, seen[0].numel() if len(seen) else 0, tensors).view(seen.shape)
            values = tensors.send(quantiles())[numbers] if batch.is_floating_point() else numbers >> 4
        else:
            values = tensors.send(self._fill)
        erased = choose(inside, values.to(batch.dtype), seen)
        return erased.permute(0, 3, 1, 2).contiguous() if self._channels_first else erased
