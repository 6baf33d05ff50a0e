"""Fields as Arrow types."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import schema as kinds
from ...errors import DecodeError, EncodeError, needs
from ...schema import Field, Schema
from ...schema.columns import I64, U8, AnyArray, AnyDType, Flags, Ragged, starts_of

if TYPE_CHECKING:
    import pyarrow as pa


KEY = b"batchplant"
_UNITS = ("s", "ms", "us", "ns")


def pyarrow() -> Any:
    """The library, imported when it is first needed."""
    with needs("tables need pyarrow", "arrow"):
        import pyarrow
    return pyarrow


def refuses(field: Field) -> str | None:
    """Why Arrow cannot hold a field; None where it can."""
    if isinstance(field, kinds.Float) and np.dtype(field.dtype).itemsize > 8:
        return f"Arrow has no type for {field.dtype}"
    return None


def is_list(field: kinds.Tensor) -> bool:
    """True if a tensor is stored as lists of numbers, which every program understands."""
    dtype = np.dtype(field.dtype)
    listed = dtype.kind in "biuf" and dtype.itemsize <= 8 and 0 not in field.shape
    # Arrow counts the values of a list in int32.
    narrow = all((size or 0) < 1 << 31 for size in field.shape)
    return listed and narrow and bool(field.shape) and None not in field.shape[1:]


def storage(field: Field) -> pa.DataType:
    """The Arrow type that a field is stored as."""
    pa = pyarrow()
    if isinstance(
        field, kinds.Time | kinds.Duration | kinds.Decimal | kinds.Uuid | kinds.List | kinds.Struct
    ):
        return _narrow_type(field)
    if isinstance(field, kinds.Int | kinds.Float):
        return pa.from_numpy_dtype(np.dtype(field.dtype))
    if isinstance(field, kinds.Bool):
        return pa.bool_()
    if isinstance(field, kinds.Text | kinds.Json):
        return pa.large_string()
    if isinstance(field, kinds.Tensor):
        if not field.shape:
            return scalar_type(np.dtype(field.dtype)) or pa.large_binary()
        if is_list(field):
            kind = pa.from_numpy_dtype(np.dtype(field.dtype))
            for size in field.shape[:0:-1]:
                kind = pa.list_(kind, size)
            return pa.large_list(kind) if field.shape[0] is None else pa.list_(kind, field.shape[0])
    return pa.large_binary()


def _narrow_type(field: Field) -> pa.DataType:
    pa = pyarrow()
    if isinstance(field, kinds.Duration):
        return pa.duration(field.unit)
    if isinstance(field, kinds.Time):
        if field.unit == "D":
            return pa.date32()
        if field.clock:
            return pa.time32(field.unit) if field.unit in ("s", "ms") else pa.time64(field.unit)
        return pa.timestamp(field.unit, field.tz)
    if isinstance(field, kinds.Decimal):
        # What no table can name is its digits.
        if not 0 <= field.scale <= field.precision:
            return pa.large_string()
        return (pa.decimal128 if field.precision <= 38 else pa.decimal256)(field.precision, field.scale)
    if isinstance(field, kinds.Uuid):
        return pa.uuid()
    if _is_empty(field):
        return pa.large_string()
    if isinstance(field, kinds.List):
        return pa.large_list(_inside(field.of))
    assert isinstance(field, kinds.Struct)
    # In a struct that is missing, so are its values: to Parquet all of them may be.
    return pa.struct([(name, _inside(inner)) for name, inner in field.fields])


def _inside(field: Field) -> pa.DataType:
    """The type of a value in a list or struct: there the library cannot handle types of UUIDs."""
    return pyarrow().binary(16) if isinstance(field, kinds.Uuid) else storage(field)


def _is_empty(field: Field) -> bool:
    """True if it holds a struct without fields: Parquet has none, so all of it is JSON text."""
    if isinstance(field, kinds.List):
        return _is_empty(field.of)
    return isinstance(field, kinds.Struct) and (
        not field.fields or any(_is_empty(inner) for _, inner in field.fields)
    )


def scalar_type(dtype: AnyDType) -> pa.DataType | None:
    """The Arrow type of single values of a dtype; None where it has none."""
    pa = pyarrow()
    if dtype.kind in "mM":
        unit, step = np.datetime_data(dtype)
        if dtype.kind == "M" and (unit, step) == ("D", 1):
            return pa.date32()
        if unit not in _UNITS or step != 1:
            return None
        return pa.timestamp(unit) if dtype.kind == "M" else pa.duration(unit)
    return pa.from_numpy_dtype(dtype) if dtype.kind in "biuf" and dtype.itemsize <= 8 else None


def arrow_field(name: str, field: Field) -> pa.Field:
    """The Arrow field of one of ours, with its description in the metadata."""
    kind = storage(field)
    described = json.dumps(field.to_json(), ensure_ascii=False).encode()
    # A time that is NaT is a null to everybody else.
    nullable = field.optional or (isinstance(field, kinds.Tensor) and np.dtype(field.dtype).kind in "mM")
    return pyarrow().field(name, kind, nullable=nullable, metadata={KEY: described})


def arrow_schema(schema: Schema) -> pa.Schema:
    return pyarrow().schema([arrow_field(name, field) for name, field in schema.items()])


# -- what types are -----------------------------------------------------------------------------------------


def is_file_struct(kind: pa.DataType) -> bool:
    """True for Hugging Face's image or sound: the bytes of a file, and its name."""
    types = pyarrow().types
    if not types.is_struct(kind) or sorted(field.name for field in kind) != ["bytes", "path"]:
        return False
    return is_binary(kind.field("bytes").type)


