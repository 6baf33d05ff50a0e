"""A whole sample as one MessagePack map, for formats that keep one run of bytes for each sample.

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

See :mod:`.msgpack` for what reading accepts besides. Keys that are not needed are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .. import _native
from ..errors import BatchplantError, DamagedError, EncodeError, SchemaError, located
from ..schema import Bool, Field, Float, Image, Int, Json, Schema, Tensor, Text
from ..schema.columns import I64, U8, AnyDType, Column, Columns, Ragged, as_bytes, column_runs
from . import msgpack, npy
from .msgpack import PIXELS, Runs, Values

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
    if isinstance(field, Int | Bool) or msgpack.is_short(field):
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
    values = msgpack.gathered(data, starts[present], sizes[present]).data.view(np.float16).astype(np.float32)
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
            columns[name] = msgpack.column(schema[name], values, foreign)
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
        msgpack.check_missing(kind, values)
        if isinstance(kind, Tensor):
            runs = msgpack.array_runs(kind, values)
            return None if runs is None or not (kind.cell is not None or kind.flat) else (*runs, None)
        return msgpack.runs(kind, values, foreign)


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
