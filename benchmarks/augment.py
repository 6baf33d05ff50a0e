"""Augmentation while loading, beside albumentations, torchvision and Pillow in a torch DataLoader.

All sides read the same JPEGs (of 500 px; for detection of 640) from one .beton file in a warm cache, on as
many threads or worker processes as there are cores, and give batches of float32. Each has a process of its
own and warms up first; then they run an epoch each in turn, several rounds. A side whose libraries are
missing is left out; BATCHPLANT_PEERS_PYTHON may name an interpreter that has them.

Parts: randaugment  random crop, flip, RandAugment, normalised
       letterbox    detection: letterbox, flip, colour jitter, normalised; the boxes go along
       crop         detection: random crop, resized, flip, colour jitter, normalised; the boxes go along
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _common import others, part_arguments, photos, save, workplace
from loader import Side, measure, write_table

import batchplant

BATCH, CROP, IMAGES = 128, 224, 1024
# Of detection.
SIDE, DETECTION_BATCH, DETECTION_IMAGES, BOXES = 640, 32, 512, 8
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
    batch: int = BATCH
    crop: int = CROP
    boxes: bool = False


PARTS = {
    "randaugment": Part(
        f"JPEG 500 px, crop {CROP}, flip, RandAugment, normalised",
        ("batchplant", "albumentations", "torchvision", "Pillow"),
        "albumentations",
    ),
    **{
        name: Part(
            f"JPEG {SIDE} px with boxes, {what} {SIDE}, flip, colour jitter, normalised",
            ("batchplant", "albumentations"),
            "albumentations",
            DETECTION_BATCH,
            SIDE,
            boxes=True,
        )
        for name, what in (("letterbox", "letterbox"), ("crop", "random crop to"))
    },
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
        data: dict[bool, tuple[Path, Path]] = {}
        for name in args.parts:
            boxes = PARTS[name].boxes
            if boxes not in data:
                data[boxes] = make_data(scratch, boxes, quick=args.quick)
            results["parts"][name] = measured(name, *data[boxes], args.rounds, cores)
    save(args.out, "augment", results)


def make_data(scratch: Path, boxes: bool, *, quick: bool) -> tuple[Path, Path]:
    """The .beton, and what those sides need of it that cannot read it."""
    size, batch, count = (SIDE, DETECTION_BATCH, DETECTION_IMAGES) if boxes else (500, BATCH, IMAGES)
    folder, beton = scratch / f"photos{size}", scratch / f"jpeg{size}.beton"
    table = beton.with_suffix(".npz")
    photos().make_folder(folder, batch if quick else count, size=size)
    if boxes:
        with_boxes(folder, beton)
    else:
        batchplant.convert(folder, beton)
    write_table(beton, table)
    return beton, table


def with_boxes(folder: Path, beton: Path) -> None:
    """The images of a folder with random boxes, as many each; these are also in an array beside it."""
    fields = {
        "image": batchplant.Image("jpeg"), "boxes": batchplant.Boxes("xyxy", labels=["classes"]),
        "classes": batchplant.Tensor("int64", (None,)), "label": batchplant.Int(),
    }  # fmt: skip
    drawn = []
    with batchplant.open(folder) as reader, batchplant.create(beton, fields) as out:
        for number in range(len(reader)):
            data = reader.read([number], ["image"])["image"][0]
            height, width = reader[number]["image"].shape[:2]
            low, high = np.sort(np.random.default_rng(number).random((2, BOXES, 2)), axis=0)
            # (left, top, right, bottom), none empty.
            boxes = np.concatenate([0.98 * low, 0.98 * high + 0.02], axis=1) * ([width, height] * 2)
            drawn.append(boxes.astype(np.float32))
            out.append({
                "image": bytes(data), "label": number, "boxes": drawn[-1], "classes": np.arange(BOXES),
            })  # fmt: skip
    np.save(beton.with_suffix(".boxes.npy"), np.stack(drawn))


def measured(name: str, beton: Path, table: Path, rounds: int, workers: int) -> dict[str, Any]:
    part = PARTS[name]
    print(f"{part.title}, batches of {part.batch}, {workers} workers", flush=True)
    job = {
        "part": name, "path": str(beton), "table": str(table), "batch": part.batch, "crop": part.crop,
        "workers": workers, "warm-up": 1, "boxes": str(beton.with_suffix(".boxes.npy")),
    }  # fmt: skip
    pythons = {side: result for side in part.sides if (result := interpreter(side)) is not None}
    log = beton.with_suffix(".log")
    sides: dict[str, Callable[[], Side]] = {
        side: lambda side=side, python=python: Side(side, python, job, log, "_augment_sides.py")
        for side, python in pythons.items()
    }
    return {"title": part.title, **measure(sides, rounds, part.peer)}


if __name__ == "__main__":
    main()
