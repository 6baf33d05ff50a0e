"""Conversion to tensors, devices, torch's layout of images, and other dtypes."""

from __future__ import annotations

from typing import Any

from ....interop import torch as interop
from ....ops.base import Op
from .. import ops
from ..builtin import Builtin


class ToTensor(Builtin):
    """Convert arrays to tensors that share their memory."""

    def __init__(self) -> None:
        super().__init__()

    def as_op(self, tensors: bool) -> Op:
        return interop.ToTensor()


class ToDevice(Builtin):
    """Copy tensors to a device. With CUDA the copy has its own stream and overlaps with training."""

    def __init__(self, device: Any, non_blocking: bool = True) -> None:
        super().__init__()
        self.device, self.non_blocking = device, non_blocking

    def as_op(self, tensors: bool) -> Op:
        return interop.ToDevice(self.device, self.non_blocking)


class ToTorchImage(Builtin):
    """Permute (batch, height, width, channels) to (batch, channels, height, width); no copy by default."""

    def __init__(self, channels_last: bool = True, convert_back_int16: bool = True) -> None:
        super().__init__()
        self.channels_last, self.convert_int16 = channels_last, convert_back_int16

    def as_op(self, tensors: bool) -> Op:
        return interop.ToTorchImage(self.channels_last, self.convert_int16)


class Convert(Builtin):
    """Convert values to another dtype, of torch or of NumPy."""

    def __init__(self, target_dtype: Any) -> None:
        super().__init__()
        self.target_dtype = target_dtype

    def as_op(self, tensors: bool) -> Op:
        return interop.Convert(self.target_dtype)


class View(Builtin):
    """Reinterpret the same bytes as another dtype, of torch or of NumPy."""

    def __init__(self, target_dtype: Any) -> None:
        super().__init__()
        self.target_dtype = target_dtype

    def as_op(self, tensors: bool) -> Op:
        return ops.View(self.target_dtype)
