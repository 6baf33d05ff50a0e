"""TensorProto, the message that serialize_tensor and parse_tensor speak."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ...codecs import protobuf
from ...codecs.protobuf import BYTES, VARINT, block, signed, varint
from ...errors import DamagedError, DecodeError, SchemaError
from .values import String, Tensor, as_bytes, as_dtype, string, strings
from .values import tensor as as_value

# DataType in TensorFlow's types.proto.
_CODES = {
    **{"float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int16": 5, "int8": 6, "string": 7},
    **{"complex64": 8, "int64": 9, "bool": 10, "uint16": 17, "complex128": 18, "float16": 19},
    **{"uint32": 22, "uint64": 23},
}
_TYPE_NAMES = {code: name for name, code in _CODES.items()}
# Fields that list values one by one: the packed dtype of fixed sizes, or None for varints.
_LIST_FIELDS: dict[int, str | None] = {5: "<f4", 6: "<f8", 7: None, 10: None, 11: None, 16: None, 17: None}
_TYPE_FIELD, _SHAPE_FIELD, _CONTENT_FIELD, _STRINGS_FIELD, _HALVES_FIELD = 1, 2, 4, 8, 13
# One stored value may stand for many; a claim of more is refused instead of allocated.
MAX_REPEATED_VALUES = 1 << 20
# NumPy's limit.
MAX_DIMENSIONS = 32


def _fields(data: memoryview) -> Iterator[tuple[int, int, int, memoryview]]:
    """Yield (number, wire type, value, bytes) of each field: a varint's value, the bytes of any other."""
    try:
        for part in protobuf.parts(data, 0, len(data)):
            yield part.number, part.kind, part.value, data[part.start : part.end]
    except DamagedError as error:
        raise DecodeError(error.message, offset=error.offset) from None


def _read_varint(data: memoryview, offset: int) -> tuple[int, int]:
    """Return an unsigned integer and the offset of its end."""
    try:
        return protobuf.read_varint(data, offset, len(data))
    except DamagedError as error:
        raise DecodeError(error.message, offset=error.offset) from None


def serialize_tensor(tensor: object, name: object = None) -> String:
    """Return a value as the bytes of a TensorProto."""
    value = as_value(tensor)
    dtype = as_dtype(value.dtype)
    array = np.array(value, dtype=object) if isinstance(value, String) else np.asarray(value)
    dims = b"".join(block(2, b"\x08" + varint(size) if size else b"") for size in array.shape)
    content = b""
    if dtype == string:
        content = b"".join(block(_STRINGS_FIELD, bytes(item)) for item in array.reshape(-1))
    elif array.size:
        stored = np.ascontiguousarray(array).astype(dtype.dtype.newbyteorder("<"), copy=False)
        content = block(_CONTENT_FIELD, stored.tobytes())
    return String(b"\x08" + varint(_CODES[dtype.name]) + block(_SHAPE_FIELD, dims) + content)


def parse_tensor(serialized: object, out_type: object, name: object = None) -> Tensor | String:
    """Return the value in a TensorProto, which must be of this type."""
    dtype = as_dtype(out_type)
    code = 0
    shape: tuple[int, ...] = ()
    content: memoryview | None = None
    texts: list[bytes] = []
    numbers: list[float] = []
    for field, wire_type, value, data in _fields(memoryview(as_bytes(serialized))):
        if field == _TYPE_FIELD and wire_type == VARINT:
            code = value
        elif field == _SHAPE_FIELD and wire_type == BYTES:
            shape = _parse_shape(data)
        elif field == _CONTENT_FIELD and wire_type == BYTES:
            content = data
        elif field == _STRINGS_FIELD and wire_type == BYTES:
            texts.append(bytes(data))
        elif field in _LIST_FIELDS:
            numbers += _parse_numbers(wire_type, value, data, _LIST_FIELDS[field])
        elif field == _HALVES_FIELD:
            bits = _parse_numbers(wire_type, value, data, None)
            numbers += np.array(bits, dtype=np.uint64).astype(np.uint16).view(np.float16).tolist()
    stored = _TYPE_NAMES.get(code)
    if stored is None:
        raise DecodeError(f"a tensor of type {code}, which is not known here")
    if stored != dtype.name:
        raise SchemaError(f"the tensor is {stored}, not {dtype.name}")
    if numbers if dtype == string else texts:
        raise DecodeError(f"the values of the tensor are not {stored}")
    size = math.prod(shape)
    if dtype == string:
        return _as_strings(texts if content is None else _parse_strings(content, size), size, shape)
    if content is not None:
        if len(content) != size * dtype.size:
            raise DecodeError(f"{len(content)} bytes do not hold the shape {shape} of {stored}")
        # A copy, because the caller may write to the array.
        array = np.frombuffer(content, dtype=dtype.dtype.newbyteorder("<")).astype(dtype.dtype)
        return array.reshape(shape).view(Tensor)
    if not numbers and size:
        numbers = [0]
    if len(numbers) > size or (len(numbers) < size and size > MAX_REPEATED_VALUES):
        raise DecodeError(f"{len(numbers)} values do not make the shape {shape}")
    numbers += numbers[-1:] * (size - len(numbers))
    try:
        with np.errstate(all="ignore"):
            return np.array(numbers).astype(dtype.dtype).reshape(shape).view(Tensor)
    except (ValueError, OverflowError, TypeError) as error:
        raise DecodeError(f"the values cannot become {stored}: {error}") from None


def _parse_shape(data: memoryview) -> tuple[int, ...]:
    sizes = []
    for field, wire_type, _, dimension in _fields(data):
        if field == 2 and wire_type == BYTES:
            size = 0
            for inner_field, inner_type, value, _ in _fields(dimension):
                if inner_field == 1 and inner_type == VARINT:
                    size = signed(value)
            if size < 0:
                raise DecodeError("the shape of the tensor is unknown")
            sizes.append(size)
    if len(sizes) > MAX_DIMENSIONS:
        raise DecodeError(f"a tensor of {len(sizes)} dimensions")
    return tuple(sizes)


def _parse_numbers(wire_type: int, value: int, data: memoryview, dtype: str | None) -> list[float]:
    if dtype is not None:
        if len(data) % np.dtype(dtype).itemsize or wire_type == VARINT:
            raise DecodeError("numbers of a wrong size")
        return list(np.frombuffer(data, dtype=dtype).tolist())
    if wire_type == VARINT:
        return [signed(value)]
    numbers: list[float] = []
    offset = 0
    while offset < len(data):
        number, offset = _read_varint(data, offset)
        numbers.append(signed(number))
    return numbers


def _parse_strings(content: memoryview, count: int) -> list[bytes]:
    """Return strings that are stored as all lengths, then all bytes."""
    if count > len(content):
        raise DecodeError(f"{len(content)} bytes do not hold {count} strings")
    sizes, offset = [], 0
    for _ in range(count):
        size, offset = _read_varint(content, offset)
        sizes.append(size)
    if offset + sum(sizes) != len(content):
        raise DecodeError("the strings of a tensor do not fill its bytes")
    texts = []
    for size in sizes:
        texts.append(bytes(content[offset : offset + size]))
        offset += size
    return texts


def _as_strings(texts: list[bytes], size: int, shape: tuple[int, ...]) -> Tensor | String:
    if len(texts) != size:
        raise DecodeError(f"{len(texts)} strings do not make the shape {shape}")
    values = [String(text) for text in texts]
    return strings(values, shape) if shape else values[0]
