"""Which samples an epoch has, and in which order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from .. import order as orders
from ..data.reader import Reader
from ..errors import OptionError
from ..order import buckets
from ..schema import Bytes, List, Tensor, Text
from ..schema.columns import I64
from .aspects import find_aspects
from .balance import find_sizes
from .plan import Plan


class Buckets(NamedTuple):
    """How long samples are, by their places; ``by``: what says so."""

    lengths: orders.Sizes
    by: Any


def make_buckets(
    reader: Reader, plan: Plan, indices: I64 | None, by: Any, other: str | None = None
) -> Buckets | None:
    """What ``bucket_by_length`` asks for; True: by the only field whose cells differ in length.

    ``other``: what ``bucket_by`` asks for, the aspect of images.
    """
    if other is not None:
        if other != "aspect" or not (by is None or by is False):
            raise OptionError(f'bucket_by is "aspect", without bucket_by_length, and not {other!r}')
        aspects = find_aspects(reader, plan)
        return Buckets(aspects if indices is None else lambda places: aspects(indices[places]), "aspect")
    if by is None or by is False:
        return None
    if by is True:
        vary = [
            name
            for name in plan.fields
            if isinstance(field := reader.schema[name], Text | Bytes | List)
            or (isinstance(field, Tensor) and None in field.shape)
        ]
        if len(vary) != 1:
            said = f"of {', '.join(vary)}" if vary else "and none of these has values of varying length"
            raise OptionError(f"bucket_by_length is the field whose length counts, {said}")
        by = vary[0]
    found = find_sizes(reader, plan.fields, by)
    return Buckets(found if indices is None else lambda places: found(indices[places]), by)


class Ordering:
    """Makes the order of every epoch; ``asked`` is what the user gave as ``order``."""

    def __init__(
        self, reader: Reader, asked: Any, options: Mapping[str, Any] | None, indices: I64 | None, seed: int,
        buckets: Buckets | None = None,
    ) -> None:  # fmt: skip
        self.reader, self.asked, self.options = reader, asked, dict(options or {})
        self.indices, self.seed = indices, seed
        self.samples = len(reader) if indices is None else len(indices)
        self.buckets = buckets
        self._blocks: orders.BlockIndex | None = None
        self._marked: dict[str, Any] | None = None

    def make(self, epoch: int) -> orders.Order:
        if self.buckets is None:
            return self._make(epoch, dict(self.options))
        own, options = buckets.split(self.options)
        # Batches are shuffled where samples are.
        shuffle = self.asked != "sequential"
        return orders.bucketed(
            self._make(epoch, options),
            self.buckets.lengths,
            shuffle=shuffle,
            seed=self.seed,
            epoch=epoch,
            **own,
        )

    def _make(self, epoch: int, options: dict[str, Any]) -> orders.Order:
        if self.indices is None:
            own = self.reader.own_order(self.asked, seed=self.seed, epoch=epoch, **options)
            if own is not None:
                return own
        if isinstance(self.asked, str) and self.asked in orders.BY_BLOCKS and "blocks" not in options:
            options["blocks"] = self._block_index(self.asked)
        return orders.make(self.asked, self.samples, seed=self.seed, epoch=epoch, **options)

    def _block_index(self, order: str) -> orders.BlockIndex:
        """The grouping of samples by storage block, made once."""
        if self._blocks is None:
            blocks = self.reader.blocks()
            if blocks is None:
                raise OptionError(f"this format has no blocks, so {order} has nothing to go by; use random")
            self._blocks = orders.BlockIndex(blocks, self.reader.window, self.indices)
        return self._blocks

    def marks(self) -> dict[str, Any]:
        """What the row of samples depends on, besides the seed."""
        if self._marked is None:
            whole = self.indices is None or np.array_equal(self.indices, np.arange(len(self.reader)))
            by = None if self.buckets is None else self.buckets.by
            self._marked = orders.marks(self.asked, self.options, None if whole else self.indices, by)
        return self._marked
