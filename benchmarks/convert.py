"""Converting a folder of JPEGs to .beton, beside `cp -r` and beside FFCV's DatasetWriter.

Pass-through (the JPEGs are kept) is compared with `cp -r` of the same files; re-encoding at a bounded
resolution with FFCV doing the same on as many workers. One run, in turn, warm cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from _common import arguments, ffcv_python, interleaved, others, photos, rates, save, timed, workplace

import batchplant

FFCV_SIDE = """
import os, sys, time
from PIL import Image
from ffcv.fields import IntField, RGBImageField
from ffcv.writer import DatasetWriter

class Folder:
    def __init__(self, root):
        classes = sorted(name for name in os.listdir(root) if not name.startswith("."))
        self.items = [(os.path.join(root, name, file), label) for label, name in enumerate(classes)
                      for file in sorted(os.listdir(os.path.join(root, name)))]
    def __len__(self):
        return len(self.items)
    def __getitem__(self, index):
        path, label = self.items[index]
        return Image.open(path), label

root, target, longest, workers = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
image = RGBImageField(write_mode="jpg", max_resolution=longest, jpeg_quality=90)
fields = {"image": image, "label": IntField()}
folder = Folder(root)
began = time.perf_counter()
DatasetWriter(target, fields, num_workers=workers).from_indexed_dataset(folder, chunksize=20)
print("seconds", time.perf_counter() - began)
"""


def copy(source: Path, target: Path) -> float:
    shutil.rmtree(target, ignore_errors=True)
    return timed(lambda: subprocess.run(["cp", "-r", source, target], check=True))


def ours(source: Path, target: Path, workers: int, **images: Any) -> float:
    target.unlink(missing_ok=True)
    options = batchplant.ImageOptions(**images)
    return timed(
        lambda: batchplant.convert(
            source, target, images=options, options=batchplant.ConvertOptions(workers=workers)
        )
    )


def ffcv(python: str, source: Path, target: Path, longest: int, workers: int) -> float:
    target.unlink(missing_ok=True)
    command = [python, "-c", FFCV_SIDE, str(source), str(target), str(longest), str(workers)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split("seconds")[-1])


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--small", type=int, default=6000, help="256-px images (default 6000)")
    parser.add_argument("--large", type=int, default=2000, help="500-px images (default 2000)")
    args = parser.parse_args()
    workers = len(os.sched_getaffinity(0))
    python = ffcv_python()
    results: dict[str, Any] = {"pass-through": {}, "re-encode": {}}
    with workplace() as folder, others(results):
        target = folder / "out.beton"
        for size, count in ((256, args.small), (500, args.large)):
            source = folder / f"photos{size}"
            print(f"making {count} images of {size} px")
            photos().make_folder(source, count, size=size)
            print(f"pass-through, {count} JPEGs of {size} px")
            result = interleaved(
                {
                    "cp -r": lambda source=source: copy(source, folder / "copied"),
                    "batchplant": lambda source=source: ours(source, target, workers),
                },
                args.rounds,
            )
            results["pass-through"][f"{size} px"] = rates(result, count, "cp -r")
            print(f"decode, bound to {size * 4 // 5} px, encode as JPEG 90, {workers} workers")
            tasks = {
                "batchplant": lambda source=source, size=size: ours(
                    source, target, workers, write_mode="jpg", reencode=True, max_resolution=size * 4 // 5
                )
            }
            if python is not None:
                tasks["FFCV"] = lambda source=source, size=size: ffcv(
                    python, source, folder / "ffcv.beton", size * 4 // 5, workers
                )
            results["re-encode"][f"{size} px"] = rates(interleaved(tasks, args.rounds), count, "FFCV")
    save(args.out, "convert", results)


if __name__ == "__main__":
    main()
