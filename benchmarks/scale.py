"""Datasets and clusters that are larger than this machine: orders, plans, opening, and conversion by engines.

order       positions of orders over 10^10 samples for 10^4 ranks: microseconds of one, and memory
plan        which of 10^9 samples go into which of 10^5 files, from their sizes: seconds and peak memory
open        sets of 10^5 files by the one index of all: seconds, peak memory, and seconds for a first sample.
            10^9 samples where files tell themselves where they are; 16 in each file where the index does
folder      the first batch from a folder of 10^6 images of 1,000 classes: seconds and peak memory
loader      the first batch of 10^9 samples in several orders: seconds and memory that is no mapped file
conversion  re-encoding images with 1, 2 and 4 processes of one thread each, started for it, and by clusters
            of Dask and Ray that are there, with as many workers as the most

Plan, open, folder and loader run in processes of their own, so that their memory is theirs.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from _common import interleaved, others, part_arguments, photos, save, timed, workplace

import batchplant
from batchplant import order as orders
from batchplant.formats import registry
from batchplant.jobs import engines
from batchplant.storage import index as indexes
from batchplant.storage.index import sets

SAMPLES, WORLD, BATCH = 10**10, 10**4, 256
BLOCKS = 10**5
PLANNED, SHARDS = 10**9, 10**5
EACH = PLANNED // SHARDS
FIELDS = {"blob": batchplant.Bytes(), "label": batchplant.Int()}
# What is opened, and its suffix; of some, the index only says what there is, for files have one of their own.
OPENED = {
    "MDS, index.json": "mds",
    "beton, _index.bpindex": "beton",
    "FFRecord, _index.bpindex": "ffr",
    "Parquet, _index.bpindex": "parquet",
    "TFRecord, _index.bpindex": "tfrecord",
    "tar, _index.bpindex": "tar",
}
LISTED = (".beton", ".ffr", ".parquet")
IMAGES, SIDE = 1600, 400
PROCESSES = (1, 2, 4)

# Of the process itself: ru_maxrss would have that of the one that started it, too.
PEAK = """
def peak_memory():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))
"""
PLAN = (
    PEAK
    + """
import json, sys, time
import numpy as np
from batchplant import order
from batchplant.storage.spans import Spans
from batchplant.jobs.conversion.plan import plan
from batchplant.data.reader import Reader
from batchplant.schema import Bytes, Int, Schema

class Sizes(Reader):
    path, schema = "sizes", Schema({"blob": Bytes(), "label": Int()})
    def __init__(self, length):
        self.length = length
    def _spans(self, field, indices):
        sizes = (indices * 2654435761 >> 7 & 65535) + 1000
        return Spans(("sizes",), indices, sizes)

samples, shards = int(sys.argv[1]), int(sys.argv[2])
mean = 65535 / 2 + 1000 + 8
before = peak_memory()
began = time.perf_counter()
made = plan(Sizes(samples), ["blob", "label"], order.sequential(samples), size=int(mean * samples / shards))
seconds = time.perf_counter() - began
peak = peak_memory()
found = {"files": len(made), "seconds": seconds, "peak": peak, "grown": peak - before}
print(json.dumps(found))
"""
)
OPEN = (
    PEAK
    + """
