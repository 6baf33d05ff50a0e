"""Array: what all kinds have in common, and what slices mean."""

from __future__ import annotations

import contextlib
import copy
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...errors import BatchplantError, OptionError, SampleIndexError
from ...schema.columns import I64, Spans
from ...storage import limits
from .parallel import each

# What is taken of an array: for each axis a range that ascends.
Picks = tuple[range, ...]


class Array:
    """An N-d array in a file. Slicing it, as in NumPy, reads what is asked for and nothing else.

    ``chunks`` is the shape of what is read at a time. ``numpy.asarray`` reads the whole.
    """

    # The reader that made it and how, for pickling; the reader sets it.
    made_by: tuple[Any, str] | None = None

    def __init__(
        self, path: str, field: str, shape: Sequence[int], dtype: np.dtype[Any], chunks: Sequence[int]
    ) -> None:
        self.path = path
        self.field = field
        self.shape = tuple(shape)
        self.dtype = dtype
        self.chunks = tuple(chunks)

    # -- what a kind of array implements ---------------------------------------------------------------

    def _take(self, picks: Picks) -> npt.NDArray[Any]:
        """These values, of this array's dtype."""
        raise NotImplementedError

    def _stored(self) -> int | None:
        """The bytes that all values take where they lie; None: as many as the shape says, at least."""
        return None

    def _boxes(self, boxes: Sequence[Box], out: npt.NDArray[Any]) -> None:
        def put(box: Box) -> None:
            with box.named():
                out[box.target] = self._take(box.picks)

        each(put, boxes, out.nbytes)

    def _ranges(self, boxes: Sequence[Box]) -> Spans | None:
        """Where the bytes lie that reading these takes; None where unknown, or where all is at hand."""
        return None

    # -- what everybody uses ---------------------------------------------------------------------------

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
        try:
            given, shape = picks_of(key, self.shape)
            self._check_size(math.prod(map(len, given)))
            picks = tuple(one if one.step > 0 else one[::-1] for one in given)
            turned = tuple(slice(None, None, 1 if one.step > 0 else -1) for one in given)
            found = np.ascontiguousarray(self._take(picks)[turned]).reshape(shape)
        except BatchplantError as error:
            raise error.at(path=self.path, field=self.field) from None
        return found[()]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("the values lie in a file: an array of them is a copy")
        found = np.asarray(self[...])
        return found if dtype is None else found.astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"<array {self.field}: {self.dtype} {self.shape} in chunks of {self.chunks}>"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if self.made_by is None:
            raise TypeError("this array was not made by a reader, and cannot be pickled")
        return _again, self.made_by

    def read_boxes(
        self, starts: I64, size: Sequence[int], out: npt.NDArray[Any], rows: I64 | None = None
    ) -> None:
        """Boxes of one size along the first axes, each to its row of ``out``: the first ones, or these.

        What lies outside of the array is left as it was in ``out``.
        """
        rows = np.arange(len(starts)) if rows is None else rows
        try:
            self._boxes(list(self._clipped(starts, size, rows)), out)
        except BatchplantError as error:
            raise error.at(path=self.path, field=self.field) from None

    def ranges(self, starts: I64, size: Sequence[int]) -> Spans | None:
        """Where the bytes of these boxes lie; None where unknown."""
        return self._ranges(list(self._clipped(starts, size, np.arange(len(starts)))))

    def _clipped(self, starts: I64, size: Sequence[int], rows: I64) -> Iterator[Box]:
        rest = [range(one) for one in self.shape[len(size) :]]
        shape = self.shape[: len(size)]
        for row, start in zip(rows.tolist(), starts.tolist(), strict=True):
            found = [
                range(max(at, 0), min(at + many, most))
                for at, many, most in zip(start, size, shape, strict=True)
            ]
            if all(found):
                inner = zip(found, start, strict=True)
                target = (row, *(slice(one.start - at, one.stop - at) for one, at in inner))
                yield Box(row, (*found, *rest), target)

    def _check_size(self, values: int) -> None:
        """No memory is taken because a header says so: what is stored must be plausible."""
        size = values * self.dtype.itemsize
        if size > limits.max_bytes():
            stored = self._stored()
            if stored is not None:
                limits.check("the slice", size, stored)


class Box(NamedTuple):
    """One box of several that are read together: what is taken, and where it goes."""

    # None: it is the only one.
    row: int | None
    picks: Picks
    target: tuple[Any, ...]

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """An error says the number of the box as its sample."""
        try:
            yield
        except BatchplantError as error:
            if self.row is None:
                raise
            # Another thread may have been given the very same exception.
            mine = copy.copy(error)
            mine.sample = self.row
            raise mine from None


def _again(reader: Any, field: str) -> Array:
    found: Array = reader.array(field)
    return found


def picks_of(key: Any, shape: tuple[int, ...]) -> tuple[Picks, tuple[int, ...]]:
    """What a key takes of each axis, and the shape of the result, which has no axis for a number."""
    keys = list(key) if isinstance(key, tuple) else [key]
    dots = [at for at, one in enumerate(keys) if one is Ellipsis]
    if len(dots) > 1:
        raise OptionError("only one ellipsis (…) can stand in an index")
    missing = len(shape) - len(keys) + len(dots)
    if missing < 0:
        raise SampleIndexError(f"{len(keys) - len(dots)} indices for an array of {len(shape)} axes")
    at = dots[0] if dots else len(keys)
    keys[at : at + len(dots)] = [slice(None)] * missing
    picks: list[range] = []
    sizes: list[int] = []
    for axis, (one, size) in enumerate(zip(keys, shape, strict=True)):
        if isinstance(one, slice):
            try:
                picks.append(range(size)[one])
            except (TypeError, ValueError) as error:
                raise OptionError(f"axis {axis}: {error}") from None
            sizes.append(len(picks[-1]))
            continue
        try:
            number = operator.index(one)
        except TypeError:
            raise OptionError(f"an array is sliced with numbers, slices and …, not with {one!r}") from None
        if isinstance(one, bool | np.bool_):
            raise OptionError("an array is not indexed with True or False")
        if not -size <= number < size:
            raise SampleIndexError(f"index {number} is out of range for axis {axis}, which has {size}")
        number %= size
        picks.append(range(number, number + 1))
    return tuple(picks), tuple(sizes)
