"""Arrays: their ragged cells, and the nested lists that they are in JSON."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import DecodeError
from ..schema import Field, Tensor
from ..schema.columns import I64, U8, AnyArray, dense_of
from . import npy


def pack_tensor(field: Tensor, array: AnyArray) -> bytes:
    """Return the ragged cell of an array: its values, or a whole NPY if those do not tell the shape."""
    return array.tobytes() if field.flat else npy.write(array)


def unpack_tensor(field: Tensor, data: U8) -> AnyArray:
    """Return the array of a ragged cell."""
    if not field.flat:
        return _read_npy(field, data)
    inner = [size for size in field.shape[1:] if size is not None]
    first = field.shape[0] if field.shape and field.shape[0] is not None else -1
    array = data.view(np.dtype(field.dtype))
    return array.reshape((first, *inner) if field.shape else ())


def _read_npy(field: Tensor, data: U8) -> AnyArray:
    array = npy.read(data)
    if array.dtype != np.dtype(field.dtype) or not field.fits(array.shape):
        raise DecodeError(f"an array {array.dtype} {array.shape} does not fit {field}")
    return array


def check_bytes(field: Field, starts: I64, sizes: I64) -> None:
    """Check that runs of bytes hold the numbers of a field, as in memory; a missing one has size -1."""
    dense = dense_of(field)
    if dense is not None:
        size = dense[0].itemsize * math.prod(dense[1])
        wrong = (sizes >= 0) & (sizes != size)
        takes = f"takes {size}"
    elif isinstance(field, Tensor) and field.flat:
        size = np.dtype(field.dtype).itemsize * math.prod(
            size_or_none or 0 for size_or_none in field.shape[1:]
        )
        wrong = (sizes >= 0) & (sizes % size != 0)
        takes = f"takes {size} or a multiple of it"
    else:
        return
    if wrong.any():
        row = int(np.argmax(wrong))
        message = f"the value has {sizes[row]} bytes, and {field} {takes}"
        raise DecodeError(message, sample=row, offset=int(starts[row]))


def lists_of(array: AnyArray) -> Any:
    """Return nested lists; an empty array, whose lists would not tell its shape, is ``{"shape": [0, 4]}``."""
    return array.tolist() if array.size else {"shape": list(array.shape)}


def array_of(field: Tensor, value: Any) -> AnyArray:
    """Return the array of nested lists; whatever NumPy raises, a ValueError too, if they are none."""
    dtype = np.dtype(field.dtype)
    if isinstance(value, dict):
        shape = tuple(int(size) for size in value["shape"])
        if 0 not in shape or not field.fits(shape):
            raise ValueError
        return np.zeros(shape, dtype=dtype)
    array = np.array(value, dtype=dtype)
    allowed: set[type] = {bool} if dtype.kind == "b" else {int, float} if dtype.kind == "f" else {int}
    # NumPy would truncate 1.5 to 1.
    if not field.fits(array.shape) or not set(map(type, np.array(value, dtype=object).flat)) <= allowed:
        raise ValueError
    return array
