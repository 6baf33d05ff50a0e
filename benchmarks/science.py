"""Formats of science and medicine.

medical    random patches of 128³ from .nii.gz, in random order, one thread; peer: nibabel, whose images stay
           open, with seek points (indexed_gzip) and without. The cache holds all volumes, or a few slabs

All sides of a part run in turn in one process, several rounds. A library that is missing is left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _common import interleaved, others, part_arguments, save, timed, workplace

import batchplant
from batchplant.formats import nifti

Results = dict[str, Any]


def medical(folder: Path, args: argparse.Namespace) -> Results:
    side, volumes, patches = (96, 2, 6) if args.quick else (256, 3, 24)
    size = (side // 2,) * 3
    rng = np.random.default_rng(1)
    for number in range(volumes):
        # As CT: smooth, with noise in the lowest bits.
        low = (
            rng.normal(0, 400, (side // 16, side // 16, side // 20)).repeat(16, 0).repeat(16, 1).repeat(16, 2)
        )
        values = (low + rng.normal(0, 12, low.shape)).astype(np.int16)
        nifti.save(folder / f"{number}.nii.gz", values)
    tasks: dict[str, Callable[[], float]] = {}
    order = np.random.default_rng(2).permutation(patches)
    boxes = batchplant.VolumePatches(str(folder), size=size, random=patches // volumes, seed=3)
    for name, cache in (("batchplant", None), ("batchplant, small cache", 32 << 20)):
        reader = batchplant.open(folder, **({} if cache is None else {"cache": cache}))
        cut = batchplant.VolumePatches(reader, size=size, random=patches // volumes, seed=3)
        tasks[name] = lambda cut=cut: timed(lambda: [cut.read([row], ["image"]) for row in order])  # type: ignore[misc]
    try:
        import nibabel
        from nibabel import openers
    except ImportError:
        print("nibabel is not installed: its sides are skipped")
    else:
        places = boxes.read(order, ["position", "volume"])
        files = [str(folder / f"{number}.nii.gz") for number in range(volumes)]

        def read(indexed: bool) -> float:
            openers.HAVE_INDEXED_GZIP = indexed
            images = [nibabel.load(file, keep_file_open=True) for file in files]

            def work() -> None:
                for start, volume in zip(places["position"], places["volume"], strict=True):
                    box = tuple(
                        slice(first, first + length) for first, length in zip(start, size, strict=True)
                    )
                    np.ascontiguousarray(images[int(volume)].dataobj[box])

            return timed(work)

        tasks["nibabel, indexed_gzip"] = lambda: read(True)
        tasks["nibabel"] = lambda: read(False)
    for task in tasks.values():
        task()
    stored = sum(file.stat().st_size for file in folder.glob("*.nii.gz"))
    return {
        "volumes": volumes,
        "MB": stored / 1e6,
        "patches": patches,
        "seconds": interleaved(tasks, args.rounds),
    }


PARTS = {"medical": medical}


def main() -> None:
    args = part_arguments(__doc__ or "", PARTS, rounds=3)
    results: Results = {"rounds": args.rounds}
    with workplace() as folder, others(results):
        for part in args.parts:
            (folder / part).mkdir()
            results[part] = PARTS[part](folder / part, args)
    save(args.out, "science", results)


if __name__ == "__main__":
    main()
