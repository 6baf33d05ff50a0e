"""The images of docs/guides/viewing.md: pages of the viewer over datasets that are made here.

python docs/screenshots.py [NAME …]     needs Chromium, Playwright and Pillow
"""

from __future__ import annotations

import contextlib
import functools
import io
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "demo")]

import photos  # noqa: E402

import batchplant  # noqa: E402
from batchplant import ops  # noqa: E402
from batchplant.tools.viewer.augment import loader_arguments  # noqa: E402
from browser import browser, viewed  # noqa: E402

FIGURES = ROOT / "docs" / "figures"
Shot = Callable[[Any, Path], None]


def folder_of_photos(folder: Path) -> Path:
    photos.make_folder(folder / "photos", 240, size=320)
    return folder / "photos"


def detection(folder: Path) -> Path:
    """Images with boxes, labels and points."""
    path = folder / "street.beton"
    rng = np.random.default_rng(3)
    schema = {
        "image": batchplant.Image("jpeg"), "boxes": batchplant.Tensor("float32", (None, 4)),
        "labels": batchplant.Tensor("int64", (None,)), "caption": batchplant.Text(),
    }  # fmt: skip
    with batchplant.create(path, schema) as out:
        for number in range(60):
            image = photos.photo(number, width=480, height=320, label=number % 10)
            corner = rng.uniform((0, 0), (300, 180), (3, 2))
            boxes = np.concatenate([corner, corner + rng.uniform(60, 140, (3, 2))], axis=1)
            out.append(
                {"image": image, "boxes": boxes.astype("f4"), "labels": rng.integers(0, 5, 3),
                 "caption": f"image {number} of the street, with three things in it"}
            )  # fmt: skip
    return path


def volumes(folder: Path) -> Path:
    path = folder / "scans.zarr"
    axes = np.meshgrid(*(np.linspace(-1, 1, 96),) * 3, indexing="ij")
    with batchplant.create(path, {"scan": batchplant.Tensor("float32", (96, 96, 96))}) as out:
        for number in range(4):
            shells = np.sin((12 + number) * np.sqrt(sum(axis**2 for axis in axes)) + 3 * axes[number % 3])
            out.append({"scan": shells.astype("f4")})
    return path


def sounds(folder: Path) -> Path:
    path = folder / "tones.tar"
    with batchplant.create(
        path, {"audio": batchplant.Audio("wav", rate=16000), "label": batchplant.Int()}
    ) as out:
        for number in range(6):
            time = np.arange(32000) / 16000
            sweep = np.sin(2 * np.pi * (200 + 300 * number + 900 * time) * time) * np.exp(-time)
            out.append({"audio": (sweep.astype("f4")[:, None], 16000), "label": number})
    return path


@functools.cache
def once(make: Callable[[Path], Path], folder: Path) -> Path:
    return make(folder)


def page(name: str, make: Callable[[Path], Path], hash: str = "", *, wait: str = "", **options: Any) -> Shot:
    """An image of the page over a dataset, once something is there."""

    def shoot(chromium: Any, folder: Path) -> None:
        session = dict(options)
        first = batchplant.open(once(make, folder))
        if "pipeline" in session:
            session["pipeline"] = loader_arguments(session["pipeline"], first)
        with first, viewed(chromium, first, **session) as tab:
            tab.go(hash)
            if wait:
                tab.page.wait_for_selector(wait)
            tab.page.wait_for_load_state("networkidle")
            tab.page.wait_for_timeout(1500)
            png = tab.page.screenshot()
        Image.open(io.BytesIO(png)).convert("RGB").save(FIGURES / f"view-{name}.webp", quality=82, method=6)
        print(f"docs/figures/view-{name}.webp", flush=True)

    return shoot


PIPELINE = {"image": [ops.RandomResizedCrop((160, 160)), ops.RandomHorizontalFlip()]}
SHOTS: dict[str, Shot] = {
    "grid": page("grid", folder_of_photos),
    "dark": page("dark", folder_of_photos, scheme="dark", width=390, height=780),
    "boxes": page("boxes", detection),
    "sample": page("sample", detection, "sample=7"),
    "overview": page("overview", folder_of_photos, "tab=overview"),
    "order": page("order", folder_of_photos, "tab=order"),
    "augment": page("augment", folder_of_photos, "tab=augment&sample=5", pipeline=PIPELINE),
    "volume": page("volume", volumes, "sample=1"),
    "sound": page("sound", sounds, "sample=2"),
}


@contextmanager
def workplace() -> Iterator[Path]:
    """A folder to work in: pages name paths, and these are short."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        yield Path()


def main(names: list[str]) -> None:
    with workplace() as folder, browser() as chromium:
        for name in names or SHOTS:
            SHOTS[name](chromium, folder)


if __name__ == "__main__":
    main(sys.argv[1:])
