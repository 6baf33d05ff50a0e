"""Sequence packing: documents of any length to rows of one length.

Rows are planned like any order, from the lengths of documents alone. The documents of an epoch are packed in
windows, one after another, each by itself: so a row is a pure function of (seed, epoch, row), however many
ranks there are, and a run goes on at any row. Only where a window's first row is needs the windows before
it; a state remembers one.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _native
from .. import order as orders
from ..errors import OptionError, no_such
from ..order.keyed import LONGEST, whole
from ..schema.columns import I64, Spans, concat_spans
from .batch import Batch, Executor

if TYPE_CHECKING:
    from .filling import Filling
    from .made import Made

STRATEGIES = ("best_fit", "first_fit", "concat_split", "none")
OVERLONG = ("split", "truncate", "drop")
LABELS = ("same", "shifted", None)
# What a batch has besides its tokens.
OUTPUTS = (
    "labels", "loss_mask", "position_ids", "document_ids", "cu_seqlens", "max_seqlen", "pieces"
)  # fmt: skip
# Files of a batch of which none has to be left out.
FEW = 8
# Windows whose plans are kept.
KEPT = 64

# How many tokens documents have, the end token that they get included (below 0: it is to be left out), and
# where they lie, if that is known.
Sizes = Callable[[I64], tuple[npt.NDArray[Any], Spans | None]]


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
        for name, value, known in (
            ("strategy", self.strategy, STRATEGIES),
            ("overlong", self.overlong, OVERLONG),
            ("labels", self.labels, LABELS),
            ("dtype", self.dtype, ("int32", "int64")),
        ):
            if value not in known:
                raise OptionError(f"{name} is one of {', '.join(map(str, known))}, not {value!r}")
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
        """What decides which documents share a row; ``eos``: which documents get such a token."""
        found = [self.length, self.field, self.strategy, self.window, eos, self.overlong]
        return found if self.image_tokens is None else [*found, str(orders.mark(self.image_tokens))]


class Window(NamedTuple):
    """What becomes of some documents: row r has the pieces rows[r] to rows[r + 1]."""

    samples: I64
    rows: I64
    document: I64
    start: I64
    size: I64
    # For each row, how many documents begin in it that were cut or cut off. Those that were left out count
    # for the first row.
    overlong: I64
    # Where the documents lie, if that is known.
    where: Spans | None


class Pieces(NamedTuple):
    """The pieces of a batch; ``document`` counts its documents, ``samples``, from 0."""

    samples: I64
    rows: I64
    document: I64
    start: I64
    size: I64
    where: Spans | None = None
    overlong: int = 0


def plan_window(samples: I64, sizes: I64, pack: Pack, where: Spans | None = None) -> Window:
    """Pack documents of these sizes, the tokens put after them included; those below 0 are left out."""
    sizes = np.maximum(sizes, 0)
    rows, document, start, size = _native.pack(sizes, pack.length, pack.strategy, pack.overlong)
    too_long = sizes > pack.length
    row = np.repeat(np.arange(len(rows) - 1), np.diff(rows))
    begins = row[(start == 0) & too_long[document]]
    overlong = np.bincount(begins, minlength=len(rows) - 1).astype(np.int64)
    overlong[:1] += int(too_long.sum()) - len(begins)
    return Window(samples, rows, document, start, size, overlong, where)


class Rows:
    """The rows of an epoch, planned window by window as far as they are asked for.

    ``known``: a window and its first row, where rows before it are not needed.
    """

    def __init__(
        self,
        order: orders.Order,
        sizes: Sizes,
        pack: Pack,
        known: tuple[int, int] = (0, 0),
        made: Made | None = None,
    ) -> None:
        self.order, self.pack, self._sizes = order, pack, sizes
        # Documents, where lengths are only known by making them.
        self.made = made
        self._windows = -(-order.length // pack.window)
        self._lock = threading.RLock()
        # The first rows of windows, from the known one on.
        self._base, self._firsts = known[0], [known[1]]
        self._plan = functools.lru_cache(KEPT)(self._planned)
        # A batch is asked for its documents first, and then for where they go.
        self.pieces = functools.lru_cache(KEPT)(self._pieces)

    @property
    def first_known(self) -> int:
        return self._firsts[0]

    def _planned(self, number: int) -> Window:
        first = number * self.pack.window
        samples = self.order[first : first + self.pack.window]
        with self._lock:
            sizes, where = self._sizes(samples)
        return plan_window(samples, np.asarray(sizes, dtype=np.int64), self.pack, where)

    def reaches(self, row: int) -> bool:
        """Whether there are so many rows."""
        # What is known only grows: nobody waits for who plans the next windows.
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
        """The window of a row, as a place in ``_firsts``."""
        if row < self._firsts[0] or not self.reaches(row + 1):
            raise OptionError(f"there is no row {row}")
        return bisect.bisect_right(self._firsts, row) - 1

    def known_at(self, row: int) -> tuple[int, int]:
        """The last window that begins at or before a row, and its first row."""
        if row <= self._firsts[0]:
            return self._base, self._firsts[0]
        place = self._window_of(row - 1)
        return self._base + place, self._firsts[place]

    def _pieces(self, rows: range) -> Pieces:
        """What these rows are made of."""
        parts, at = [], rows.start
        while at < rows.stop:
            place = self._window_of(at)
            first = self._firsts[place]
            window = self._plan(self._base + place)
            stop = min(rows.stop, first + len(window.rows) - 1)
            parts.append(_part(window, at - first, stop - first))
            at = stop
        found = _joined(parts)
        if found.where is None or len(found.where.files) <= FEW:
            return found
        return found._replace(where=found.where.compact())


def _part(window: Window, begin: int, end: int) -> Pieces:
    """What these rows of a window are made of."""
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
        None if window.where is None else window.where.take(documents),
        int(window.overlong[begin:end].sum()),
    )


def _joined(parts: list[Pieces]) -> Pieces:
    """The pieces of several windows as one."""
    if len(parts) == 1:
        return parts[0]
    none = np.zeros(0, dtype=np.int64)
    rows, documents = [np.zeros(1, dtype=np.int64)], [none]
    found = pieces = 0
    for one in parts:
        rows.append(one.rows[1:] + pieces)
        documents.append(one.document + found)
        found, pieces = found + len(one.samples), pieces + len(one.document)
    known = [one.where for one in parts if one.where is not None]
    return Pieces(
        np.concatenate([none, *(one.samples for one in parts)]),
        np.concatenate(rows),
        np.concatenate(documents),
        np.concatenate([none, *(one.start for one in parts)]),
        np.concatenate([none, *(one.size for one in parts)]),
        concat_spans(known) if parts and len(known) == len(parts) else None,
        sum(one.overlong for one in parts),
    )


@dataclasses.dataclass(frozen=True)
class PackedShard:
    """The batches of one rank, as :class:`batchplant.order.Shard`, of rows in place of samples."""

    packed: Rows
    rank: int
    world_size: int
    batch_size: int
    drop_last: bool
    start: int
    pad: str
    filling: Filling

    @property
    def order(self) -> orders.Order:
        return self.packed.order

    @functools.cached_property
    def _whole(self) -> orders.Shard:
        """With the number of rows known, for which all windows have to be planned."""
        return orders.shard(
            orders.sequential(len(self.packed)),
            rank=self.rank,
            world_size=self.world_size,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            start=self.start,
            pad=self.pad,
        )

    def _early(self, number: int) -> int | None:
        """Where a step begins, if the end is so far that it does not matter."""
        step = self.world_size * self.batch_size
        first = self.start + number * step
        return first if self.packed.reaches(first + 2 * step) else None

    def __len__(self) -> int:
        return len(self._whole)

    def has(self, number: int) -> bool:
        return self._early(number) is not None or number < len(self._whole)

    def _rows(self, number: int) -> range:
        first = self._early(number)
        if first is None:
            found = self._whole.positions(number)
            assert isinstance(found, range)
            return found
        return range(first + self.rank * self.batch_size, first + (self.rank + 1) * self.batch_size)

    def batch(self, number: int) -> I64:
        """The documents of this rank's batch."""
        return self.packed.pieces(self._rows(number)).samples

    def pieces(self, number: int) -> Pieces:
        return self.packed.pieces(self._rows(number))

    def position_after(self, count: int) -> int:
        """The row that the epoch is at after so many batches of every rank."""
        if not count:
            return self.start
        first = self._early(count - 1)
        return (
            self._whole.position_after(count) if first is None else first + self.world_size * self.batch_size
        )

    def executor(self, number: int, usual: Executor) -> Executor:
        """Who makes the batch: not the tokens, where they are taken from where they lie."""
        return self.filling.executor(self.pieces(number), usual, self.packed.made)

    def finish(self, number: int, batch: Batch) -> Batch:
        """The documents as rows."""
        made = self.packed.made
        found = self.filling.finish(self.pieces(number), batch, made)
        # All ranks leave them out; one says so.
        return found if made is None or self.rank else found._replace(skipped=[*found.skipped, *made.lost()])
