"""Planning of packed rows: pure arithmetic on the lengths of documents, window by window."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ... import _native
from ... import order as orders
from ...data import mix_config as mixplan
from ...errors import OptionError, listed, near, no_such
from ...order.keyed import LONGEST, whole
from ...schema.columns import (
    I64,
    AnyArray,
)
from ...storage.spans import Spans, concat_spans

if TYPE_CHECKING:
    from .documents import DocumentCache

STRATEGIES = ("best_fit", "first_fit", "concat_split", "none")
OVERLONG = ("split", "truncate", "drop")
LABELS = ("same", "shifted", None)
# The outputs of a batch besides its tokens.
OUTPUTS = (
    "labels", "loss_mask", "position_ids", "document_ids", "cu_seqlens", "max_seqlen", "pieces"
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Pack:
    """Rows of ``length`` tokens, made of documents: ``Loader("train.idx", 8, pack=Pack(8192, eos=0))``.

    field: what the documents are. strategy: ``best_fit`` (the longest first, each where it fits best),
    ``first_fit``, ``concat_split`` (one after another, cut where a row ends), ``none`` (a document for each
    row). window: how many documents are packed together. eos: a token put after each document that does not
    end with it; if all of 64 documents of a source do, or none does, so do all of that source. pad: the token
    after the last document. overlong: what is longer than a row is ``split``, ``truncate``-d or
    ``drop``-ped. across: a row is one sequence, not one for each document.

    A batch has ``tokens`` (under the name of the field), ``labels`` (``same``: the tokens, as Hugging Face's
    models take them; ``shifted``: the next token of each; None: none), ``loss_mask``, ``position_ids``,
    ``document_ids`` (-1 where padding is), ``cu_seqlens`` and ``max_seqlen`` (where sequences begin in the
    batch as one row, as flash-attention takes it). Labels that are not to be learned are ``ignore``. prompt:
    a field that says how many tokens of a document are the prompt, which is not learned. What other fields
    hold comes document by document; ``pieces`` says which (row, place, size, start, document) they became.
    outputs: those of these names that are wanted, where that is not all: what is not made takes no time.

    sizes: how many tokens a document has, where that cannot be told without reading it: a field, one number
    for each sample, or a function of sample numbers. image_tokens: how many places a document's images take
    before its text, said in the same ways, or one number for all; they hold ``image_token_id`` and are not
    learned.
    """

    length: int
    field: str = "tokens"
    strategy: str = "best_fit"
    window: int = 4096
    eos: int | None = None
    pad: int = 0
    overlong: str = "split"
    across: bool = False
    labels: str | None = "same"
    ignore: int = -100
    prompt: str | None = None
    sizes: Any = None
    dtype: str = "int64"
    image_tokens: Any = None
    image_token_id: int = 0
    outputs: Sequence[str] = OUTPUTS

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("strategy", self.strategy, STRATEGIES),
            ("overlong", self.overlong, OVERLONG),
            ("labels", self.labels, LABELS),
            ("dtype", self.dtype, ("int32", "int64")),
        ):
            if value not in choices:
                raise OptionError(f"{name} is one of {', '.join(map(str, choices))}, not {value!r}")
        if not isinstance(self.outputs, list | tuple):
            raise OptionError(f"outputs is a list of names, as ['labels'], not {self.outputs!r}")
        for name in self.outputs:
            if name not in OUTPUTS:
                raise OptionError(no_such("output", name, OUTPUTS))
        object.__setattr__(self, "outputs", tuple(self.outputs))
        token = np.iinfo(self.dtype).min, np.iinfo(self.dtype).max
        numbers = {"length": (1, 2**24), "window": (1, LONGEST), "pad": token, "ignore": token}
        for name, bounds in {**numbers, "image_token_id": token, "eos": token}.items():
            value = getattr(self, name)
            if name != "eos" or value is not None:
                object.__setattr__(self, name, whole(name, value, *bounds))

    def mark(self, eos: bool | str) -> list[Any]:
        """Return the options that decide which documents share a row; ``eos``: which ones get that token."""
        mark = [self.length, self.field, self.strategy, self.window, eos, self.overlong]
        return mark if self.image_tokens is None else [*mark, str(orders.mark(self.image_tokens))]


def pack_of(plan: mixplan.MixPlan) -> Pack | None:
    """Return the packing that a plan of a mixture describes."""
    if plan.pack is None:
        return None
    options = {field.name for field in dataclasses.fields(Pack)}
    for name in plan.pack:
        if name not in options:
            prefix = plan.file.line_prefix("pack", name)
            raise OptionError(
                f"{prefix}pack has no {name!r}{near(name, options)}; there are {listed(sorted(options))}",
                path=plan.path,
            )
    if "length" not in plan.pack:
        raise OptionError(f"{plan.file.line_prefix('pack')}pack needs a length", path=plan.path)
    try:
        return Pack(**plan.pack)
    except OptionError as error:
        raise OptionError(plan.file.line_prefix("pack") + error.message, path=plan.path) from None


# -- windows and rows ----------------------------------------------------------------------------------------

# Files without a document in a batch are dropped from its spans if the spans name more files than this.
MAX_UNUSED_FILES = 8
# Planned windows, and pieces of batches, that are cached.
CACHED_WINDOWS = 64
# Returns the number of tokens of documents, including the end token that they get (below 0: leave it out),
# and their spans, if these are known.
Sizes = Callable[[I64], tuple[AnyArray, Spans | None]]


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
    sizes = np.maximum(sizes, 0)
    rows, document, start, size = _native.pack(sizes, pack.length, pack.strategy, pack.overlong)
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
    def _planned_shard(self) -> orders.Shard:
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

    def _step_start(self, number: int) -> int | None:
        """Return the first row of a step; None if it is near the end of the epoch."""
        step = self.world_size * self.batch_size
        first = self.start + number * step
        return first if self.packed.reaches(first + 2 * step) else None

    def __len__(self) -> int:
        return len(self._planned_shard)

    def has(self, number: int) -> bool:
        return self._step_start(number) is not None or number < len(self._planned_shard)

    def _rows(self, number: int) -> range:
        first = self._step_start(number)
        if first is None:
            rows = self._planned_shard.positions(number)
            assert isinstance(rows, range)
            return rows
        return range(first + self.rank * self.batch_size, first + (self.rank + 1) * self.batch_size)

    def batch(self, number: int) -> I64:
        """Return the documents of this rank's batch."""
        return self.pieces(number).samples

    def pieces(self, number: int) -> Pieces:
        return self.packed.pieces(self._rows(number))

    def position_after(self, count: int) -> int:
        """Return the row that the epoch is at after so many batches of every rank."""
        if not count:
            return self.start
        first = self._step_start(count - 1)
        step = self.world_size * self.batch_size
        return self._planned_shard.position_after(count) if first is None else first + step
