"""The kinds of arrays: in chunks, as one run of values in a file, in memory, as rows of a field."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ...errors import SchemaError
from ...schema.columns import I64, U8, AnyArray, AnyDType, Ragged, dense_of
from ...storage import Source
from ...storage.spans import SourceRun, Spans, spans_of
from .base import Array, Box, Picks
from .parallel import each

Index = tuple[int, ...]
# Bytes of ``chunks`` of an array that has no chunks.
BLOCK_BYTES = 1 << 20
# Bytes of chunks that are fetched together, and of rows that are read together.
READ_BYTES = 64 << 20


def pieces_of(pick: range, size: int) -> Iterator[tuple[int, slice, slice]]:
    """Yield the chunks of one axis that a range touches: number, slice of the chunk, slice of the output."""
    start = 0
    while start < len(pick):
        number = pick[start] // size
        first = number * size
        end = len(range(pick.start, min(pick.stop, first + size), pick.step))
        yield number, slice(pick[start] - first, pick[end - 1] - first + 1, pick.step), slice(start, end)
        start = end


class ChunkedArray(Array):
    """An array in chunks. A format implements ``_chunk``, and behind a URL ``_ahead`` and ``_places``."""

    def _chunk(self, index: Index) -> AnyArray:
        """Return a chunk, from the cache if it is there; at the edge it may be cut to the array."""
        raise NotImplementedError

    def _ahead(self, chunks: Sequence[Index]) -> None:
        """Prefetch chunks that are about to be read one by one."""

    def _places(self, chunks: Sequence[Index]) -> list[SourceRun] | None:
        """Return file, start and size of each of these chunks; None if unknown."""
        return None

    def _take(self, picks: Picks) -> AnyArray:
        out = np.empty(tuple(map(len, picks)), dtype=self.dtype)
        self._boxes([Box(None, picks, ())], out)
        return out

    def _parts(self, boxes: Sequence[Box], out: AnyArray | None) -> dict[Index, list[Any]]:
        """Return, by chunk that boxes touch, (box, slices of the chunk, output, slices of the output)."""
        parts: dict[Index, list[Any]] = {}
        for box in boxes:
            view = None if out is None else out[box.target]
            axes = [list(pieces_of(*axis)) for axis in zip(box.picks, self.chunks, strict=True)]
            for pieces in itertools.product(*axes):
                index, inside, target = zip(*pieces, strict=True) if pieces else ((), (), ())
                parts.setdefault(index, []).append((box, inside, view, target))
        return parts

    def _boxes(self, boxes: Sequence[Box], out: AnyArray) -> None:
        parts = self._parts(boxes, out)

        def copy_parts(index: Index) -> None:
            with parts[index][0][0].add_to_errors():
                chunk = self._chunk(index)
            for _, inside, view, target in parts[index]:
                view[target] = chunk[inside]

        indices = sorted(parts)
        size = self.dtype.itemsize * math.prod(self.chunks)
        step = max(1, READ_BYTES // max(1, size))
        for start in range(0, len(indices), step):
            self._ahead(indices[start : start + step])
            each(copy_parts, indices[start : start + step], size * len(indices))

    def _ranges(self, boxes: Sequence[Box]) -> Spans | None:
        runs = self._places(sorted(self._parts(boxes, None)))
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
        ranges: Spans | None = self._reader._ranges((self.field,), rows)
        return ranges


def block_shape(shape: Sequence[int], itemsize: int, max_bytes: int = BLOCK_BYTES) -> tuple[int, ...]:
    """Return the shape of about ``max_bytes`` consecutive bytes of an array without chunks."""
    block = [max(1, size) for size in shape]
    for axis in range(len(block)):
        inner = itemsize * math.prod(block[axis + 1 :])
        if block[axis] * inner <= max_bytes:
            break
        block[axis] = max(1, max_bytes // max(1, inner))
    return tuple(block)
