"""Measure random frames, and clips of 16 frames, of MP4 files beside other decoders of video.

The films are 480p or 720p in H.264, HEVC and AV1, with a keyframe every 2, 12 or 60 frames; a camera moves
over a photo, with noise. All sides decode the same samples in batches, each on as many threads as there are
cores: torchcodec, PyAV, decord, and Lance, which holds the files as blobs and decodes them by torchcodec.
BATCHPLANT_PEERS_PYTHON names a Python that has them; a side whose library is missing is left out.

The part s3 reads random frames from a server that answers 30 ms late, and from the disk, and counts the
bytes that are fetched, those of the packets that decoding takes, and those of their groups of pictures.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _common import others, part_arguments, photos, save, workplace
from _servers import serving
from loader import Side, measure
from remote import environment

import batchplant as bp
from batchplant.codecs.media import video

Results = dict[str, Any]
# Name → encoder, height, width, frames between keyframes.
FILMS = {
    "H.264 480p, GOP 2": ("libx264", 480, 640, 2),
    "H.264 480p, GOP 12": ("libx264", 480, 640, 12),
    "H.264 480p, GOP 60": ("libx264", 480, 640, 60),
    "H.264 720p, GOP 12": ("libx264", 720, 1280, 12),
    "HEVC 480p, GOP 12": ("libx265", 480, 640, 12),
    "AV1 480p, GOP 12": ("libsvtav1", 480, 640, 12),
}
SIDES = ("batchplant", "torchcodec", "PyAV", "decord", "Lance")
OWN = ("batchplant", "PyAV")
FPS, FILM_COUNT, FRAMES, CLIP, DELAY_SECONDS = 30, 2, 240, 16, 0.03
# Samples of an epoch, and of a batch.
SAMPLES = {"frames": (96, 32), "clips": (16, 8)}


def make(folder: Path, encoder: str, height: int, width: int, gop: int, count: int) -> list[str]:
    """Write films; return their paths."""
    paths = []
    for number in range(FILM_COUNT):
        rng = np.random.default_rng(number)
        noise = rng.integers(0, 12, (7, height, width, 3), dtype=np.uint8)
        still = photos().photo(number, width=2 * width, height=2 * height)
        frames = np.empty((count, height, width, 3), np.uint8)
        for at, frame in enumerate(frames):
            y, x = height * at // count, width * at // count
            frame[:] = still[y : y + height, x : x + width] // 16 * 15 + noise[at % len(noise)]
        path = folder / f"{number}.mp4"
        path.write_bytes(video.encode(frames, FPS, "mp4", codec=encoder, gop=gop))
        paths.append(str(path))
    return paths


def compare(folder: Path, paths: list[str], kind: str, frames: int, rounds: int) -> Results:
    """Run all sides in turn on random samples of these films."""
    samples, batch = SAMPLES[kind]
    rng = np.random.default_rng(1)
    span = CLIP if kind == "clips" else 1
    starts = [(int(rng.integers(len(paths))), int(rng.integers(frames - span))) for _ in range(samples)]
    job = {"paths": paths, "samples": starts, "span": span, "batch": batch, "frames": frames, "fps": FPS}
    job |= {"workers": len(os.sched_getaffinity(0)), "warm-up": 1}
    peers = os.environ.get("BATCHPLANT_PEERS_PYTHON", sys.executable)
    started = {}
    for name in SIDES:
        own = job | {"scratch": str(folder / f"{name}-{kind}")}
        python = sys.executable if name in OWN else peers
        started[name] = partial(Side, name, python, own, folder / "log", "_video_sides.py")
    return measure(started, rounds, "torchcodec")


def far(folder: Path, rounds: int, quick: bool) -> Results:
    """Read random frames from a server and from the disk."""
    bucket = folder / "films"
    bucket.mkdir()
    frames = FRAMES if quick else 5 * FRAMES
    paths = make(bucket, *FILMS["H.264 480p, GOP 12"], frames)
    rows = np.sort(np.random.default_rng(2).permutation(FILM_COUNT * frames)[: 32 if quick else 64])
    speeds: dict[str, list[float]] = {"local": [], "S3": []}
    with serving(folder) as servers, environment(servers, folder / "home"):
        urls = [f"s3://films/{Path(path).name}" for path in paths]
        fetched, requests, needed, whole_groups = [], [], 0, 0
        for _ in range(rounds):
            for name, source in (("local", paths), ("S3", urls)):
                servers.begin(DELAY_SECONDS)
                with bp.open(source) as reader:
                    chosen = reader.subset(rows)
                    loader = bp.Loader(chosen, 16, order="random", seed=1)
                    began = time.perf_counter()
                    count = sum(len(batch["frame"]) for batch in loader)
                    speeds[name].append(count / (time.perf_counter() - began))
                    loader.close()
                    if name == "S3":
                        counted = servers.counted(DELAY_SECONDS)
                        fetched.append(counted["bytes"])
                        requests.append(counted["requests"])
                        needed = chosen.ranges(["frame"]).bytes
                        groups = reader.blocks()
                        touched = np.flatnonzero(np.isin(groups, groups[rows]))
                        whole_groups = reader.ranges(["frame"], touched).bytes
    median = {name: statistics.median(values) for name, values in speeds.items()}
    size = sum(os.path.getsize(path) for path in paths)
    return {
        "samples/s": median,
        "S3 : local": median["S3"] / median["local"],
        "bytes fetched : packets needed": statistics.median(fetched) / needed,
        "bytes fetched : groups of pictures": statistics.median(fetched) / whole_groups,
        "bytes needed : files": needed / size,
        "requests": statistics.median(requests),
        "samples": len(rows),
    }


def main() -> None:
    args = part_arguments(__doc__ or "", [*FILMS, "s3"], rounds=3)
    results: Results = {"workers": len(os.sched_getaffinity(0)), "rounds": args.rounds, "cases": {}}
    frames = FRAMES // 2 if args.quick else FRAMES
    with workplace() as folder, others(results):
        for number, part in enumerate(args.parts):
            scratch = folder / str(number)
            scratch.mkdir()
            if part == "s3":
                results["s3"] = far(scratch, args.rounds, args.quick)
                print(part, results["s3"], flush=True)
                continue
            paths = make(scratch, *FILMS[part], frames)
            for kind in SAMPLES:
                print(f"{part}: {kind}", flush=True)
                results["cases"][f"{part}, {kind}"] = compare(scratch, paths, kind, frames, args.rounds)
    save(args.out, "video", results)


if __name__ == "__main__":
    main()
