"""NPY: the header, arrays as fields, and rows of arrays as cells. Never unpickles."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..columns import I64, U8, Column, Ragged
from ..errors import DamagedError, SchemaError
from ..schema import Bool, Bytes, Field, Float, Int, Tensor, Text

MAGIC = b"\x93NUMPY"
# NumPy itself reads no longer header from files it does not trust.
HEADER_MOST = 10_000


class Header(NamedTuple):
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    start: int

    @property
    def size(self) -> int:
        """Bytes of the values; a lying header may say more than memory holds."""
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=object))


def parse_header(head: bytes) -> Header:
    """The header at the start of these bytes; DamagedError where there is none."""
    file = io.BytesIO(head[: HEADER_MOST + 12])
    try:
        # A damaged header may hold an odd literal that Python warns about while it reads it.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            major, _ = np.lib.format.read_magic(file)
            if major == 1:
                shape, fortran, dtype = np.lib.format.read_array_header_1_0(file, HEADER_MOST)
            elif major in (2, 3):
                shape, fortran, dtype = np.lib.format.read_array_header_2_0(file, HEADER_MOST)
            else:
                raise ValueError(f"version {major}")
    # NumPy evaluates the header as a Python literal; damaged ones raise all of these.
    except (
        ValueError,
        SyntaxError,
        TypeError,
        KeyError,
        RecursionError,
        MemoryError,
        OverflowError,
    ) as error:
        raise DamagedError(f"not an NPY header: {error}") from None
    if any(not isinstance(size, int) or size < 0 for size in shape):
        raise DamagedError(f"not an NPY header: shape {shape}")
    return Header(dtype, shape, fortran, file.tell())


def read(data: U8) -> npt.NDArray[Any]:
    """The array of a whole NPY file in memory: a view."""
    header = parse_header(data[: HEADER_MOST + 12].tobytes())
    return view(header, data[header.start :])


def view(header: Header, values: U8) -> npt.NDArray[Any]:
    """The array over its values; their number has to be what the header says."""
    if header.dtype.hasobject:
        raise DamagedError("object arrays hold pickles, which are not read here")
    if header.size != values.size:
        raise DamagedError(f"{values.size} bytes of values, and the header promises {header.size}")
    if header.size == 0:
        return np.empty(header.shape, header.dtype)
    return values.view(header.dtype).reshape(header.shape, order="F" if header.fortran else "C")


def header_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    out = io.BytesIO()
    described = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(out, {"descr": described, "fortran_order": False, "shape": shape})
    return out.getvalue()


def write(array: npt.NDArray[Any]) -> bytes:
    return header_bytes(array.dtype, array.shape) + array.tobytes()


def field_of(dtype: np.dtype[Any], shape: Sequence[int]) -> Field:
    """The field that an array's rows are; ``shape`` is that of one row."""
    if dtype.subdtype is not None:
        dtype, inner = dtype.subdtype
        shape = (*shape, *inner)
    if dtype.kind in "SU" and not shape:
        return Bytes() if dtype.kind == "S" else Text()
    if dtype.kind not in "biufcmM":
        raise SchemaError(f"arrays of {dtype} rows {tuple(shape)} have no field kind")
    dtype = dtype.newbyteorder("=")
    if shape or dtype.kind in "cmM" or dtype.itemsize > 8:
        return Tensor(dtype.name, tuple(shape))
    if dtype.kind == "b":
        return Bool()
    return Float(dtype.name) if dtype.kind == "f" else Int(dtype.name)


def rows(array: npt.NDArray[Any], indices: I64, field: Field) -> Column:
    """The cells of these rows: numbers in native order, text and bytes ragged."""
    taken = array[indices]
    if isinstance(field, Text):
        try:
            return Ragged.from_cells([str(one).encode() for one in taken])
        except UnicodeEncodeError as error:
            raise DamagedError(f"not text: {error}") from None
    if isinstance(field, Bytes):
        return Ragged.from_cells([bytes(one) for one in taken])
    return np.ascontiguousarray(taken.astype(taken.dtype.newbyteorder("="), copy=False))
