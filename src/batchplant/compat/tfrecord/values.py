"""Tensors of pipelines: NumPy arrays and bytes with the few methods that TensorFlow's tensors have.

``Tensor`` is an ndarray and ``String`` is bytes, so functions for NumPy values accept them. Many strings are
an object array of bytes, as in TensorFlow's ``.numpy()``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...errors import OptionError, SchemaError
from ...schema.columns import AnyArray, AnyDType

# A value, or a dict or tuple of elements: only running the pipeline tells which.
Element: TypeAlias = Any
Shape: TypeAlias = Iterable[int | None]

# A dense array of more values would consist of defaults.
MAX_DENSE_VALUES = 1 << 31


class DType:
    """Type of values; also accepted wherever NumPy expects a dtype."""

    __slots__ = ("dtype", "name")

    def __init__(self, name: str, dtype: npt.DTypeLike) -> None:
        self.name = name
        self.dtype: AnyDType = np.dtype(dtype)

    @property
    def as_numpy_dtype(self) -> type[np.generic]:
        return self.dtype.type

    @property
    def size(self) -> int:
        return int(self.dtype.itemsize)

    @property
    def max(self) -> float:
        return float(np.finfo(self.dtype).max) if self.is_floating else np.iinfo(self.dtype).max

    @property
    def min(self) -> float:
        return float(np.finfo(self.dtype).min) if self.is_floating else np.iinfo(self.dtype).min

    @property
    def is_floating(self) -> bool:
        return bool(self.dtype.kind == "f")

    @property
    def is_integer(self) -> bool:
        return bool(self.dtype.kind in "iu")

    def __eq__(self, other: object) -> bool:
        try:
            return as_dtype(other).name == self.name
        except OptionError:
            return False

    def __hash__(self) -> int:
        return hash(self.dtype)

    def __repr__(self) -> str:
        return f"tf.{self.name}"


string = DType("string", object)
_NUMERIC = {
    name: DType(name, name)
    for name in (
        "bool",
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
_BY_DTYPE = {dtype.dtype: dtype for dtype in (*_NUMERIC.values(), string)}
bool_ = _NUMERIC["bool"]
int8, int16, int32, int64 = (_NUMERIC[f"int{bits}"] for bits in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (_NUMERIC[f"uint{bits}"] for bits in (8, 16, 32, 64))
float16, float32, float64 = (_NUMERIC[f"float{bits}"] for bits in (16, 32, 64))
complex64, complex128 = _NUMERIC["complex64"], _NUMERIC["complex128"]


def as_dtype(type_value: object) -> DType:
    """Return the DType that a name, a NumPy dtype, a Python type or a DType stands for."""
    if isinstance(type_value, DType):
        return type_value
    # Parsing calls this for every value.
    if isinstance(type_value, np.dtype) and type_value in _BY_DTYPE:
        return _BY_DTYPE[type_value]
    if type_value in ("string", str, bytes):
        return string
    try:
        dtype: AnyDType = np.dtype(type_value)  # type: ignore[call-overload]
    except TypeError:
        raise OptionError(f"{type_value!r} is no type of values") from None
    if dtype.kind in "OSU":
        return string
    if dtype.name not in _NUMERIC:
        raise OptionError(f"values of {dtype} are not mirrored")
    return _NUMERIC[dtype.name]


class TensorShape(tuple[int | None, ...]):
    """A shape; None is an unknown size."""

    def as_list(self) -> list[int | None]:
        return list(self)

    @property
    def rank(self) -> int:
        return len(self)

    ndims = rank


def check_shape(value: Any, shape: Shape | None) -> None:
    """Raise SchemaError unless the value has this shape; None fits everything."""
    if shape is None:
        return
    expected = tuple(None if size is None or size < 0 else int(size) for size in shape)
    actual = tuple(value.shape)
    if len(expected) != len(actual) or any(a not in (None, b) for a, b in zip(expected, actual, strict=True)):
        raise SchemaError(f"the value has the shape {actual}, not {expected}")


class Tensor(np.ndarray[Any, AnyDType]):
    """An ndarray with ``numpy()``, ``set_shape()`` and the like; single values stay tensors."""

    def numpy(self) -> Any:
        array = self.view(np.ndarray)
        return array if array.ndim else array[()]

    def __getitem__(self, key: Any) -> Any:
        value = super().__getitem__(key)
        return value if isinstance(value, np.ndarray) else tensor(value)

    def __array_wrap__(self, array: AnyArray, context: object = None, return_scalar: bool = False) -> Any:
        # Otherwise a sum over all axes would be a NumPy scalar, which has no numpy().
        return as_tensor(array)

    def get_shape(self) -> TensorShape:
        return TensorShape(self.shape)

    def set_shape(self, shape: Shape | None) -> None:
        check_shape(self, shape)

    def __repr__(self) -> str:
        return f"<tf.Tensor: shape={self.shape}, dtype={as_dtype(self.dtype).name}, numpy={self.numpy()!r}>"


class String(bytes):
    """The bytes of one string."""

    shape: tuple[int, ...] = ()
    ndim = 0
    dtype = string

    def numpy(self) -> bytes:
        return bytes(self)

    def get_shape(self) -> TensorShape:
        return TensorShape()

    def set_shape(self, shape: Shape | None) -> None:
        check_shape(self, shape)

    def __eq__(self, other: object) -> bool:
        return bytes.__eq__(self, other.encode() if isinstance(other, str) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = bytes.__hash__

    def __add__(self, other: object) -> String:
        return String(bytes(self) + as_bytes(other))

    def __repr__(self) -> str:
        return f"<tf.Tensor: shape=(), dtype=string, numpy={bytes(self)!r}>"


def as_bytes(value: object) -> bytes:
    """Return the bytes of a string in any of its forms: bytes, text, a path, an array of one."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if hasattr(value, "__fspath__"):
        return as_bytes(value.__fspath__())
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return as_bytes(value.item())
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 1:
        return value.tobytes()
    raise SchemaError(f"a string is needed here, not {type(value).__name__} {value!r:.80}")


