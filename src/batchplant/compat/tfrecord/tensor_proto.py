"""TensorProto, the message that serialize_tensor and parse_tensor speak."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import DecodeError, SchemaError
from . import wire
from .values import String, Tensor, as_bytes, as_dtype, string, strings
from .values import tensor as as_tensor

# DataType in TensorFlow's types.proto.
CODES = {
    **{"float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int16": 5, "int8": 6, "string": 7},
    **{"complex64": 8, "int64": 9, "bool": 10, "uint16": 17, "complex128": 18, "float16": 19},
    **{"uint32": 22, "uint64": 23},
}
TYPES = {code: name for name, code in CODES.items()}
# Fields with values one by one: the packed dtype of fixed sizes, or None for varints.
_LISTS: dict[int, Any] = {5: "<f4", 6: "<f8", 7: None, 10: None, 11: None, 16: None, 17: None}
_STRINGS, _CONTENT, _HALVES = 8, 4, 13
# One value may stand for many; more than this many would be memory for nothing.
_SPLAT = 1 << 20


def serialize_tensor(tensor: Any, name: Any = None) -> String:
    """A value as the bytes of a TensorProto."""
    given = as_tensor(tensor)
    kind = as_dtype(given.dtype)
    array = np.array(given, dtype=object) if isinstance(given, String) else np.asarray(given)
    dims = b"".join(wire.block(2, b"\x08" + wire.varint(size) if size else b"") for size in array.shape)
    if kind == string:
        content = b"".join(wire.block(_STRINGS, bytes(item)) for item in array.reshape(-1))
    elif array.size:
        stored = np.ascontiguousarray(array).astype(kind.dtype.newbyteorder("<"), copy=False)
        content = wire.block(_CONTENT, stored.tobytes())
    else:
        content = b""
    head = b"\x08" + wire.varint(CODES[kind.name])
    return String(head + wire.block(2, dims) + content)


def parse_tensor(serialized: Any, out_type: Any, name: Any = None) -> Any:
    """The value in a TensorProto, which must be of this type."""
    wanted = as_dtype(out_type)
    code = 0
    shape: tuple[int, ...] = ()
    content: memoryview | None = None
    values: list[Any] = []
    for number, kind, value, data in wire.fields(memoryview(as_bytes(serialized))):
        if number == 1 and kind == wire.VARINT:
            code = value
        elif number == 2 and kind == wire.BYTES:
            shape = _shape_of(data)
        elif number == _CONTENT and kind == wire.BYTES:
            content = data
        elif number == _STRINGS and kind == wire.BYTES:
            values.append(bytes(data))
        elif number in _LISTS:
            values += _numbers(kind, value, data, _LISTS[number])
        elif number == _HALVES:
            bits = _numbers(kind, value, data, None)
            values += np.array(bits, dtype=np.uint64).astype(np.uint16).view(np.float16).tolist()
    found = TYPES.get(code)
    if found is None:
        raise DecodeError(f"a tensor of type {code}, which is not known here")
    if found != wanted.name:
        raise SchemaError(f"the tensor is {found}, not {wanted.name}")
    if any(isinstance(one, bytes) is not (wanted == string) for one in values):
        raise DecodeError(f"the values of the tensor are not {found}")
    size = 1
    for one in shape:
        size *= one
    if wanted == string:
        items = _strings_of(content, size) if content is not None else values
        return _strings(items, size, shape)
    if content is not None:
        if len(content) != size * wanted.size:
            raise DecodeError(f"{len(content)} bytes do not hold the shape {shape} of {found}")
        # A copy, as an array of its own may be written to.
        array = np.frombuffer(content, dtype=wanted.dtype.newbyteorder("<")).astype(wanted.dtype)
        return array.reshape(shape).view(Tensor)
    if not values and size:
        values = [0]
    if len(values) > size or (len(values) < size and size > _SPLAT):
        raise DecodeError(f"{len(values)} values do not make the shape {shape}")
    values += values[-1:] * (size - len(values))
    try:
        with np.errstate(all="ignore"):
            return np.array(values).astype(wanted.dtype).reshape(shape).view(Tensor)
    except (ValueError, OverflowError, TypeError) as error:
        raise DecodeError(f"the values cannot become {found}: {error}") from None


def _shape_of(data: memoryview) -> tuple[int, ...]:
    sizes = []
    for number, kind, _, dim in wire.fields(data):
        if number == 2 and kind == wire.BYTES:
            size = 0
            for inner, inner_kind, value, _ in wire.fields(dim):
                if inner == 1 and inner_kind == wire.VARINT:
                    size = wire.signed(value)
            if size < 0:
                raise DecodeError("the shape of the tensor is unknown")
            sizes.append(size)
    # NumPy's limit.
    if len(sizes) > 32:
        raise DecodeError(f"a tensor of {len(sizes)} dimensions")
    return tuple(sizes)


def _numbers(kind: int, value: int, data: memoryview, dtype: str | None) -> list[Any]:
    if dtype is not None:
        if len(data) % np.dtype(dtype).itemsize or kind == wire.VARINT:
            raise DecodeError("numbers of a wrong size")
        return list(np.frombuffer(data, dtype=dtype).tolist())
    if kind == wire.VARINT:
        return [wire.signed(value)]
    found, at = [], 0
    while at < len(data):
        number, at = wire.read_varint(data, at)
        found.append(wire.signed(number))
    return found


def _strings_of(content: memoryview, count: int) -> list[bytes]:
    """All lengths, then all strings."""
    if count > len(content):
        raise DecodeError(f"{len(content)} bytes do not hold {count} strings")
    sizes, at = [], 0
    for _ in range(count):
        size, at = wire.read_varint(content, at)
        sizes.append(size)
    if at + sum(sizes) != len(content):
        raise DecodeError("the strings of a tensor do not fill its bytes")
    found = []
    for size in sizes:
        found.append(bytes(content[at : at + size]))
        at += size
    return found


def _strings(items: list[bytes], size: int, shape: tuple[int, ...]) -> Any:
    if len(items) != size:
        raise DecodeError(f"{len(items)} strings do not make the shape {shape}")
    made = [String(item) for item in items]
    return strings(made, shape) if shape else made[0]
