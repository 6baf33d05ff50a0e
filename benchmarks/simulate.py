"""What `batchplant simulate` predicts, beside what real loaders do: 2 to 4 processes and a slow server.

Every case is a latency, a bandwidth and an order. The processes read the same file from a server on this
machine that waits and throttles (_throttled.py), each as one rank, two epochs. They take batches without
decoding, and where a case has a step, sleep that long for each. Predicted are the seconds of an epoch, the
first batch, bytes and requests. An epoch of less than a second, out of a cache, does not count for the error.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _common import others, part_arguments, save, workplace
from _throttled import Served, serving

import batchplant
from batchplant.tools.simulation import Plan, simulate

# Sizes vary so little that every page has 20 samples, here and in the plan: lanes are then the same, and not
# another draw of few pages.
SAMPLES, SIZE, VARIES, BATCH = 3000, 101_000, 0.01, 32
SHORTEST, GOAL = 1.0, 0.15
# What is printed, predicted / measured, and in which unit.
SHOWN = {"seconds": 1, "first batch": 1, "bytes": 1e6, "requests": 1}
# Of a .beton, where the file has them.
PAGE = 2 << 20
RANK = """
import json, sys, time
import batchplant
job = json.loads(sys.argv[1])
loader = batchplant.Loader(
    batchplant.open(job["url"], **job["source"]), job["batch"], rank=job["rank"],
    order=batchplant.order.by_name(job["order"], **job["options"]), world_size=job["world_size"],
    drop_last=True,
)
print("ready", flush=True)
for line in sys.stdin:
    began, first, last = time.time(), None, None
    before = loader.stats()
    for batch in loader:
        last = time.time()
        first = first or last
        if job["step"]:
            time.sleep(job["step"])
    now = loader.stats()
    print(json.dumps({
        "began": began, "first": first, "last": last, "requests": now["requests"] - before["requests"],
        "bytes": now["bytes fetched"] - before["bytes fetched"], "hedges": now["hedged requests"],
    }), flush=True)
