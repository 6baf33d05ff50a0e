"""Ops behind FFCV's transforms that batchplant's own ops have no equal of; modern pipelines use the latter.

``Cutout``: ``RandomErasing``. ``ImageMixup``, ``LabelMixup`` and ``MixupToOneHot``: ``MixUp``. The others:
a function of the user's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import OptionError
from ...ops.base import Batch, Draws, Op, Spec, per_sample
from ...ops.colour import FillOp, ImageOp
from ...ops.dtypes import is_torch_dtype, numpy_dtype, torch_dtype
from ...ops.mixing import check_alpha
from ...ops.values import converted_dtype
from ...schema.columns import I64, AnyDType

__all__ = ["Cutout", "ImageMixup", "LabelMixup", "MixupToOneHot", "Poison", "ReplaceLabel", "Squeeze", "View"]


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

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        size = self.crop_size
        top = draws.integers(batch.shape[1] - size + 1)
        left = draws.integers(batch.shape[2] - size + 1)
        for row in range(len(batch)):
            batch[row, top[row] : top[row] + size, left[row] : left[row] + size] = self.fill
        return batch


class Poison(ImageOp):
    """Lay a mask of opacity ``alpha`` over the images of some samples."""

    def __init__(
        self,
        mask: npt.ArrayLike,
        alpha: npt.ArrayLike,
        indices: Sequence[int],
        clamp: tuple[int, int] = (0, 255),
    ) -> None:
        self.mask, self.alpha = np.asarray(mask, dtype=np.float32), np.asarray(alpha, dtype=np.float32)
        self.indices, self.clamp = np.unique(np.asarray(indices, dtype=np.int64)), clamp

    def infer(self, spec: Spec) -> Spec:
        shape = super().infer(spec).image(self)
        try:
            fits = np.broadcast_shapes(self.mask.shape, self._opacity.shape, shape) == shape
        except ValueError:
            fits = False
        if not fits:
            raise OptionError(
                f"Poison's mask {self.mask.shape} and alpha {self.alpha.shape} do not fit {spec}"
            )
        return spec

    @property
    def _opacity(self) -> npt.NDArray[np.float32]:
        """Opacity with an axis of channels."""
        return self.alpha[..., None] if self.alpha.ndim == 2 else self.alpha

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        rows = np.flatnonzero(np.isin(ids, self.indices))
        if len(rows):
            blend = batch[rows].astype(np.float32) * (1 - self._opacity) + self.mask * self._opacity
            batch[rows] = np.clip(blend, *self.clamp).astype(batch.dtype)
        return batch


def _own_weights(alpha: float, same: bool, count: int, draws: Draws) -> npt.NDArray[np.float64]:
    """Weight of each sample itself in its mix with the previous one."""
    generator = draws.generator()
    return np.full(count, generator.beta(alpha, alpha)) if same else generator.beta(alpha, alpha, count)


class ImageMixup(ImageOp):
    """Mix every image with the previous one of the batch; use LabelMixup with the same arguments."""

    mixes = True

    def __init__(self, alpha: float, same_lambda: bool = True) -> None:
        self.alpha, self.same_lambda = check_alpha(alpha), bool(same_lambda)
        self.share = f"mixup {self.alpha} {self.same_lambda}"

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        weights = _own_weights(self.alpha, self.same_lambda, len(draws), draws)
        weight = per_sample(weights, 4).astype(np.float32)
        mixed = weight * batch + (1 - weight) * np.roll(batch, 1, axis=0)
        return mixed.astype(batch.dtype)


class LabelMixup(Op):
    """Labels for ImageMixup: (own label, the previous sample's, weight of the own) for every sample."""

    mixes = True

    def __init__(self, alpha: float, same_lambda: bool = True) -> None:
        self.alpha, self.same_lambda = check_alpha(alpha), bool(same_lambda)
        self.share = f"mixup {self.alpha} {self.same_lambda}"

    def infer(self, spec: Spec) -> Spec:
        if spec.numbers(self).shape not in ((), (1,)):
            raise OptionError(f"LabelMixup needs one label for each sample, not {spec}")
        return Spec(np.dtype(np.float32), (3,))

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        labels = np.asarray(batch, dtype=np.float32).reshape(len(batch))
        weights = _own_weights(self.alpha, self.same_lambda, len(batch), draws)
        return np.stack([labels, np.roll(labels, 1), weights], axis=1).astype(np.float32)


class MixupToOneHot(Op):
    """Turn the rows of LabelMixup into one row of class weights for every sample."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = int(num_classes)

    def infer(self, spec: Spec) -> Spec:
        if spec.shape != (3,):
            raise OptionError(f"MixupToOneHot follows LabelMixup, and this is {spec}")
        return Spec(np.dtype(np.float32), (self.num_classes,))

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        one_hot = np.zeros((len(batch), self.num_classes), dtype=np.float32)
        rows = np.arange(len(batch))
        invalid = (batch[:, :2] < 0) | (batch[:, :2] >= self.num_classes)
        if invalid.any():
            label = int(batch[:, :2][invalid][0])
            raise OptionError(f"there is a label {label}, and MixupToOneHot has {self.num_classes} classes")
        np.add.at(one_hot, (rows, batch[:, 0].astype(np.int64)), batch[:, 2])
        np.add.at(one_hot, (rows, batch[:, 1].astype(np.int64)), 1 - batch[:, 2])
        return one_hot


class ReplaceLabel(Op):
    """Give some samples another label."""

    def __init__(self, indices: Sequence[int], new_label: int) -> None:
        self.indices = np.unique(np.asarray(indices, dtype=np.int64))
        self.new_label = new_label

    def infer(self, spec: Spec) -> Spec:
        return spec.numbers(self)

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        batch[np.isin(ids, self.indices)] = self.new_label
        return batch


class View(Op):
    """Reinterpret the same bytes as another dtype, of NumPy or of torch; for arrays and for tensors."""

    def __init__(self, target_dtype: Any) -> None:
        self.target_dtype = target_dtype if is_torch_dtype(target_dtype) else np.dtype(target_dtype)

    def infer(self, spec: Spec) -> Spec:
        dtype = converted_dtype(spec.numbers(self), self.target_dtype, self)
        return spec.replace(dtype=dtype, shape=_view_shape(spec, dtype) if dtype else spec.shape)

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        if isinstance(batch, np.ndarray):
            return np.ascontiguousarray(batch).view(numpy_dtype(self.target_dtype))
        # torch refuses the strides of an empty batch that came from NumPy.
        tensor = batch if batch.numel() else batch.new_empty(batch.shape)
        return tensor.view(torch_dtype(self.target_dtype))


def _view_shape(spec: Spec, dtype: AnyDType) -> tuple[int | None, ...]:
    """Shape of the same bytes in another dtype: the last size changes with the size of a number."""
    if spec.dtype is None or spec.dtype.itemsize == dtype.itemsize:
        return spec.shape
    row_bytes = (spec.shape[-1] or 0) * spec.dtype.itemsize if spec.shape else 0
    if not row_bytes or row_bytes % dtype.itemsize:
        raise OptionError(f"{spec} cannot be seen as {dtype}: the bytes of a row do not divide into it")
    return (*spec.shape[:-1], row_bytes // dtype.itemsize)


class Squeeze(Op):
    """Remove the axes of size 1, or those of them that are named; axis 0, the batch, always stays."""

    def __init__(self, *dims: int) -> None:
        self.dims = dims

    def _axes(self, shape: Sequence[int | None]) -> tuple[int, ...]:
        """Axes to remove; ``shape`` is that of a sample."""
        rank = len(shape) + 1
        candidates = [axis + rank if axis < 0 else axis for axis in self.dims] or range(1, rank)
        return tuple(axis for axis in candidates if 0 < axis < rank and shape[axis - 1] == 1)

    def infer(self, spec: Spec) -> Spec:
        axes = self._axes(spec.numbers(self).shape)
        shape = tuple(size for axis, size in enumerate(spec.shape, 1) if axis not in axes)
        return spec.replace(shape=shape) if axes else spec

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        return batch.squeeze(self._axes(batch.shape[1:]))
