"""The operations on tensors that input pipelines use, done by NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import OptionError, SchemaError
from . import nest
from .values import (
    RaggedTensor,
    SparseTensor,
    String,
    Tensor,
    as_dtype,
    check_shape,
    int32,
    string,
    strings,
    tensor,
)

as_tensor = tensor
newaxis = None


def _of(value: Any) -> Any:
    return np.asarray(value).view(Tensor)


def _array(value: Any) -> Any:
    """As an array that NumPy's functions take; a single string too."""
    made = tensor(value)
    return np.array(made, dtype=object).view(Tensor) if isinstance(made, String) else made


def constant(value: Any, dtype: Any = None, shape: Any = None, name: Any = None) -> Any:
    made = tensor(value, dtype)
    return made if shape is None else broadcast_to(made, shape) if made.ndim == 0 else reshape(made, shape)


def convert_to_tensor(value: Any, dtype: Any = None, dtype_hint: Any = None, name: Any = None) -> Any:
    return tensor(value, dtype)


def is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor | String | SparseTensor | RaggedTensor)


def cast(x: Any, dtype: Any, name: Any = None) -> Any:
    """Another type; numbers that do not fit wrap around, fractions are cut."""
    kind = as_dtype(dtype)
    if isinstance(x, SparseTensor):
        return SparseTensor(x.indices, cast(x.values, kind), x.dense_shape)
    value = tensor(x)
    if (as_dtype(value.dtype) == string) != (kind == string):
        raise SchemaError(f"{as_dtype(value.dtype).name} cannot be cast to {kind.name}; see tf.strings")
    with np.errstate(invalid="ignore", over="ignore"):
        return value if kind == string else value.astype(kind.dtype, copy=False).view(Tensor)


def saturate_cast(value: Any, dtype: Any, name: Any = None) -> Any:
    kind, given = as_dtype(dtype), tensor(value)
    if kind.is_integer:
        # Float64 holds the ends of every integer type up to 32 bits.
        given = np.clip(given, kind.min, kind.max).view(Tensor)
    return cast(given, kind)


def reshape(tensor: Any, shape: Any, name: Any = None) -> Any:
    wanted = tuple(int(one) for one in np.asarray(shape, dtype=np.int64).reshape(-1))
    given = as_tensor(tensor)
    if isinstance(given, String):
        return given if not wanted else strings([given]).reshape(wanted)
    try:
        made = given.reshape(wanted)
    except ValueError:
        raise SchemaError(
            f"{given.size} values of shape {given.shape} do not make the shape {wanted}"
        ) from None
    return as_tensor(made[()]) if made.ndim == 0 and made.dtype == object else made


def shape(input: Any, out_type: Any = int32, name: Any = None) -> Any:
    return np.array(tensor(input).shape, dtype=as_dtype(out_type).dtype).view(Tensor)


def size(input: Any, out_type: Any = int32, name: Any = None) -> Any:
    return np.array(_array(input).size, dtype=as_dtype(out_type).dtype).view(Tensor)


def rank(input: Any, name: Any = None) -> Any:
    return np.array(tensor(input).ndim, dtype=np.int32).view(Tensor)


def ensure_shape(x: Any, shape: Any, name: Any = None) -> Any:
    check_shape(x, shape)
    return x


def expand_dims(input: Any, axis: Any, name: Any = None) -> Any:
    return np.expand_dims(_array(input), int(axis))


def squeeze(input: Any, axis: Any = None, name: Any = None) -> Any:
    axes = None if axis is None else tuple(int(one) for one in np.asarray(axis).reshape(-1)) or None
    made = np.squeeze(_array(input), axes)
    return tensor(made[()]) if made.ndim == 0 and made.dtype == object else made


def stack(values: Any, axis: int = 0, name: Any = None) -> Any:
    return _of(np.stack([np.asarray(_array(one)) for one in values], axis))


def unstack(value: Any, num: Any = None, axis: int = 0, name: Any = None) -> list[Any]:
    return [tensor(one) for one in np.moveaxis(tensor(value), axis, 0)]


