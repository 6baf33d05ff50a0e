"""Dataset: elements one after the other, and the methods that make other datasets of them."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, SupportsInt

import numpy as np
import numpy.typing as npt

from ....errors import OptionError
from ....storage.platform import cpu_count
from .. import nest
from ..errors import OutOfRangeError
from ..random import step_seed
from ..records import list_paths, parse_compression, read_records
from ..values import (
    Element,
    SparseTensor,
    String,
    Tensor,
    TensorSpec,
    as_dtype,
    as_tensor,
    as_text,
    as_texts,
    check_shape,
    tensor,
)
from . import iterate, threads
from .iterate import StartPass

AUTOTUNE = -1
INFINITE = -1
UNKNOWN = -2

# Elements that prefetch(AUTOTUNE) keeps ready; they are often large batches.
DEFAULT_PREFETCH_ELEMENTS = 2


class Options:
    """Options of TensorFlow's runtime, which have no effect here.

    Any option may be set, and options of options: ``options.threading.private_threadpool_size = 4``.
    """

    def __getattr__(self, name: str) -> Options:
        if name.startswith("__"):
            raise AttributeError(name)
        group = Options()
        setattr(self, name, group)
        return group


class DatasetIterator:
    """One pass over a dataset."""

    def __init__(self, source: Iterator[Element]) -> None:
        self._source = source

    def __iter__(self) -> DatasetIterator:
        return self

    def __next__(self) -> Element:
        return next(self._source)

    def get_next(self) -> Element:
        try:
            return next(self._source)
        except StopIteration:
            raise OutOfRangeError("the dataset has ended") from None


def _positive(value: SupportsInt, name: str) -> int:
    number = int(value)
    if number < 1:
        raise OptionError(f"{name} must be at least 1, not {number}")
    return number


def _thread_count(calls: SupportsInt | None) -> int:
    """Return the number of threads for parallel calls; 0 means the caller's own."""
    if calls is None:
        return 0
    return cpu_count() if int(calls) == AUTOTUNE else _positive(calls, "num_parallel_calls")


def _call(function: Callable[..., Element], element: Element) -> Element:
    """Call the function with the parts of a tuple as its arguments, or with the one value."""
    return function(*element) if isinstance(element, tuple) else function(element)


