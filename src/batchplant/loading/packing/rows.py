"""Packed rows: planned from the lengths of documents, window by window, then filled with tokens."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ... import _native
from ... import order as orders
from ...data.buffers import BufferPool
from ...data.reader import Reader
from ...errors import AccessError, DataError, OptionError, near
from ...order.ranks import SkippedShard
from ...schema import Tensor
from ...schema.columns import I32, I64, AnyArray, Flags
from ...storage import MappedSource
from ...storage.spans import Spans, concat_spans
from ..executor import Batch, Executor, Prepared, SampleBatches
from ..plan import Output, Plan
from .documents import (
    OUTPUTS,
    TOKEN_DTYPES,
    DocumentCache,
    Endings,
    Pack,
    Sizes,
    Tokens,
    image_sizes,
    last_tokens,
    native_tokens,
    stored_ends,
    token_sizes,
    with_image_tokens,
)

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


# Outputs that need the positions of pieces in their rows.
LAYOUT_OUTPUTS = {"cu_seqlens", "max_seqlen", "pieces"}
# Residency of mapped files is checked again after so many batches.
RESIDENCY_CHECK_BATCHES = 16


def fill(
    pack: Pack,
    pieces: Pieces,
    tokens: Tokens,
    values: dict[str, Any],
    buffers: BufferPool,
    images: I64 | None = None,
) -> dict[str, Any]:
    """Return a batch of rows with the other ``values``. ``images``: image tokens before each document."""
    prompt = images
    if pack.prompt is not None:
        prompt_sizes = np.ascontiguousarray(values.pop(pack.prompt), dtype=np.int64)
        prompt = prompt_sizes if images is None else prompt_sizes + images
    shape = (len(pieces.rows) - 1, pack.length)

    def buffer(name: str, dtype: npt.DTypeLike) -> AnyArray | None:
        return buffers.take(shape, np.dtype(dtype)) if name in pack.outputs else None

    rows = buffers.take(shape, np.dtype(pack.dtype))
    labels = None if pack.labels is None else buffer("labels", pack.dtype)
    position, document = buffer("position_ids", pack.dtype), buffer("document_ids", np.int32)
    loss_mask = buffer("loss_mask", np.uint8)
    try:
        _native.fill_rows(
            tokens.bases, tokens.base, tokens.begin, tokens.size, tokens.dtype, prompt,
            pieces.rows, pieces.document, pieces.start, pieces.size,
            rows, labels, position, document, loss_mask,
            pad=pack.pad, ignore=pack.ignore, end=pack.eos, shifted=pack.labels == "shifted",
            multiple=pack.multiple_of,
        )  # fmt: skip
    except ValueError as error:
        raise DataError(
            f"documents are not as long as was said when rows were planned ({error}): give sizes=",
            field=pack.field,
        ) from None
    if pack.across and position is not None:
        position[:] = np.arange(pack.length)
    if pack.across and document is not None:
        np.copyto(document, 0, where=document >= 0)
    outputs: dict[str, Any] = {
        "labels": labels, "loss_mask": None if loss_mask is None else loss_mask.view(np.bool_),
        "position_ids": position, "document_ids": document,
    }  # fmt: skip
    if LAYOUT_OUTPUTS & set(pack.outputs):
        table, cuts = lay_out(pieces, pack)
        outputs |= {"cu_seqlens": cuts, "max_seqlen": int(np.diff(cuts).max(initial=0)), "pieces": table}
    outputs = {name: outputs[name] for name in OUTPUTS if name in pack.outputs and outputs[name] is not None}
    return {pack.field: rows, **outputs, **values}


def lay_out(pieces: Pieces, pack: Pack) -> tuple[I64, I32]:
    """Return (row, place, size, start, document) of every piece, and the offsets of sequences in all rows."""
    table, cuts = _native.lay_out(
        pieces.rows, pieces.document, pieces.start, pieces.size, pack.length, pack.across, pack.multiple_of
    )
    return table.reshape(-1, 5), cuts


def _without_skipped(pieces: Pieces, numbers: I64, batch: Batch) -> Pieces:
    """Return the pieces without documents that could not be read; their rows have padding there."""
    if len(batch.ids) == len(pieces.samples):
        return pieces
    present = np.zeros(len(pieces.samples), dtype=np.bool_)
    row = 0
    for number, sample in enumerate(numbers.tolist()):
        if row < len(batch.ids) and batch.ids[row] == sample:
            present[number] = True
            row += 1
    return select(pieces, present[pieces.document])


class RowFiller:
    """Makes rows and counts them; a document counts where it begins.

    ``rest_executor`` makes the outputs of a batch besides its tokens. Where tokens can be taken from mapped
    files, ``dtype`` is theirs, else empty. ``images``: number of image tokens before the tokens of documents.
    ``own_ends``: which samples get no end token if they have one; None where all get one.
    """

    def __init__(
        self,
        pack: Pack,
        buffers: BufferPool,
        rest_executor: Executor,
        dtype: str,
        images: Callable[[I64], I64] | None = None,
        own_ends: Callable[[I64], Flags | None] = lambda samples: None,
    ) -> None:
        self.pack, self._buffers, self._rest_executor, self._dtype = pack, buffers, rest_executor, dtype
        self._images, self._own_ends = images, own_ends
        self._lock = threading.Lock()
        self._rows, self._documents, self._tokens, self._overlong = 0, 0, 0, 0
        self._batches = 0

    def executor(
        self, pieces: Pieces, ids: I64, executor: Executor, documents: DocumentCache | None
    ) -> Executor:
        """Choose the executor of a batch: ``executor``, or one that leaves out tokens which are in memory."""
        if documents is not None:
            return self._rest_executor if documents.has(ids) else executor
        if not self._dtype or pieces.spans is None:
            return executor
        bits = int(np.bitwise_or.reduce(pieces.spans.start | pieces.spans.size))
        aligned = bits % np.dtype(self._dtype).itemsize == 0
        return self._rest_executor if aligned and self._in_memory(pieces.spans) else executor

    def _in_memory(self, spans: Spans) -> bool:
        """Return True if no disk is waited for; resident files are checked again only every few batches."""
        self._batches += 1
        for source, _, starts, sizes in spans.by_source():
            if not isinstance(source, MappedSource) or source.closed:
                return False
            check = not source.was_warm or self._batches % RESIDENCY_CHECK_BATCHES == 0
            if check and not source.check_warm(starts, sizes):
                return False
        return True

    def finish(self, pieces: Pieces, ids: I64, batch: Batch, documents: DocumentCache | None) -> Batch:
        """Turn a batch of documents, those of the samples ``ids``, into rows."""
        present, values, field = _without_skipped(pieces, ids, batch), dict(batch.values), self.pack.field
        if documents is not None and field not in values:
            values[field] = documents.tokens(batch.ids)
        images = None if self._images is None else self._images(batch.ids)
        if images is not None:
            texts = native_tokens(values.pop(field), field)
            tokens = Tokens.of(with_image_tokens(images, self.pack.image_token_id, *texts), field)
        elif field in values:
            tokens = Tokens.of(values.pop(field), field)
        else:
            tokens = self._mapped_tokens(present)
        own_ends = self._own_ends(batch.ids)
        if own_ends is not None and self.pack.eos is not None:
            tokens = tokens.without_end(self.pack.eos, own_ends)
        rows = fill(self.pack, present, tokens, values, self._buffers, images)
        with self._lock:
            self._rows += len(pieces.rows) - 1
            # A split document is in several rows, and maybe in several batches.
            self._documents += int((present.start == 0).sum())
            self._tokens += int(present.size.sum())
            self._overlong += pieces.overlong
        return Batch(rows, batch.ids, batch.skipped)

    def _mapped_tokens(self, pieces: Pieces) -> Tokens:
        spans = pieces.spans
        assert spans is not None
        cells = spans.locate()
        if cells is None:
            raise AccessError("it was closed while a batch was made of it", path=spans.files[0])
        return Tokens(cells.bases, cells.base, cells.start, cells.size, self._dtype)

    def stats(self) -> dict[str, Any]:
        room = self._rows * self.pack.length
        return {
            "packing": {
                "rows": self._rows, "documents": self._documents, "tokens": self._tokens,
                "fill": self._tokens / room if room else None,
                "overlong": self._overlong,
            }
        }  # fmt: skip


class Packing:
    """Plans and makes the rows of a loader that packs."""

    def __init__(
        self,
        pack: Pack,
        reader: Reader,
        plan: Plan,
        executor: Executor,
        indices: I64 | None,
        buffers: BufferPool,
    ) -> None:
        if not isinstance(pack, Pack):
            raise OptionError(f"pack takes a Pack, as Pack(2048), not {pack!r}")
        outputs = {output.name: output for output in plan.outputs}
        for name in (pack.field, pack.prompt):
            if name is not None and name not in outputs:
                raise OptionError(
                    f"there is no field of the batch {name!r}{near(name, outputs)}; it has "
                    f"{', '.join(outputs)}"
                )
        self.pack = pack
        output = outputs[pack.field]
        self._sizes, self._indices = token_sizes(pack, reader, output), indices
        # Makes documents where only that tells their lengths; every rank does so.
        self._document_maker: Executor | None = None
        if self._sizes is None:
            self._document_maker = _executor_of(Plan((output,)), executor)
        rest_executor, dtype = _other_outputs(pack, output, plan, executor)
        self._images = image_sizes(pack, reader)
        # Tells which documents end with the end token; None where no such token is put after documents.
        self._ends: Endings | None = None
        if pack.eos is not None:
            self._ends = stored_ends(reader, output.field, pack.eos)
            if output.steps or not isinstance(reader.schema[output.field], Tensor):
                maker = self._document_maker or _executor_of(Plan((output,)), executor)
                self._ends = Endings(reader, functools.partial(last_tokens, maker, pack.field), pack.eos)
        self.filler = RowFiller(pack, buffers, rest_executor, dtype, self._images, self._own_ends)
        self._rows: dict[int, Rows] = {}
        # By epoch, a window and its first row, out of a state.
        self._first_windows: dict[int, tuple[int, int]] = {}

    def shard(self, order: orders.Order, epoch: int, start: int, **options: Any) -> PackedShard:
        """Return the batches of one rank; ``options``: those of :func:`batchplant.order.shard`."""
        rows = self._rows.get(epoch)
        first_window = self._first_windows.get(epoch, (0, 0))
        if rows is None or rows.first_row > start:
            documents = None
            if self._document_maker is not None:
                make = functools.partial(self._document_maker.run, epoch=epoch)
                documents = DocumentCache(make, self.pack.field)
            sizes = functools.partial(self._sizes_at, documents=documents)
            window = first_window if first_window[1] <= start else (0, 0)
            rows = Rows(order, sizes, self.pack, window, documents)
            self._rows = {number: planned for number, planned in self._rows.items() if number >= epoch - 1}
            self._rows[epoch] = rows
        return PackedShard(rows, start=start, **options)

    def _sizes_at(self, positions: I64, documents: DocumentCache | None) -> tuple[AnyArray, Spans | None]:
        samples = positions if self._indices is None else self._indices[positions]
        if documents is not None:
            stored, spans = documents.sizes(samples), None
        else:
            assert self._sizes is not None
            stored, spans = self._sizes(samples)
        stored = np.asarray(stored)
        sizes = stored if self._ends is None else stored + ~self._ends_of(samples, documents)
        if self._images is not None:
            sizes, spans = sizes + self._images(samples), None
        return np.where(stored < 0, -1, sizes), spans

    def _ends_of(self, samples: I64, documents: DocumentCache | None) -> Flags:
        """Return which documents end with the token that is put after the others."""
        assert self._ends is not None
        if documents is not None:
            return documents.ends(samples, self.pack.eos)
        return self._ends(samples)

    def _own_ends(self, samples: I64) -> Flags | None:
        """Return which documents get no end token if they have one; None: all get one."""
        if self._ends is None or (self._document_maker is None and self._ends.none):
            return None
        if self._document_maker is not None:
            return np.ones(len(samples), dtype=np.bool_)
        return self._ends.shares_at(samples) > 0

    @property
    def mark(self) -> list[Any]:
        """The options that decide which documents share a row, as something that JSON can hold."""
        if self._ends is None:
            return self.pack.mark(False)
        return self.pack.mark(True if self._own_ends(np.zeros(0, np.int64)) is None else "where missing")

    def state(self, epoch: int, position: int) -> dict[str, Any]:
        """Return what a loader state has besides the row: the window to plan rows from."""
        rows = self._rows.get(epoch)
        window = (0, 0) if rows is None or not position else rows.window_at(position)
        return {"pack": self.mark, "window": list(window)}

    def forget(self, epoch: int) -> None:
        """Plan an epoch anew, because its order has changed behind the windows of batches that were made."""
        self._rows.pop(epoch, None)

    def go_to(self, epoch: int, window: Any) -> None:
        """Continue an epoch at the window of a state, which was made with the same packing."""
        try:
            number, row = (int(value) for value in window)
        except (TypeError, ValueError):
            raise OptionError("this is no state of a loader that packs") from None
        if number < 0 or row < 0:
            raise OptionError("this is no state of a loader that packs")
        self._first_windows, self._rows = {epoch: (number, row)}, {}

    def stats(self) -> dict[str, Any]:
        return self.filler.stats()


class PreparedRows(NamedTuple):
    """A batch whose documents ``executor`` prepared, and the pieces that they become."""

    pieces: Pieces
    ids: list[I64]
    executor: Executor
    prepared: Prepared


class PackedBatches(SampleBatches):
    """The batches of rows of one epoch on this rank; the Executor makes their documents."""

    def __init__(
        self, packing: Packing, executor: Executor, shard: orders.Batches, indices: I64 | None, epoch: int
    ) -> None:
        super().__init__(executor, shard, indices, epoch)
        self._filler = packing.filler

    def _packed(self, number: int) -> tuple[PackedShard | SkippedRows, int]:
        """Return the shard of the rank, and the number of a batch in it."""
        shard = self.shard
        if isinstance(shard, orders.Turns):
            number, shard = shard.turn(number), shard.shard
        assert isinstance(shard, PackedShard | SkippedRows)
        return shard, number

    def prepare(self, numbers: range) -> PreparedRows:
        (number,) = numbers
        shard, turn = self._packed(number)
        pieces, ids = shard.pieces(turn), self.ids(number)
        executor = self._filler.executor(pieces, ids, self.executor, shard.packed.documents)
        return PreparedRows(pieces, [ids], executor, executor.prepare(ids, self.epoch))

    def finish(self, prepared: PreparedRows) -> Batch:
        shard, _ = self._packed(0)
        documents = shard.packed.documents
        batch = prepared.executor.finish(prepared.prepared)
        batch = self._filler.finish(prepared.pieces, prepared.ids[0], batch, documents)
        # All ranks leave these documents out; one reports them.
        if documents is None or shard.rank:
            return batch
        return batch._replace(skipped=[*batch.skipped, *documents.take_skipped()])


def _executor_of(plan: Plan, executor: Executor) -> Executor:
    """Return an executor of another plan, on the CPU."""
    return Executor(executor.reader, plan, executor.on_cpu, seed=executor.seed, skip=executor.skip)


def _other_outputs(pack: Pack, output: Output, plan: Plan, executor: Executor) -> tuple[Executor, str]:
    """Return the executor of the other outputs, and the dtype of tokens if they lie in files as they are."""
    field = executor.reader.schema[output.field]
    outputs = tuple(entry for entry in plan.outputs if output.name not in (entry.name, entry.beside))
    rest_executor = Executor(
        executor.reader, Plan(outputs), executor.on_cpu, executor.on_device,
        seed=executor.seed, skip=executor.skip, decoded=executor.decoded,
    )  # fmt: skip
    rest_executor.timer, rest_executor.functions = executor.timer, executor.functions
    is_computed = output.steps or plan.joint or pack.sizes is not None
    # Cells of an optional field may begin with their shape.
    if is_computed or not isinstance(field, Tensor) or field.optional or field.dtype not in TOKEN_DTYPES:
        return rest_executor, ""
    return rest_executor, field.dtype
