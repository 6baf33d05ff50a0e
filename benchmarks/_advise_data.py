"""The ten datasets that advise is tried on: as people have them, with what is wrong with them.

Each is made by a function of a folder and a scale: 1 for the benchmark, less for the tests. It returns what
``batchplant.open`` takes.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image


class Dataset(NamedTuple):
    """One of the ten. remote: it is put into a bucket before it is opened."""

    make: Callable[[Path, float], Path]
    goal: str
    remote: bool = False


def image(rng: np.random.Generator, width: int, height: int, grain: float = 6.0) -> Image.Image:
    """Something like a photo: smooth shapes and the grain of a sensor."""
    small = rng.integers(0, 256, (max(2, height // 48), max(2, width // 48), 3), dtype=np.uint8)
    smooth = np.asarray(
        Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32
    )
    noise: npt.NDArray[np.float32] = rng.standard_normal((height, width, 1), dtype=np.float32) * grain
    return Image.fromarray((smooth + noise).clip(0, 255).astype(np.uint8))


def jpeg(rng: np.random.Generator, width: int, height: int) -> bytes:
    out = io.BytesIO()
    image(rng, width, height).save(out, "JPEG", quality=90)
    return out.getvalue()


def tiny_png(folder: Path, scale: float) -> Path:
    """Thousands of small files: an open and a seek for each."""
    rng = np.random.default_rng(1)
    for number in range(int(6000 * scale)):
        place = folder / "tiny" / f"class{number % 10}"
        place.mkdir(parents=True, exist_ok=True)
        image(rng, 32, 32).save(place / f"{number:06}.png")
    return folder / "tiny"


def photos_4k(folder: Path, scale: float) -> Path:
    """Images far beyond any crop."""
    rng = np.random.default_rng(2)
    width, height = (3840, 2160) if scale >= 1 else (960, 640)
    for number in range(max(8, int(32 * scale))):
        place = folder / "photos" / f"class{number % 4}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:04}.jpg").write_bytes(jpeg(rng, width, height))
    return folder / "photos"


def sorted_tar(folder: Path, scale: float) -> Path:
    """Shards whose labels stand together: a stream of them learns one class after the other."""
    rng = np.random.default_rng(3)
    count = max(64, int(1200 * scale))
    path = folder / "sorted.tar"
    with tarfile.open(path, "w") as archive:
        for number in range(count):
            parts = ((".jpg", jpeg(rng, 256, 192)), (".cls", str(number * 10 // count).encode()))
            for ending, data in parts:
                info = tarfile.TarInfo(f"{number:06}{ending}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return path


def long_audio(folder: Path, scale: float) -> Path:
    """Recordings of a minute."""
    import wave

    rng = np.random.default_rng(4)
    seconds = 60 if scale >= 1 else 2
    for number in range(max(8, int(24 * scale))):
        place = folder / "audio" / f"speaker{number % 3}"
        place.mkdir(parents=True, exist_ok=True)
        tone = np.sin(np.arange(16000 * seconds) * (0.01 + 0.002 * number)) * 8000
        noisy = (tone + rng.normal(0, 200, tone.shape)).astype("<i2")
        with wave.open(str(place / f"{number:03}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(16000)
            file.writeframes(noisy.tobytes())
    return folder / "audio"


def table_csv(folder: Path, scale: float) -> Path:
    """A million rows as text."""
    rng = np.random.default_rng(5)
    count = int(1_000_000 * scale)
    path = folder / "table.csv"
    prices, items = rng.gamma(2.0, 20.0, count).round(2), rng.integers(0, 5000, count)
    shops = rng.choice(["north", "south", "east", "west"], count)
    with open(path, "w") as file:
        file.write("id,price,item,shop,amount\n")
        rows = zip(range(count), prices, items, shops, rng.integers(1, 9, count), strict=True)
        file.writelines(f"{a},{b},{c},{d},{e}\n" for a, b, c, d, e in rows)
    return path


def token_files(folder: Path, scale: float) -> Path:
    """Token numbers as JSON Lines, filled up to one length."""
    rng = np.random.default_rng(6)
    path = folder / "tokens.jsonl"
    with open(path, "w") as file:
        for _ in range(int(20_000 * scale)):
            tokens = np.zeros(256, dtype=np.int64)
            used = int(rng.integers(32, 200))
            tokens[:used] = rng.integers(1, 32000, used)
            file.write(json.dumps({"tokens": tokens.tolist()}) + "\n")
    return path


def volumes(folder: Path, scale: float) -> Path:
    """Volumes in chunks that hold a corner of every one: all of them are unpacked to read one."""
    import h5py

    rng = np.random.default_rng(7)
    count, side = max(8, int(96 * scale)), 48 if scale >= 1 else 16
    path = folder / "volumes.h5"
    smooth = np.cumsum(rng.integers(-2, 3, (count, side, side, side)), axis=3).astype(np.int16)
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "volume", data=smooth, chunks=(count, side // 4, side // 4, side), compression="gzip"
        )
        file.create_dataset("label", data=rng.integers(0, 2, count))
    return path


def coco(folder: Path, scale: float) -> Path:
    """Images, and one JSON file that says what is in them, as COCO's does."""
    rng = np.random.default_rng(8)
    place = folder / "coco"
    place.mkdir()
    with open(place / "metadata.jsonl", "w") as file:
        for number in range(max(32, int(600 * scale))):
            name = f"{number:06}.jpg"
            (place / name).write_bytes(jpeg(rng, 320, 240))
            boxes = rng.integers(0, 200, (int(rng.integers(1, 6)), 4)).tolist()
            objects = {
                "bbox": boxes,
                "category": [int(integer) for integer in rng.integers(0, 80, len(boxes))],
            }
            file.write(json.dumps({"file_name": name, "objects": objects}) + "\n")
    return place


def remote_parquet(folder: Path, scale: float) -> Path:
    """Images in a Parquet file of one large row group, as data frames write them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(9)
    count = max(64, int(1500 * scale))
    images = [jpeg(rng, 256, 192) for _ in range(count)]
    table = pa.table({"image": images, "label": rng.integers(0, 10, count)})
    pq.write_table(table, folder / "images.parquet", row_group_size=count)
    return folder / "images.parquet"


def video(folder: Path, scale: float) -> Path:
    """Short clips."""
    import av

    rng = np.random.default_rng(10)
    for number in range(max(4, int(16 * scale))):
        place = folder / "video" / f"action{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        first: Any = np.asarray(image(rng, 160, 120, 2.0))
        with av.open(str(place / f"{number:03}.mp4"), "w") as out:
            stream: Any = out.add_stream("mpeg4", rate=Fraction(12))
            stream.width, stream.height, stream.pix_fmt = 160, 120, "yuv420p"
            for shift in range(24):
                frame = av.VideoFrame.from_ndarray(np.roll(first, 3 * shift, axis=1), format="rgb24")
                out.mux(stream.encode(frame))
            out.mux(stream.encode())
    return folder / "video"


DATASETS = {
    "tiny png files": Dataset(tiny_png, "train"),
    "4k photos": Dataset(photos_4k, "train"),
    "sorted tar": Dataset(sorted_tar, "stream"),
    "long audio": Dataset(long_audio, "train"),
    "csv of 10^6 rows": Dataset(table_csv, "analyse"),
    "token files": Dataset(token_files, "train"),
    "hdf5 with bad chunks": Dataset(volumes, "train"),
    "coco": Dataset(coco, "share"),
    "remote parquet": Dataset(remote_parquet, "train", remote=True),
    "video": Dataset(video, "archive"),
}
