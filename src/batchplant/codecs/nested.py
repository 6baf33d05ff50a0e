"""Lists and structs: values to JSON that holds them exactly, and back.

Their cell is JSON text. Numbers, booleans, text and JSON are stored as they are; times, durations, decimals
and UUIDs as their usual text; bytes and encoded files as base64; arrays as nested lists; a missing value as
null. The field says which is which.
"""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from .. import schema as kinds
from ..errors import BatchplantError, DecodeError, SchemaError, exceptions_as
from ..schema import Field
from ..schema.columns import Column, Masked, Ragged, as_bytes, dense_of
from . import npy, scalars
from .media import image

Shape = tuple[int, ...] | None
T = TypeVar("T")


# Like json.dumps, which creates an encoder for every value.
_dumps = json.JSONEncoder(ensure_ascii=False).encode


def json_text(value: Any) -> bytes:
    """Return a value as JSON, in UTF-8. Half of a surrogate pair, which is no character, stays an escape."""
    try:
        return _dumps(value).encode()
    except UnicodeEncodeError:
        return json.dumps(value).encode()


# -- values ------------------------------------------------------------------------------------------------


def plain_of(field: Field, value: Any, encode: Callable[[Field, Any], tuple[Any, Shape]]) -> Any:
    """Return the JSON of a value. ``encode`` makes the cell of a value that is not nested."""
    if value is None:
        if not field.optional:
            raise SchemaError(f"a value inside is None, and {field} is not optional")
        return None
    if isinstance(field, kinds.List):
        if isinstance(value, str | bytes | Mapping):
            raise SchemaError(f"a List needs a list, not {type(value).__name__}")
        return [plain_of(field.of, element, encode) for element in value]
    if isinstance(field, kinds.Struct):
        names = [name for name, _ in field.fields]
        if not isinstance(value, Mapping) or set(value) != set(names):
            names_given = ", ".join(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
            raise SchemaError(f"a Struct needs exactly the values {', '.join(names)}, not {names_given}")
        return {name: plain_of(inner, value[name], encode) for name, inner in field.fields}
    cell, shape = encode(field, value)
    return None if cell is None else _plain(field, cell, shape)


def value_of(field: Field, plain: Any, decode: Callable[[Field, Any], Any]) -> Any:
    """Return the value of its JSON. ``decode`` makes the value of a cell that is not nested."""
    if plain is None and field.optional:
        return None
    if isinstance(field, kinds.List):
        return [value_of(field.of, element, decode) for element in _checked(field, plain, list)]
    if isinstance(field, kinds.Struct):
        members = _checked(field, plain, dict)
        return {name: value_of(inner, members.get(name), decode) for name, inner in field.fields}
    cell = cell_of(field, plain)
    if isinstance(field, kinds.Tensor):
        return npy.array_of(field, plain)
    is_plain = type(field) in (kinds.Int, kinds.Bool, kinds.Text, kinds.Json)
    return plain if is_plain else decode(field, as_bytes(cell))


def _checked(field: Field, plain: Any, kind: type[T]) -> T:
    if not isinstance(plain, kind):
        raise DecodeError(f"{json.dumps(plain)[:40]} where {field} is needed")
    return plain


# -- cells -------------------------------------------------------------------------------------------------


def plains(field: Field, column: Column) -> list[Any]:
    """Return the JSON of all cells of a column; None if one is missing."""
    if isinstance(column, Ragged):
        return _ragged_plains(field, column)
    if isinstance(field, kinds.Time | kinds.Duration):
        return [text.decode() for text in scalars.texts_of(field, column).tolist()]
    return [npy.lists_of(array) for array in column] if isinstance(field, kinds.Tensor) else column.tolist()


def _ragged_plains(field: Field, column: Ragged) -> list[Any]:
    present = np.ones(len(column), dtype=np.bool_) if column.valid is None else column.valid
    dense = dense_of(field)
    if dense is not None and not isinstance(field, kinds.Tensor):
        numbers = plains(dataclasses.replace(field, optional=False), Masked(column, *dense).values)
        return [number if valid else None for number, valid in zip(numbers, present.tolist(), strict=True)]
    if isinstance(field, kinds.Text | kinds.Json):
        # One copy of all letters, from which cells are sliced.
        letters, ends = column.data.tobytes(), itertools.pairwise(column.offsets.tolist())
        value = json.loads if isinstance(field, kinds.Json) else bytes.decode
        with exceptions_as(DecodeError, f"not {field}", ValueError, RecursionError):
            return [
                value(letters[start:end]) if valid else None
                for (start, end), valid in zip(ends, present.tolist(), strict=True)
            ]
    shapes: Any = [None] * len(column) if column.shape is None else column.shape.tolist()
    return [
        None if cell is None else _plain(field, cell, tuple(shape) if shape and any(shape) else None)
        for cell, shape in zip(column, shapes, strict=True)
    ]


def column_of(field: Field, documents: Sequence[Any]) -> Column:
    """Return the cells of values given as JSON."""
    cells = []
    for row, plain in enumerate(documents):
        try:
            if plain is None and not field.optional and not isinstance(field, kinds.Json):
                raise DecodeError("the value is missing, and the field is not optional")
            cells.append(None if plain is None and field.optional else cell_of(field, plain))
        except BatchplantError as error:
            raise error.at(sample=row) from None
    if field.cell is None:
        return Ragged.from_cells(cells)
    dtype, shape = field.cell
    # A field that has such cells is not optional.
    present = [cell for cell in cells if cell is not None]
    return np.frombuffer(b"".join(present), dtype).reshape(len(present), *shape)


def _plain(field: Field, cell: Any, shape: Shape) -> Any:
    data = as_bytes(cell)
    if isinstance(field, kinds.Tensor):
        if field.cell is None:
            return npy.lists_of(npy.unpack_tensor(field, data))
        return npy.lists_of(data.view(field.cell[0]).reshape(field.cell[1]))
    if isinstance(field, kinds.Time | kinds.Duration):
        return str(scalars.texts_of(field, data.view(np.int64))[0].decode())
    if isinstance(field, kinds.Int | kinds.Float | kinds.Bool):
        return data.view(getattr(field, "dtype", "bool"))[0].item()
    if isinstance(field, kinds.Json):
        return json.loads(data.tobytes())
    if isinstance(field, kinds.Text):
        return data.tobytes().decode()
    packed = data.tobytes()
    if isinstance(field, kinds.Image) and shape is not None:
        pixels = image.squeeze(data.reshape(shape))
        packed = image.encode(pixels, "png" if image.holds("png", image.mode_of(pixels)) else "tiff")
    return base64.b64encode(packed).decode()


def cell_of(field: Field, plain: Any) -> bytes:
    """Return the bytes of a cell, from its JSON."""
    try:
        return _cell(field, plain)
    except BatchplantError as error:
        raise DecodeError(error.message) from None
    # Exceptions of Python and NumPy for a value of another kind.
    except (ValueError, TypeError, OverflowError, KeyError, RecursionError):
        raise DecodeError(f"{json.dumps(plain)[:40]} is not {field}") from None


def _cell(field: Field, plain: Any) -> bytes:
    if isinstance(field, kinds.Tensor):
        array = npy.array_of(field, plain)
        return array.tobytes() if field.cell is not None else npy.pack_tensor(field, array)
    if isinstance(field, kinds.Time | kinds.Duration):
        return np.int64(scalars.counts_of(field, np.array([str(plain)], np.bytes_))[0]).tobytes()
    if isinstance(field, kinds.Int | kinds.Float | kinds.Bool):
        expected = (
            bool if isinstance(field, kinds.Bool) else int if isinstance(field, kinds.Int) else int | float
        )
        if not isinstance(plain, expected) or isinstance(plain, bool) != isinstance(field, kinds.Bool):
            raise ValueError
        return np.array(plain, dtype=getattr(field, "dtype", "bool")).tobytes()
    if isinstance(field, kinds.Json):
        return json_text(plain)
    if isinstance(field, kinds.Decimal):
        return scalars.decimal_text(field, plain).encode()
    if not isinstance(plain, str):
        raise ValueError
    if isinstance(field, kinds.Uuid):
        return scalars.uuid_text(plain).encode()
    return plain.encode() if isinstance(field, kinds.Text) else base64.b64decode(plain, validate=True)
