"""The kinds of arrays: in chunks, as one run of values in a file, in memory, as rows of a field."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ... import _native
from ...errors import DataError, SchemaError, located
from ...schema.columns import I64, U8, AnyArray, AnyDType, Ragged, dense_of
from ...storage import Source
from ...storage.spans import SourceRun, Spans, spans_of
from .base import Array, Box, Picks
from .parallel import chunk_threads, each_or_error

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
