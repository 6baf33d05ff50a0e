"""Arrays: rows of a fixed size in random order, beside a plain copy, or beside reads row by row.

copies    rows of 12 KB, uncompressed, in random batches of 256: NPY, HDF5, Zarr, Arrow, beside memcpy
chunks    compressed chunks in quasi-random order, beside h5py and zarr read row by row in random order

All sides of a part run in turn in one process, several rounds, from a warm cache. A library that is not
installed is left out, and said so.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _common import all_of, interleaved, others, part_arguments, save, timed, workplace

import batchplant
from batchplant import _native
from batchplant.loading.loader import Loader

BATCH, ROW = 256, (32, 32, 3)
NEEDS = {"hdf5": "h5py", "zarr": "zarr", "arrow": "pyarrow"}
Found = dict[str, Any]
Task = Callable[[], float]


def there(format: str) -> bool:
    library = NEEDS.get(format)
    if library is None or importlib.util.find_spec(library) is not None:
        return True
    print(f"{library} is not installed: {format} is skipped")
    return False


def speeds(seconds: dict[str, dict[str, float]], count: int) -> Found:
    return {
        name: {key: count / second[key] for key in ("best", "median")} for name, second in seconds.items()
    }


def copies(folder: Path, args: argparse.Namespace) -> Found:
    rows = 2_000 if args.quick else 50_000
    data = np.random.default_rng(0).random((rows, *ROW), dtype=np.float32)
    targets: dict[str, tuple[str, dict[str, Any]]] = {
        "npy": ("x.npy", {}),
        "hdf5": ("x.h5", {"compression": "none"}),
        "zarr": ("x.zarr", {"compression": "none"}),
        "arrow": ("x.arrow", {}),
    }
    order = np.random.default_rng(1).permutation(rows)
    batches = [order[first : first + BATCH] for first in range(0, rows - BATCH + 1, BATCH)]
    starts = np.arange(rows, dtype=np.int64) * data[0].nbytes
    flat = data.reshape(-1).view(np.uint8)
    into = np.empty(BATCH * data[0].nbytes, np.uint8)
    places = starts[:BATCH]
    size = np.full(BATCH, data[0].nbytes, dtype=np.int64)

    def plain() -> None:
        for batch in batches:
            _native.copy_runs(flat, starts[batch], size, into, places)

    tasks: dict[str, Task] = {"memcpy": lambda: timed(plain)}
    for format, (name, options) in targets.items():
        if not there(format):
            continue
        schema = {"data": batchplant.Tensor("float32", ROW)}
        with batchplant.create(folder / name, schema, **options) as out:
            out.append(batchplant.Columns(data=data))
        reader = batchplant.open(folder / name)
        field = next(iter(reader.schema))
        tasks[format] = lambda reader=reader, field=field: timed(
            lambda: all_of(lambda batch: reader.read(batch, [field]), batches)
        )
    print(f"copies: {rows:,} rows of {data[0].nbytes / 1000:.0f} KB in random batches of {BATCH}", flush=True)
    for task in tasks.values():
        task()
    result = speeds(interleaved(tasks, args.rounds), len(batches) * BATCH)
    share = {
        name: {key: value[key] / result["memcpy"][key] for key in value} for name, value in result.items()
    }
    for name, value in share.items():
        print(f"  {name:<8} {result[name]['median']:>10,.0f} rows/s, {value['median']:.2f} of memcpy")
    return {"rows": rows, "rows/s": result, "ratio to memcpy": share}


def chunks(folder: Path, args: argparse.Namespace) -> Found:
    rows = 1_000 if args.quick else 6_000
    rng = np.random.default_rng(0)
    # Half of the values repeat, so that there is something to compress.
    data = np.repeat(rng.integers(0, 255, (rows, ROW[0], ROW[1] // 2, 3), dtype=np.uint8), 2, axis=2)
    label = np.arange(rows)
    tasks: dict[str, dict[str, Task]] = {}
    if there("hdf5"):
        import h5py

        path = folder / "peer.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset("data", data=data, chunks=(64, *ROW), compression="gzip", compression_opts=1)
            file["label"] = label
        opened = h5py.File(path)["data"]
        tasks["hdf5"] = sides(path, opened, rows)
    if there("zarr"):
        import zarr

        place = folder / "peer.zarr"
        group = zarr.open_group(str(place), mode="w")
        group.create_array("data", shape=data.shape, dtype=data.dtype, chunks=(64, *ROW))[:] = data
        group.create_array("label", shape=label.shape, dtype=label.dtype, chunks=(1024,))[:] = label
        tasks["zarr"] = sides(place, zarr.open_group(str(place), mode="r")["data"], rows)
    results: Found = {}
    for format, both in tasks.items():
        print(f"chunks: {rows:,} rows of 3 KB in {format}, chunks of 64", flush=True)
        for task in both.values():
            task()
        seconds = interleaved(both, args.rounds)
        ratio = {key: seconds["row by row"][key] / seconds["batchplant"][key] for key in ("best", "median")}
        print(f"  best {ratio['best']:.1f}, median {ratio['median']:.1f} × row by row")
        results[format] = {"rows": rows, "rows/s": speeds(seconds, rows), "ratio": ratio}
    return results


def sides(path: Path, peer: Any, rows: int) -> dict[str, Task]:
    loader = Loader(path, BATCH, order="quasi_random")
    order = np.random.default_rng(1).permutation(rows).tolist()

    def naive() -> None:
        for first in range(0, rows, BATCH):
            np.stack([peer[row] for row in order[first : first + BATCH]])

    return {
        "batchplant": lambda: timed(lambda: sum(len(batch["label"]) for batch in loader)),
        "row by row": lambda: timed(naive),
    }


PARTS: dict[str, Callable[[Path, argparse.Namespace], Found]] = {"copies": copies, "chunks": chunks}


def main() -> None:
    args = part_arguments(__doc__ or "", PARTS)
    results: Found = {"rounds": args.rounds, "batch": BATCH}
    with workplace() as folder, others(results):
        for name in args.parts:
            results[name] = PARTS[name](folder, args)
    save(args.out, "arrays", results)


if __name__ == "__main__":
    sys.exit(main())
