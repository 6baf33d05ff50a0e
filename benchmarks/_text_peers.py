"""The other sides of benchmarks/text.py: tasks that return their seconds; one that is missing is skipped."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

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
        for item in order:
            data[item]

    def batches() -> None:
        for first in range(0, len(order), batch):
            np.concatenate([data[item] for item in order[first : first + batch]])

    return {"Megatron-core, views": lambda: timed(views), "Megatron-core, batches": lambda: timed(batches)}


class _Tokenizer:
    """What Megatron's dataset asks of one."""

    unique_identifiers: ClassVar[dict[str, Any]] = {"name": "numbers"}
    eod, pad, vocab_size = 0, -1, 50_000


def megatron_samples(prefix: Path, length: int, batch: int, tokens: int) -> dict[str, Task]:
    """Rows of the dataset that GPT is trained on, put together into batches."""
    module = "megatron.core.datasets.gpt_dataset"
    kind, config = found(module, "GPTDataset"), found(module, "GPTDatasetConfig")
    if kind is None or config is None:
        return {}
    import torch
    from megatron.core.datasets.utils import Split

    how = config(
        random_seed=1, sequence_length=length, split="1,0,0", path_to_cache=f"{prefix}-cache",
        tokenizer=_Tokenizer(), reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False,
        create_attention_mask=False,
    )  # fmt: skip
    try:
        below = kind.build_low_level_dataset(str(prefix), how)
        numbers = np.arange(len(below.document_indices) - 1, dtype=np.int32)
        data = kind(below, str(prefix), numbers, None, Split.train, how)
    except Exception as error:
        print(f"  Megatron-core does not build its dataset: its side is skipped ({error})")
        return {}

    def run() -> None:
        for first in range(0, len(data), batch):
            rows = [data[number] for number in range(first, min(first + batch, len(data)))]
            {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    # It leaves out the last row, which is not full.
    return {"Megatron-core, GPTDataset": lambda: timed(run) * tokens / (len(data) * length)}


def trl_packs(documents: list[Any], length: int, batch: int) -> dict[str, Task]:
    """Packed tables, and their rows as arrays in batches, as a training loop gets them."""
    pack, dataset = found("trl.data_utils", "pack_dataset"), found("datasets", "Dataset")
    if pack is None or dataset is None:
        return {}
    import datasets
    import pyarrow as pa

    datasets.disable_progress_bars()
    datasets.disable_caching()
    offsets = np.concatenate([[0], np.cumsum([len(document) for document in documents])])
    tokens = pa.LargeListArray.from_arrays(
        pa.array(offsets, pa.int64()), pa.array(np.concatenate(documents), pa.int32())
    )
    table = pa.table({"input_ids": tokens.cast(pa.list_(pa.int32()))})

    # A copy in memory each time, or what was packed before would be taken from its cache.
    how = {"keep_in_memory": True, "load_from_cache_file": False}

    def packed(strategy: str) -> Any:
        return pack(dataset(table), length, strategy, map_kwargs=how)

    def arrays(strategy: str) -> None:
        rows = packed(strategy).with_format("numpy")
        for first in range(0, len(rows), batch):
            rows[first : first + batch]["input_ids"]

    tasks: dict[str, Task] = {}
    for text in ("bfd_split", "wrapped"):
        tasks[f"TRL, {text}"] = lambda item=text: timed(lambda: packed(item))  # type: ignore[misc]
        tasks[f"TRL, {text}, as arrays"] = lambda item=text: timed(lambda: arrays(item))  # type: ignore[misc]
    return tasks


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
        source = dataset.source([{"tokens": item[:length]} for item in some]).to_iter_dataset()

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
    some = [int(item) for item in order if item < count]

    def run() -> None:
        for item in some:
            data[item]

    return {"datatrove": lambda: timed(run)}


def litdata_blocks(folder: Path, rows: Any) -> dict[str, Task]:
    """Rows of chunks of its own, which it goes through in its own random order."""
    kind, loader = found("litdata", "StreamingDataset"), found("litdata", "TokensLoader")
    cache = found("litdata.streaming", "Cache")
    if kind is None or loader is None or cache is None:
        return {}
    import torch

    length = rows.shape[1]
    out = cache(str(folder), chunk_size=length * 2000, item_loader=loader(block_size=length))
    for number, row in enumerate(rows):
        out[number] = torch.from_numpy(row)
    out.done()
    out.merge()
    data = kind(str(folder), item_loader=loader(block_size=length), shuffle=True)

    def run() -> None:
        for _ in data:
            pass

    return {"LitData, TokensLoader": lambda: timed(run)}
