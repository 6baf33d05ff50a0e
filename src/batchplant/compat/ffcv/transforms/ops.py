"""To tensors, to a device, to torch's layout of images, to another dtype."""

from __future__ import annotations

from typing import Any

from ....interop import torch as interop
from ....ops.base import Op
from .. import ops
from ..builtin import Builtin


class ToTensor(Builtin):
    """Arrays as tensors that share their memory."""

    def __init__(self) -> None:
        super().__init__()

    def as_op(self, tensors: bool) -> Op:
        return interop.ToTensor()


class ToDevice(Builtin):
    """Tensors on another device. With CUDA the copy has a stream of its own, and overlaps with training."""

    def __init__(self, device: Any, non_blocking: bool = True) -> None:
        super().__init__()
        self.device, self.non_blocking = device, non_blocking

    def as_op(self, tensors: bool) -> Op:
        return interop.ToDevice(self.device, self.non_blocking)


class ToTorchImage(Builtin):
    """(batch, height, width, channels) to (batch, channels, height, width), without a copy by default."""

    def __init__(self, channels_last: bool = True, convert_back_int16: bool = True) -> None:
        super().__init__()
        self.channels_last, self.convert_int16 = channels_last, convert_back_int16

    def as_op(self, tensors: bool) -> Op:
        return interop.ToTorchImage(self.channels_last, self.convert_int16)


class Convert(Builtin):
    """Another dtype, of torch or of NumPy, by value."""

    def __init__(self, target_dtype: Any) -> None:
        super().__init__()
        self.target_dtype = target_dtype

    def as_op(self, tensors: bool) -> Op:
        return interop.Convert(self.target_dtype)


class View(Builtin):
    """The same bytes as another dtype, of torch or of NumPy."""

    def __init__(self, target_dtype: Any) -> None:
        super().__init__()
        self.target_dtype = target_dtype

    def as_op(self, tensors: bool) -> Op:
        return ops.View(self.target_dtype)
