"""The fields of MessagePack records that others wrote, inferred from some of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..schema import Bool, Bytes, Field, Float, Int, Json, Schema, Tensor, Text
from ..schema.columns import Ragged
from .infer import infer_image
from .msgpack import as_array

# Whole numbers up to here are real numbers too, exactly.
EXACT = 2**53


def is_sample(record: Any) -> bool:
    return isinstance(record, dict) and as_array(record) is None and any(map(_is_name, record))


def _is_name(key: Any) -> bool:
    """Whether a key can be a field's name; others are left out."""
    return bool(key) and isinstance(key, str) and "\0" not in key


def infer(records: Sequence[dict[Any, Any]]) -> Schema:
    """The fields of these maps, in the order in which they first appear."""
    records = [{_text(key): value for key, value in one.items()} for one in records]
    names = dict.fromkeys(key for one in records for key in one if _is_name(key))
    return Schema({name: field_of([one.get(name) for one in records]) for name in names})


def _text(key: Any) -> Any:
    """Old writers know no difference between text and bytes."""
    try:
        return key.decode() if isinstance(key, bytes) else key
    except UnicodeDecodeError:
        return key


def field_of(values: Sequence[Any]) -> Field:
    """The kind that holds all of these values, where a None is a missing one."""
    present = [value for value in values if value is not None]
    field = _bytes_field(present) or _array_field(present) or _plain_field(present)
    return dataclasses.replace(field, optional=True) if len(present) < len(values) else field


def _bytes_field(values: Sequence[Any]) -> Field | None:
    """Text that is no UTF-8 is bytes: old writers know no others."""
    if not any(isinstance(value, bytes) for value in values) or not all(
        isinstance(value, str | bytes) for value in values
    ):
        return None
    cells = Ragged.from_cells([value.encode() if isinstance(value, str) else value for value in values])
    return infer_image(cells) or Bytes()


def _array_field(values: Sequence[Any]) -> Field | None:
    """Arrays of one dtype and rank, or lists of numbers of which only the first size varies."""
    lists = all(isinstance(value, list) for value in values)
    arrays = [_list_array(value) if lists else as_array(value) for value in values]
    known = [array for array in arrays if array is not None]
    # A list without an element could have any rank and dtype.
    telling = [array for array in known if not lists or array.size or array.ndim > 1]
    if len(known) < len(values) or not telling:
        return None
    dtypes = {array.dtype.newbyteorder("=") for array in telling}
    mixed = len(dtypes) > 1 and (not lists or np.dtype(bool) in dtypes)
    if mixed or len({array.ndim for array in telling}) > 1:
        return None
    sizes = [{array.shape[axis] for array in telling} for axis in range(telling[0].ndim)]
    shape = [one.pop() if len(one) == 1 else None for one in sizes]
    if len(telling) < len(values):
        shape[0] = None
    if lists and None in shape[1:]:
        return None
    return Tensor(np.result_type(*dtypes).name, tuple(shape))


def _list_array(value: Any) -> Any:
    """A list of numbers as an array; None for anything else."""
    if not isinstance(value, list):
        return None
    try:
        array = np.array(value)
    except (ValueError, OverflowError):
        return None
    if array.dtype.kind not in "biuf" or (array.dtype.kind == "f" and _has_kind(value, bool)):
        return None
    if array.dtype.kind == "f" and _has_kind(value, int) and np.abs(array).max(initial=0) > EXACT:
        return None
    return None if array.dtype.kind in "iu" and _has_kind(value, bool) else array


def _has_kind(value: Any, kind: type) -> bool:
    if isinstance(value, list):
        return any(_has_kind(one, kind) for one in value)
    return type(value) is kind


def _plain_field(values: Sequence[Any]) -> Field:
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return Bool()
    if kinds == {int}:
        if max(values) < 2**63:
            return Int()
        return Int("uint64") if min(values) >= 0 else Json()
    if kinds and kinds <= {int, float}:
        whole = [abs(value) for value in values if isinstance(value, int)]
        return Json() if max(whole, default=0) > EXACT else Float()
    if kinds == {str}:
        return Text()
    try:
        for value in values:
            json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return Bytes()
    return Json()
