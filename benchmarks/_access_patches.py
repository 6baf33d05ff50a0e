"""Random patches of 64³ out of a Zarr volume of 2 GB in chunks of 64³, beside zarr-python and tensorstore.

All sides give batches of 32 patches from the same array, with the same bound on unpacked chunks in memory
(zarr-python keeps none). batchplant's loader shuffles by blocks of chunks (quasi_random); the others read
patches at random, and tensorstore once more in the order that our loader has chosen.

Part of access.py; alone: python benchmarks/_access_patches.py [--quick] [--rounds N]
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _common import arguments, interleaved, others, save, timed, workplace

import batchplant as bp

SIDE, CHUNK, BATCH = 1024, 64, 32
CACHE = 256 << 20
# Patches of an epoch: as many values as the volume has. The slower sides read the first of them.
PATCHES, FEWER = 4096, 512
# How many times as fast as the other is wanted.
WANTED = {"zarr-python": 5.0, "tensorstore": 2.0}
Task = Callable[[], float]


def there(library: str) -> bool:
    if importlib.util.find_spec(library) is not None:
        return True
    print(f"{library} is not installed: its side is skipped")
    return False


def make(path: Path, side: int) -> None:
    """A smooth volume with noise, as a scan has, packed as zarr-python does it by default."""
    import zarr

    array = zarr.create_array(
        store=str(path), shape=(side,) * 3, chunks=(CHUNK,) * 3, dtype="uint16", overwrite=True
    )
    rng = np.random.default_rng(0)
    axis = np.arange(side)
    plane = np.sin(axis / 37)[:, None] * np.cos(axis / 53)[None, :] * 800
    for first in range(0, side, CHUNK):
        heights = np.cos(np.arange(first, first + CHUNK) / 71)[:, None, None]
        noise = rng.normal(1000, 4, (CHUNK, side, side)).astype(np.float32)
        array[first : first + CHUNK] = (heights * plane + noise).astype(np.uint16)


def cut(start: Any) -> tuple[slice, ...]:
    return tuple(slice(int(at), int(at) + CHUNK) for at in start)


def patches_of(path: Path, count: int) -> bp.Patches:
    """With an empty cache."""
    return bp.Patches(bp.open(path, cache=CACHE), "data", size=(CHUNK,) * 3, random=count, seed=1)


def ours(path: Path, count: int, order: str, most: int) -> float:
    """The seconds that ``count`` patches take, measured on ``most`` of them."""
    with patches_of(path, count) as data:
        loader = bp.Loader(data, BATCH, order=order, seed=1)

        def run() -> None:
            for _ in itertools.islice(loader, most // BATCH):
                pass

        result = timed(run) * count / most
        loader.close()
    return result


def zarrs(path: Path, starts: Any, count: int) -> float:
    import zarr

    array = zarr.open_array(str(path), mode="r")

    def run() -> None:
        for first in range(0, len(starts), BATCH):
            np.stack([array[cut(start)] for start in starts[first : first + BATCH]])

    return timed(run) * count / len(starts)


def tensorstores(path: Path, starts: Any, count: int) -> float:
    import tensorstore

    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}}
    context = tensorstore.Context({"cache_pool": {"total_bytes_limit": CACHE}})
    array = tensorstore.open(spec, context=context, read=True).result()

    def run() -> None:
        for first in range(0, len(starts), BATCH):
            # All of a batch are under way at a time.
            coming = [array[cut(start)].read() for start in starts[first : first + BATCH]]
            np.stack([item.result() for item in coming])

    return timed(run) * count / len(starts)


def run(folder: Path, rounds: int, *, quick: bool = False) -> dict[str, Any]:
    """Patches per second of each side, and how many times as fast as the others we are."""
    if not there("zarr"):
        return {}
    side, count, fewer = (256, 64, 64) if quick else (SIDE, PATCHES, FEWER)
    path = folder / "volume.zarr"
    print(f"patches: a volume of {side}³ in chunks of {CHUNK}³, {count:,} patches of {CHUNK}³", flush=True)
    if not path.exists():
        make(path, side)
    with patches_of(path, count) as data:
        loader = bp.Loader(data, BATCH, order="quasi_random", seed=1)
        chosen = np.concatenate([batch["position"] for batch in itertools.islice(loader, fewer // BATCH)])
        loader.close()
        every = data.read(range(count), ["position"])["position"]
    at_random = np.random.default_rng(2).permutation(every)[:fewer]
    tasks: dict[str, Task] = {
        "batchplant": lambda: ours(path, count, "quasi_random", count),
        "batchplant, random": lambda: ours(path, count, "random", fewer),
        "zarr-python": lambda: zarrs(path, at_random, count),
    }
    if there("tensorstore"):
        tasks["tensorstore"] = lambda: tensorstores(path, at_random, count)
        tasks["tensorstore, our order"] = lambda: tensorstores(path, chosen, count)
    result = interleaved(tasks, rounds)
    speeds = {name: {key: count / value[key] for key in ("best", "median")} for name, value in result.items()}
    ratios = {
        name: {key: speeds["batchplant"][key] / speeds[name][key] for key in ("best", "median")}
        for name in speeds
        if name != "batchplant"
    }
    for name, speed in speeds.items():
        print(f"  {name}: best {speed['best']:,.0f}, median {speed['median']:,.0f} patches/s")
    for name, ratio in ratios.items():
        wanted = f" (at least {WANTED[name]:g})" if name in WANTED else ""
        print(f"  batchplant : {name}: best {ratio['best']:.2f}, median {ratio['median']:.2f}{wanted}")
    return {"patches": count, "patches/s": speeds, "ratio to": ratios, "wanted": WANTED, "cache": CACHE}


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--quick", action="store_true", help="little data, two rounds")
    parser.add_argument("--folder", type=Path, help="keep the volume there, and find it again")
    args = parser.parse_args()
    results: dict[str, Any] = {}
    with workplace() as folder, others(results):
        rounds = 2 if args.quick else args.rounds
        results["patches"] = run(args.folder or folder, rounds, quick=args.quick)
    if not args.quick:
        save(args.out, "access_patches", results)


if __name__ == "__main__":
    main()
