"""Where the bytes of samples would lie: computed for any sample, stored for none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import order as orders
from ...order.keyed import key_of, uniform
from ...schema.columns import I64
from ...storage.spans import Spans
from .plan import Plan

# What its draws are told from others by.
PURPOSE = 18


class Dataset:
    """Samples one after another in files; ``ranges`` tells where, as a Reader does.

    A border between two samples is moved by a draw of its own, so that sizes vary and sums are exact.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.each = plan, plan.samples_per_file
        self._key = key_of(plan.loader.seed, 0, PURPOSE)
        self._aligned = plan.data.aligned and plan.data.block_bytes > 0
        self._stride = plan.data.sample_bytes + plan.data.gap_bytes

    def __len__(self) -> int:
        return self.plan.data.samples

    def _borders(self, samples: I64) -> I64:
        """Where samples begin in their files: all but the first of a run a little later than on average."""
        data = self.plan.data
        moved = uniform(self._key, samples) * data.varies * data.sample_bytes
        position = samples % self.each
        # What begins at a fixed position: a file, and a block where blocks are aligned.
        run = self.plan.samples_per_block if self._aligned else self.each
        block, within = np.divmod(position, run)
        moved[within == 0] = 0
        begin = block * (data.block_bytes if self._aligned else run * self._stride)
        return begin + within * self._stride + moved.astype(np.int64)

    def sizes(self, samples: I64) -> I64:
        """Up to the gap before the next one, or where that would be, where the next is in another run."""
        data, run = self.plan.data, self.plan.samples_per_block if self._aligned else self.each
        ends = self._borders(samples + 1)
        last = ((samples + 1) % self.each % run == 0) | (samples + 1 == len(self))
        position = samples[last] % self.each
        begin = position // run * (data.block_bytes if self._aligned else run * self._stride)
        ends[last] = begin + (position % run + 1) * self._stride
        return ends - self._borders(samples) - data.gap_bytes

    def file_size(self, number: int) -> int:
        """Up to the end of its last sample."""
        last = np.array([min(self.each * (number + 1), len(self)) - 1])
        return int((self._borders(last) + self.sizes(last))[0])

    def ranges(self, fields: Sequence[str] | None, indices: Any) -> Spans:
        samples = np.asarray(indices, dtype=np.int64)
        files, file = np.unique(samples // self.each, return_inverse=True)
        names = [str(file) for file in files.tolist()]
        return Spans(names, self._borders(samples), self.sizes(samples), file.reshape(-1).astype(np.int32))


class Orders:
    """The order of every epoch, as a Loader would make it."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self._made = plan, dict[int, orders.Order]()
        self._options: dict[str, Any] = {}
        loader = plan.loader
        if loader.order in orders.BY_BLOCKS:
            self._options["blocks"] = orders.BlockIndex.of_sizes(_block_sizes(plan))
            if loader.lanes and plan.cluster.ranks > 1:
                self._options |= {"lanes": plan.cluster.ranks, "lane_size": loader.batch_size}
        if loader.window and loader.order in ("quasi_random", "windowed"):
            self._options["window"] = loader.window

    def order(self, epoch: int) -> orders.Order:
        if epoch not in self._made:
            loader = self.plan.loader
            self._made = {
                epoch: orders.make(
                    loader.order, self.plan.data.samples, seed=loader.seed, epoch=epoch, **self._options
                )
            }
        return self._made[epoch]

    def shard(self, epoch: int, rank: int, start: int = 0) -> orders.Shard:
        loader = self.plan.loader
        return orders.shard(
            self.order(epoch), rank=rank, world_size=self.plan.cluster.ranks, batch_size=loader.batch_size,
            drop_last=loader.drop_last, start=start,
        )  # fmt: skip


def _block_sizes(plan: Plan) -> I64:
    """Samples of every block; the last of a file may be smaller."""

    def of_file(samples: int) -> I64:
        full, remaining = divmod(samples, plan.samples_per_block)
        return np.array([plan.samples_per_block] * full + ([remaining] if remaining else []), dtype=np.int64)

    files, remaining = divmod(plan.data.samples, plan.samples_per_file)
    return np.concatenate([np.tile(of_file(plan.samples_per_file), files), of_file(remaining)])
