"""Which samples an epoch has, and in which order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import order as orders
from ..columns import I64
from ..errors import OptionError
from ..reader import Reader


class Ordering:
    """Makes the order of every epoch; ``asked`` is what the user gave as ``order``."""

    def __init__(
        self, reader: Reader, asked: Any, options: Mapping[str, Any] | None, indices: I64 | None, seed: int
    ) -> None:
        self.reader, self.asked, self.options = reader, asked, dict(options or {})
        self.indices, self.seed = indices, seed
        self.samples = len(reader) if indices is None else len(indices)
        self._blocks: orders.BlockIndex | None = None
        self._marked: dict[str, Any] | None = None

    def make(self, epoch: int) -> orders.Order:
        options = dict(self.options)
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
            self._marked = orders.marks(self.asked, self.options, None if whole else self.indices)
        return self._marked
