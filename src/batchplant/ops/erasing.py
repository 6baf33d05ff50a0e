"""Rectangles of images that are erased."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import OptionError
from ..schema.columns import I64
from .base import Draws, Op, Spec, Tensors, check_probability, per_sample
from .cutting import check_fill
from .dtypes import choose
from .keyed_device import numbers_of, numbers_on_device
from .levels import quantiles

TRIES = 10


class RandomErasing(Op):
    """Erase a random rectangle with probability ``p``; as torchvision's.

    scale: the part of the image that it covers, from least to most; ratio: its height over its width.
    value: what it is filled with: a number, one for each channel, or "random": for each pixel another, of the
    normal distribution in images of floats, and any level in others. Channels may be first or last.
    """

    # Whether the channels of a batch come first.
    _first = False

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
            last = spec.but(shape=(*spec.shape[1:], spec.shape[0]), channels_first=False)
        check_fill(self._fill, last.channels(self), last)
        return spec

    def suited(self, spec: Spec) -> RandomErasing:
        made = copy.copy(self)
        made._first = spec.channels_first
        return made

    def _boxes(self, height: int, width: int, draws: Draws) -> tuple[I64, I64, I64, I64]:
        """(top, bottom, left, right) of what is erased of every image; of most, nothing may be."""
        chosen = draws.chance(self.p)
        area = height * width * draws.uniform(*self.scale, TRIES)
        least, most = np.log(self.ratio).tolist()
        aspect = np.exp(draws.uniform(least, most, TRIES))
        high, wide = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
        fits = (high < height) & (wide < width)
        first = fits.argmax(axis=1)[:, None]
        high, wide = (
            np.where(chosen & fits.any(axis=1), np.take_along_axis(side, first, axis=1)[:, 0], 0).astype(
                np.int64
            )
            for side in (high, wide)
        )
        top, left = draws.integers(height - high + 1), draws.integers(width - wide + 1)
        return top, top + high, left, left + wide

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        # The same memory, as (n, height, width, channels).
        seen = np.moveaxis(batch, 1, -1) if self._first else batch
        height, width, channels = seen.shape[1:]
        keys = draws.bits(1)[:, 0]
        for row, (top, bottom, left, right) in enumerate(
            zip(*self._boxes(height, width, draws), strict=True)
        ):
            if top == bottom or left == right:
                continue
            if self.value != "random":
                seen[row, top:bottom, left:right] = self._fill
                continue
            line = width * channels
            numbers = numbers_of(keys[row : row + 1], int(top) * line, int(bottom) * line)
            part = numbers.reshape(-1, width, channels)[:, left:right]
            seen[row, top:bottom, left:right] = quantiles()[part] if batch.dtype.kind == "f" else part >> 4
        return batch

    def on_device(self, batch: Any, ids: I64, draws: Draws, tensors: Tensors) -> Any:
        torch = tensors.torch
        seen = batch.permute(0, 2, 3, 1) if self._first else batch
        height, width = seen.shape[1:3]
        keys = draws.bits(1)[:, 0]
        top, bottom, left, right = (
            tensors.send(per_sample(side, 4)) for side in self._boxes(height, width, draws)
        )
        y = torch.arange(height, device=batch.device).view(1, -1, 1, 1)
        x = torch.arange(width, device=batch.device).view(1, 1, -1, 1)
        inside = (y >= top) & (y < bottom) & (x >= left) & (x < right)
        if self.value == "random":
            numbers = numbers_on_device(keys, seen[0].numel() if len(seen) else 0, tensors).view(seen.shape)
            values = tensors.send(quantiles())[numbers] if batch.is_floating_point() else numbers >> 4
        else:
            values = tensors.send(self._fill)
        made = choose(inside, values.to(batch.dtype), seen)
        return made.permute(0, 3, 1, 2).contiguous() if self._first else made
