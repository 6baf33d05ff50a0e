"""The main job in a minute: make photos, convert them to .beton, verify, look, load, measure, draw a figure.

Everything is left in demo/out/. A second run keeps the photos.
"""

from __future__ import annotations

import importlib.util
import math
import os
import random
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import photos
from PIL import Image

import batchplant
from batchplant.cli import main as batchplant_command
from batchplant.loading.loader import Loader
from batchplant.ops import RandomHorizontalFlip, RandomResizedCrop

OUT = Path(os.path.relpath(Path(__file__).parent / "out"))
COUNT, SIZE = 400, 500
BATCH, CROP = 64, 224
PIPELINE = (RandomResizedCrop(CROP), RandomHorizontalFlip())
OURS, OTHERS = "#2a6f97", "#b0b7bf"


def command(line: str) -> None:
    """Show a command as a user types it, and run it."""
    print(f"\n$ batchplant {line}")
    code = batchplant_command(shlex.split(line))
    if code:
        sys.exit(f"the demo stopped: `batchplant {line}` ended with code {code}")


def median_rates(tasks: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Samples per second of each: once to warm up, then in turn, so that a busy machine slows all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(rounds + 1):
        for name, task in tasks.items():
            began = time.perf_counter()
            task()
            seconds[name].append(time.perf_counter() - began)
    return {name: COUNT / statistics.median(second[1:]) for name, second in seconds.items()}


def measure(folder: str, beton: str) -> dict[str, float]:
    """What the commands above did, in samples per second."""
    dataset = batchplant.open(beton)
    everything = range(len(dataset))
    shrink = batchplant.ImageOptions(write_mode="jpg", max_resolution=256)
    again = str(OUT / "again.beton")

    def convert(**options: Any) -> Callable[[], Any]:
        return lambda: batchplant.convert(folder, again, overwrite=True, **options)

    tasks = {
        "convert, JPEGs kept": convert(),
        "convert, shrunk to 256 px": convert(images=shrink),
        "verify with full decode": lambda: batchplant.verify(dataset, decode=True),
        "read encoded cells": lambda: dataset.read(everything),
        "decode one by one": lambda: list(dataset),
    }
    rates = median_rates(tasks, rounds=3)
    Path(again).unlink()
    return rates


class Photos:
    """The folder as most people load it: Pillow opens, crops at random, resizes, flips."""

    def __init__(self, folder: str) -> None:
        self.files = sorted(Path(folder).rglob("*.jpg"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> Any:
        with Image.open(self.files[number]) as image:
            area = image.width * image.height * random.uniform(0.08, 1)
            aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
            wide = min(image.width, round(math.sqrt(area * aspect)))
            high = min(image.height, round(math.sqrt(area / aspect)))
            left, top = random.randint(0, image.width - wide), random.randint(0, image.height - high)
            box = (left, top, left + wide, top + high)
            pixels = np.asarray(image.resize((CROP, CROP), Image.Resampling.BILINEAR, box=box))
        return np.array(pixels[:, ::-1] if random.random() < 0.5 else pixels)


def measure_loading(folder: str, beton: str) -> dict[str, float]:
    """Batches for a training loop, in images per second: a random crop to CROP pixels, and a flip."""
    cores = len(os.sched_getaffinity(0))
    photos = Photos(folder)

    def plain_loop() -> None:
        for first in range(0, len(photos), BATCH):
            np.stack([photos[number] for number in range(first, min(first + BATCH, len(photos)))])

    tasks: dict[str, Callable[[], Any]] = {"Pillow, a plain loop": plain_loop}
    if importlib.util.find_spec("torch") is None:
        print("\n(PyTorch is not installed: its DataLoader is not compared)")
    else:
        from torch.utils.data import DataLoader

        torch_loader: Any = DataLoader(
            photos, batch_size=BATCH, shuffle=True, num_workers=cores, persistent_workers=True
        )  # type: ignore[arg-type,var-annotated]
        tasks[f"Pillow, DataLoader of {cores} workers"] = lambda: sum(1 for _ in torch_loader)
        # Its processes are started before we have threads.
        tasks[f"Pillow, DataLoader of {cores} workers"]()
    for threads in dict.fromkeys((1, cores)):
        loader = Loader(beton, BATCH, order="random", pipelines={"image": PIPELINE}, workers=threads)
        name = f"batchplant, {threads} thread{'s' if threads > 1 else ''}"
        tasks[name] = lambda loader=loader: sum(1 for _ in loader)  # type: ignore[misc]
    return median_rates(tasks, rounds=5)


def print_table(title: str, unit: str, rates: dict[str, float]) -> None:
    print(f"\n{title:<34} {unit:>10}")
    for name, rate in rates.items():
        print(f"{name:<34} {rate:>10,.0f}")


def draw(dataset: batchplant.Reader, rates: dict[str, float], loading: dict[str, float], path: Path) -> None:
    """Some images as they are stored and as a batch has them, and the speeds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = dataset.schema["label"].names  # type: ignore[attr-defined]
    chosen = list(range(0, len(dataset), len(dataset) // 8))[:8]
    cropped = next(iter(Loader(dataset, len(chosen), indices=chosen, pipelines={"image": PIPELINE})))
    figure = plt.figure(figsize=(11, 6.2))
    grid = figure.add_gridspec(2, 8, left=0.02, right=0.98, top=0.9, bottom=0.44, hspace=0.25)
    for place, number in enumerate(chosen):
        sample = dataset[number]
        for row, image in enumerate((sample["image"], cropped["image"][place])):
            axis = figure.add_subplot(grid[row, place])
            axis.imshow(image)
            axis.set_title(("random crop", names[sample["label"]])[row == 0], fontsize=8)
            axis.axis("off")
    below = figure.add_gridspec(1, 2, left=0.18, right=0.96, top=0.35, bottom=0.1, wspace=0.7)
    for place, (title, unit, values) in enumerate(
        (
            ("Converting and checking", "samples/s, logarithmic", rates),
            (f"Loading batches of {BATCH}, random crop to {CROP} px", "images/s", loading),
        )
    ):
        axis = figure.add_subplot(below[place])
        colours = [OTHERS if name.startswith("Pillow") else OURS for name in values]
        drawn = axis.barh(list(values)[::-1], list(values.values())[::-1], color=colours[::-1])
        axis.bar_label(drawn, fmt=lambda value: f"{value:,.0f}", padding=3, fontsize=9)
        axis.set_title(title, fontsize=10)
        axis.set_xscale("log" if "log" in unit else "linear")
        axis.set_xlabel(unit, fontsize=9)
        axis.tick_params(labelsize=9)
        axis.margins(x=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{len(dataset)} photos of {SIZE} px out of one .beton file; medians")
    figure.savefig(path, dpi=100)


def main() -> None:
    OUT.mkdir(exist_ok=True)
    folder, beton = str(OUT / "photos"), str(OUT / "photos.beton")
    print(f"Making {COUNT} photo-like images of {SIZE} px in {folder} (kept for the next run)")
    photos.make_folder(folder, COUNT, size=SIZE)
    command(f"convert {shlex.quote(folder)} {shlex.quote(beton)} --checksums --overwrite")
    command(f"verify {shlex.quote(beton)} --decode --against {shlex.quote(folder)}")
    command(f"info {shlex.quote(beton)}")
    command(f"head {shlex.quote(beton)} -n 2")
    rates, loading = measure(folder, beton), measure_loading(folder, beton)
    print_table("converting and checking", "samples/s", rates)
    print_table(f"loading, random crop to {CROP} px", "images/s", loading)
    figure = OUT / "demo.png"
    draw(batchplant.open(beton), rates, loading, figure)
    print(f"\nThe folder and the file hold the same {COUNT} images, byte for byte. Figure: {figure}")


if __name__ == "__main__":
    main()
