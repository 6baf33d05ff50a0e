"""The samples that all candidates are written from, read from the dataset once."""

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

# Consecutive samples of a run: neighbours compress well together.
RUN_SAMPLES = 32
# Limits of quick mode, whatever the time.
QUICK_BYTES = 64 << 20
QUICK_SAMPLES = 50_000
# Samples that are read to estimate their size.
PROBED_SAMPLES = 16
BATCH_BYTES = 4 << 20


@dataclasses.dataclass(frozen=True)
class Staged:
    """Samples in a file of the scratch folder: pickled batches of cells."""

    path: Path
    samples: int
    data: int

    def batches(self) -> Iterator[Columns]:
        with open(self.path, "rb") as file:
            while file.peek(1):
                yield pickle.load(file)


def mean_size(reader: Reader) -> float:
    """Return the mean bytes of a sample's cells, from a few samples."""
    rows = np.unique(np.linspace(0, len(reader) - 1, min(PROBED_SAMPLES, len(reader))).astype(np.int64))
    return size_of(reader.read(rows)) / len(rows) if len(rows) else 0.0


def size_of(columns: Columns) -> int:
    return sum(int(column_runs(column)[2].clip(0).sum()) for column in columns.values())


def sample_count(reader: Reader, sample: int | None, size: float, *, quick: bool) -> int:
    """Return how many samples to measure."""
    if not len(reader):
        raise OptionError("there are no samples", path=reader.path)
    if sample is not None and sample < 1:
        raise OptionError(f"a sample has at least 1, not {sample}")
    if sample is not None or not quick:
        return min(len(reader), sample or len(reader))
    return int(min(len(reader), QUICK_SAMPLES, max(RUN_SAMPLES, QUICK_BYTES // max(size, 1))))


def spread_rows(length: int, count: int) -> I64:
    """Return ``count`` samples in runs that are spread evenly over the dataset."""
    if count >= length:
        return np.arange(length)
    runs = -(-count // RUN_SAMPLES)
    starts = np.linspace(0, max(0, length - RUN_SAMPLES), runs).astype(np.int64)
    rows = np.unique((starts[:, None] + np.arange(min(RUN_SAMPLES, length))).ravel())
    if len(rows) < count:
        # Runs overlap: fill up.
        unused = np.setdiff1d(np.arange(length), rows, assume_unique=True)[: count - len(rows)]
        rows = np.sort(np.concatenate([rows, unused]))
    return rows[:count]


def stage(
    reader: Reader, rows: I64, path: Path, *, until: float | None, progress: Callable[[int], Any]
) -> Staged:
    """Copy these samples into a file, until a deadline (time.monotonic) at the latest."""
    done = data = 0
    size = RUN_SAMPLES
    with open(path, "wb") as file:
        while done < len(rows) and (not done or until is None or time.monotonic() < until):
            batch = rows[done : done + size]
            # Copy: a column may be a view of a mapped file.
            columns = reader.read(batch).take(np.arange(len(batch)))
            pickle.dump(columns, file, protocol=5)
            done += len(batch)
            data += size_of(columns)
            size = int(np.clip(BATCH_BYTES * done // max(data, 1), RUN_SAMPLES, 16384))
            progress(done)
    return Staged(path, done, data)
