"""What every dataset can do at its end: be iterated over, counted, reduced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ....errors import OptionError
from .. import nest
from ..errors import OutOfRangeError
from ..values import RaggedTensor, SparseTensor, Tensor, TensorSpec, as_dtype

AUTOTUNE = -1
INFINITE = -1
UNKNOWN = -2


def call(function: Callable[..., Any], element: Any) -> Any:
    """The function with the parts of a tuple as its arguments, or with the one value."""
    return function(*element) if isinstance(element, tuple) else function(element)


class DatasetIterator:
    """One pass over a dataset."""

    def __init__(self, source: Iterator[Any]) -> None:
        self._source = source

    def __iter__(self) -> DatasetIterator:
        return self

    def __next__(self) -> Any:
        return next(self._source)

    def get_next(self) -> Any:
        try:
            return next(self._source)
        except StopIteration:
            raise OutOfRangeError("the dataset has ended") from None


class Base:
    """Elements that ``make()`` gives anew for every pass; ``size`` of them, where that is known."""

    def __init__(
        self, make: Callable[[], Iterator[Any]], size: int = UNKNOWN, *, light: bool = False
    ) -> None:
        self._make = make
        self._size = size
        # Giving out an element costs so little that a thread for it would cost more.
        self._light = light

    # How it was made, see recipe.py.
    _recipe: Any = None

    def __iter__(self) -> DatasetIterator:
        return DatasetIterator(self._make())

    def as_numpy_iterator(self) -> Iterator[Any]:
        """Elements of plain NumPy arrays, NumPy scalars and bytes."""
        return (nest.to_numpy(element) for element in self._make())

    def __len__(self) -> int:
        if self._size < 0:
            # Not one of ours: list() asks for the length, and goes on after a TypeError.
            raise TypeError("the dataset is endless" if self._size == INFINITE else "its length is not known")
        return self._size

    def __bool__(self) -> bool:
        return True

    def cardinality(self) -> Any:
        """How many elements there are; -1: endless, -2: not known."""
        return np.array(self._size, dtype=np.int64).view(Tensor)

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """``state = reduce_func(state, element)`` for every element."""
        state = nest.element(initial_state)
        for element in self._make():
            state = nest.element(reduce_func(state, element))
        return state

    def get_single_element(self) -> Any:
        elements = self._make()
        try:
            [element] = (next(elements),)
        except StopIteration:
            raise OptionError("the dataset is empty, one element is needed") from None
        if next(elements, None) is not None:
            raise OptionError("the dataset has more than one element")
        return element

    @property
    def element_spec(self) -> Any:
        """Types and shapes of the first element, which is made for it; later ones may have other shapes."""
        for element in self._make():
            return nest.map_structure(_spec, element)
        raise OptionError("the dataset is empty, so nothing is known of its elements")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"batchplant.tfrecord does not mirror the dataset method {name!r}")

    def __repr__(self) -> str:
        size = {INFINITE: "endless", UNKNOWN: "of unknown length"}.get(self._size, f"of {self._size}")
        return f"<{type(self).__name__} {size}>"


def _spec(leaf: Any) -> Any:
    if isinstance(leaf, SparseTensor | RaggedTensor | Base):
        return type(leaf)
    return TensorSpec(leaf.shape, as_dtype(leaf.dtype))
