"""Feeding a training loop from .beton files, beside FFCV, torch's DataLoader and a plain memcpy.

All sides read the same .beton files, which batchplant wrote, from a warm cache, on as many threads or worker
processes as there are cores. Each has a process of its own and warms up first (FFCV compiles then); then
they run an epoch each in turn, several rounds. A side whose library is not installed is left out.

--threads-scaling measures batchplant alone on 1, 2, 4 … threads. With --data it needs NumPy and nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _common import HERE, arguments, ffcv_python, interleaved, others, photos, rates, save, workplace
from _process import Process

import batchplant

BATCH, CROP = 256, 224


class Data(NamedTuple):
    """A data set to make: how its images are stored, how large they are, how many."""

    mode: str
    size: int
    count: int


class Case(NamedTuple):
    title: str
    data: str
    crop: int
    sides: tuple[str, ...]


DATA = {
    "jpeg256": Data("jpg", 256, 2560),
    "jpeg500": Data("jpg", 500, 1024),
    "raw256": Data("raw", 256, 4096),
}
LIBRARIES = ("batchplant", "FFCV", "torch + Pillow", "torch + OpenCV")
CASES = {
    "jpeg256": Case("JPEG 256 px, crop 224, flip", "jpeg256", CROP, LIBRARIES),
    "jpeg500": Case("JPEG 500 px, crop 224, flip", "jpeg500", CROP, LIBRARIES),
    "raw256": Case("raw 256×256, crop 224, flip", "raw256", CROP, LIBRARIES),
    "copy256": Case("raw 256×256 as it is", "raw256", 0, ("batchplant", "FFCV", "memcpy")),
}
NEEDS = {"torch + Pillow": "import torch, PIL", "torch + OpenCV": "import torch, cv2"}


def make(path: Path, name: str, count: int) -> None:
    """Write a data set, unless it is there already."""
    if path.exists():
        return
    mode, size, _ = DATA[name]
    print(f"making {path.name}: {count} images of {size} px", flush=True)
    if mode == "jpg":
        folder = path.with_suffix("")
        photos().make_folder(folder, count, size=size)
        batchplant.convert(folder, path)
        return
    # What is in raw pixels makes no difference to anyone, so a few images come again and again.
    draw = photos().photo
    images = [draw(number, seed=0, width=size, height=size, label=number % 8) for number in range(256)]
    with batchplant.create(
        path, {"image": batchplant.Image(), "label": batchplant.Int()}, write_mode=mode
    ) as out:
        for number in range(count):
            out.append({"image": images[number % len(images)], "label": number % 8})


def write_table(beton: Path, target: Path) -> None:
    """Where the cells are, for the sides that cannot read .beton."""
    with batchplant.open(beton) as reader:
        spans = reader.spans("image")
        assert spans is not None
        shape = np.zeros((len(reader), 3), np.int32) if spans.shape is None else spans.shape
        label = reader.read(range(len(reader)), ["label"])["label"]
        np.savez(target, start=spans.start, size=spans.size, shape=shape, label=np.asarray(label))
        # The cache is warm from here on.
        for _ in reader.scan():
            pass


class Side(Process):
    """A side in its own process; see _sides.py."""

    def __init__(
        self, name: str, python: str, job: dict[str, Any], log: Path, script: str = "_sides.py"
    ) -> None:
        super().__init__(name, [python, HERE / script, name, json.dumps(job)], log)
        self.first_batch = self.answer()["first batch"]
        self.images = self.peak = 0
        self.cpu: list[float] = []

    def epoch(self) -> float:
        self.ask()
        answer = self.answer()
        self.images, self.peak = answer["images"], answer["peak memory"]
        self.cpu.append(answer["CPU s"])
        return float(answer["seconds"])


def measure(sides: dict[str, Callable[[], Side]], rounds: int, peer: str = "FFCV") -> dict[str, Any]:
    """Start the sides one after another, then run epochs in turn. A side that cannot start is left out."""
    with ExitStack() as stack:
        started: dict[str, Side] = {}
        for name, start in sides.items():
            try:
                started[name] = start()
            except RuntimeError as error:
                print(f"  left out: {error}", flush=True)
                continue
            stack.callback(started[name].close)
            print(f"  {name}: first batch after {started[name].first_batch:.3f} s", flush=True)
        result = interleaved({name: side.epoch for name, side in started.items()}, rounds)
        counts = {side.images for side in started.values()}
        if len(counts) != 1:
            raise RuntimeError(f"the sides gave different numbers of images: {counts}")
        return {
            **rates(result, counts.pop(), peer),
            "first batch, s": {name: side.first_batch for name, side in started.items()},
            "CPU s": {name: statistics.median(side.cpu) for name, side in started.items()},
            "peak memory, MB": {name: side.peak / 1e6 for name, side in started.items()},
        }


def peers(wanted: set[str]) -> dict[str, str]:
    """The interpreter of every side that can run here."""
    result = {"batchplant": sys.executable, "memcpy": sys.executable}
    ffcv = ffcv_python() if "FFCV" in wanted else None
    if ffcv is not None:
        result["FFCV"] = ffcv
    for name in wanted & set(NEEDS):
        for python in dict.fromkeys((sys.executable, os.environ.get("BATCHPLANT_FFCV_PYTHON"))):
            if python and not subprocess.run([python, "-c", NEEDS[name]], capture_output=True).returncode:
                result[name] = python
                break
        else:
            print(f"{name}: `{NEEDS[name]}` fails, this side is skipped")
    return result


def compare(folder: Path, scratch: Path, args: argparse.Namespace, workers: int) -> dict[str, Any]:
    """Every case on every side."""
    cases = {name: CASES[name] for name in args.cases}
    pythons = peers({side for case in cases.values() for side in case.sides})
    results: dict[str, Any] = {}
    for name, case in cases.items():
        beton, table = folder / f"{case.data}.beton", scratch / f"{case.data}.npz"
        make(beton, case.data, count(case.data, args.quick))
        write_table(beton, table)
        print(f"{case.title}, batches of {BATCH}, {workers} workers", flush=True)
        job = {
            "path": str(beton), "table": str(table), "batch": BATCH, "crop": case.crop, "workers": workers,
            "warm-up": 1 if args.quick else 2,
        }  # fmt: skip
        sides: dict[str, Callable[[], Side]] = {
            side: lambda side=side, job=job: Side(side, pythons[side], job, scratch / "log")
            for side in case.sides
            if side in pythons
        }
        results[name] = {"title": case.title, **measure(sides, args.rounds)}
        speeds = results[name]["images/s"]
        if "memcpy" in speeds:
            share = {key: speeds["batchplant"][key] / speeds["memcpy"][key] for key in ("best", "median")}
            results[name]["ratio to memcpy"] = share
            print(f"  ratio to memcpy: best {share['best']:.2f}, median {share['median']:.2f}")
    return results


def scale(folder: Path, scratch: Path, args: argparse.Namespace, cores: int) -> dict[str, Any]:
    """batchplant on 1, 2, 4 … threads, and its speed-up over one."""
    beton = folder / "jpeg256.beton"
    make(beton, "jpeg256", BATCH if args.quick else SCALING_COUNT)
    for _ in batchplant.open(beton).scan():
        pass
    threads = [number for number in (1, 2, 4, 8, 16, 32, 64) if number <= cores]
    threads += [cores] if cores not in threads else []
    print(f"{CASES['jpeg256'].title}, batches of {BATCH}, on {threads} threads", flush=True)

    def start(number: int) -> Side:
        job = {"path": str(beton), "batch": BATCH, "crop": CROP, "workers": number, "warm-up": 2}
        return Side("batchplant", sys.executable, job, scratch / "log")

    result = measure({f"{number}": lambda number=number: start(number) for number in threads}, args.rounds)
    speeds = result["images/s"]
    result["speed-up"] = {
        key: {name: speed[key] / speeds["1"][key] for name, speed in speeds.items()}
        for key in ("best", "median")
    }
    for name, speed in speeds.items():
        up = result["speed-up"]["median"][name]
        print(f"  {name:>3} threads {speed['median']:>10,.0f} images/s, {up:5.2f} times one thread")
    return result


# At tens of thousands of images a second, an epoch has to be long enough that its start does not count.
SCALING_COUNT = 64 * 256


def count(name: str, quick: bool) -> int:
    return BATCH if quick else DATA[name].count


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="default: all")
    parser.add_argument("--threads-scaling", action="store_true", help="batchplant on 1, 2, 4 … threads")
    parser.add_argument(
        "--data", type=Path, metavar="FOLDER", help="keep the data sets here, or use those there"
    )
    parser.add_argument("--quick", action="store_true", help="few images, two rounds: does it run at all?")
    args = parser.parse_args()
    args.rounds = 2 if args.quick else args.rounds
    cores = len(os.sched_getaffinity(0))
    name = "loader-threads" if args.threads_scaling else "loader"
    results: dict[str, Any] = {"workers": cores, "batch": BATCH, "rounds": args.rounds}
    with workplace() as scratch, others(results):
        folder = args.data or scratch
        folder.mkdir(parents=True, exist_ok=True)
        run = scale if args.threads_scaling else compare
        results["cases"] = run(folder, scratch, args, cores)
    save(args.out, name, results)


if __name__ == "__main__":
    main()
