"""The samples that every candidate is written from, taken out of the dataset once."""

from __future__ import annotations

import dataclasses
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...data.reader import Reader
from ...errors import OptionError
from ...schema.columns import I64, Columns, column_runs

# Samples that follow each other: what compresses well beside its neighbours stays beside them.
RUN = 32
# What quick mode takes at most, whatever the time.
QUICK_BYTES = 64 << 20
QUICK_SAMPLES = 50_000
# Samples that tell how large one is.
PROBED = 16
BATCH_BYTES = 4 << 20


@dataclasses.dataclass(frozen=True)
class Staged:
    """A file of our own, gone with the scratch folder: batches of cells, one pickle after the other."""

    path: Path
    samples: int
    data: int

    def batches(self) -> Iterator[Columns]:
        with open(self.path, "rb") as file:
            while file.peek(1):
                yield pickle.load(file)


def mean_size(reader: Reader) -> float:
    """Bytes of the cells of one sample, from a few of them."""
    rows = np.unique(np.linspace(0, len(reader) - 1, min(PROBED, len(reader))).astype(np.int64))
    return size_of(reader.read(rows)) / len(rows) if len(rows) else 0.0


def size_of(columns: Columns) -> int:
    return sum(int(column_runs(column)[2].clip(0).sum()) for column in columns.values())


def how_many(reader: Reader, sample: int | None, size: float, *, quick: bool) -> int:
    """How many samples to take."""
    if not len(reader):
        raise OptionError("there are no samples", path=reader.path)
    if sample is not None and sample < 1:
        raise OptionError(f"a sample has at least 1, not {sample}")
    if sample is not None or not quick:
        return min(len(reader), sample or len(reader))
    return int(min(len(reader), QUICK_SAMPLES, max(RUN, QUICK_BYTES // max(size, 1))))


def picked(length: int, count: int) -> I64:
    """So many sample numbers, in runs that are spread evenly over the dataset."""
    if count >= length:
        return np.arange(length)
    runs = -(-count // RUN)
    starts = np.linspace(0, max(0, length - RUN), runs).astype(np.int64)
    rows = np.unique((starts[:, None] + np.arange(min(RUN, length))).ravel())
    if len(rows) < count:
        # Where the runs overlap; as many as were asked for, all the same.
        others = np.setdiff1d(np.arange(length), rows, assume_unique=True)[: count - len(rows)]
        rows = np.sort(np.concatenate([rows, others]))
    return rows[:count]


def stage(
    reader: Reader, rows: I64, path: Path, *, until: float | None, progress: Callable[[int], Any]
) -> Staged:
    """Copy these samples into a file; at ``until`` (time.monotonic) it ends with those that are there."""
    taken = data = 0
    size = RUN
    with open(path, "wb") as file:
        while taken < len(rows) and (not taken or until is None or time.monotonic() < until):
            some = rows[taken : taken + size]
            # Copied, for a column may be a view of a whole mapped file.
            columns = reader.read(some).take(np.arange(len(some)))
            pickle.dump(columns, file, protocol=5)
            taken += len(some)
            data += size_of(columns)
            size = int(np.clip(BATCH_BYTES * taken // max(data, 1), RUN, 16384))
            progress(taken)
    return Staged(path, taken, data)
