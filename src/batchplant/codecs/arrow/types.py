"""Fields as Arrow types."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import schema as kinds
from ...errors import needs
from ...schema import Field, Schema
from ...schema.columns import AnyDType

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
