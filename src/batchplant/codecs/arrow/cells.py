"""Arrow arrays to cells and back, without a copy where both lay them out alike. Every offset is checked."""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
import math
import secrets
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import schema as kinds
from ...errors import BatchplantError, DecodeError, EncodeError, MissingLibraryError, exceptions_as
from ...schema import Field, Json, List, Schema, Struct
from ...schema.columns import (
    I64,
    AnyArray,
    AnyDType,
    Column,
    Columns,
    Flags,
    Ragged,
    as_bytes,
    concat_columns,
    starts_of,
)
from ...storage import limits
from .. import nested, scalars
from ..media.image_rules import ImageOptions, ImageTarget, conform
from ..scalars import decimal_text
from .hugging_face import as_type, featured_schema
from .types import (
    arrow_schema,
    bitmap,
    flags_of,
    hexed,
    is_any_list,
    is_binary,
    is_file_struct,
    is_list,
    is_text,
    numbers,
    plain_size,
    pyarrow,
    scalar_type,
    storage,
    time_dtype,
    unhex,
    valid_of,
    view_of,
)

if TYPE_CHECKING:
    import pyarrow as pa


def from_arrow(schema: Schema, fields: Sequence[str], table: pa.Table) -> Columns:
    """The cells of these fields in a table or record batch; an error names the row as its sample."""
    return Columns.read(fields, lambda name: column_of(schema[name], table.column(name)))


def column_of(field: Field, array: pa.Array) -> Column:
    """The cells of an Arrow array, or of a chunked one."""
    pa = pyarrow()
    if isinstance(array, pa.ChunkedArray):
        parts, first = [], 0
        for chunk in array.chunks or [pa.nulls(0, array.type)]:
            try:
                parts.append(_column(field, chunk))
            except BatchplantError as error:
                error.sample = None if error.sample is None else error.sample + first
                raise
            first += len(chunk)
        return concat_columns(parts)
    return _column(field, array)


def _column(field: Field, array: pa.Array) -> Column:
    pa = pyarrow()
    # ValueError: a buffer that is too small, a name that is no UTF-8.
    with exceptions_as(DecodeError, f"not {field}", pa.ArrowException, ValueError):
        # Sizes of buffers, first and last offsets: what pyarrow itself follows without looking.
        array.validate()
        if isinstance(field, kinds.List | kinds.Struct) and not is_text(_packed(array.type)):
            if array.null_count and not field.optional:
                raise _missing(array)
            return _nested_documents(field, array)
        array = _plain(array)
        is_time = isinstance(field, kinds.Tensor) and not field.shape and np.dtype(field.dtype).kind in "mM"
        if array.null_count and not field.optional and not is_time:
            raise _missing(array)
        if isinstance(field, kinds.Time | kinds.Duration):
            return _number_column(field, *_counts(field, array))
        if isinstance(field, kinds.Tensor):
            return _tensor(field, array)
        if isinstance(field, kinds.Int | kinds.Float | kinds.Bool):
            return _number_column(field, *_values(array, np.dtype(getattr(field, "dtype", "bool"))))
        return _ragged(field, array)


def _missing(array: pa.Array) -> DecodeError:
    row = int(np.argmin(array.is_valid().to_numpy(zero_copy_only=False)))
    return DecodeError("the value is missing, and the field is not optional", sample=row)


def _packed(kind: pa.DataType) -> pa.DataType:
    """The type of what is packed."""
    types = pyarrow().types
    while types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        kind = kind.value_type
    return kind


def _counts(field: kinds.Time | kinds.Duration, array: pa.Array) -> tuple[AnyArray, Flags | None]:
    """Times as counts of the field's unit. Whole numbers are such counts."""
    pa = pyarrow()
    types, kind, want = pa.types, array.type, storage(field)
    valid = _valid(array)
    if types.is_timestamp(kind) and types.is_timestamp(want):
        # The count is that of UTC, whatever the zone.
        want = pa.timestamp(field.unit, kind.tz)
    if types.is_integer(kind) or types.is_decimal(kind) or types.is_null(kind):
        want = pa.int64()
    if kind != want:
        array = array.cast(want)
    return view_of(array, np.dtype(np.int32 if want.bit_width == 32 else np.int64)).astype(np.int64), valid


