"""Models as datasets: the fields of a model, the dtypes of its tensors, arrays to bytes and back.

A model is a dataset with one sample for each tensor, and ``TENSORS`` is its schema. ``Reader.tensors()``
gives its arrays by name. The formats of models build on this in :mod:`batchplant.formats.base.tensors`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import (
    BatchplantError,
    DamagedError,
    MissingLibraryError,
    SchemaError,
    exceptions_as,
    needs,
    no_such,
)
from ..schema import MOST_BYTES, Bytes, Field, Schema, Tensor, Text
from ..schema.columns import U8, AnyArray, AnyDType, Column, Ragged, as_bytes
from ..storage import MappedSource

__all__ = ["TENSORS", "Tensors", "as_array", "from_array"]

TENSORS = Schema({"name": Text(), "dtype": Text(), "shape": Tensor("int64", (None,)), "data": Bytes()})

# Name → bits of one value. The first three lines are NumPy's own, the others are ml_dtypes'.
BITS: dict[str, int] = {
    "bool": 8, "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64,
    "int8": 8, "int16": 16, "int32": 32, "int64": 64,
    "float16": 16, "float32": 32, "float64": 64, "complex64": 64, "complex128": 128,
    "bfloat16": 16,
    "float8_e3m4": 8, "float8_e4m3": 8, "float8_e4m3b11fnuz": 8, "float8_e4m3fn": 8, "float8_e4m3fnuz": 8,
    "float8_e5m2": 8, "float8_e5m2fnuz": 8, "float8_e8m0fnu": 8,
    "float6_e2m3fn": 6, "float6_e3m2fn": 6,
    "float4_e2m1fn": 4, "int4": 4, "uint4": 4, "int2": 2, "uint2": 2,
}  # fmt: skip
NUMPY = frozenset(list(BITS)[:14])
# As many as NumPy has.
MAX_AXES = 64


def is_tensors(fields: Mapping[str, Field]) -> bool:
    """Return True if these are the fields of a model, in any order."""
    return dict(fields) == dict(TENSORS)


def size_of(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of the values; SchemaError for a dtype that is not known, DamagedError for an absurd shape."""
    if dtype not in BITS:
        raise SchemaError(no_such("dtype", dtype, BITS))
    if len(shape) > MAX_AXES or any(size < 0 for size in shape):
        raise DamagedError(f"a tensor cannot have the shape {_short(shape)}")
    size = -(-math.prod(shape) * BITS[dtype] // 8)
    if size > MOST_BYTES or max(shape, default=0) > MOST_BYTES:
        raise DamagedError(f"a tensor cannot have the shape {_short(shape)}")
    return size


def _short(shape: Sequence[int]) -> str:
    return str(tuple(shape))[:80]


def numpy_dtype(name: str) -> AnyDType:
    """Return the dtype of arrays in memory; those that NumPy lacks come from ml_dtypes."""
    if name in NUMPY:
        return np.dtype(name)
    with needs(f"arrays of {name} need ml_dtypes", "models"):
        import ml_dtypes
    try:
        return np.dtype(getattr(ml_dtypes, name))
    except AttributeError:
        raise MissingLibraryError(
            f'arrays of {name} need a newer ml_dtypes: pip install "batchplant[models]"'
        ) from None


def as_array(dtype: str, shape: Sequence[int], data: U8) -> AnyArray:
    """Return a tensor's bytes as an array, a view if values are whole bytes."""
    if size_of(dtype, shape) != data.size:
        raise DamagedError(f"{data.size} bytes are not {dtype} {_short(shape)}")
    kind, bits = numpy_dtype(dtype), BITS[dtype]
    if not data.size:
        return np.empty(shape, dtype=kind)
    if bits >= 8:
        return data.view(kind).reshape(shape)
    if bits == 6:
        raise SchemaError(f"values of {dtype} stand across bytes, and NumPy has no array of them")
    parts = [(data >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    values = np.stack(parts, axis=1).reshape(-1)[: math.prod(shape)]
    return values.astype(np.uint8).view(kind).reshape(shape)


def from_array(name: str, array: Any) -> dict[str, Any]:
    """Return the sample of an array: ``out.append(from_array("weight", array))``."""
    array = np.asarray(array)
    dtype = array.dtype.name
    if dtype not in BITS:
        raise SchemaError(f"arrays of {array.dtype} are no tensors of a model", field=name)
    data = as_bytes(array.astype(array.dtype.newbyteorder("<"), copy=False))
    bits = BITS[dtype]
    if bits == 6:
        raise SchemaError(f"arrays of {dtype} cannot be packed", field=name)
    if bits < 8:
        per_byte = 8 // bits
        data = np.pad(data, (0, -len(data) % per_byte)) & np.uint8((1 << bits) - 1)
        shifted = data.reshape(-1, per_byte) << np.arange(0, 8, bits, dtype=np.uint8)
        data = np.bitwise_or.reduce(shifted, axis=1).astype(np.uint8)
    return {"name": name, "dtype": dtype, "shape": np.array(array.shape, np.int64), "data": data.tobytes()}


def summary(tensors: Iterable[tuple[str, str, Sequence[int]]]) -> dict[str, Any]:
    """Count parameters, and bytes by dtype; name the largest tensor."""
    parameters, sizes, counts = 0, Counter[str](), Counter[str]()
    largest: tuple[int, str] = (-1, "")
    for name, dtype, shape in tensors:
        size = size_of(dtype, shape)
        parameters += math.prod(shape)
        sizes[dtype] += size
        counts[dtype] += 1
        if size > largest[0]:
            largest = size, f"{name} {dtype} {list(shape)}"
    facts: dict[str, Any] = {
        "parameters": parameters,
        "dtypes": {name: {"tensors": counts[name], "bytes": size} for name, size in sizes.most_common()},
    }
    return facts | ({"largest": largest[1]} if largest[1] else {})


def text_of(column: Column, row: int) -> str:
    """Decode a cell of ``name`` or ``dtype``."""
    cell = column[row]
    with exceptions_as(SchemaError, "not text", ValueError):
        return "" if cell is None else cell.tobytes().decode()


def shape_of(column: Column, row: int) -> tuple[int, ...]:
    """Decode a cell of ``shape``."""
    cell = column[row]
    data = b"" if cell is None else cell.tobytes()
    if len(data) % 8:
        raise SchemaError(f"{len(data)} bytes are no shape")
    return tuple(np.frombuffer(data, dtype=np.int64).tolist())


def about_tensor(error: BatchplantError, name: str) -> BatchplantError:
    """Add the name of a tensor to an error."""
    error.message = f"tensor {name[:200]!r}: {error.message}"
    return error


class Tensors(Mapping[str, AnyArray]):
    """The tensors of a model by name, read when they are asked for; in place where the format lets them."""

    def __init__(self, reader: Any) -> None:
        if not is_tensors(reader.schema):
            raise SchemaError(
                f"this is no model: its fields are {', '.join(reader.schema)}, not {', '.join(TENSORS)}",
                path=reader.path,
            )
        self._reader = reader
        self._rows: dict[str, int] = {}
        for columns in reader.scan(4096, ["name"]):
            for row in range(columns.rows):
                name = text_of(columns["name"], row)
                if name in self._rows:
                    raise SchemaError(f"two tensors are called {name!r}", path=reader.path)
                self._rows[name] = len(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __getitem__(self, name: str) -> AnyArray:
        row = self._rows[name]
        try:
            dtype, shape = self.kind(name)
            return as_array(dtype, shape, self.bytes_of(name))
        except BatchplantError as error:
            raise about_tensor(error, name).at(path=self._reader.path, sample=row) from None

    def kind(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Return the dtype and shape, without reading the values."""
        columns = self._reader.read([self._rows[name]], ["dtype", "shape"])
        return text_of(columns["dtype"], 0), shape_of(columns["shape"], 0)

    def bytes_of(self, name: str) -> U8:
        """Return the values as they are stored."""
        row = self._rows[name]
        spans = self._reader.spans("data", [row])
        source = None if spans is None else spans.sources[int(spans.file[0])]
        if spans is not None and isinstance(source, MappedSource) and not source.closed:
            return source.view(int(spans.start[0]), int(spans.size[0]))
        column = self._reader.read([row], ["data"])["data"]
        assert isinstance(column, Ragged)
        return column.data[column.offsets[0] : column.offsets[1]]
