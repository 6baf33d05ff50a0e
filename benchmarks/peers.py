"""Measure batchplant beside other loaders, each used in the way that its documentation recommends.

images   a folder of JPEGs, random crop 224, flip: SPDL, DALI on the CPU, torchdata nodes, a torch
         DataLoader; and from formats of their own HF datasets, Grain + ArrayRecord and Lance
rows     a table of numbers, vectors and text, batches of random rows and scans: Lance, Vortex,
         HF datasets, pyarrow
tokens   rows of 1,024 token ids, the same
media    16 frames at a random place of each video, and a second of each sound: torchcodec

Every side has a process of its own, runs on as many threads or processes as there are cores, warms
up, and then runs an epoch in turn with the others. BATCHPLANT_PEERS_PYTHON names a Python that has
the peers; a side whose library is missing is left out with a message. The ratio by CPU time counts
all processes of a side, and holds on a busy machine too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _common import others, part_arguments, photos, save, workplace
from loader import CROP, Side, measure
from sound import films

import batchplant

IMAGES = (
    "batchplant", "SPDL", "DALI", "torchdata nodes", "torch DataLoader", "HF datasets",
    "Grain + ArrayRecord", "Lance",
)  # fmt: skip
ROWS = ("batchplant", "batchplant, Arrow", "Lance", "Vortex", "HF datasets", "pyarrow")
# Pixels → images; as those of ImageNet, small and as they are.
SIZES = {256: 2560, 500: 1024}
IMAGE_BATCH, ROW_BATCH = 256, 1024
VECTOR, TOKENS, RATE = 128, 1024, 16_000

Results = dict[str, Any]


def sides(names: Iterable[str], job: Results, scratch: Path) -> dict[str, Callable[[], Side]]:
    peers = os.environ.get("BATCHPLANT_PEERS_PYTHON", sys.executable)
    started: dict[str, Callable[[], Side]] = {}
    for name in names:
        place = scratch / name.replace(" ", "-")
        place.mkdir(parents=True, exist_ok=True)
        python = sys.executable if name.startswith("batchplant") else peers
        own = job | {"scratch": str(place)}
        started[name] = partial(Side, name, python, own, scratch / "log", "_peer_sides.py")
    return started


def compare(title: str, names: Iterable[str], job: Results, scratch: Path, rounds: int) -> Results:
    """Run all sides in turn, and print our rate over each peer's."""
    print(f"{title}, batches of {job['batch']}, {job['workers']} workers", flush=True)
    result = {"title": title, **measure(sides(names, job, scratch), rounds, "")}
    speeds, cpu = result["images/s"], result["CPU s"]
    for name in speeds:
        ratio = {key: speeds["batchplant"][key] / speeds[name][key] for key in ("best", "median")}
        ratio["by CPU time"] = cpu[name] / cpu["batchplant"]
        result.setdefault("batchplant over", {})[name] = ratio
        print(
            f"  {name:<20} {speeds[name]['median']:>11,.0f}/s   batchplant {ratio['median']:5.2f} ×, "
            f"by CPU time {ratio['by CPU time']:5.2f} ×",
            flush=True,
        )
    return result


def images(folder: Path, quick: bool, rounds: int, workers: int) -> Results:
    results: Results = {}
    for size, count in SIZES.items():
        root = folder / f"photos-{size}"
        photos().make_folder(root, IMAGE_BATCH if quick else count, size=size)
        job = {"kind": "images", "path": str(root), "batch": IMAGE_BATCH, "crop": CROP, "workers": workers}
        job["warm-up"] = 1 if quick else 2
        title = f"JPEG {size} px, crop {CROP}, flip"
        results[f"jpeg{size}"] = compare(title, IMAGES, job, folder / f"sides-{size}", rounds)
    return results


def ordered(name: str, folder: Path, path: Path, rounds: int, workers: int, quick: bool) -> Results:
    """Measure random batches and a scan of a Parquet file, which each peer converts to its own format."""
    results: Results = {}
    for order, title in (("random", "batches of random rows"), ("sequential", "a scan")):
        # A scan by pyarrow alone: it has no rows by number.
        names = ROWS if order == "sequential" else ROWS[:-1]
        job = {"kind": "rows", "path": str(path), "batch": ROW_BATCH, "order": order, "workers": workers}
        job["warm-up"] = 1 if quick else 2
        scratch = folder / f"sides-{name}-{order}"
        results[f"{name}, {order}"] = compare(f"{name}: {title}", names, job, scratch, rounds)
    return results


def write(path: Path, columns: Results) -> None:
    """Write a Parquet file in row groups of a size that batchplant would choose."""
    import pyarrow as pa

    table = pa.table({
        name: values if isinstance(values, list) or values.ndim == 1
        else pa.FixedSizeListArray.from_arrays(values.reshape(-1), values.shape[1])
        for name, values in columns.items()
    })  # fmt: skip
    source = path.with_suffix(".arrow")
    with pa.OSFile(str(source), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
        out.write_table(table, 8192)
    batchplant.convert(source, path)


def rows(folder: Path, quick: bool, rounds: int, workers: int) -> Results:
    count = 4_096 if quick else 204_800
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {f"x{i}": rng.standard_normal(count, dtype=np.float32) for i in range(8)}
    columns["label"] = np.arange(count)
    columns["vector"] = rng.standard_normal((count, VECTOR), dtype=np.float32)
    columns["text"] = [f"a sentence about sample {row}" for row in range(count)]
    path = folder / "rows.parquet"
    write(path, columns)
    return ordered("rows", folder, path, rounds, workers, quick)


def tokens(folder: Path, quick: bool, rounds: int, workers: int) -> Results:
    count = 4_096 if quick else 40_960
    ids = np.random.default_rng(0).integers(0, 50_000, (count, TOKENS), dtype=np.int32)
    path = folder / "tokens.parquet"
    write(path, {"label": np.arange(count), "ids": ids})
    return ordered("tokens", folder, path, rounds, workers, quick)


def media(folder: Path, quick: bool, rounds: int, workers: int) -> Results:
    import soundfile

    videos, sounds = folder / "videos", folder / "sounds"
    videos.mkdir()
    films(videos, 8 if quick else 48, seconds=8)
    sounds.mkdir()
    for number in range(64 if quick else 1024):
        # Noise whose loudness changes as that of speech.
        noise = np.random.default_rng(number).standard_normal((10, RATE)) * np.tile(
            [[1.0], [5], [3], [0], [2]], (2, 1)
        )
        soundfile.write(sounds / f"{number:04}.flac", noise.reshape(-1) / 64, RATE)
    jobs: dict[str, Results] = {
        "16 frames of H.264, 256×340": {"kind": "clips", "path": str(videos), "batch": 8, "frames": 16},
        "a second of FLAC, 16 kHz": {
            "kind": "sounds",
            "path": str(sounds),
            "batch": 64,
            "seconds": 1.0,
            "rate": RATE,
        },
    }
    names = ("batchplant", "torchcodec")
    return {
        title: compare(
            title, names, job | {"workers": workers, "warm-up": 2}, folder / f"sides-{job['kind']}", rounds
        )
        for title, job in jobs.items()
    }


PARTS = {"images": images, "rows": rows, "tokens": tokens, "media": media}


def main() -> None:
    args = part_arguments(__doc__ or "", PARTS)
    workers = len(os.sched_getaffinity(0))
    results: Results = {"workers": workers, "rounds": args.rounds}
    with workplace() as folder, others(results):
        for part in args.parts:
            results[part] = PARTS[part](folder, args.quick, args.rounds, workers)
    save(args.out, "peers", results)


if __name__ == "__main__":
    main()
