"""The kinds of arrays: in chunks, as one run of values in a file, in memory, as rows of a field."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import SchemaError
from ...schema.columns import I64, U8, Ragged, Spans, dense_of, spans_of
from ...storage import Source
from .base import Array, Box, Picks
from .parallel import each

Index = tuple[int, ...]
# What ``chunks`` says of an array that has none, about: as much lies together.
BLOCK_BYTES = 1 << 20
# Read at once: chunks that are fetched side by side, rows of which only a part is wanted.
AHEAD_BYTES = 64 << 20


def pieces_of(pick: range, size: int) -> Iterator[tuple[int, slice, slice]]:
    """The chunks of one axis that a range touches: number, what is taken of the chunk, where that goes."""
    at = 0
    while at < len(pick):
        number = pick[at] // size
        first = number * size
        end = len(range(pick.start, min(pick.stop, first + size), pick.step))
        yield number, slice(pick[at] - first, pick[end - 1] - first + 1, pick.step), slice(at, end)
        at = end


class ChunkedArray(Array):
    """An array in chunks. A format implements ``_chunk``, and behind a URL ``_ahead`` and ``_places``."""

    def _chunk(self, index: Index) -> npt.NDArray[Any]:
        """One chunk, from the cache where it is there; at the edge it may be cut to what there is."""
        raise NotImplementedError

    def _ahead(self, chunks: Sequence[Index]) -> None:
        """These will be read now, one by one."""

    def _places(self, chunks: Sequence[Index]) -> list[tuple[str, int, int]] | None:
        """File, start and size of each of these; None where unknown."""
        return None

    def _take(self, picks: Picks) -> npt.NDArray[Any]:
        out = np.empty(tuple(map(len, picks)), dtype=self.dtype)
        self._boxes([Box(None, picks, ())], out)
        return out

    def _parts(self, boxes: Sequence[Box], out: npt.NDArray[Any] | None) -> dict[Index, list[Any]]:
        """For each chunk that is touched what of it goes where."""
        found: dict[Index, list[Any]] = {}
        for box in boxes:
            view = None if out is None else out[box.target]
            axes = [list(pieces_of(*one)) for one in zip(box.picks, self.chunks, strict=True)]
            for pieces in itertools.product(*axes):
                index, inside, target = zip(*pieces, strict=True) if pieces else ((), (), ())
                found.setdefault(index, []).append((box, inside, view, target))
        return found

    def _boxes(self, boxes: Sequence[Box], out: npt.NDArray[Any]) -> None:
        parts = self._parts(boxes, out)

        def copy_parts(index: Index) -> None:
            with parts[index][0][0].named():
                chunk = self._chunk(index)
            for _, inside, view, target in parts[index]:
                view[target] = chunk[inside]

        every = sorted(parts)
        size = self.dtype.itemsize * math.prod(self.chunks)
        step = max(1, AHEAD_BYTES // max(1, size))
        for at in range(0, len(every), step):
            self._ahead(every[at : at + step])
            each(copy_parts, every[at : at + step], size * len(every))

    def _ranges(self, boxes: Sequence[Box]) -> Spans | None:
        found = self._places(sorted(self._parts(boxes, None)))
        return None if found is None else spans_of(found)


class RunArray(Array):
    """Values one after another in a file, in C order, ``item`` bytes each.

    ``decode`` makes values of their bytes, where those are not the values themselves.
    """

    def __init__(
        self, path: str, field: str, shape: Sequence[int], dtype: np.dtype[Any], source: Source, start: int,
        *, item: int | None = None, decode: Callable[[U8], npt.NDArray[Any]] | None = None,
    ) -> None:  # fmt: skip
        native = dtype.newbyteorder("=")
        super().__init__(path, field, shape, native, together(shape, dtype.itemsize))
        self._source, self._start = source, start
        self._item = dtype.itemsize if item is None else item
        self._decode = decode or (lambda data: data.view(dtype).astype(native, copy=False))
        source.check_bounds(start, self._item * self.size)

    def _runs(self, picks: Picks) -> tuple[I64, int, int]:
        """Where runs begin, the values of each, and the axis along which one runs."""
        axis = max((n for n, one in enumerate(picks) if len(one) != self.shape[n]), default=0)
        strides = [self._item * math.prod(self.shape[n + 1 :]) for n in range(len(picks))]
        starts = np.full(1, self._start, dtype=np.int64)
        for one, stride in zip(picks[:axis], strides, strict=False):
            steps = np.arange(one.start, one.stop, one.step, dtype=np.int64) * stride
            starts = (starts[:, None] + steps).reshape(-1)
        if not picks:
            return starts, 1, 0
        last = picks[axis]
        inner = math.prod(self.shape[axis + 1 :])
        return starts + last.start * strides[axis], (last[-1] + 1 - last.start) * inner, axis

    def _take(self, picks: Picks) -> npt.NDArray[Any]:
        if not all(picks):
            return np.empty(tuple(map(len, picks)), dtype=self.dtype)
        starts, values, axis = self._runs(picks)
        data = self._source.gather(starts, np.full(len(starts), values * self._item, dtype=np.int64)).data
        last = picks[axis : axis + 1]
        run = (one[-1] + 1 - one.start for one in last)
        found = self._decode(data).reshape((*map(len, picks[:axis]), *run, *self.shape[axis + 1 :]))
        return found[(*(slice(None),) * axis, *(slice(None, None, one.step) for one in last))]

    def _ranges(self, boxes: Sequence[Box]) -> Spans | None:
        runs: list[tuple[str, int, int]] = []
        for box in boxes:
            starts, values, _ = self._runs(box.picks)
            runs += [(self._source.path, start, values * self._item) for start in starts.tolist()]
        return spans_of(runs)


class MemoryArray(Array):
    """An array that is in memory, or mapped."""

    def __init__(self, path: str, field: str, values: npt.NDArray[Any]) -> None:
        dtype = values.dtype.newbyteorder("=")
        super().__init__(path, field, values.shape, dtype, together(values.shape, dtype.itemsize))
        self._values = values

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if self.made_by is not None:
            return super().__reduce__()
        return MemoryArray, (self.path, self.field, self._values)

    def _take(self, picks: Picks) -> npt.NDArray[Any]:
        taken = self._values[tuple(slice(one.start, one.stop, one.step) for one in picks)]
        return np.array(taken, dtype=self.dtype)


class RowsArray(Array):
    """The samples of a field one above the other, read as any others are."""

    def __init__(self, reader: Any, field: str) -> None:
        kind = reader.schema[field]
        dense = dense_of(kind)
        if dense is None or kind.optional:
            why = "its cells may be missing" if dense is not None else "its cells are not arrays of one shape"
            raise SchemaError(f"{kind} is no array: {why}", path=reader.path, field=field)
        dtype, row = dense
        shape = (len(reader), *row)
        super().__init__(reader.path, field, shape, dtype, together(shape, dtype.itemsize))
        self._reader = reader

    def _take(self, picks: Picks) -> npt.NDArray[Any]:
        rows = np.arange(picks[0].start, picks[0].stop, picks[0].step, dtype=np.int64)
        rest = tuple(slice(one.start, one.stop, one.step) for one in picks[1:])
        step = max(1, AHEAD_BYTES // max(1, self.dtype.itemsize * math.prod(self.shape[1:])))
        parts: list[npt.NDArray[Any]] = []
        for at in range(0, max(1, len(rows)), step):
            column = self._reader._read(rows[at : at + step], (self.field,))[self.field]
            assert not isinstance(column, Ragged)
            parts.append(column[(slice(None), *rest)])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _ranges(self, boxes: Sequence[Box]) -> Spans | None:
        rows = np.unique(np.concatenate([np.empty(0, np.int64), *(np.array(box.picks[0]) for box in boxes)]))
        found: Spans | None = self._reader._ranges((self.field,), rows)
        return found


def together(shape: Sequence[int], itemsize: int, most: int = BLOCK_BYTES) -> tuple[int, ...]:
    """The shape of about ``most`` bytes that lie together in an array without chunks."""
    found = [max(1, size) for size in shape]
    for axis in range(len(found)):
        inner = itemsize * math.prod(found[axis + 1 :])
        if found[axis] * inner <= most:
            break
        found[axis] = max(1, most // max(1, inner))
    return tuple(found)
