"""tf.train.Example and SequenceExample: features to cells and back, many records at a time.

A :class:`Feature` says how a field is stored in Examples: name and kind of the feature, and what becomes of
its values. :func:`features_of` plans how a schema is written. :func:`infer` finds the fields of a file:

===================================== ======================================================================
feature                               field
===================================== ======================================================================
one bytes value                       Bytes; Image where the first of them are images
one int64, one float                  Int("int64"), Float("float32")
k int64s or floats                    Tensor(dtype, (k,)); (None,) where their number varies
several bytes values                  Json, a list: text, or {"base64": …} for what is not UTF-8
feature list, k numbers in each step  Tensor(dtype, (None, k)); (None,) where k is 1
any other feature list                Json, a list of the steps
missing in some records               the same, optional
===================================== ======================================================================
"""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from ..errors import DecodeError, OptionError, SchemaError, located
from ..schema import Bool, Bytes, Field, Float, Image, Int, Json, Schema, Sparse, Tensor
from ..schema.columns import (
    I64,
    U8,
    AnyArray,
    AnyDType,
    Column,
    Columns,
    Ragged,
    as_bytes,
    column_runs,
    starts_of,
)
from .infer import infer_image
from .npy import check_bytes

BYTES, FLOAT, INT64 = 1, 2, 3
KIND_NAMES = ("nothing", "bytes", "float", "int64", "mixed")
WIRE_DTYPES: dict[int, AnyDType] = {FLOAT: np.dtype(np.float32), INT64: np.dtype(np.int64)}


@dataclasses.dataclass(frozen=True)
class Feature:
    """Storage of a field in an Example.

    key: the feature's name. kind: BYTES, FLOAT or INT64. sequence: it is one of the feature lists.
    listed: the cell is JSON of a list. default: the value of a record that lacks the feature.
    """

    field: Field
    key: str
    kind: int
    sequence: bool = False
    listed: bool = False
    default: Any = None

    @property
    def request(self) -> tuple[bytes, bool, int]:
        return self.key.encode(), self.sequence, self.kind


@dataclasses.dataclass(frozen=True)
class Values:
    """The values of one feature in n records, one after another.

    kinds: i8[n], what is there. counts: values of each record, or its steps; -1: missing. steps: of a feature
    list, the values of each step. values: i64[m, 2] (start and size of each bytes value in the data),
    f32[m] or i64[m].
    """

    kinds: npt.NDArray[np.int8]
    counts: I64
    steps: I64
    values: AnyArray


class RecordError(Exception):
    """A record that is no Example: its row, and the offset in the data where it is wrong."""

    def __init__(self, row: int, offset: int) -> None:
        super().__init__("the record is no tf.train.Example")
        self.row, self.offset = row, offset


def values_of(data: U8, starts: I64, sizes: I64, requests: Sequence[tuple[bytes, bool, int]]) -> list[Values]:
    """Return the values of features, each (name, whether it is a feature list, kind)."""
    columns, row, offset = _native.example_read(data, starts, sizes, list(requests))
    if row >= 0:
        raise RecordError(row, offset)
    return [
        Values(kinds, counts, steps, (runs.reshape(-1, 2), floats, ints)[kind - 1])
        for (_, _, kind), (kinds, counts, steps, runs, floats, ints) in zip(requests, columns, strict=True)
    ]


# -- reading -------------------------------------------------------------------------------------------


def read(features: Mapping[str, Feature], data: U8, starts: I64, sizes: I64) -> Columns:
    """Return the cells of these fields in the records ``data[start : start + size]``.

    A record that does not fit raises DecodeError with its row as ``sample``; RecordError if it is no Example.
    """
    values_by_feature = values_of(data, starts, sizes, [feature.request for feature in features.values()])
    columns = Columns()
    for (name, feature), values in zip(features.items(), values_by_feature, strict=True):
        with located(field=name):
            columns[name] = _column(feature, values, data)
    return columns


def runs(feature: Feature, data: U8, starts: I64, sizes: I64) -> tuple[I64, I64]:
    """Return starts and sizes of the cells of a field of one bytes value; size -1 for a missing one."""
    [values] = values_of(data, starts, sizes, [feature.request])
    with located(field=feature.key):
        present = _counted(feature, values, 1)
    starts_found, length = np.zeros(len(starts), np.int64), np.full(len(starts), -1, np.int64)
    starts_found[present], length[present] = values.values[:, 0], values.values[:, 1]
    with located(field=feature.key):
        check_bytes(feature.field, starts_found, length)
    return starts_found, length


def in_place(feature: Feature) -> bool:
    """Return whether the cells of a field are runs of bytes inside of the records."""
    return feature.kind == BYTES and not feature.listed and not feature.sequence and feature.default is None


