"""The other sides of benchmarks/text.py: tasks that return their seconds; one that is missing is skipped."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _common import timed

Task = Callable[[], float]


def found(module: str, name: str) -> Any:
    """What a peer calls ``name``, or None, which is said."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return getattr(importlib.import_module(module), name)
    except Exception as error:
        reason = str(error).splitlines() or [type(error).__name__]
        print(f"  {module} is not here: its side is skipped ({reason[0][:80]})")
        return None


def megatron_reads(prefix: Path, order: Any, batch: int) -> dict[str, Task]:
    """One sequence after another, as its dataset gives them, and put together into batches."""
    kind = found("megatron.core.datasets.indexed_dataset", "IndexedDataset")
    if kind is None:
        return {}
    data = kind(str(prefix))

    def views() -> None:
        for one in order:
            data[one]

    def batches() -> None:
        for first in range(0, len(order), batch):
            np.concatenate([data[one] for one in order[first : first + batch]])

    return {"Megatron-core, views": lambda: timed(views), "Megatron-core, batches": lambda: timed(batches)}


def trl_packs(documents: list[Any], length: int) -> dict[str, Task]:
    pack, dataset = found("trl.data_utils", "pack_dataset"), found("datasets", "Dataset")
    if pack is None or dataset is None:
        return {}
    import datasets
    import pyarrow as pa

    datasets.disable_progress_bars()
    datasets.disable_caching()
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in documents])])
    tokens = pa.LargeListArray.from_arrays(
        pa.array(offsets, pa.int64()), pa.array(np.concatenate(documents), pa.int32())
    )
    table = pa.table({"input_ids": tokens.cast(pa.list_(pa.int32()))})

    def task(strategy: str) -> Task:
        # A copy in memory each time, or what was packed before would be taken from its cache.
        return lambda: timed(
            lambda: pack(
                dataset(table),
                length,
                strategy,
                map_kwargs={"keep_in_memory": True, "load_from_cache_file": False},
            )
        )

    return {"TRL, bfd_split": task("bfd_split"), "TRL, wrapped": task("wrapped")}


def grain_packs(documents: list[Any], length: int) -> dict[str, Task]:
    tasks: dict[str, Task] = {}
    dataset = found("grain.python", "MapDataset")
    # A twentieth of them, and twenty times the seconds: it takes that long.
    some = documents[::20]
    scale = sum(map(len, documents)) / max(sum(map(len, some)), 1)
    for name, title in (("FirstFitPackIterDataset", "first fit"), ("BestFitPackIterDataset", "best fit")):
        kind = found("grain.experimental", name)
        if kind is None or dataset is None:
            continue
        # It splits nothing: what is longer than a row is cut off, which is less work.
        source = dataset.source([{"tokens": one[:length]} for one in some]).to_iter_dataset()

        def run(kind: Any = kind, source: Any = source) -> None:
            rows = kind(source, length_struct={"tokens": length}, num_packing_bins=64, shuffle_bins=False)
            for _ in rows:
                pass

        tasks[f"Grain, {title}"] = lambda run=run: scale * timed(run)  # type: ignore[misc]
    return tasks


def datatrove_blocks(folder: Path, length: int, order: Any) -> dict[str, Task]:
    """Rows of one length out of a flat file of two-byte tokens."""
    kind = found("datatrove.utils.dataset", "DatatroveFolderDataset")
    if kind is None:
        return {}
    try:
        data = kind(str(folder), length - 1, filename_pattern="*.ds", token_size=2)
        count = len(data)
    except Exception as error:
        print(f"  datatrove does not open the file: its side is skipped ({error})")
        return {}
    some = [int(one) for one in order if one < count]

    def run() -> None:
        for one in some:
            data[one]

    return {"datatrove": lambda: timed(run)}
