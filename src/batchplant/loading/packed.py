"""A loader's packing: how long documents are, and the rows of its epochs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import order as orders
from ..columns import I64, Spans, dense_of
from ..conversion.sizes import sizes_of
from ..errors import DataError, OptionError, near
from ..reader import Reader
from ..schema import Tensor
from .balance import find_sizes
from .batch import Executor
from .buffers import Buffers
from .filling import KINDS, Filling
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
        names = {output.name: output for output in plan.outputs}
        for name in (pack.field, pack.prompt):
            if name is not None and name not in names:
                raise OptionError(
                    f"there is no field of the batch {name!r}{near(name, names)}; it has {', '.join(names)}"
                )
        self.pack = pack
        found = token_sizes(pack, reader, names[pack.field], executor)
        rest, dtype = _rest(pack, names[pack.field], plan, executor)
        images = image_sizes(pack, reader)
        self.filling = Filling(pack, buffers, rest, dtype, images)
        if images is not None:
            texts = found
            found = lambda samples, epoch: (texts(samples, epoch)[0] + images(samples), None)  # noqa: E731
        self._sizes, self._indices = found, indices
        self._rows: dict[int, Rows] = {}
        # By epoch, a window and its first row, out of a state.
        self._known: dict[int, tuple[int, int]] = {}

    def shard(self, order: orders.Order, epoch: int, start: int, **options: Any) -> PackedShard:
        rows = self._rows.get(epoch)
        known = self._known.get(epoch, (0, 0))
        if rows is None or rows.first_known > start:
            sizes = functools.partial(self._of_places, epoch=epoch)
            rows = Rows(order, sizes, self.pack, known if known[1] <= start else (0, 0))
            self._rows = {number: one for number, one in self._rows.items() if number >= epoch - 1}
            self._rows[epoch] = rows
            self.filling.plans(rows)
        return PackedShard(rows, start=start, filling=self.filling, **options)

    def _of_places(self, places: I64, epoch: int) -> Any:
        return self._sizes(places if self._indices is None else self._indices[places], epoch)

    def state(self, epoch: int, position: int) -> dict[str, Any]:
        """What a state has besides the row: from where on rows have to be planned."""
        rows = self._rows.get(epoch)
        known = (0, 0) if rows is None or not position else rows.known_at(position)
        return {"pack": self.pack.mark, "window": list(known)}

    def go_to(self, epoch: int, window: Any) -> None:
        """Where a state was made with the same packing."""
        try:
            number, row = (int(one) for one in window)
        except (TypeError, ValueError):
            raise OptionError("this is no state of a loader that packs") from None
        if number < 0 or row < 0:
            raise OptionError("this is no state of a loader that packs")
        self._known, self._rows = {epoch: (number, row)}, {}


def _rest(pack: Pack, output: Output, plan: Plan, executor: Executor) -> tuple[Executor | None, str]:
    """Who makes what a batch has besides tokens, where these can be taken from where they lie."""
    kind = executor.reader.schema[output.field]
    if output.steps or pack.sizes is not None or not isinstance(kind, Tensor) or kind.dtype not in KINDS:
        return None, ""
    others = tuple(one for one in plan.outputs if one is not output)
    rest = Executor(
        executor.reader, Plan(others), executor.on_cpu, executor.on_device,
        seed=executor.seed, skip=executor.skip, decoded=executor.decoded,
    )  # fmt: skip
    rest.timer, rest.functions = executor.timer, executor.functions
    return rest, kind.dtype


def image_sizes(pack: Pack, reader: Reader) -> Callable[[I64], I64] | None:
    """How many places the pictures of documents take; None where there are none."""
    asked = pack.image_tokens
    if asked is None:
        return None
    if isinstance(asked, int):
        return lambda samples: np.full(len(samples), asked, dtype=np.int64)
    found = find_sizes(reader, (), asked)
    return lambda samples: np.asarray(found(samples)).astype(np.int64)


def token_sizes(pack: Pack, reader: Reader, output: Output, executor: Executor) -> Callable[[I64, int], Any]:
    """How many tokens documents have in an epoch, and where they lie: as said, by bytes, by making them."""
    if pack.sizes is not None:
        said = find_sizes(reader, [output.field], pack.sizes)
        return lambda samples, _: (said(samples), None)
    kind = reader.schema[output.field]
    if not output.steps and isinstance(kind, Tensor):
        if len(kind.shape) != 1:
            raise OptionError(
                f"documents are rows of tokens, and {output.field} is {kind}", field=output.field
            )
        if dense_of(kind) is not None:
            return lambda samples, _: (np.full(len(samples), kind.shape[0]), None)
        width = np.dtype(kind.dtype).itemsize
        return lambda samples, _: _where(reader, output.field, samples, width)

    alone = Executor(reader, Plan((output,)), executor.on_cpu, seed=executor.seed, skip=executor.skip)

    def made(samples: I64, epoch: int) -> tuple[I64, None]:
        """By making all documents of a window: every rank does."""
        values = alone.run(samples, epoch)
        found = {
            int(one): size for one, size in zip(values.ids, _lengths(values.values[output.name]), strict=True)
        }
        return np.array([found.get(int(one), 0) for one in samples], dtype=np.int64), None

    return made


def _where(reader: Reader, field: str, samples: I64, width: int) -> tuple[I64, Spans | None]:
    """Tokens of documents, and where they lie, where they lie as they are in files."""
    try:
        spans = reader.spans(field, samples)
    except DataError:
        spans = None
    if spans is None or (spans.size < 0).any() or spans.shape is not None:
        return sizes_of(reader, [field], samples) // width, None
    return spans.size // width, spans


def _lengths(value: Any) -> I64:
    if isinstance(value, tuple):
        found: I64 = np.diff(value[1])
        return found
    return np.array([len(one) for one in value], dtype=np.int64)
