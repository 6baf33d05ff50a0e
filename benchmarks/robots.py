"""Measure random samples of robot recordings beside LeRobot's own loader, from the same folder.

pusht   one camera of 96×96 pixels, 10 frames a second, 16 actions ahead
aloha   three cameras of 640×480, 50 frames a second, 100 actions ahead

Videos are H.264 with a keyframe in every second frame, as LeRobot writes them. Each side has a process of
its own and as many threads or processes as there are cores. BATCHPLANT_PEERS_PYTHON names a Python that has
LeRobot; its decoder is torchcodec where that loads, else PyAV.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _common import others, part_arguments, save, workplace
from loader import Side, measure

import batchplant as bp

Results = dict[str, Any]
# Cameras, height, width, frames a second, actions ahead, joints, frames of an episode, episodes, batch.
PARTS = {
    "pusht": (1, 96, 96, 10, 16, 2, 125, 24, 64),
    "aloha": (3, 480, 640, 50, 100, 14, 100, 4, 8),
}


def make(path: Path, part: str, quick: bool) -> Results:
    """Write a dataset of images that move, and return the job of the sides."""
    cameras, height, width, fps, ahead, joints, frames, episodes, batch = PARTS[part]
    names = [f"observation.images.{number}" for number in range(cameras)]
    vector = bp.Tensor("float32", (joints,))
    schema = {name: bp.Tensor("uint8", (height, width, 3)) for name in names}
    schema |= {"observation.state": vector, "action": vector}
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (height // 8 + 32, width // 8 + 32, 3), dtype=np.uint8)
    texture = coarse.repeat(8, axis=0).repeat(8, axis=1)
    with bp.create(path, {**schema, "episode_index": bp.Int()}, fps=fps, videos=names) as out:
        for number in range(frames * (2 if quick else episodes)):
            shift = number % 200
            sample: Results = dict.fromkeys(names, texture[shift : shift + height, shift : shift + width])
            numbers = rng.standard_normal(joints).astype(np.float32)
            sample |= {"observation.state": numbers, "action": numbers, "episode_index": number // frames}
            out.append(sample)
    return {"path": str(path), "batch": batch, "fps": fps, "ahead": ahead, "warm-up": 1}


def main() -> None:
    args = part_arguments(__doc__ or "", PARTS, rounds=3)
    workers = len(os.sched_getaffinity(0))
    results: Results = {"workers": workers, "rounds": args.rounds}
    peers = os.environ.get("BATCHPLANT_PEERS_PYTHON", sys.executable)
    with workplace() as folder, others(results):
        for part in args.parts:
            job = make(folder / f"{part}.lerobot", part, args.quick) | {"workers": workers}
            pythons = {"batchplant": sys.executable, "LeRobot": peers}
            script = "_robot_sides.py"
            started = {
                name: partial(Side, name, python, job, folder / "log", script)
                for name, python in pythons.items()
            }
            results[part] = measure(started, args.rounds, "LeRobot")
            for name, speeds in results[part]["images/s"].items():
                print(f"{part}: {name} {speeds['median']:,.0f} samples/s", flush=True)
    save(args.out, "robots", results)


if __name__ == "__main__":
    main()
