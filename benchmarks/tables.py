"""Tables: Parquet and Arrow in order and shuffled, CSV to Parquet, beside pyarrow and HF datasets.

sequential   a file to batches of NumPy arrays, beside pyarrow's own batches
lists        tokens, embeddings and arrays, which are lists of numbers, in order, beside pyarrow's own batches
shuffled     an epoch in quasi-random order over Parquet with rows of 1 KB, beside HF datasets' shuffled
             iteration and beside our own epoch in order
csv          CSV to Parquet, beside pyarrow alone

All sides of a part run in turn in one process, several rounds, from a warm cache. A peer that is not
installed is left out, and said so.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from _common import interleaved, others, part_arguments, save, timed, workplace

import batchplant
from batchplant.loading.loader import Loader

BATCH = 1024
Found = dict[str, Any]
Task = Callable[[], float]


def numbers(rows: int) -> pa.Table:
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {f"x{number}": rng.random(rows, dtype=np.float32) for number in range(8)}
    columns |= {f"n{number}": rng.integers(0, 10**9, rows) for number in range(4)}
    columns["label"] = rng.integers(0, 1000, rows).astype(np.int32)
    return pa.table(columns)


def blobs(rows: int, size: int) -> pa.Table:
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, (rows, size), dtype=np.uint8)
    return pa.table({"data": pa.array(map(bytes, data), pa.binary()), "label": np.arange(rows) % 1000})


def ratios(found: dict[str, dict[str, float]], ours: str) -> Found:
    """How many times as fast ours is as each of the others."""
    return {
        name: {key: value[key] / found[ours][key] for key in ("best", "median")}
        for name, value in found.items()
        if name != ours
    }


def run(title: str, count: int, tasks: dict[str, Task], ours: str, rounds: int) -> Found:
    print(title, flush=True)
    for task in tasks.values():
        task()
    seconds = interleaved(tasks, rounds)
    speeds = {
        name: {key: count / second[key] for key in ("best", "median")} for name, second in seconds.items()
    }
    compared = ratios(seconds, ours)
    for name, value in compared.items():
        print(f"  {ours}: best {value['best']:.2f}, median {value['median']:.2f} × {name}")
    return {"title": title, "rows": count, "rows/s": speeds, "ratio to": compared}


# --- in order -----------------------------------------------------------------------------------------


def as_numpy(batches: Iterator[pa.RecordBatch]) -> int:
    rows = 0
    for batch in batches:
        for column in batch.columns:
            # Of lists, all that is in them, which is quicker than an array for each.
            while hasattr(column, "flatten") and hasattr(column.type, "value_type"):
                column = column.flatten()
            column.to_numpy(zero_copy_only=False)
        rows += batch.num_rows
    return rows


def ours(path: Path, **options: Any) -> int:
    with batchplant.open(path, **options) as reader:
        return sum(columns.rows for columns in reader.scan(BATCH))


def sequential(folder: Path, args: argparse.Namespace) -> Found:
    rows = 50_000 if args.quick else 2_000_000
    table = numbers(rows)
    parquet, arrow = folder / "numbers.parquet", folder / "numbers.arrow"
    pyarrow.parquet.write_table(table, parquet, compression="zstd", row_group_size=100_000)
    with pa.OSFile(str(arrow), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
        out.write_table(table, max_chunksize=100_000)

    def arrow_batches() -> int:
        with pa.memory_map(str(arrow)) as file:
            opened = pa.ipc.open_file(file).read_all()
            return as_numpy(iter(opened.to_batches(max_chunksize=BATCH)))

    def parquet_batches() -> int:
        return as_numpy(pyarrow.parquet.ParquetFile(parquet).iter_batches(BATCH))

    return {
        "parquet": run(
            f"Parquet, {rows:,} rows of 13 numbers, in order", rows,
            {"batchplant": lambda: timed(lambda: ours(parquet)), "pyarrow": lambda: timed(parquet_batches)},
            "batchplant", args.rounds,
        ),
        "arrow": run(
            f"Arrow IPC, {rows:,} rows of 13 numbers, in order", rows,
            {"batchplant": lambda: timed(lambda: ours(arrow)), "pyarrow": lambda: timed(arrow_batches)},
            "batchplant", args.rounds,
        ),
    }  # fmt: skip


# --- lists --------------------------------------------------------------------------------------------


def nested(values: np.ndarray[Any, Any], shape: tuple[int, ...]) -> pa.Array:
    """Rows of such a shape, as lists in lists."""
    result = pa.array(values.reshape(-1))
    for size in reversed(shape):
        starts = np.arange(0, len(result) + 1, size, dtype=np.int32)
        result = pa.ListArray.from_arrays(pa.array(starts), result)
    return result


def lists(folder: Path, args: argparse.Namespace) -> Found:
    rng, scale = np.random.default_rng(0), 20 if args.quick else 1
    sizes = rng.integers(100, 900, 100_000 // scale)
    tokens = pa.array(rng.zipf(1.2, sizes.sum()).clip(0, 50_000).astype(np.int32))
    edges = pa.array(np.append(0, np.cumsum(sizes)).astype(np.int32))
    rows = 50_000 // scale
    kinds = {
        "rows of 100 to 900 tokens": (pa.ListArray.from_arrays(edges, tokens), 10_000),
        "embeddings of 768": (nested(rng.standard_normal((rows, 768), np.float32), (768,)), 10_000),
        "arrays of 64×64×3 bytes": (
            nested(rng.integers(0, 256, (rows // 10, 64, 64, 3), np.uint8), (64, 64, 3)), 500,
        ),
    }  # fmt: skip
    result = {}
    for name, (column, group) in kinds.items():
        path = folder / f"{name.split(' ')[0]}.parquet"
        # Packed as pyarrow does by itself.
        pyarrow.parquet.write_table(pa.table({"a": column}), path, row_group_size=group)

        def theirs(path: Path = path) -> int:
            return as_numpy(pyarrow.parquet.ParquetFile(path).iter_batches(BATCH))

        # Lists in lists may be of any size: whoever knows the shape says it.
        shape = {"schema": {"a": batchplant.Tensor("uint8", (64, 64, 3))}} if group == 500 else {}
        tasks = {
            "batchplant": lambda path=path, shape=shape: timed(lambda: ours(path, **shape)),
            "pyarrow": lambda theirs=theirs: timed(theirs),
        }
        title = f"Parquet, {len(column):,} {name}, in order"
        result[name] = run(title, len(column), tasks, "batchplant", args.rounds)
    return result


# --- shuffled -----------------------------------------------------------------------------------------


def shuffled(folder: Path, args: argparse.Namespace) -> Found:
    rows = 5_000 if args.quick else 200_000
    path = folder / "blobs.parquet"
    pyarrow.parquet.write_table(blobs(rows, 1000), path, compression="zstd", row_group_size=2_000)

    def epoch(order: str) -> Task:
        loader = Loader(path, 256, order=order)
        return lambda: timed(lambda: sum(len(batch["label"]) for batch in loader))

    tasks = {"batchplant": epoch("quasi_random"), "batchplant in order": epoch("sequential")}
    if importlib.util.find_spec("datasets") is not None:
        os.environ["HF_HUB_OFFLINE"] = "1"
        import datasets

        datasets.disable_progress_bars()
        opened = datasets.Dataset.from_parquet(str(path), cache_dir=str(folder / "cache")).with_format(
            "numpy"
        )

        def peer() -> None:
            for _ in opened.shuffle(seed=1, keep_in_memory=True).iter(256):
                pass

        tasks["HF datasets"] = lambda: timed(peer)
    else:
        print("HF datasets is not installed: its side is skipped")
    title = f"Parquet, {rows:,} rows of 1 KB, shuffled"
    return {"parquet": run(title, rows, tasks, "batchplant", args.rounds)}


# --- CSV ----------------------------------------------------------------------------------------------


def csv(folder: Path, args: argparse.Namespace) -> Found:
    rows = 20_000 if args.quick else 1_000_000
    source = folder / "numbers.csv"
    table = numbers(rows).append_column("name", pa.array([f"row {number}" for number in range(rows)]))
    pyarrow.csv.write_csv(table, source)

    def convert() -> None:
        batchplant.convert(source, folder / "ours.parquet", overwrite=True)

    def alone() -> None:
        with pyarrow.csv.open_csv(source) as reader:
            target = folder / "theirs.parquet"
            with pyarrow.parquet.ParquetWriter(target, reader.schema, compression="zstd") as out:
                for batch in reader:
                    out.write_batch(batch)

    tasks: dict[str, Task] = {"batchplant": lambda: timed(convert), "pyarrow": lambda: timed(alone)}
    title = f"CSV to Parquet, {rows:,} rows, {source.stat().st_size / 1e6:.0f} MB"
    done = run(title, rows, tasks, "batchplant", args.rounds)
    shutil.rmtree(folder / "cache", ignore_errors=True)
    return {"convert": done}


PARTS: dict[str, Callable[[Path, argparse.Namespace], Found]] = {
    "sequential": sequential,
    "lists": lists,
    "shuffled": shuffled,
    "csv": csv,
}


def main() -> None:
    args = part_arguments(__doc__ or "", PARTS)
    results: Found = {"rounds": args.rounds}
    with workplace() as folder, others(results):
        for name in args.parts:
            results[name] = PARTS[name](folder, args)
    save(args.out, "tables", results)


if __name__ == "__main__":
    sys.exit(main())