def is_binary(kind: pa.DataType) -> bool:
    types = pyarrow().types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)) or (
        types.is_binary_view(kind)
    )


def is_text(kind: pa.DataType) -> bool:
    types = pyarrow().types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_any_list(kind: pa.DataType) -> bool:
    types = pyarrow().types
    listed = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(listed or types.is_list_view(kind) or types.is_large_list_view(kind))


def time_dtype(kind: pa.DataType) -> AnyDType:
    """The dtype of points in time and of spans of it."""
    types = pyarrow().types
    if types.is_date(kind):
        return np.dtype("datetime64[D]" if types.is_date32(kind) else "datetime64[ms]")
    return np.dtype(f"{'datetime64' if types.is_timestamp(kind) else 'timedelta64'}[{kind.unit}]")


# Where the digits of a UUID stand; dashes are between them.
_DIGITS = np.array([n for n in range(36) if n not in (8, 13, 18, 23)])


def numbers(values: AnyArray) -> pa.Array:
    """Numbers, or flags, as an array."""
    pa = pyarrow()
    data = _bits(values) if values.dtype == np.bool_ else np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(data)])


def bitmap(valid: Flags | None) -> pa.Buffer | None:
    """The buffer that tells which values are there; None where all are."""
    return None if valid is None or valid.all() else pyarrow().py_buffer(_bits(valid))


def _bits(flags: Flags) -> U8:
    return np.packbits(flags, bitorder="little")


def view_of(array: pa.Array, dtype: AnyDType) -> AnyArray:
    """The values of an array of numbers where they lie."""
    data = array.buffers()[1]
    if not len(array):
        return np.empty(0, dtype)
    return np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize)


