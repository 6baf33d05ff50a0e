"""The cache on the disk of a node: cell by cell where all is simulated, else by how often one is found."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ... import order as orders
from ...loading.prefetch import PrefetchTuning
from ...order.keyed import key_of, uniform
from ...schema.columns import I64
from ...storage.remote.blocks import CHUNK_BYTES
from ...storage.remote.disk import EVICTED_SHARE, needed
from .network import Clock
from .plan import Plan

# Cells of a small cache that behaves as a large one, and epochs until it is what it will be.
CELLS, EPOCHS = 2048, 12
# Tells the draws of what is there from others.
PURPOSE = 19


class NodeDisk:
    """Stands in for the DiskCache that the ranks of a node share. Times are virtual.

    ``found``: the share of cells that were there before anything of this was simulated.
    """

    def __init__(self, clock: Clock, most: int, found: float = 0.0) -> None:
        self.limit, self._clock, self._found = most, clock, found
        # When each cell is needed next (later than now), or was used last.
        self._due: dict[tuple[str, int], tuple[float, int]] = {}
        self._bytes = 0
        # Bytes that were put here, whatever became of them.
        self.put = 0
        self._key = key_of(0, 0, PURPOSE)

    def has(self, key: str, number: int) -> bool:
        due = self._due.get((key, number))
        if due is not None:
            if due[0] < self._clock.now:
                self._due[key, number] = self._clock.now, due[1]
            return True
        if not self._found:
            return False
        draws = np.array([(int(key) << 20) + number])
        return bool(uniform(self._key, draws)[0] < self._found)

    def keep(self, key: str, number: int, size: int) -> None:
        if (key, number) in self._due:
            return
        self.put += size
        if self._bytes + size > self.limit:
            self._evict(self._bytes + size - self.limit + self.limit // EVICTED_SHARE)
        if self._bytes + size <= self.limit:
            self._due[key, number] = self._clock.now, size
            self._bytes += size

    def _evict(self, wanted: int) -> None:
        now = int(self._clock.now * 1e9)
        last = sorted(self._due, key=lambda chunk: needed(int(self._due[chunk][0] * 1e9), now))
        while last and wanted > 0:
            size = self._due.pop(last.pop())[1]
            self._bytes -= size
            wanted -= size

    def expect(self, key: str, blocks: list[tuple[int, int, float]]) -> None:
        for start, size, due in blocks:
            if (key, start // CHUNK_BYTES) in self._due:
                self._due[key, start // CHUNK_BYTES] = due, size


def touched(plan: Plan) -> tuple[float, bool]:
    """The share of all cells that a node reads of in an epoch, and whether they are the same in each."""
    part = min(1.0, plan.cluster.ranks_per_node / plan.cluster.ranks)
    by_lanes = plan.loader.order in orders.BY_BLOCKS and (plan.loader.lanes or plan.nodes == 1)
    if by_lanes or part == 1.0:
        return part, part == 1.0
    # A cell is left alone where none of its samples falls to the node.
    samples = max(1.0, CHUNK_BYTES / plan.data.sample_bytes)
    if plan.loader.order in ("sequential", "windowed"):
        # Samples that follow each other fall to a node a batch of every rank at a time.
        run = plan.cluster.ranks_per_node * plan.loader.batch_size
        return min(1.0, part * (1 + samples / run)), plan.loader.order == "sequential"
    return 1 - (1 - part) ** samples, False


def hit_rates(plan: Plan, kept: float) -> tuple[float, float]:
    """What a node finds on its disk in the second epoch, and in those much later.

    ``kept``: the share of what is read that is put there. A small cache stands for the large one: as many of
    its cells fit as of all cells, and each epoch touches as many of them, in another order.
    """
    part, same = touched(plan)
    if not plan.node.cache or not kept:
        return 0.0, 0.0
    room = plan.node.cache / plan.bytes
    if room >= 1:
        return kept * (1.0 if same else part), kept
    clock = Clock()
    disk = NodeDisk(clock, max(1, int(room * CELLS)))
    epochs = list(_epochs(plan, part))
    rates = []
    for number, cells in enumerate(epochs[:-1]):
        then = dict(zip(epochs[number + 1].tolist(), range(CELLS), strict=False))
        hits = 0
        for row, cell in enumerate(cells.tolist()):
            clock.now = float(number * CELLS + row)
            hits += disk.has("", cell)
            disk.keep("", cell, 1)
            if plan.data.samples <= PrefetchTuning.max_planned_samples and cell in then:
                disk.expect("", [(cell * CHUNK_BYTES, 1, float((number + 1) * CELLS + then[cell]))])
        rates.append(hits / len(cells))
    late = rates[EPOCHS // 2 :]
    return kept * rates[1], kept * sum(late) / len(late)


def _epochs(plan: Plan, part: float) -> Iterator[I64]:
    """The cells that a node touches, epoch after epoch."""
    rng = np.random.Generator(np.random.Philox(key=PURPOSE))
    many = max(1, round(part * CELLS))
    for _ in range(EPOCHS + 1):
        if plan.loader.order == "sequential":
            yield np.arange(many)
        else:
            cells = rng.permutation(CELLS)[:many]
            yield np.sort(cells) if plan.loader.order == "windowed" else cells
