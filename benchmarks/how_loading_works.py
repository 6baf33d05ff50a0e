"""What loading is made of, measured one piece at a time, for docs/guides/how-loading-works.md.

reads      records at random from one file: mapped and by read(), from the disk and from the page cache; how
           many bytes the disk had to give for those that were asked for
readahead  the same file from start to end, as the system reads it ahead and without that
queue      records from the disk by 1, 2, 4 … threads: how many reads a disk does side by side
epochs     a shuffled epoch of the Loader in each order, from the disk and from the page cache
ahead      a loop whose batches are sometimes late: how long it waits with more batches made ahead
handing    a batch from one thread, and from one process, to another
numa       a copy from memory of this socket and of another, where there are two
pinned     a copy to a GPU from memory that is pinned and from memory that is not, where there is a GPU
orders     how well the orders mix labels, and what they read: pure arithmetic

"From the disk" means that the system's page cache was emptied of the file; a disk may have a cache of its
own. The files lie in the folder of temporary files: TMPDIR names another disk. All of it takes a minute and
leaves how-loading-works.json; _how_report.py writes the page's tables and figures from that.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _common import others, part_arguments, save, workplace
from _how_storage import MIB, Found, epochs, queue_depth, readahead, reads

import batchplant as bp
from batchplant import order
from batchplant.order import quality

BATCH = (256, 224, 224, 3)
STEP, QUICK, LATE, EVERY, BATCHES = 0.010, 0.004, 0.080, 16, 64


def ahead(folder: Path, rounds: int, size: int) -> Found:
    """Every 16th batch takes long to make; on average they are made faster than a step takes."""
    numbers = np.arange(BATCHES * 8)

    def make(values: Any) -> Any:
        time.sleep(LATE if values[0] // 8 % EVERY == EVERY - 1 else QUICK)
        return values

    runs: dict[int, list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for count in (1, 2, 3, 4, 6, 8, 12):
            loader = bp.Loader({"x": numbers}, 8, pipelines={"x": [make]}, prefetch_batches=count)
            began, waited = time.perf_counter(), 0.0
            batches = iter(loader)
            while True:
                asked = time.perf_counter()
                if next(batches, None) is None:
                    break
                waited += time.perf_counter() - asked
                time.sleep(STEP)
            runs.setdefault(count, []).append((time.perf_counter() - began, waited))
            loader.close()
    return {
        "step": STEP, "usual": QUICK, "late": LATE, "every": EVERY, "batches": BATCHES,
        "by ahead": {
            str(count): {
                "seconds": statistics.median(wall for wall, _ in each),
                "waited": statistics.median(waited / wall for wall, waited in each),
            }
            for count, each in runs.items()
        },
    }  # fmt: skip


def send(kind: str, there: Any, count: int) -> None:
    """The other process: sends a batch whenever it is asked for one."""
    batch = np.ones(BATCH, np.uint8)
    for _ in range(count):
        there.recv()
        there.send(batch) if kind == "pickled" else there.send_bytes(batch.data.cast("B"))


def handing(folder: Path, rounds: int, size: int) -> Found:
    """Milliseconds until a finished batch is where the training loop is."""
    batch, count = np.ones(BATCH, np.uint8), 3 * rounds
    seconds: dict[str, list[float]] = {"a thread": [], "a copy in memory": []}
    handed: queue.Queue[Any] = queue.Queue()
    for _ in range(count):
        began = time.perf_counter()
        threading.Thread(target=handed.put, args=(batch,)).start()
        handed.get()
        seconds["a thread"].append(time.perf_counter() - began)
        target = np.empty_like(batch)
        target[:] = 0
        began = time.perf_counter()
        target[:] = batch
        seconds["a copy in memory"].append(time.perf_counter() - began)
    # A fresh interpreter: a fork of one that has threads may hang.
    start = multiprocessing.get_context("spawn")
    for kind in ("pickled", "bytes"):
        here, there = start.Pipe()
        process = start.Process(target=send, args=(kind, there, count), daemon=True)
        process.start()
        there.close()
        target = np.empty(BATCH, np.uint8)
        each = seconds.setdefault(f"a process, {kind}", [])
        for _ in range(count):
            began = time.perf_counter()
            here.send(None)
            here.recv() if kind == "pickled" else here.recv_bytes_into(target.data.cast("B"))
            each.append(time.perf_counter() - began)
        process.join()
        # The first waits for the process to start.
        del each[0]
    return {
        "MB": batch.nbytes / 1e6,
        "ms": {name: statistics.median(each) * 1e3 for name, each in seconds.items()},
    }


def numa(folder: Path, rounds: int, size: int) -> Found | None:
    """A copy by a core of each node, of memory that a core of the first one touched first."""
    nodes = [node for path in sorted(Path("/sys/devices/system/node").glob("node[0-9]*"))
             if (node := cores_of((path / "cpulist").read_text()) & os.sched_getaffinity(0))]  # fmt: skip
    return between(nodes, rounds, size) if len(nodes) > 1 else None


def cores_of(text: str) -> set[int]:
    """ "0-3,8" as {0, 1, 2, 3, 8}."""
    result: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        result |= set(range(int(first), int(last or first) + 1))
    return result


def between(nodes: list[set[int]], rounds: int, size: int) -> Found:
    seconds: dict[str, list[float]] = {}
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, nodes[0])
        source = np.ones(size, np.uint8)
        for _ in range(rounds):
            for number, node in enumerate(nodes[:2]):
                os.sched_setaffinity(0, node)
                target = np.zeros(size, np.uint8)
                began = time.perf_counter()
                target[:] = source
                seconds.setdefault("other node" if number else "same node", []).append(
                    time.perf_counter() - began
                )
    finally:
        os.sched_setaffinity(0, before)
    return {"GB/s": {name: size / statistics.median(each) / 1e9 for name, each in seconds.items()}}


def pinned(folder: Path, rounds: int, size: int) -> Found | None:
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    plain = torch.ones(BATCH, dtype=torch.uint8)
    seconds: dict[str, list[float]] = {}
    for _ in range(5 * rounds):
        for name, batch in (("plain", plain), ("pinned", plain.pin_memory())):
            torch.cuda.synchronize()
            began = time.perf_counter()
            batch.to("cuda", non_blocking=True)
            asked = time.perf_counter() - began
            torch.cuda.synchronize()
            seconds.setdefault(name, []).append(time.perf_counter() - began)
            seconds.setdefault(f"{name}, the call", []).append(asked)
    return {
        "gpu": torch.cuda.get_device_name(),
        "MB": plain.nbytes / 1e6,
        "ms": {name: statistics.median(each) * 1e3 for name, each in seconds.items()},
    }


def orders(folder: Path, rounds: int, size: int) -> Found:
    """100,000 samples of 100 classes, sorted by class and mixed, in blocks of 100; batches of 256."""
    n, classes, block, batch = 100_000, 100, 100, 256
    blocks = np.arange(n) // block
    rng = np.random.default_rng(3)
    labels = {"sorted": np.arange(n) * classes // n, "mixed": rng.integers(0, classes, n)}
    # Order, its options, and how many blocks are kept: as many as it comes back to, where it says how far.
    ways: dict[str, tuple[str, Found, int]] = {
        "sequential": ("sequential", {}, 4),
        "shards": ("shards", {"blocks": blocks}, 4),
        **{f"windowed, {w:,}": ("windowed", {"window": w}, 2 * w // block) for w in (1000, 3000, 10_000)},
        **{
            f"quasi_random, {w}": ("quasi_random", {"blocks": blocks, "window": w}, w)
            for w in (2, 8, 32, 128)
        },
        "random, everything kept": ("random", {}, n // block),
        "random": ("random", {}, 32),
    }
    result: Found = {}
    for title, (name, options, kept) in ways.items():
        taken = order.make(name, n, seed=0, epoch=0, **options)[:]
        result[title] = {
            "mixed": {
                stored: quality.batch_entropy(each[taken], batch) / quality.entropy(each)
                for stored, each in labels.items()
            },
            "neighbours": quality.kept_neighbours(taken),
            "kept": kept,
            "read": float(quality.block_loads(blocks[taken], batch, kept).mean()),
        }
    return {
        "samples": n, "classes": classes, "block": block, "blocks": n // block, "batch": batch,
        "orders": result,
    }  # fmt: skip


PARTS: dict[str, Callable[[Path, int, int], Found | None]] = {
    "reads": reads,
    "readahead": readahead,
    "queue": queue_depth,
    "epochs": epochs,
    "ahead": ahead,
    "handing": handing,
    "numa": numa,
    "pinned": pinned,
    "orders": orders,
}
SIZES = {"reads": 256, "readahead": 64, "queue": 256, "epochs": 128}


def main() -> None:
    args = part_arguments(__doc__ or "", PARTS, rounds=3)
    results: Found = {"rounds": args.rounds}
    with workplace() as folder, others(results):
        for part in args.parts:
            size = SIZES.get(part, 64) * MIB // (8 if args.quick else 1)
            began = time.perf_counter()
            result = PARTS[part](folder, args.rounds, size)
            print(
                f"{part:<10} {time.perf_counter() - began:6.1f} s"
                + ("" if result else "  not on this machine")
            )
            if result:
                results[part] = result
    save(args.out, "how-loading-works", results)


if __name__ == "__main__":
    sys.exit(main())
