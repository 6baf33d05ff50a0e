"""Whether a dataset fits into memory, and which of its cells lie by themselves."""

from __future__ import annotations

import contextlib
import os

import numpy as np

from ..schema.columns import I64, Spans
from .batch import Executor

# Bytes from cell to cell, at least, of those that are read by themselves: less is a table.
APART = 512
# Of what a sample reads, no more may be its neighbour's too, such as a dictionary that both need.
SHARED = 0.1
# Samples that tell how much an epoch needs: so many in a row, at so many places, for a format may have to
# look at all that lies around one to find it.
IN_A_ROW, PLACES = 16, 16


def size_of(spans: Spans) -> int:
    """The bytes of all cells; those that are missing have none."""
    return int(np.maximum(spans.size, 0).sum())


def needed(executor: Executor, indices: I64 | None, stages: bool) -> float:
    """About how many bytes an epoch has; of images, where those are read here."""
    reader, plan = executor.reader, executor.plan
    count = len(reader) if indices is None else len(indices)
    told = reader._bytes_of(plan.fields)
    if told is not None:
        return told * count / max(1, len(reader))
    some = _some(count)
    some = some if indices is None else indices[some]
    if stages:
        found = [reader.spans(output.field, some) for output in plan.images]
    else:
        found = [reader.ranges(plan.fields, some)]
    return sum(size_of(one) * count / len(some) for one in found if one is not None)


def _some(count: int) -> I64:
    """Samples that tell of all."""
    places = np.linspace(0, max(0, count - IN_A_ROW), PLACES).astype(np.int64)
    found: I64 = np.unique(np.minimum(places[:, None] + np.arange(IN_A_ROW), count - 1))
    return found


def are_apart(executor: Executor, field: str, batch: I64) -> bool:
    """Whether cells lie by themselves: what samples of a batch read, their neighbours do not need."""
    reader = executor.reader
    if len(reader) < 2:
        return False
    even = np.unique(np.minimum(batch & ~1, len(reader) - 2))
    some, others = reader.ranges([field], even), reader.ranges([field], even + 1)
    if some is None or others is None:
        return False
    shared = 0
    for one in dict.fromkeys((*some.files, *others.files)):
        starts, ends = _of_file(some, one)
        begin, stop = _of_file(others, one)
        # Those of some that begin before the end of another have not all ended before it begins.
        meets = np.searchsorted(np.sort(starts), stop) > np.searchsorted(np.sort(ends), begin, "right")
        shared += int((stop - begin)[meets].sum())
        between = np.diff(np.sort(np.concatenate([starts, begin])))
        if len(between) and np.percentile(between, 25) < APART:
            return False
    return shared <= SHARED * size_of(others)


def _of_file(spans: Spans, file: str) -> tuple[I64, I64]:
    rows = np.flatnonzero((spans.size > 0) & (np.array([one == file for one in spans.files])[spans.file]))
    return spans.start[rows], spans.start[rows] + spans.size[rows]


def memory() -> int:
    """Bytes that programs may still take, pages of files included; at most what the control group has."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, KeyError), open("/proc/meminfo") as file:
        told = dict(line.split(":", 1) for line in file)
        found = int(told["MemAvailable"].split()[0]) << 10
    with contextlib.suppress(OSError), open("/proc/self/cgroup") as file:
        for line in file:
            _, kinds, path = line.rstrip("\n").split(":", 2)
            kind = "memory/" if kinds == "memory" else "" if not kinds else None
            name = "memory.limit_in_bytes" if kinds else "memory.max"
            # In a container, the own group is the root of what it sees.
            for below in () if kind is None else (path.strip("/") + "/", ""):
                limit = f"/sys/fs/cgroup/{kind}{below}{name}"
                with contextlib.suppress(OSError, ValueError), open(limit) as told_there:
                    found = min(found, int(told_there.read()))
    return found
