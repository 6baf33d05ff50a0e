"""Dtypes of NumPy as torch's and back, without importing torch: a caller that has its dtypes did so."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ..ops.base import DType, Tensor
from ..schema.columns import AnyDType


def is_torch_dtype(dtype: DType) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(dtype, torch.dtype)


def torch_dtype(dtype: DType) -> Any:
    """Torch's name of a dtype."""
    if is_torch_dtype(dtype):
        return dtype
    return sys.modules["torch"].from_numpy(np.empty(0, dtype=dtype)).dtype


def numpy_dtype(dtype: DType) -> AnyDType | None:
    """NumPy's name of a dtype; None where it has none (bfloat16)."""
    if not is_torch_dtype(dtype):
        return np.dtype(dtype)
    try:
        return sys.modules["torch"].empty(0, dtype=dtype).numpy().dtype
    except TypeError:
        return None


def signed(tensor: Tensor) -> Tensor:
    """The same bytes as numbers with a sign: of wide numbers without one, torch moves and chooses few."""
    names = {"torch.uint16": "int16", "torch.uint32": "int32", "torch.uint64": "int64"}
    name = names.get(str(tensor.dtype))
    return tensor if name is None else tensor.view(torch_dtype(np.dtype(name)))


def choose(condition: Tensor, chosen: Tensor, alternative: Tensor) -> Tensor:
    """``torch.where`` for two tensors of the same dtype, also those that torch cannot select."""
    return sys.modules["torch"].where(condition, signed(chosen), signed(alternative)).view(alternative.dtype)
