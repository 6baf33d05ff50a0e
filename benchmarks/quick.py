"""Has anything become slower? Ratios to memcpy, libjpeg-turbo and Pillow, beside those measured before.

`make bench-quick` takes a minute or two. Each case is one path through the library on one thread, beside
references that do the same work or move the same bytes. All take turns; processor time counts, and of several
rounds the best, so that other programs disturb little. results/quick.json has the ratios of every kind of
processor that was measured: one that has fallen by more than the noise is an error, and the script ends with
status 1. `--update` writes down what was measured here.
"""

from __future__ import annotations

import io
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _common import RESULTS, arguments, machine, workplace
from _common import photos as photo_maker
from PIL import Image

import batchplant
from batchplant import ConvertOptions, ImageOptions, Loader, Pack, _native
from batchplant.ops import RandomResizedCrop

# What a ratio varies by between runs of the same program.
NOISE = 0.15
OURS = "batchplant"
BATCH, CROP, ROW = 64, 224, 1024
ROWS, TOKENS = 400_000, 4096 * 1024

photos = photo_maker()
Task = Callable[[], Any]
Ratios = dict[str, dict[str, float]]


# --- the cases ----------------------------------------------------------------------------------------------


def image_cases(folder: Path) -> dict[str, dict[str, Task]]:
    cases: dict[str, dict[str, Task]] = {}
    for side, count in ((256, 512), (500, 192)):
        cells = jpegs(count, side)
        path = written(folder / f"jpeg-{side}.tar", batchplant.Image(), cells)
        cases[f"JPEG {side} px, decoded and cropped"] = {
            OURS: epoch(path, pipelines={"x": [RandomResizedCrop(CROP)]}),
            "libjpeg-turbo": lambda cells=cells: [_native.jpeg_decode(cell, "RGB") for cell in cells],
            "Pillow": lambda cells=cells: [resized(Image.open(io.BytesIO(cell))) for cell in cells],
        }
        if side == 500:
            cases["JPEG 500 px, converted to 256 px"] = {
                OURS: lambda path=path: batchplant.convert(
                    path,
                    folder / "small.beton",
                    images=ImageOptions(max_resolution=256, write_mode="jpg"),
                    options=ConvertOptions(workers=1),
                    overwrite=True,
                ),
                "Pillow": lambda cells=cells: [reencoded(Image.open(io.BytesIO(cell))) for cell in cells],
            }
    pixels = [photos.photo(index, width=256, height=256) for index in range(512)]
    path = written(folder / "raw.beton", batchplant.Image(), pixels, write_mode="raw")
    cases["raw images of 256 px, cropped"] = {
        OURS: epoch(path, pipelines={"x": [RandomResizedCrop(CROP)]}),
        "Pillow": lambda: [resized(Image.fromarray(image)) for image in pixels],
    }
    return cases


