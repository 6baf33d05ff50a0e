"""Models as datasets: what the formats of named tensors share.

A model file is a dataset with one sample for each tensor. ``TENSORS`` is its schema: the name, the dtype, the
shape, and the values as little-endian bytes in row-major order. So every format that holds text and bytes
holds a model too, to the last bit.

Dtypes are called as NumPy and ml_dtypes call them. Those of 4 and 6 bits are packed: the values of ``int4``,
``uint4`` and ``float4_e2m1fn`` stand two in a byte, the first one in its lower half, as ONNX stores them.

A format makes a list of :class:`Entry` and hands it to ``TensorReader._accept``; a writer is told of every
tensor by ``TensorWriter._put``, and finds all of them in ``entries`` when it finishes.
"""

from ....data.tensors import (
    BITS,
    TENSORS,
    Tensors,
    as_array,
    from_array,
    is_tensors,
    numpy_dtype,
    size_of,
    summary,
)
from .reader import Entry, TensorReader, indexed, read_parts, statistics
from .writer import Placed, TensorWriter

__all__ = [
    "BITS",
    "TENSORS",
    "Entry",
    "Placed",
    "TensorReader",
    "TensorWriter",
    "Tensors",
    "as_array",
    "from_array",
    "indexed",
    "is_tensors",
    "numpy_dtype",
    "read_parts",
    "size_of",
    "statistics",
    "summary",
]