def _wrong(row: Any, message: str) -> DecodeError:
    return DecodeError(message, sample=int(row))


def _present(feature: Feature, values: Values) -> npt.NDArray[np.bool_]:
    """Return which records have the feature; raise if one has another kind."""
    if (values.kinds == feature.kind).all():
        return np.ones(len(values.kinds), dtype=np.bool_)
    present = values.counts >= 0
    # An empty list has no kind.
    other_kind = present & (values.kinds != feature.kind) & (values.kinds != 0)
    if other_kind.any():
        row = np.argmax(other_kind)
        kind_name = KIND_NAMES[values.kinds[row]]
        raise _wrong(row, f"the feature is {kind_name}, and {KIND_NAMES[feature.kind]} is asked for")
    if not present.all() and not feature.field.optional and feature.default is None:
        raise _wrong(np.argmin(present), f"there is no feature {feature.key!r}")
    return present


def _counted(feature: Feature, values: Values, count: int) -> npt.NDArray[np.bool_]:
    """Return which records have the feature; each of those has to have ``count`` values."""
    present = _present(feature, values)
    wrong = present & (values.counts != count)
    if wrong.any():
        row = np.argmax(wrong)
        raise _wrong(row, f"the feature has {values.counts[row]} values, and {count} is asked for")
    return present


def _column(feature: Feature, values: Values, data: U8) -> Column:
    if feature.listed:
        return _listed(feature, values, data)
    if feature.kind == BYTES:
        return bytes_column(feature, values, data)
    return number_column(feature, values)


def bytes_column(feature: Feature, values: Values, data: U8) -> Column:
    present = _counted(feature, values, 1)
    starts, sizes = np.zeros(len(present), dtype=np.int64), np.zeros(len(present), dtype=np.int64)
    starts[present], sizes[present] = values.values[:, 0], values.values[:, 1]
    check_bytes(feature.field, starts, np.where(present, sizes, -1))
    offsets = starts_of(sizes)
    out = np.empty(offsets[-1], dtype=np.uint8)
    _native.copy_runs(
        data,
        np.ascontiguousarray(values.values[:, 0]),
        np.ascontiguousarray(values.values[:, 1]),
        out,
        np.ascontiguousarray(offsets[:-1][present]),
    )
    cells = Ragged(out, offsets, valid=None if present.all() else present)
    if feature.default is not None and cells.valid is not None:
        default = bytes(feature.default)
        cells = Ragged.from_cells([default if data is None else data for data in cells])
        check_bytes(feature.field, cells.starts, cells.sizes)
    cell = feature.field.cell
    return cells if cell is None else cells.data.view(cell[0]).reshape(len(cells), *cell[1])


def number_column(feature: Feature, values: Values) -> Column:
    field = feature.field
    shape = field.shape if isinstance(field, Tensor) else ()
    varies = None in shape
    values_per_record = math.prod(size for size in shape if size is not None)
    present = _present(feature, values)
    counts = np.where(present, values.counts, 0)
    if feature.sequence:
        inner = math.prod(size for size in shape[1:] if size is not None)
        wrong = values.steps != inner
        if wrong.any():
            row = np.searchsorted(np.cumsum(counts), np.argmax(wrong), side="right")
            raise _wrong(row, f"a step has {values.steps[np.argmax(wrong)]} values, and {inner} is asked for")
        counts = counts * inner
    wrong = present & (
        counts % values_per_record != 0 if varies and values_per_record else counts != values_per_record
    )
    if wrong.any():
        row = np.argmax(wrong)
        raise _wrong(row, f"the feature has {counts[row]} values, which do not fit {field}")
    numbers = _cast(field, values.values, counts)
    if varies and feature.default is not None:
        # A record without the feature has no values.
        present = np.ones_like(present)
    elif not present.all() and feature.default is not None:
        default = np.broadcast_to(np.asarray(feature.default, dtype=numbers.dtype), (values_per_record,))
        full = np.empty((len(present), values_per_record), dtype=numbers.dtype)
        full[present], full[~present] = numbers.reshape(-1, values_per_record), default
        numbers, present = full.reshape(-1), np.ones_like(present)
        counts = np.full(len(present), values_per_record, dtype=np.int64)
    if field.cell is not None:
        return numbers.reshape(len(present), *field.cell[1])
    valid = None if present.all() else present
    return Ragged(as_bytes(numbers), starts_of(counts * numbers.dtype.itemsize), valid=valid)


