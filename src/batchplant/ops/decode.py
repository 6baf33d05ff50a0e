"""Decoders of pictures and the steps that the engine does while it decodes.

A decoder says which box of every picture it wants and at what size; the engine decodes only that box. A
flip, a normalisation and the change to channels first that follow it cost no pass of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _native
from ..columns import I32, I64
from ..errors import OptionError
from .base import F64, Draws, Op, Spec, Tensors, check_probability, per_sample
from .geometry import Motion, mirrored, stretched

FILTERS = ("area", "bilinear", "bicubic", "nearest")


class ImageDecoder(Op):
    """Turns encoded pictures into pixels of one size.

    ``filter`` None: area, and nearest for masks, whose values must not be blended. ``orient``: every picture
    is first turned as its EXIF data say; sizes and boxes are those of the turned picture.
    """

    size: tuple[int, int] | None = None
    filter: str | None = None
    orient: bool = False

    def boxes(self, sizes: I32, draws: Draws) -> F64:
        """(left, top, right, bottom) of every picture; ``sizes`` are (height, width)."""
        raise NotImplementedError

    def move(self, sizes: I32, draws: Draws) -> Motion:
        boxes = self.boxes(sizes, draws)
        return stretched(boxes, boxes[:, [3, 2]] - boxes[:, [1, 0]] if self.size is None else self.size)

    def infer(self, spec: Spec) -> Spec:
        # The plan takes the decoder of a picture away before it asks the others.
        raise OptionError(
            f"{type(self).__name__} decodes pictures: it can only be the first step, and of an image field"
        )


def pair_of(size: int | Sequence[int]) -> tuple[int, int]:
    """(height, width); one number stands for both."""
    pair = [int(side) for side in np.atleast_1d(np.asarray(size)).flat]
    pair = pair * 2 if len(pair) == 1 else pair
    if len(pair) != 2 or min(pair) < 1:
        raise OptionError(f"a size is one or two numbers from 1 on, not {size!r}")
    return pair[0], pair[1]


def _filter(name: str | None) -> str | None:
    if name is not None and name not in FILTERS:
        raise OptionError(f"filter is one of {', '.join(FILTERS)}, not {name!r}")
    return name


class Decode(ImageDecoder):
    """The whole picture as it is; all of them must have one size."""

    def __init__(self, *, orient: bool = False) -> None:
        self.orient = bool(orient)

    def boxes(self, sizes: I32, draws: Draws) -> F64:
        return whole_boxes(sizes)


class Resize(ImageDecoder):
    """The whole picture, resized."""

    def __init__(self, size: int | Sequence[int], *, filter: str | None = None, orient: bool = False) -> None:
        self.size = pair_of(size)
        self.filter, self.orient = _filter(filter), bool(orient)

    def boxes(self, sizes: I32, draws: Draws) -> F64:
        return whole_boxes(sizes)


class CenterCrop(ImageDecoder):
    """The square in the middle, ``ratio`` of the shorter side wide, resized."""

    def __init__(
        self,
        size: int | Sequence[int],
        ratio: float = 224 / 256,
        *,
        filter: str | None = None,
        orient: bool = False,
    ) -> None:
        self.size = pair_of(size)
        self.ratio = check_probability(ratio, "ratio")
        self.filter, self.orient = _filter(filter), bool(orient)

    def boxes(self, sizes: I32, draws: Draws) -> F64:
        side = np.maximum(1, (self.ratio * sizes.min(axis=1)).astype(np.int64))
        top, left = (sizes[:, 0] - side) // 2, (sizes[:, 1] - side) // 2
        return np.stack([left, top, left + side, top + side], axis=1).astype(np.float64)


class RandomResizedCrop(ImageDecoder):
    """A random box of a random area (``scale``) and aspect (``ratio``), resized; as torchvision's."""

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        *,
        filter: str | None = None,
        orient: bool = False,
        share: str | None = None,
    ) -> None:
        self.size = pair_of(size)
        self.scale, self.ratio = (float(scale[0]), float(scale[1])), (float(ratio[0]), float(ratio[1]))
        self.filter, self.orient = _filter(filter), bool(orient)
        self.share = share
        if not 0 < self.scale[0] <= self.scale[1] or not 0 < self.ratio[0] <= self.ratio[1]:
            raise OptionError(f"scale and ratio are (low, high) above 0, not {scale} and {ratio}")

    def boxes(self, sizes: I32, draws: Draws) -> F64:
        return random_boxes(sizes, self.scale, self.ratio, draws)


