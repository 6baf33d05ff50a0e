"""Formats of science and medicine.

medical    random patches of 128³ from .nii.gz, in random order, one thread; peer: nibabel, whose images stay
           open, with seek points (indexed_gzip) and without. The cache holds all volumes, or a few slabs
arrays     random patches of 128³ of an array in Zarr and in .b2nd, whose caches hold a few patches; peers:
           tensorstore, and blosc2, which has no cache
tiles      random tiles of 256² of a GeoTIFF, as stored and at any place, as many threads and 64 MiB of tiles
           decoded on every side; peers: rasterio, and openslide for JPEG
cells      rows of a CSR matrix in .h5ad (20,000 genes, 5 % of them not 0), in random order, batches of 1024;
           peers: anndata's backed mode with sorted rows, and scDataset, whose blocks are 1 row or 128

All sides of a part run in turn in one process, several rounds. A library that is missing is left out.
"""

from __future__ import annotations

import argparse
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from _cell_sides import cells
from _common import interleaved, others, part_arguments, save, timed, workplace

import batchplant
from batchplant.formats import nifti
from batchplant.storage.platform import cpu_count

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


def arrays(folder: Path, args: argparse.Namespace) -> Results:
    side, count = (128, 8) if args.quick else (384, 40)
    size, chunk, cache = (side // 3 // 8 * 8,) * 3, (side // 6,) * 3, 32 << 20
    rng = np.random.default_rng(1)
    values = (rng.normal(0, 400, (side // 16,) * 3).repeat(16, 0).repeat(16, 1).repeat(16, 2)).astype(
        np.int16
    )
    values += rng.integers(0, 12, values.shape, np.int16)
    starts = rng.integers(0, side - size[0], (count, 3))
    boxes = [tuple(slice(first, first + size[0]) for first in start) for start in starts.tolist()]

    def ours(path: Path, field: str) -> float:
        with batchplant.open(path, cache=cache) as reader:
            array = reader._cell_array(field, 0) or reader.array(field)
            assert np.array_equal(array[boxes[0]], values[boxes[0]])
            return timed(lambda: [array[box] for box in boxes])

    tasks: dict[str, Callable[[], float]] = {}
    try:
        import tensorstore
    except ImportError:
        print("tensorstore is not installed: the sides of Zarr are skipped")
    else:
        codecs = [{"name": "blosc", "configuration": {"cname": "zstd", "clevel": 5, "shuffle": "shuffle"}}]
        store = {"driver": "zarr3", "kvstore": f"file://{folder}/a.zarr"}
        grid = {"name": "regular", "configuration": {"chunk_shape": chunk}}
        metadata = {"data_type": "int16", "shape": values.shape, "chunk_grid": grid, "codecs": codecs}
        tensorstore.open({**store, "metadata": metadata}, create=True).result()[...] = values

        def theirs() -> float:
            context = tensorstore.Context({"cache_pool": {"total_bytes_limit": cache}})
            array = tensorstore.open(store, context=context).result()
            return timed(lambda: [array[box].read().result() for box in boxes])

        tasks |= {"zarr: batchplant": lambda: ours(folder / "a.zarr", "data"), "zarr: tensorstore": theirs}
    try:
        import blosc2
    except ImportError:
        print("blosc2 is not installed: the sides of .b2nd are skipped")
    else:
        blocks = tuple(length // 2 for length in chunk)
        path = folder / "a.b2nd"
        blosc2.asarray(values, urlpath=str(path), chunks=chunk, blocks=blocks)

        def opened() -> float:
            array = blosc2.open(str(path), mode="r", mmap_mode="r")
            return timed(lambda: [array[box] for box in boxes])

        tasks |= {"b2nd: batchplant": lambda: ours(path, "image"), "b2nd: blosc2": opened}
    for task in tasks.values():
        task()
    return {"patches": count, "side": size[0], "seconds": interleaved(tasks, args.rounds)}


TILE, CACHE_BYTES = 256, 64 << 20
KINDS: dict[str, dict[str, Any]] = {
    "raw": {}, "deflate": {"compression": "zlib", "predictor": True},
    "jpeg": {"compression": "jpeg", "compressionargs": {"level": 85}},
}  # fmt: skip


def tiles(folder: Path, args: argparse.Namespace) -> Results:
    import tifffile

    side, count, threads = (1024, 40, cpu_count()) if args.quick else (6144, 800, cpu_count())
    rng = np.random.default_rng(1)
    y, x = np.mgrid[:side, :side]
    smooth = (np.sin(x / 97) + np.cos(y / 61) + 2) * 50
    image = np.stack([smooth + 10 * n + rng.integers(0, 12, smooth.shape) for n in range(3)], -1)
    image = image.astype(np.uint8)
    places = {
        "as stored": rng.integers(0, side // TILE, (count, 2)) * TILE,
        "anywhere": rng.integers(0, side - TILE, (count, 2)),
    }
    results: Results = {"tiles": count, "threads": threads}
    for kind, options in KINDS.items():
        path = folder / f"{kind}.tif"
        tifffile.imwrite(path, image, tile=(TILE, TILE), photometric="rgb", metadata=None, **options)
        for where, starts in places.items():
            tasks = _tile_tasks(path, starts, threads, kind == "jpeg")
            for task in tasks.values():
                task()
            results[f"{kind}, {where}"] = {"seconds": interleaved(tasks, args.rounds)}
    return results


def _tile_tasks(path: Path, starts: Any, threads: int, jpeg: bool) -> dict[str, Callable[[], float]]:
    size = (TILE, TILE)

    def ours() -> float:
        with batchplant.open(path, cache=CACHE_BYTES) as reader:
            array = reader.array("data")
            out = np.empty((64, *size, 3), np.uint8)

            def work() -> None:
                for first in range(0, len(starts), len(out)):
                    array.read_boxes(starts[first : first + len(out)], size, out)

            return timed(work)

    def parallel(read: Callable[[Any], Any]) -> float:
        with ThreadPoolExecutor(threads) as pool:
            return timed(lambda: deque(pool.map(read, starts), 0))

    tasks = {"batchplant": ours}
    try:
        os.environ["GDAL_CACHEMAX"] = str(CACHE_BYTES >> 20)
        import rasterio
        from rasterio.windows import Window
    except ImportError:
        print("rasterio is not installed: its side is skipped")
    else:
        # A dataset of GDAL is for one thread.
        local = threading.local()

        def window(start: Any) -> Any:
            if not hasattr(local, "file"):
                local.file = rasterio.open(path)
            return local.file.read(window=Window(start[1], start[0], *size))

        same = batchplant.open(path).array("data")[: size[0], : size[1]]
        assert jpeg or np.array_equal(np.moveaxis(window((0, 0)), 0, -1), same)
        tasks["rasterio"] = lambda: parallel(window)
    try:
        import openslide
    except ImportError:
        print("openslide is not installed: its side is skipped")
    else:
        if jpeg:
            slide = openslide.OpenSlide(str(path))
            slide.set_cache(openslide.OpenSlideCache(CACHE_BYTES))
            tasks["openslide"] = lambda: parallel(
                lambda start: np.asarray(slide.read_region((int(start[1]), int(start[0])), 0, size))
            )
    return tasks


PARTS = {"medical": medical, "arrays": arrays, "tiles": tiles, "cells": cells}


def main() -> None:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--cells", type=int, default=1_000_000, help="rows of the sparse matrix")

    args = part_arguments(__doc__ or "", PARTS, rounds=3, add=add)
    results: Results = {"rounds": args.rounds}
    with workplace() as folder, others(results):
        for part in args.parts:
            (folder / part).mkdir()
            results[part] = PARTS[part](folder / part, args)
    save(args.out, "science", results)


if __name__ == "__main__":
    main()