def array_cases(folder: Path) -> dict[str, dict[str, Task]]:
    rng = np.random.default_rng(0)
    cells = rng.integers(0, 256, (4096, 20_000), np.uint8)
    path = written(folder / "records.tar", batchplant.Bytes(), [cell.tobytes() for cell in cells])
    cases = {"records of 20 KB in .tar": {OURS: epoch(path), "memcpy": copying(cells)}}

    tokens = rng.integers(0, 50_000, TOKENS, np.uint16)
    path = folder / "tokens.idx"
    with batchplant.create(path, {"tokens": batchplant.Tensor("uint16", (None,))}) as writer:
        for document in np.split(tokens, np.sort(rng.choice(TOKENS, TOKENS // 500, replace=False))):
            writer.append({"tokens": document})
    cases[f"documents packed into rows of {ROW} tokens"] = {
        OURS: epoch(path, pack=Pack(ROW, eos=0, outputs=())),
        "memcpy": copying(tokens.reshape(-1, ROW).astype(np.int64)),
    }

    table = {f"c{number}": rng.random(ROWS, np.float32) for number in range(16)}
    batchplant.convert(batchplant.open(table), folder / "table.parquet")
    cases["rows of 16 columns in Parquet"] = {
        OURS: epoch(folder / "table.parquet", batch=4096),
        "memcpy": copying(np.stack(list(table.values()), 1), batch=4096),
    }
    return cases


def written(path: Path, kind: batchplant.Kind, values: Any, **options: Any) -> Path:
    with batchplant.create(path, {"x": kind}, **options) as writer:
        for value in values:
            writer.append({"x": value})
    return path


def epoch(path: Path, batch: int = BATCH, **options: Any) -> Task:
    loader = Loader(path, batch, order="random", workers=1, **options)

    def run() -> None:
        for _ in loader:
            pass

    return run


def copying(rows: np.ndarray[Any, Any], batch: int = BATCH) -> Task:
    """Return a task that copies the rows, in random order, into new batches."""
    order = np.random.default_rng(0).permutation(len(rows))
    return lambda: [rows[order[start : start + batch]] for start in range(0, len(rows), batch)]


def jpegs(count: int, side: int) -> list[bytes]:
    cells = []
    for index in range(count):
        buffer = io.BytesIO()
        image = Image.fromarray(photos.photo(index, width=side, height=side * 3 // 4))
        image.save(buffer, "JPEG", quality=90)
        cells.append(buffer.getvalue())
    return cells


def resized(image: Image.Image) -> Any:
    return np.asarray(image.resize((CROP, CROP), Image.Resampling.BILINEAR))


def reencoded(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.thumbnail((256, 256), Image.Resampling.BILINEAR)
    image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


# --- measuring ----------------------------------------------------------------------------------------------


def ratios_of(tasks: dict[str, Task], rounds: int) -> dict[str, float]:
    """Measure the tasks in turn; return how many times as fast as each reference ours is."""
    best = dict.fromkeys(tasks, math.inf)
    # The first round fills caches.
    for _ in range(rounds + 1):
        for name, task in tasks.items():
            began = time.process_time()
            task()
            best[name] = min(best[name], time.process_time() - began)
    return {name: seconds / best[OURS] for name, seconds in best.items() if name != OURS}


def slower(case: str, ratios: dict[str, float], known: dict[str, float]) -> bool:
    """Print the ratios of a case; return whether one of them has fallen by more than the noise."""
    is_slower = False
    for reference, ratio in ratios.items():
        before = known.get(reference)
        verdict = ""
        if before is not None:
            change = ratio / before - 1
            verdict = f"before {before:6.2f}, {change:+.0%}"
            if change < -NOISE:
                is_slower = True
                verdict += "  SLOWER"
        print(f"{case:<42} {ratio:6.2f} × {reference:<16} {verdict}", flush=True)
    return is_slower


def main() -> int:
    parser = arguments(__doc__ or "", rounds=5)
    parser.add_argument("--update", action="store_true", help="write down the ratios of this processor")
    args = parser.parse_args()
    path = RESULTS / "quick.json"
    results: dict[str, Ratios] = json.loads(path.read_text()) if path.exists() else {}
    cpu = machine()["cpu"]
    known = results.get(cpu, {})
    if not known:
        print(f"No results of {cpu}: nothing to compare with (--update writes them)")
    measured: Ratios = {}
    are_slower = 0
    with workplace() as folder:
        for case, tasks in {**image_cases(folder), **array_cases(folder)}.items():
            measured[case] = ratios_of(tasks, args.rounds)
            if slower(case, measured[case], known.get(case, {})):
                # Once more: another program may have taken the caches of this processor.
                measured[case] = ratios_of(tasks, args.rounds)
                are_slower += slower(case, measured[case], known[case])
    if args.update:
        path.write_text(json.dumps(results | {cpu: measured}, indent=2) + "\n")
        print(f"wrote {path}")
        return 0
    return int(are_slower > 0)


if __name__ == "__main__":
    sys.exit(main())