def _plain(array: pa.Array) -> pa.Array:
    """The array without the types that only say how it is packed."""
    pa = pyarrow()
    types = pa.types
    while True:
        kind = array.type
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        elif types.is_dictionary(kind):
            array.validate(full=True)
            _check_size(array)
            # The library cannot decode views of text, only what they become.
            array = pa.DictionaryArray.from_arrays(
                array.indices, _plain(array.dictionary)
            ).dictionary_decode()
        elif types.is_run_end_encoded(kind):
            import pyarrow.compute as pc

            array.validate(full=True)
            _check_size(array)
            ends, values = array.run_ends, _plain(array.values)
            packed = pa.run_end_encoded(ends.type, values.type)
            array = pc.run_end_decode(
                pa.RunEndEncodedArray.from_buffers(
                    packed, len(array), [None], 0, array.offset, children=[ends, values]
                )
            )
        elif types.is_string_view(kind) or types.is_binary_view(kind):
            array.validate(full=True)
            _check_size(array)
            array = array.cast(pa.large_string() if types.is_string_view(kind) else pa.large_binary())
        elif types.is_list_view(kind) or types.is_large_list_view(kind):
            array.validate(full=True)
            _check_size(array)
            array = _as_lists(array)
        elif is_file_struct(kind):
            names = [field.name for field in kind]
            array = array.flatten()[names.index("bytes")]
        else:
            return array


def _check_size(array: pa.Array) -> None:
    """DamagedError where a few values are taken so often that they become too many bytes."""
    limits.check("its column", plain_size(array), array.get_total_buffer_size())


def _as_lists(array: pa.Array) -> pa.Array:
    """A list view as lists one after another; the library's own cast gives wrong offsets."""
    pa = pyarrow()
    wide = np.dtype(np.int64 if pa.types.is_large_list_view(array.type) else np.int32)
    sizes = np.zeros(0, np.int64)
    if len(array):
        sizes = np.frombuffer(array.buffers()[2], wide, len(array), array.offset * wide.itemsize)
    valid = _valid(array)
    offsets = starts_of(sizes if valid is None else np.where(valid, sizes, 0))
    buffers = [bitmap(valid), pa.py_buffer(offsets)]
    kind = pa.large_list(array.type.value_field)
    return pa.Array.from_buffers(kind, len(array), buffers, children=[array.flatten()])


def _valid(array: pa.Array) -> Flags | None:
    return valid_of(array) if array.null_count else None


def _values(array: pa.Array, dtype: AnyDType) -> tuple[AnyArray, Flags | None]:
    """One number for each row, zero where it is missing."""
    pa = pyarrow()
    kind = array.type
    want = pa.from_numpy_dtype(dtype) if dtype.kind not in "mM" else scalar_type(dtype)
    valid = _valid(array)
    if pa.types.is_temporal(kind) and dtype.kind in "mM" and time_dtype(kind) == dtype:
        width = np.dtype(np.int32 if kind.bit_width == 32 else np.int64)
        values = view_of(array, width).astype(np.int64).view(dtype)
        return values, valid
    if kind != want:
        array = array.cast(want)
    if pa.types.is_boolean(want):
        flags = flags_of(array)
        return (flags if valid is None else flags & valid), valid
    return view_of(array, dtype), valid


def _number_column(field: Field, values: AnyArray, valid: Flags | None) -> Column:
    """Numbers as an array, or as the cells of an optional field."""
    if not field.optional:
        return values
    return _maybe(values if valid is None else values[valid], valid, len(values), values.dtype.itemsize)


