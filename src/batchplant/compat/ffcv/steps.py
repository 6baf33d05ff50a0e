"""Steps after a decoder, with FFCV's names and argument order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ... import _native, ops
from ...errors import DecodeError, OptionError
from ...interop import torch as interop
from ...interop.torch import numpy_dtype, torch_dtype
from ...ops.base import Batch, Draws, Op, Spec
from ...ops.crops import random_boxes
from ...schema.columns import I64
from . import ops as ffcv_ops
from .operations import USER_CODE_LOCK, Builtin


@dataclass(eq=False, repr=False)
class ToTensor(Builtin):
    """Convert arrays to tensors that share their memory."""

    op_type = interop.ToTensor


@dataclass(eq=False, repr=False)
class ToDevice(Builtin):
    """Copy tensors to a device. With CUDA the copy has its own stream and overlaps with training."""

    op_type = interop.ToDevice
    device: Any
    non_blocking: bool = True


class ToTorchImage(Builtin):
    """Permute (batch, height, width, channels) to (batch, channels, height, width); no copy by default."""

    def __init__(self, channels_last: bool = True, convert_back_int16: bool = True) -> None:
        self.channels_last, self.convert_int16 = channels_last, convert_back_int16

    def as_op(self, tensors: bool) -> Op:
        return interop.ToTorchImage(self.channels_last, self.convert_int16)


@dataclass(eq=False, repr=False)
class Convert(Builtin):
    """Convert values to another dtype, of torch or of NumPy."""

    op_type = interop.Convert
    target_dtype: Any


@dataclass(eq=False, repr=False)
class View(Builtin):
    """Reinterpret the same bytes as another dtype, of torch or of NumPy."""

    op_type = ffcv_ops.View
    target_dtype: Any


class _Module(interop.ModuleWrapper):
    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        # Modules may store random draws in attributes: run one batch at a time.
        with USER_CODE_LOCK:
            return super().run(batch, ids, draws)


@dataclass(eq=False, repr=False)
class ModuleWrapper(Builtin):
    """Apply a torch module to every batch. Modules in a pipeline are wrapped automatically."""

    op_type = _Module
    module: Any


class Squeeze(Builtin):
    """Remove the axes of size 1, or those of them that are named; the axis of the batch always stays."""

    def __init__(self, *dims: int) -> None:
        self.dims = dims

    def as_op(self, tensors: bool) -> Op:
        return ffcv_ops.Squeeze(*self.dims)


@dataclass(eq=False, repr=False)
class _Jitter(Builtin):
    magnitude: float
    p: float = 0.5


class RandomBrightness(_Jitter):
    """With probability ``p``, multiply by a number from 1 - magnitude to 1 + magnitude."""

    op_type = ops.RandomBrightness


class RandomContrast(_Jitter):
    """With probability ``p``, move all pixels away from the image's mean gray, or towards it."""

    op_type = ops.RandomContrast


class RandomSaturation(_Jitter):
    """With probability ``p``, move every pixel away from its own gray, or towards it."""

    op_type = ops.RandomSaturation


@dataclass(eq=False, repr=False)
class RandomHorizontalFlip(Builtin):
    """Mirror left and right with probability ``flip_prob``; free right after a decoder."""

    op_type = ops.RandomHorizontalFlip
    flip_prob: float = 0.5


class RandomTranslate(Builtin):
    """Shift every image by up to ``padding`` pixels each way, and fill the border with a colour."""

    def __init__(self, padding: int, fill: npt.ArrayLike = (0, 0, 0)) -> None:
        self.padding, self.fill = padding, np.array(fill)

    def as_op(self, tensors: bool) -> Op:
        return ops.RandomTranslate(self.padding, self.fill.tolist())


class Cutout(Builtin):
    """Fill a random square of every image with a colour."""

    def __init__(self, crop_size: int, fill: npt.ArrayLike = (0, 0, 0)) -> None:
        self.crop_size, self.fill = crop_size, np.array(fill)

    def as_op(self, tensors: bool) -> Op:
        return ffcv_ops.Cutout(self.crop_size, self.fill.tolist())


@dataclass(eq=False, repr=False)
class RandomResizedCrop(Builtin):
    """Crop a random part of every image and resize it; fused with a preceding SimpleRGBImageDecoder."""

    scale: tuple[float, float]
    ratio: tuple[float, float]
    size: int

    def as_decoder(self) -> ops.ImageDecoder:
        """Return the same as the first step of a pipeline."""
        return ops.RandomResizedCrop(self.size, self.scale, self.ratio, filter="area")

    def as_op(self, tensors: bool) -> Op:
        return _Crop(self.as_decoder())


class _Crop(Op):
    def __init__(self, decoder: Any) -> None:
        self.decoder = decoder
        self._engine: Any = None

    def infer(self, spec: Spec) -> Spec:
        return Spec(spec.dtype, (*self.decoder.size, spec.image(self)[2]))

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        count, height, width, channels = batch.shape
        sizes = np.tile(np.array([[height, width]], dtype=np.int32), (count, 1))
        boxes = random_boxes(sizes, self.decoder.scale, self.decoder.ratio, draws)
        image_bytes = height * width * channels
        if self._engine is None:
            self._engine = _native.Engine(4, None)
        crops = np.empty((count, *self.decoder.size, channels), dtype=np.uint8)
        _, errors, _ = self._engine.decode(
            [np.ascontiguousarray(batch).reshape(-1)], np.zeros(count, dtype=np.int32),
            np.arange(count, dtype=np.int64) * image_bytes, np.full(count, image_bytes, dtype=np.int64),
            np.tile(np.array([[height, width, channels]], dtype=np.int32), (count, 1)), boxes, None, crops,
            layout="nhwc", filter="area", dct="accurate", fast_scale=False, scale=None, offset=None,
            strict=True,
        )  # fmt: skip
        for row, message in errors:
            raise DecodeError(message, sample=int(ids[row]))
        return crops


