"""Planning of packed rows: pure arithmetic on the lengths of documents, window by window."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import threading
from typing import NamedTuple

import numpy as np

from ... import _native
from ... import order as orders
from ...errors import OptionError
from ...order.skips import SkippedShard
from ...schema.columns import I64, Flags
from ...storage.spans import Spans, concat_spans
from .documents import DocumentCache
from .options import Pack, Sizes

# Files without a document in a batch are dropped from its spans if the spans name more files than this.
MAX_UNUSED_FILES = 8
# Planned windows, and pieces of batches, that are cached.
CACHED_WINDOWS = 64


class Window(NamedTuple):
    """The rows that some documents become: row r has the pieces rows[r] to rows[r + 1]."""

    samples: I64
    rows: I64
    document: I64
    start: I64
    size: I64
    # By row, the number of documents beginning there that were split or truncated. Dropped documents count
    # for the first row.
    overlong: I64
    # Spans of the documents, if these are known.
    spans: Spans | None


class Pieces(NamedTuple):
    """The pieces of a batch; ``document`` counts its documents, ``samples``, from 0."""

    samples: I64
    rows: I64
    document: I64
    start: I64
    size: I64
    spans: Spans | None = None
    overlong: int = 0


def plan_window(samples: I64, sizes: I64, pack: Pack, spans: Spans | None = None) -> Window:
    """Pack documents of these sizes, which include the tokens put after them; drop those below 0."""
    sizes, multiple = np.maximum(sizes, 0), pack.multiple_of
    blocks, length = -(-sizes // multiple), pack.length // multiple
    rows, document, start, size = _native.pack(blocks, length, pack.strategy, pack.overlong)
    start = start * multiple
    size = np.minimum(size * multiple, sizes[document] - start)
    too_long = sizes > pack.length
    row = np.repeat(np.arange(len(rows) - 1), np.diff(rows))
    begins = row[(start == 0) & too_long[document]]
    overlong = np.bincount(begins, minlength=len(rows) - 1).astype(np.int64)
    overlong[:1] += int(too_long.sum()) - len(begins)
    return Window(samples, rows, document, start, size, overlong, spans)


class Rows:
    """The rows of an epoch, planned window by window on demand.

    ``first_window``: a window and its first row; rows before it are not needed. ``documents``: where lengths
    are only known by making the documents, those that were made.
    """

    def __init__(
        self,
        order: orders.Order,
        sizes: Sizes,
        pack: Pack,
        first_window: tuple[int, int] = (0, 0),
        documents: DocumentCache | None = None,
    ) -> None:
        self.order, self.pack, self._sizes, self.documents = order, pack, sizes, documents
        self._windows = -(-order.length // pack.window)
        self._lock = threading.RLock()
        # The first rows of windows, from window `_base` on.
        self._base, self._firsts = first_window[0], [first_window[1]]
        self._plan = functools.lru_cache(CACHED_WINDOWS)(self._plan_window)
        # A batch needs its pieces twice: for its documents, and for their positions.
        self.pieces = functools.lru_cache(CACHED_WINDOWS)(self._pieces)

    @property
    def first_row(self) -> int:
        """The first row that is planned."""
        return self._firsts[0]

    def _plan_window(self, number: int) -> Window:
        first = number * self.pack.window
        samples = self.order[first : first + self.pack.window]
        with self._lock:
            sizes, spans = self._sizes(samples)
        return plan_window(samples, np.asarray(sizes, dtype=np.int64), self.pack, spans)

    def reaches(self, row: int) -> bool:
        """Return True if there are at least so many rows."""
        # `_firsts` only grows, so this needs no lock: readers do not wait while the next windows are planned.
        if self._firsts[-1] >= row:
            return True
        with self._lock:
            while self._firsts[-1] < row and self._base + len(self._firsts) - 1 < self._windows:
                window = self._plan(self._base + len(self._firsts) - 1)
                self._firsts.append(self._firsts[-1] + len(window.rows) - 1)
            return self._firsts[-1] >= row

    def __len__(self) -> int:
        self.reaches(2**60)
        return self._firsts[-1]

    def _window_of(self, row: int) -> int:
        """Return the window of a row, as an index into ``_firsts``."""
        if row < self._firsts[0] or not self.reaches(row + 1):
            raise OptionError(f"there is no row {row}")
        return bisect.bisect_right(self._firsts, row) - 1

    def window_at(self, row: int) -> tuple[int, int]:
        """Return the last window that begins at or before a row, and its first row."""
        if row <= self._firsts[0]:
            return self._base, self._firsts[0]
        index = self._window_of(row - 1)
        return self._base + index, self._firsts[index]

    def next_window(self, row: int) -> int:
        """Return the first document of the first window that begins at a row or behind it."""
        number, first = self.window_at(row)
        return (number + (first < row)) * self.pack.window

    def _pieces(self, rows: range) -> Pieces:
        """Return the pieces that these rows consist of."""
        parts, row = [], rows.start
        while row < rows.stop:
            index = self._window_of(row)
            first = self._firsts[index]
            window = self._plan(self._base + index)
            stop = min(rows.stop, first + len(window.rows) - 1)
            parts.append(_window_pieces(window, row - first, stop - first))
            row = stop
        pieces = _concat_pieces(parts)
        if pieces.spans is None or len(pieces.spans.files) <= MAX_UNUSED_FILES:
            return pieces
        return pieces._replace(spans=pieces.spans.compact())


def _window_pieces(window: Window, begin: int, end: int) -> Pieces:
    """Return the pieces of some rows of a window."""
    first, last = window.rows[begin], window.rows[end]
    chosen = window.document[first:last]
    used = np.zeros(len(window.samples), dtype=np.bool_)
    used[chosen] = True
    documents = np.flatnonzero(used)
    number = np.empty(len(used), dtype=np.int64)
    number[documents] = np.arange(len(documents))
    return Pieces(
        window.samples[documents],
        window.rows[begin : end + 1] - first,
        number[chosen],
        window.start[first:last],
        window.size[first:last],
        None if window.spans is None else window.spans.take(documents),
        int(window.overlong[begin:end].sum()),
    )


def select(pieces: Pieces, chosen: Flags) -> Pieces:
    """Return only some pieces, with the documents that these need; the rest of their rows is padding."""
    used = np.zeros(len(pieces.samples), dtype=np.bool_)
    used[pieces.document[chosen]] = True
    return Pieces(
        pieces.samples[used],
        np.concatenate([[0], np.cumsum(chosen)])[pieces.rows],
        (np.cumsum(used) - 1)[pieces.document[chosen]],
        pieces.start[chosen],
        pieces.size[chosen],
        None if pieces.spans is None else pieces.spans.take(used),
        pieces.overlong,
    )


def _concat_pieces(parts: list[Pieces]) -> Pieces:
    """Join the pieces of several windows."""
    if len(parts) == 1:
        return parts[0]
    empty = np.zeros(0, dtype=np.int64)
    rows, documents = [np.zeros(1, dtype=np.int64)], [empty]
    document_count = piece_count = 0
    for part in parts:
        rows.append(part.rows[1:] + piece_count)
        documents.append(part.document + document_count)
        document_count, piece_count = document_count + len(part.samples), piece_count + len(part.document)
    spans = [part.spans for part in parts if part.spans is not None]
    return Pieces(
        np.concatenate([empty, *(part.samples for part in parts)]),
        np.concatenate(rows),
        np.concatenate(documents),
        np.concatenate([empty, *(part.start for part in parts)]),
        np.concatenate([empty, *(part.size for part in parts)]),
        concat_spans(spans) if parts and len(spans) == len(parts) else None,
        sum(part.overlong for part in parts),
    )


@dataclasses.dataclass(frozen=True)
class PackedShard:
    """The batches of one rank, like :class:`batchplant.order.Shard`, with rows in place of samples."""

    packed: Rows
    rank: int
    world_size: int
    batch_size: int
    drop_last: bool
    start: int
    pad: str

    @property
    def order(self) -> orders.Order:
        return self.packed.order

    @functools.cached_property
    def planned_shard(self) -> orders.Shard:
        """The shard of all rows; their number is known once all windows are planned."""
        return orders.shard(
            orders.sequential(len(self.packed)),
            rank=self.rank,
            world_size=self.world_size,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            start=self.start,
            pad=self.pad,
        )

    def step_start(self, number: int) -> int | None:
        """Return the first row of a step; None if it is near the end of the epoch."""
        step = self.world_size * self.batch_size
        first = self.start + number * step
        return first if self.packed.reaches(first + 2 * step) else None

    def __len__(self) -> int:
        return len(self.planned_shard)

    def has(self, number: int) -> bool:
        return self.step_start(number) is not None or number < len(self.planned_shard)

    def positions(self, number: int) -> range:
        """Return the rows of this rank's batch."""
        first = self.step_start(number)
        if first is None:
            rows = self.planned_shard.positions(number)
            assert isinstance(rows, range)
            return rows
        return range(first + self.rank * self.batch_size, first + (self.rank + 1) * self.batch_size)

    def batch(self, number: int) -> I64:
        """Return the documents of this rank's batch."""
        return self.pieces(number).samples

    def pieces(self, number: int) -> Pieces:
        return self.packed.pieces(self.positions(number))

    def position_after(self, count: int) -> int:
        """Return the row that the epoch is at after so many batches of every rank."""
        if not count:
            return self.start
        first = self.step_start(count - 1)
        step = self.world_size * self.batch_size
        return self.planned_shard.position_after(count) if first is None else first + step


class SkippedRows(SkippedShard):
    """A packed shard without the documents and rows that are skipped: their tokens are padding."""

    shard: PackedShard

    @property
    def packed(self) -> Rows:
        return self.shard.packed

    @property
    def rank(self) -> int:
        return self.shard.rank

    def batch(self, number: int) -> I64:
        """Return the documents of this rank's batch."""
        return self.pieces(number).samples

    def pieces(self, number: int) -> Pieces:
        step = self.step(number)
        pieces, rows = self.shard.pieces(step), np.asarray(self.shard.positions(step))
        skipped = self.skips.is_skipped(pieces.samples)[pieces.document]
        skipped |= np.repeat(self.skips.within(rows), np.diff(pieces.rows))
        return select(pieces, ~skipped) if skipped.any() else pieces
