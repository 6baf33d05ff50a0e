"""Ten datasets that `batchplant advise` was not tuned on, from a table of numbers to large photos.

Each is made by a function of a folder, and returns the path that ``batchplant.open`` takes.
"""

from __future__ import annotations

import json
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
from _advise_data import image, jpeg

WORDS = 4000


def wide_table(folder: Path) -> Path:
    """150 columns of numbers, and some of text, as CSV."""
    rng = np.random.default_rng(101)
    rows, columns = 8000, 150
    values = rng.gamma(2.0, 3.0, (rows, columns)).round(3)
    path = folder / "wide.csv"
    with open(path, "w") as file:
        file.write(",".join(["city", *(f"v{number}" for number in range(columns)), "label"]) + "\n")
        for row in range(rows):
            city = ("Oslo", "Lima", "Pune", "Bonn")[row % 4]
            file.write(f"{city},{','.join(map(str, values[row]))},{row % 7}\n")
    return path


def narrow_table(folder: Path) -> Path:
    """Four columns and many rows, as CSV."""
    rng = np.random.default_rng(102)
    rows = 200_000
    path = folder / "narrow.csv"
    columns = (rng.normal(20, 5, rows).round(2), rng.integers(0, 100, rows), rng.integers(0, 2, rows))
    with open(path, "w") as file:
        file.write("time,temperature,sensor,alarm\n")
        file.writelines(f"{n},{a},{b},{c}\n" for n, (a, b, c) in enumerate(zip(*columns, strict=True)))
    return path


def long_text(folder: Path) -> Path:
    """Documents of thousands of letters, as JSON Lines."""
    rng = np.random.default_rng(103)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = ["".join(rng.choice(letters, rng.integers(2, 11))) for _ in range(WORDS)]
    path = folder / "documents.jsonl"
    with open(path, "w") as file:
        for number in range(4000):
            picks = rng.zipf(1.3, int(rng.integers(200, 1500))) % WORDS
            text = " ".join(words[pick] for pick in picks)
            file.write(json.dumps({"id": number, "text": text, "source": f"site{number % 9}"}) + "\n")
    return path


def tokens(folder: Path) -> Path:
    """Documents as lists of token numbers, as JSON Lines."""
    rng = np.random.default_rng(104)
    path = folder / "tokens.jsonl"
    with open(path, "w") as file:
        for _ in range(4000):
            row = rng.integers(0, 50_000, int(rng.integers(50, 1000)))
            file.write(json.dumps({"tokens": row.tolist()}) + "\n")
    return path


def tiny_tensors(folder: Path) -> Path:
    """Vectors of 32 numbers with a label, as NPZ."""
    rng = np.random.default_rng(105)
    path = folder / "vectors.npz"
    count = 120_000
    x = rng.standard_normal((count, 32)).astype(np.float32)
    np.savez(path, x=x, y=rng.integers(0, 10, count))
    return path


def large_tensors(folder: Path) -> Path:
    """Volumes of a quarter of a megabyte in one HDF5 file, packed with gzip."""
    import h5py

    rng = np.random.default_rng(106)
    path = folder / "volumes.h5"
    volumes = np.cumsum(rng.integers(-3, 4, (120, 32, 64, 64)), axis=1).astype(np.int16)
    with h5py.File(path, "w") as file:
        file.create_dataset("volume", data=volumes, chunks=(1, 32, 64, 64), compression="gzip")
        file.create_dataset("label", data=rng.integers(0, 3, len(volumes)))
    return path


def sounds(folder: Path) -> Path:
    """Clips of two seconds, in a folder for each speaker."""
    rng = np.random.default_rng(107)
    times = np.arange(16_000 * 2) / 16_000
    for number in range(300):
        place = folder / "clips" / f"speaker{number % 5}"
        place.mkdir(parents=True, exist_ok=True)
        tone = np.sin(2 * np.pi * times * rng.uniform(100, 900)) * 6000 + rng.normal(0, 300, times.shape)
        with wave.open(str(place / f"{number:04}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(16_000)
            file.writeframes(tone.astype("<i2").tobytes())
    return folder / "clips"


def png(folder: Path) -> Path:
    """Photos of 128 pixels as PNG, in a folder for each class."""
    rng = np.random.default_rng(108)
    for number in range(500):
        place = folder / "png" / f"class{number % 6}"
        place.mkdir(parents=True, exist_ok=True)
        image(rng, 128, 128).save(place / f"{number:05}.png")
    return folder / "png"


def _photos(folder: Path, seed: int, count: int, width: int, height: int) -> Path:
    rng = np.random.default_rng(seed)
    for number in range(count):
        place = folder / f"class{number % 8}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:05}.jpg").write_bytes(jpeg(rng, width, height))
    return folder


def small_jpeg(folder: Path) -> Path:
    """Photos of 64 pixels."""
    return _photos(folder / "thumbnails", 109, 4000, 64, 64)


def large_jpeg(folder: Path) -> Path:
    """Photos of 1,280 pixels: far more than a crop shows."""
    return _photos(folder / "large", 110, 60, 1280, 960)


# The function, and the goal for which advice is taken.
UNSEEN: dict[str, tuple[Callable[[Path], Path], str]] = {
    "wide table (CSV)": (wide_table, "train"),
    "narrow table (CSV)": (narrow_table, "analyse"),
    "long text (JSON Lines)": (long_text, "train"),
    "tokens (JSON Lines)": (tokens, "train"),
    "tiny tensors (NPZ)": (tiny_tensors, "train"),
    "large tensors (HDF5)": (large_tensors, "train"),
    "sounds (WAV files)": (sounds, "train"),
    "PNG, 128 px": (png, "train"),
    "JPEG, 64 px": (small_jpeg, "train"),
    "JPEG, 1280 px": (large_jpeg, "train"),
}
