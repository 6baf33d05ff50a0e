"""Random patches out of Zarr arrays of some 300 MB beside tensorstore, by format, codec and cache.

A volume of uint16 gives patches of 32³, an image of three bytes a pixel patches of 64². Both sides read the
same patches in the same order with the same bytes of cache for decoded chunks: once a quarter of the array,
once more than the array takes. Our Loader makes batches of 32; tensorstore reads the 32 patches of a batch
side by side and stacks them. `array[...]` and tensorstore's `array[...].read().result()` read patch by patch.

Wall time is that of a machine that others may share; processor time says what a patch costs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _common import arguments, others, save, workplace

import batchplant as bp

BATCH, PATCHES = 32, 2048
CACHES = {"a quarter": 64 << 20, "all": 512 << 20}
# How many times as fast as tensorstore is wanted.
WANTED = 1.5
SIDES = {"Loader": "tensorstore, batches", "array[...]": "tensorstore, one by one"}
# Title: Zarr version, codec, chunks in a shard along each axis, whether it is an image.
ARRAYS: dict[str, tuple[int, str, int, bool]] = {
    "Zarr 2, Blosc (LZ4)": (2, "blosc", 1, False),
    "Zarr 3, Zstandard": (3, "zstd", 1, False),
    "Zarr 3, Blosc (Zstandard)": (3, "blosc", 1, False),
    "Zarr 3, none": (3, "none", 1, False),
    "sharded Zarr 3, Zstandard": (3, "zstd", 8, False),
    "Zarr 2, Blosc (LZ4), image": (2, "blosc", 1, True),
    "Zarr 3, Zstandard, image": (3, "zstd", 1, True),
    "sharded Zarr 3, Zstandard, image": (3, "zstd", 4, True),
}
Task = Callable[[], tuple[float, float]]


def values(image: bool, small: bool) -> Any:
    """A smooth volume or image with noise, as a scan or a photo has."""
    rng = np.random.default_rng(0)
    if image:
        height, width = (1024, 1024) if small else (8192, 12288)
        out = np.empty((height, width, 3), np.uint8)
        across = np.cos(np.arange(width) / 67)[None, :, None] * 60 + 128
        for first in range(0, height, 256):
            down = np.sin(np.arange(first, first + 256) / 91)[:, None, None] * 60
            out[first : first + 256] = down + across + rng.normal(0, 3, (256, width, 3)).astype(np.float32)
        return out
    side = 128 if small else 512
    volume = np.empty((side,) * 3, np.uint16)
    plane = np.sin(np.arange(side) / 37)[:, None] * np.cos(np.arange(side) / 53)[None, :] * 800
    for first in range(0, side, 64):
        heights = np.cos(np.arange(first, first + 64) / 71)[:, None, None]
        noise = rng.normal(1000, 4, (64, side, side)).astype(np.float32)
        volume[first : first + 64] = heights * plane + noise
    return volume


def make(path: Path, title: str, small: bool) -> None:
    import numcodecs
    import zarr
    from zarr.codecs import BloscCodec, ZstdCodec

    version, codec, shard, image = ARRAYS[title]
    array = values(image, small)
    chunk = (256, 256, 3) if image else (32,) * 3 if shard > 1 else (64,) * 3
    codecs: dict[str, Any] = {
        "none": None,
        "zstd": ZstdCodec(level=0),
        "blosc": numcodecs.Blosc("lz4", 5, 1) if version == 2 else BloscCodec(cname="zstd", clevel=5),
    }
    shards = tuple(min(size * shard, whole) for size, whole in zip(chunk, array.shape, strict=True))
    stored = zarr.create_array(
        store=str(path), shape=array.shape, dtype=array.dtype, chunks=chunk, zarr_format=version,
        compressors=codecs[codec], shards=shards if shard > 1 else None,
    )  # fmt: skip
    stored[...] = array


def spent(work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of wall and of processor time."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def measured(path: Path, title: str, cache: int, count: int, rounds: int) -> dict[str, Any]:
    import tensorstore

    version, _, _, image = ARRAYS[title]
    size = (64, 64) if image else (32,) * 3

    def patches() -> bp.Patches:
        return bp.Patches(bp.open(path, cache=cache), "data", size=size, random=count, seed=1)

    with patches() as data:
        loader = bp.Loader(data, BATCH, order="random", seed=1)
        starts = np.concatenate([batch["position"] for batch in loader]).tolist()
        loader.close()
    cuts = [tuple(slice(at, at + n) for at, n in zip(start, size, strict=True)) for start in starts]

    def load() -> tuple[float, float]:
        with patches() as data:
            loader = bp.Loader(data, BATCH, order="random", seed=1)
            result = spent(lambda: [None for _ in loader])
            loader.close()
        return result

    def index() -> tuple[float, float]:
        with bp.open(path, cache=cache) as data:
            array = data.array("data")
            return spent(lambda: [array[cut].shape for cut in cuts])

    def theirs() -> Any:
        driver = "zarr" if version == 2 else "zarr3"
        spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{path}/"}}
        context = tensorstore.Context({"cache_pool": {"total_bytes_limit": cache}})
        return tensorstore.open(spec, context=context, read=True).result()

    def their_batches() -> tuple[float, float]:
        array = theirs()

        def run() -> None:
            for first in range(0, len(cuts), BATCH):
                coming = [array[cut].read() for cut in cuts[first : first + BATCH]]
                np.stack([item.result() for item in coming])

        return spent(run)

    def their_patches() -> tuple[float, float]:
        array = theirs()
        return spent(lambda: [array[cut].read().result().shape for cut in cuts])

    tasks: dict[str, Task] = {
        "Loader": load, "tensorstore, batches": their_batches,
        "array[...]": index, "tensorstore, one by one": their_patches,
    }  # fmt: skip
    seconds: dict[str, list[tuple[float, float]]] = {side: [] for side in tasks}
    for _ in range(rounds):
        for side, task in tasks.items():
            seconds[side].append(task())
    kinds: dict[str, Callable[[list[float]], float]] = {"best": min, "median": statistics.median}
    rates = {
        side: {
            clock: {kind: count / of([item[n] for item in second]) for kind, of in kinds.items()}
            for n, clock in enumerate(("wall", "cpu"))
        }
        for side, second in seconds.items()
    }
    ratios = {
        mine: {
            clock: {kind: rates[mine][clock][kind] / rates[peer][clock][kind] for kind in kinds}
            for clock in ("wall", "cpu")
        }
        for mine, peer in SIDES.items()
    }
    for mine, ratio in ratios.items():
        text = ", ".join(
            f"{clock} {value['best']:.2f} (median {value['median']:.2f})" for clock, value in ratio.items()
        )
        print(f"  {mine} : tensorstore: {text}", flush=True)
    return {"patches/s": rates, "ratio to tensorstore": ratios}


def main() -> None:
    parser = arguments(__doc__ or "", rounds=3)
    parser.add_argument("--quick", action="store_true", help="little data, two rounds")
    parser.add_argument("--folder", type=Path, help="keep the arrays there, and find them again")
    args = parser.parse_args()
    count, rounds = (64, 2) if args.quick else (PATCHES, args.rounds)
    results: dict[str, Any] = {"patches": count, "rounds": rounds, "wanted": WANTED, "cases": {}}
    with workplace() as temporary, others(results):
        folder = args.folder or temporary
        for title in ARRAYS:
            path = folder / f"{title}.zarr"
            if not path.exists():
                make(path, title, args.quick)
            for part, cache in CACHES.items():
                print(f"{title}, cache for {part} of it", flush=True)
                result = measured(path, title, cache, count, rounds)
                results["cases"][f"{title}, {part}"] = {
                    "title": title,
                    "cache": cache,
                    "part": part,
                    **result,
                }
    if not args.quick:
        save(args.out, "chunks", results)


if __name__ == "__main__":
    main()
