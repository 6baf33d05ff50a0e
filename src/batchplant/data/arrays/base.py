"""Array: the base class of all kinds, and the meaning of slices."""

from __future__ import annotations

import contextlib
import copy
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...errors import BatchplantError, OptionError, SampleIndexError, exceptions_as, located
from ...schema.columns import I64, AnyArray, AnyDType
from ...storage import limits
from ...storage.cache import ChunkKeys
from ...storage.spans import Spans
from .parallel import each

# Selection of an array: for each axis an ascending range.
Picks = tuple[range, ...]


class Array:
    """An N-d array in a file. Slicing it, as in NumPy, reads these values and nothing else.

    ``chunks`` is the shape of the blocks that are read at a time. ``numpy.asarray`` reads all values.
    """

    # Arguments of ``_from_reader``, for pickling; ``array_of`` sets them.
    made_by: tuple[Any, str] | None = None

    def __init__(
        self, path: str, field: str, shape: Sequence[int], dtype: AnyDType, chunks: Sequence[int]
    ) -> None:
        self.path = path
        self.field = field
        self.shape = tuple(shape)
        self.dtype = dtype
        self.chunks = tuple(chunks)

    # -- what a kind of array implements ---------------------------------------------------------------

    def _take(self, picks: Picks) -> AnyArray:
        """Read the selected values, in this array's dtype."""
        raise NotImplementedError

    def _stored(self) -> int | None:
        """Return the bytes that all values take in storage; None: at least as many as the shape implies."""
        return None

    def _boxes(self, boxes: Sequence[Box], out: AnyArray) -> None:
        def put(box: Box) -> None:
            with box.add_to_errors():
                out[box.target] = self._take(box.picks)

        each(put, boxes, out.nbytes)

    def _ranges(self, boxes: Sequence[Box]) -> Spans | None:
        """Return the byte ranges that reading these boxes takes; None if unknown, or if all is in memory."""
        return None

    # -- what users call -------------------------------------------------------------------------------

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without axes has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        with located(path=self.path, field=self.field):
            key_picks, shape = picks_of(key, self.shape)
            self._check_size(math.prod(map(len, key_picks)))
            picks = tuple(pick if pick.step > 0 else pick[::-1] for pick in key_picks)
            directions = tuple(slice(None, None, 1 if pick.step > 0 else -1) for pick in key_picks)
            values = np.ascontiguousarray(self._take(picks)[directions]).reshape(shape)
        return values[()]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> AnyArray:
        if copy is False:
            raise ValueError("the values lie in a file: an array of them is a copy")
        values = np.asarray(self[...])
        return values if dtype is None else values.astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"<array {self.field}: {self.dtype} {self.shape} in chunks of {self.chunks}>"

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        if self.made_by is None:
            raise TypeError("this array was not made by a reader, and cannot be pickled")
        return _from_reader, self.made_by

    def read_boxes(self, starts: I64, size: Sequence[int], out: AnyArray, rows: I64 | None = None) -> None:
        """Read boxes of one size along the first axes, each into its row of ``out``: 0, 1 …, or ``rows``.

        Leaves those values of ``out`` alone that lie outside of the array.
        """
        rows = np.arange(len(starts)) if rows is None else rows
        with located(path=self.path, field=self.field):
            self._boxes(list(self._clipped(starts, size, rows)), out)

    def read_runs(self, starts: I64, counts: I64) -> AnyArray:
        """Return runs of values of an array of one axis, one run after another; all lie inside."""
        with located(path=self.path, field=self.field):
            self._check_size(int(counts.sum()))
            return self._runs_of(starts, counts)

    def _runs_of(self, starts: I64, counts: I64) -> AnyArray:
        runs = [self._take((range(start, end),)) for start, end in zip(starts, starts + counts, strict=True)]
        return np.concatenate([np.empty(0, self.dtype), *runs])

    def ranges(self, starts: I64, size: Sequence[int]) -> Spans | None:
        """Return the byte ranges of these boxes; None if unknown."""
        return self._ranges(list(self._clipped(starts, size, np.arange(len(starts)))))

    def chunk_keys(self, starts: I64, size: Sequence[int]) -> ChunkKeys | None:
        """Return the cache of decoded chunks, and its keys of those that boxes touch; None: there is none."""
        return None

    def _clipped(self, starts: I64, size: Sequence[int], rows: I64) -> Iterator[Box]:
        inner_picks = [range(length) for length in self.shape[len(size) :]]
        shape = self.shape[: len(size)]
        for row, start in zip(rows.tolist(), starts.tolist(), strict=True):
            picks = [
                range(max(first, 0), min(first + extent, end))
                for first, extent, end in zip(start, size, shape, strict=True)
            ]
            if all(picks):
                inner = zip(picks, start, strict=True)
                target = (row, *(slice(pick.start - first, pick.stop - first) for pick, first in inner))
                yield Box(row, (*picks, *inner_picks), target)

    def _check_size(self, values: int) -> None:
        """Refuse to allocate memory for more values than the stored bytes can plausibly hold."""
        size = values * self.dtype.itemsize
        if size > limits.max_bytes():
            stored = self._stored()
            if stored is not None:
                limits.check("the slice", size, stored)


class Box(NamedTuple):
    """A box of several that are read together: its selection, and its target in the output."""

    # Number of the box; None if there is only one.
    row: int | None
    picks: Picks
    target: tuple[Any, ...]

    @contextlib.contextmanager
    def add_to_errors(self) -> Iterator[None]:
        """Set the number of the box as the sample of errors."""
        try:
            yield
        except BatchplantError as error:
            if self.row is None:
                raise
            # Another thread may raise the very same exception.
            box_error = copy.copy(error)
            box_error.sample = self.row
            raise box_error from None


def _from_reader(reader: Any, field: str) -> Array:
    return reader.array(field)


def picks_of(key: Any, shape: tuple[int, ...]) -> tuple[Picks, tuple[int, ...]]:
    """Return the selection of each axis, and the shape of the result, which has no axis for a number."""
    keys = list(key) if isinstance(key, tuple) else [key]
    dots = [position for position, entry in enumerate(keys) if entry is Ellipsis]
    if len(dots) > 1:
        raise OptionError("only one ellipsis (…) can stand in an index")
    missing = len(shape) - len(keys) + len(dots)
    if missing < 0:
        raise SampleIndexError(f"{len(keys) - len(dots)} indices for an array of {len(shape)} axes")
    first = dots[0] if dots else len(keys)
    keys[first : first + len(dots)] = [slice(None)] * missing
    picks: list[range] = []
    sizes: list[int] = []
    for axis, (index, size) in enumerate(zip(keys, shape, strict=True)):
        if isinstance(index, slice):
            with exceptions_as(OptionError, f"axis {axis}", TypeError, ValueError):
                picks.append(range(size)[index])
            sizes.append(len(picks[-1]))
            continue
        try:
            number = operator.index(index)
        except TypeError:
            raise OptionError(f"an array is sliced with numbers, slices and …, not with {index!r}") from None
        if isinstance(index, bool | np.bool_):
            raise OptionError("an array is not indexed with True or False")
        if not -size <= number < size:
            raise SampleIndexError(f"index {number} is out of range for axis {axis}, which has {size}")
        number %= size
        picks.append(range(number, number + 1))
    return tuple(picks), tuple(sizes)