def concat(values: Any, axis: Any, name: Any = None) -> Any:
    return _of(np.concatenate([np.asarray(_array(one)) for one in values], int(axis)))


def split(value: Any, num_or_size_splits: Any, axis: int = 0, name: Any = None) -> list[Any]:
    given = tensor(value)
    parts = np.asarray(num_or_size_splits)
    where: Any = int(parts) if parts.ndim == 0 else np.cumsum(parts)[:-1]
    try:
        return [_of(one) for one in np.split(given, where, axis)]
    except ValueError as error:
        raise SchemaError(f"an array of shape {given.shape} cannot be split this way: {error}") from None


def transpose(a: Any, perm: Any = None, name: Any = None) -> Any:
    return np.transpose(tensor(a), None if perm is None else [int(one) for one in perm])


def tile(input: Any, multiples: Any, name: Any = None) -> Any:
    return _of(np.tile(np.asarray(_array(input)), [int(one) for one in multiples]))


def slice(input_: Any, begin: Any, size: Any, name: Any = None) -> Any:
    """Part of a tensor; a size of -1 reaches to the end."""
    given = tensor(input_)
    starts, sizes = ([int(one) for one in part] for part in (begin, size))
    if len(starts) != given.ndim or len(sizes) != given.ndim:
        raise OptionError(f"begin and size need {given.ndim} numbers")
    ends = [
        room if many < 0 else at + many for at, many, room in zip(starts, sizes, given.shape, strict=True)
    ]
    if any(at < 0 or at > end or end > room for at, end, room in zip(starts, ends, given.shape, strict=True)):
        raise SchemaError(f"from {starts} {sizes} does not lie in the shape {given.shape}")
    return given[tuple(_slice(at, end) for at, end in zip(starts, ends, strict=True))]


_slice = type(np.s_[:])


def pad(
    tensor: Any, paddings: Any, mode: str = "CONSTANT", constant_values: Any = 0, name: Any = None
) -> Any:
    around = [tuple(int(side) for side in pair) for pair in np.asarray(paddings)]
    given = np.asarray(as_tensor(tensor))
    if mode.upper() == "CONSTANT":
        return _of(np.pad(given, around, constant_values=constant_values))
    if mode.upper() == "REFLECT":
        return _of(np.pad(given, around, mode="reflect"))
    if mode.upper() == "SYMMETRIC":
        return _of(np.pad(given, around, mode="symmetric"))
    raise OptionError(f"mode is CONSTANT, REFLECT or SYMMETRIC, not {mode!r}")


def one_hot(
    indices: Any,
    depth: Any,
    on_value: Any = 1,
    off_value: Any = 0,
    axis: Any = -1,
    dtype: Any = None,
    name: Any = None,
) -> Any:
    where = np.asarray(tensor(indices))
    kind = as_dtype(dtype if dtype is not None else np.float32).dtype
    hot = where[..., None] == np.arange(int(depth))
    made = np.where(hot, np.asarray(on_value, dtype=kind), np.asarray(off_value, dtype=kind))
    return _of(made if axis in (None, -1) else np.moveaxis(made, -1, axis))


def broadcast_to(input: Any, shape: Any, name: Any = None) -> Any:
    wanted = tuple(int(one) for one in np.asarray(shape).reshape(-1))
    try:
        return _of(np.broadcast_to(np.asarray(_array(input)), wanted).copy())
    except ValueError as error:
        raise SchemaError(str(error)) from None


def zeros(shape: Any, dtype: Any = np.float32, name: Any = None) -> Any:
    return fill(shape, "" if as_dtype(dtype) == string else 0, dtype)


def ones(shape: Any, dtype: Any = np.float32, name: Any = None) -> Any:
    return fill(shape, 1, dtype)


def fill(dims: Any, value: Any, dtype: Any = None, name: Any = None) -> Any:
    return broadcast_to(tensor(value, dtype), dims)


def zeros_like(input: Any, dtype: Any = None, name: Any = None) -> Any:
    given = tensor(input)
    return zeros(given.shape, given.dtype if dtype is None else dtype)


