"""Augmentation while loading, beside albumentations, torchvision and Pillow in a torch DataLoader.

All sides read the same JPEGs of 500 px from one .beton file in a warm cache, on as many threads or worker
processes as there are cores, and give batches of float32. Each has a process of its own and warms up first;
then they run an epoch each in turn, several rounds. A side whose libraries are missing is left out;
BATCHPLANT_PEERS_PYTHON may name an interpreter that has them.

Parts: randaugment  random crop, flip, RandAugment, normalised
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from _common import others, part_arguments, photos, save, workplace
from loader import Side, measure, write_table

import batchplant

BATCH, CROP, PICTURES = 128, 224, 1024
NEEDS = {
    "albumentations": "import torch, cv2, albumentations",
    "torchvision": "import torch, torchvision, PIL",
    "Pillow": "import torch, PIL",
}


class Part(NamedTuple):
    title: str
    sides: tuple[str, ...]
    # That the target is told by.
    peer: str


PARTS = {
    "randaugment": Part(
        f"JPEG 500 px, crop {CROP}, flip, RandAugment, normalised",
        ("batchplant", "albumentations", "torchvision", "Pillow"),
        "albumentations",
    ),
}


def interpreter(side: str) -> str | None:
    """One that has what the side needs."""
    if side not in NEEDS:
        return sys.executable
    for python in dict.fromkeys((sys.executable, os.environ.get("BATCHPLANT_PEERS_PYTHON"))):
        if python and not subprocess.run([python, "-c", NEEDS[side]], capture_output=True).returncode:
            return python
    print(f"{side}: `{NEEDS[side]}` fails, this side is left out")
    return None


def main() -> None:
    args = part_arguments(__doc__ or "", PARTS)
    cores = len(os.sched_getaffinity(0))
    results: dict[str, Any] = {"workers": cores, "batch": BATCH, "rounds": args.rounds, "parts": {}}
    with workplace() as scratch, others(results):
        beton, table = scratch / "jpeg500.beton", scratch / "jpeg500.npz"
        photos().make_folder(scratch / "photos", BATCH if args.quick else PICTURES, size=500)
        batchplant.convert(scratch / "photos", beton)
        write_table(beton, table)
        for name in args.parts:
            results["parts"][name] = measured(name, beton, table, args.rounds, cores)
    save(args.out, "augment", results)


def measured(name: str, beton: Path, table: Path, rounds: int, workers: int) -> dict[str, Any]:
    part = PARTS[name]
    print(f"{part.title}, batches of {BATCH}, {workers} workers", flush=True)
    job = {
        "part": name, "path": str(beton), "table": str(table), "batch": BATCH, "crop": CROP,
        "workers": workers, "warm-up": 1,
    }  # fmt: skip
    pythons = {side: found for side in part.sides if (found := interpreter(side)) is not None}
    log = beton.with_suffix(".log")
    sides: dict[str, Callable[[], Side]] = {
        side: lambda side=side, python=python: Side(side, python, job, log, "_augment_sides.py")
        for side, python in pythons.items()
    }
    return {"title": part.title, **measure(sides, rounds, part.peer)}


if __name__ == "__main__":
    main()
