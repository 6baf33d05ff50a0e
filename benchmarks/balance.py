"""Stragglers: the work of the slowest rank at every step, with and without order.Balanced.

Sizes are log-normal. A step takes as long as its slowest rank: at 1.3 times the mean, the others wait for
23 % of the time. This is arithmetic, the same on every machine; only the time to deal out is measured.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from _common import RESULTS, others, save

from batchplant import order as orders

# Ranks, samples of a batch, and steps looked at.
CASES = [(4, 8, 100), (8, 32, 100), (8, 256, 20), (64, 8, 20), (64, 32, 20), (256, 32, 4)]
# Standard deviations of the logarithms of sizes.
SPREADS = [0.5, 1.0, 1.5]


def imbalance(sizes: Any, world_size: int, batch: int, steps: int, balanced: bool) -> dict[str, float]:
    order = orders.random(len(sizes), seed=0, epoch=0)
    options: dict[str, Any] = {
        "world_size": world_size,
        "batch_size": batch,
        "sizes": sizes.take if balanced else None,
    }
    ranks = [orders.shard(order, rank=rank, **options) for rank in range(world_size)]
    began = time.perf_counter()
    batches = [[rank.batch(step) for rank in ranks] for step in range(steps)]
    seconds = (time.perf_counter() - began) / steps / world_size
    sums = np.array([[sizes[item].sum() for item in step] for step in batches])
    counts = [len(item) for step in batches for item in step]
    return {
        "slowest to mean": float((sums.max(axis=1) / sums.mean(axis=1)).mean()),
        "fewest samples": min(counts), "most samples": max(counts), "seconds for a batch": seconds,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON")
    args = parser.parse_args()
    results: dict[str, Any] = {"cases": []}
    print("| Spread | Ranks × batch size | Equal counts | `Balanced` | Samples in a batch | Dealt in |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    with others(results):
        for spread in SPREADS:
            for world_size, batch, steps in CASES:
                drawn = np.random.default_rng(0).lognormal(11, spread, world_size * batch * steps)
                sizes = drawn.astype(np.int64)
                plain, even = (
                    imbalance(sizes, world_size, batch, steps, balanced) for balanced in (False, True)
                )
                results["cases"].append(
                    {
                        "sigma": spread,
                        "world_size": world_size,
                        "batch": batch,
                        "steps": steps,
                        "plain": plain,
                        "balanced": even,
                    }
                )
                print(
                    f"| {spread} | {world_size} × {batch} | {plain['slowest to mean']:.2f} | "
                    f"{even['slowest to mean']:.2f} | {even['fewest samples']}–{even['most samples']} | "
                    f"{even['seconds for a batch'] * 1e3:.1f} ms |",
                    flush=True,
                )
    save(args.out, "balance", results)


if __name__ == "__main__":
    main()