class Dataset:
    """Elements that ``start_pass()`` yields anew for every pass; ``size`` of them, where that is known.

    Elements are values in dicts and tuples. ``is_cheap`` says that yielding an element costs less than
    handing it over from another thread.
    """

    def __init__(self, start_pass: StartPass, size: int = UNKNOWN, *, is_cheap: bool = False) -> None:
        self._start_pass = start_pass
        self._size = size
        self._is_cheap = is_cheap

    # Sources.

    @staticmethod
    def from_tensors(tensors: Element) -> Dataset:
        """Return a dataset of one element."""
        element = nest.element(tensors)
        return Dataset(lambda: iter([element]), 1, is_cheap=True)

    @staticmethod
    def from_tensor_slices(tensors: Element) -> Dataset:
        """Return a dataset of the rows of arrays."""
        arrays = nest.element(tensors)
        count = nest.row_count(arrays)
        return Dataset(lambda: (nest.row(arrays, index) for index in range(count)), count, is_cheap=True)

    @staticmethod
    def from_generator(
        generator: Callable[..., Any],
        output_types: Element = None,
        output_shapes: Element = None,
        args: Sequence[object] | None = None,
        output_signature: Element = None,
    ) -> Dataset:
        """Return the values of a Python generator, checked against types and shapes where they are given."""
        if not callable(generator):
            raise OptionError(
                "from_generator needs a function that makes an iterator, not the iterator itself"
            )
        arguments = tuple(tensor(argument).numpy() for argument in args or ())
        signature = output_signature
        if signature is None and output_types is not None:
            signature = nest.map_structure(lambda dtype: TensorSpec(None, dtype), output_types)

        def start_pass() -> Iterator[Element]:
            for value in generator(*arguments):
                if signature is not None:
                    # A generator may yield a list in place of a tuple.
                    if isinstance(signature, tuple) and isinstance(value, list):
                        value = tuple(value)
                    value = nest.map_structure(_fit, signature, value)
                value = nest.element(value)
                if output_shapes is not None:
                    nest.map_structure(
                        lambda shape, leaf: check_shape(leaf, shape.content),
                        nest.spread(output_shapes, value),
                        value,
                    )
                yield value

        return Dataset(start_pass)

    @staticmethod
    def range(*args: SupportsInt, output_type: npt.DTypeLike = np.int64) -> Dataset:
        numbers = range(*(int(argument) for argument in args))
        dtype = np.dtype(output_type)
        return Dataset(
            lambda: (as_tensor(np.array(number, dtype=dtype)) for number in numbers),
            len(numbers),
            is_cheap=True,
        )

    @staticmethod
    def list_files(
        file_pattern: object, shuffle: bool | None = None, seed: SupportsInt | None = None
    ) -> Dataset:
        """Return the files that match; in another order each time unless ``shuffle=False``."""
        paths = list_paths(file_pattern)
        files = Dataset(lambda: (String(path.encode()) for path in paths), len(paths), is_cheap=True)
        return files if shuffle is False else files.shuffle(len(paths), seed)

    @staticmethod
    def zip(*args: Element, datasets: Element = None) -> Dataset:
        """Return tuples or dicts of the elements of several datasets, until the shortest ends."""
        structure = datasets if datasets is not None else args[0] if len(args) == 1 else args
        leaves = list(nest.flatten(structure))
        if not leaves or not all(isinstance(leaf, Dataset) for leaf in leaves):
            raise OptionError("zip needs datasets, in a tuple or a dict")
        passes = nest.map_structure(lambda dataset: dataset._start_pass, structure)
        sizes = [dataset._size for dataset in leaves]
        finite = [size for size in sizes if size >= 0]
        size = UNKNOWN if UNKNOWN in sizes else min(finite) if finite else INFINITE
        return Dataset(lambda: iterate.zip_structure(passes), size)

    # Datasets of other datasets.

    def map(
        self,
        map_func: Callable[..., Element],
        num_parallel_calls: SupportsInt | None = None,
        deterministic: bool | None = None,
    ) -> Dataset:
        """Apply the function to every element; parallel calls use several threads and keep the order."""
        thread_count = _thread_count(num_parallel_calls)

        def apply(element: Element) -> Element:
            return nest.element(_call(map_func, element))

        def start_pass() -> Iterator[Element]:
            if thread_count > 1:
                return threads.ParallelMap(self._start_pass(), apply, thread_count)
            return iterate.Map(self._start_pass(), apply)

        return Dataset(start_pass, self._size)

    def interleave(
        self,
        map_func: Callable[..., Dataset],
        cycle_length: SupportsInt | None = None,
        block_length: SupportsInt | None = None,
        num_parallel_calls: SupportsInt | None = None,
        deterministic: bool | None = None,
    ) -> Dataset:
        """Take ``block_length`` elements of each of ``cycle_length`` datasets in turn."""
        if cycle_length is None or int(cycle_length) == AUTOTUNE:
            cycle = threads.cycle_length(num_parallel_calls)
        else:
            cycle = _positive(cycle_length, "cycle_length")
        block = _positive(1 if block_length is None else block_length, "block_length")
        is_parallel = num_parallel_calls is not None

        def open_dataset(element: Element) -> Iterator[Element]:
            dataset = _call(map_func, element)
            if not isinstance(dataset, Dataset):
                raise OptionError(f"the function must return a dataset, not {type(dataset).__name__}")
            if is_parallel and not dataset._is_cheap:
                return threads.Prefetch(dataset._start_pass, max(DEFAULT_PREFETCH_ELEMENTS, block))
            return dataset._start_pass()

        return Dataset(lambda: iterate.interleave(self._start_pass(), open_dataset, cycle, block))

    def flat_map(self, map_func: Callable[..., Dataset]) -> Dataset:
        return self.interleave(map_func, cycle_length=1)

    def shuffle(
        self,
        buffer_size: SupportsInt,
        seed: SupportsInt | None = None,
        reshuffle_each_iteration: bool | None = None,
    ) -> Dataset:
        """Draw elements at random from a buffer of this size; in another order for every pass."""
        size = self._size if int(buffer_size) == AUTOTUNE and self._size > 0 else int(buffer_size)
        capacity = max(1, size) if self._size == 0 else _positive(size, "buffer_size")
        base, pass_numbers = step_seed(seed), itertools.count()

        def start_pass() -> Iterator[Element]:
            number = 0 if reshuffle_each_iteration is False else next(pass_numbers)
            return iterate.shuffle(self._start_pass(), capacity, f"{base}/{number}")

        return Dataset(start_pass, self._size)

    def batch(
        self,
        batch_size: SupportsInt,
        drop_remainder: bool = False,
        num_parallel_calls: SupportsInt | None = None,
        deterministic: bool | None = None,
    ) -> Dataset:
        return self._batch(batch_size, drop_remainder, nest.stack)

    def padded_batch(
        self,
        batch_size: SupportsInt,
        padded_shapes: Element = None,
        padding_values: Element = None,
        drop_remainder: bool = False,
    ) -> Dataset:
        """Return batches in which every value is padded to the longest."""
        return self._batch(
            batch_size, drop_remainder, lambda elements: nest.pad(elements, padded_shapes, padding_values)
        )

    def _batch(
        self, batch_size: SupportsInt, drop_remainder: bool, join: Callable[[list[Element]], Element]
    ) -> Dataset:
        size = _positive(batch_size, "batch_size")
        count = self._size
        if count >= 0:
            count = count // size if drop_remainder else -(-count // size)
        return Dataset(lambda: iterate.batch(self._start_pass(), size, bool(drop_remainder), join), count)

    def unbatch(self) -> Dataset:
        size = INFINITE if self._size == INFINITE else UNKNOWN
        return Dataset(lambda: iterate.unbatch(self._start_pass()), size)

    def prefetch(self, buffer_size: SupportsInt) -> Dataset:
        """Let a thread prepare this number of elements ahead."""
        capacity = DEFAULT_PREFETCH_ELEMENTS if int(buffer_size) == AUTOTUNE else int(buffer_size)
        if capacity == 0:
            return self
        size = _positive(capacity, "buffer_size")
        return Dataset(lambda: threads.Prefetch(self._start_pass, size), self._size)

    def cache(self, filename: object = "") -> Dataset:
        """Keep the elements in memory after the first complete pass."""
        if as_text(filename):
            raise OptionError(
                "cache(filename) is not mirrored; cache() keeps elements in memory, "
                "tf.io.TFRecordWriter and batchplant.create write them to a file"
            )
        return Dataset(iterate.cache(self._start_pass), self._size)

    def repeat(self, count: SupportsInt | None = None) -> Dataset:
        times = None if count is None or int(count) < 0 else int(count)
        size = self._size
        if times is None:
            size = INFINITE if size != 0 else 0
        elif size >= 0:
            size *= times
        return Dataset(lambda: iterate.repeat(self._start_pass, times), size if times != 0 else 0)

    def take(self, count: SupportsInt) -> Dataset:
        limit = int(count)
        if limit < 0:
            return self
        size = self._size if self._size == UNKNOWN else min(self._size, limit)
        size = limit if self._size == INFINITE else size
        return Dataset(lambda: itertools.islice(self._start_pass(), limit), size, is_cheap=self._is_cheap)

    def skip(self, count: SupportsInt) -> Dataset:
        first = int(count)
        if first < 0:
            return Dataset(lambda: iter(()), 0)
        size = self._size if self._size < 0 else max(0, self._size - first)
        return Dataset(
            lambda: itertools.islice(self._start_pass(), first, None), size, is_cheap=self._is_cheap
        )

    def shard(self, num_shards: SupportsInt, index: SupportsInt) -> Dataset:
        """Return every ``num_shards``-th element, beginning at ``index``."""
        step, first = _positive(num_shards, "num_shards"), int(index)
        if not 0 <= first < step:
            raise OptionError(f"index must be from 0 to {step - 1}, not {first}")
        size = self._size if self._size < 0 else len(range(first, self._size, step))
        return Dataset(
            lambda: itertools.islice(self._start_pass(), first, None, step), size, is_cheap=self._is_cheap
        )

    def filter(self, predicate: Callable[..., Any]) -> Dataset:
        return Dataset(lambda: (element for element in self._start_pass() if _call(predicate, element)))

    def take_while(self, predicate: Callable[..., Any]) -> Dataset:
        return Dataset(
            lambda: itertools.takewhile(lambda element: _call(predicate, element), self._start_pass())
        )

    def enumerate(self, start: SupportsInt = 0) -> Dataset:
        return Dataset.zip(Dataset.range(int(start), 2**63 - 1), self)

    def concatenate(self, dataset: Dataset) -> Dataset:
        sizes = (self._size, dataset._size)
        size = INFINITE if INFINITE in sizes else UNKNOWN if UNKNOWN in sizes else sum(sizes)
        return Dataset(lambda: iterate.concatenate([self._start_pass, dataset._start_pass]), size)

    def ignore_errors(self, log_warning: bool = False) -> Dataset:
        """Leave out the elements whose computation failed."""

        def warn(error: Exception) -> None:
            warnings.warn(f"left out: {error}", stacklevel=2)

        return Dataset(lambda: iterate.ignore_errors(self._start_pass(), warn if log_warning else None))

    def apply(self, transformation_func: Callable[[Dataset], Dataset]) -> Dataset:
        return transformation_func(self)

    def with_options(self, options: object) -> Dataset:
        """Return the same dataset: the options configure TensorFlow's runtime."""
        return self

    # Results.

    def __iter__(self) -> DatasetIterator:
        return DatasetIterator(self._start_pass())

    def as_numpy_iterator(self) -> Iterator[Element]:
        """Return elements of plain NumPy arrays, NumPy scalars and bytes."""
        return (nest.to_numpy(element) for element in self._start_pass())

    def __len__(self) -> int:
        if self._size < 0:
            # Not one of our errors: list() asks for the length, and continues after a TypeError.
            raise TypeError("the dataset is endless" if self._size == INFINITE else "its length is not known")
        return self._size

    def __bool__(self) -> bool:
        return True

    def cardinality(self) -> Tensor:
        """Return the number of elements; -1: endless, -2: not known."""
        return _int64(self._size)

    def reduce(self, initial_state: Element, reduce_func: Callable[[Any, Any], Element]) -> Element:
        """Return the last of ``state = reduce_func(state, element)`` over all elements."""
        state = nest.element(initial_state)
        for element in self._start_pass():
            state = nest.element(reduce_func(state, element))
        return state

    def get_single_element(self) -> Element:
        elements = list(itertools.islice(self._start_pass(), 2))
        if not elements:
            raise OptionError("the dataset is empty, one element is needed")
        if len(elements) > 1:
            raise OptionError("the dataset has more than one element")
        return elements[0]

    @property
    def element_spec(self) -> Element:
        """Types and shapes of the first element, which is computed for it; others may have other shapes."""
        for element in self._start_pass():
            return nest.map_structure(_spec, element)
        raise OptionError("the dataset is empty, so nothing is known of its elements")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"batchplant.tfrecord does not mirror the dataset method {name!r}")

    def __repr__(self) -> str:
        size = {INFINITE: "endless", UNKNOWN: "of unknown length"}.get(self._size, f"of {self._size}")
        return f"<{type(self).__name__} {size}>"


