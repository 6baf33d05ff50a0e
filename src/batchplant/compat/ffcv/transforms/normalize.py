"""Normalisation: of arrays in the engine, of tensors on their device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .... import ops
from ....errors import OptionError
from ....interop.torch import numpy_dtype, torch_dtype
from ....ops.base import Draws, Op, Spec
from ....schema.columns import I64
from ..builtin import Builtin

# Pixels that are looked up at once; bounds the memory that the indices take.
CHUNK = 1 << 24


def ch_dtype_from_numpy(dtype: Any) -> Any:
    """Torch's name of a NumPy dtype."""
    return torch_dtype(dtype)


class NormalizeImage(Builtin):
    """(pixel - mean) / std for each channel, as ``type``; of arrays and of tensors, wherever they are."""

    def __init__(self, mean: Any, std: Any, type: Any) -> None:
        super().__init__()
        self.mean, self.std = np.asarray(mean, dtype=np.float64), np.asarray(std, dtype=np.float64)
        self.original_dtype = type

    def as_op(self, tensors: bool) -> Op:
        kind = NormalizeTensor if tensors else ops.Normalize
        return kind(self.mean.tolist(), self.std.tolist(), numpy_dtype(self.original_dtype))


class NormalizeTensor(ops.Normalize):
    """Normalize for tensors: channels first, or last as they come before ToTorchImage."""

    def __init__(self, mean: Any, std: Any, dtype: Any = "float32") -> None:
        super().__init__(mean, std, dtype)
        self._first = True
        self._on: dict[Any, tuple[Any, Any]] = {}

    def _tables(self, device: Any) -> tuple[Any, Any]:
        """The value of every level, channel by channel, and where the channels start; made once."""
        if device not in self._on:
            table = torch.from_numpy(np.ascontiguousarray(self.table().T).reshape(-1))
            starts = torch.arange(len(self.mean), dtype=torch.int32) * 256
            self._on[device] = table.to(device), starts.to(device)
        return self._on[device]

    def infer(self, spec: Spec) -> Spec:
        channels = len(self.mean)
        self._first = spec.channels_first or spec.shape[-1:] != (channels,)
        if spec.dtype != np.uint8 or len(spec.shape) != 3 or spec.shape[0 if self._first else 2] != channels:
            raise OptionError(f"NormalizeImage needs uint8 images of {channels} channels, not {spec}")
        return spec.but(dtype=self.dtype)

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        pixels = (batch.permute(0, 2, 3, 1) if self._first else batch).contiguous()
        table, starts = self._tables(batch.device)
        out = torch.empty(pixels.shape, dtype=table.dtype, device=batch.device)
        step = max(1, CHUNK // max(1, pixels[0].numel()) if len(pixels) else 1)
        for start in range(0, len(pixels), step):
            levels = (pixels[start : start + step].to(torch.int32) + starts).reshape(-1)
            torch.index_select(table, 0, levels, out=out[start : start + step].view(-1))
        return out.permute(0, 3, 1, 2) if self._first else out


__all__ = ["NormalizeImage", "NormalizeTensor", "ch_dtype_from_numpy"]
