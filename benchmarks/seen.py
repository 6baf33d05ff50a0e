"""What the record of a run costs: processor time of loading with and without it, its bytes, and `why --step`.

Epochs of JPEGs (256 px, decoded and cropped on one thread) and of single numbers, with and without record and
notes, take turns; medians count. Then a run of a million steps, and `batchplant why --step` on ten million
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


def epoch_seconds(loader: batchplant.Loader, noted: bool) -> float:
    began = time.process_time()
    for _ in loader:
        if noted:
            loader.note(loss=1.0)
    return time.process_time() - began


def loading(folder: Path, rounds: int) -> dict[str, float]:
    """Compare the microseconds that a record adds to a step with those of a step of images.

    A difference of half a percent is lost in the noise of decoding, so steps of one number each show what a
    record and a note add.
    """
    images = written(folder / "jpeg.tar", batchplant.Image(), jpegs(IMAGES, 256))
    steps = {"x": [RandomResizedCrop(CROP)]}
    decoding = batchplant.Loader(images, BATCH, order="random", workers=1, pipelines=steps)
    np.save(folder / "short.npy", np.arange(STEPS))
    plain, recorded = (
        batchplant.Loader(folder / "short.npy", 1, order="random", workers=1, record=record)
        for record in (None, folder / "run")
    )
    seconds: dict[str, list[float]] = {"a step of images": [], "a record and a note": []}
    for _ in range(rounds):
        seconds["a step of images"].append(epoch_seconds(decoding, False) / len(decoding))
        added = epoch_seconds(recorded, True) - epoch_seconds(plain, False)
        seconds["a record and a note"].append(added / STEPS)
    result = {name: 1e6 * statistics.median(values) for name, values in seconds.items()}
    for name, microseconds in result.items():
        print(f"{name:<20} {microseconds:9.1f} µs of processor time")
    return {**result, "part of a step": result["a record and a note"] / result["a step of images"]}


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
