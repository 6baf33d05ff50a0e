"""batchplant's Loader with what FFCV's face needs: orders of users, and pipelines that change."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from .... import order as orders
from ....errors import OptionError
from ....loading.batch import Executor
from ....loading.loader import Loader
from ....loading.pipes import Pipelines
from ....loading.planning import make_plan
from ....schema.columns import I64
from ..translate import Delivery


class CoreLoader(Loader):
    """``own_order``: a TraversalOrder, which names samples of the whole file and knows its rank itself."""

    own_order: Any = None

    def replan(self, pipelines: Pipelines, delivery: Delivery | None) -> None:
        """Use these pipelines from the next epoch on; an epoch that runs keeps its own."""
        old = self._executor
        self.plan = make_plan(self.reader, pipelines)
        self._delivery = delivery
        on_cpu = self._on_cpu(old.on_cpu.engine)
        self._executor = Executor(self.reader, self.plan, on_cpu, seed=self.seed, skip=old.skip)
        self._executor.timer = old.timer

    def _make_order(self, epoch: int) -> orders.Order:
        if self.own_order is None:
            return super()._make_order(epoch)
        return orders.from_array(self.own_order.sample_order(epoch), samples=len(self.reader))

    def __len__(self) -> int:
        """Batches of a whole epoch, as FFCV counts them: an order of the user's own is asked for once."""
        return len(self._shard(0, 0))

    def _drawn(self, order: orders.Order | None) -> int | None:
        # An order of the user's own may be another on each rank.
        return super()._drawn(order) if self.own_order is None else None

    def __reduce__(self) -> NoReturn:
        raise OptionError("a loader with FFCV's face is not pickled: make it in the process that uses it")

    @property
    def next_epoch(self) -> int:
        return self._epoch

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        self._epoch, self._position = int(epoch), 0

    def samples_of(self, epoch: int) -> I64:
        """The samples of an epoch on this rank, the last incomplete batch too."""
        whole = orders.shard(
            self._make_order(epoch), rank=self.rank, world=self.world, batch_size=self.batch_size
        )
        return self.ids_at(whole.order[:] if self.world == 1 else _joined(whole))


def _joined(shard: orders.Shard) -> Any:
    return np.concatenate([np.empty(0, dtype=np.int64), *shard])
