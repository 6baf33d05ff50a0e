"""Four processes that share one GPU, each on a quarter of the cores, beside one process on all of them.

Each takes all images, in an order of its own: an epoch is as long as that of the one, and its start counts
as little. `python _gpu_processes.py JOB` is one of them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from _common import interleaved
from _gpu_common import Found, epoch, loader_of, ratio, speeds, synchronize
from _process import Process

import batchplant

PROCESSES = 4


def held() -> dict[str, float]:
    """Memory of this process alone, mapped files not counted, and its threads."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    kilobytes = sum(int(lines[name].split()[0]) for name in ("RssAnon", "RssShmem"))
    return {"MB": kilobytes / 1000, "threads": int(lines["Threads"])}


def serve(job: dict[str, Any]) -> None:
    """An epoch for every line of the input."""
    import torch

    args = argparse.Namespace(**job)
    # What a library prints is not the answer to a question.
    answers, sys.stdout = sys.stdout, sys.stderr
    loader = loader_of(Path(job["path"]), job["mode"], job["batch"], args, seed=job["seed"])
    run, count = epoch(loader, job["device"]), loader.samples
    run()
    # While it works; threads that make batches come and go with an epoch.
    busy = max((held() for _ in loader), key=lambda row: row["threads"])
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for _ in sys.stdin:
        seconds = run()
        device = torch.cuda.max_memory_reserved() / 1e6 if job["device"].startswith("cuda") else 0.0
        output = {"images": count, "seconds": seconds, "device MB": device, **busy}
        print(json.dumps(output), file=answers, flush=True)
    loader.close()


def measure(path: Path, scratch: Path, args: argparse.Namespace) -> Found:
    return {mode: _measure(path, scratch, mode, args) for mode in args.modes}


def _measure(path: Path, scratch: Path, mode: str, args: argparse.Namespace) -> Found:
    count, cores = len(batchplant.open(path)), sorted(os.sched_getaffinity(0))
    many = min(PROCESSES, len(cores))
    parts = [part.tolist() for part in np.array_split(cores, many)]
    title = f"{many} processes"
    print(f"processes, {mode}: {count:,} images, batches of {args.batch}, {len(cores)} cores", flush=True)
    job = {
        "path": str(path), "mode": mode, "batch": args.batch, "device": args.device,
        "prefetch_batches": args.prefetch_batches,
        "workers": None, "seed": 0,
    }  # fmt: skip
    jobs = {
        "one process": [job],
        title: [{**job, "workers": part, "seed": seed} for seed, part in enumerate(parts)],
    }
    held_by: dict[str, Found] = {}
    with ExitStack() as stack:
        started: dict[str, list[Process]] = {}
        for name, several in jobs.items():
            before = _free(args.device)
            started[name] = [
                Process(name, [sys.executable, __file__, json.dumps(item)], scratch / f"{number}.log")
                for number, item in enumerate(several)
            ]
            for process in started[name]:
                stack.callback(process.close)
            for process in started[name]:
                process.answer()
            held_by[name] = {"device MB, with contexts": (before - _free(args.device)) / 1e6}

        def task(name: str) -> float:
            began = time.perf_counter()
            for process in started[name]:
                process.ask()
            output = [process.answer() for process in started[name]]
            seconds = time.perf_counter() - began
            held_by[name] |= {
                key: sum(item[key] for item in output) for key in ("MB", "threads", "device MB")
            }
            held_by[name]["seconds of each"] = [row["seconds"] for row in output]
            # As for the images of one process.
            return seconds * count / sum(row["images"] for row in output)

        result = speeds(
            interleaved({name: lambda name=name: task(name) for name in jobs}, args.rounds), count
        )
    part = ratio(result[title], result["one process"])
    for name, value in result.items():
        more = held_by[name]
        print(f"  {name:<20} {value['median']:>10,.0f} images/s (best {value['best']:,.0f}), "
              f"{more['threads']} threads, {more['MB']:,.0f} MB, "
              f"{more['device MB, with contexts']:,.0f} MB of the device")  # fmt: skip
    print(f"  together {part['median']:.2f} (best {part['best']:.2f}) of one process", flush=True)
    return {"images": count, "processes": many, "images/s": result, "ratio": part, "held": held_by}


def _free(device: str) -> int:
    """Memory of the device that nobody has."""
    import torch

    synchronize(device)
    return int(torch.cuda.mem_get_info()[0]) if device.startswith("cuda") else 0


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