def flags_of(array: pa.Array) -> Flags:
    """Booleans, of which those that are missing may be either."""
    if not len(array):
        return np.zeros(0, np.bool_)
    first, skipped = divmod(array.offset, 8)
    count = skipped + len(array)
    bits = np.frombuffer(array.buffers()[1], np.uint8, -(-count // 8), first)
    return np.unpackbits(bits, count=count, bitorder="little")[skipped:].view(np.bool_)


def valid_of(array: pa.Array) -> Flags:
    """Flags of the values that are not missing."""
    return flags_of(array.is_valid())


def hexed(cells: Ragged) -> Ragged:
    """The text of UUIDs of 16 bytes."""
    present = cells.sizes > 0
    if (cells.sizes[present] != 16).any():
        raise DecodeError("a UUID has 16 bytes", sample=int(np.argmax(present & (cells.sizes != 16))))
    digits = cells.data[cells.offsets[0] : cells.offsets[-1]].tobytes().hex().encode()
    text = np.full((len(digits) // 32, 36), ord("-"), dtype=np.uint8)
    text[:, _DIGITS] = np.frombuffer(digits, dtype=np.uint8).reshape(-1, 32)
    return Ragged(text.reshape(-1), starts_of(present * np.int64(36)), valid=cells.valid)


def unhex(cells: Ragged) -> Ragged:
    """The 16 bytes of UUIDs by their text; a missing one takes its room, as in Arrow."""
    present = np.ones(len(cells), dtype=np.bool_) if cells.valid is None else cells.valid
    wrong = cells.sizes != np.where(present, 36, 0)
    if wrong.any():
        raise EncodeError("a UUID has 36 letters", sample=int(np.argmax(wrong)))
    text = cells.data[cells.offsets[0] : cells.offsets[-1]].reshape(-1, 36)
    digits = text[:, _DIGITS]
    is_digit = np.isin(digits, np.frombuffer(b"0123456789abcdefABCDEF", dtype=np.uint8))
    if not is_digit.all():
        row = int(np.flatnonzero(present)[np.argmin(is_digit.all(axis=1))])
        raise EncodeError("a UUID consists of the digits 0 to f", sample=row)
    uuids: U8 = np.zeros((len(cells), 16), dtype=np.uint8)
    uuids[present] = np.frombuffer(bytes.fromhex(digits.tobytes().decode()), dtype=np.uint8).reshape(-1, 16)
    return Ragged(uuids.reshape(-1), np.arange(len(cells) + 1, dtype=np.int64) * 16, valid=cells.valid)


def plain_size(array: pa.Array) -> int:
    """The bytes of an array, or of a chunked one, as plain values. Its indices were checked."""
    pa = pyarrow()
    types = pa.types
    if isinstance(array, pa.ChunkedArray):
        return sum(plain_size(chunk) for chunk in array.chunks)
    if isinstance(array, pa.ExtensionArray):
        return plain_size(array.storage)
    kind = array.type
    if types.is_dictionary(kind):
        indices = array.indices.drop_null().to_numpy(zero_copy_only=False).astype(np.int64)
        return _taken(array.dictionary, np.bincount(indices, minlength=len(array.dictionary)))
    if types.is_run_end_encoded(kind):
        ends = np.clip(array.run_ends.to_numpy().astype(np.int64) - array.offset, 0, len(array))
        return _taken(array.values, np.diff(ends, prepend=0))
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        wide = np.int32 if types.is_list_view(kind) else np.int64
        lengths = np.frombuffer(array.buffers()[2] or b"", wide)[array.offset :][: len(array)]
        elements = int(np.where(valid_of(array), lengths, 0).astype(np.int64).sum())
        return elements * int(_sizes(array.values).max(initial=0)) + 8 * len(array)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return int(_sizes(array).sum())
    if types.is_map(kind):
        return plain_size(array.keys) + plain_size(array.items) + 8 * len(array)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return plain_size(array.flatten()) + 8 * len(array)
    if types.is_struct(kind) or types.is_union(kind):
        return len(array) + sum(plain_size(array.field(number)) for number in range(kind.num_fields))
    return max(int(array.nbytes), len(array))


def _taken(values: Any, counts: I64) -> int:
    """The bytes of values that are taken so many times each."""
    if not len(values):
        return 0
    sizes = _sizes(values)
    # Python's numbers do not overflow, and are slow.
    wide = int(sizes.max()) * int(counts.sum()) >= 2**62
    return int((sizes.astype(object) * counts).sum() if wide else (sizes * counts).sum())


def _sizes(values: Any) -> I64:
    """The bytes of each value; of a nested one at most so many."""
    kind, types = values.type, pyarrow().types
    if types.is_string_view(kind) or types.is_binary_view(kind):
        # Sixteen bytes each, the length first.
        views = np.frombuffer(values.buffers()[1] or b"", np.int32)[4 * values.offset :][
            : 4 * len(values) : 4
        ]
        return np.where(valid_of(values), views, 0).astype(np.int64) + 8
    if is_text(kind) or (is_binary(kind) and not types.is_fixed_size_binary(kind)):
        import pyarrow.compute as pc

        lengths: I64 = pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        return lengths + 8
    try:
        return np.full(len(values), (kind.bit_width + 7) // 8, dtype=np.int64)
    # Nested types have no width.
    except ValueError:
        return np.full(len(values), plain_size(values), dtype=np.int64)
