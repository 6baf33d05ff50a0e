"""Lists and structs: Arrow arrays to JSON text and back, by way of the columns of what is in them."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import BatchplantError, DecodeError, EncodeError
from ...schema import Field, Json, List, Struct
from ...schema.columns import Column, Ragged, starts_of
from ...storage import limits
from .. import nested
from .buffers import bitmap, valid_of, view_of
from .sizes import plain_size
from .types import is_any_list, pyarrow, storage

Decode = Callable[[Field, Any], Column]
Encode = Callable[[Field, Column], Any]


def documents(field: Field, array: Any, plain: Callable[[Any], Any], decode: Decode) -> Ragged:
    """The cells of a list or struct. ``plain`` undoes packing, ``decode`` is for what holds no others."""
    array.validate(full=True)
    # Each value becomes an object of Python first.
    limits.check("its column", plain_size(array) + 16 * len(array), array.get_total_buffer_size())
    found = _objects(field, array, plain, decode)
    return Ragged.from_cells([None if one is None else nested.json_text(one) for one in found])


def _objects(field: Field, array: Any, plain: Callable[[Any], Any], decode: Decode) -> list[Any]:
    if not isinstance(field, List | Struct):
        return nested.plains(field, decode(field, array))
    array = plain(array)
    there = None if not array.null_count else valid_of(array).tolist()
    if there is not None and not field.optional:
        raise DecodeError(f"a value inside is missing, and {field} is not optional")
    if isinstance(field, List):
        found = _lists(field, array, plain, decode)
    else:
        found = _structs(field, array, there, plain, decode)
    return (
        found if there is None else [one if valid else None for one, valid in zip(found, there, strict=True)]
    )


def _lists(field: List, array: Any, plain: Callable[[Any], Any], decode: Decode) -> list[Any]:
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
    found = [values[start:end] for start, end in itertools.pairwise(starts_of(sizes).tolist())]
    if not _may_be_null(field.of) and None in values:
        # Arrow allows values under a missing list.
        there = array.is_valid().to_pylist()
        if any(None in one for one, valid in zip(found, there, strict=True) if valid):
            raise DecodeError(f"a value inside is missing, and {field.of} is not optional")
    return found


def _structs(
    field: Struct, array: Any, there: list[bool] | None, plain: Callable[[Any], Any], decode: Decode
) -> list[Any]:
    names = [name for name, _ in field.fields]
    if not pyarrow().types.is_struct(array.type) or [one.name for one in array.type] != names:
        raise DecodeError(f"{array.type} where {field} is needed")
    columns = []
    for (name, one), part in zip(field.fields, array.flatten(), strict=True):
        # Where the whole struct is missing, so are its values.
        found = _objects(
            one if there is None else dataclasses.replace(one, optional=True), part, plain, decode
        )
        if there is not None and not _may_be_null(one):
            _check_there(name, found, there)
        columns.append(found)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _may_be_null(field: Field) -> bool:
    return field.optional or type(field) is Json


def _check_there(name: str, found: Sequence[Any], there: Sequence[bool]) -> None:
    if any(valid and one is None for one, valid in zip(found, there, strict=True)):
        raise DecodeError(f"a value {name!r} is missing in a struct, and it is not optional")


def array_of(field: Field, column: Ragged, encode: Encode) -> Any:
    """The Arrow array of cells. ``encode`` is for what holds no others."""
    found: list[Any] = []
    for row, cell in enumerate(column):
        try:
            found.append(None if cell is None else json.loads(cell.tobytes()))
        except (ValueError, RecursionError) as error:
            raise EncodeError(f"not {field}: {error}", sample=row) from None
    return _array(field, found, encode)


def _array(field: Field, found: Sequence[Any], encode: Encode) -> Any:
    pa = pyarrow()
    if not isinstance(field, List | Struct):
        try:
            array = encode(field, nested.column_of(field, found))
            return array.storage if isinstance(array, pa.ExtensionArray) else array
        except BatchplantError as error:
            raise EncodeError(error.message) from None
    there = np.fromiter((one is not None for one in found), dtype=np.bool_, count=len(found))
    if not there.all() and not field.optional:
        raise EncodeError(f"a value inside is missing, and {field} is not optional")
    kind = list if isinstance(field, List) else dict
    for one in found:
        if one is not None and type(one) is not kind:
            raise EncodeError(f"{json.dumps(one)[:40]} where {field} is needed")
    valid = bitmap(there)
    if isinstance(field, List):
        sizes = np.fromiter((len(one or ()) for one in found), dtype=np.int64, count=len(found))
        values = _array(field.of, [value for one in found for value in one or ()], encode)
        buffers = [valid, pa.py_buffer(starts_of(sizes))]
        return pa.Array.from_buffers(storage(field), len(found), buffers, children=[values])
    children = []
    for name, one in field.fields:
        values = [None if value is None else value.get(name) for value in found]
        if not there.all() and not _may_be_null(one):
            _check_there(name, values, there.tolist())
        children.append(
            _array(one if there.all() else dataclasses.replace(one, optional=True), values, encode)
        )
    return pa.Array.from_buffers(storage(field), len(found), [valid], children=children)
