"""Cells to Arrow arrays, without a copy where both lay them out alike."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import schema as kinds
from ...errors import BatchplantError, EncodeError, MissingLibraryError
from ...schema import Field, Schema
from ...schema.columns import AnyArray, AnyDType, Column, Columns, Flags, Ragged, as_bytes, starts_of
from .. import times
from ..media.image_rules import ImageOptions, ImageTarget, conform
from . import nested
from .buffers import bitmap, numbers, unhex
from .hugging_face import as_type, featured_schema
from .types import arrow_schema, is_list, pyarrow, scalar_type, storage

if TYPE_CHECKING:
    import pyarrow as pa


def to_arrow(schema: Schema, columns: Columns, described: pa.Schema | None = None) -> pa.RecordBatch:
    """A record batch of these columns. ``described``: their ``arrow_schema``, where it is known already."""
    pa = pyarrow()
    arrays = []
    for name, field in schema.items():
        try:
            array = _array(field, columns[name])
            arrays.append(array if described is None else as_type(array, described.field(name).type))
        except pa.ArrowException as error:
            raise EncodeError(f"Arrow cannot hold it: {error}", field=name) from None
        except BatchplantError as error:
            raise error.at(field=name) from None
    return pa.RecordBatch.from_arrays(arrays, schema=described or arrow_schema(schema))


def table_of(schema: Schema, parts: Iterable[Columns], described: pa.Schema | None = None) -> pa.Table:
    """A table of all these columns; raw pixels become PNG. ``described``: another schema that it has."""
    described = described or arrow_schema(schema)
    batches = []
    for columns in parts:
        ready = Columns(columns)
        for name, field in schema.items():
            cells = columns[name]
            if isinstance(field, kinds.Image) and isinstance(cells, Ragged) and cells.shape is not None:
                ready[name], failed = conform(cells, ImageOptions(), ImageTarget(), np.arange(len(cells)))
                for _, error in failed:
                    raise error.at(field=name)
        batches.append(to_arrow(schema, ready, described))
    return pyarrow().Table.from_batches(batches, described)


def dataset_of(schema: Schema, parts: Iterable[Columns]) -> Any:
    """Return a dataset of datasets with all these columns, in memory."""
    try:
        import datasets
    except ImportError:
        raise MissingLibraryError("this needs datasets: pip install datasets") from None
    table = datasets.table.InMemoryTable(_extended(table_of(schema, parts, featured_schema(schema))))
    # Its name for caches of what is computed from it; else datasets hashes the table.
    return datasets.Dataset(table, fingerprint=secrets.token_hex(8))


def _extended(table: pa.Table) -> pa.Table:
    """Return the table with the registered types that the metadata of its columns name."""
    pa = pyarrow()
    schema = pa.ipc.read_schema(table.schema.serialize())
    columns = [
        pa.chunked_array(
            [pa.ExtensionArray.from_storage(field.type, chunk) for chunk in column.chunks], field.type
        )
        if isinstance(field.type, pa.BaseExtensionType) and column.type == field.type.storage_type
        else column
        for field, column in zip(schema, table.columns, strict=True)
    ]
    return pa.table(columns, schema=schema)


def unfit(schema: Schema, columns: Columns) -> dict[int, BatchplantError]:
    """Row → why Arrow cannot hold it: text that is no UTF-8, days beyond its calendar."""
    problems: dict[int, BatchplantError] = {}
    for name, field in schema.items():
        column = columns[name]
        if isinstance(field, kinds.Text | kinds.Json) and isinstance(column, Ragged):
            for row, error in _not_utf8(column):
                problems.setdefault(row, error.at(field=name))
            if type(field) not in (kinds.Text, kinds.Json):
                for row, error in _not_of(field, column):
                    problems.setdefault(row, error.at(field=name))
        for far in times.unfit_rows(field, column):
            problems.setdefault(far, EncodeError(f"the count is out of range for {field}", field=name))
        if isinstance(field, kinds.Tensor) and not field.shape and field.dtype == "datetime64[D]":
            days, valid = _numbers(column, np.dtype(np.int64))
            wrong = (np.abs(days) >= 2**31) & (days != np.iinfo(np.int64).min)
            for far in np.flatnonzero(wrong if valid is None else wrong & valid).tolist():
                problems.setdefault(far, EncodeError("the date is out of Arrow's range", field=name))
    return problems


def _not_of(field: Field, column: Ragged) -> Iterable[tuple[int, BatchplantError]]:
    """The rows that are none of their kind: no decimals, no UUIDs, lists of other values."""
    pa = pyarrow()
    try:
        _array(field, column)
        return
    except (pa.ArrowException, BatchplantError):
        pass
    for row in range(len(column)):
        try:
            _array(field, column.take(slice(row, row + 1)))
        except (pa.ArrowException, BatchplantError) as error:
            yield row, EncodeError(getattr(error, "message", str(error)))


def _not_utf8(column: Ragged) -> Iterable[tuple[int, BatchplantError]]:
    try:
        column.data[column.offsets[0] : column.offsets[-1]].tobytes().decode()
        # Characters must not reach over from one cell to the next.
        starts = column.starts[column.sizes > 0]
        if not ((column.data[starts] & 0xC0) == 0x80).any():
            return
    except UnicodeDecodeError:
        pass
    for row, cell in enumerate(column):
        try:
            (b"" if cell is None else cell.tobytes()).decode()
        except UnicodeDecodeError as error:
            yield row, EncodeError(f"not UTF-8: {error}")


def _array(field: Field, column: Column) -> pa.Array:
    pa = pyarrow()
    if isinstance(field, kinds.Time | kinds.Duration):
        return _time_array(field, *_numbers(column, np.dtype(np.int64)))
    if isinstance(field, kinds.Int | kinds.Float | kinds.Bool):
        values, valid = _numbers(column, np.dtype(getattr(field, "dtype", "bool")))
        return _number_array(storage(field), values, valid)
    if isinstance(field, kinds.Tensor):
        return _tensor_array(field, column)
    assert isinstance(column, Ragged)
    if column.shape is not None and column.shape.any():
        raise EncodeError("Arrow cannot hold raw pixels; encode the images first")
    kind = storage(field)
    if isinstance(field, kinds.List | kinds.Struct) and not pa.types.is_large_string(kind):
        return nested.array_of(field, column, _array)
    if isinstance(field, kinds.Uuid):
        return pa.ExtensionArray.from_storage(kind, _binary_array(pa.binary(16), unhex(column)))
    array = _binary_array(
        pa.large_string() if isinstance(field, kinds.Text | kinds.Json) else pa.large_binary(), column
    )
    return array if array.type == kind else array.cast(kind)


def _numbers(column: Column, dtype: AnyDType) -> tuple[AnyArray, Flags | None]:
    """One number for each row, and which are there."""
    if not isinstance(column, Ragged):
        return column.view(dtype) if column.dtype.kind in "mM" else column, None
    valid = column.valid
    sizes = column.sizes if valid is None else column.sizes[valid]
    if (sizes != dtype.itemsize).any():
        raise EncodeError(f"a cell is not {dtype.itemsize} bytes long")
    packed = column.data[column.offsets[0] : column.offsets[-1]].view(dtype)
    if valid is None or valid.all():
        return packed, None
    values = np.zeros(len(column), dtype)
    values[valid] = packed
    return values, valid


def _number_array(kind: pa.DataType, values: AnyArray, valid: Flags | None) -> pa.Array:
    pa = pyarrow()
    if values.dtype.kind in "mM":
        missing = np.isnat(values) if valid is None else np.isnat(values) | ~valid
        if kind == pa.date32():
            days = np.where(missing, 0, values.view(np.int64)).astype(np.int32)
            return pa.array(days, mask=missing).cast(kind)
        return pa.array(values.view(np.int64), mask=missing).cast(kind)
    return pa.array(values, kind, mask=None if valid is None else ~valid)


def _time_array(field: kinds.Time | kinds.Duration, counts: AnyArray, valid: Flags | None) -> pa.Array:
    kind = storage(field)
    if kind.bit_width == 32:
        if len(times.beyond(field, counts)):
            raise EncodeError(f"a count is out of range for {field}")
        counts = counts.astype(np.int32)
    buffers = [bitmap(valid), pyarrow().py_buffer(np.ascontiguousarray(counts))]
    return pyarrow().Array.from_buffers(kind, len(counts), buffers)


def _binary_array(kind: pa.DataType, column: Ragged) -> pa.Array:
    pa = pyarrow()
    if pa.types.is_fixed_size_binary(kind):
        return pa.Array.from_buffers(kind, len(column), [bitmap(column.valid), pa.py_buffer(column.data)])
    offsets, data = np.ascontiguousarray(column.offsets), np.ascontiguousarray(column.data)
    buffers = [bitmap(column.valid), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(column), buffers)


def _tensor_array(field: kinds.Tensor, column: Column) -> pa.Array:
    pa = pyarrow()
    dtype = np.dtype(field.dtype)
    if not field.shape and scalar_type(dtype) is not None:
        return _number_array(scalar_type(dtype), *_numbers(column, dtype))
    if not is_list(field):
        return _binary_array(pa.large_binary(), column if isinstance(column, Ragged) else _rows(column))
    inner_shape = [size for size in field.shape[1:] if size is not None]
    if not isinstance(column, Ragged):
        values, valid, sizes = column.reshape(-1), None, None
    else:
        values, valid = column.data[column.offsets[0] : column.offsets[-1]].view(dtype), column.valid
        sizes = column.sizes
    array = numbers(values)
    for size in reversed(inner_shape):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    if field.shape[0] is None:
        assert sizes is not None
        offsets = starts_of(sizes // (dtype.itemsize * math.prod(inner_shape)))
        buffers = [bitmap(valid), pa.py_buffer(offsets)]
        return pa.Array.from_buffers(storage(field), len(offsets) - 1, buffers, children=[array])
    if valid is None or valid.all():
        return pa.FixedSizeListArray.from_arrays(array, field.shape[0])
    # A fixed-size list takes its room also where it is missing.
    if not valid.any():
        return pa.nulls(len(valid), storage(field))
    first = field.shape[0]
    rows = np.maximum(np.cumsum(valid) - 1, 0)
    repeated = array.take(numbers((rows[:, None] * first + np.arange(first)).reshape(-1)))
    return pa.FixedSizeListArray.from_arrays(repeated, first, mask=numbers(~valid))


def _rows(array: AnyArray) -> Ragged:
    """A fixed-size column as bytes."""
    width = array.dtype.itemsize * math.prod(array.shape[1:])
    return Ragged(as_bytes(array), np.arange(len(array) + 1, dtype=np.int64) * width)
