"""A cache of decoded images: an epoch from it beside the same images stored raw, and without it.

Part of access.py; alone: python benchmarks/_access_decoded.py [--quick] [--rounds N]
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from _common import arguments, interleaved, photos, timed, workplace

import batchplant as bp
from batchplant.ops import CenterCrop, ChannelsFirst, Normalize, RandomHorizontalFlip, RandomResizedCrop

BATCH, CROP, SIZE, COUNT = 256, 224, 500, 1536
# Of raw speed, what an epoch from the cache has to reach.
WANTED = 0.8
RANDOM = [RandomResizedCrop(CROP), RandomHorizontalFlip()]
FIXED = [
    CenterCrop(CROP), RandomHorizontalFlip(), Normalize([124, 116, 104], [58, 57, 57]), ChannelsFirst(),
]  # fmt: skip
CASES = {"random crop, flip": RANDOM, "centre crop, flip, normalised": FIXED}


def make(folder: Path, count: int) -> tuple[Path, Path]:
    """The same images as JPEG, and as raw pixels."""
    encoded, raw = folder / "jpeg.beton", folder / "raw.beton"
    photos().make_folder(folder / "photos", count, size=SIZE)
    bp.convert(folder / "photos", encoded)
    with bp.open(encoded) as reader, bp.create(raw, reader.schema, write_mode="raw") as out:
        for number in range(len(reader)):
            out.append(reader[number])
    return encoded, raw


def epoch(loader: bp.Loader) -> float:
    """The seconds of one."""

    def run() -> None:
        for _ in loader:
            pass

    return timed(run)


def run(folder: Path, rounds: int, *, quick: bool = False) -> dict[str, Any]:
    """Images per second of each side, and the cache's speed as a share of raw."""
    count = 128 if quick else COUNT
    encoded, raw = make(folder, count)
    results: dict[str, Any] = {}
    for title, steps in CASES.items():
        print(f"decoded cache: {title}", flush=True)
        sides: dict[str, tuple[Path, dict[str, Any]]] = {
            "raw": (raw, {}),
            "cache in memory": (encoded, {"cache": "decoded"}),
            "cache in a file": (encoded, {"cache": bp.DecodedCache(dir=folder / "cache")}),
            "without": (encoded, {}),
        }
        with ExitStack() as stack:
            tasks: dict[str, Callable[[], float]] = {}
            for name, (path, options) in sides.items():
                pipelines = {"image": steps}
                loader = bp.Loader(path, BATCH, order="random", pipelines=pipelines, **options)
                stack.callback(loader.close)
                # The first epoch fills the cache, and warms that of the system.
                epoch(loader)
                if "cache" in options:
                    assert loader.stats()["cache share"] == 1
                tasks[name] = functools.partial(epoch, loader)
            result = interleaved(tasks, rounds)
        speeds = {
            name: {key: count / value[key] for key in ("best", "median")} for name, value in result.items()
        }
        shares = {
            name: {key: speeds[name][key] / speeds["raw"][key] for key in ("best", "median")}
            for name in ("cache in memory", "cache in a file")
        }
        for name, share in shares.items():
            print(
                f"  {name}: best {share['best']:.2f}, median {share['median']:.2f} of raw (at least {WANTED})"
            )
        results[title] = {"images": count, "images/s": speeds, "share of raw": shares, "wanted": WANTED}
    return results


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--quick", action="store_true", help="little data, two rounds")
    args = parser.parse_args()
    with workplace() as folder:
        done = run(folder, 2 if args.quick else args.rounds, quick=args.quick)
    print(json.dumps(done, indent=2))


if __name__ == "__main__":
    main()