def _maybe(present: AnyArray, valid: Flags | None, count: int, width: int) -> Ragged:
    """Cells of ``width`` bytes where they are there, and of none where they are missing."""
    sizes = np.full(count, width, dtype=np.int64) if valid is None else valid * np.int64(width)
    return Ragged(as_bytes(present), starts_of(sizes), valid=valid)


def _ragged(field: Field, array: pa.Array) -> Ragged:
    """Bytes, text, documents and encoded media."""
    pa = pyarrow()
    kind = array.type
    if isinstance(field, kinds.Json) and not is_text(kind):
        return _documents(array)
    if isinstance(field, kinds.Uuid) and is_binary(kind):
        return hexed(_runs(array))
    if isinstance(field, kinds.Decimal) and not is_text(kind):
        return _digits(field, array)
    if isinstance(field, kinds.Text | kinds.Json) and not is_text(kind):
        array = array.cast(pa.large_string())
    elif isinstance(field, kinds.Bytes | kinds.Image | kinds.Audio | kinds.Video) and not is_binary(kind):
        array = array.cast(pa.large_binary())
    return _runs(array)


def _digits(field: kinds.Decimal, array: pa.Array) -> Ragged:
    """The digits of decimals, or of whole numbers; the library writes small ones with an exponent."""
    want = storage(field)
    texts = _runs((array if array.type == want else array.cast(want)).cast(pyarrow().large_string()))
    if not (texts.data[texts.offsets[0] : texts.offsets[-1]] == ord("E")).any():
        return texts
    cells = (None if cell is None else cell.tobytes().decode() for cell in texts)
    return Ragged.from_cells([None if text is None else decimal_text(field, text).encode() for text in cells])


def _runs(array: pa.Array) -> Ragged:
    """The cells of a string or binary array, every offset checked."""
    pa = pyarrow()
    count, kind = len(array), array.type
    if not is_binary(kind) and not is_text(kind):
        raise DecodeError(f"{kind} holds no bytes")
    valid = _valid(array)
    if not count:
        return Ragged(np.empty(0, np.uint8), np.zeros(1, np.int64))
    if pa.types.is_fixed_size_binary(kind):
        width = kind.byte_width
        offsets = np.arange(count + 1, dtype=np.int64) * width
        size = count * width
        data = np.frombuffer(array.buffers()[1], np.uint8, size, array.offset * width) if size else _EMPTY
    else:
        wide = np.dtype(
            np.int64 if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind) else np.int32
        )
        offsets = np.frombuffer(array.buffers()[1], wide, count + 1, array.offset * wide.itemsize)
        buffer = array.buffers()[2]
        data = _EMPTY if buffer is None or not buffer.size else np.frombuffer(buffer, np.uint8)
        if offsets[0] < 0 or offsets[-1] > len(data) or (offsets[1:] < offsets[:-1]).any():
            raise DecodeError("the offsets of the values are damaged")
        data, offsets = data[offsets[0] : offsets[-1]], offsets - np.int64(offsets[0])
    cells = Ragged(data, offsets, valid=valid)
    if valid is not None and cells.sizes[~valid].any():
        # Arrow allows bytes under a missing value; a missing cell has none.
        present = cells.take(np.flatnonzero(valid))
        cells = Ragged(present.data, starts_of(np.where(valid, cells.sizes, 0)), valid=valid)
    return cells


_EMPTY = np.empty(0, dtype=np.uint8)


def _documents(array: pa.Array) -> Ragged:
    """Nested values as JSON text. Bytes, times and decimals become text."""
    array.validate(full=True)
    # Each value becomes an object of Python first.
    limits.check("its column", plain_size(array) + 16 * len(array), array.get_total_buffer_size())
    cells = [
        None if value is None else json.dumps(_plain_value(value)).encode() for value in array.to_pylist()
    ]
    return Ragged.from_cells(cells)


