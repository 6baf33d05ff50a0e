"""tf.train.Example and SequenceExample: features to cells and back, many records at a time.

A :class:`Feature` says how a field lies in Examples: the name and kind of the feature, and what becomes of
its values. :func:`features_of` plans how a schema is written; example_schema.py finds out what a file holds.
"""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from ..errors import DecodeError, SchemaError
from ..schema import Bool, Field, Schema, Tensor
from ..schema.columns import I64, U8, Column, Columns, Ragged, as_bytes, column_runs, starts_of
from .arrays import check_bytes

BYTES, FLOAT, INT64 = 1, 2, 3
KIND_NAMES = ("nothing", "bytes", "float", "int64", "mixed")
WIRE_DTYPES: dict[int, np.dtype[Any]] = {FLOAT: np.dtype(np.float32), INT64: np.dtype(np.int64)}


@dataclasses.dataclass(frozen=True)
class Feature:
    """How a field lies in an Example.

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
    values: npt.NDArray[Any]


class RecordError(Exception):
    """A record that is no Example: its row, and where in the data it is wrong."""

    def __init__(self, row: int, offset: int) -> None:
        super().__init__("the record is no tf.train.Example")
        self.row, self.offset = row, offset


def values_of(data: U8, starts: I64, sizes: I64, requests: Sequence[tuple[bytes, bool, int]]) -> list[Values]:
    """The values of features, each (name, whether it is a feature list, kind)."""
    columns, row, offset = _native.example_read(data, starts, sizes, list(requests))
    if row >= 0:
        raise RecordError(row, offset)
    return [
        Values(kinds, counts, steps, (runs.reshape(-1, 2), floats, ints)[kind - 1])
        for (_, _, kind), (kinds, counts, steps, runs, floats, ints) in zip(requests, columns, strict=True)
    ]


# -- reading -------------------------------------------------------------------------------------------


def read(features: Mapping[str, Feature], data: U8, starts: I64, sizes: I64) -> Columns:
    """The cells of these fields in the records ``data[start : start + size]``.

    A record that does not fit raises DecodeError with its row as ``sample``; RecordError where it is none.
    """
    found = values_of(data, starts, sizes, [one.request for one in features.values()])
    columns = Columns()
    for (name, feature), values in zip(features.items(), found, strict=True):
        try:
            columns[name] = _column(feature, values, data)
        except DecodeError as error:
            raise error.at(field=name) from None
    return columns


def runs(feature: Feature, data: U8, starts: I64, sizes: I64) -> tuple[I64, I64]:
    """Where the cells of a field of one bytes value lie in the data; size -1 for a missing one."""
    [values] = values_of(data, starts, sizes, [feature.request])
    try:
        present = _counted(feature, values, 1)
    except DecodeError as error:
        raise error.at(field=feature.key) from None
    where, length = np.zeros(len(starts), np.int64), np.full(len(starts), -1, np.int64)
    where[present], length[present] = values.values[:, 0], values.values[:, 1]
    try:
        check_bytes(feature.field, where, length)
    except DecodeError as error:
        raise error.at(field=feature.key) from None
    return where, length


def in_place(feature: Feature) -> bool:
    """Whether the cells of a field are runs of bytes inside of the records."""
    return feature.kind == BYTES and not feature.listed and not feature.sequence and feature.default is None


def _wrong(row: Any, message: str) -> DecodeError:
    return DecodeError(message, sample=int(row))


def _present(feature: Feature, values: Values) -> npt.NDArray[np.bool_]:
    """Which records have the feature; one of another kind is an error."""
    if (values.kinds == feature.kind).all():
        return np.ones(len(values.kinds), dtype=np.bool_)
    there = values.counts >= 0
    # A list without steps is of no kind.
    other = there & (values.kinds != feature.kind) & (values.kinds != 0)
    if other.any():
        row = np.argmax(other)
        have = KIND_NAMES[values.kinds[row]]
        raise _wrong(row, f"the feature is {have}, and {KIND_NAMES[feature.kind]} is asked for")
    if not there.all() and not feature.field.optional and feature.default is None:
        raise _wrong(np.argmin(there), f"there is no feature {feature.key!r}")
    return there


def _counted(feature: Feature, values: Values, count: int) -> npt.NDArray[np.bool_]:
    """Which records have the feature; each of those has to have so many values."""
    there = _present(feature, values)
    wrong = there & (values.counts != count)
    if wrong.any():
        row = np.argmax(wrong)
        raise _wrong(row, f"the feature has {values.counts[row]} values, and {count} is asked for")
    return there


def _column(feature: Feature, values: Values, data: U8) -> Column:
    if feature.listed:
        return _listed(feature, values, data)
    if feature.kind == BYTES:
        return bytes_column(feature, values, data)
    return _number_column(feature, values)


def bytes_column(feature: Feature, values: Values, data: U8) -> Column:
    there = _counted(feature, values, 1)
    starts, sizes = np.zeros(len(there), dtype=np.int64), np.zeros(len(there), dtype=np.int64)
    starts[there], sizes[there] = values.values[:, 0], values.values[:, 1]
    check_bytes(feature.field, starts, np.where(there, sizes, -1))
    offsets = starts_of(sizes)
    out = np.empty(offsets[-1], dtype=np.uint8)
    _native.copy_runs(
        data,
        np.ascontiguousarray(values.values[:, 0]),
        np.ascontiguousarray(values.values[:, 1]),
        out,
        np.ascontiguousarray(offsets[:-1][there]),
    )
    cells = Ragged(out, offsets, valid=None if there.all() else there)
    if feature.default is not None and cells.valid is not None:
        default = bytes(feature.default)
        cells = Ragged.from_cells([default if one is None else one for one in cells])
        check_bytes(feature.field, cells.starts, cells.sizes)
    cell = feature.field.cell
    return cells if cell is None else cells.data.view(cell[0]).reshape(len(cells), *cell[1])


def _number_column(feature: Feature, values: Values) -> Column:
    field = feature.field
    shape = field.shape if isinstance(field, Tensor) else ()
    varies = None in shape
    each = math.prod(size for size in shape if size is not None)
    there = _present(feature, values)
    counts = np.where(there, values.counts, 0)
    if feature.sequence:
        inner = math.prod(size for size in shape[1:] if size is not None)
        wrong = values.steps != inner
        if wrong.any():
            row = np.searchsorted(np.cumsum(counts), np.argmax(wrong), side="right")
            raise _wrong(row, f"a step has {values.steps[np.argmax(wrong)]} values, and {inner} is asked for")
        counts = counts * inner
    wrong = there & (counts % each != 0 if varies and each else counts != each)
    if wrong.any():
        row = np.argmax(wrong)
        raise _wrong(row, f"the feature has {counts[row]} values, which do not fit {field}")
    numbers = _cast(field, values.values, counts)
    if varies and feature.default is not None:
        # A record without the feature has none of its values.
        there = np.ones_like(there)
    elif not there.all() and feature.default is not None:
        default = np.broadcast_to(np.asarray(feature.default, dtype=numbers.dtype), (each,))
        full = np.empty((len(there), each), dtype=numbers.dtype)
        full[there], full[~there] = numbers.reshape(-1, each), default
        numbers, there = full.reshape(-1), np.ones_like(there)
        counts = np.full(len(there), each, dtype=np.int64)
    if field.cell is not None:
        return numbers.reshape(len(there), *field.cell[1])
    valid = None if there.all() else there
    return Ragged(as_bytes(numbers), starts_of(counts * numbers.dtype.itemsize), valid=valid)


def _cast(field: Field, values: npt.NDArray[Any], counts: I64) -> npt.NDArray[Any]:
    """The values in the field's own dtype, which has to hold each of them exactly."""
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
    """Cells of JSON: the one case that goes value by value."""
    there = _present(feature, values)
    if feature.kind == BYTES:
        flat = [_text(data[start : start + size].tobytes()) for start, size in values.values.tolist()]
    else:
        flat = values.values.tolist()
    counts, steps = values.counts.tolist(), values.steps.tolist()
    cells: list[bytes | None] = []
    at = step = 0
    for row, present in enumerate(there.tolist()):
        if not present:
            cells.append(None if feature.default is None else b"[]")
            continue
        if feature.sequence:
            ends = np.cumsum([at, *steps[step : step + counts[row]]]).tolist()
            cell: list[Any] = [flat[one:two] for one, two in itertools.pairwise(ends)]
            step, at = step + counts[row], ends[-1]
        else:
            cell, at = flat[at : at + counts[row]], at + counts[row]
        cells.append(json.dumps(cell, ensure_ascii=False).encode())
    return Ragged.from_cells(cells)


def _text(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


# -- writing -------------------------------------------------------------------------------------------


def feature_of(name: str, field: Field) -> Feature:
    """How a field is stored: whole numbers as int64, float16 and float32 as float, all else as bytes."""
    dtype = np.dtype(getattr(field, "dtype", "bool" if isinstance(field, Bool) else "V"))
    kind = BYTES
    if dtype.kind in "biu":
        kind = INT64
    elif dtype in (np.float16, np.float32):
        kind = FLOAT
    if isinstance(field, Tensor) and not field.flat and field.cell is None:
        # An NPY file, which knows its shape.
        kind = BYTES
    return Feature(field, name, kind)


def features_of(schema: Schema) -> dict[str, Feature]:
    return {name: feature_of(name, field) for name, field in schema.items()}


def write(features: Mapping[str, Feature], columns: Columns) -> Ragged:
    """One serialized Example for each sample, features in order of their names."""
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
