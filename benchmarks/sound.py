"""Mel spectrograms and video clips beside other libraries, on as many threads.

mel     64 sounds of 10 s to mel spectrograms: librosa in threads, torch.stft and torchaudio on batches
clips   16 frames of random places, random crops to 224×224: PyAV and torch in a DataLoader

BATCHPLANT_PEERS_PYTHON names another Python for librosa and torchaudio; what is not installed is skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from _common import HERE, interleaved, others, part_arguments, photos, save, workplace

import batchplant as bp
from batchplant import ops

MELS = {
    "speech, 16 kHz": (16000, {"n_fft": 400, "hop_length": 160, "n_mels": 80}),
    "music, 22.05 kHz": (22050, {"n_fft": 1024, "hop_length": 256, "n_mels": 128}),
}
SECONDS = 10
# Of films, as those of Kinetics are often kept.
HEIGHT, WIDTH, FPS, GOP = 256, 340, 25, 12
FRAMES, SIZE, BATCH = 16, 224, 8
STRIDES = (1, 4)


@contextmanager
def side(name: str, job: dict[str, Any]) -> Iterator[Callable[[], float] | None]:
    """The seconds that the side takes to do the job once; None where its library is not there."""
    python = sys.executable
    if name in ("mel: librosa", "mel: torchaudio"):
        python = os.environ.get("BATCHPLANT_PEERS_PYTHON", sys.executable)
    command = [python, str(HERE / "_sound_sides.py"), name, json.dumps(job)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if not process.stdout.readline():
            output = process.stderr.read() if process.stderr is not None else ""
            if "No module named" not in output:
                raise RuntimeError(f"{name}: {output}")
            print(f"  {name} is skipped: {output.strip().splitlines()[-1]}", flush=True)
            yield None
            return

        def work() -> float:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        yield work
    finally:
        process.kill()
        process.communicate()


def compare(names: list[str], job: dict[str, Any], count: int, unit: str, rounds: int) -> dict[str, Any]:
    with ExitStack() as stack:
        sides = {
            name: stack.enter_context(side(name, job | {"result": job["results"][name]})) for name in names
        }
        result = interleaved({name: item for name, item in sides.items() if item is not None}, rounds)
    speeds = {
        name.partition(": ")[2]: {key: count / value[key] for key in ("median", "best")}
        for name, value in result.items()
    }
    ours = speeds["batchplant"]
    ratios = {
        name: {key: ours[key] / speed[key] for key in ours}
        for name, speed in speeds.items()
        if name != "batchplant"
    }
    for name, speed in speeds.items():
        beside = f"   batchplant is {ratios[name]['median']:.2f} times as fast" if name in ratios else ""
        print(f"  {name:<16} {speed['median']:10.1f} {unit}{beside}", flush=True)
    return {unit: speeds, "ratio to": ratios}


def mel(args: argparse.Namespace) -> dict[str, Any]:
    count = 8 if args.quick else 64
    names = ["mel: batchplant", "mel: librosa", "mel: torch.stft", "mel: torchaudio"]
    results: dict[str, Any] = {}
    for title, (rate, arguments) in MELS.items():
        print(f"{title}: {count} sounds of {SECONDS} s, {arguments}", flush=True)
        with workplace() as folder:
            sounds = np.random.default_rng(0).standard_normal((count, SECONDS * rate)).astype(np.float32)
            np.save(folder / "sounds.npy", sounds)
            np.save(
                folder / "filters.npy", ops.MelSpectrogram(rate, **arguments).filters().astype(np.float32)
            )
            result = {name: str(folder / f"{number}.npy") for number, name in enumerate(names)}
            job = {
                "rate": rate, "mel": arguments, "count": count, "threads": args.threads, "results": result,
                "sounds": str(folder / "sounds.npy"), "filters": str(folder / "filters.npy"),
            }  # fmt: skip
            results[title] = compare(names, job, count, "sounds/s", args.rounds)
            first = np.load(result[names[0]])
            for name in names[1:]:
                if Path(result[name]).exists():
                    wrong = np.abs(np.load(result[name]) - first).max() / first.max()
                    if wrong > 1e-4:
                        raise RuntimeError(f"{name} gives something else: {wrong:.1e} of the largest value")
    return results


def films(folder: Path, count: int, seconds: int) -> list[str]:
    """A camera that moves over photos, with noise as cameras have it."""
    from batchplant.codecs.media.video import encode

    paths = []
    for number in range(count):
        rng = np.random.default_rng(number)
        frames = np.empty((seconds * FPS, HEIGHT, WIDTH, 3), np.uint8)
        noise = rng.integers(0, 12, (7, HEIGHT, WIDTH, 3), dtype=np.uint8)
        still = photos().photo(number, width=2 * WIDTH, height=2 * HEIGHT)
        first, last = rng.uniform(0, 1, (2, 2)) * (HEIGHT, WIDTH)
        for at, frame in enumerate(frames):
            y, x = (first + (last - first) * at / len(frames)).astype(int)
            frame[:] = still[y : y + HEIGHT, x : x + WIDTH] // 16 * 15 + noise[at % len(noise)]
        path = folder / f"{number:03}.mp4"
        path.write_bytes(encode(frames, FPS, gop=GOP))
        paths.append(str(path))
    return paths


def clips(args: argparse.Namespace) -> dict[str, Any]:
    count, seconds = (8, 4) if args.quick else (48, 10)
    results: dict[str, Any] = {}
    with workplace() as folder:
        paths = films(folder, count, seconds)
        with bp.create(folder / "films.beton", {"video": bp.Video("mp4")}) as out:
            for path in paths:
                out.append({"video": path})
        names = ["clips: batchplant", "clips: PyAV + torch"]
        for stride in STRIDES:
            title = f"{FRAMES} frames, {stride} apart"
            print(f"{count} films of {seconds} s, H.264 {WIDTH}×{HEIGHT}: {title}", flush=True)
            job = {
                "files": paths, "dataset": str(folder / "films.beton"), "frames": FRAMES, "stride": stride,
                "size": SIZE, "batch": BATCH, "threads": args.threads, "results": dict.fromkeys(names, ""),
            }  # fmt: skip
            results[title] = compare(names, job, count, "clips/s", args.rounds)
    return results


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {"mel": mel, "clips": clips}


def main() -> None:
    args = part_arguments(__doc__ or "", PARTS)
    args.threads = len(os.sched_getaffinity(0))
    results: dict[str, Any] = {"rounds": args.rounds, "threads": args.threads}
    with others(results):
        for name in args.parts:
            results[name] = PARTS[name](args)
    save(args.out, "sound", results)


if __name__ == "__main__":
    main()
