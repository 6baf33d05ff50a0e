"""Normalisation of arrays in the engine, and of tensors on their device."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .... import ops
from ....errors import OptionError
from ....interop.torch import numpy_dtype, torch_dtype
from ....ops.base import Batch, Draws, Op, Spec
from ....schema.columns import I64
from ..builtin import Builtin

# Bounds the memory of the look-up indices.
MAX_LOOKUP_PIXELS = 1 << 24


def ch_dtype_from_numpy(dtype: Any) -> Any:
    """Return torch's name of a NumPy dtype."""
    return torch_dtype(dtype)


class NormalizeImage(Builtin):
    """Compute (pixel - mean) / std for each channel as ``type``, of arrays and of tensors on any device."""

    def __init__(self, mean: npt.ArrayLike, std: npt.ArrayLike, type: Any) -> None:
        super().__init__()
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


__all__ = ["NormalizeImage", "NormalizeTensor", "ch_dtype_from_numpy"]
