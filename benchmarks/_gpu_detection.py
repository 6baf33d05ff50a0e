"""Detection batches on the device, beside the same pixels without boxes.

JPEGs of 640 px with boxes and their classes; a random crop resized to 640, or a letterbox, then flip and
colour jitter. Both sides make the same images; one also reads the boxes, moves them along, drops those that
are cut off with their classes, and sends them to the device.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from _common import interleaved, photos
from _gpu_common import MEAN, STD, Found, epoch, loader_of, ratio, some_stats, speeds, warmed

import batchplant
from batchplant.codecs.media import image
from batchplant.loading.loader import Loader
from batchplant.ops import (
    ChannelsFirst,
    ColorJitter,
    Letterbox,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
)

SIDE, BATCH, MOST_BOXES = 640, 128, 15
# Brightness, contrast, saturation, hue.
JITTER = (0.2, 0.2, 0.3, 0.015)
WAYS = {"crop": RandomResizedCrop, "letterbox": Letterbox}


def make(path: Path, count: int, distinct: int) -> None:
    """Photos again and again, each with up to MOST_BOXES boxes of its own."""
    folder = path.with_suffix("")
    photos().make_folder(folder, distinct, size=SIDE)
    cells = [file.read_bytes() for file in sorted(folder.rglob("*.jpg"))]
    fields = {
        "image": batchplant.Image("jpeg"), "boxes": batchplant.Boxes("xyxy", labels=["classes"]),
        "classes": batchplant.Tensor("int64", (None,)), "label": batchplant.Int(),
    }  # fmt: skip
    rng = np.random.default_rng(0)
    headers = [image.header(np.frombuffer(cell, np.uint8)) for cell in cells]
    with batchplant.create(path, fields) as out:
        for number in range(count):
            known = headers[number % len(cells)]
            many = int(rng.integers(0, MOST_BOXES + 1))
            low, high = np.sort(rng.random((2, many, 2)), axis=0)
            # (left, top, right, bottom), none empty.
            boxes = np.concatenate([0.98 * low, 0.98 * high + 0.02], axis=1) * (
                [known.width, known.height] * 2
            )
            out.append({
                "image": cells[number % len(cells)], "boxes": boxes.astype(np.float32),
                "classes": rng.integers(0, 80, many), "label": number % 8,
            })  # fmt: skip
    warmed(path)


def batch_of(args: argparse.Namespace) -> int:
    return 8 if args.quick else BATCH


def sides(path: Path, way: str, mode: str, args: argparse.Namespace) -> dict[str, Loader]:
    def images() -> list[Any]:
        return [
            WAYS[way](SIDE), RandomHorizontalFlip(), ColorJitter(*JITTER), Normalize(MEAN, STD, "float16"),
            ChannelsFirst(),
        ]  # fmt: skip

    without = {"image": images(), "boxes": None, "classes": None}
    batch = batch_of(args)
    return {
        "classification": loader_of(path, mode, batch, args, pipelines=without),
        "detection": loader_of(path, mode, batch, args, pipelines={"image": images()}),
    }


def checked(loader: Loader) -> None:
    """Boxes lie in their images, and on the device, with a class for each."""
    batch = next(iter(loader))
    values, offsets = batch["boxes"]
    classes, ends = batch["classes"]
    if not (values.device.type == batch["image"].device.type and len(values) == len(classes)):
        raise RuntimeError(f"boxes on {values.device}, {len(values)} for {len(classes)} classes")
    if not (bool((offsets == ends).all()) and 0 <= float(values.min()) <= float(values.max()) <= SIDE):
        raise RuntimeError("boxes lie outside of their images, or others than their classes")


def measure(folder: Path, args: argparse.Namespace) -> Found:
    path = folder / "detection640.beton"
    if not path.exists():
        make(path, 16 if args.quick else 6144, 16 if args.quick else 512)
    count = len(batchplant.open(path))
    result: Found = {"images": count, "batch": batch_of(args), "ways": {}}
    for way in WAYS:
        for mode in args.modes:
            loaders = sides(path, way, mode, args)
            print(f"detection, {way}, {mode}: {count:,} images, batches of {result['batch']}", flush=True)
            checked(loaders["detection"])
            tasks = {title: epoch(loader, args.device) for title, loader in loaders.items()}
            for task in tasks.values():
                task()
            fast = speeds(interleaved(tasks, args.rounds), count)
            part = ratio(fast["detection"], fast["classification"])
            for title, value in fast.items():
                print(f"  {title:<20} {value['median']:>10,.0f} images/s (best {value['best']:,.0f})")
            print(f"  with boxes: {part['median']:.2f} (best {part['best']:.2f}) of the speed without")
            stats = {title: some_stats(loader) for title, loader in loaders.items()}
            for title, item in stats.items():
                print(f"  {title}: {item}", flush=True)
            result["ways"][f"{way}, {mode}"] = {"images/s": fast, "ratio": part, "stats": stats}
            for loader in loaders.values():
                loader.close()
    return result