def _plain_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_value(inner) for inner in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def _tensor(field: kinds.Tensor, array: pa.Array) -> Column:
    dtype = np.dtype(field.dtype)
    if not field.shape and scalar_type(dtype) is not None:
        values, valid = _values(array, dtype)
        if not field.optional and valid is not None:
            values = np.where(valid, values, np.array("NaT", dtype))
        return _number_column(field, values, valid)
    if not is_any_list(array.type):
        return _raw_tensor(field, _runs(array))
    valid, count = _valid(array), len(array)
    sizes = None
    for axis, size in enumerate(field.shape):
        inner_shape = field.shape[axis:]
        if None not in inner_shape and is_any_list(array.type) and not is_any_list(array.type.value_type):
            # All that is left may stand in one list: Arrow's own tensors do so.
            array, counts = _unlist(array, math.prod(size for size in inner_shape if size is not None))
            sizes = counts if axis == 0 else sizes
            break
        array, counts = _unlist(array, size)
        if axis == 0:
            sizes = counts
        if array.null_count and is_any_list(array.type):
            raise DecodeError("a list inside of a list is missing; open it with schema={…: Json()}")
    values, inner = _values(_plain(array), dtype)
    if inner is not None:
        if dtype.kind != "f":
            raise DecodeError("a number inside of a list is missing; open it with schema={…: Json()}")
        values = np.where(inner, values, np.array(np.nan, dtype))
    if field.shape[0] is not None:
        cell_shape = [size for size in field.shape if size is not None]
        if field.optional:
            return _maybe(values, valid, count, dtype.itemsize * math.prod(cell_shape))
        return values.reshape(count, *cell_shape)
    assert sizes is not None
    width = dtype.itemsize * math.prod(size for size in field.shape[1:] if size is not None)
    return Ragged(as_bytes(values), starts_of(sizes * width), valid=valid)


def _unlist(array: pa.Array, size: int | None) -> tuple[Any, I64]:
    """The values of a list array without its missing ones, and how many each list has."""
    pa = pyarrow()
    if not is_any_list(array.type):
        raise DecodeError(f"it has fewer axes than its field: {array.type}")
    if pa.types.is_fixed_size_list(array.type):
        sizes = np.full(len(array), array.type.list_size, dtype=np.int64)
    else:
        wide = np.dtype(np.int64 if pa.types.is_large_list(array.type) else np.int32)
        offsets = np.zeros(1, wide)
        if len(array):
            offsets = np.frombuffer(array.buffers()[1], wide, len(array) + 1, array.offset * wide.itemsize)
        if offsets[0] < 0 or offsets[-1] > len(array.values) or (offsets[1:] < offsets[:-1]).any():
            raise DecodeError("the offsets of the lists are damaged")
        sizes = np.diff(offsets).astype(np.int64)
    valid = _valid(array)
    if valid is not None:
        sizes = np.where(valid, sizes, 0)
    if size is not None and ((sizes != size) & (True if valid is None else valid)).any():
        row = int(np.argmax((sizes != size) & (True if valid is None else valid)))
        raise DecodeError(f"a list has {sizes[row]} values where the field says {size}", sample=row)
    return array.flatten(), sizes


def _raw_tensor(field: kinds.Tensor, cells: Ragged) -> Column:
    """Values that are kept as bytes."""
    if field.cell is None:
        return cells
    dtype, shape = field.cell
    width = dtype.itemsize * math.prod(shape)
    if (cells.sizes != width).any():
        row = int(np.argmax(cells.sizes != width))
        raise DecodeError(f"a tensor of {cells.sizes[row]} bytes where {width} are needed", sample=row)
    return cells.data.view(dtype).reshape(len(cells), *shape)


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
        for far in scalars.unfit_rows(field, column):
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
        return _array_of_documents(field, column)
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
        if len(scalars.beyond(field, counts)):
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


