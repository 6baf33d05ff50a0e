"""TensorFlow's names for TFRecord files and input pipelines on NumPy: ``import batchplant.tfrecord as tf``.

``tf.io``, ``tf.train``, ``tf.data`` and the decoders of ``tf.image`` have TensorFlow's arguments and results.
TensorFlow is not used: batchplant's native core finds records, parses Examples and decodes images. Operations
on tensors are NumPy's, because tensors are NumPy arrays.
"""

from __future__ import annotations

import types

from . import data, errors, image, io, random, train
from .ops import (
    cast,
    constant,
    convert_to_tensor,
    function,
    is_tensor,
    numpy_function,
    one_hot,
    py_function,
    reshape,
    shape,
)
from .values import (
    DType,
    SparseTensor,
    Tensor,
    TensorShape,
    TensorSpec,
    as_dtype,
    bool_,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    string,
    to_dense,
    uint8,
    uint16,
    uint32,
    uint64,
)

bool = bool_
half, double = float16, float64
# For the features that VarLenFeature describes.
sparse = types.SimpleNamespace(SparseTensor=SparseTensor, to_dense=to_dense)

__all__ = [
    "DType",
    "SparseTensor",
    "Tensor",
    "TensorShape",
    "TensorSpec",
    "as_dtype",
    "bool",
    "cast",
    "complex64",
    "complex128",
    "constant",
    "convert_to_tensor",
    "data",
    "double",
    "errors",
    "float16",
    "float32",
    "float64",
    "function",
    "half",
    "image",
    "int8",
    "int16",
    "int32",
    "int64",
    "io",
    "is_tensor",
    "numpy_function",
    "one_hot",
    "py_function",
    "random",
    "reshape",
    "shape",
    "sparse",
    "string",
    "train",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]

# The release whose results the tests compare with.
__version__ = "2.21.0"

__getattr__ = errors.missing_name(__name__)