def _cast(field: Field, values: AnyArray, counts: I64) -> AnyArray:
    """Return the values in the field's own dtype, which has to hold each of them exactly."""
    dtype = np.dtype(getattr(field, "dtype", "bool"))
    if dtype == np.uint64:
        # Stored as the int64 of the same bits.
        return values.view(np.uint64)
    if dtype == values.dtype:
        return values
    with np.errstate(all="ignore"):
        cast = values.astype(dtype, copy=False)
        same = cast == values
    if values.dtype.kind == "f":
        same |= np.isnan(values)
    if not same.all():
        first = int(np.argmin(same))
        row = np.searchsorted(np.cumsum(counts), first, side="right")
        raise _wrong(row, f"{values[first]} does not fit {dtype}")
    return cast


def _listed(feature: Feature, values: Values, data: U8) -> Ragged:
    """Return cells of JSON, value by value."""
    present = _present(feature, values)
    if feature.kind == BYTES:
        flat = [_text(data[start : start + size].tobytes()) for start, size in values.values.tolist()]
    else:
        flat = values.values.tolist()
    counts, steps = values.counts.tolist(), values.steps.tolist()
    cells: list[bytes | None] = []
    position = step = 0
    for row, is_present in enumerate(present.tolist()):
        if not is_present:
            cells.append(None if feature.default is None else b"[]")
            continue
        if feature.sequence:
            ends = np.cumsum([position, *steps[step : step + counts[row]]]).tolist()
            cell: list[Any] = [flat[first:end] for first, end in itertools.pairwise(ends)]
            step, position = step + counts[row], ends[-1]
        else:
            cell, position = flat[position : position + counts[row]], position + counts[row]
        cells.append(json.dumps(cell, ensure_ascii=False).encode())
    return Ragged.from_cells(cells)


