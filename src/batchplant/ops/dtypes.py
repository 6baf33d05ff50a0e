"""Dtypes of NumPy as torch's and back, without importing torch: a caller that has its dtypes did so."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def is_torch_dtype(dtype: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(dtype, torch.dtype)


def torch_dtype(dtype: Any) -> Any:
    """Torch's name of a dtype."""
    if is_torch_dtype(dtype):
        return dtype
    return sys.modules["torch"].from_numpy(np.empty(0, dtype=dtype)).dtype


def numpy_dtype(dtype: Any) -> np.dtype[Any] | None:
    """NumPy's name of a dtype; None where it has none (bfloat16)."""
    if not is_torch_dtype(dtype):
        plain: np.dtype[Any] = np.dtype(dtype)
        return plain
    try:
        dtype_of_array: np.dtype[Any] = sys.modules["torch"].empty(0, dtype=dtype).numpy().dtype
        return dtype_of_array
    except TypeError:
        return None


def signed(tensor: Any) -> Any:
    """The same bytes as numbers with a sign: of wide numbers without one, torch moves and chooses few."""
    names = {"torch.uint16": "int16", "torch.uint32": "int32", "torch.uint64": "int64"}
    name = names.get(str(tensor.dtype))
    return tensor if name is None else tensor.view(torch_dtype(np.dtype(name)))


def choose(condition: Any, chosen: Any, alternative: Any) -> Any:
    """``torch.where`` for two tensors of the same dtype, also those that torch cannot select."""
    return sys.modules["torch"].where(condition, signed(chosen), signed(alternative)).view(alternative.dtype)
