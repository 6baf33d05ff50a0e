"""tf.data: datasets."""

from __future__ import annotations

from . import experimental
from .base import AUTOTUNE, INFINITE, UNKNOWN, DatasetIterator
from .dataset import Dataset
from .files import FixedLengthRecordDataset, TextLineDataset, TFRecordDataset
from .settings import Options, ThreadingOptions

INFINITE_CARDINALITY, UNKNOWN_CARDINALITY = INFINITE, UNKNOWN
# TensorFlow's iterators have this type.
Iterator = DatasetIterator

__all__ = [
    "AUTOTUNE",
    "INFINITE_CARDINALITY",
    "UNKNOWN_CARDINALITY",
    "Dataset",
    "FixedLengthRecordDataset",
    "Iterator",
    "Options",
    "TFRecordDataset",
    "TextLineDataset",
    "ThreadingOptions",
    "experimental",
]
