"""Running a plan: a node, or all of them where they are few, in the first epoch and in a later one."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...loading.prefetch import PrefetchTuning
from ...order import BY_BLOCKS
from .cache import NodeDisk, hit_rates
from .data import Dataset, Orders
from .network import Clock, Way
from .plan import Plan
from .ranks import Loops, Rank
from .results import Epoch, Simulation

Progress = Callable[[int, int], None]
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


@dataclasses.dataclass(frozen=True)
class Scope:
    """What is simulated: these ranks, by node, and so many batches of each."""

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

    def __init__(self, plan: Plan, scope: Scope, data: Any, orders: Any, found: float = 0.0) -> None:
        self._plan, self._scope, self._orders = plan, scope, orders
        self.clock = Clock()
        self.loops = Loops(self.clock, plan.cluster.step, synchronous=plan.cluster.synchronous)
        self.ways: list[Way] = []
        self.disks: list[NodeDisk] = []
        self._numbers: list[int] = []
        for ranks in scope.nodes:
            way = Way(self.clock, plan, len(ranks))
            disk = NodeDisk(self.clock, plan.node.cache, found) if plan.node.cache else None
            self.ways.append(way)
            self.disks += [disk] if disk is not None else []
            for number in ranks:
                self._numbers.append(number)
                self.loops.ranks.append(
                    Rank(self.clock, way, disk, plan, data, lambda path: data.file_size(int(path)),
                         self.loops.look)
                )  # fmt: skip

    @property
    def kept(self) -> float:
        """The share of what was fetched that was put on disk."""
        fetched = sum(rank.fetching.bytes for rank in self.loops.ranks)
        return min(1.0, sum(disk.put for disk in self.disks) / max(1, fetched))

    def run(self, epoch: int, start: int, report: Callable[[int], None]) -> Epoch:
        began, ranks = self.clock.now, self.loops.ranks
        before = [(rank.fetching.bytes, rank.fetching.requests, rank.fetching.from_disk) for rank in ranks]
        busy = self._busy()
        for rank, number in zip(ranks, self._numbers, strict=True):
            shard = self._orders.shard(epoch, number, start)
            after = partial(self._orders.shard, epoch + 1, number) if self._scope.whole else None
            rank.begin(shard, after, self._scope.batches)
        self.loops.run(report)
        return self._epoch(began, before, busy)

    def _busy(self) -> dict[str, float]:
        """Seconds that every part would have been busy so far at its full speed."""
        ranks, plan = self.loops.ranks, self._plan
        moved = [(way, way.link.bytes) for way in self.ways]
        batches = [rank.decoded / plan.loader.batch_size for rank in ranks]
        return {
            "the link of the node": float(np.mean([size / way.of_node for way, size in moved])),
            "the bandwidth of the store": float(np.mean([size / way.of_store for way, size in moved])),
            "the requests/s of the store": float(
                np.mean([way.gate.passed * way.gate.each for way in self.ways])
            ),
            "the disk of the node": float(
                np.mean([way.disk.bytes / way.disk.bandwidth for way in self.ways])
            ),
            "making requests": float(np.mean([rank.fetching.spent() for rank in ranks])),
            "decoding": float(np.mean([rank.decoded / plan.cluster.decode for rank in ranks])),
            "the training step": float(np.mean(batches)) * plan.cluster.step,
        }

    def _epoch(self, began: float, before: list[tuple[int, int, int]], busy: dict[str, float]) -> Epoch:
        plan, ranks = self._plan, self.loops.ranks
        traces = [rank.trace for rank in ranks]
        # Of a part of an epoch, what comes after the first batches is what goes on.
        skipped = self._scope.skipped
        times = np.array([trace.times for trace in traces]) - began
        samples = np.array([trace.samples for trace in traces])
        last = times[:, -1]
        since = times[:, skipped - 1] if skipped else np.zeros(len(ranks))
        spent = float((last - since).max() if plan.cluster.synchronous else (last - since).mean())
        looked_at = samples[:, skipped:].sum(axis=1)
        rate = float(looked_at.sum()) / max(spent, 1e-12) / len(ranks) * plan.cluster.ranks

        def grown(name: str, which: int) -> Any:
            ends = np.array([getattr(trace, name) for trace in traces])
            if not skipped:
                return np.array([getattr(rank.fetching, name) for rank in ranks]) - [
                    counts[which] for counts in before
                ]
            return ends[:, -1] - ends[:, skipped - 1]

        fetched, requests, from_disk = grown("bytes", 0), grown("requests", 1), grown("from_disk", 2)
        scale = plan.data.samples / plan.cluster.ranks / looked_at
        shares = {
            name: (now - busy[name]) / max(float(last.max()), 1e-12) for name, now in self._busy().items()
        }
        taken = samples.sum(axis=0).cumsum()
        steps = times.max(axis=0)
        gap = max(1, self._scope.batches // 100, min(plan.period, self._scope.batches // 4))
        marks = np.arange(gap, len(steps), max(1, self._scope.batches // 100))
        speeds = (taken[marks] - taken[marks - gap]) / np.maximum(steps[marks] - steps[marks - gap], 1e-12)
        return Epoch(
            rate, plan.data.samples / rate, float((fetched * scale).mean()), float((requests * scale).mean()),
            float(from_disk.sum() / max(1, (from_disk + fetched).sum())),
            float(fetched.max() / max(1e-12, fetched.mean())) if fetched.any() else 1.0,
            float(times[:, 0].max()), _limit(shares), shares, tuple(steps[marks].tolist()),
            tuple((speeds / len(ranks) * plan.cluster.ranks).tolist()),
            tuple((fetched * scale).tolist()), tuple((requests * scale).tolist()),
        )  # fmt: skip


def _limit(shares: dict[str, float]) -> str:
    name = max(shares, key=lambda name: shares[name])
    return name if shares[name] >= FULL else "waiting for answers (latency, and the speed of one request)"


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
