"""Datasets and clusters that are larger than this machine: orders, plans, opening, and conversion by engines.

order       positions of orders over 10^10 samples for 10^4 ranks: microseconds of one, and memory
plan        which of 10^9 samples go into which of 10^5 files, from their sizes: seconds and peak memory
open        a set of 10^9 samples in 10^5 files by the one index of all (MDS): seconds and peak memory; and
            TFRecord files with _index.bpindex, fewer of them, for every file is opened
conversion  re-encoding pictures with 1, 2 and 4 processes of one thread each, and by Dask and Ray with as
            many as the most; without the time that a cluster needs to start

Plan and open run in processes of their own, so that their memory is theirs.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _common import interleaved, others, part_arguments, photos, save, timed, workplace

import batchplant
from batchplant import engines
from batchplant import order as orders

SAMPLES, WORLD, BATCH = 10**10, 10**4, 256
BLOCKS = 10**5
PLANNED, SHARDS = 10**9, 10**5
RECORDS = 2000
PICTURES, SIDE = 1600, 400
PROCESSES = (1, 2, 4)

PLAN = """
import json, resource, sys, time
import numpy as np
from batchplant import order
from batchplant.columns import Spans
from batchplant.conversion.plan import plan
from batchplant.reader import Reader
from batchplant.schema import Bytes, Int, Schema

class Sizes(Reader):
    path, schema = "sizes", Schema({"blob": Bytes(), "label": Int()})
    def __init__(self, length):
        self.length = length
    def _spans(self, field, indices):
        sizes = (indices * 2654435761 >> 7) % 65536 + 1000
        return Spans(("sizes",), indices, sizes)

