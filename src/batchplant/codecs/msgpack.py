"""Samples as MessagePack maps, for formats that keep one run of bytes for each sample.

The keys are the names of the fields, as text, in the schema's order. The values:

============================== =================================================================
kind                           MessagePack
============================== =================================================================
Int                            an integer, in the shortest form that holds it
Float                          a float of 4 bytes (float16, float32) or 8 bytes (float64)
Bool                           true or false
Text, Json                     str: the text, the JSON text
Bytes, Audio, Video            bin
Image                          bin: the encoded file; raw pixels are an array of height, width, channels
Tensor, Float of over 8 bytes  an array
any of them, missing           nil
============================== =================================================================

An array is an extension of type 0x42 (``B``): one byte with the length of the dtype's text, that text as
NumPy writes it (``<f4``), one byte with the number of axes, 8 little-endian bytes for the size of each axis,
and then the values, little-endian, in C order.

Reading takes more than that: every form of a number; arrays as lists of numbers or as the maps of
msgpack-numpy; a nested value in a Json field. Of a file that others wrote (``foreign``), text in a Json field
is a value and not JSON, and what is no bin in a Bytes field comes as the MessagePack that it is. Keys that
are not needed are skipped.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from ..errors import BatchplantError, DamagedError, DecodeError, EncodeError, SchemaError, located
from ..schema import Bool, Bytes, Field, Float, Image, Int, Json, Schema, Tensor, Text
from ..schema.columns import (
    I32,
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
from . import npy
from .infer import infer_field, infer_image
from .npy import check_bytes, pack_tensor

# What _native.msgpack_find calls the kinds of values.
ABSENT, NIL, BOOLEAN, INTEGER, NATURAL, REAL, TEXT, BINARY, ARRAY, MAP, EXTENSION = range(11)
ARRAY_TYPE, TIMESTAMP_TYPE = 0x42, -1
PIXELS = np.dtype(np.uint8)
_DTYPE = re.compile(r"[<>|=]?([?]|[biufc]\d{1,2}|[mM]8(\[\w{1,20}\])?)", re.ASCII)

# Starts, sizes (-1: missing) and shapes of raw pixels.
Runs = tuple[I64, I64, I32 | None]


class Extension(NamedTuple):
    """A MessagePack extension that is none of those known here."""

    type: int
    data: bytes


class Values:
    """The values of one field in some records: where they lie and of which kind they are."""

    def __init__(self, data: U8, info: I32, start: I64, size: I64) -> None:
        self.data = data
        self.info = info
        self.start = start
        self.size = size
        self.kind = info & 0xFF
        self.missing = self.kind <= NIL

    def fail(self, row: Any, reason: str) -> DecodeError:
        return DecodeError(reason, sample=int(row), offset=int(self.start[row]))

    def check(self, wrong: Any, reason: str) -> None:
        if wrong.any():
            raise self.fail(np.argmax(wrong), reason)

    def check_failure(self, failure: tuple[int, int, str] | None) -> None:
        if failure is not None:
            raise DecodeError(failure[2], sample=failure[0], offset=failure[1])

    def load(self, row: Any) -> Any:
        """One value as Python objects."""
        try:
            return _native.msgpack_load(self.data, int(self.start[row]), int(self.size[row]), extension_of)
        except (ValueError, OverflowError, RecursionError) as error:
            raise self.fail(row, str(error)) from None


def extension_of(type: int, data: bytes) -> Any:
    """The value of an extension: an array of ours, a time, or itself."""
    if type == TIMESTAMP_TYPE and len(data) in (4, 8, 12):
        number = int.from_bytes(data, "big")
        if len(data) == 8:
            nanoseconds, seconds = number >> 34, number & (1 << 34) - 1
        elif len(data) == 12:
            nanoseconds, seconds = number >> 64, int.from_bytes(data[4:], "big", signed=True)
        else:
            nanoseconds, seconds = 0, number
        timestamp = seconds * 10**9 + nanoseconds
        # Beyond lie the years that nanoseconds in 64 bits do not reach, and the mark of no time at all.
        return np.datetime64(timestamp, "ns") if -(2**63) < timestamp < 2**63 else Extension(type, data)
    if type == ARRAY_TYPE:
        try:
            end = 1 + data[0]
            dtype, rank = _dtype_of(data[1:end].decode("ascii")), data[end]
            shape = [int(size) for size in np.frombuffer(data, "<u8", rank, end + 1)]
            return _array_of(dtype, data[end + 1 + 8 * rank :], shape)
        except (ValueError, IndexError, TypeError, SyntaxError) as error:
            raise ValueError(f"the array is damaged: {error}") from None
    return Extension(type, data)


def _dtype_of(text: str) -> AnyDType:
    """The dtype that NumPy writes so; other text may mean objects, many dtypes in one, or what is no more."""
    if _DTYPE.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a dtype of numbers")
    return np.dtype(text)


def _array_of(dtype: AnyDType, values: bytes, shape: Sequence[int]) -> AnyArray:
    if dtype.kind not in "biufcmM":
        raise ValueError(f"arrays of {dtype} have no field kind")
    return np.frombuffer(values, dtype).reshape(shape)


def as_array(value: Any) -> AnyArray | None:
    """The array that a loaded value is: one of ours, of msgpack-numpy, a time; None for others."""
    if isinstance(value, np.ndarray | np.datetime64):
        return np.asarray(value)
    if not isinstance(value, dict):
        return None
    parts = {key.decode() if isinstance(key, bytes) and key.isascii() else key: value[key] for key in value}
    dtype, values = parts.get("type"), parts.get("data")
    if isinstance(dtype, bytes) and dtype.isascii():
        dtype = dtype.decode()
    if isinstance(values, str):
        values = values.encode()
    shape = parts.get("shape") if parts.get("nd") is True else []
    if type(parts.get("nd")) is not bool or not isinstance(dtype, str) or not isinstance(values, bytes):
        return None
    if not isinstance(shape, list) or not all(type(size) is int for size in shape):
        return None
    try:
        return _array_of(_dtype_of(dtype), values, shape)
    except (ValueError, TypeError, SyntaxError, OverflowError):
        return None


def check_missing(field: Field, values: Values) -> None:
    if not field.optional and values.missing.any():
        row = int(np.argmax(values.missing))
        raise DecodeError("the value is missing, and the field is not optional", sample=row)


def column(field: Field, values: Values, foreign: bool) -> Column:
    check_missing(field, values)
    if isinstance(field, Int | Bool) or is_short(field):
        return _numbers(field, values)
    if isinstance(field, Tensor | Float):
        return _arrays(
            field if isinstance(field, Tensor) else Tensor(field.dtype, optional=field.optional), values
        )
    places = runs(field, values, foreign)
    if places is None:
        return _json_cells(values, foreign)
    starts, sizes, shape = places
    cells = gathered(values.data, starts, sizes)
    cells.shape = shape
    return cells


def gathered(data: U8, starts: I64, sizes: I64) -> Ragged:
    """A copy of these runs."""
    valid = None if (present := sizes >= 0).all() else present
    sizes = np.maximum(sizes, 0)
    offsets = starts_of(sizes)
    out = np.empty(offsets[-1], dtype=np.uint8)
    _native.copy_runs(data, np.ascontiguousarray(starts), sizes, out, offsets[:-1])
    return Ragged(out, offsets, None, valid)


def _numbers(field: Field, values: Values) -> Column:
    dtype = np.dtype(getattr(field, "dtype", "bool"))
    stored = np.dtype(np.float32) if dtype == np.float16 else dtype
    numbers = np.zeros(len(values.start), dtype=stored)
    failure = _native.msgpack_numbers(
        values.data, values.info, values.start, stored.kind, stored.itemsize, as_bytes(numbers)
    )
    values.check_failure(failure)
    if stored != dtype:
        with np.errstate(over="ignore"):
            narrow = numbers.astype(dtype)
        values.check(np.isinf(narrow) & ~np.isinf(numbers), "the number is out of range")
        numbers = narrow
    if not field.optional:
        return numbers
    sizes = np.where(values.missing, -1, dtype.itemsize)
    return gathered(as_bytes(numbers), np.arange(len(numbers), dtype=np.int64) * dtype.itemsize, sizes)


def runs(field: Field, values: Values, foreign: bool) -> Runs | None:
    """Locate the cells of all fields but numbers and tensors; None for JSON that is not stored as text."""
    kind = values.kind
    payload = (kind == TEXT) | (kind == BINARY)
    head = np.where(payload, values.info >> 8 & 0xFF, 0)
    starts, sizes = values.start + head, np.where(values.missing, -1, values.size - head)
    shape = None
    if isinstance(field, Json):
        return None if foreign or (~payload & ~values.missing).any() else (starts, sizes, None)
    if isinstance(field, Bytes) and foreign:
        return starts, sizes, None
    if isinstance(field, Image) and ((kind == EXTENSION) | (kind == MAP)).any():
        shape = np.zeros((len(starts), 3), dtype=np.int32)
        for rank in (3, 2):
            forms, data_start, size, shapes, failure = _native.msgpack_arrays(
                values.data, values.info, values.start, values.size, PIXELS.str.encode(), 1, rank
            )
            values.check_failure(failure)
            raw = (forms == 1) & ~payload
            channels = shapes[:, 2] if rank == 3 else np.ones(len(raw), dtype=np.int64)
            values.check(
                raw & ((shapes < 1).any(axis=1) | (shapes > 2**31 - 1).any(axis=1) | (channels > 4)),
                "no image has this shape",
            )
            shape[raw, :rank], shape[raw, 2] = shapes[raw], channels[raw]
            starts, sizes, payload = (
                np.where(raw, data_start, starts),
                np.where(raw, size, sizes),
                payload | raw,
            )
    needed = "text is" if isinstance(field, Text) else "bytes are"
    values.check(~values.missing & ~payload, f"{needed} needed here")
    return starts, sizes, shape


def _json_cells(values: Values, foreign: bool) -> Ragged:
    cells: list[bytes | None] = []
    for row, kind in enumerate(values.kind):
        if kind <= NIL:
            cells.append(None)
            continue
        value = values.load(row)
        if kind == TEXT and not foreign and isinstance(value, str):
            cells.append(value.encode())
            continue
        try:
            cells.append(json.dumps(value, ensure_ascii=False).encode())
        except (TypeError, ValueError, RecursionError) as error:
            raise values.fail(row, f"JSON cannot hold it: {error}") from None
    return Ragged.from_cells(cells)


def _locate_arrays(field: Tensor, values: Values) -> tuple[I64, I64, I64] | None:
    """Locate the bare values of arrays, and their shapes; None if some are stored in another form."""
    dtype = np.dtype(field.dtype)
    if field.flat and (values.kind == BINARY).any() and ((values.kind == BINARY) | values.missing).all():
        return _bare_bytes(field, values)
    forms, starts, sizes, shapes, failure = _native.msgpack_arrays(
        values.data,
        values.info,
        values.start,
        values.size,
        dtype.newbyteorder("<").str.encode(),
        dtype.itemsize,
        len(field.shape),
    )
    values.check_failure(failure)
    if (forms == 2).any():
        return None
    _check_shapes(field, values, shapes)
    return starts, sizes, shapes


def _bare_bytes(field: Tensor, values: Values) -> tuple[I64, I64, I64]:
    """Bytes whose dtype and shape only the user knows."""
    head = np.where(values.missing, 0, values.info >> 8 & 0xFF)
    starts, sizes = values.start + head, np.where(values.missing, -1, values.size - head)
    check_bytes(field, starts, sizes)
    row = np.dtype(field.dtype).itemsize * math.prod(size or 1 for size in field.shape)
    shapes = np.array([[1 if size is None else size for size in field.shape]] * len(sizes), dtype=np.int64)
    if field.cell is None and None in field.shape:
        shapes[:, 0] = np.maximum(sizes, 0) // row
    return starts, sizes, shapes


def _convert_lists(field: Tensor, values: Values) -> tuple[U8, I64, I64, I64] | None:
    """Lists of numbers: all values, starts, sizes and shapes; None where some are no such lists."""
    dtype = np.dtype(field.dtype)
    if dtype.kind not in "biuf" or dtype == np.float16 or dtype.itemsize > 8 or not field.shape:
        return None
    forms, sizes, shapes, data = _native.msgpack_lists(
        values.data, values.info, values.start, values.size, dtype.kind, dtype.itemsize, len(field.shape)
    )
    if (forms == 2).any():
        return None
    # What an empty list does not tell is as the field says.
    shapes = np.where(shapes < 0, [size or 0 for size in field.shape], shapes)
    _check_shapes(field, values, shapes)
    return data, starts_of(sizes)[:-1], sizes, shapes


def _check_shapes(field: Tensor, values: Values, shapes: I64) -> None:
    want = np.array([-1 if size is None else size for size in field.shape], dtype=np.int64)
    wrong = ((shapes != want) & (want >= 0)).any(axis=1) & ~values.missing
    if wrong.any():
        row = int(np.argmax(wrong))
        raise values.fail(row, f"an array of shape {tuple(shapes[row].tolist())} is not {field}")


def _arrays(field: Tensor, values: Values) -> Column:
    data, located = values.data, _locate_arrays(field, values)
    if located is None and (listed := _convert_lists(field, values)) is not None:
        data, located = listed[0], listed[1:]
    if located is None:
        cells = [
            None if values.missing[row] else _odd_array(field, values, row) for row in range(len(values.kind))
        ]
        ragged = Ragged.from_cells(cells)
    else:
        starts, sizes, shapes = located
        sizes = np.where(values.missing, -1, sizes)
        if field.cell is None and not field.flat:
            return _npy_cells(field, data, starts, sizes, shapes)
        ragged = gathered(data, starts, sizes)
    if field.cell is None:
        return ragged
    dtype, shape = field.cell
    return ragged.data.view(dtype).reshape(len(ragged), *shape)


def _npy_cells(field: Tensor, data: U8, starts: I64, sizes: I64, shapes: I64) -> Ragged:
    """Whole NPY files of values."""
    kinds, header_index = np.unique(shapes, axis=0, return_inverse=True)
    header_index = header_index.reshape(-1)
    dtype = np.dtype(field.dtype)
    heads = Ragged.from_cells([npy.header_bytes(dtype, tuple(shape)) for shape in kinds.tolist()])
    present = np.flatnonzero(sizes >= 0)
    file_sizes = np.zeros(len(sizes), dtype=np.int64)
    file_sizes[present] = heads.sizes[header_index[present]] + sizes[present]
    offsets = starts_of(file_sizes)
    out = np.empty(offsets[-1], dtype=np.uint8)
    head, file_starts = header_index[present], offsets[:-1][present]
    _native.copy_runs(heads.data, heads.starts[head], heads.sizes[head], out, file_starts)
    _native.copy_runs(data, starts[present], sizes[present], out, file_starts + heads.sizes[head])
    return Ragged(out, offsets, None, sizes >= 0 if len(present) < len(sizes) else None)


def _odd_array(field: Tensor, values: Values, row: int) -> bytes:
    """The cell of an array in any other form: a list, another dtype, an NPY file."""
    loaded = values.load(row)
    dtype = np.dtype(field.dtype)
    try:
        if isinstance(loaded, bytes) and field.cell is None and not field.flat:
            array = npy.read(np.frombuffer(loaded, dtype=np.uint8))
            if array.dtype == dtype and field.fits(array.shape):
                return loaded
        else:
            array_of_list = as_array(loaded)
            array = np.array(loaded) if array_of_list is None else array_of_list
            if array.shape == (0,) and loaded == [] and None not in field.shape[1:]:
                array = array.reshape(0, *field.shape[1:])
        cast = _cast(array, dtype)
    except (BatchplantError, ValueError, TypeError, OverflowError) as error:
        raise values.fail(row, f"not {field}: {error}") from None
    if not field.fits(cast.shape):
        raise values.fail(row, f"an array of shape {cast.shape} is not {field}")
    return cast.tobytes() if field.cell is not None else pack_tensor(field, cast)


def _cast(array: AnyArray, dtype: AnyDType) -> AnyArray:
    """The same numbers as another dtype; only real numbers may be rounded."""
    have, want = array.dtype.kind, dtype.kind
    if array.dtype == dtype:
        return np.ascontiguousarray(array).reshape(array.shape)
    # A list without an element, whatever it would hold.
    if array.size == 0:
        return np.empty(array.shape, dtype)
    is_integer, real = have in "iu" and want in "iu", have in "iuf" and want in "fc"
    if not (is_integer or real or have == want == "c"):
        raise ValueError(f"values of {array.dtype} do not fit {dtype}")
    if is_integer and (array.min() < np.iinfo(dtype).min or array.max() > np.iinfo(dtype).max):
        raise ValueError(f"its numbers are out of range for {dtype}")
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
    if not is_integer and not np.array_equal(np.isinf(cast), np.isinf(array)):
        raise ValueError(f"its numbers are out of range for {dtype}")
    return cast


def is_short(field: Field) -> bool:
    return isinstance(field, Float) and np.dtype(field.dtype).itemsize <= 8


# -- fields of records that others wrote
# ------------------------------------------------------------------------

# Whole numbers up to here are exact as float64.
MAX_EXACT_INT = 2**53


def is_sample(record: Any) -> bool:
    return isinstance(record, dict) and as_array(record) is None and any(map(_is_name, record))


def _is_name(key: Any) -> bool:
    """True if a key can be the name of a field; others are left out."""
    return bool(key) and isinstance(key, str) and "\0" not in key


def infer(records: Sequence[dict[Any, Any]]) -> Schema:
    """The fields of these maps, in the order in which they first appear."""
    records = [{_key_text(key): value for key, value in record.items()} for record in records]
    names = dict.fromkeys(key for record in records for key in record if _is_name(key))
    return Schema({name: field_of([record.get(name) for record in records]) for name in names})


def _key_text(key: Any) -> Any:
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
    present = [array for array in arrays if array is not None]
    # A list without an element could have any rank and dtype.
    telling = [array for array in present if not lists or array.size or array.ndim > 1]
    if len(present) < len(values) or not telling:
        return None
    dtypes = {array.dtype.newbyteorder("=") for array in telling}
    mixed = len(dtypes) > 1 and (not lists or np.dtype(bool) in dtypes)
    if mixed or len({array.ndim for array in telling}) > 1:
        return None
    sizes = [{array.shape[axis] for array in telling} for axis in range(telling[0].ndim)]
    shape = [lengths.pop() if len(lengths) == 1 else None for lengths in sizes]
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
    if array.dtype.kind == "f" and _has_kind(value, int) and np.abs(array).max(initial=0) > MAX_EXACT_INT:
        return None
    return None if array.dtype.kind in "iu" and _has_kind(value, bool) else array


def _has_kind(value: Any, kind: type) -> bool:
    if isinstance(value, list):
        return any(_has_kind(element, kind) for element in value)
    return type(value) is kind


def _plain_field(values: Sequence[Any]) -> Field:
    kinds = {type(value) for value in values}
    if kinds == {int, float} and any(abs(v) > MAX_EXACT_INT for v in values if isinstance(v, int)):
        return Json()
    if kinds in ({bool}, {str}) or (kinds and kinds <= {int, float}):
        return infer_field(values)
    try:
        for value in values:
            json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return Bytes()
    return Json()


# A value's length has 32 bits, and includes an array's header.
MAX_VALUE_BYTES = 2**32 - 4096


def key_of(name: str) -> bytes:
    try:
        return name.encode()
    except UnicodeEncodeError:
        raise SchemaError("the name of the field is not valid text", field=name) from None


# -- packing -----------------------------------------------------------------------------------------------


def pack(schema: Schema, columns: Columns, *, numpy: bool = False) -> Ragged:
    """Return one map for each sample. ``numpy``: arrays as msgpack-numpy writes them."""
    names = list(schema)
    parts = [_part(name, schema[name], columns[name], numpy) for name in names]
    data, offsets, failure = _native.msgpack_pack(columns.rows, parts)
    if failure is not None:
        row, number, reason = failure
        raise EncodeError(reason, sample=row, field=names[number])
    return Ragged(data, offsets)


def unfit(columns: Columns) -> dict[int, BatchplantError]:
    """Return row → error for cells that are too large."""
    errors: dict[int, BatchplantError] = {}
    for name, column in columns.items():
        for row in np.flatnonzero(column_runs(column)[2] > MAX_VALUE_BYTES):
            errors[int(row)] = EncodeError("MessagePack holds no value of 4 GiB or more", field=name)
    return errors


def _part(name: str, field: Field, column: Column, numpy: bool) -> tuple[Any, ...]:
    """Return a column as the native packer takes it."""
    data, starts, sizes = column_runs(column)
    key = key_of(name)
    headed: U8 | None = None
    dtype: AnyDType = np.dtype(getattr(field, "dtype", "bool"))
    if isinstance(field, Int | Bool) or is_short(field):
        if dtype == np.float16:
            data, starts = _widened(data, starts, sizes)
            sizes, dtype = np.where(sizes < 0, sizes, 4), np.dtype(np.float32)
        return key, dtype.kind, dtype.itemsize, data, starts, sizes, None, 0, None
    if isinstance(field, Image):
        shape = column.shape if isinstance(column, Ragged) else None
        if shape is None or not shape.any():
            return key, "x", 0, data, starts, sizes, None, 0, None
        headed = np.asarray(shape.any(axis=1)).view(np.uint8)
        shapes, dtype = shape.astype(np.int64), PIXELS
    elif isinstance(field, Tensor | Float):
        with located(field=name):
            starts, sizes, headed, shapes = _shaped(field, data, starts, sizes)
    else:
        mode = "s" if isinstance(field, Text | Json) else "x"
        return key, mode, 0, data, starts, sizes, None, 0, None
    heads = _heads(dtype, shapes, numpy)
    return key, "n" if numpy else "e", 0, data, starts, sizes, as_bytes(heads), heads.shape[1], headed


def _widened(data: U8, starts: I64, sizes: I64) -> tuple[U8, I64]:
    """Widen numbers of 2 bytes to 4."""
    present = np.flatnonzero(sizes >= 0)
    if (wrong := sizes[present] != 2).any():
        raise EncodeError("the size of the cell does not match its dtype", sample=present[np.argmax(wrong)])
    values = gathered(data, starts[present], sizes[present]).data.view(np.float16).astype(np.float32)
    new_starts = np.zeros(len(starts), dtype=np.int64)
    new_starts[present] = np.arange(len(present)) * 4
    return as_bytes(values), new_starts


def _shaped(field: Tensor | Float, data: U8, starts: I64, sizes: I64) -> tuple[I64, I64, U8 | None, I64]:
    """Return starts and sizes of the values of arrays, which have a header, and their shapes."""
    shape = field.shape if isinstance(field, Tensor) else ()
    if isinstance(field, Tensor) and field.cell is None and not field.flat:
        return _shaped_npy(field, data, starts, sizes)
    shapes = np.empty((len(starts), len(shape)), dtype=np.int64)
    stride = np.dtype(field.dtype).itemsize
    for axis in range(len(shape) - 1, -1, -1):
        size = shape[axis]
        shapes[:, axis] = np.maximum(sizes, 0) // stride if size is None else size
        stride *= 1 if size is None else size
    expected = shapes.prod(axis=1) * np.dtype(field.dtype).itemsize
    if (wrong := (expected != sizes) & (sizes >= 0)).any():
        row = int(np.argmax(wrong))
        raise EncodeError(f"{sizes[row]} bytes are not {field}", sample=row)
    return starts, sizes, None, shapes


def _shaped_npy(field: Tensor, data: U8, starts: I64, sizes: I64) -> tuple[I64, I64, U8, I64]:
    """Return the same for NPY cells; a cell that we would write otherwise stays whole, without a header."""
    starts, sizes = starts.copy(), sizes.copy()
    shapes = np.zeros((len(starts), len(field.shape)), dtype=np.int64)
    headed = np.zeros(len(starts), dtype=np.uint8)
    for row in np.flatnonzero(sizes >= 0):
        cell = data[starts[row] : starts[row] + sizes[row]]
        try:
            header = npy.parse_header(cell[: npy.MAX_HEADER_BYTES + 12].tobytes())
        except DamagedError as error:
            raise EncodeError(error.message, sample=int(row)) from None
        plain = npy.header_bytes(np.dtype(field.dtype), header.shape)
        if cell[: header.start].tobytes() == plain and field.fits(header.shape):
            if header.size != len(cell) - header.start:
                raise EncodeError("the shape of the array does not match its bytes", sample=int(row))
            shapes[row], headed[row] = header.shape, 1
            starts[row] += header.start
            sizes[row] -= header.start
    return starts, sizes, headed, shapes


def _heads(dtype: AnyDType, shapes: I64, numpy: bool) -> U8:
    """Return the headers of the arrays; equally long for all."""
    rows, rank = shapes.shape
    text = dtype.newbyteorder("<").str.encode()
    if numpy:
        before = (
            b"\x85\xc4\x02nd\xc3\xc4\x04type" + bytes([0xA0 | len(text)]) + text + b"\xc4\x04kind\xc4\x00"
        )
        before += b"\xc4\x05shape" + (bytes([0x90 | rank]) if rank < 16 else b"\xdc\x00" + bytes([rank]))
        sizes = np.empty((rows, rank, 9), dtype=np.uint8)
        sizes[:, :, 0] = 0xCF
        sizes[:, :, 1:] = as_bytes(shapes.astype(">u8")).reshape(rows, rank, 8)
        after = b"\xc4\x04data"
    else:
        before, after = bytes([len(text)]) + text + bytes([rank]), b""
        sizes = as_bytes(shapes.astype("<u8"))
    parts = (as_bytes(before), sizes.reshape(rows, -1 if rank else 0), as_bytes(after))
    return np.concatenate([np.broadcast_to(part, (rows, part.shape[-1])) for part in parts], axis=1)


# -- unpacking ---------------------------------------------------------------------------------------------


def unpack(
    schema: Schema,
    fields: Sequence[str],
    data: U8,
    starts: I64,
    sizes: I64,
    *,
    bare: bool = False,
    foreign: bool = False,
) -> Columns:
    """Return the cells of these fields in the records ``data[start:start + size]``.

    An error's ``sample`` is the row, its ``offset`` one in ``data``. ``bare``: a record is no map but the
    value of the only field. ``foreign``: text in a Json field is a value, not the JSON text that we write.
    """
    columns = Columns()
    for name, values in _find(fields, data, starts, sizes, bare):
        with located(field=name):
            columns[name] = column(schema[name], values, foreign)
    return columns


def find(
    schema: Schema,
    field: str,
    data: U8,
    starts: I64,
    sizes: I64,
    *,
    bare: bool = False,
    foreign: bool = False,
) -> Runs | None:
    """Return the runs of a field's cells in ``data``; None if they are no plain runs. Otherwise as unpack."""
    kind = schema[field]
    if isinstance(kind, Int | Float | Bool):
        return None
    with located(field=field):
        [(_, values)] = _find([field], data, starts, sizes, bare)
        check_missing(kind, values)
        if isinstance(kind, Tensor):
            located_arrays = _locate_arrays(kind, values)
            if located_arrays is None or (kind.cell is None and not kind.flat):
                return None
            return located_arrays[0], np.where(values.missing, -1, located_arrays[1]), None
        return runs(kind, values, foreign)


def _find(
    fields: Sequence[str], data: U8, starts: I64, sizes: I64, bare: bool
) -> Iterator[tuple[str, Values]]:
    keys = None if bare else [key_of(name) for name in fields]
    starts, sizes = np.ascontiguousarray(starts), np.ascontiguousarray(sizes)
    info, start, size, failure = _native.msgpack_find(data, starts, sizes, keys)
    if failure is not None:
        raise DamagedError(failure[2], sample=failure[0], offset=failure[1])
    for number, name in enumerate(fields):
        yield name, Values(data, info[number], start[number], size[number])
