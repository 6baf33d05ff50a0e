"""Features of serialized Examples: the arrays that the native parser makes, as a user wants them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ... import _native
from ...errors import DecodeError, FieldNameError, OptionError, SchemaError
from ...schema.columns import I64, U8, starts_of
from .features import (
    KINDS,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
)
from .values import (
    DType,
    RaggedTensor,
    SparseTensor,
    String,
    Tensor,
    as_bytes,
    as_dtype,
    int64,
    string,
    strings,
    tensor,
)

# What TensorFlow calls the kinds of values that the native parser tells.
_NAMES = ("nothing", "string", "float32", "int64", "several types")


@dataclasses.dataclass
class _Column:
    """The values of one feature in some records: ``count`` of each (-1: it is missing), all in a row."""

    name: str
    dtype: DType
    count: I64
    values: Any
    steps: I64


class Records:
    """Serialized messages in one array."""

    def __init__(self, serialized: list[bytes]) -> None:
        joined = serialized[0] if len(serialized) == 1 else b"".join(serialized)
        self.bytes = memoryview(joined)
        self.data: U8 = np.frombuffer(joined, dtype=np.uint8)
        self.sizes: I64 = np.fromiter(map(len, serialized), dtype=np.int64, count=len(serialized))
        self.starts = starts_of(self.sizes)[:-1]
        # Sample numbers mean nothing to someone who parses one message.
        self.single = len(serialized) == 1

    def columns(self, wanted: Mapping[Any, Any], *, lists: bool = False) -> dict[Any, _Column]:
        """The columns of these features, by the name that the user gave them."""
        keys = {name: getattr(feature, "value_key", None) or name for name, feature in wanted.items()}
        requests = [
            (keys[name].encode(), lists, KINDS[feature.dtype.name]) for name, feature in wanted.items()
        ]
        unique = list(dict.fromkeys(requests))
        found, bad, at = _native.example_read(self.data, self.starts, self.sizes, unique)
        if bad >= 0:
            raise DecodeError(
                "these bytes are not an Example", sample=self._sample(bad), offset=int(at - self.starts[bad])
            )
        columns = dict(zip(unique, found, strict=True))
        return {
            name: self._column(keys[name], wanted[name], columns[request])
            for name, request in zip(wanted, requests, strict=True)
        }

    def _column(self, name: str, feature: Any, column: Any) -> _Column:
        kind, count, steps, runs, floats, ints = column
        wanted = KINDS[feature.dtype.name]
        wrong = kind != wanted
        # Most often none is wrong, nor missing.
        if wrong.any() and (wrong := wrong & (kind != 0)).any():
            row = int(np.argmax(wrong))
            raise SchemaError(
                f"the feature is {_NAMES[kind[row]]}, not {feature.dtype.name}",
                field=name,
                sample=self._sample(row),
            )
        if wanted == 1:
            view = self.bytes
            flat = [String(view[start : start + size]) for start, size in runs.reshape(-1, 2).tolist()]
            values: Any = strings(flat)
        else:
            values = floats if wanted == 2 else ints
        return _Column(name, feature.dtype, count, values, steps)

    def _sample(self, row: int) -> int | None:
        return None if self.single else int(row)

    def fixed(self, column: _Column, feature: FixedLenFeature) -> Any:
        """(records, *shape)."""
        size, count = math.prod(feature.shape), column.count
        shape = (len(count), *feature.shape)
        if (count == size).all():
            return column.values.reshape(shape).view(Tensor)
        missing = count < 0
        if feature.default_value is None and missing.any():
            row = int(np.argmax(missing))
            raise FieldNameError("the feature is missing", field=column.name, sample=self._sample(row))
        wrong = ~missing & (count != size)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise SchemaError(
                f"the feature has {int(count[row])} values, its shape {feature.shape} needs {size}",
                field=column.name,
                sample=self._sample(row),
            )
        out = np.empty(shape, dtype=column.dtype.dtype)
        out[...] = default(feature, feature.shape, column.name)
        out[~missing] = column.values.reshape((-1, *feature.shape))
        return out.view(Tensor)

    def sequence(self, column: _Column, feature: FixedLenSequenceFeature) -> Any:
        """(records, longest, *shape), shorter ones filled up."""
        size = math.prod(feature.shape)
        missing = column.count < 0
        if not feature.allow_missing and missing.any():
            raise FieldNameError(
                "the feature is missing", field=column.name, sample=self._sample(int(np.argmax(missing)))
            )
        count = np.maximum(column.count, 0)
        wrong = count % size != 0 if size else count != 0
        if wrong.any():
            row = int(np.argmax(wrong))
            raise SchemaError(
                f"{int(count[row])} values are no multiple of the {size} of the shape {feature.shape}",
                field=column.name,
                sample=self._sample(row),
            )
        items = count // max(size, 1)
        return fill_up(items, column.values.reshape((-1, *feature.shape)), filler_of(feature, column.name))

    def sparse(self, column: _Column) -> SparseTensor:
        count = np.maximum(column.count, 0)
        rows = np.repeat(np.arange(len(count)), count)
        places = np.arange(len(rows)) - np.repeat(starts_of(count)[:-1], count)
        longest = int(count.max(initial=0))
        return SparseTensor(np.column_stack([rows, places]), column.values, [len(count), longest])

    def merged(self, columns: Mapping[Any, _Column], name: str, feature: SparseFeature) -> SparseTensor:
        """(records, *sizes), values where the features of the indices say."""
        values, axes = columns[name, -1], [columns[name, axis] for axis in range(len(feature.keys))]
        count = np.maximum(values.count, 0)
        for axis in axes:
            wrong = np.maximum(axis.count, 0) != count
            if wrong.any():
                row = int(np.argmax(wrong))
                raise SchemaError(
                    f"{max(int(axis.count[row]), 0)} indices in {axis.name!r} for {int(count[row])} values",
                    field=name,
                    sample=self._sample(row),
                )
        places = np.column_stack([np.repeat(np.arange(len(count)), count), *(axis.values for axis in axes)])
        found = values.values
        if not feature.already_sorted:
            order = np.lexsort(places.T[::-1])
            places, found = places[order], found[order]
        return SparseTensor(places, found, [len(count), *feature.sizes])

    def ragged(self, column: _Column, feature: RaggedFeature) -> RaggedTensor:
        splits = starts_of(np.maximum(column.count, 0)).astype(as_dtype(feature.row_splits_dtype).dtype)
        return RaggedTensor(column.values, splits)


def default(feature: Any, shape: tuple[int, ...], name: str) -> Any:
    """The default value in this shape."""
    value = tensor(feature.default_value)
    if feature.dtype == string:
        if as_dtype(value.dtype) != string:
            raise SchemaError("the default value is no string", field=name)
        value = np.array(String(value), dtype=object) if isinstance(value, String) else value
    try:
        return np.broadcast_to(np.asarray(value).astype(feature.dtype.dtype), shape)
    except (ValueError, TypeError):
        # One value for all, or the right number of them in another shape.
        if value.size == math.prod(shape):
            return np.asarray(value).reshape(shape).astype(feature.dtype.dtype)
        raise SchemaError(f"the default value does not fit the shape {shape}", field=name) from None


def filler_of(feature: Any, name: str) -> Any:
    """What shorter rows are filled up with."""
    if feature.default_value is None:
        return String() if feature.dtype == string else 0
    value = default(feature, (), name)
    return String(value.item()) if feature.dtype == string else value


def fill_up(count: I64, flat: Any, filler: Any) -> Any:
    """Rows of so many items each, one below the other, filled up to the longest."""
    longest = int(count.max(initial=0))
    out = np.empty((len(count), longest, *flat.shape[1:]), dtype=flat.dtype)
    if flat.dtype == object:
        out.fill(filler)
    else:
        out[...] = filler
    out[np.arange(longest) < count[:, None]] = flat
    return out.view(Tensor)


def check_features(features: Any, known: tuple[type[Any], ...]) -> Mapping[str, Any]:
    if not isinstance(features, Mapping) or not features:
        raise OptionError("features must be a dict from names to FixedLenFeature, VarLenFeature …")
    for name, feature in features.items():
        if not isinstance(feature, known):
            raise OptionError(f"feature {name!r} cannot be described by {type(feature).__name__} here")
    return features


_ALL = (FixedLenFeature, VarLenFeature, FixedLenSequenceFeature, RaggedFeature, SparseFeature)


def _apart(wanted: Mapping[str, Any]) -> dict[Any, Any]:
    """The same with sparse features taken apart: their values (-1), and the indices of each axis."""
    parts: dict[Any, Any] = {}
    for name, feature in wanted.items():
        if isinstance(feature, SparseFeature):
            parts[name, -1] = RaggedFeature(feature.dtype, feature.value_key)
            for axis, key in enumerate(feature.keys):
                parts[name, axis] = RaggedFeature(int64, key)
        else:
            parts[name] = feature
    return parts


def _parse(serialized: list[bytes], features: Any) -> dict[str, Any]:
    wanted = check_features(features, _ALL)
    records = Records(serialized)
    parsed: dict[str, Any] = {}
    columns = records.columns(_apart(wanted))
    for name, feature in wanted.items():
        if isinstance(feature, SparseFeature):
            parsed[name] = records.merged(columns, name, feature)
            continue
        column = columns[name]
        if isinstance(feature, FixedLenFeature):
            parsed[name] = records.fixed(column, feature)
        elif isinstance(feature, FixedLenSequenceFeature):
            parsed[name] = records.sequence(column, feature)
        elif isinstance(feature, RaggedFeature):
            parsed[name] = records.ragged(column, feature)
        else:
            parsed[name] = records.sparse(column)
    return parsed


def parse_example(
    serialized: Any, features: Any, example_names: Any = None, name: Any = None
) -> dict[str, Any]:
    """The features of many Examples, each as one array with a row for every Example."""
    if getattr(serialized, "ndim", None) == 0 or isinstance(serialized, bytes):
        return parse_single_example(serialized, features)
    many = serialized.reshape(-1).tolist() if isinstance(serialized, np.ndarray) else list(serialized)
    return _parse([as_bytes(one) for one in many], features)


def parse_single_example(
    serialized: Any, features: Any, example_names: Any = None, name: Any = None
) -> dict[str, Any]:
    """The features of one Example."""
    return {key: _first(value) for key, value in _parse([as_bytes(serialized)], features).items()}


def _first(value: Any) -> Any:
    if isinstance(value, SparseTensor):
        return SparseTensor(value.indices[:, 1:], value.values, value.dense_shape[1:])
    return value.values if isinstance(value, RaggedTensor) else value[0]


def parse_single_sequence_example(
    serialized: Any,
    context_features: Any = None,
    sequence_features: Any = None,
    example_name: Any = None,
    name: Any = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The context and the sequences of one SequenceExample."""
    if not context_features and not sequence_features:
        raise OptionError("name context_features or sequence_features")
    data = as_bytes(serialized)
    context = parse_single_example(data, context_features) if context_features else {}
    if not sequence_features:
        return context, {}
    wanted = check_features(sequence_features, (VarLenFeature, FixedLenSequenceFeature, RaggedFeature))
    columns = Records([data]).columns(wanted, lists=True)
    return context, {key: _sequence(columns[key], feature) for key, feature in wanted.items()}


def _sequence(column: _Column, feature: Any) -> Any:
    missing = int(column.count[0]) < 0
    if isinstance(feature, RaggedFeature):
        return RaggedTensor(
            column.values, starts_of(column.steps).astype(as_dtype(feature.row_splits_dtype).dtype)
        )
    if isinstance(feature, VarLenFeature):
        steps = column.steps
        rows = np.repeat(np.arange(len(steps)), steps)
        places = np.arange(len(rows)) - np.repeat(starts_of(steps)[:-1], steps)
        shape = [len(steps), int(steps.max(initial=0))]
        return SparseTensor(np.column_stack([rows, places]), column.values, shape)
    if missing and not feature.allow_missing:
        raise FieldNameError("the sequence is missing", field=column.name)
    size = math.prod(feature.shape)
    wrong = column.steps != size
    if wrong.any():
        step = int(np.argmax(wrong))
        raise SchemaError(
            f"step {step} has {int(column.steps[step])} values, its shape {feature.shape} needs {size}",
            field=column.name,
        )
    return column.values.reshape((len(column.steps), *feature.shape)).view(Tensor)
