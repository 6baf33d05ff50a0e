"""Parsing of serialized Examples: descriptions of features, and arrays of their values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from ... import _native
from ...errors import DecodeError, FieldNameError, OptionError, SchemaError
from ...schema.columns import I64, U8, AnyArray, starts_of
from .values import (
    DType,
    SparseTensor,
    String,
    Tensor,
    as_bytes,
    as_dtype,
    as_tensor,
    string,
    strings,
    tensor,
)

# The native parser's codes of value types, and TensorFlow's names for them.
_CODES = {"string": 1, "float32": 2, "int64": 3}
_TYPE_NAMES = ("nothing", "string", "float32", "int64", "several types")


@dataclasses.dataclass(frozen=True)
class FixedLenFeature:
    """A feature with the number of values that its shape has; ``default_value`` replaces a missing one."""

    shape: Any
    dtype: Any
    default_value: Any = None

    def __post_init__(self) -> None:
        _check_feature(self)


@dataclasses.dataclass(frozen=True)
class VarLenFeature:
    """A feature with any number of values; parsed as a SparseTensor."""

    dtype: Any

    def __post_init__(self) -> None:
        _check_feature(self)


@dataclasses.dataclass(frozen=True)
class FixedLenSequenceFeature:
    """A feature with any number of items of one shape."""

    shape: Any
    dtype: Any
    allow_missing: bool = False
    default_value: Any = None

    def __post_init__(self) -> None:
        _check_feature(self)


Feature: TypeAlias = FixedLenFeature | VarLenFeature | FixedLenSequenceFeature


def _check_feature(feature: Feature) -> None:
    """Check dtype and shape of a new feature, and convert them."""
    dtype = as_dtype(feature.dtype)
    object.__setattr__(feature, "dtype", dtype)
    if dtype.name not in _CODES:
        raise OptionError(f"an Example holds string, int64 and float32, not {dtype.name}")
    if isinstance(feature, VarLenFeature):
        return
    shape = feature.shape
    sizes = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    if any(size is None or size < 0 for size in sizes):
        raise OptionError(f"every size of the shape {sizes} must be known; see FixedLenSequenceFeature")
    object.__setattr__(feature, "shape", tuple(int(size) for size in sizes))


@dataclasses.dataclass
class _Column:
    """Values of one feature in some records: ``count`` per record (-1: missing), all values in one array."""

    name: str
    dtype: DType
    count: I64
    values: AnyArray
    steps: I64


class _Records:
    """Serialized messages in one array."""

    def __init__(self, serialized: list[bytes]) -> None:
        joined = serialized[0] if len(serialized) == 1 else b"".join(serialized)
        self.bytes = memoryview(joined)
        self.data: U8 = np.frombuffer(joined, dtype=np.uint8)
        self.sizes: I64 = np.fromiter(map(len, serialized), dtype=np.int64, count=len(serialized))
        self.starts = starts_of(self.sizes)[:-1]
        # Errors about a single message name no sample.
        self.is_single = len(serialized) == 1

    def columns(self, features: Mapping[str, Feature], *, lists: bool = False) -> dict[str, _Column]:
        """Return the columns of these features under the same keys."""
        requests = [(key.encode(), lists, _CODES[feature.dtype.name]) for key, feature in features.items()]
        columns, bad_row, offset = _native.example_read(self.data, self.starts, self.sizes, requests)
        if bad_row >= 0:
            raise DecodeError(
                "these bytes are not an Example",
                sample=self._sample(bad_row),
                offset=int(offset - self.starts[bad_row]),
            )
        return {
            key: self._column(key, feature, column)
            for (key, feature), column in zip(features.items(), columns, strict=True)
        }

    def _column(self, name: str, feature: Feature, column: Any) -> _Column:
        types, count, steps, spans, floats, ints = column
        code = _CODES[feature.dtype.name]
        mismatch = types != code
        # Usually all match and none is missing: one comparison is enough then.
        if mismatch.any() and (mismatch := mismatch & (types != 0)).any():
            row = int(np.argmax(mismatch))
            raise SchemaError(
                f"the feature is {_TYPE_NAMES[types[row]]}, not {feature.dtype.name}",
                field=name,
                sample=self._sample(row),
            )
        if code == 1:
            view = self.bytes
            flat = [String(view[start : start + size]) for start, size in spans.reshape(-1, 2).tolist()]
            values: AnyArray = strings(flat)
        else:
            values = floats if code == 2 else ints
        return _Column(name, feature.dtype, count, values, steps)

    def _sample(self, row: int) -> int | None:
        return None if self.is_single else int(row)

    def fixed(self, column: _Column, feature: FixedLenFeature) -> Tensor:
        """Return (records, *shape)."""
        size, count = math.prod(feature.shape), column.count
        shape = (len(count), *feature.shape)
        if (count == size).all():
            return as_tensor(column.values.reshape(shape))
        missing = count < 0
        if feature.default_value is None and missing.any():
            row = int(np.argmax(missing))
            raise FieldNameError("the feature is missing", field=column.name, sample=self._sample(row))
        mismatch = ~missing & (count != size)
        if mismatch.any():
            row = int(np.argmax(mismatch))
            raise SchemaError(
                f"the feature has {int(count[row])} values, its shape {feature.shape} needs {size}",
                field=column.name,
                sample=self._sample(row),
            )
        filled = np.empty(shape, dtype=column.dtype.dtype)
        filled[...] = _default(feature, feature.shape, column.name)
        filled[~missing] = column.values.reshape((-1, *feature.shape))
        return filled.view(Tensor)

    def sequence(self, column: _Column, feature: FixedLenSequenceFeature) -> Tensor:
        """Return (records, longest, *shape), shorter sequences padded."""
        size = math.prod(feature.shape)
        missing = column.count < 0
        if not feature.allow_missing and missing.any():
            raise FieldNameError(
                "the feature is missing", field=column.name, sample=self._sample(int(np.argmax(missing)))
            )
        count = np.maximum(column.count, 0)
        mismatch = count % size != 0 if size else count != 0
        if mismatch.any():
            row = int(np.argmax(mismatch))
            raise SchemaError(
                f"{int(count[row])} values are no multiple of the {size} of the shape {feature.shape}",
                field=column.name,
                sample=self._sample(row),
            )
        items = count // max(size, 1)
        return _pad_rows(items, column.values.reshape((-1, *feature.shape)), _padding(feature, column.name))

    def sparse(self, column: _Column) -> SparseTensor:
        return _sparse_rows(np.maximum(column.count, 0), column.values)


def _sparse_rows(count: I64, values: AnyArray) -> SparseTensor:
    """Return values as rows of a sparse matrix, ``count`` in each."""
    rows = np.repeat(np.arange(len(count)), count)
    columns = np.arange(len(rows)) - np.repeat(starts_of(count)[:-1], count)
    return SparseTensor(np.column_stack([rows, columns]), values, [len(count), int(count.max(initial=0))])


def _default(
    feature: FixedLenFeature | FixedLenSequenceFeature, shape: tuple[int, ...], name: str
) -> AnyArray:
    """Return the default value in this shape."""
    value = tensor(feature.default_value)
    if feature.dtype == string:
        if as_dtype(value.dtype) != string:
            raise SchemaError("the default value is no string", field=name)
        value = np.array(value, dtype=object) if isinstance(value, String) else value
    try:
        array = np.asarray(value).astype(feature.dtype.dtype)
    except (ValueError, TypeError):
        raise SchemaError(f"the default value is no {feature.dtype.name}", field=name) from None
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        # The right number of values in another shape.
        if array.size == math.prod(shape):
            return array.reshape(shape)
        raise SchemaError(f"the default value does not fit the shape {shape}", field=name) from None


def _padding(feature: FixedLenSequenceFeature, name: str) -> Any:
    """Return the value that pads shorter rows."""
    if feature.default_value is None:
        return String() if feature.dtype == string else 0
    value = _default(feature, (), name)
    return String(value.item()) if feature.dtype == string else value


def _pad_rows(count: I64, flat: AnyArray, padding: Any) -> Tensor:
    """Return rows of ``count`` items each as one array, padded to the longest."""
    longest = int(count.max(initial=0))
    padded = np.empty((len(count), longest, *flat.shape[1:]), dtype=flat.dtype)
    if flat.dtype == object:
        padded.fill(padding)
    else:
        padded[...] = padding
    padded[np.arange(longest) < count[:, None]] = flat
    return padded.view(Tensor)


def _check_features(features: object, allowed: tuple[type[Feature], ...]) -> Mapping[str, Feature]:
    if not isinstance(features, Mapping) or not features:
        raise OptionError("features must be a dict from names to FixedLenFeature, VarLenFeature …")
    for name, feature in features.items():
        if not isinstance(feature, allowed):
            raise OptionError(f"feature {name!r} cannot be described by {type(feature).__name__} here")
    return features


def _parse(serialized: list[bytes], features: object) -> dict[str, Any]:
    described = _check_features(features, (FixedLenFeature, VarLenFeature, FixedLenSequenceFeature))
    records = _Records(serialized)
    parsed: dict[str, Any] = {}
    columns = records.columns(described)
    for name, feature in described.items():
        if isinstance(feature, FixedLenFeature):
            parsed[name] = records.fixed(columns[name], feature)
        elif isinstance(feature, FixedLenSequenceFeature):
            parsed[name] = records.sequence(columns[name], feature)
        else:
            parsed[name] = records.sparse(columns[name])
    return parsed


def parse_example(
    serialized: Any, features: object, example_names: object = None, name: object = None
) -> dict[str, Any]:
    """Return the features of many Examples, each as one array with a row for every Example."""
    if getattr(serialized, "ndim", None) == 0 or isinstance(serialized, bytes):
        return parse_single_example(serialized, features)
    messages = serialized.reshape(-1).tolist() if isinstance(serialized, np.ndarray) else list(serialized)
    return _parse([as_bytes(message) for message in messages], features)


def parse_single_example(
    serialized: object, features: object, example_names: object = None, name: object = None
) -> dict[str, Any]:
    """Return the features of one Example."""
    return {key: _first(value) for key, value in _parse([as_bytes(serialized)], features).items()}


def _first(value: Any) -> Any:
    if isinstance(value, SparseTensor):
        return SparseTensor(value.indices[:, 1:], value.values, value.dense_shape[1:])
    return value[0]


def parse_single_sequence_example(
    serialized: object,
    context_features: object = None,
    sequence_features: object = None,
    example_name: object = None,
    name: object = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the context and the sequences of one SequenceExample."""
    if not context_features and not sequence_features:
        raise OptionError("name context_features or sequence_features")
    data = as_bytes(serialized)
    context = parse_single_example(data, context_features) if context_features else {}
    if not sequence_features:
        return context, {}
    described = _check_features(sequence_features, (VarLenFeature, FixedLenSequenceFeature))
    columns = _Records([data]).columns(described, lists=True)
    return context, {key: _sequence(columns[key], feature) for key, feature in described.items()}


def _sequence(column: _Column, feature: Feature) -> Any:
    if not isinstance(feature, FixedLenSequenceFeature):
        return _sparse_rows(column.steps, column.values)
    if int(column.count[0]) < 0 and not feature.allow_missing:
        raise FieldNameError("the sequence is missing", field=column.name)
    size = math.prod(feature.shape)
    mismatch = column.steps != size
    if mismatch.any():
        step = int(np.argmax(mismatch))
        raise SchemaError(
            f"step {step} has {int(column.steps[step])} values, its shape {feature.shape} needs {size}",
            field=column.name,
        )
    return as_tensor(column.values.reshape((len(column.steps), *feature.shape)))
