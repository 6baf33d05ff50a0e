"""tf.data: datasets."""

from __future__ import annotations

from ..errors import missing_name
from .dataset import (
    AUTOTUNE,
    INFINITE,
    UNKNOWN,
    Dataset,
    DatasetIterator,
    FixedLengthRecordDataset,
    Options,
    TextLineDataset,
    TFRecordDataset,
)

INFINITE_CARDINALITY, UNKNOWN_CARDINALITY = INFINITE, UNKNOWN
ThreadingOptions = Options
# TensorFlow's name for the type of its iterators.
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
]

__getattr__ = missing_name(__name__)
