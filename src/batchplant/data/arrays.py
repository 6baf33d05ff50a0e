"""Arrays: a field as one N-d array, read when it is sliced. ``Reader.array(field)`` gives it.

A format provides a :class:`ChunkedArray` (HDF5, Zarr, N5, TIFF: it reads chunks) or a :class:`RunArray` (NPY,
Safetensors: the values one after another in a file). Any other field of arrays of one shape is a
:class:`RowsArray`. Formats and their base classes import from here, and so does ``patches``.
"""

from __future__ import annotations

import contextlib
import copy
import math
import operator
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple, TypeVar

import numpy as np

from .. import _native
from ..errors import (
    BatchplantError,
    DataError,
    OptionError,
    SampleIndexError,
    SchemaError,
    exceptions_as,
    located,
)
from ..schema.columns import I64, U8, AnyArray, AnyDType, Ragged, dense_of
from ..storage import Source, limits
from ..storage.cache import ChunkKeys
from ..storage.platform import cpu_count
from ..storage.spans import SourceRun, Spans, spans_of

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


T = TypeVar("T")
R = TypeVar("R")

# Work on fewer bytes ends before another thread would begin.
MIN_PARALLEL_BYTES = 256 << 10
_LOCK = threading.Lock()
_POOL: ThreadPoolExecutor | None = None
_CHUNK_THREADS: _native.ChunkThreads | None = None


def _reset() -> None:
    """Forget the threads, which a forked process does not have."""
    global _LOCK, _POOL, _CHUNK_THREADS
    _LOCK, _POOL, _CHUNK_THREADS = threading.Lock(), None, None


os.register_at_fork(after_in_child=_reset)


def chunk_threads() -> _native.ChunkThreads:
    """Return the native threads that decode chunks and copy boxes out of them, beside the one that asks."""
    global _CHUNK_THREADS
    with _LOCK:
        _CHUNK_THREADS = _CHUNK_THREADS or _native.ChunkThreads(max(1, cpu_count() - 1))
        return _CHUNK_THREADS


def each(work: Callable[[T], None], items: Sequence[T], size: int) -> None:
    """Call ``work`` for every item, in this thread and up to one more per processor.

    ``size``: bytes of all items. The first exception ends it.
    """
    global _POOL
    cpus = cpu_count()
    helpers = min(len(items), cpus) - 1 if size > MIN_PARALLEL_BYTES else 0
    waiting = deque(items)
    failed: list[BaseException] = []

    def drain() -> None:
        while not failed:
            try:
                item = waiting.popleft()
            except IndexError:
                return
            try:
                work(item)
            except BaseException as error:
                failed.append(error)

    if helpers < 1:
        for item in items:
            work(item)
        return
    with _LOCK:
        _POOL = _POOL or ThreadPoolExecutor(cpus, thread_name_prefix="batchplant-chunks")
    started = [_POOL.submit(drain) for _ in range(helpers)]
    drain()
    # Those that have not begun have nothing left to do.
    wait([task for task in started if not task.cancel()])
    if failed:
        raise failed[0]


def each_or_error(work: Callable[[T], R], items: Sequence[T], size: int) -> list[R | DataError]:
    """Return the result of ``work`` for every item, or the error that it raised; ``size``: bytes of one."""
    results: list[Any] = [None] * len(items)

    def run(number: int) -> None:
        try:
            results[number] = work(items[number])
        except DataError as error:
            # With its traceback it would refer to the results, and so to itself.
            results[number] = error.with_traceback(None)

    each(run, range(len(items)), size * len(items))
    return results


Index = tuple[int, ...]
# Bytes of ``chunks`` of an array that has no chunks.
BLOCK_BYTES = 1 << 20
# Bytes of chunks that are fetched together, and of rows that are read together.
READ_BYTES = 64 << 20


def carrier(values: Any, dtype: AnyDType) -> AnyArray:
    """Return an array of this dtype, times as numbers, because they have no buffer."""
    array = np.asarray(values, dtype=dtype)
    return array.view(np.int64) if dtype.kind in "mM" else array