def ones_like(input: Any, dtype: Any = None, name: Any = None) -> Any:
    given = tensor(input)
    return ones(given.shape, given.dtype if dtype is None else dtype)


def range(*args: Any, dtype: Any = None, **named: Any) -> Any:
    made = np.arange(
        *args, **{{"limit": "stop", "delta": "step"}.get(key, key): v for key, v in named.items()}
    )
    kind = {"i": np.int32, "f": np.float32}.get(made.dtype.kind) if dtype is None else as_dtype(dtype).dtype
    return made.astype(kind).view(Tensor)


def gather(params: Any, indices: Any, axis: Any = None, name: Any = None) -> Any:
    return tensor(np.take(np.asarray(_array(params)), np.asarray(indices), axis=int(axis or 0)))


def where(condition: Any, x: Any = None, y: Any = None, name: Any = None) -> Any:
    if x is None and y is None:
        return np.argwhere(np.asarray(condition)).astype(np.int64).view(Tensor)
    return _of(np.where(np.asarray(condition), _array(x), _array(y)))


def boolean_mask(tensor: Any, mask: Any, axis: Any = None, name: Any = None) -> Any:
    return as_tensor(tensor)[np.asarray(mask, dtype=bool)]


def identity(input: Any, name: Any = None) -> Any:
    return tensor(input)


def cond(pred: Any, true_fn: Callable[[], Any], false_fn: Callable[[], Any], name: Any = None) -> Any:
    return nest.element((true_fn if pred else false_fn)())


def py_function(func: Callable[..., Any], inp: Any, Tout: Any, name: Any = None) -> Any:  # noqa: N803
    """The function with these arguments; what it returns made to be of these types."""
    return _typed(func(*(tensor(one) for one in inp)), Tout)


def numpy_function(
    func: Callable[..., Any],
    inp: Any,
    Tout: Any,  # noqa: N803
    stateful: bool = True,
    name: Any = None,
) -> Any:
    return _typed(func(*(nest.to_numpy(tensor(one)) for one in inp)), Tout)


def _typed(made: Any, kinds: Any) -> Any:
    if isinstance(kinds, list | tuple):
        if not kinds:
            return []
        parts = list(made) if isinstance(made, list | tuple) else [made]
        if len(parts) != len(kinds):
            raise SchemaError(f"the function returned {len(parts)} values, Tout names {len(kinds)}")
        return [tensor(one, kind) for one, kind in zip(parts, kinds, strict=True)]
    return tensor(made, kinds)


def function(func: Any = None, **options: Any) -> Any:
    """Nothing is compiled here: the function itself."""
    return func if func is not None else lambda one: one


def elementwise(of: Callable[..., Any]) -> Callable[..., Any]:
    """A NumPy function of tensors, which gives a tensor of the first one's type."""

    def run(x: Any, *others: Any, name: Any = None) -> Any:
        first = tensor(x)
        return _of(of(first, *(_like(one, first) for one in others)))

    return run


def _like(value: Any, first: Any) -> Any:
    # Python's numbers take the type of the other side.
    return np.asarray(value, dtype=first.dtype) if isinstance(value, int | float) else tensor(value)


def reducing(of: Callable[..., Any]) -> Callable[..., Any]:
    """A NumPy reduction under TensorFlow's arguments; the type stays."""

    def run(input_tensor: Any, axis: Any = None, keepdims: bool = False, name: Any = None) -> Any:
        given = tensor(input_tensor)
        axes = None if axis is None else tuple(int(one) for one in np.asarray(axis).reshape(-1))
        made = np.asarray(of(np.asarray(given), axis=axes, keepdims=keepdims))
        return _of(made if made.dtype == bool else made.astype(given.dtype))

    return run


def argmax(input: Any, axis: Any = 0, output_type: Any = np.int64, name: Any = None) -> Any:
    return _of(np.argmax(np.asarray(input), axis=axis).astype(as_dtype(output_type).dtype))
