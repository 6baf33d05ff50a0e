"""Running a plan: a node, or all of them where they are few, in the first epoch and in a later one.

The samples of a plan lie where a computation says; nothing is stored for them.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import order as orders
from ...loading.prefetch import PrefetchTuning
from ...order import BY_BLOCKS
from ...order.keyed import key_of, uniform
from ...schema.columns import I64
from ...storage.spans import Spans
from .model import Clock, Loops, NodeDisk, Rank, Way, hit_rates
from .plan import Plan
from .results import Epoch, Simulation

Progress = Callable[[int, int], None]
F64 = npt.NDArray[np.float64]
# So many positions of an order are looked at, at most; a dataset that has no more is simulated whole.
# Where most samples are fetched by themselves, each of them takes longer.
POSITIONS, SPARSE = 250_000, 60_000
# Batches of a rank that tell how it goes on: at least, and how often what a prefetch foresees.
LEAST, TURNS = 32, 4
# Ranks and steps whose batches are compared.
COMPARED_RANKS, COMPARED_STEPS = 256, 16
# Names that a store lists with one request.
LISTED = 1000
# A part that was busy for this share of the time is what limits all.
FULL = 0.85


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
        self.plan = plan
        self._options: dict[str, Any] = {}
        loader = plan.loader
        if loader.order in orders.BY_BLOCKS:
            self._options["blocks"] = orders.BlockIndex.of_sizes(_block_sizes(plan))
            if loader.lanes and plan.cluster.ranks > 1:
                self._options |= {"lanes": plan.cluster.ranks, "lane_size": loader.batch_size}
        if loader.window and loader.order in ("quasi_random", "windowed"):
            self._options["window"] = loader.window

        # Only the last order that was asked for: it may be large.
        self.order = functools.lru_cache(1)(self._make)

    def _make(self, epoch: int) -> orders.Order:
        loader = self.plan.loader
        samples = self.plan.data.samples
        return orders.make(loader.order, samples, seed=loader.seed, epoch=epoch, **self._options)

    def shard(self, epoch: int, rank: int, start: int = 0) -> orders.Shard:
        loader = self.plan.loader
        return orders.shard(
            self.order(epoch), rank=rank, world_size=self.plan.cluster.ranks, batch_size=loader.batch_size,
            drop_last=loader.drop_last, start=start,
        )  # fmt: skip


def _block_sizes(plan: Plan) -> I64:
    """Samples of every block; the last of a file may be smaller."""
    files, remaining = divmod(plan.data.samples, plan.samples_per_file)
    starts = np.arange(0, plan.samples_per_file, plan.samples_per_block)
    full, last = (np.diff(starts[starts < size], append=size) for size in (plan.samples_per_file, remaining))
    return np.concatenate([np.tile(full, files), last[last > 0]])


# -- the run --------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Scope:
    """Extent of a simulation: these ranks, by node, and so many batches of each."""

    nodes: tuple[tuple[int, ...], ...]
    batches: int
    whole: bool
    # Of the batches, the first that are not counted.
    skipped: int = 0

    @property
    def ranks(self) -> int:
        return sum(map(len, self.nodes))


def scope_of(plan: Plan) -> Scope:
    cluster, look = plan.cluster, plan.look
    batch = plan.loader.batch_size
    every = [
        tuple(range(first, min(first + cluster.ranks_per_node, cluster.ranks)))
        for first in range(0, cluster.ranks, cluster.ranks_per_node)
    ] if cluster.ranks <= look.sampled_ranks else []  # fmt: skip
    if every and not look.sampled_batches and 2 * plan.data.samples <= SPARSE:
        return Scope(tuple(every), plan.steps, True)
    ahead = plan.loader.fetch_bytes // (batch * plan.data.sample_bytes) + 1
    ahead = min(PrefetchTuning.max_remote_batches, ahead)
    if every:
        nodes = tuple(every)
    else:
        # One in the middle, for the last may have fewer ranks.
        first = plan.nodes // 2 * cluster.ranks_per_node
        here = min(look.sampled_ranks, cluster.ranks_per_node, cluster.ranks - first)
        nodes = (tuple(range(first, first + here)),)
    batches = look.sampled_batches or TURNS * ahead
    if not look.sampled_batches:
        ranks = sum(map(len, nodes))
        batches = max(LEAST, batches, TURNS**2 * plan.period)
        max_samples = POSITIONS if plan.is_dense else SPARSE
        batches = max(LEAST, min(batches, max_samples // (2 * ranks * batch)))
    batches = min(batches, plan.steps)
    # Blocks come in bursts, so that whole ones are counted; what is not counted fills the memory.
    turns = batches // 2 // plan.period
    return Scope(nodes, batches, False, batches - turns * plan.period if turns else batches // 2)


def simulate(plan: Plan, progress: Progress = lambda done, total: None) -> Simulation:
    """Run the plan in virtual time."""
    scope = scope_of(plan)
    data, orders = Dataset(plan), Orders(plan)
    began = time.perf_counter()
    least, greatest, left_out = _shares(plan, orders)
    order_seconds = time.perf_counter() - began
    total = 2 * scope.ranks * scope.batches
    cluster = _Cluster(plan, scope, data, orders)
    first = cluster.run(0, 0, lambda done: progress(done, total))
    rates = hit_rates(plan, cluster.kept)
    middle = 0 if scope.whole else _middle(plan, scope)
    if not scope.whole:
        cluster = _Cluster(plan, scope, data, orders, rates[1])
    later = cluster.run(1, middle, lambda done: progress(total // 2 + done, total))
    if scope.whole:
        rates = later.hit_rate, later.hit_rate
    opening = _open_seconds(plan)
    begin = plan.cluster.start + opening
    return Simulation(
        plan, first, later, rates, (least, greatest), left_out, _step_imbalance(plan, data, orders),
        opening, order_seconds, begin + first.first_batch, begin + order_seconds + later.first_batch,
        32 * plan.blocks if plan.loader.order in BY_BLOCKS else 0, _said(plan, scope),
    )  # fmt: skip


class _Cluster:
    """The simulated nodes; what their disks and pools hold stays from one epoch to the next."""

    def __init__(self, plan: Plan, scope: Scope, data: Dataset, orders: Orders, held: float = 0.0) -> None:
        self._plan, self._scope, self._orders = plan, scope, orders
        self.clock = Clock()
        self.loops = Loops(self.clock, plan.cluster.step, synchronous=plan.cluster.synchronous)
        self.ways: list[Way] = []
        self.disks: list[NodeDisk] = []
        self._numbers = [number for ranks in scope.nodes for number in ranks]

        def file_size(path: str) -> int:
            return data.file_size(int(path))

        for ranks in scope.nodes:
            way = Way(self.clock, plan, len(ranks))
            disk = NodeDisk(self.clock, plan.node.cache, held) if plan.node.cache else None
            self.ways.append(way)
            self.disks += [disk] if disk is not None else []
            for _ in ranks:
                rank = Rank(self.clock, way, disk, plan, data, file_size, self.loops.look)
                self.loops.ranks.append(rank)

    @property
    def kept(self) -> float:
        """The share of what was fetched that was put on disk."""
        fetched = sum(rank.fetching.bytes for rank in self.loops.ranks)
        return min(1.0, sum(disk.put for disk in self.disks) / max(1, fetched))

    def run(self, epoch: int, start: int, report: Callable[[int], None]) -> Epoch:
        began, ranks = self.clock.now, self.loops.ranks
        before = np.array(
            [(rank.fetching.bytes, rank.fetching.requests, rank.fetching.from_disk) for rank in ranks]
        )
        busy = self._busy()
        for rank, number in zip(ranks, self._numbers, strict=True):
            shard = self._orders.shard(epoch, number, start)
            after = functools.partial(self._orders.shard, epoch + 1, number) if self._scope.whole else None
            rank.begin(shard, after, self._scope.batches)
        self.loops.run(report)
        return self._epoch(began, before, busy)

    def _busy(self) -> dict[str, float]:
        """Seconds that every part would have been busy so far at its full speed."""
        ranks, ways, plan = self.loops.ranks, self.ways, self._plan
        seconds = {
            "the link of the node": [way.link.bytes / way.of_node for way in ways],
            "the bandwidth of the store": [way.link.bytes / way.of_store for way in ways],
            "the requests/s of the store": [way.gate.passed * way.gate.each for way in ways],
            "the disk of the node": [way.disk.bytes / way.disk.bandwidth for way in ways],
            "making requests": [rank.fetching.spent() for rank in ranks],
            "decoding": [rank.decoded / plan.cluster.decode for rank in ranks],
            "the training step": [
                rank.decoded / plan.loader.batch_size * plan.cluster.step for rank in ranks
            ],
        }
        return {name: float(np.mean(values)) for name, values in seconds.items()}

    def _epoch(self, began: float, before: F64, busy: dict[str, float]) -> Epoch:
        plan, ranks = self._plan, self.loops.ranks
        traces = np.array([rank.trace for rank in ranks], dtype=np.float64)
        # Of a part of an epoch, what comes after the first batches is what goes on.
        skipped = self._scope.skipped
        times, samples = traces[:, :, 0] - began, traces[:, :, 1]
        last = times[:, -1]
        since = times[:, skipped - 1] if skipped else np.zeros(len(ranks))
        spent = float((last - since).max() if plan.cluster.synchronous else (last - since).mean())
        looked_at = samples[:, skipped:].sum(axis=1)
        rate = float(looked_at.sum()) / max(spent, 1e-12) / len(ranks) * plan.cluster.ranks
        if skipped:
            counts = traces[:, -1, 2:] - traces[:, skipped - 1, 2:]
        else:
            ends = [(rank.fetching.bytes, rank.fetching.requests, rank.fetching.from_disk) for rank in ranks]
            counts = np.array(ends, dtype=np.float64) - before
        fetched, requests, from_disk = counts.T
        scale = plan.data.samples / plan.cluster.ranks / looked_at
        shares = {
            name: (now - busy[name]) / max(float(last.max()), 1e-12) for name, now in self._busy().items()
        }
        limit = max(shares, key=lambda name: shares[name])
        if shares[limit] < FULL:
            limit = "waiting for answers (latency, and the speed of one request)"
        taken, steps = samples.sum(axis=0).cumsum(), times.max(axis=0)
        gap = max(1, self._scope.batches // 100, min(plan.period, self._scope.batches // 4))
        marks = np.arange(gap, len(steps), max(1, self._scope.batches // 100))
        speeds = (taken[marks] - taken[marks - gap]) / np.maximum(steps[marks] - steps[marks - gap], 1e-12)
        return Epoch(
            samples_per_second=rate,
            seconds=plan.data.samples / rate,
            bytes=float((fetched * scale).mean()),
            requests=float((requests * scale).mean()),
            hit_rate=float(from_disk.sum() / max(1, (from_disk + fetched).sum())),
            imbalance=float(fetched.max() / max(1e-12, fetched.mean())) if fetched.any() else 1.0,
            first_batch=float(times[:, 0].max()),
            limit=limit,
            busy=shares,
            times=tuple(steps[marks].tolist()),
            rates=tuple((speeds / len(ranks) * plan.cluster.ranks).tolist()),
            bytes_by_rank=tuple((fetched * scale).tolist()),
            requests_by_rank=tuple((requests * scale).tolist()),
        )


def _shares(plan: Plan, orders: Orders) -> tuple[int, int, int]:
    """Samples of a rank in an epoch, the fewest and the most, and how many no rank gets."""
    counts = []
    for rank in (0, plan.cluster.ranks - 1):
        shard = orders.shard(0, rank)
        tail = [len(shard.positions(number)) for number in range(max(0, len(shard) - 2), len(shard))]
        counts.append(max(0, len(shard) - 2) * plan.loader.batch_size + sum(tail))
    return min(counts), max(counts), plan.data.samples - orders.shard(0, 0).position_after(plan.steps)


def _step_imbalance(plan: Plan, data: Dataset, orders: Orders) -> float:
    """Over ranks, the most bytes of a batch to the average, in the mean of some steps."""
    ranks = np.unique(np.linspace(0, plan.cluster.ranks - 1, COMPARED_RANKS).astype(int)).tolist()
    steps = np.unique(np.linspace(0, plan.steps - 1, COMPARED_STEPS).astype(int)).tolist()
    shards = [orders.shard(0, rank) for rank in ranks]
    ratios = []
    for step in steps:
        sums = np.array([int(data.sizes(shard.batch(step)).sum()) for shard in shards])
        ratios.append(sums.max() / max(1.0, sums.mean()))
    return float(np.mean(ratios))


def _middle(plan: Plan, scope: Scope) -> int:
    """A place in the middle of the epoch from which there are enough batches."""
    step = plan.cluster.ranks * plan.loader.batch_size
    return min(plan.steps // 2, plan.steps - scope.batches) * step


def _open_seconds(plan: Plan) -> float:
    """Listing the files, page after page, and one request for the index of all."""
    pages = -(-plan.data.files // LISTED) if plan.data.files > 1 else 0
    size = plan.data.index_bytes * plan.data.samples
    here = min(plan.cluster.ranks_per_node, plan.cluster.ranks)
    rate = min(plan.store.connection, plan.node.bandwidth / here, plan.store.bandwidth / plan.cluster.ranks)
    return (pages + 1) * plan.store.latency + size / rate


def _said(plan: Plan, scope: Scope) -> str:
    if scope.whole:
        return f"nothing: all {scope.ranks} ranks and two whole epochs were simulated"
    looked_at = 2 * scope.ranks * scope.batches * plan.loader.batch_size
    return (
        f"{scope.ranks:,} of {plan.cluster.ranks:,} ranks, {scope.batches:,} of {plan.steps:,} batches of "
        f"each in two epochs ({looked_at:,} positions of the order); the last "
        f"{scope.batches - scope.skipped} tell the speed"
    )