"""


class Case(NamedTuple):
    ranks: int
    latency: float
    bandwidth: float
    connection: float = 1e12
    order: str = "quasi_random"
    window: int = 8
    lanes: bool = True
    step: float = 0.0
    fetch: int = 96 << 20
    cache: int = 0
    varies: float = VARIES


CASES = {
    "2 ranks, 60 MB/s, lanes": Case(2, 0.03, 60e6),
    "4 ranks, 60 MB/s, lanes": Case(4, 0.03, 60e6),
    "3 ranks, 50 MB/s, no lanes": Case(3, 0.03, 50e6, lanes=False),
    "2 ranks, random, 100 ms": Case(2, 0.1, 80e6, order="random", fetch=24 << 20),
    "4 ranks, random, small memory": Case(4, 0.05, 50e6, order="random", fetch=16 << 20),
    "2 ranks, 12 MB/s each": Case(2, 0.05, 1e9, connection=12e6, fetch=160 << 20),
    # Harder to predict: memory that is always full, requests of seconds, a server that may be the limit, and
    # sizes that make other pages, and so another draw of lanes, than the plan has.
    "2 ranks, 12 MB/s each, memory full": Case(2, 0.05, 1e9, connection=12e6),
    "2 ranks, 4 MB/s each, memory full": Case(2, 0.05, 1e9, connection=4e6),
    "3 ranks, 100 MB/s, no lanes": Case(3, 0.03, 100e6, lanes=False),
    "4 ranks, 60 MB/s, sizes vary": Case(4, 0.03, 60e6, varies=0.5),
    "2 ranks, a step of 150 ms": Case(2, 0.03, 80e6, step=0.15),
    "3 ranks, shards": Case(3, 0.03, 60e6, order="shards"),
    "2 ranks, cache on disk": Case(2, 0.03, 60e6, cache=10**9),
}


def make(path: Path, samples: int, varies: float) -> None:
    rng = np.random.default_rng(0)
    with batchplant.create(path, {"blob": batchplant.Bytes()}, page_size=PAGE) as out:
        for size in rng.integers(int(SIZE * (1 - varies)), int(SIZE * (1 + varies)), samples):
            out.append({"blob": rng.bytes(int(size))})


def plan_of(case: Case, samples: int) -> Plan:
    return Plan().but(
        data={"samples": samples, "sample_bytes": SIZE, "varies": case.varies, "files": 1,
              "block_bytes": PAGE, "aligned": True, "index_bytes": 0},
        loader={"order": case.order, "window": case.window, "lanes": case.lanes, "batch_size": BATCH,
                "fetch_bytes": case.fetch},
        cluster={"ranks": case.ranks, "ranks_per_node": case.ranks, "decode": 1e6, "step": case.step,
                 "start": 0, "synchronous": False},
        node={"bandwidth": 1e12, "cache": case.cache},
        store={"latency": case.latency, "bandwidth": case.bandwidth, "connection": case.connection,
               "requests": 1e9},
        look={"sampled_ranks": case.ranks},
    )  # fmt: skip


class Ranks:
    """The real processes of a case."""

    def __init__(self, case: Case, url: str, scratch: Path) -> None:
        by_blocks = case.order in ("quasi_random", "shards")
        options: dict[str, Any] = {"window": case.window} if case.order == "quasi_random" else {}
        options |= {"lanes": case.ranks} if case.lanes and by_blocks else {}
        source: dict[str, Any] = {"fetch_bytes": case.fetch}
        if case.cache:
            source |= {"cache": str(scratch / "cache"), "cache_bytes": case.cache}
        shutil.rmtree(scratch / "cache", ignore_errors=True)
        environment = {
            **os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "PYTHONWARNINGS": "ignore",
            "XDG_CACHE_HOME": str(scratch),
        }  # fmt: skip
        self.processes = []
        for rank in range(case.ranks):
            job = {"url": url, "batch": BATCH, "order": case.order, "rank": rank, "world_size": case.ranks,
                   "options": options, "source": source, "step": case.step}  # fmt: skip
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", RANK, json.dumps(job)], stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE, text=True, env=environment,
                )
            )  # fmt: skip
        for process in self.processes:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise SystemExit("a rank does not start")

    def epoch(self) -> dict[str, float]:
        for item in self.processes:
            assert item.stdin is not None
            item.stdin.write("epoch\n")
            item.stdin.flush()
        result = [
            json.loads(process.stdout.readline()) for process in self.processes if process.stdout is not None
        ]
        began = min(row["began"] for row in result)
        return {
            "seconds": statistics.fmean(row["last"] - row["began"] for row in result),
            "first batch": max(row["first"] for row in result) - began,
            "bytes": sum(row["bytes"] for row in result),
            "requests": sum(row["requests"] for row in result),
            "hedged": sum(row["hedges"] for row in result),
        }

    def close(self) -> None:
        for value in self.processes:
            value.kill()
            value.wait()
            for pipe in (value.stdin, value.stdout):
                assert pipe is not None
                pipe.close()


def measured(case: Case, served: Served, name: str, scratch: Path) -> list[dict[str, float]]:
    served.begin(0.0, 1e12, 1e12)
    ranks = Ranks(case, f"{served.url}/{name}", scratch)
    try:
        served.begin(case.latency, case.bandwidth, case.connection)
        return [ranks.epoch() for _ in range(2)]
    finally:
        ranks.close()


def predicted(plan: Plan) -> list[dict[str, float]]:
    result = simulate(plan)
    ranks = plan.cluster.ranks
    per_rank = plan.steps * plan.loader.batch_size
    return [
        {
            "seconds": per_rank * ranks / item.samples_per_second, "first batch": item.first_batch,
            "bytes": sum(item.bytes_by_rank) * per_rank * ranks / plan.data.samples,
            "requests": sum(item.requests_by_rank) * per_rank * ranks / plan.data.samples,
        }
        for item in (result.first, result.later)
    ]  # fmt: skip


def main() -> None:
    args = part_arguments(__doc__ or "", CASES, rounds=3)
    samples = 640 if args.quick else SAMPLES
    results: dict[str, Any] = {"samples": samples, "sample bytes": SIZE, "cases": {}}
    with workplace() as folder, others(results):
        data = folder / "data"
        data.mkdir()
        for varies in {CASES[name].varies for name in args.parts}:
            make(data / f"blobs-{varies}.beton", samples, varies)
        with serving(data) as served:
            for name in args.parts:
                results["cases"][name] = compare(name, served, data, samples, args.rounds)
    result = [item for case in results["cases"].values() for item in case["epochs"]]
    worst = max(abs(1 - row["ratio"]) for row in result if row["measured"]["seconds"] >= SHORTEST)
    results["worst error of an epoch's seconds"] = worst
    within = sum(abs(1 - row["ratio"]) <= GOAL for row in result if row["measured"]["seconds"] >= SHORTEST)
    counted = sum(row["measured"]["seconds"] >= SHORTEST for row in result)
    results["epochs within 15 %"], results["epochs"] = within, counted
    print(f"worst error of an epoch's seconds: {worst:.1%}; {within} of {counted} epochs within {GOAL:.0%}")
    save(args.out, "simulate", results)


def compare(name: str, served: Served, data: Path, samples: int, rounds: int) -> dict[str, Any]:
    case = CASES[name]
    runs = [measured(case, served, f"blobs-{case.varies}.beton", data.parent) for _ in range(rounds)]
    began = time.perf_counter()
    told = predicted(plan_of(case, samples))
    took = time.perf_counter() - began
    epochs = []
    for number, row in enumerate(told):
        real = {key: statistics.median(run[number][key] for run in runs) for key in runs[0][number]}
        ratio = row["seconds"] / real["seconds"]
        epochs.append({"predicted": row, "measured": real, "ratio": ratio})
        both = (f"{row[key] / scale:,.2f} / {real[key] / scale:,.2f}" for key, scale in SHOWN.items())
        print(f"{name:<35} epoch {number}  {ratio:4.2f}  {', '.join(both)}", flush=True)
    return {**case._asdict(), "simulated in seconds": took, "epochs": epochs}


if __name__ == "__main__":
    main()