def _int64(number: int) -> Tensor:
    return as_tensor(np.array(number, dtype=np.int64))


def _fit(spec: object, value: object) -> Element:
    """Return the value in the spec's type; SchemaError where its shape differs."""
    if not isinstance(spec, TensorSpec):
        raise OptionError(f"{type(spec).__name__} in output_signature is not mirrored; use tf.TensorSpec")
    typed = tensor(value, spec.dtype)
    check_shape(typed, spec.shape)
    return typed


def _spec(leaf: Any) -> TensorSpec | type:
    if isinstance(leaf, SparseTensor | Dataset):
        return type(leaf)
    return TensorSpec(leaf.shape, as_dtype(leaf.dtype))


class TFRecordDataset(Dataset):
    """The records of TFRecord files; ``num_parallel_reads`` takes them from that many files in turn."""

    def __init__(
        self,
        filenames: object,
        compression_type: object = None,
        buffer_size: object = None,
        num_parallel_reads: SupportsInt | None = None,
        name: object = None,
    ) -> None:
        compression = parse_compression(compression_type)
        names = (
            filenames
            if isinstance(filenames, Dataset)
            else [String(path.encode()) for path in as_texts(filenames)]
        )
        cycle = 1
        if num_parallel_reads is not None:
            reads = int(num_parallel_reads)
            cycle = (
                threads.cycle_length(AUTOTUNE)
                if reads == AUTOTUNE
                else _positive(reads, "num_parallel_reads")
            )

        def open_file(name: object) -> Iterator[Element]:
            return read_records(as_text(name), compression)

        # Reading is fast enough in one thread; parallel reads only determine the order.
        super().__init__(lambda: iterate.interleave(iter(names), open_file, cycle, 1), is_cheap=True)
