"""What the parts of the GPU benchmark share: a pipeline, epochs that end when the device is done, speeds."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import batchplant
from batchplant.loading.loader import Loader
from batchplant.ops import ChannelsFirst, Normalize, RandomHorizontalFlip, RandomResizedCrop

CROP = 224
# Seconds of a round, at least: a short one shows whatever the machine does beside it.
LEAST = 1.0
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
Found = dict[str, Any]


def pipeline() -> list[Any]:
    return [
        RandomResizedCrop(CROP), RandomHorizontalFlip(), Normalize(MEAN, STD, "float16"), ChannelsFirst(),
    ]  # fmt: skip


def loader_of(path: Path, mode: str, batch: int, args: argparse.Namespace, **more: Any) -> Loader:
    how = {"pipelines": {"image": pipeline(), "label": None}, "workers": args.workers, **more}
    how = {"prefetch_batches": args.prefetch_batches, **how}
    return Loader(path, batch, order="quasi_random", device=args.device, decode=mode, **how)


def synchronize(device: str) -> None:
    """Wait until the device is done."""
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize()


def epoch(loader: Loader, device: str) -> Callable[[], float]:
    """Seconds of an epoch, of as many as take a while."""

    def run() -> float:
        epochs, began = 0, time.perf_counter()
        while not epochs or time.perf_counter() - began < LEAST:
            for batch in loader:
                del batch
            epochs += 1
        synchronize(device)
        return (time.perf_counter() - began) / epochs

    return run


def speeds(seconds: dict[str, dict[str, float]], count: int) -> Found:
    return {
        name: {key: count / second[key] for key in ("best", "median")} for name, second in seconds.items()
    }


def ratio(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    return {key: one[key] / other[key] for key in ("best", "median")}


def warmed(path: Path) -> None:
    """Its bytes are in the page cache from here on."""
    with batchplant.open(path) as reader:
        for _ in reader.scan():
            pass


def some_stats(loader: Loader) -> Found:
    wanted = (
        "storage", "decode cpu", "decode gpu", "copy", "augment", "transforms", "device", "waited", "step",
        "decoded", "decode mode", "gpu share", "images/s",
    )  # fmt: skip
    stats = loader.stats()
    return {name: stats[name] for name in wanted if name in stats}
