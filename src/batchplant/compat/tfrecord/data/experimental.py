"""tf.data.experimental: what scripts still use of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..records import TFRecordWriter as _Writer
from ..values import Tensor
from .base import AUTOTUNE, INFINITE, UNKNOWN
from .dataset import Dataset
from .settings import AutoShardPolicy, Options, ThreadingOptions

INFINITE_CARDINALITY, UNKNOWN_CARDINALITY = INFINITE, UNKNOWN
Change = Callable[[Dataset], Dataset]

__all__ = [
    "AUTOTUNE",
    "INFINITE_CARDINALITY",
    "UNKNOWN_CARDINALITY",
    "AutoShardPolicy",
    "OptimizationOptions",
    "Options",
    "TFRecordWriter",
    "ThreadingOptions",
    "cardinality",
    "choose_from_datasets",
    "group_by_window",
    "ignore_errors",
    "load",
    "map_and_batch",
    "parallel_interleave",
    "sample_from_datasets",
    "save",
    "shuffle_and_repeat",
    "snapshot",
    "unbatch",
]

OptimizationOptions = Options
sample_from_datasets = Dataset.sample_from_datasets
choose_from_datasets = Dataset.choose_from_datasets
load = Dataset.load


class TFRecordWriter:
    """Writes a dataset of strings to a file of records."""

    def __init__(self, filename: Any, compression_type: Any = None) -> None:
        self._path, self._compression = filename, compression_type

    def write(self, dataset: Dataset) -> None:
        with _Writer(self._path, self._compression) as writer:
            for record in dataset:
                writer.write(record)


def cardinality(dataset: Dataset) -> Tensor:
    found: Tensor = dataset.cardinality()
    return found


def save(dataset: Dataset, path: Any, compression: Any = None, shard_func: Any = None) -> None:
    dataset.save(path, compression, shard_func)


def snapshot(path: Any, compression: Any = "AUTO", reader_func: Any = None, shard_func: Any = None) -> Change:
    return lambda dataset: dataset.snapshot(path, compression, reader_func, shard_func)


def group_by_window(
    key_func: Callable[..., Any], reduce_func: Any, window_size: Any = None, window_size_func: Any = None
) -> Change:
    return lambda dataset: dataset.group_by_window(key_func, reduce_func, window_size, window_size_func)


def ignore_errors(log_warning: bool = False) -> Change:
    return lambda dataset: dataset.ignore_errors(log_warning)


def unbatch() -> Change:
    return lambda dataset: dataset.unbatch()


def shuffle_and_repeat(buffer_size: Any, count: Any = None, seed: Any = None) -> Change:
    return lambda dataset: dataset.shuffle(buffer_size, seed).repeat(count)


def map_and_batch(
    map_func: Callable[..., Any],
    batch_size: Any,
    num_parallel_batches: Any = None,
    drop_remainder: bool = False,
    num_parallel_calls: Any = None,
) -> Change:
    calls = AUTOTUNE if num_parallel_calls is None else num_parallel_calls
    return lambda dataset: dataset.map(map_func, calls).batch(batch_size, drop_remainder)


def parallel_interleave(
    map_func: Callable[..., Any],
    cycle_length: Any,
    block_length: Any = 1,
    sloppy: Any = False,
    buffer_output_elements: Any = None,
    prefetch_input_elements: Any = None,
) -> Change:
    return lambda dataset: dataset.interleave(map_func, cycle_length, block_length, AUTOTUNE)
