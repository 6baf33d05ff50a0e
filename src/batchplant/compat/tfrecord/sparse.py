"""tf.sparse: values at some places of a larger shape."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import SchemaError
from .values import SparseTensor, String, Tensor, as_dtype, string, tensor

__all__ = ["SparseTensor", "from_dense", "to_dense"]

# A dense array of more items would be memory for nothing but its defaults.
_MOST = 1 << 31


def to_dense(
    sp_input: Any, default_value: Any = None, validate_indices: bool = True, name: Any = None
) -> Any:
    """An array of the dense shape with the default where there is no value."""
    shape = [int(size) for size in sp_input.dense_shape]
    size = 1
    for one in shape:
        size *= one
    if min(shape, default=0) < 0 or size > _MOST:
        raise SchemaError(f"{len(sp_input.values)} values do not fit an array of shape {tuple(shape)}")
    is_string = as_dtype(sp_input.dtype) == string
    out = np.empty(shape, dtype=as_dtype(sp_input.dtype).dtype)
    if default_value is None:
        default_value = b"" if is_string else 0
    out.fill(String(tensor(default_value)) if is_string else default_value)
    where = sp_input.indices.numpy()
    if len(where) and ((where < 0) | (where >= np.array(shape))).any():
        raise SchemaError(f"an index lies outside of the shape {tuple(shape)}")
    out[tuple(where.T)] = sp_input.values
    return out.view(Tensor)


def from_dense(value: Any, name: Any = None) -> SparseTensor:
    given = tensor(value)
    where = np.argwhere(np.asarray(given) != (b"" if as_dtype(given.dtype) == string else 0))
    return SparseTensor(where, np.asarray(given)[tuple(where.T)], given.shape)