def _text(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


# -- writing -------------------------------------------------------------------------------------------


def feature_of(name: str, field: Field) -> Feature:
    """Plan how a field is stored: whole numbers as int64, float16 and float32 as float, others as bytes."""
    dtype = np.dtype(getattr(field, "dtype", "bool" if isinstance(field, Bool) else "V"))
    kind = BYTES
    if dtype.kind in "biu":
        kind = INT64
    elif dtype in (np.float16, np.float32):
        kind = FLOAT
    npy_file = isinstance(field, Tensor) and not field.flat and field.cell is None
    if npy_file or isinstance(field, Sparse):
        kind = BYTES
    return Feature(field, name, kind)


def features_of(schema: Schema) -> dict[str, Feature]:
    return {name: feature_of(name, field) for name, field in schema.items()}


def write(features: Mapping[str, Feature], columns: Columns) -> Ragged:
    """Serialize one Example per sample, features sorted by name."""
    sources: list[tuple[bytes, int, U8, I64, I64, I64 | None]] = []
    for name, feature in features.items():
        data, starts, sizes = column_runs(columns[name])
        if feature.kind != BYTES:
            dtype = np.dtype(getattr(feature.field, "dtype", "bool"))
            wire = WIRE_DTYPES[feature.kind]
            if data.size % dtype.itemsize:
                raise SchemaError("the cells are not whole values", field=name)
            values = data.view(dtype)
            if dtype != wire:
                if (starts % dtype.itemsize).any():
                    raise SchemaError("the cells are not whole values", field=name)
                values = values.view(np.int64) if dtype == np.uint64 else values.astype(wire)
                wider = wire.itemsize // dtype.itemsize
                starts, sizes = starts * wider, np.where(sizes < 0, -1, sizes * wider)
            data = as_bytes(values)
        sources.append((feature.key.encode(), feature.kind, data, starts, sizes, None))
    try:
        return Ragged(*_native.example_write(columns.rows, sources))
    except IndexError:
        raise SchemaError("the cells of a field are not whole values") from None


# -- which fields a file has
# -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class FeatureStatistics:
    """Statistics of one feature, from :class:`batchplant._native.ExampleSurvey`; kinds: a bit for each."""

    key: str
    sequence: bool
    kinds: int
    present: int
    fewest: int
    most: int
    step_fewest: int
    step_most: int
    other: int

    @property
    def kind(self) -> int:
        return next((kind for kind in (BYTES, FLOAT, INT64) if self.kinds >> kind & 1), BYTES)


def statistics_of(survey: _native.ExampleSurvey) -> list[FeatureStatistics] | None:
    """Return the features; None if the records are hardly Examples: only unknown parts, or odd names."""
    try:
        statistics = [FeatureStatistics(row[0].decode(), *row[1:]) for row in survey.features()]
    except UnicodeDecodeError:
        return None
    good = all(feature.key and "\0" not in feature.key for feature in statistics) and not survey.foreign
    return statistics if good else None


def images(statistics: Iterable[FeatureStatistics], data: U8, starts: I64, sizes: I64) -> dict[str, Image]:
    """Return the features that hold an image in each of these records, by name."""
    images_by_name = {}
    for entry in statistics:
        if entry.kinds == 1 << BYTES and not entry.sequence and entry.fewest == entry.most == 1:
            feature = Feature(Bytes(optional=True), entry.key, BYTES)
            cells = bytes_column(feature, values_of(data, starts, sizes, [feature.request])[0], data)
            assert isinstance(cells, Ragged)
            image = infer_image(cells if cells.valid is None else cells.take(cells.valid))
            if image is not None:
                images_by_name[entry.key] = image
    return images_by_name


def infer(
    statistics: Sequence[FeatureStatistics], records: int, images: Mapping[str, Image]
) -> dict[str, Feature]:
    """Return the fields of a file with these features in ``records`` records; ``images``: known images."""
    keys = {entry.key for entry in statistics if not entry.sequence}
    features = {}
    for entry in statistics:
        name = f"{entry.key}[]" if entry.sequence and entry.key in keys else entry.key
        if entry.other >= 0:
            raise SchemaError(
                f"the feature is {KIND_NAMES[entry.kind]} in some records and not in others; "
                "name the features to read with features={…}",
                sample=entry.other,
                field=name,
            )
        field, listed = _field_of(entry)
        if isinstance(field, Bytes):
            field = images.get(entry.key, field)
        field = dataclasses.replace(field, optional=entry.present < records)
        features[name] = Feature(field, entry.key, entry.kind, entry.sequence, listed)
    return features


def _field_of(entry: FeatureStatistics) -> tuple[Field, bool]:
    varies = entry.fewest != entry.most
    if entry.kind == BYTES or (entry.sequence and entry.step_fewest != entry.step_most):
        if entry.sequence or varies or entry.most != 1:
            return Json(), True
        return Bytes(), False
    dtype = str(WIRE_DTYPES[entry.kind])
    first = None if varies else entry.most
    if entry.sequence:
        # The number of steps belongs to the record, even if all records have the same.
        return Tensor(dtype, (None,) if entry.step_most == 1 else (None, max(entry.step_most, 0))), False
    if varies or entry.most != 1:
        return Tensor(dtype, (first,)), False
    return (Int() if entry.kind == INT64 else Float("float32")), False


@dataclasses.dataclass(frozen=True)
class FixedLen:
    """A feature of a fixed shape: ``FixedLen(bytes)``, ``FixedLen("int64", (2, 3))``.

    dtype: bytes, int64, float32, or a name of theirs. A record that lacks it is an error, unless there is a
    ``default``, or ``optional``: then the value is None.
    """

    dtype: Any
    shape: tuple[int, ...] = ()
    default: Any = None
    optional: bool = False


@dataclasses.dataclass(frozen=True)
class VarLen:
    """A feature of any number of values; a record that lacks it has none of them."""

    dtype: Any


@dataclasses.dataclass(frozen=True)
class FixedLenSequence:
    """A feature list of a SequenceExample, each step of a fixed shape."""

    dtype: Any
    shape: tuple[int, ...] = ()


def parse_features(features: Mapping[str, Any]) -> dict[str, Feature]:
    """Return the fields that a user named: FixedLen, VarLen, FixedLenSequence, or a field kind."""
    parsed = {}
    for name, spec in features.items():
        if isinstance(spec, Field):
            parsed[name] = feature_of(name, spec)
            continue
        if not isinstance(spec, FixedLen | VarLen | FixedLenSequence):
            raise OptionError(f"a feature is FixedLen, VarLen or a field kind, not {spec!r}", field=name)
        kind, field = _kind_of(spec.dtype, name)
        sequence, fixed = isinstance(spec, FixedLenSequence), isinstance(spec, FixedLen)
        default = spec.default if isinstance(spec, FixedLen) else []
        shape: tuple[int | None, ...] = tuple(getattr(spec, "shape", ()))
        shape = shape if fixed else (None, *shape)
        if shape:
            field = Json() if kind == BYTES else Tensor(str(WIRE_DTYPES[kind]), shape)
        field = dataclasses.replace(field, optional=isinstance(spec, FixedLen) and spec.optional)
        parsed[name] = Feature(field, name, kind, sequence, kind == BYTES and bool(shape), default)
    return parsed


def _kind_of(dtype: Any, name: str) -> tuple[int, Field]:
    # tf.string and np.int64 alike have a name.
    type_name = (
        dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", "")
    )
    if type_name in ("bytes", "string", "str"):
        return BYTES, Bytes()
    if type_name in ("int64", "int"):
        return INT64, Int()
    if type_name in ("float32", "float"):
        return FLOAT, Float("float32")
    raise OptionError(f"the values of a feature are bytes, int64 or float32, not {dtype!r}", field=name)
