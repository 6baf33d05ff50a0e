"""Arrays: a field as one N-d array, read when it is sliced. ``Reader.array(field)`` gives it.

A format provides a :class:`ChunkedArray` (HDF5, Zarr, N5, TIFF: it reads chunks) or a :class:`RunArray` (NPY,
Safetensors: the values one after another in a file). Any other field of arrays of one shape is a
:class:`RowsArray`. Formats and their base classes import from here, and so does ``patches``.
"""

from __future__ import annotations

from typing import Any

from .base import Array
from .kinds import ChunkedArray, Index, MemoryArray, RowsArray, RunArray
from .parallel import each

__all__ = ["Array", "ChunkedArray", "Index", "MemoryArray", "RowsArray", "RunArray", "array_of", "each"]


def array_of(reader: Any, field: str) -> Array:
    """Return a field as an array; see ``Reader.array``."""
    array: Array | None = reader._array(field)
    if array is None:
        reader.schema.select([field])
        array = RowsArray(reader, field)
    array.made_by = reader, field
    return array
