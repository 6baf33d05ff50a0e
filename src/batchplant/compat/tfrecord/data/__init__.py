"""tf.data: datasets."""

from __future__ import annotations

from ..errors import missing_name
from .dataset import AUTOTUNE, INFINITE, UNKNOWN, Dataset, DatasetIterator, Options, TFRecordDataset

INFINITE_CARDINALITY, UNKNOWN_CARDINALITY = INFINITE, UNKNOWN
# TensorFlow's name for the type of its iterators.
Iterator = DatasetIterator

__all__ = [
    "AUTOTUNE",
    "INFINITE_CARDINALITY",
    "UNKNOWN_CARDINALITY",
    "Dataset",
    "Iterator",
    "Options",
    "TFRecordDataset",
]

__getattr__ = missing_name(__name__)
