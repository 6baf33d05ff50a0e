"""Augmentation of volumes, (depth, height, width) or (depth, height, width, channels).

A volume of labels beside one of values is changed alike where the ops of both have the same ``share``.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import DecodeError, OptionError
from ..schema.columns import I64, AnyArray
from .audio import span_of
from .base import Batch, CellErrors, Draws, Op, Spec, Tensors, check_probability, per_sample
from .dtypes import choose, signed

NAMES = ("depth", "height", "width")


class VolumeOp(Op):
    """An op on volumes of one size."""

    def infer(self, spec: Spec) -> Spec:
        self.sizes_of(spec)
        return spec

    def sizes_of(self, spec: Spec) -> tuple[int, int, int]:
        """Depth, height, width; OptionError where these are no volumes."""
        sizes = [size for size in spec.shape if size is not None]
        varying = spec.dtype is None or spec.ragged or len(sizes) != len(spec.shape)
        if varying or len(sizes) not in (3, 4):
            hint = ": put RandomCrop3d before it, or cut patches with bp.VolumePatches" if varying else ""
            raise OptionError(
                f"{type(self).__name__} needs volumes (depth, height, width) or (depth, height, width, "
                f"channels) of one size, not {spec}{hint}"
            )
        return sizes[0], sizes[1], sizes[2]


class CenterCrop3d(VolumeOp):
    """The middle of a volume: ``size`` is (depth, height, width), or one number for all.

    As the first step it also takes volumes of differing sizes; one that is too small is a DecodeError.
    """

    # Dtype of the volumes, and the sizes of their axes behind the first three.
    _values: tuple[Any, tuple[int | None, ...]] = (None, ())

    def __init__(self, size: int | Sequence[int]) -> None:
        self.size = _three(size)

    def for_spec(self, spec: Spec) -> Op:
        suited = copy.copy(self)
        suited._values = spec.dtype, spec.shape[3:]
        return suited

    def infer(self, spec: Spec) -> Spec:
        if (spec.unequal or spec.ragged) and len(spec.shape) in (3, 4) and None not in spec.shape[3:]:
            sizes: tuple[int | None, ...] = spec.shape[:3]
        else:
            sizes = self.sizes_of(spec)
        if any(have is not None and want > have for want, have in zip(self.size, sizes, strict=True)):
            raise OptionError(f"{type(self).__name__} of {self.size} does not fit into volumes of {sizes}")
        return spec.replace(shape=(*self.size, *spec.shape[3:]), unequal=False, ragged=False)

    def corners(self, sizes: I64, draws: Draws) -> I64:
        """Return corners of the crops of volumes of these sizes; both (samples, 3)."""
        return (sizes - self.size) // 2

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        if isinstance(batch, tuple):
            values, offsets = batch
            batch = [values[start:end] for start, end in itertools.pairwise(offsets)]
        dtype, trailing_shape = (
            (batch.dtype, batch.shape[4:]) if isinstance(batch, np.ndarray) else self._values
        )
        sizes = np.array([volume.shape[:3] for volume in batch], dtype=np.int64).reshape(-1, 3)
        small = np.flatnonzero((sizes < self.size).any(axis=1)).tolist()
        if small:
            raise CellErrors({row: self._misfit(tuple(sizes[row].tolist())) for row in small})
        out = np.empty((len(batch), *self.size, *trailing_shape), dtype=dtype)
        for row, box in enumerate(self._boxes(sizes, draws)):
            out[row] = batch[row][box]
        return out

    def _misfit(self, shape: tuple[int, ...]) -> DecodeError:
        return DecodeError(
            f"{type(self).__name__} of {self.size} does not fit into a volume of {shape}; "
            "bp.VolumePatches(…, pad=0) fills such volumes up"
        )

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        boxes = self._boxes(np.tile(np.array(batch.shape[1:4]), (len(batch), 1)), draws)
        parts = [volume[box] for volume, box in zip(signed(batch), boxes, strict=True)]
        if not parts:
            return batch.new_empty((0, *self.size, *batch.shape[4:]))
        return tensors.torch.stack(parts).view(batch.dtype)

    def _boxes(self, sizes: I64, draws: Draws) -> list[tuple[slice, ...]]:
        corners = self.corners(sizes, draws).tolist()
        return [
            tuple(slice(first, first + size) for first, size in zip(corner, self.size, strict=True))
            for corner in corners
        ]


class RandomCrop3d(CenterCrop3d):
    """A random part of a volume: ``size`` is (depth, height, width), or one number for all.

    As the first step it also takes volumes of differing sizes; one that is too small is a DecodeError.
    """

    def __init__(self, size: int | Sequence[int], *, share: str | None = None) -> None:
        super().__init__(size)
        self.share = share

    def corners(self, sizes: I64, draws: Draws) -> I64:
        """Return corners of the crops of volumes of these sizes; both (samples, 3)."""
        free = sizes - self.size + 1
        return np.stack([draws.integers(places) for places in free.T], axis=1)


class RandomFlip3d(VolumeOp):
    """Mirror each of the ``axes`` (0 depth, 1 height, 2 width) with probability ``p``."""

    def __init__(
        self, axes: int | Sequence[int] = (0, 1, 2), p: float = 0.5, *, share: str | None = None
    ) -> None:
        self.axes = tuple(_axes(axes))
        self.p, self.share = check_probability(p, "p"), share

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        for axis in self.axes:
            rows = draws.chance(self.p)
            batch[rows] = np.flip(batch[rows], axis + 1)
        return batch

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        volumes = signed(batch)
        for axis in self.axes:
            rows = tensors.send(per_sample(draws.chance(self.p), batch.ndim))
            volumes = tensors.torch.where(rows, volumes.flip(axis + 1), volumes)
        return volumes.view(batch.dtype)


class RandomRotate90(VolumeOp):
    """Turn by 90, 180 or 270 degrees in the plane of two ``axes`` of one size, with probability ``p``."""

    def __init__(self, axes: Sequence[int] = (1, 2), p: float = 0.75, *, share: str | None = None) -> None:
        self.axes = tuple(_axes(axes))
        self.p, self.share = check_probability(p, "p"), share
        if len(self.axes) != 2:
            raise OptionError(f"RandomRotate90 turns in the plane of two axes, not {axes!r}")

    def infer(self, spec: Spec) -> Spec:
        sizes = self.sizes_of(spec)
        if sizes[self.axes[0]] != sizes[self.axes[1]]:
            names = " and ".join(NAMES[axis] for axis in self.axes)
            raise OptionError(f"RandomRotate90 needs {names} of one size, not {spec}: crop the volumes first")
        return spec

    def _turns(self, draws: Draws) -> I64:
        return np.where(draws.chance(self.p), draws.integers(3) + 1, 0)

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        axes = (self.axes[0] + 1, self.axes[1] + 1)
        turns = self._turns(draws)
        for count in (1, 2, 3):
            rows = turns == count
            batch[rows] = np.rot90(batch[rows], count, axes)
        return batch

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        turns = tensors.send(per_sample(self._turns(draws), batch.ndim))
        axes, rotated = (self.axes[0] + 1, self.axes[1] + 1), (before := signed(batch))
        for count in (1, 2, 3):
            rotated = tensors.torch.where(turns == count, before.rot90(count, axes), rotated)
        return rotated.view(batch.dtype)


class RandomIntensity(VolumeOp):
    """Other values, to each volume with probability ``p``: gamma, then a factor, an offset, and noise.

    scale: the factor is from 1 - scale to 1 + scale. shift: what is added, from -shift to shift. gamma: the
    exponent, (low, high), between the least and the largest value of the volume. noise: the standard
    deviation, from 0 to noise. Whole numbers are rounded and kept in their range.
    """

    def __init__(
        self,
        scale: float = 0.1,
        shift: float = 0.0,
        gamma: float | Sequence[float] = 1.0,
        noise: float = 0.0,
        p: float = 1.0,
        *,
        share: str | None = None,
    ) -> None:
        for name, value in (("scale", scale), ("shift", shift), ("noise", noise)):
            if not value >= 0:
                raise OptionError(f"{name} is from 0 on, not {value}")
        self.scale, self.shift, self.noise = float(scale), float(shift), float(noise)
        self.gamma = span_of(gamma, "gamma")
        self.p, self.share = check_probability(p, "p"), share
        if self.gamma[0] <= 0:
            raise OptionError(f"gamma is above 0, not {gamma}")

    def _amounts(self, draws: Draws) -> tuple[AnyArray, ...]:
        """Draw a mask of volumes to change, and their gamma, factor, offset and noise."""
        drawn = (
            draws.chance(self.p), draws.uniform(*self.gamma), draws.uniform(1 - self.scale, 1 + self.scale),
            draws.uniform(-self.shift, self.shift), draws.uniform(0, self.noise),
        )  # fmt: skip
        draws.reserve(1)
        return drawn

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        chosen, *amounts = self._amounts(draws)
        for row in np.flatnonzero(chosen).tolist():
            gamma, factor, offset, deviation = (np.float32(amount[row]) for amount in amounts)
            values = batch[row].astype(np.float32)
            if self.gamma != (1.0, 1.0):
                low, high = values.min(), values.max()
                if high > low:
                    values = ((values - low) / (high - low)) ** gamma * (high - low) + low
            values = values * factor + offset
            if self.noise:
                values += deviation * draws.noise(row, values.shape)
            if batch.dtype.kind in "iu":
                limits = np.iinfo(batch.dtype)
                values = np.clip(np.rint(values), limits.min, limits.max)
            batch[row] = values
        return batch

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        torch = tensors.torch
        chosen, *amounts = self._amounts(draws)
        gamma, factor, offset = (tensors.send(per_sample(amount, batch.ndim)) for amount in amounts[:3])
        values, value_axes = batch.float(), tuple(range(1, batch.ndim))
        if self.gamma != (1.0, 1.0):
            low, high = values.amin(value_axes, keepdim=True), values.amax(value_axes, keepdim=True)
            width = torch.where(high > low, high - low, torch.ones_like(high))
            values = ((values - low) / width) ** gamma * (high - low) + low
        values = values * factor + offset
        if self.noise:
            noise = np.zeros(tuple(batch.shape), dtype=np.float32)
            for row in np.flatnonzero(chosen).tolist():
                noise[row] = np.float32(amounts[3][row]) * draws.noise(row, noise.shape[1:])
            values = values + tensors.send(noise)
        if not batch.is_floating_point():
            limits = torch.iinfo(batch.dtype)
            values = values.round().clamp(limits.min, limits.max)
        return choose(tensors.send(per_sample(chosen, batch.ndim)), values.to(batch.dtype), batch)


def _three(size: int | Sequence[int]) -> tuple[int, int, int]:
    sizes = [int(number) for number in np.atleast_1d(np.asarray(size)).flat]
    sizes = sizes * 3 if len(sizes) == 1 else sizes
    if len(sizes) != 3 or min(sizes) < 1:
        raise OptionError(f"the size of a volume is one or three numbers from 1 on, not {size!r}")
    return sizes[0], sizes[1], sizes[2]


def _axes(axes: int | Sequence[int]) -> list[int]:
    numbers = [int(axis) for axis in np.atleast_1d(np.asarray(axes)).flat]
    if not numbers or len(set(numbers)) < len(numbers) or not set(numbers) <= {0, 1, 2}:
        raise OptionError(f"axes are 0 (depth), 1 (height) and 2 (width), not {axes!r}")
    return numbers
