"""Choice of samples and batches: memory is bounded however large the dataset is."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

from ...data.reader import Reader
from ...schema.columns import I64, column_runs, end_within

# Neighbours that are looked at together: what stands side by side tells of the order, and is read in one go.
RUN = 16
STEP, STEP_BYTES = 4096, 32 << 20
# What a sample of a dataset takes to read; of large samples fewer are looked at, but not fewer than these.
MOST_BYTES, FEWEST = 256 << 20, 64


def chosen(samples: int, count: int | None) -> I64 | None:
    """``count`` sample numbers in order: runs of neighbours, evenly apart, the first and the last among them.

    None: all of them.
    """
    if count is None or count >= samples:
        return None
    runs = max(1, count // RUN)
    length = count // runs
    firsts = np.linspace(0, samples - length, runs).astype(np.int64) if runs > 1 else np.zeros(1, np.int64)
    return np.unique((firsts[:, None] + np.arange(length)).reshape(-1))


def mean_bytes(reader: Reader) -> float:
    """Bytes of a sample, the mean over some from all of the dataset; 0 where none can be read."""
    rows = np.unique(np.linspace(0, max(len(reader) - 1, 0), min(8, len(reader))).astype(np.int64))
    columns = reader.read_undamaged(rows, [], sys.maxsize)[1]
    size = sum(int(column_runs(column)[2].clip(0).sum()) for column in (columns or {}).values())
    return size / max(len(rows), 1)


def affordable(count: int | None, sample_bytes: float) -> int | None:
    """No more samples than can be read in a moment."""
    return None if count is None else min(count, max(FEWEST, int(MOST_BYTES / max(sample_bytes, 1))))


def batches(reader: Reader, rows: I64 | None, sample_bytes: float) -> Iterator[I64]:
    """The sample numbers of each batch, each batch of bounded bytes."""
    count = len(reader) if rows is None else len(rows)
    sizes = reader.sizes()
    sizes = sizes if sizes is None or rows is None else sizes[rows]
    step = STEP if sizes is not None else int(np.clip(STEP_BYTES / max(sample_bytes, 1), 1, STEP))
    end = 0
    while end < count:
        start, end = end, end_within(sizes, end, min(step, count - end), STEP_BYTES)
        yield np.arange(start, end) if rows is None else rows[start:end]
