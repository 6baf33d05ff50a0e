"""Lists and structs: Arrow arrays to JSON text and back, by way of the columns of what is in them."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import BatchplantError, DecodeError, EncodeError
from ...schema import Field, Json, List, Struct
from ...schema.columns import Column, Ragged, starts_of
from ...storage import limits
from .. import nested
from .buffers import bitmap, plain_size, valid_of, view_of
from .types import is_any_list, pyarrow, storage

if TYPE_CHECKING:
    import pyarrow as pa


Decode = Callable[[Field, Any], Column]
Encode = Callable[[Field, Column], Any]


def documents(field: Field, array: pa.Array, plain: Callable[[Any], Any], decode: Decode) -> Ragged:
    """The cells of a list or struct. ``plain`` undoes packing, ``decode`` is for what holds no others."""
    array.validate(full=True)
    # Each value becomes an object of Python first.
    limits.check("its column", plain_size(array) + 16 * len(array), array.get_total_buffer_size())
    objects = _objects(field, array, plain, decode)
    return Ragged.from_cells([None if value is None else nested.json_text(value) for value in objects])


def _objects(field: Field, array: pa.Array, plain: Callable[[Any], Any], decode: Decode) -> list[Any]:
    if not isinstance(field, List | Struct):
        return nested.plains(field, decode(field, array))
    array = plain(array)
    is_valid = None if not array.null_count else valid_of(array).tolist()
    if is_valid is not None and not field.optional:
        raise DecodeError(f"a value inside is missing, and {field} is not optional")
    if isinstance(field, List):
        objects = _lists(field, array, plain, decode)
    else:
        objects = _structs(field, array, is_valid, plain, decode)
    return (
        objects
        if is_valid is None
        else [value if valid else None for value, valid in zip(objects, is_valid, strict=True)]
    )


def _lists(field: List, array: pa.Array, plain: Callable[[Any], Any], decode: Decode) -> list[Any]:
    if not is_any_list(array.type) and not pyarrow().types.is_map(array.type):
        raise DecodeError(f"{array.type} where {field} is needed")
    if pyarrow().types.is_fixed_size_list(array.type):
        sizes = np.where(valid_of(array), array.type.list_size, 0)
        inside = array.flatten()
    else:
        wide = np.dtype(np.int64 if pyarrow().types.is_large_list(array.type) else np.int32)
        ends = view_of(array.offsets, wide).astype(np.int64) if len(array) else np.zeros(1, np.int64)
        sizes = np.diff(ends)
        inside = array.values[ends[0] : ends[-1]]
    values = _objects(dataclasses.replace(field.of, optional=True), inside, plain, decode)
    lists = [values[start:end] for start, end in itertools.pairwise(starts_of(sizes).tolist())]
    if not _may_be_null(field.of) and None in values:
        # Arrow allows values under a missing list.
        is_valid = array.is_valid().to_pylist()
        if any(
            None in values_of_list for values_of_list, valid in zip(lists, is_valid, strict=True) if valid
        ):
            raise DecodeError(f"a value inside is missing, and {field.of} is not optional")
    return lists


def _structs(
    field: Struct, array: pa.Array, valid: list[bool] | None, plain: Callable[[Any], Any], decode: Decode
) -> list[Any]:
    names = [name for name, _ in field.fields]
    if not pyarrow().types.is_struct(array.type) or [arrow_field.name for arrow_field in array.type] != names:
        raise DecodeError(f"{array.type} where {field} is needed")
    columns = []
    for (name, inner), part in zip(field.fields, array.flatten(), strict=True):
        # Where the whole struct is missing, so are its values.
        objects = _objects(
            inner if valid is None else dataclasses.replace(inner, optional=True), part, plain, decode
        )
        if valid is not None and not _may_be_null(inner):
            _check_present(name, objects, valid)
        columns.append(objects)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _may_be_null(field: Field) -> bool:
    return field.optional or type(field) is Json


def _check_present(name: str, objects: Sequence[Any], is_valid: Sequence[bool]) -> None:
    if any(valid and value is None for value, valid in zip(objects, is_valid, strict=True)):
        raise DecodeError(f"a value {name!r} is missing in a struct, and it is not optional")


def array_of(field: Field, column: Ragged, encode: Encode) -> pa.Array:
    """The Arrow array of cells. ``encode`` is for what holds no others."""
    objects: list[Any] = []
    for row, cell in enumerate(column):
        try:
            objects.append(None if cell is None else json.loads(cell.tobytes()))
        except (ValueError, RecursionError) as error:
            raise EncodeError(f"not {field}: {error}", sample=row) from None
    return _array(field, objects, encode)


def _array(field: Field, objects: Sequence[Any], encode: Encode) -> pa.Array:
    pa = pyarrow()
    if not isinstance(field, List | Struct):
        try:
            array = encode(field, nested.column_of(field, objects))
            return array.storage if isinstance(array, pa.ExtensionArray) else array
        except BatchplantError as error:
            raise EncodeError(error.message) from None
    present = np.fromiter((value is not None for value in objects), dtype=np.bool_, count=len(objects))
    if not present.all() and not field.optional:
        raise EncodeError(f"a value inside is missing, and {field} is not optional")
    kind = list if isinstance(field, List) else dict
    for value in objects:
        if value is not None and type(value) is not kind:
            raise EncodeError(f"{json.dumps(value)[:40]} where {field} is needed")
    valid = bitmap(present)
    if isinstance(field, List):
        sizes = np.fromiter((len(value or ()) for value in objects), dtype=np.int64, count=len(objects))
        values = _array(field.of, [value for value in objects for value in value or ()], encode)
        buffers = [valid, pa.py_buffer(starts_of(sizes))]
        return pa.Array.from_buffers(storage(field), len(objects), buffers, children=[values])
    children = []
    for name, inner in field.fields:
        values = [None if value is None else value.get(name) for value in objects]
        if not present.all() and not _may_be_null(inner):
            _check_present(name, values, present.tolist())
        children.append(
            _array(inner if present.all() else dataclasses.replace(inner, optional=True), values, encode)
        )
    return pa.Array.from_buffers(storage(field), len(objects), [valid], children=children)
