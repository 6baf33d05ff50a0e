"""tf.io: TFRecord files, parsing of Examples, serialized tensors, raw bytes, and files in general."""

from __future__ import annotations

import builtins
import glob as local_glob
import math
import os
import shutil
import types
from pathlib import Path
from typing import IO, Any

import numpy as np

from ...codecs import protobuf
from ...codecs.protobuf import BYTES, VARINT, Part, block, signed, varint
from ...errors import DamagedError, DecodeError, NotFoundError, OptionError, SchemaError
from ...storage import open_source
from .errors import missing_name
from .image import (
    decode_and_crop_jpeg,
    decode_bmp,
    decode_gif,
    decode_image,
    decode_jpeg,
    decode_png,
    encode_jpeg,
    encode_png,
    extract_jpeg_shape,
)
from .parsing import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    VarLenFeature,
    parse_example,
    parse_single_example,
    parse_single_sequence_example,
)
from .records import TFRecordOptions, TFRecordWriter, expand
from .values import String, Tensor, as_bytes, as_dtype, as_text, as_texts, string, strings
from .values import tensor as as_value

__all__ = [
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "TFRecordOptions",
    "TFRecordWriter",
    "VarLenFeature",
    "decode_and_crop_jpeg",
    "decode_bmp",
    "decode_gif",
    "decode_image",
    "decode_jpeg",
    "decode_png",
    "decode_raw",
    "encode_jpeg",
    "encode_png",
    "extract_jpeg_shape",
    "gfile",
    "matching_files",
    "parse_example",
    "parse_single_example",
    "parse_single_sequence_example",
    "parse_tensor",
    "read_file",
    "serialize_tensor",
    "write_file",
]

__getattr__ = missing_name(__name__)

# DataType in TensorFlow's types.proto.
_TYPE_CODES = {
    **{"float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int16": 5, "int8": 6, "string": 7},
    **{"complex64": 8, "int64": 9, "bool": 10, "uint16": 17, "complex128": 18, "float16": 19},
    **{"uint32": 22, "uint64": 23},
}
_TYPE_NAMES = {code: name for name, code in _TYPE_CODES.items()}
# Fields of a TensorProto.
_TYPE_FIELD, _SHAPE_FIELD, _CONTENT_FIELD, _STRINGS_FIELD = 1, 2, 4, 8
# NumPy's limit.
MAX_DIMENSIONS = 32


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
    return String(b"\x08" + varint(_TYPE_CODES[dtype.name]) + block(_SHAPE_FIELD, dims) + content)


def parse_tensor(serialized: object, out_type: object, name: object = None) -> Tensor | String:
    """Return the value in a TensorProto as serialize_tensor writes it, which must be of this type."""
    dtype, data = as_dtype(out_type), memoryview(as_bytes(serialized))
    code, content = 0, memoryview(b"")
    shape: tuple[int, ...] = ()
    texts: list[String] = []
    try:
        for part in protobuf.parts(data, 0, len(data)):
            if part.number == _TYPE_FIELD and part.kind == VARINT:
                code = part.value
            elif part.number == _SHAPE_FIELD and part.kind == BYTES:
                shape = _parse_shape(data, part)
            elif part.number == _CONTENT_FIELD and part.kind == BYTES:
                content = data[part.start : part.end]
            elif part.number == _STRINGS_FIELD and part.kind == BYTES:
                texts.append(String(data[part.start : part.end]))
    except DamagedError as error:
        raise DecodeError(error.message, offset=error.offset) from None
    stored, size = _TYPE_NAMES.get(code), math.prod(shape)
    if stored is None:
        raise DecodeError(f"a tensor of type {code}, which is not known here")
    if stored != dtype.name:
        raise SchemaError(f"the tensor is {stored}, not {dtype.name}")
    if dtype == string:
        if len(texts) != size or content:
            raise DecodeError(f"{len(texts)} strings do not make the shape {shape}")
        return strings(texts, shape) if shape else texts[0]
    if len(content) != size * dtype.size or texts:
        raise DecodeError(f"{len(content)} bytes do not hold the shape {shape} of {stored}")
    # A copy, because the caller may write to the array.
    array = np.frombuffer(content, dtype=dtype.dtype.newbyteorder("<")).astype(dtype.dtype)
    return array.reshape(shape).view(Tensor)