def as_text(value: object) -> str:
    try:
        return as_bytes(value).decode()
    except UnicodeDecodeError as error:
        raise SchemaError(f"these bytes are not UTF-8 text: {error}") from None


def as_texts(values: object) -> list[str]:
    """Return one string or many, in any form, as a list of text."""
    if isinstance(values, np.ndarray) and values.ndim:
        values = values.reshape(-1).tolist()
    if isinstance(values, list | tuple):
        return [as_text(value) for value in values]
    return [as_text(values)]


def as_tensor(array: object) -> Tensor:
    """Return what NumPy makes an array of as a Tensor, in NumPy's own dtype."""
    return np.asarray(array).view(Tensor)


def strings(values: Sequence[bytes], shape: tuple[int, ...] | None = None) -> Tensor:
    """Return an array of strings."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array.reshape(shape if shape is not None else (len(values),)).view(Tensor)


def tensor(value: object, dtype: object = None) -> Any:
    """Return any value as a Tensor or String; sparse tensors stay as they are.

    As in TensorFlow, Python's integers become int32 and its floats float32; arrays keep their dtype.
    """
    if dtype is not None:
        return _with_dtype(value, as_dtype(dtype))
    if isinstance(value, Tensor | String | SparseTensor):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return String(value)
    if isinstance(value, str):
        return String(value.encode())
    array = np.asarray(value) if isinstance(value, np.ndarray | np.generic) else _from_python(value)
    if array.dtype.kind in "SUO":
        flat = [String(as_bytes(item)) for item in array.reshape(-1).tolist()]
        return flat[0] if array.ndim == 0 else strings(flat, array.shape)
    as_dtype(array.dtype)
    return array.view(Tensor)


def _from_python(value: Any) -> AnyArray:
    """Return an array of Python numbers, strings, or lists of them or of arrays."""
    if value is None:
        raise SchemaError("None is no value of a tensor")
    try:
        shape = np.shape(value)
        flat = _leaves(value, len(shape))
        if flat and isinstance(flat[0], bytes | str):
            return strings([as_bytes(item) for item in flat], shape).view(np.ndarray)
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise SchemaError(f"{type(value).__name__} {value!r:.80} makes no tensor: {error}") from None
    if flat and all(type(item) in (int, float, bool) for item in flat):
        if array.dtype.kind == "i" and not -(2**31) <= array.min() <= array.max() < 2**31:
            raise SchemaError(f"{value!r:.80} does not fit int32; name a dtype, such as tf.int64")
        return array.astype({"i": np.int32, "f": np.float32}.get(array.dtype.kind, array.dtype))
    # NumPy makes an empty list float64.
    return array.astype(np.float32) if not array.size and array.dtype == np.float64 else array


def _leaves(value: object, depth: int) -> list[object]:
    if depth == 0 or not isinstance(value, list | tuple):
        return [value]
    return [leaf for item in value for leaf in _leaves(item, depth - 1)]


def _with_dtype(value: Any, dtype: DType) -> Any:
    if isinstance(value, SparseTensor):
        if value.dtype != dtype:
            raise SchemaError(f"the value is of {value.dtype}, not {dtype}; use tf.cast")
        return value
    if dtype == string:
        text = tensor(value)
        if as_dtype(text.dtype) != string:
            raise SchemaError(f"{value!r:.80} is no string")
        return text
    if isinstance(value, str | bytes):
        raise SchemaError(f"the string {value!r:.80} is no {dtype.name}; use int() or float()")
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "biufc":
            raise SchemaError(f"{value!r:.80} is no {dtype.name}")
        if dtype.is_integer and array.size and array.dtype.kind in "iuf":
            low, high = np.iinfo(dtype.dtype).min, np.iinfo(dtype.dtype).max
            if array.dtype.kind == "f" or not low <= int(array.min()) <= int(array.max()) <= high:
                raise SchemaError(f"{value!r:.80} does not fit {dtype.name}; use tf.cast")
        return array.astype(dtype.dtype, copy=False).view(Tensor)
    except (ValueError, TypeError, OverflowError) as error:
        raise SchemaError(f"{value!r:.80} makes no tensor of {dtype.name}: {error}") from None


class SparseTensor:
    """Values at some indices of a larger shape: ``values`` (n) at ``indices`` (n, dimensions)."""

    def __init__(self, indices: object, values: object, dense_shape: object) -> None:
        self.indices = np.asarray(indices, dtype=np.int64).view(Tensor)
        self.values: Tensor = tensor(values)
        self.dense_shape = np.asarray(dense_shape, dtype=np.int64).view(Tensor)
        if self.indices.ndim != 2 or self.indices.shape != (len(self.values), len(self.dense_shape)):
            raise SchemaError(
                f"indices of shape {self.indices.shape} do not fit {len(self.values)} values "
                f"in {len(self.dense_shape)} dimensions"
            )

    @property
    def shape(self) -> TensorShape:
        return TensorShape(self.dense_shape.tolist())

    @property
    def dtype(self) -> DType:
        return as_dtype(self.values.dtype)

    def get_shape(self) -> TensorShape:
        return self.shape

    def __repr__(self) -> str:
        return (
            f"SparseTensor(indices={self.indices.numpy()!r}, values={self.values.numpy()!r}, "
            f"dense_shape={self.dense_shape.numpy()!r})"
        )


def to_dense(
    sp_input: SparseTensor, default_value: object = None, validate_indices: bool = True, name: object = None
) -> Tensor:
    """Return an array of the dense shape with the default where there is no value."""
    shape = [int(size) for size in sp_input.dense_shape]
    count = 1
    for size in shape:
        count *= size
    if min(shape, default=0) < 0 or count > MAX_DENSE_VALUES:
        raise SchemaError(f"{len(sp_input.values)} values do not fit an array of shape {tuple(shape)}")
    is_string = sp_input.dtype == string
    dense = np.empty(shape, dtype=sp_input.dtype.dtype)
    if default_value is None:
        default_value = b"" if is_string else 0
    dense.fill(String(tensor(default_value)) if is_string else default_value)
    indices = sp_input.indices.numpy()
    if len(indices) and ((indices < 0) | (indices >= np.array(shape))).any():
        raise SchemaError(f"an index lies outside of the shape {tuple(shape)}")
    dense[tuple(indices.T)] = sp_input.values
    return dense.view(Tensor)


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """Shape and type of a dataset's values."""

    shape: Any = None
    dtype: Any = float32
    name: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", as_dtype(self.dtype))
        if self.shape is not None:
            object.__setattr__(self, "shape", TensorShape(self.shape))
