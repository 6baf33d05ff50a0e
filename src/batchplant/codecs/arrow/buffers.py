"""Numbers and flags as Arrow arrays and back, by their buffers.

``pyarrow.array`` and ``to_numpy`` import pandas where it is installed: half a second before a first batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...schema.columns import U8, Flags
from .types import pyarrow


def numbers(values: npt.NDArray[Any]) -> Any:
    """Numbers, or flags, as an array."""
    pa = pyarrow()
    data = _bits(values) if values.dtype == np.bool_ else np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(data)])


def bitmap(valid: Flags | None) -> Any:
    """The buffer that tells which values are there; None where all are."""
    return None if valid is None or valid.all() else pyarrow().py_buffer(_bits(valid))


def _bits(flags: Flags) -> U8:
    return np.packbits(flags, bitorder="little")


def view_of(array: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The values of an array of numbers where they lie."""
    data = array.buffers()[1]
    if not len(array):
        return np.empty(0, dtype)
    return np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize)


def flags_of(array: Any) -> Flags:
    """Booleans, of which those that are missing may be either."""
    if not len(array):
        return np.zeros(0, np.bool_)
    first, skipped = divmod(array.offset, 8)
    count = skipped + len(array)
    bits = np.frombuffer(array.buffers()[1], np.uint8, -(-count // 8), first)
    return np.unpackbits(bits, count=count, bitorder="little")[skipped:].view(np.bool_)


def valid_of(array: Any) -> Flags:
    """Which values are there."""
    return flags_of(array.is_valid())