def read_chunks(
    boxes: _native.ChunkBoxes,
    load: Callable[[Sequence[Index]], Sequence[AnyArray | DataError]],
    out: AnyArray,
    chunk_bytes: int,
    sample_of: Callable[[int], int] | None = None,
    rows: I64 | None = None,
) -> None:
    """Copy boxes out of chunks, of which ``load`` returns some at a time, into ``out`` or each into its row.

    ``sample_of`` the number of a chunk returns the sample that needs it first, for errors.
    """
    indices, threads = boxes.indices, chunk_threads()
    step = max(1, READ_BYTES // max(1, chunk_bytes))
    for start in range(0, len(indices), step):
        chunks = load(indices[start : start + step])
        for number, chunk in enumerate(chunks, start):
            if isinstance(chunk, DataError):
                raise _of_sample(chunk, chunk.sample if sample_of is None else sample_of(number))
        values = [carrier(chunk, out.dtype) for chunk in chunks]
        threads.copy(boxes, start, values, carrier(out, out.dtype), rows)


def _of_sample(error: DataError, sample: int | None) -> DataError:
    # Another thread may raise the very same exception.
    sample_error = copy.copy(error)
    sample_error.sample = sample
    return sample_error


class ChunkedArray(Array):
    """An array in chunks. A format implements ``_chunk``, and behind a URL ``_ahead`` and ``_places``."""

    def _chunk(self, index: Index) -> AnyArray:
        """Return a chunk, from the cache if it is there; at the edge it may be cut to the array."""
        raise NotImplementedError

    def _load_chunks(self, indices: Sequence[Index]) -> Sequence[AnyArray | DataError]:
        """Return chunks, and the error in place of one that cannot be read."""
        self._ahead(indices)
        return each_or_error(self._chunk, indices, self._chunk_bytes)

    def _ahead(self, chunks: Sequence[Index]) -> None:
        """Prefetch chunks that are about to be read one by one."""

    def _places(self, chunks: Sequence[Index]) -> list[SourceRun] | None:
        """Return file, start and size of each of these chunks; None if unknown."""
        return None

    @property
    def _chunk_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.chunks)

    def _take(self, picks: Picks) -> AnyArray:
        out = np.empty(tuple(map(len, picks)), dtype=self.dtype)
        box = [[pick.start for pick in picks], list(out.shape), [0] * self.ndim]
        boxes = _native.ChunkBoxes(
            np.array([box], dtype=np.int64), [pick.step for pick in picks], self.chunks
        )
        read_chunks(boxes, self._load_chunks, out, self._chunk_bytes)
        return out

    def _runs_of(self, starts: I64, counts: I64) -> AnyArray:
        ends = np.cumsum(counts)
        out = np.empty(int(ends[-1]) if len(ends) else 0, dtype=self.dtype)
        table = np.stack([starts, counts, ends - counts], axis=1)[counts > 0]
        boxes = _native.ChunkBoxes(np.ascontiguousarray(table)[:, :, None], [1], self.chunks)
        read_chunks(boxes, self._load_chunks, out, self._chunk_bytes)
        return out

    def _touched(self, starts: I64, size: Sequence[int]) -> tuple[_native.ChunkBoxes, I64]:
        """Return those parts of boxes of one size that lie in the array, and which boxes they are of."""
        inner, axes = self.shape[len(size) :], len(size)
        boxes = np.zeros((len(starts), 3, self.ndim), dtype=np.int64)
        boxes[:, 0, :axes] = np.maximum(starts, 0)
        boxes[:, 1, :axes] = np.minimum(starts + np.array(size), np.array(self.shape[:axes]))
        boxes[:, 1, :axes] -= boxes[:, 0, :axes]
        boxes[:, 1, axes:] = inner
        boxes[:, 2, :axes] = boxes[:, 0, :axes] - starts
        inside = np.flatnonzero((boxes[:, 1] > 0).all(axis=1))
        return _native.ChunkBoxes(boxes[inside], [1] * self.ndim, self.chunks), inside

    def read_boxes(self, starts: I64, size: Sequence[int], out: AnyArray, rows: I64 | None = None) -> None:
        boxes, inside = self._touched(starts, size)
        rows = inside if rows is None else rows[inside]
        with located(path=self.path, field=self.field):
            sample_of = lambda chunk: int(rows[boxes.first(chunk)])  # noqa: E731
            read_chunks(boxes, self._load_chunks, out, self._chunk_bytes, sample_of, rows)

    def ranges(self, starts: I64, size: Sequence[int]) -> Spans | None:
        runs = self._places(self._touched(starts, size)[0].indices)
        return None if runs is None else spans_of(runs)


