"""Dataset: elements one after the other, and the methods that make other datasets of it."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ....errors import OptionError
from .. import nest
from ..listing import list_paths
from ..seeds import seed_of
from ..values import String, Tensor
from . import iterate, sources, threads
from .base import AUTOTUNE, INFINITE, UNKNOWN, call
from .recipe import remember
from .settings import Options
from .storing import Storing

# Elements that prefetch(AUTOTUNE) keeps ready; they are often large batches.
PREFETCHED = 2


def _positive(value: Any, name: str) -> int:
    number = int(value)
    if number < 1:
        raise OptionError(f"{name} must be at least 1, not {number}")
    return number


def _workers(count: Any) -> int:
    """How many threads are meant; 0 is none but the caller's own."""
    if count is None:
        return 0
    return threads.cpu_count() if int(count) == AUTOTUNE else _positive(count, "num_parallel_calls")


class Dataset(Storing):
    """Elements that an iterator gives, anew for every pass. Elements are values in dicts and tuples."""

    @staticmethod
    def _new(make: Callable[[], Iterator[Any]], size: int = UNKNOWN, *, light: bool = False) -> Dataset:
        return Dataset(make, size, light=light)

    # Sources.

    @staticmethod
    def from_tensors(tensors: Any) -> Dataset:
        """One element."""
        element = nest.element(tensors)
        return Dataset(lambda: iter([element]), 1, light=True)

    @staticmethod
    def from_tensor_slices(tensors: Any) -> Dataset:
        """The rows of arrays."""
        whole = nest.element(tensors)
        count = nest.rows(whole)
        return Dataset(lambda: (nest.row(whole, number) for number in range(count)), count, light=True)

    @staticmethod
    def from_generator(
        generator: Callable[..., Any],
        output_types: Any = None,
        output_shapes: Any = None,
        args: tuple[Any, ...] | None = None,
        output_signature: Any = None,
    ) -> Dataset:
        """What a Python generator yields, checked against types and shapes where they are given."""
        return Dataset(sources.generated(generator, output_types, output_shapes, args, output_signature))

    @staticmethod
    def range(*args: int, output_type: Any = np.int64) -> Dataset:
        numbers = range(*(int(one) for one in args))
        kind = np.dtype(output_type)
        return Dataset(
            lambda: (np.array(one, dtype=kind).view(Tensor) for one in numbers), len(numbers), light=True
        )

    @staticmethod
    def list_files(file_pattern: Any, shuffle: bool | None = None, seed: Any = None) -> Dataset:
        """The files that match; in another order each time unless ``shuffle=False``, as in TensorFlow."""
        paths = list_paths(file_pattern)
        files = Dataset(lambda: (String(path.encode()) for path in paths), len(paths), light=True)
        return files if shuffle is False else files.shuffle(len(paths), seed)

    @staticmethod
    def zip(*args: Any, datasets: Any = None) -> Dataset:
        """Elements side by side, as long as the shortest."""
        structure = datasets if datasets is not None else args[0] if len(args) == 1 else args
        leaves = list(nest.flatten(structure))
        if not leaves or not all(isinstance(one, Dataset) for one in leaves):
            raise OptionError("zip needs datasets, in a tuple or a dict")
        makes = nest.map_structure(lambda one: one._make, structure)
        sizes = [one._size for one in leaves]
        known = [size for size in sizes if size >= 0]
        size = UNKNOWN if UNKNOWN in sizes else min(known) if known else INFINITE
        return Dataset(lambda: sources.side_by_side(makes), size)

    @staticmethod
    def sample_from_datasets(
        datasets: Any,
        weights: Any = None,
        seed: Any = None,
        stop_on_empty_dataset: bool = False,
        rerandomize_each_iteration: bool | None = None,
    ) -> Dataset:
        base, passes = seed_of(seed), itertools.count()
        chances = None if weights is None else [float(one) for one in np.asarray(weights)]
        if chances is not None and (len(chances) != len(datasets) or min(chances, default=0) < 0):
            raise OptionError(f"weights must be {len(datasets)} numbers, none below 0")
        makes = [one._make for one in datasets]
        return Dataset(
            lambda: iterate.sample(makes, chances, f"{base}/{next(passes)}", stop_on_empty_dataset)
        )

    @staticmethod
    def choose_from_datasets(
        datasets: Any, choice_dataset: Dataset, stop_on_empty_dataset: bool = True
    ) -> Dataset:
        makes = [one._make for one in datasets]
        return Dataset(lambda: iterate.choose(choice_dataset._make(), makes, stop_on_empty_dataset))

    # One dataset out of another.

    def map(
        self, map_func: Callable[..., Any], num_parallel_calls: Any = None, deterministic: Any = None
    ) -> Dataset:
        """The function applied to every element; with parallel calls by several threads, still in order."""
        workers = _workers(num_parallel_calls)

        def one(element: Any) -> Any:
            return nest.element(call(map_func, element))

        def make() -> Iterator[Any]:
            if workers > 1:
                return threads.ParallelMap(self._make(), one, workers)
            return iterate.Map(self._make(), one)

        return Dataset(make, self._size)

    def interleave(
        self,
        map_func: Callable[..., Any],
        cycle_length: Any = None,
        block_length: Any = None,
        num_parallel_calls: Any = None,
        deterministic: Any = None,
    ) -> Dataset:
        """The elements of datasets, ``block_length`` of each of ``cycle_length`` in turn."""
        if cycle_length is None or int(cycle_length) == AUTOTUNE:
            cycle = threads.cycle_length(num_parallel_calls)
        else:
            cycle = _positive(cycle_length, "cycle_length")
        block = _positive(1 if block_length is None else block_length, "block_length")
        parallel = num_parallel_calls is not None

        def open_one(element: Any) -> Iterator[Any]:
            made = call(map_func, element)
            if not isinstance(made, Dataset):
                raise OptionError(f"the function must return a dataset, not {type(made).__name__}")
            if parallel and not made._light:
                return threads.Prefetch(made._make, max(PREFETCHED, block))
            return made._make()

        return Dataset(lambda: iterate.interleave(self._make(), open_one, cycle, block))

    def flat_map(self, map_func: Callable[..., Any]) -> Dataset:
        return self.interleave(map_func, cycle_length=1)

    def shuffle(
        self, buffer_size: Any, seed: Any = None, reshuffle_each_iteration: bool | None = None
    ) -> Dataset:
        """In random order, as far as a buffer of so many elements lets it; in another for every pass."""
        size = self._size if int(buffer_size) == AUTOTUNE and self._size > 0 else buffer_size
        most = max(1, int(size)) if self._size == 0 else _positive(size, "buffer_size")
        base, passes = seed_of(seed), itertools.count()

        def make() -> Iterator[Any]:
            number = 0 if reshuffle_each_iteration is False else next(passes)
            return iterate.shuffle(self._make(), most, f"{base}/{number}")

        return Dataset(make, self._size)

    def batch(
        self,
        batch_size: Any,
        drop_remainder: bool = False,
        num_parallel_calls: Any = None,
        deterministic: Any = None,
    ) -> Dataset:
        size = _positive(batch_size, "batch_size")
        return Dataset(
            lambda: iterate.batch(self._make(), size, bool(drop_remainder), nest.stack),
            self._parts(size, drop_remainder),
        )

    def padded_batch(
        self,
        batch_size: Any,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: bool = False,
    ) -> Dataset:
        """Batches in which every value is filled up to the longest."""
        size = _positive(batch_size, "batch_size")

        def join(elements: list[Any]) -> Any:
            return nest.pad(elements, padded_shapes, padding_values)

        return Dataset(
            lambda: iterate.batch(self._make(), size, bool(drop_remainder), join),
            self._parts(size, drop_remainder),
        )

    def unbatch(self) -> Dataset:
        return Dataset(lambda: iterate.unbatch(self._make()), INFINITE if self._size == INFINITE else UNKNOWN)

    def window(self, size: Any, shift: Any = None, stride: Any = 1, drop_remainder: bool = False) -> Dataset:
        """Datasets of ``size`` elements each, which begin ``shift`` apart."""
        most, step = _positive(size, "size"), _positive(stride, "stride")
        apart = most if shift is None else _positive(shift, "shift")

        def part(elements: list[Any]) -> Any:
            return nest.map_structure(
                lambda *leaves: Dataset(lambda: iter(leaves), len(leaves), light=True), *elements
            )

        def make() -> Iterator[Any]:
            return (
                part(elements)
                for elements in iterate.windows(self._make(), most, apart, step, bool(drop_remainder))
            )

        return Dataset(make)

    def prefetch(self, buffer_size: Any) -> Dataset:
        """A thread prepares so many elements ahead."""
        most = PREFETCHED if int(buffer_size) == AUTOTUNE else int(buffer_size)
        if most == 0:
            return self
        size = _positive(most, "buffer_size")
        return Dataset(lambda: threads.Prefetch(self._make, size), self._size)

    def group_by_window(
        self,
        key_func: Callable[..., Any],
        reduce_func: Callable[[Any, Dataset], Dataset],
        window_size: Any = None,
        window_size_func: Callable[[Any], Any] | None = None,
        name: Any = None,
    ) -> Dataset:
        """What ``reduce_func(key, dataset)`` makes of every ``window_size`` elements of one key."""
        if (window_size is None) == (window_size_func is None):
            raise OptionError("give window_size or window_size_func")

        def size_of(key: int) -> int:
            return int(window_size if window_size_func is None else window_size_func(_number(key)))

        def reduced(key: int, items: list[Any]) -> Iterator[Any]:
            made = reduce_func(_number(key), Dataset(lambda: iter(items), len(items), light=True))
            if not isinstance(made, Dataset):
                raise OptionError(f"reduce_func must return a dataset, not {type(made).__name__}")
            return made._make()

        def key_of(element: Any) -> int:
            return int(call(key_func, element))

        return Dataset(lambda: iterate.group(self._make(), key_of, size_of, reduced))

    def repeat(self, count: Any = None) -> Dataset:
        times = None if count is None or int(count) < 0 else int(count)
        size = self._size
        if times is None:
            size = INFINITE if size != 0 else 0
        elif size >= 0:
            size *= times
        return Dataset(lambda: iterate.repeat(self._make, times), size if times != 0 else 0)

    def take(self, count: Any) -> Dataset:
        most = int(count)
        if most < 0:
            return self
        size = self._size if self._size in (UNKNOWN, INFINITE) else min(self._size, most)
        size = most if self._size == INFINITE else size
        return Dataset(lambda: itertools.islice(self._make(), most), size, light=self._light)

    def skip(self, count: Any) -> Dataset:
        left = int(count)
        if left < 0:
            return Dataset(lambda: iter(()), 0)
        size = self._size if self._size < 0 else max(0, self._size - left)
        return Dataset(lambda: itertools.islice(self._make(), left, None), size, light=self._light)

    def shard(self, num_shards: Any, index: Any) -> Dataset:
        """Every ``num_shards``-th element from ``index`` on."""
        step, first = _positive(num_shards, "num_shards"), int(index)
        if not 0 <= first < step:
            raise OptionError(f"index must be from 0 to {step - 1}, not {first}")
        size = self._size if self._size < 0 else len(range(first, self._size, step))
        return Dataset(lambda: itertools.islice(self._make(), first, None, step), size, light=self._light)

    def filter(self, predicate: Callable[..., Any]) -> Dataset:
        return Dataset(lambda: (one for one in self._make() if call(predicate, one)))

    def take_while(self, predicate: Callable[..., Any]) -> Dataset:
        return Dataset(lambda: iterate.take_while(self._make(), lambda one: call(predicate, one)))

    def enumerate(self, start: Any = 0) -> Dataset:
        return Dataset.zip(Dataset.range(int(start), 2**63 - 1), self)

    def concatenate(self, dataset: Dataset) -> Dataset:
        sizes = (self._size, dataset._size)
        size = INFINITE if INFINITE in sizes else UNKNOWN if UNKNOWN in sizes else sum(sizes)
        return Dataset(lambda: iterate.concatenate([self._make, dataset._make]), size)

    def ignore_errors(self, log_warning: bool = False) -> Dataset:
        """Leaves out the elements whose making failed."""

        def warn(error: Exception) -> None:
            warnings.warn(f"left out: {error}", stacklevel=2)

        return Dataset(lambda: iterate.ignore_errors(self._make(), warn if log_warning else None))

    def apply(self, transformation_func: Callable[[Dataset], Dataset]) -> Dataset:
        return transformation_func(self)

    def with_options(self, options: Any) -> Dataset:
        """The same: the options steer TensorFlow's runtime, which is not here."""
        return self

    def options(self) -> Options:
        return Options()

    def _parts(self, size: int, drop: bool) -> int:
        """How many batches of this size there are."""
        if self._size < 0:
            return self._size
        return self._size // size if drop else -(-self._size // size)


def _number(key: int) -> Any:
    return np.array(key, dtype=np.int64).view(Tensor)


# Whatever gives a dataset is remembered by it.
for _owner in (Dataset, Storing):
    remember(_owner)
