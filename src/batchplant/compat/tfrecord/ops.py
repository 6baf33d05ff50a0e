"""The few operations on tensors that functions of input pipelines need; NumPy does the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex, overload

import numpy as np

from ...errors import SchemaError
from . import nest
from .values import (
    SparseTensor,
    String,
    Tensor,
    as_dtype,
    as_tensor,
    int32,
    string,
    strings,
    tensor,
)


def constant(value: object, dtype: object = None, shape: object = None, name: object = None) -> Any:
    array = tensor(value, dtype)
    if shape is None:
        return array
    if array.ndim:
        return reshape(array, shape)
    filled = np.empty(_sizes(shape), dtype=np.dtype(array.dtype))
    filled.fill(array if isinstance(array, String) else array.item())
    return filled.view(Tensor)


def convert_to_tensor(
    value: object, dtype: object = None, dtype_hint: object = None, name: object = None
) -> Any:
    return tensor(value, dtype)


def is_tensor(value: object) -> bool:
    return isinstance(value, Tensor | String | SparseTensor)


def cast(x: object, dtype: object, name: object = None) -> Any:
    """Return the values in another type; numbers that do not fit wrap around, fractions are cut."""
    target = as_dtype(dtype)
    if isinstance(x, SparseTensor):
        return SparseTensor(x.indices, cast(x.values, target), x.dense_shape)
    value = tensor(x)
    if (as_dtype(value.dtype) == string) != (target == string):
        raise SchemaError(
            f"{as_dtype(value.dtype).name} cannot be cast to {target.name}; use int(), float() or str()"
        )
    with np.errstate(invalid="ignore", over="ignore"):
        return value if target == string else value.astype(target.dtype, copy=False).view(Tensor)


def _sizes(shape: object) -> tuple[int, ...]:
    return tuple(int(size) for size in np.asarray(shape, dtype=np.int64).reshape(-1))


def reshape(tensor: object, shape: object, name: object = None) -> Any:
    sizes, value = _sizes(shape), convert_to_tensor(tensor)
    if isinstance(value, String):
        return value if not sizes else strings([value]).reshape(sizes)
    try:
        reshaped = value.reshape(sizes)
    except ValueError:
        raise SchemaError(
            f"{value.size} values of shape {value.shape} do not make the shape {sizes}"
        ) from None
    return reshaped[()] if reshaped.ndim == 0 and reshaped.dtype == object else reshaped


def shape(input: object, out_type: object = int32, name: object = None) -> Tensor:
    return as_tensor(np.array(tensor(input).shape, dtype=as_dtype(out_type).dtype))


def one_hot(
    indices: object,
    depth: SupportsIndex,
    on_value: object = 1,
    off_value: object = 0,
    axis: int | None = -1,
    dtype: object = None,
    name: object = None,
) -> Tensor:
    positions = np.asarray(tensor(indices))
    number = as_dtype(np.float32 if dtype is None else dtype).dtype
    is_hot = positions[..., None] == np.arange(int(depth))
    encoded = np.where(is_hot, np.asarray(on_value, dtype=number), np.asarray(off_value, dtype=number))
    return as_tensor(encoded if axis in (None, -1) else np.moveaxis(encoded, -1, axis))


def py_function(
    func: Callable[..., object],
    inp: Iterable[object],
    Tout: Any,  # noqa: N803
    name: object = None,
) -> Any:
    """Call the function with tensors and return its results in these types."""
    return _typed(func(*(tensor(value) for value in inp)), Tout)


def numpy_function(
    func: Callable[..., object],
    inp: Iterable[object],
    Tout: Any,  # noqa: N803
    stateful: bool = True,
    name: object = None,
) -> Any:
    """Call the function with NumPy values and return its results in these types."""
    return _typed(func(*(nest.to_numpy(tensor(value)) for value in inp)), Tout)


def _typed(result: object, types: object) -> Any:
    if not isinstance(types, list | tuple):
        return tensor(result, types)
    if not types:
        return []
    results = list(result) if isinstance(result, list | tuple) else [result]
    if len(results) != len(types):
        raise SchemaError(f"the function returned {len(results)} values, Tout names {len(types)}")
    return [tensor(value, dtype) for value, dtype in zip(results, types, strict=True)]


@overload
def function(func: Callable[..., Any], **options: object) -> Callable[..., Any]: ...
@overload
def function(func: None = None, **options: object) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...
def function(func: Callable[..., Any] | None = None, **options: object) -> Callable[..., Any]:
    """Return the function itself: nothing is compiled here."""
    return func if func is not None else lambda decorated: decorated
