"""Sides of science.py that read rows of a CSR matrix in .h5ad in random order: ours, anndata, scDataset."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from _common import interleaved, timed

from batchplant.loading.loader import Loader
from batchplant.order import QuasiRandom, quality

BATCH, GENES, DENSITY = 1024, 20_000, 0.05
# Batches that a side makes in a round.
BATCHES = 40
# Blocks that are shuffled together; donors along the rows, by which the quality of a shuffle is measured.
WINDOW, DONORS = 128, 40

Found = dict[str, Any]


def put_frame(file: Any, name: str, count: int) -> None:
    group = file.create_group(name)
    group.attrs.update({"encoding-type": "dataframe", "encoding-version": "0.2.0", "_index": "_index"})
    group.attrs["column-order"] = np.array([], dtype=h5py.string_dtype())
    names = [f"{name}{number}" for number in range(count)]
    index = group.create_dataset("_index", data=names, dtype=h5py.string_dtype())
    index.attrs.update({"encoding-type": "string-array", "encoding-version": "0.2.0"})


def write(path: Path, cells: int, **options: Any) -> None:
    """A matrix of counts, as anndata writes it."""
    generator = np.random.default_rng(0)
    counts = generator.poisson(GENES * DENSITY, cells)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    with h5py.File(path, "w") as file:
        file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        group = file.create_group("X")
        group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0"})
        group.attrs["shape"] = np.array([cells, GENES])
        group["indptr"] = indptr
        data = group.create_dataset("data", (indptr[-1],), "f4", **options)
        indices = group.create_dataset("indices", (indptr[-1],), "i4", **options)
        for first, last in itertools.pairwise([*range(0, cells, 2000), cells]):
            values = slice(int(indptr[first]), int(indptr[last]))
            size = values.stop - values.start
            data[values] = generator.poisson(1, size) + 1
            # Ascending in each row: the mean gap fills four fifths of the columns.
            places = np.cumsum(generator.integers(1, int(1.6 / DENSITY), size))
            starts = np.repeat(places[indptr[first:last] - values.start], counts[first:last])
            indices[values] = (places - starts) % GENES
        put_frame(file, "obs", cells)
        put_frame(file, "var", GENES)


def ours(path: Path, order: Any) -> Callable[[], float]:
    loader = Loader(path, BATCH, order=order, pipelines={"obs_names": None})
    return lambda: timed(lambda: sum(len(batch["X"].values) for batch in itertools.islice(loader, BATCHES)))


def backed(path: Path) -> Callable[[], float]:
    generator = np.random.default_rng(1)

    def run() -> float:
        import anndata

        matrix = anndata.read_h5ad(path, backed="r").X
        order = generator.permutation(matrix.shape[0])
        rows = [np.sort(order[start : start + BATCH]) for start in range(0, BATCH * BATCHES, BATCH)]
        return timed(lambda: sum(matrix[part].nnz for part in rows))

    return run


def sc_dataset(path: Path, block: int, fetch: int) -> Callable[[], float]:
    def run() -> float:
        import anndata
        from scdataset import BlockShuffling, scDataset

        dataset = scDataset(
            anndata.read_h5ad(path, backed="r"),
            BlockShuffling(block_size=block),
            batch_size=BATCH,
            fetch_factor=fetch,
            # The library wants ascending rows.
            fetch_callback=lambda table, rows: table.X[np.sort(rows)],
            batch_callback=lambda matrix, rows: matrix[rows],
        )
        return timed(lambda: sum(part.nnz for part in itertools.islice(dataset, BATCHES)))

    return run


def entropies(path: Path, count: int) -> dict[str, float]:
    """How well each side mixes donors whose cells lie side by side: 1.0 is what a uniform shuffle gives."""
    loader = Loader(path, BATCH, order=QuasiRandom(window=WINDOW), pipelines={"X": None})
    rows = {"batchplant": np.array([int(name[3:]) for batch in loader for name in batch["obs_names"]])}
    if importlib.util.find_spec("scdataset") is not None:
        from scdataset import BlockShuffling, scDataset

        options = {"batch_size": BATCH, "fetch_factor": 16}
        parts = scDataset(np.arange(count), BlockShuffling(block_size=128), **options)
        rows["scDataset"] = np.concatenate([np.asarray(part) for part in parts])
    rows["uniform"] = np.random.default_rng(0).permutation(count)
    result = {name: quality.batch_entropy(order * DONORS // count, BATCH) for name, order in rows.items()}
    return {name: value / result["uniform"] for name, value in result.items()}


def cells(folder: Path, args: argparse.Namespace) -> Found:
    """Every row alone (random: blocks of 1), and chunks that are shuffled (quasi_random: blocks of 128)."""
    warnings.simplefilter("ignore")
    count = 50_000 if args.quick else args.cells
    results: Found = {}
    for title, options in (("plain", {}), ("gzip", {"compression": "gzip", "chunks": (100_000,)})):
        path = folder / f"{title}.h5ad"
        rows = count if title == "plain" else min(count, 50_000)
        write(path, rows, **options)
        print(f"{rows:,} cells, {title}", flush=True)
        tasks = {
            "random: batchplant": ours(path, "random"),
            "random: anndata": backed(path),
            "random: scDataset": sc_dataset(path, 1, 16),
            "quasi_random: batchplant": ours(path, QuasiRandom(window=WINDOW)),
            "quasi_random: scDataset": sc_dataset(path, 128, 16),
        }
        for library in ("anndata", "scDataset"):
            if importlib.util.find_spec(library.lower()) is None:
                print(f"{library} is not installed: its sides are skipped")
                tasks = {name: task for name, task in tasks.items() if library not in name}
        if title == "gzip":
            # Nobody who waits for an answer reads single rows out of compressed chunks.
            tasks = {name: task for name, task in tasks.items() if name.startswith("quasi")}
        seconds = interleaved(tasks, args.rounds)
        speeds = {
            name: {key: BATCH * BATCHES / found[key] for key in ("best", "median")}
            for name, found in seconds.items()
        }
        ratios = {
            name: {key: speeds[f"{name.split(':')[0]}: batchplant"][key] / speed[key] for key in speed}
            for name, speed in speeds.items()
        }
        mixed = entropies(path, rows)
        results[title] = {"cells": rows, "cells/s": speeds, "ratio": ratios, "entropy of a batch": mixed}
        print("  quasi_random, donors in a batch:", {name: round(value, 3) for name, value in mixed.items()})
        for name, ratio in ratios.items():
            speed = speeds[name]["median"]
            print(
                f"  {name:<26} {speed:>9,.0f} cells/s; ours: {ratio['median']:.2f} × ({ratio['best']:.2f} ×)"
            )
    return results
