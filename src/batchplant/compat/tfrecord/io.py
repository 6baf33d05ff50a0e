"""tf.io: TFRecord files, parsing of Examples, raw bytes, and files in general."""

from __future__ import annotations

import builtins
import glob as local_glob
import os
import shutil
import types
from pathlib import Path
from typing import IO, Any

import numpy as np

from ...errors import NotFoundError, OptionError, SchemaError
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
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
    parse_example,
    parse_single_example,
    parse_single_sequence_example,
)
from .records import TFRecordOptions, TFRecordWriter, expand
from .tensor_proto import parse_tensor, serialize_tensor
from .values import String, Tensor, as_bytes, as_dtype, as_text, as_texts, strings

__all__ = [
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "RaggedFeature",
    "SparseFeature",
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
