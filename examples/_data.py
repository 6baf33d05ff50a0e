"""Made data for the ``--quick`` runs of the examples: small, always the same, removed when Python ends."""

from __future__ import annotations

import atexit
import functools
import math
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

import batchplant as bp

SCRATCH = Path(tempfile.mkdtemp(prefix="batchplant-examples-"))
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)
SHAPES = ("box", "disc")
LETTERS = "abcd"


@functools.cache
def photos(count: int = 48, seed: int = 0) -> str:
    """Make a folder of photo-like JPEG files with a subfolder for each of four classes."""
    demo = str(Path(__file__).parents[1] / "demo")
    if demo not in sys.path:
        sys.path.append(demo)
    from photos import make_folder

    folder = SCRATCH / f"photos-{seed}"
    make_folder(folder, count, size=64, classes=4, seed=seed, workers=1)
    return str(folder)


def scene(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray, list[list[int]], list[int]]:
    """Draw one to three shapes; return pixels, a mask (0 is the background), boxes (xywh) and classes."""
    y, x = np.mgrid[:size, :size]
    pixels = rng.integers(0, 80, (size, size, 3), dtype=np.uint8)
    mask = np.zeros((size, size), np.uint8)
    boxes, classes = [], []
    for _ in range(rng.integers(1, 4)):
        radius = int(rng.integers(size // 10, size // 5))
        middle_x, middle_y = (int(place) for place in rng.integers(radius, size - radius, 2))
        kind = int(rng.integers(len(SHAPES)))
        power = 2 if SHAPES[kind] == "disc" else 16
        inside = np.abs(x - middle_x) ** power + np.abs(y - middle_y) ** power < float(radius) ** power
        pixels[inside] = rng.integers(140, 256, 3)
        mask[inside] = kind + 1
        boxes.append([middle_x - radius, middle_y - radius, 2 * radius, 2 * radius])
        classes.append(kind)
    return pixels, mask, boxes, classes


@functools.cache
def coco(count: int = 24, seed: int = 0) -> str:
    """Make a COCO dataset: images of shapes, their boxes and classes."""
    folder = SCRATCH / f"shapes-{seed}.coco"
    rng = np.random.default_rng(seed)
    schema = {
        "image": bp.Image("png"),
        "boxes": bp.Boxes("xywh", labels=["labels"]),
        "labels": bp.Labels(names=SHAPES),
    }
    with bp.create(folder, schema) as out:
        for _ in range(count):
            pixels, _, boxes, classes = scene(rng, 64)
            out.append({"image": pixels, "boxes": np.array(boxes, np.float32), "labels": classes})
    return str(folder)


@functools.cache
def masks(count: int = 24, seed: int = 0) -> str:
    """Make a folder with images/ and masks/ of the same names."""
    from PIL import Image

    folder = SCRATCH / f"masks-{seed}"
    rng = np.random.default_rng(seed)
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for number in range(count):
        pixels, mask, _, _ = scene(rng, 64)
        Image.fromarray(pixels).save(folder / "images" / f"{number:03d}.jpg", quality=90)
        Image.fromarray(mask).save(folder / "masks" / f"{number:03d}.png")
    return str(folder)


@functools.cache
def speech(count: int = 24, seed: int = 0) -> str:
    """Make a folder of WAV files with a metadata.csv: each letter of a text is a tone of 80 ms."""
    from batchplant.codecs import audio

    folder = SCRATCH / f"speech-{seed}"
    folder.mkdir()
    rng = np.random.default_rng(seed)
    lines = ["file_name,text"]
    seconds = np.arange(1280) / 16000
    for number in range(count):
        text = "".join(rng.choice(list(LETTERS), rng.integers(3, 9)))
        tones = [np.sin(2 * np.pi * 300 * 2 ** LETTERS.index(letter) * seconds) for letter in text]
        wave = (12000 * np.concatenate(tones)[:, None]).astype(np.int16)
        (folder / f"{number:03d}.wav").write_bytes(audio.encode(wave, 16000, "wav"))
        lines.append(f"{number:03d}.wav,{text}")
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    return str(folder)


@functools.cache
def videos(count: int = 12, seed: int = 0) -> str:
    """Make a folder of MP4 files in two classes: stripes that move to the left or to the right."""
    from batchplant.codecs import video

    folder = SCRATCH / f"videos-{seed}"
    rng = np.random.default_rng(seed)
    for name in ("left", "right"):
        (folder / name).mkdir(parents=True)
    for number in range(count):
        name, step = ("left", -2) if number % 2 else ("right", 2)
        row = rng.integers(0, 256, 48, dtype=np.uint8)
        still = np.broadcast_to(row[None, :, None], (32, 48, 3))
        frames = np.stack([np.roll(still, step * time, axis=1) for time in range(24)])
        (folder / name / f"{number:03d}.mp4").write_bytes(video.encode(frames, 24, "mp4"))
    return str(folder)


@functools.cache
def table(rows: int = 500, seed: int = 0) -> str:
    """Make a CSV file of customers, with gaps; who leaves depends on the tenure and on the plan."""
    path = SCRATCH / f"customers-{seed}.csv"
    rng = np.random.default_rng(seed)
    lines = ["tenure,spend,plan,leaves"]
    for _ in range(rows):
        tenure, plan = rng.uniform(0, 10), rng.choice(["free", "basic", "pro"])
        leaves = int(tenure < {"free": 7, "basic": 5, "pro": 2}[str(plan)])
        spend = "" if rng.random() < 0.1 else f"{rng.lognormal(3, 0.5):.2f}"
        lines.append(f"{tenure:.2f},{spend},{plan},{leaves}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@functools.cache
def scans(count: int = 4, seed: int = 0) -> str:
    """Make volumes of differing shapes with a bright ball in each, and the labels of its voxels."""
    path = SCRATCH / f"scans-{seed}.beton"
    rng = np.random.default_rng(seed)
    any_shape = (None, None, None)
    with bp.create(
        path, {"scan": bp.Tensor("float32", any_shape), "label": bp.Tensor("uint8", any_shape)}
    ) as out:
        for _ in range(count):
            shape = rng.integers(20, 32, 3)
            middle = [int(rng.integers(size // 3, size - size // 3)) for size in shape]
            axes = np.ogrid[tuple(slice(0, int(size)) for size in shape)]
            ball = sum((axis - place) ** 2 for axis, place in zip(axes, middle, strict=True)) < 36
            scan = rng.normal(0, 0.5, shape) + 2 * ball
            out.append({"scan": scan.astype(np.float32), "label": ball.astype(np.uint8)})
    return str(path)


@functools.cache
def tokens(documents: int, mean: float, seed: int = 0) -> str:
    """Make a dataset of documents: each counts up from a random token, which can be learned."""
    path = SCRATCH / f"tokens-{seed}-{documents}.idx"
    rng = np.random.default_rng(seed)
    with bp.create(path, {"tokens": bp.Tensor("int32", (None,))}) as out:
        for _ in range(documents):
            length = 2 + int(rng.lognormal(math.log(mean), 0.5))
            counted = (rng.integers(60) + np.arange(length)) % 60 + 1  # 0 ends a document
            out.append({"tokens": counted.astype(np.int32)})
    return str(path)


def new_folder() -> str:
    """Make an empty folder, for frameworks that write checkpoints in any case."""
    return tempfile.mkdtemp(dir=SCRATCH)