import json, sys, time
import batchplant
began, spent = time.perf_counter(), time.process_time()
reader = batchplant.open(sys.argv[1])
seconds, cpu = time.perf_counter() - began, time.process_time() - spent
peak = peak_memory()
began = time.perf_counter()
reader[len(reader) // 3]
sample = time.perf_counter() - began
found = {"seconds": seconds, "cpu": cpu, "peak": peak, "sample": sample}
print(json.dumps({"samples": len(reader), **found}))
"""
)


FIRST_BATCH = (
    PEAK
    + """
import json, sys, time
import batchplant
began, spent = time.perf_counter(), time.process_time()
reader = batchplant.open(sys.argv[1])
opened = time.perf_counter() - began
image = [batchplant.ops.CenterCrop(16)] if "image" in reader.schema else None
loader = batchplant.Loader(reader, 256, order=sys.argv[2], pipelines={"image": image} if image else {})
next(iter(loader))
seconds, cpu = time.perf_counter() - began, time.process_time() - spent
with open("/proc/self/status") as status:
    anonymous = next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon:"))
loader.close()
found = {"open": opened, "seconds": seconds, "cpu": cpu, "peak": peak_memory(), "anonymous": anonymous}
print(json.dumps({"samples": len(reader), **found}))
"""
)


def fresh(script: str, *arguments: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def middle(runs: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


# -- order -------------------------------------------------------------------------------------------------


def order_part(folder: Path, args: Any) -> dict[str, Any]:
    index = orders.BlockIndex.of_sizes(np.full(BLOCKS, SAMPLES // BLOCKS))
    written: dict[str, Callable[[], orders.Order]] = {
        "random": lambda: orders.random(SAMPLES, seed=1, epoch=0),
        "windowed": lambda: orders.windowed(SAMPLES, seed=1, epoch=0, window=100_000),
        "shards, lanes": lambda: orders.shards(
            SAMPLES, seed=1, epoch=0, blocks=index, lanes=WORLD, lane_size=BATCH
        ),
        "quasi_random, lanes": lambda: orders.quasi_random(
            SAMPLES, seed=1, epoch=0, blocks=index, lanes=WORLD, lane_size=BATCH
        ),
    }
    result = {}
    rng = np.random.default_rng(0)
    for name, make in written.items():
        tracemalloc.start()
        order = make()
        memory = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        shards = [
            orders.shard(order, rank=rank, world_size=WORLD, batch_size=BATCH)
            for rank in (0, 4711, WORLD - 1)
        ]
        places = [int(integer) for integer in rng.integers(0, SAMPLES, 64)]
        steps = [int(integer) for integer in rng.integers(0, len(shards[0]), 64)]
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
        result[name] = {
            "made in ms": timed(make) * 1e3,
            "memory": memory,
            "one position alone, us": {"best": min(alone) * 1e6, "median": statistics.median(alone) * 1e6},
            "one position of a batch, us": {
                "best": min(batch) * 1e6,
                "median": statistics.median(batch) * 1e6,
            },
        }
        one, many = statistics.median(alone) * 1e6, statistics.median(batch) * 1e6
        output = f"alone {one:6.2f} us, in a batch {many:5.2f} us"
        print(f"  {name:<22} {output}, {memory / 1e3:,.1f} kB", flush=True)
    return {"samples": SAMPLES, "ranks": WORLD, "batch": BATCH, "blocks": BLOCKS, "orders": result}


# -- plan --------------------------------------------------------------------------------------------------


def plan_part(folder: Path, args: Any) -> dict[str, Any]:
    samples = 10**7 if args.quick else PLANNED
    shards = samples // (PLANNED // SHARDS)
    result = middle([fresh(PLAN, str(samples), str(shards)) for _ in range(min(args.rounds, 2))])
    print(f"  {samples:,} samples in {result['files']:,.0f} files: {result['seconds']:.2f} s, "
          f"peak {result['peak'] / 1e6:,.0f} MB", flush=True)  # fmt: skip
    return {"samples": samples, **result}


# -- open --------------------------------------------------------------------------------------------------


def make_mds(folder: Path, shards: int) -> int:
    """The index of a large set: that of a small one, its shard many times."""
    with batchplant.create(folder, FIELDS, format="mds") as out:
        fill(out, EACH)
    path = folder / "index.json"
    index = json.loads(path.read_text())
    one = index["shards"][0]
    first = one["raw_data"]["basename"]
    names = [f"shard.{number:06d}.mds" for number in range(shards)]
    link(folder, first, names)
    index["shards"] = [{**one, "raw_data": {**one["raw_data"], "basename": name}} for name in names]
    path.write_text(json.dumps(index))
    return shards * EACH


def make_set(folder: Path, suffix: str, files: int) -> int:
    """A file and its side-cars many times, and the one index of all, which is as if all had been indexed."""
    folder.mkdir()
    each = EACH if suffix in LISTED else 16
    first = folder / f"first{suffix}"
    with batchplant.create(first, FIELDS) as out:
        fill(out, each)
    names = [f"part-{number:06d}{suffix}" for number in range(files)]
    known = registry.find_format(str(first))
    assert known is not None
    with indexes.watching(combined=True) as seen, known.reader(str(first)) as reader:
        if suffix in LISTED:
            indexes.listed(str(first), "write")
        schema = reader.schema
    [one] = seen

    def member(name: str) -> indexes.Member:
        car = copy.copy(one.car)
        car.source = SimpleNamespace(path=str(folder / name))
        return indexes.Member(dataclasses.replace(one, car=car), known.name, {}, each, schema)

    members = list(map(member, names))
    for path in list(folder.iterdir()):
        link(folder, path.name, [path.name.replace(first.name, name) for name in names])
        path.unlink(missing_ok=True)
    sets.write(str(folder / indexes.SET), members)
    return files * each


def fill(out: batchplant.Writer, samples: int) -> None:
    for number in range(samples):
        out.append({"blob": b"x" * 16, "label": number})


def link(folder: Path, first: str, names: Sequence[str]) -> None:
    """One file under many names: its bytes are not what is measured."""
    base = folder / first
    for number, name in enumerate(names):
        # As many as any file system has names for.
        if number and number % 50_000 == 0:
            base = Path(shutil.copy2(base, folder / name))
        elif name != first:
            os.link(base, folder / name)


def open_part(folder: Path, args: Any) -> dict[str, Any]:
    files = 1000 if args.quick else SHARDS
    result = {}
    for name, suffix in OPENED.items():
        data = folder / suffix
        with contextlib.suppress(ImportError, batchplant.MissingLibraryError):
            make_mds(data, files) if suffix == "mds" else make_set(data, f".{suffix}", files)
            result[name] = {"files": files, **middle([fresh(OPEN, str(data)) for _ in range(args.rounds)])}
            one = result[name]
            what = f"{one['files']:,} files, {one['samples']:,.0f} samples"
            took = f"{one['seconds']:.3f} s, {one['cpu']:.3f} s of CPU"
            print(f"  {name:<26} {what}: {took}, peak {one['peak'] / 1e6:,.0f} MB; "
                  f"first sample {one['sample'] * 1e3:,.1f} ms", flush=True)  # fmt: skip
        shutil.rmtree(data, ignore_errors=True)
    return result


# -- folder and loader -------------------------------------------------------------------------------------


def folder_part(folder: Path, args: Any) -> dict[str, Any]:
    """One image under all names; the system has just written them, and knows them."""
    classes, each = (10, 100) if args.quick else (1000, 1000)
    photos().make_folder(folder / "one", 1, size=32, classes=1)
    [first] = (folder / "one").glob("*/*.jpg")
    for number in range(classes):
        below = folder / "images" / f"class_{number:04d}"
        below.mkdir(parents=True)
        shutil.copy2(first, below / "0.jpg")
        link(below, "0.jpg", [f"{place:06d}.jpg" for place in range(1, each)])
    result = middle([fresh(FIRST_BATCH, str(folder / "images"), "random") for _ in range(args.rounds)])
    shutil.rmtree(folder / "images")
    print_first_batch(f"{result['samples']:,.0f} images", result)
    return result


def loader_part(folder: Path, args: Any) -> dict[str, Any]:
    """A sparse .npy file, and shards of MDS that are one file."""
    shards = 1000 if args.quick else SHARDS
    make_mds(folder / "mds", shards)
    samples = shards * EACH
    with (folder / "sparse.npy").open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (samples, 8)}
        np.lib.format.write_array_header_2_0(file, header)
        file.truncate(file.tell() + samples * 8)
    result = {}
    for name, path, order in (
        (".npy, sequential", "sparse.npy", "sequential"), (".npy, random", "sparse.npy", "random"),
        ("MDS, random", "mds", "random"), ("MDS, quasi_random", "mds", "quasi_random"),
    ):  # fmt: skip
        result[name] = middle([fresh(FIRST_BATCH, str(folder / path), order) for _ in range(args.rounds)])
        print_first_batch(name, result[name])
    shutil.rmtree(folder / "mds")
    return result


def print_first_batch(name: str, one: dict[str, float]) -> None:
    seconds = f"{one['open']:.2f} s, first batch {one['seconds']:.2f} s, {one['cpu']:.2f} s of CPU"
    memory = f"peak {one['peak'] / 1e6:,.0f} MB, {one['anonymous'] / 1e6:,.0f} MB of it no mapped file"
    print(f"  {name:<20} open {seconds}; {memory}", flush=True)


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
        shard_samples=-(-count // shards),
        options=batchplant.ConvertOptions(workers=1),
    )
    return time.perf_counter() - began[0]


def conversion_part(folder: Path, args: Any) -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0))
    # So many that starting a process counts for little, however many cores there are.
    count = 96 if args.quick else IMAGES * cores
    numbers = [process for process in PROCESSES if process <= max(2, cores)]
    print(f"  making {count} images of {SIDE} px", flush=True)
    photos().make_folder(folder / "photos", count, size=SIDE)
    shards = 4 * numbers[-1]
    tasks: dict[str, Callable[[], float]] = {}

    def add(name: str, make: Callable[[], engines.Engine]) -> None:
        tasks[name] = lambda: convert(folder / "photos", folder / "out", make(), shards, count)

    for number in numbers:
        add(f"processes: {number}", functools.partial(engines.make, "processes", workers=number))
    with contextlib.ExitStack() as clusters:
        for engine, start in (("dask", dask_cluster), ("ray", ray_cluster)):
            with contextlib.suppress(ImportError):
                make = clusters.enter_context(start(numbers[-1]))
                add(f"{engine}: {numbers[-1]}", make)
        return measured_conversion(tasks, numbers[-1], count, shards, args.rounds)


@contextlib.contextmanager
def dask_cluster(workers: int) -> Iterator[Callable[[], engines.Engine]]:
    """A cluster that is there, as on a cluster of machines."""
    import distributed

    with distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
    ) as cluster:
        yield lambda: engines.make("dask", scheduler=cluster.scheduler_address)


@contextlib.contextmanager
def ray_cluster(workers: int) -> Iterator[Callable[[], engines.Engine]]:
    import ray

    ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False)
    try:
        yield lambda: engines.make("ray")
    finally:
        ray.shutdown()


def measured_conversion(
    tasks: dict[str, Callable[[], float]], most_workers: int, count: int, shards: int, rounds: int
) -> dict[str, Any]:
    for name, task in tasks.items():
        if not name.startswith("processes") or name == f"processes: {most_workers}":
            task()
    # Workers have imported what they need, and files are in the system's memory, from here on.
    result = interleaved(tasks, rounds)
    one, most = result["processes: 1"]["median"], result[f"processes: {most_workers}"]["median"]
    speeds = {
        name: {key: count / seconds[key] for key in ("best", "median")} for name, seconds in result.items()
    }
    ratios = {name: most / seconds["median"] for name, seconds in result.items() if ":" in name}
    print(f"  {most_workers} processes: {one / most:.2f} times 1; " + ", ".join(
        f"{name} {ratio:.2f} of processes" for name, ratio in ratios.items() if "processes" not in name
    ))  # fmt: skip
    return {
        "images": count, "side": SIDE, "shards": shards, "images/s": speeds, "speed-up": one / most,
        "of processes": ratios,
    }  # fmt: skip


PARTS: dict[str, Callable[[Path, Any], dict[str, Any]]] = {
    "order": order_part, "plan": plan_part, "open": open_part, "folder": folder_part,
    "loader": loader_part, "conversion": conversion_part
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