def random_boxes(sizes: I32, scale: tuple[float, float], ratio: tuple[float, float], draws: Draws) -> F64:
    """Ten tries for a box that fits, then the largest in the middle of an allowed aspect."""
    tries = 10
    # An area and an aspect for each try, and the place.
    first = draws.reserve(2 * tries + 2)
    return _native.random_boxes(draws.keys, np.ascontiguousarray(sizes), scale, ratio, tries, first)


def whole_boxes(sizes: I32) -> F64:
    """The whole of every picture."""
    zeros = np.zeros(len(sizes))
    return np.stack([zeros, zeros, sizes[:, 1], sizes[:, 0]], axis=1).astype(np.float64)


class RandomHorizontalFlip(Op):
    """Mirror left and right with probability ``flip_prob``."""

    def __init__(self, flip_prob: float = 0.5, *, share: str | None = None) -> None:
        self.flip_prob = check_probability(flip_prob, "flip_prob")
        self.share = share

    def infer(self, spec: Spec) -> Spec:
        spec.picture(self)
        return spec

    def flips(self, draws: Draws) -> Any:
        return draws.chance(self.flip_prob)

    def move(self, sizes: I32, draws: Draws) -> Motion:
        return mirrored(sizes, across=self.flips(draws))

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        flip = self.flips(draws)
        batch[flip] = batch[flip, :, ::-1]
        return batch

    def on_device(self, batch: Any, ids: I64, draws: Draws, tensors: Tensors) -> Any:
        return tensors.torch.where(tensors.send(per_sample(self.flips(draws), 4)), batch.flip(2), batch)


class Normalize(Op):
    """(pixel - mean) / std for each channel, as float32 or float16."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], dtype: Any = "float32") -> None:
        self.mean, self.std = np.array(mean, dtype=np.float64), np.array(std, dtype=np.float64)
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)):
            raise OptionError(f"Normalize gives float16, float32 or float64, not {self.dtype}")
        if self.mean.shape != self.std.shape or self.mean.ndim != 1 or (self.std == 0).any():
            raise OptionError("mean and std need one number for each channel, and std no zero")

    def infer(self, spec: Spec) -> Spec:
        channels = spec.picture(self)[2]
        if spec.dtype != np.uint8 or channels != len(self.mean):
            raise OptionError(f"Normalize needs uint8 pictures of {len(self.mean)} channels, not {spec}")
        return Spec(self.dtype, spec.shape)

    def table(self) -> Any:
        """The value of every level in every channel."""
        return ((np.arange(256)[:, None] - self.mean) / self.std).astype(self.dtype)

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        table = self.table()
        out = np.empty(batch.shape, dtype=self.dtype)
        for channel in range(batch.shape[-1]):
            out[..., channel] = table[:, channel][batch[..., channel]]
        return out

    def on_device(self, batch: Any, ids: I64, draws: Draws, tensors: Tensors) -> Any:
        mean, std = tensors.send(self.mean), tensors.send(self.std)
        return ((batch.float() - mean) / std).to(getattr(tensors.torch, self.dtype.name))


class ChannelsFirst(Op):
    """(height, width, channels) to (channels, height, width)."""

    def infer(self, spec: Spec) -> Spec:
        height, width, channels = spec.picture(self)
        return Spec(spec.dtype, (channels, height, width), channels_first=True)

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        return np.ascontiguousarray(np.moveaxis(batch, -1, 1))

    def on_device(self, batch: Any, ids: I64, draws: Draws, tensors: Tensors) -> Any:
        return batch.permute(0, 3, 1, 2).contiguous()
