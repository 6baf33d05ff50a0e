"""Augmentation of the levels of decoded images: (samples, height, width, channels), uint8.

The native core makes it, to the levels that Pillow gives: those of torchvision for images of Pillow.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from ..errors import OptionError
from ..schema.columns import I64
from .augment import ImageOp
from .base import F64, Draws, Spec, Tensors, check_probability, per_sample
from .changes import Change, Changes, change
from .changes_device import change_on_device
from .cutting import engine
from .keyed_device import numbers_on_device


def span_of(value: float | Sequence[float], name: str, low: float, high: float) -> tuple[float, float]:
    """(least, most), of a number or of two, within these limits."""
    pair = [float(one) for one in np.atleast_1d(np.asarray(value, dtype=np.float64)).flat]
    pair = pair * 2 if len(pair) == 1 else pair
    if len(pair) != 2 or not low <= pair[0] <= pair[1] <= high or math.isinf(pair[1]):
        most = "on" if math.isinf(high) else f"to {high:g}"
        raise OptionError(f"{name} is a number or (low, high), from {low:g} {most}, not {value!r}")
    return pair[0], pair[1]


class _Level(ImageOp):
    """One change, made to each sample with probability ``p``."""

    _change: Change

    def __init__(self, p: float = 0.5, *, share: str | None = None) -> None:
        self.p = check_probability(p, "p")
        self.share = share

    def _changes(self, draws: Draws) -> Changes:
        chosen = draws.chance(self.p)
        made = Changes.none(len(draws), 1)
        made.codes[chosen, 0] = self._change
        made.amounts[:, 0, 0] = self._amounts(draws)
        return made

    def _amounts(self, draws: Draws) -> Any:
        return 0.0

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        return change(batch, self._changes(draws))

    def on_device(self, batch: Any, ids: I64, draws: Draws, tensors: Tensors) -> Any:
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
    """Keep the highest ``bits`` of every level: a number from 1 to 8, or drawn from (least, most)."""

    _change = Change.POSTERIZE

    def __init__(self, bits: int | Sequence[int] = 4, p: float = 0.5, *, share: str | None = None) -> None:
        least, most = span_of(bits, "bits", 1, 8)
        self.bits = (int(least), int(most)) if least < most else int(least)
        super().__init__(p, share=share)

    def _amounts(self, draws: Draws) -> Any:
        return _whole(self.bits, draws)


class Sharpness(_Level):
    """Away from, or towards, the smoothed image: 0 is smoothed, 1 as it is, 2 sharpened.

    ``factor``: a number, or drawn from (least, most).
    """

    _change = Change.SHARPNESS

    def __init__(
        self, factor: float | Sequence[float] = (0.0, 2.0), p: float = 0.5, *, share: str | None = None
    ) -> None:
        self.factor = span_of(factor, "factor", 0, 1e6)
        super().__init__(p, share=share)

    def _amounts(self, draws: Draws) -> Any:
        return draws.uniform(*self.factor)


class JpegArtifacts(_Level):
    """Encode as a JPEG and decode again: what a low quality leaves of an image. One or three channels.

    ``quality``: from 1 to 100, a number, or drawn from (least, most). Colours are kept at half the size.
    """

    _change = Change.JPEG

    def __init__(
        self, quality: int | Sequence[int] = (40, 90), p: float = 0.5, *, share: str | None = None
    ) -> None:
        least, most = span_of(quality, "quality", 1, 100)
        self.quality = (int(least), int(most)) if least < most else int(least)
        super().__init__(p, share=share)

    def infer(self, spec: Spec) -> Spec:
        if super().infer(spec).shape[-1] not in (1, 3):
            raise OptionError(f"a JPEG has one or three channels, not as {spec}")
        return spec

    def _amounts(self, draws: Draws) -> Any:
        return _whole(self.quality, draws)


def _whole(bounds: int | tuple[int, int], draws: Draws) -> Any:
    least, most = (bounds, bounds) if isinstance(bounds, int) else bounds
    return least + draws.integers(most - least + 1)


class GaussianNoise(ImageOp):
    """Add noise of the normal distribution to every level, each channel by itself.

    ``sigma``: its standard deviation in levels, a number, or drawn from (least, most).
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
            super().infer(spec.but(shape=spec.shape[1:]))
            return spec
        return super().infer(spec)

    def _sigmas(self, draws: Draws) -> tuple[Any, npt.NDArray[np.float32]]:
        """The key of each sample's noise, and how much of it there is."""
        chosen, sigma = draws.chance(self.p), draws.uniform(*self.sigma)
        return draws.bits(1)[:, 0], np.where(chosen, sigma, 0).astype(np.float32)

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        keys, sigmas = self._sigmas(draws)
        batch = np.ascontiguousarray(batch)
        # Frames of a clip as the rows of one image.
        rows = math.prod(batch.shape[1:-2])
        _native.add_noise(
            batch.reshape(len(batch), rows, *batch.shape[-2:]), keys, sigmas, quantiles(), engine()
        )
        return batch

    def on_device(self, batch: Any, ids: I64, draws: Draws, tensors: Tensors) -> Any:
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
    found: F64 = np.array([-one for one in reversed(upper)] + upper)
    made: npt.NDArray[np.float32] = (found / found.std()).astype(np.float32)
    # Others are given the same one.
    made.flags.writeable = False
    return made
