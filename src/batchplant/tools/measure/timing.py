"""How fast a reader gives its samples: one way to time an epoch and a scan.

`bench formats` measures with it and `advise` predicts with it, so that both count the same. By the wall
clock: what other processes take is missing to whoever trains beside them, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ... import order as orders
from ...data.reader import Reader
from ...loading.batch import PRODUCERS
from ...loading.loader import Loader
from ...schema import Schema
from ...schema.columns import I64, Columns, column_runs
from .machine import core_seconds, core_share
from .pipelines import image_fields, pipelines
from .watching import rows

# Where the time is short, a batch takes so long at most, or a few of them would take all of it. It is no
# smaller than that: every batch costs something, however few samples it has.
BATCH_SECONDS = 0.012
# What a batch has that is surely made so quickly.
SMALL_BYTES = 4 << 20
# What it has at most: of cells, as the memory of large ones comes and goes with the allocator; of pixels.
MOST_BYTES, MOST_PIXELS = 8 << 20, 64 << 20
# An epoch of few samples has so many batches all the same.
BATCHES = 4
# So many count at least, after those that fill the threads: what is under way at the end must not matter.
LEAST = 8
# Few samples are taken again and again in one epoch, for between two the threads have nothing to do.
LONG = 64
# Samples of a first batch and batches of an epoch where other processes want the cores too.
CROWDED_BATCH, CROWDED_BATCHES = 64, 256
# How many times longer than it should, something may take that is slow, and than how much at least.
LONGER, MOMENT = 6, 0.1
SCAN_BYTES = 4 << 20
SCAN_ROWS = 4096
PAGE = 4096
CHANNELS = 3


@dataclasses.dataclass(frozen=True)
class How:
    """What an epoch is like. ``batch_size``: where the time is short, at most (:func:`quick_epoch`)."""

    batch_size: int
    order: str = "random"
    pipeline: str = "train"
    size: int = 224
    workers: int | None = None

    def small_batch(self, schema: Schema, sample_bytes: float) -> int:
        return self._batch(SMALL_BYTES, SMALL_BYTES, schema, sample_bytes)

    def large_batch(self, schema: Schema, sample_bytes: float) -> int:
        return self._batch(MOST_BYTES, MOST_PIXELS, schema, sample_bytes)

    def _batch(self, cells: int, pixels: int, schema: Schema, sample_bytes: float) -> int:
        """As many samples as have so many bytes, as they are stored and as pixels, in powers of two."""
        made = CHANNELS * self.size**2 * len(image_fields(schema)) * (self.pipeline in ("train", "val"))
        return min(self.batch_size, _power(cells / max(sample_bytes, 1)), _power(pixels / max(made, 1)))


@dataclasses.dataclass(frozen=True)
class Timed:
    """What came: so many samples; the first batch after ``first`` seconds.

    ``rate``: samples/s once the threads are busy; ``whole``: with the start. ``parts``: where the time went,
    by the loader's own account. ``share``: fraction of the time that the threads got a core when they wanted
    one; less than 1 where other processes, or more threads than cores, compete for them.
    """

    samples: int
    first: float
    rate: float
    whole: float
    parts: Mapping[str, float]
    share: float = 1.0


def quick_epoch(
    reader: Reader,
    how: How,
    *,
    sample_bytes: float,
    seconds: float,
    batch: int = 0,
    indices: I64 | None = None,
    seed: int = 0,
    note: Callable[[], None] = lambda: None,
) -> tuple[Timed, int]:
    """Epochs for a short time, and the batch size they had: as asked, unless such a batch takes long.

    ``batch``: what an epoch before had, from 0 on; it only grows.
    """
    batch = max(batch, how.small_batch(reader.schema, sample_bytes))
    most = how.large_batch(reader.schema, sample_bytes)
    while True:
        found = epoch(reader, how, batch=batch, seconds=seconds, indices=indices, seed=seed, note=note)
        larger = min(most, _power(BATCH_SECONDS * found.rate))
        if larger <= batch:
            return found, batch
        # Larger batches may be quicker, and these then larger still.
        batch = larger


def crowded_epoch(
    reader: Reader,
    how: How,
    *,
    sample_bytes: float,
    seconds: float,
    batch: int = 0,
    indices: I64 | None = None,
) -> tuple[Timed, int]:
    """As :func:`quick_epoch`, on a machine where other processes want the cores too.

    The rate is the one that there would be without them: they stretch the time by as much as our threads
    wait for a core, and the threads of all cores cannot be faster than the CPU time that samples take.
    ``seconds``: of CPU time.
    """
    most = how.large_batch(reader.schema, sample_bytes)
    batch = max(batch, min(CROWDED_BATCH, how.small_batch(reader.schema, sample_bytes)))
    samples = np.arange(len(reader)) if indices is None else indices
    batches = BATCHES
    while True:
        before = time.process_time()
        # To its end: the CPU time is then that of these samples and no others.
        found = epoch(reader, how, batch=batch, seconds=None, indices=np.resize(samples, batches * batch))
        spent = max(time.process_time() - before, 1e-6)
        rate = min(found.whole / found.share, len(os.sched_getaffinity(0)) * found.samples / spent)
        larger = min(most, _power(BATCH_SECONDS * rate))
        if larger > batch:
            batch = larger
        elif spent < seconds / 2 and batches < CROWDED_BATCHES:
            batches = min(CROWDED_BATCHES, math.ceil(batches * seconds / spent))
        else:
            return dataclasses.replace(found, rate=rate), batch


def _power(size: float) -> int:
    """A power of two: nearly the same speed gives the same batches, and they are dealt evenly to threads."""
    return 1 << int(math.log2(max(size, 1.0)))


def epoch(
    reader: Reader,
    how: How,
    *,
    batch: int,
    seconds: float | None,
    once: bool = False,
    indices: I64 | None = None,
    seed: int = 0,
    note: Callable[[], None] = lambda: None,
) -> Timed:
    """Epochs through the Loader in batches of ``batch``, for about so many seconds; None: one whole epoch.

    ``once``: one epoch or its beginning, as a first one is, in which no sample comes twice. ``indices``: only
    these samples. ``note`` is called after every batch.
    """
    samples = np.arange(len(reader)) if indices is None else indices
    if once or seconds is None or how.order in orders.BY_BLOCKS:
        batch = max(1, min(batch, len(samples) // BATCHES))
    else:
        indices = np.resize(samples, max(len(samples), LONG * batch))
    done = counted = batches = 0
    spent = first = 0.0
    with contextlib.ExitStack() as stack:
        # What an order costs over a network is what is being found out.
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        loader = stack.enter_context(
            contextlib.closing(
                Loader(
                    reader,
                    batch,
                    order=how.order,
                    rank=0,
                    world_size=1,
                    indices=indices,
                    workers=how.workers,
                    pipelines=pipelines(reader.schema, how.pipeline, how.size),
                    seed=seed,
                )
            )
        )
        # Until every buffer was used once: a new one has pages that the system has to clear.
        starting = min(loader.ahead + PRODUCERS, len(loader) // 2)
        began = now = time.perf_counter()
        cores = core_seconds()
        over = False
        while not over:
            start = asked = time.perf_counter()
            for number, one in enumerate(loader):
                now = time.perf_counter()
                done += rows(one)
                first = first or now - asked
                if number < starting:
                    start = now
                else:
                    counted += rows(one)
                    batches += 1
                note()
                if seconds is not None:
                    # Batches are made at the same time, and come in twos.
                    even = batches and batches % PRODUCERS == 0
                    enough = now - began >= seconds and (once or (even and batches >= LEAST))
                    over = enough or now - began >= LONGER * max(seconds, MOMENT)
                if over:
                    break
            spent += now - start
            over = over or once or seconds is None
            starting = min(PRODUCERS, starting)
        share = core_share(cores)
        stats = loader.stats()
    whole = done / max(now - began, 1e-9)
    rate = counted / spent if counted and spent else whole
    parts = {name: float(stats[name]) for name in ("storage", "decode", "transforms")}
    return Timed(done, first, rate, whole, parts, share)


def scan(
    reader: Reader,
    *,
    sample_bytes: float,
    seconds: float | None,
    fields: Sequence[str] | None = None,
) -> tuple[float, float]:
    """Samples/s and bytes/s from start to end, in whole passes; None: one pass.

    A pass is broken off only where it takes long: some formats unpack at its beginning what comes later.
    """
    at_once = SCAN_ROWS if fields else int(np.clip(SCAN_BYTES / max(sample_bytes, 1), 1, SCAN_ROWS))
    # Once for nothing: libraries are imported.
    next(iter(reader.scan(at_once, fields)), None)
    done = size = 0
    began = time.perf_counter()
    while True:
        before = done
        for columns in reader.scan(at_once, fields):
            done += columns.rows
            size += touch(columns, whole=fields is not None)
            if seconds is not None and time.perf_counter() - began > 2 * seconds:
                break
        spent = time.perf_counter() - began
        if seconds is None or spent > seconds or done == before:
            return done / spent, size / spent


def touch(columns: Columns, *, whole: bool = False) -> int:
    """Read something of every page, as cells may be views of a file that nobody has read; their bytes.

    whole: read every byte of cells that lie side by side, as a query does.
    """
    total = 0
    for column in columns.values():
        data, starts, sizes = column_runs(column)
        size = int(sizes.clip(0).sum())
        if len(starts):
            first, end = int(starts.min()), int((starts + sizes.clip(0)).max())
            if whole and end - first == size:
                np.count_nonzero(data[first:end])
            else:
                int(data[first:end:PAGE].sum(dtype=np.int64))
        total += size
    return total
