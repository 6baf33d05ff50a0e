"""The main job in a minute: make photos, convert them to .beton, verify, look, measure, draw a figure.

Everything is left in demo/out/. A second run keeps the photos.
"""

from __future__ import annotations

import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import photos

import batchplant
from batchplant.cli import main as batchplant_command

OUT = Path(os.path.relpath(Path(__file__).parent / "out"))
COUNT, SIZE = 400, 500


def command(line: str) -> None:
    """Show a command as a user types it, and run it."""
    print(f"\n$ batchplant {line}")
    code = batchplant_command(shlex.split(line))
    if code:
        sys.exit(f"the demo stopped: `batchplant {line}` ended with code {code}")


def median_rate(work: Callable[[], Any], count: int, rounds: int = 3) -> float:
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return count / statistics.median(seconds)


def measure(folder: str, beton: str) -> dict[str, float]:
    """Samples per second of what the demo did, median of three."""
    dataset = batchplant.open(beton)
    everything = range(len(dataset))
    shrink = batchplant.ImageOptions(write_mode="jpg", max_resolution=256)
    again = str(OUT / "again.beton")

    def convert(**options: Any) -> Callable[[], Any]:
        return lambda: batchplant.convert(folder, again, overwrite=True, **options)

    rates = {
        "convert, JPEGs kept": median_rate(convert(), COUNT),
        "convert, shrunk to 256 px": median_rate(convert(images=shrink), COUNT),
        "verify with full decode": median_rate(lambda: batchplant.verify(dataset, decode=True), COUNT),
        "read encoded cells": median_rate(lambda: dataset.read(everything), COUNT),
        "decode one by one": median_rate(lambda: list(dataset), COUNT),
    }
    Path(again).unlink()
    return rates


def draw(dataset: batchplant.Reader, rates: dict[str, float], path: Path) -> None:
    """Some of the pictures as they come out of the .beton file, and the speeds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = dataset.schema["label"].names  # type: ignore[attr-defined]
    figure = plt.figure(figsize=(11, 6.2))
    grid = figure.add_gridspec(3, 8, height_ratios=[1, 1, 1.5])
    for place, number in enumerate(range(0, len(dataset), len(dataset) // 16)):
        if place == 16:
            break
        sample = dataset[number]
        axis = figure.add_subplot(grid[place // 8, place % 8])
        axis.imshow(sample["image"])
        axis.set_title(names[sample["label"]], fontsize=8)
        axis.axis("off")
    axis = figure.add_subplot(grid[2, 2:])
    drawn = axis.barh(list(rates)[::-1], list(rates.values())[::-1], color="#2a6f97")
    axis.bar_label(drawn, fmt=lambda value: f"{value:,.0f}", padding=3, fontsize=9)
    axis.set_xscale("log")
    axis.set_xlabel(f"samples/s ({SIZE}-px photos, median of three)", fontsize=9)
    axis.margins(x=0.15)
    axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{len(dataset)} photos out of one .beton file")
    figure.subplots_adjust(left=0.04, right=0.98, top=0.9, bottom=0.09, hspace=0.3)
    figure.savefig(path, dpi=100)


def main() -> None:
    OUT.mkdir(exist_ok=True)
    folder, beton = str(OUT / "photos"), str(OUT / "photos.beton")
    print(f"Making {COUNT} photo-like pictures of {SIZE} px in {folder} (kept for the next run)")
    photos.make_folder(folder, COUNT, size=SIZE)
    command(f"convert {shlex.quote(folder)} {shlex.quote(beton)} --checksums --overwrite")
    command(f"verify {shlex.quote(beton)} --decode --against {shlex.quote(folder)}")
    command(f"info {shlex.quote(beton)}")
    command(f"head {shlex.quote(beton)} -n 2")
    rates = measure(folder, beton)
    print(f"\n{'what':<28} {'samples/s':>10}")
    for name, rate in rates.items():
        print(f"{name:<28} {rate:>10,.0f}")
    figure = OUT / "demo.png"
    draw(batchplant.open(beton), rates, figure)
    print(f"\nThe folder and the file hold the same {COUNT} pictures, byte for byte. Figure: {figure}")


if __name__ == "__main__":
    main()
