"""A loader's packing: how long documents are, and the rows of its epochs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import order as orders
from ..data.reader import Reader
from ..data.sizes import sizes_of
from ..errors import DataError, OptionError, near
from ..schema import Tensor
from ..schema.columns import I64, Spans, dense_of
from .balance import find_sizes
from .batch import Executor
from .buffers import Buffers
from .endings import Endings, Flags, stored_ends
from .filling import KINDS, Filling
from .made import Made, ragged
from .packing import Pack, PackedShard, Rows
from .plan import Output, Plan


class Packing:
    """Makes the shards of a loader that packs."""

    def __init__(
        self,
        pack: Pack,
        reader: Reader,
        plan: Plan,
        executor: Executor,
        indices: I64 | None,
        buffers: Buffers,
    ) -> None:
        if not isinstance(pack, Pack):
            raise OptionError(f"pack takes a Pack, as Pack(2048), not {pack!r}")
        names = {output.name: output for output in plan.outputs}
        for name in (pack.field, pack.prompt):
            if name is not None and name not in names:
                raise OptionError(
                    f"there is no field of the batch {name!r}{near(name, names)}; it has {', '.join(names)}"
                )
        self.pack = pack
        self._sizes, self._indices = token_sizes(pack, reader, names[pack.field]), indices
        # Who makes documents, where nothing else tells how long they are: every rank does.
        self._alone: Executor | None = None
        if self._sizes is None:
            only = Plan((names[pack.field],))
            self._alone = Executor(reader, only, executor.on_cpu, seed=executor.seed, skip=executor.skip)
        rest, dtype = _rest(pack, names[pack.field], plan, executor)
        self._images = image_sizes(pack, reader)
        # Which documents end with the token; None where no such token is put after documents.
        self._ends: Endings | None = None
        if pack.eos is not None:
            output = names[pack.field]
            self._ends = stored_ends(reader, output.field, pack.eos)
            if output.steps or not isinstance(reader.schema[output.field], Tensor):
                made = self._alone or Executor(
                    reader, Plan((output,)), executor.on_cpu, seed=executor.seed, skip=executor.skip
                )
                self._ends = Endings(reader, functools.partial(_last_made, made, pack.field), pack.eos)
        self.filling = Filling(pack, buffers, rest, dtype, self._images, indices, self._own_ends)
        self._rows: dict[int, Rows] = {}
        # By epoch, a window and its first row, out of a state.
        self._known: dict[int, tuple[int, int]] = {}

    def shard(self, order: orders.Order, epoch: int, start: int, **options: Any) -> PackedShard:
        rows = self._rows.get(epoch)
        known = self._known.get(epoch, (0, 0))
        if rows is None or rows.first_known > start:
            made = None
            if self._alone is not None:
                made = Made(functools.partial(self._alone.run, epoch=epoch), self.pack.field)
            sizes = functools.partial(self._of_places, made=made)
            rows = Rows(order, sizes, self.pack, known if known[1] <= start else (0, 0), made)
            self._rows = {number: one for number, one in self._rows.items() if number >= epoch - 1}
            self._rows[epoch] = rows
        return PackedShard(rows, start=start, filling=self.filling, **options)

    def _of_places(self, places: I64, made: Made | None) -> tuple[Any, Spans | None]:
        samples = places if self._indices is None else self._indices[places]
        if made is not None:
            sizes, where = made.sizes(samples), None
        else:
            assert self._sizes is not None
            sizes, where = self._sizes(samples)
        sizes = np.asarray(sizes)
        whole = sizes if self._ends is None else sizes + ~self._ends_of(samples, made)
        if self._images is not None:
            whole, where = whole + self._images(samples), None
        return np.where(sizes < 0, -1, whole), where

    def _ends_of(self, samples: I64, made: Made | None) -> Flags:
        """Which documents end with the token that is put after the others."""
        assert self._ends is not None
        if made is not None:
            return made.ends(samples, self.pack.eos)
        return self._ends(samples)

    def _own_ends(self, samples: I64) -> Flags | None:
        """Which documents get no token after them if they end with it; None: all get one."""
        if self._ends is None or (self._alone is None and self._ends.none):
            return None
        if self._alone is not None:
            return np.ones(len(samples), dtype=np.bool_)
        return self._ends.shares_at(samples) > 0

    @property
    def mark(self) -> list[Any]:
        """What decides which documents share a row, as something that JSON can hold."""
        if self._ends is None:
            return self.pack.mark(False)
        return self.pack.mark(True if self._own_ends(np.zeros(0, np.int64)) is None else "where missing")

    def state(self, epoch: int, position: int) -> dict[str, Any]:
        """What a state has besides the row: from where on rows have to be planned."""
        rows = self._rows.get(epoch)
        known = (0, 0) if rows is None or not position else rows.known_at(position)
        return {"pack": self.mark, "window": list(known)}

    def go_to(self, epoch: int, window: Any) -> None:
        """Where a state was made with the same packing."""
        try:
            number, row = (int(one) for one in window)
        except (TypeError, ValueError):
            raise OptionError("this is no state of a loader that packs") from None
        if number < 0 or row < 0:
            raise OptionError("this is no state of a loader that packs")
        self._known, self._rows = {epoch: (number, row)}, {}


def _last_made(executor: Executor, name: str, samples: I64) -> list[int | None]:
    """The last tokens of documents that ops make; None of empty ones and of those that cannot be made."""
    batch = executor.run(samples, epoch=0)
    tokens, offsets = ragged(batch.values[name], name)
    last = [None if end == begin else int(tokens[end - 1]) for begin, end in itertools.pairwise(offsets)]
    found = dict(zip(batch.ids.tolist(), last, strict=True))
    return [found.get(sample) for sample in samples.tolist()]


def _rest(pack: Pack, output: Output, plan: Plan, executor: Executor) -> tuple[Executor, str]:
    """Who makes what a batch has besides tokens; their dtype, where they can be taken from where they lie."""
    kind = executor.reader.schema[output.field]
    others = tuple(one for one in plan.outputs if output.name not in (one.name, one.beside))
    rest = Executor(
        executor.reader, Plan(others), executor.on_cpu, executor.on_device,
        seed=executor.seed, skip=executor.skip, decoded=executor.decoded,
    )  # fmt: skip
    rest.timer, rest.functions = executor.timer, executor.functions
    made = output.steps or plan.joint or pack.sizes is not None
    # Cells of an optional field may begin with their shape.
    if made or not isinstance(kind, Tensor) or kind.optional or kind.dtype not in KINDS:
        return rest, ""
    return rest, kind.dtype


def image_sizes(pack: Pack, reader: Reader) -> Callable[[I64], I64] | None:
    """How many places the images of documents take; None where there are none."""
    asked = pack.image_tokens
    if asked is None:
        return None
    if isinstance(asked, int):
        return lambda samples: np.full(len(samples), asked, dtype=np.int64)
    found = find_sizes(reader, (), asked)
    return lambda samples: np.asarray(found(samples)).astype(np.int64)


def token_sizes(pack: Pack, reader: Reader, output: Output) -> Callable[[I64], Any] | None:
    """How many tokens documents have, and where they lie: as said, or by bytes. None: they must be made."""
    if pack.sizes is not None:
        said = find_sizes(reader, [output.field], pack.sizes)
        return lambda samples: (said(samples), None)
    kind = reader.schema[output.field]
    if output.steps or not isinstance(kind, Tensor):
        return None
    if len(kind.shape) != 1:
        raise OptionError(f"documents are rows of tokens, and {output.field} is {kind}", field=output.field)
    if dense_of(kind) is not None:
        return lambda samples: (np.full(len(samples), kind.shape[0]), None)
    width = np.dtype(kind.dtype).itemsize
    return lambda samples: _where(reader, output.field, samples, width)


def _where(reader: Reader, field: str, samples: I64, width: int) -> tuple[I64, Spans | None]:
    """Tokens of documents, and where they lie, where they lie as they are in files."""
    try:
        spans = reader.spans(field, samples)
    except DataError:
        spans = None
    if spans is None or (spans.size < 0).any() or spans.shape is not None:
        return sizes_of(reader, [field], samples) // width, None
    return spans.size // width, spans