class RunArray(Array):
    """Values one after another in a file, in C order, ``item`` bytes each.

    ``decode`` turns bytes into values, if they are not the values themselves.
    """

    def __init__(
        self, path: str, field: str, shape: Sequence[int], dtype: AnyDType, source: Source, start: int,
        *, item: int | None = None, decode: Callable[[U8], AnyArray] | None = None,
    ) -> None:  # fmt: skip
        native = dtype.newbyteorder("=")
        super().__init__(path, field, shape, native, block_shape(shape, dtype.itemsize))
        self._source, self._start = source, start
        self._item = dtype.itemsize if item is None else item
        self._decode = decode or (lambda data: data.view(dtype).astype(native, copy=False))
        source.check_bounds(start, self._item * self.size)

    def _runs(self, picks: Picks) -> tuple[I64, int, int]:
        """Return the starts of runs, the values of each, and the axis along which one runs."""
        axis = max((n for n, pick in enumerate(picks) if len(pick) != self.shape[n]), default=0)
        strides = [self._item * math.prod(self.shape[n + 1 :]) for n in range(len(picks))]
        starts = np.full(1, self._start, dtype=np.int64)
        for pick, stride in zip(picks[:axis], strides, strict=False):
            steps = np.arange(pick.start, pick.stop, pick.step, dtype=np.int64) * stride
            starts = (starts[:, None] + steps).reshape(-1)
        if not picks:
            return starts, 1, 0
        last = picks[axis]
        inner = math.prod(self.shape[axis + 1 :])
        return starts + last.start * strides[axis], (last[-1] + 1 - last.start) * inner, axis

    def _runs_of(self, starts: I64, counts: I64) -> AnyArray:
        return self._decode(self._source.gather(self._start + starts * self._item, counts * self._item).data)

    def _take(self, picks: Picks) -> AnyArray:
        if not all(picks):
            return np.empty(tuple(map(len, picks)), dtype=self.dtype)
        starts, values, axis = self._runs(picks)
        data = self._source.gather(starts, np.full(len(starts), values * self._item, dtype=np.int64)).data
        last = picks[axis : axis + 1]
        run = (pick[-1] + 1 - pick.start for pick in last)
        decoded = self._decode(data).reshape((*map(len, picks[:axis]), *run, *self.shape[axis + 1 :]))
        return decoded[(*(slice(None),) * axis, *(slice(None, None, pick.step) for pick in last))]

    def _ranges(self, boxes: Sequence[Box]) -> Spans | None:
        runs: list[SourceRun] = []
        for box in boxes:
            starts, values, _ = self._runs(box.picks)
            runs += [(self._source, start, values * self._item) for start in starts.tolist()]
        return spans_of(runs)


class MemoryArray(Array):
    """An array that is in memory, or mapped."""

    def __init__(self, path: str, field: str, values: AnyArray) -> None:
        dtype = values.dtype.newbyteorder("=")
        super().__init__(path, field, values.shape, dtype, block_shape(values.shape, dtype.itemsize))
        self._values = values

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        if self.made_by is not None:
            return super().__reduce__()
        return MemoryArray, (self.path, self.field, self._values)

    def _take(self, picks: Picks) -> AnyArray:
        values = self._values[tuple(slice(pick.start, pick.stop, pick.step) for pick in picks)]
        return np.array(values, dtype=self.dtype)


class RowsArray(Array):
    """The samples of a field stacked, read by the reader."""

    def __init__(self, reader: Any, field: str) -> None:
        kind = reader.schema[field]
        dense = dense_of(kind)
        if dense is None or kind.optional:
            why = "its cells may be missing" if dense is not None else "its cells are not arrays of one shape"
            raise SchemaError(f"{kind} is no array: {why}", path=reader.path, field=field)
        dtype, row = dense
        shape = (len(reader), *row)
        super().__init__(reader.path, field, shape, dtype, block_shape(shape, dtype.itemsize))
        self._reader = reader

    def _take(self, picks: Picks) -> AnyArray:
        rows = np.arange(picks[0].start, picks[0].stop, picks[0].step, dtype=np.int64)
        inner = tuple(slice(pick.start, pick.stop, pick.step) for pick in picks[1:])
        step = max(1, READ_BYTES // max(1, self.dtype.itemsize * math.prod(self.shape[1:])))
        parts: list[AnyArray] = []
        for start in range(0, max(1, len(rows)), step):
            column = self._reader._read(rows[start : start + step], (self.field,))[self.field]
            assert not isinstance(column, Ragged)
            parts.append(column[(slice(None), *inner)])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _ranges(self, boxes: Sequence[Box]) -> Spans | None:
        rows = np.unique(np.concatenate([np.empty(0, np.int64), *(np.array(box.picks[0]) for box in boxes)]))
        return self._reader._ranges((self.field,), rows)


def block_shape(shape: Sequence[int], itemsize: int, max_bytes: int = BLOCK_BYTES) -> tuple[int, ...]:
    """Return the shape of about ``max_bytes`` consecutive bytes of an array without chunks."""
    block = [max(1, size) for size in shape]
    for axis in range(len(block)):
        inner = itemsize * math.prod(block[axis + 1 :])
        if block[axis] * inner <= max_bytes:
            break
        block[axis] = max(1, max_bytes // max(1, inner))
    return tuple(block)


__all__ = ["Array", "ChunkedArray", "Index", "MemoryArray", "RowsArray", "RunArray", "array_of", "each"]


def array_of(reader: Any, field: str) -> Array:
    """Return a field as an array; see ``Reader.array``."""
    array: Array | None = reader._array(field)
    if array is None:
        reader.schema.select([field])
        array = RowsArray(reader, field)
    array.made_by = reader, field
    return array