# Bounds the memory of the look-up indices.
MAX_LOOKUP_PIXELS = 1 << 24


def ch_dtype_from_numpy(dtype: Any) -> Any:
    """Return torch's name of a NumPy dtype."""
    return torch_dtype(dtype)


class NormalizeImage(Builtin):
    """Compute (pixel - mean) / std for each channel as ``type``, of arrays and of tensors on any device."""

    def __init__(self, mean: npt.ArrayLike, std: npt.ArrayLike, type: Any) -> None:
        self.mean, self.std = np.asarray(mean, dtype=np.float64), np.asarray(std, dtype=np.float64)
        self.original_dtype = type

    def as_op(self, tensors: bool) -> Op:
        op_type = NormalizeTensor if tensors else ops.Normalize
        return op_type(self.mean.tolist(), self.std.tolist(), numpy_dtype(self.original_dtype))


class NormalizeTensor(ops.Normalize):
    """Normalize for tensors: channels first, or last before ToTorchImage."""

    def __init__(self, mean: Any, std: Any, dtype: Any = "float32") -> None:
        super().__init__(mean, std, dtype)
        self._channels_first = True
        self._device_tables: dict[Any, tuple[Any, Any]] = {}

    def _tables(self, device: Any) -> tuple[Any, Any]:
        """Return the value of every level, channel by channel, and the offsets of the channels."""
        if device not in self._device_tables:
            table = torch.from_numpy(np.ascontiguousarray(self.table().T).reshape(-1))
            starts = torch.arange(len(self.mean), dtype=torch.int32) * 256
            self._device_tables[device] = table.to(device), starts.to(device)
        return self._device_tables[device]

    def infer(self, spec: Spec) -> Spec:
        channels = len(self.mean)
        self._channels_first = spec.channels_first or spec.shape[-1:] != (channels,)
        if (
            spec.dtype != np.uint8
            or len(spec.shape) != 3
            or spec.shape[0 if self._channels_first else 2] != channels
        ):
            raise OptionError(f"NormalizeImage needs uint8 images of {channels} channels, not {spec}")
        return spec.replace(dtype=self.dtype)

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        pixels = (batch.permute(0, 2, 3, 1) if self._channels_first else batch).contiguous()
        table, starts = self._tables(batch.device)
        normalized = torch.empty(pixels.shape, dtype=table.dtype, device=batch.device)
        step = max(1, MAX_LOOKUP_PIXELS // max(1, pixels[0].numel()) if len(pixels) else 1)
        for start in range(0, len(pixels), step):
            levels = (pixels[start : start + step].to(torch.int32) + starts).reshape(-1)
            torch.index_select(table, 0, levels, out=normalized[start : start + step].view(-1))
        return normalized.permute(0, 3, 1, 2) if self._channels_first else normalized


@dataclass(eq=False, repr=False)
class ImageMixup(Builtin):
    """Mix every image with the previous one of the batch; use LabelMixup with the same arguments."""

    op_type = ffcv_ops.ImageMixup
    alpha: float
    same_lambda: bool


@dataclass(eq=False, repr=False)
class LabelMixup(Builtin):
    """Return (own label, the previous sample's, weight of the own) for every sample."""

    op_type = ffcv_ops.LabelMixup
    alpha: float
    same_lambda: bool


@dataclass(eq=False, repr=False)
class MixupToOneHot(Builtin):
    """Turn the rows of LabelMixup into one row of class weights for every sample."""

    num_classes: int

    def as_op(self, tensors: bool) -> Op:
        return _OneHotTensor(self.num_classes) if tensors else ffcv_ops.MixupToOneHot(self.num_classes)


class _OneHotTensor(ffcv_ops.MixupToOneHot):
    def infer(self, spec: Spec) -> Spec:
        return spec.replace(shape=super().infer(spec).shape)

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        labels, previous, weights = batch[:, 0].long(), batch[:, 1].long(), batch[:, 2]
        one_hot = torch.zeros((len(batch), self.num_classes), dtype=batch.dtype, device=batch.device)
        one_hot.scatter_add_(1, labels[:, None], weights[:, None])
        return one_hot.scatter_add_(1, previous[:, None], 1 - weights[:, None])


class Poison(Builtin):
    """Lay a mask of opacity ``alpha`` over the images of some samples."""

    def __init__(
        self,
        mask: npt.ArrayLike,
        alpha: npt.ArrayLike,
        indices: Sequence[int],
        clamp: tuple[int, int] = (0, 255),
    ) -> None:
        self.mask, self.alpha, self.indices, self.clamp = mask, alpha, np.sort(indices), clamp

    def as_op(self, tensors: bool) -> Op:
        return ffcv_ops.Poison(self.mask, self.alpha, self.indices.tolist(), self.clamp)


class ReplaceLabel(Builtin):
    """Give some samples another label."""

    def __init__(self, indices: Sequence[int], new_label: int) -> None:
        self.indices, self.new_label = np.sort(indices), new_label

    def as_op(self, tensors: bool) -> Op:
        return ffcv_ops.ReplaceLabel(self.indices.tolist(), self.new_label)