def _nested_documents(field: Field, array: pa.Array) -> Ragged:
    """The cells of a list or struct."""
    array.validate(full=True)
    # Each value becomes an object of Python first.
    limits.check("its column", plain_size(array) + 16 * len(array), array.get_total_buffer_size())
    objects = _objects(field, array)
    return Ragged.from_cells([None if value is None else nested.json_text(value) for value in objects])


def _objects(field: Field, array: pa.Array) -> list[Any]:
    if not isinstance(field, List | Struct):
        return nested.plains(field, _column(field, array))
    # The struct of a file stays one.
    array = array if is_file_struct(array.type) else _plain(array)
    is_valid = None if not array.null_count else valid_of(array).tolist()
    if is_valid is not None and not field.optional:
        raise DecodeError(f"a value inside is missing, and {field} is not optional")
    objects = _lists(field, array) if isinstance(field, List) else _structs(field, array, is_valid)
    if is_valid is None:
        return objects
    return [value if valid else None for value, valid in zip(objects, is_valid, strict=True)]


def _lists(field: List, array: pa.Array) -> list[Any]:
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
    values = _objects(dataclasses.replace(field.of, optional=True), inside)
    lists = [values[start:end] for start, end in itertools.pairwise(starts_of(sizes).tolist())]
    if not _may_be_null(field.of) and None in values:
        # Arrow allows values under a missing list.
        valid = array.is_valid().to_pylist()
        if any(None in values for values, is_valid in zip(lists, valid, strict=True) if is_valid):
            raise DecodeError(f"a value inside is missing, and {field.of} is not optional")
    return lists


def _structs(field: Struct, array: pa.Array, valid: list[bool] | None) -> list[Any]:
    names = [name for name, _ in field.fields]
    if not pyarrow().types.is_struct(array.type) or [arrow_field.name for arrow_field in array.type] != names:
        raise DecodeError(f"{array.type} where {field} is needed")
    columns = []
    for (name, inner), part in zip(field.fields, array.flatten(), strict=True):
        # Where the whole struct is missing, so are its values.
        objects = _objects(inner if valid is None else dataclasses.replace(inner, optional=True), part)
        if valid is not None and not _may_be_null(inner):
            _check_present(name, objects, valid)
        columns.append(objects)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _may_be_null(field: Field) -> bool:
    return field.optional or type(field) is Json


def _check_present(name: str, objects: Sequence[Any], is_valid: Sequence[bool]) -> None:
    if any(valid and value is None for value, valid in zip(objects, is_valid, strict=True)):
        raise DecodeError(f"a value {name!r} is missing in a struct, and it is not optional")


def _array_of_documents(field: Field, column: Ragged) -> pa.Array:
    """The Arrow array of the cells of a list or struct."""
    objects: list[Any] = []
    for row, cell in enumerate(column):
        try:
            objects.append(None if cell is None else json.loads(cell.tobytes()))
        except (ValueError, RecursionError) as error:
            raise EncodeError(f"not {field}: {error}", sample=row) from None
    return _nested_array(field, objects)


def _nested_array(field: Field, objects: Sequence[Any]) -> pa.Array:
    pa = pyarrow()
    if not isinstance(field, List | Struct):
        try:
            array = _array(field, nested.column_of(field, objects))
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
        values = _nested_array(field.of, [value for value in objects for value in value or ()])
        buffers = [valid, pa.py_buffer(starts_of(sizes))]
        return pa.Array.from_buffers(storage(field), len(objects), buffers, children=[values])
    children = []
    for name, inner in field.fields:
        values = [None if value is None else value.get(name) for value in objects]
        if not present.all() and not _may_be_null(inner):
            _check_present(name, values, present.tolist())
        nullable = inner if present.all() else dataclasses.replace(inner, optional=True)
        children.append(_nested_array(nullable, values))
    return pa.Array.from_buffers(storage(field), len(objects), [valid], children=children)