def _parse_shape(data: memoryview, shape: Part) -> tuple[int, ...]:
    sizes = []
    for start, end in protobuf.messages(data, shape.start, shape.end, 2):
        values = [part.value for part in protobuf.parts(data, start, end) if part[:2] == (1, VARINT)]
        sizes.append(signed(values[-1]) if values else 0)
        if sizes[-1] < 0:
            raise DecodeError("the shape of the tensor is unknown")
    if len(sizes) > MAX_DIMENSIONS:
        raise DecodeError(f"a tensor of {len(sizes)} dimensions")
    return tuple(sizes)


def decode_raw(
    input_bytes: object,
    out_type: object,
    little_endian: bool = True,
    fixed_length: object = None,
    name: object = None,
) -> Tensor:
    """Return the bytes of strings as numbers; each string gives a row."""
    if fixed_length is not None:
        raise OptionError("decode_raw(fixed_length=…) is not mirrored")
    dtype = as_dtype(out_type).dtype
    if dtype.kind == "O":
        raise OptionError("bytes cannot be decoded to strings")
    outer_shape: tuple[int, ...] = ()
    rows = [input_bytes]
    if isinstance(input_bytes, np.ndarray) and input_bytes.dtype.kind == "O" and input_bytes.ndim > 0:
        outer_shape, rows = input_bytes.shape, input_bytes.reshape(-1).tolist()
    data = [as_bytes(row) for row in rows]
    sizes = {len(row) for row in data}
    if len(sizes) > 1:
        raise SchemaError(f"the strings differ in length: {min(sizes)} to {max(sizes)} bytes")
    size = sizes.pop() if sizes else 0
    if size % dtype.itemsize:
        raise SchemaError(f"{size} bytes are no whole number of {dtype.name}")
    stored = dtype.newbyteorder("<" if little_endian else ">")
    array = np.frombuffer(b"".join(data), dtype=stored).astype(dtype)
    return array.reshape((*outer_shape, -1) if data else (-1,)).view(Tensor)


def read_file(filename: object, name: object = None) -> String:
    source = open_source(as_text(filename))
    try:
        return String(source.view(0, source.size))
    finally:
        source.close()


def write_file(filename: object, contents: object, name: object = None) -> None:
    path = Path(as_text(filename))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(as_bytes(contents))


def matching_files(pattern: object, name: object = None) -> Tensor:
    return strings([String(path.encode()) for path in _glob(pattern)])


def _glob(pattern: object) -> list[str]:
    return [path for text in as_texts(pattern) for path in expand(text)]


def _remove(path: object) -> None:
    try:
        os.remove(as_text(path))
    except FileNotFoundError:
        raise NotFoundError("no such file", path=as_text(path)) from None


def _open(name: object, mode: str = "r") -> IO[Any]:
    return builtins.open(as_text(name), mode)


# Local files by TensorFlow's names.
gfile = types.SimpleNamespace(
    GFile=_open,
    Open=_open,
    exists=lambda path: os.path.exists(as_text(path)),
    glob=_glob,
    isdir=lambda path: os.path.isdir(as_text(path)),
    listdir=lambda path: sorted(os.listdir(as_text(path))),
    makedirs=lambda path: os.makedirs(as_text(path), exist_ok=True),
    mkdir=lambda path: os.mkdir(as_text(path)),
    remove=_remove,
    rmtree=lambda path: shutil.rmtree(as_text(path)),
    join=os.path.join,
    escape=local_glob.escape,
)
