"""Arrow types as these tables keep them: there are no unsigned numbers, half floats or fixed-size lists.

Every value has room in the wider type, and the field's description beside it says what it was.
"""

from __future__ import annotations

from typing import Any

from ....codecs import arrow
from ....schema import Schema


def stored_schema(schema: Schema, *, small: bool, zone: str | None) -> Any:
    """The Arrow schema that a table gets.

    ``small``: it has integers of 8 and 16 bits, and no times of day or UUIDs. ``zone``: of times without one.
    """
    pa = arrow.pyarrow()
    fields = [arrow.arrow_field(name, field) for name, field in schema.items()]
    return pa.schema([field.with_type(_stored(field.type, small, zone)) for field in fields])


def _stored(kind: Any, small: bool, zone: str | None) -> Any:
    pa = arrow.pyarrow()
    types = pa.types
    if types.is_fixed_size_list(kind) or types.is_large_list(kind):
        return pa.list_(pa.field("element", _stored(kind.value_type, small, zone)))
    if types.is_struct(kind):
        return pa.struct([field.with_type(_stored(field.type, small, zone)) for field in kind])
    if types.is_timestamp(kind) and kind.unit != "ns":
        return pa.timestamp("us", zone if kind.tz is None else "UTC")
    if kind == pa.time64("us") and not small:
        return kind
    # Finer times, other times of day and spans of time are counted in their own unit.
    if types.is_timestamp(kind) or types.is_duration(kind) or types.is_time(kind):
        return pa.int64() if kind.bit_width == 64 else pa.int32()
    # UUIDs where there are none, and decimals of more digits than such tables have, are text.
    if types.is_decimal256(kind) or (small and isinstance(kind, pa.BaseExtensionType)):
        return pa.string()
    if small and types.is_fixed_size_binary(kind):
        return pa.binary()
    if not small and types.is_integer(kind) and kind.bit_width < 32:
        return pa.int32()
    wider = {
        pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0), pa.float16(): pa.float32(),
        pa.large_string(): pa.string(), pa.large_binary(): pa.binary(),
    }  # fmt: skip
    return wider.get(kind, kind)