samples, shards = int(sys.argv[1]), int(sys.argv[2])
mean = 65535 / 2 + 1000 + 8
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.perf_counter()
made = plan(Sizes(samples), ["blob", "label"], order.sequential(samples), size=int(mean * samples / shards))
seconds = time.perf_counter() - began
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = {"files": len(made), "seconds": seconds, "peak": peak * 1024, "grown": (peak - before) * 1024}
print(json.dumps(found))
"""
OPEN = """
import json, resource, sys, time
import batchplant
began = time.perf_counter()
reader = batchplant.open(sys.argv[1])
seconds = time.perf_counter() - began
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"samples": len(reader), "seconds": seconds, "peak": peak}))
"""


def fresh(script: str, *arguments: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def middle(runs: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(one[key] for one in runs) for key in runs[0]}


# -- order -------------------------------------------------------------------------------------------------


def order_part(folder: Path, args: Any) -> dict[str, Any]:
    index = orders.BlockIndex.of_sizes(np.full(BLOCKS, SAMPLES // BLOCKS))
    made: dict[str, Callable[[], orders.Order]] = {
        "random": lambda: orders.random(SAMPLES, seed=1, epoch=0),
        "windowed": lambda: orders.windowed(SAMPLES, seed=1, epoch=0, window=100_000),
        "shards, lanes": lambda: orders.shards(
            SAMPLES, seed=1, epoch=0, blocks=index, lanes=WORLD, lane_size=BATCH
        ),
        "quasi_random, lanes": lambda: orders.quasi_random(
            SAMPLES, seed=1, epoch=0, blocks=index, lanes=WORLD, lane_size=BATCH
        ),
    }
    found = {}
    rng = np.random.default_rng(0)
    for name, make in made.items():
        tracemalloc.start()
        order = make()
        memory = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        shards = [
            orders.shard(order, rank=rank, world=WORLD, batch_size=BATCH) for rank in (0, 4711, WORLD - 1)
        ]
        places = [int(one) for one in rng.integers(0, SAMPLES, 64)]
        steps = [int(one) for one in rng.integers(0, len(shards[0]), 64)]
        calls = 5 if args.quick else 40
        alone, batch = [], []
        for _ in range(calls):
            began = time.perf_counter()
            for place in places:
                order[place]
            alone.append((time.perf_counter() - began) / len(places))
            began = time.perf_counter()
            for step in steps:
                shards[step % len(shards)].batch(step)
            batch.append((time.perf_counter() - began) / len(steps) / BATCH)
        found[name] = {
            "made in ms": timed(make) * 1e3,
            "memory": memory,
            "one position alone, us": {"best": min(alone) * 1e6, "median": statistics.median(alone) * 1e6},
            "one position of a batch, us": {
                "best": min(batch) * 1e6,
                "median": statistics.median(batch) * 1e6,
            },
        }
        one, many = statistics.median(alone) * 1e6, statistics.median(batch) * 1e6
        said = f"alone {one:6.2f} us, in a batch {many:5.2f} us"
        print(f"  {name:<22} {said}, {memory / 1e3:,.1f} kB", flush=True)
    return {"samples": SAMPLES, "ranks": WORLD, "batch": BATCH, "blocks": BLOCKS, "orders": found}


# -- plan --------------------------------------------------------------------------------------------------


def plan_part(folder: Path, args: Any) -> dict[str, Any]:
    samples = 10**7 if args.quick else PLANNED
    shards = samples // (PLANNED // SHARDS)
    found = middle([fresh(PLAN, str(samples), str(shards)) for _ in range(min(args.rounds, 2))])
    print(f"  {samples:,} samples in {found['files']:,.0f} files: {found['seconds']:.2f} s, "
          f"peak {found['peak'] / 1e6:,.0f} MB", flush=True)  # fmt: skip
    return {"samples": samples, **found}


# -- open --------------------------------------------------------------------------------------------------


def make_mds(folder: Path, shards: int, each: int) -> None:
    """The index of a large set: that of a small one, its shard many times. Opening looks at no other file."""
    with batchplant.create(
        folder, {"blob": batchplant.Bytes(), "label": batchplant.Int()}, format="mds"
    ) as out:
        out.append({"blob": b"x" * 1000, "label": 1})
    path = folder / "index.json"
    index = json.loads(path.read_text())
    one = index["shards"][0]
    one["samples"], one["raw_data"]["bytes"] = each, 1100 * each
    index["shards"] = [
        {**one, "raw_data": {**one["raw_data"], "basename": f"shard.{number:06d}.mds"}}
        for number in range(shards)
    ]
    path.write_text(json.dumps(index))


def make_records(folder: Path, files: int) -> str:
    """Small files of TFRecord and the one index of all."""
    folder.mkdir()
    with batchplant.create(folder / "first.tfrecord", {"blob": batchplant.Bytes()}) as out:
        for _ in range(16):
            out.append({"blob": b"x" * 100})
    data = (folder / "first.tfrecord").read_bytes()
    for path in list(folder.iterdir()):
        path.unlink()
    for number in range(files):
        (folder / f"part-{number:06d}.tfrecord").write_bytes(data)
    where = str(folder / "part-*.tfrecord")
    subprocess.run(
        [sys.executable, "-m", "batchplant", "index", where], check=True, stdout=subprocess.DEVNULL
    )
    return where


def open_part(folder: Path, args: Any) -> dict[str, Any]:
    shards, files = (1000, 200) if args.quick else (SHARDS, RECORDS)
    make_mds(folder / "mds", shards, PLANNED // SHARDS)
    where = make_records(folder / "records", files)
    found = {}
    for name, path in (("MDS, index.json", str(folder / "mds")), ("TFRecord, _index.bpindex", where)):
        found[name] = middle([fresh(OPEN, path) for _ in range(args.rounds)])
        found[name]["files"] = shards if name.startswith("MDS") else files
        one = found[name]
        what = f"{one['files']:,} files, {one['samples']:,.0f} samples"
        print(f"  {name:<26} {what}: {one['seconds']:.3f} s, peak {one['peak'] / 1e6:,.0f} MB", flush=True)
    return found


# -- conversion --------------------------------------------------------------------------------------------


def convert(source: Path, target: Path, engine: engines.Engine, shards: int, count: int) -> float:
    """From the first task on: how long a cluster needs to start is not ours."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    began: list[float] = []
    start = engine.start

    def started(work: Any) -> None:
        start(work)
        began.append(time.perf_counter())

    engine.start = started  # type: ignore[method-assign]
    images = batchplant.ImageOptions(write_mode="jpg", reencode=True, max_resolution=SIDE * 4 // 5)
    batchplant.convert(
        source,
        target / "out.beton",
        images=images,
        engine=engine,
        workers=1,
        shard_samples=-(-count // shards),
    )
    return time.perf_counter() - began[0]


def conversion_part(folder: Path, args: Any) -> dict[str, Any]:
    count = 96 if args.quick else PICTURES
    cores = len(os.sched_getaffinity(0))
    numbers = [one for one in PROCESSES if one <= max(2, cores)]
    print(f"  making {count} pictures of {SIDE} px", flush=True)
    photos().make_folder(folder / "photos", count, size=SIDE)
    shards = 4 * numbers[-1]
    tasks: dict[str, Callable[[], float]] = {}

    def add(name: str, engine: str, workers: int) -> None:
        def run() -> float:
            made = engines.make(engine, workers=workers)
            return convert(folder / "photos", folder / "out", made, shards, count)

        tasks[name] = run

    for number in numbers:
        add(f"processes: {number}", "processes", number)
    for engine in ("dask", "ray"):
        with contextlib.suppress(ImportError):
            __import__("distributed" if engine == "dask" else engine)
            add(f"{engine}: {numbers[-1]}", engine, numbers[-1])
    # Libraries are imported and files are in the system's memory from here on.
    tasks[f"processes: {numbers[-1]}"]()
    found = interleaved(tasks, args.rounds)
    one, most = found["processes: 1"]["median"], found[f"processes: {numbers[-1]}"]["median"]
    speeds = {
        name: {key: count / seconds[key] for key in ("best", "median")} for name, seconds in found.items()
    }
    ratios = {name: most / seconds["median"] for name, seconds in found.items() if ":" in name}
    print(f"  {numbers[-1]} processes: {one / most:.2f} times 1; " + ", ".join(
        f"{name} {ratio:.2f} of processes" for name, ratio in ratios.items() if "processes" not in name
    ))  # fmt: skip
    return {
        "pictures": count, "side": SIDE, "shards": shards, "images/s": speeds, "speed-up": one / most,
        "of processes": ratios,
    }  # fmt: skip


PARTS: dict[str, Callable[[Path, Any], dict[str, Any]]] = {
    "order": order_part, "plan": plan_part, "open": open_part, "conversion": conversion_part
}  # fmt: skip


def main(parts: Sequence[str] = tuple(PARTS)) -> None:
    args = part_arguments(__doc__ or "", parts, rounds=3)
    results: dict[str, Any] = {}
    with workplace() as folder, others(results):
        for name in args.parts:
            print(name, flush=True)
            results[name] = PARTS[name](folder, args)
    save(args.out, "scale", results)


if __name__ == "__main__":
    main()
