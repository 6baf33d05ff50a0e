"""What the record of a run costs: processor time of loading with and without it, its bytes, and `why --step`.

Epochs of JPEGs (256 px, decoded and cropped on one thread) with and without record and notes take turns; the
median of the ratios counts. Then a run of a million steps, and `batchplant why --step` on ten million
samples, in processes of their own.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from _common import arguments, others, save, workplace
from quick import CROP, jpegs, written

import batchplant
from batchplant.ops import RandomResizedCrop

IMAGES, BATCH, EPOCHS, STEPS = 512, 64, 200, 5000


def loading(folder: Path, rounds: int) -> dict[str, float]:
    path = written(folder / "jpeg.tar", batchplant.Image(), jpegs(IMAGES, 256))
    steps = {"x": [RandomResizedCrop(CROP)]}
    sides = {
        recorded: batchplant.Loader(
            path,
            BATCH,
            order="random",
            workers=1,
            pipelines=steps,
            record=folder / "run" if recorded else None,
        )
        for recorded in (False, True)
    }
    ratios = []
    for number in range(rounds):
        seconds = {}
        for recorded in (False, True) if number % 2 else (True, False):
            began = time.process_time()
            for _ in sides[recorded]:
                if recorded:
                    sides[recorded].note(loss=1.0)
            seconds[recorded] = time.process_time() - began
        ratios.append(seconds[True] / seconds[False])
    quartiles = statistics.quantiles(ratios)
    print(
        f"loading takes {quartiles[1]:.4f} of the processor time ({quartiles[0]:.4f} to {quartiles[2]:.4f})"
    )
    return {"ratio": quartiles[1], "lower quartile": quartiles[0], "upper quartile": quartiles[2]}


def record_bytes(folder: Path) -> int:
    record = folder / "long"
    np.save(folder / "long.npy", np.arange(STEPS))
    loader = batchplant.Loader(folder / "long.npy", 1, order="random", workers=1, record=record)
    for _ in range(EPOCHS):
        for _ in loader:
            pass
    print(f"the record of {loader.steps:,} steps has {os.path.getsize(record):,} bytes")
    return os.path.getsize(record)


def asking(folder: Path, rounds: int) -> dict[str, float]:
    np.save(folder / "large.npy", np.arange(10_000_000))
    loader = batchplant.Loader(folder / "large.npy", 256, order="random", record=folder / "large")
    next(iter(loader))
    loader.close()
    command = [sys.executable, "-m", "batchplant", "why", str(folder / "large"), "--step", "0"]
    seconds, environment = [], {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    for _ in range(rounds + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(sum(after[:2]) - sum(before[:2]))
    # The first writes the bytecode.
    print(f"why --step takes {statistics.median(seconds[1:]):.2f} s of processor time")
    return {"best": min(seconds[1:]), "median": statistics.median(seconds[1:])}


def main() -> None:
    args = arguments(__doc__ or "", rounds=21).parse_args()
    results: dict[str, Any] = {}
    with workplace() as folder, others(results):
        results["loading"] = loading(folder, args.rounds)
        results["bytes of a million steps"] = record_bytes(folder)
        results["why --step"] = asking(folder, min(args.rounds, 5))
    save(args.out, "seen", results)


if __name__ == "__main__":
    main()
