"""Timing of epochs through the Loader and of scans, for all benches and for `advise`, and the machine's load.

Times are wall-clock times: a training run beside other processes loses what they take, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import platform
import re
import shutil
import subprocess
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ... import order as orders
from ..._version import __version__
from ...data.reader import Reader, ReaderWrapper
from ...data.sparse import SparseRows
from ...errors import OptionError
from ...loading.executor import PRODUCERS
from ...loading.loader import Loader
from ...ops import CenterCrop, Op, RandomHorizontalFlip, RandomResizedCrop
from ...schema import Bool, Bytes, Field, Float, Image, Int, Schema, Text
from ...schema.columns import I64, Columns, column_runs
from ...storage.platform import cpu_count, thread_ids, thread_times

# Short measurements grow batches until one takes this long. Smaller batches would measure the cost per batch.
BATCH_SECONDS = 0.012
# Bytes of a first batch, which is surely made in that time.
SMALL_BATCH_BYTES = 4 << 20
# Limits of a batch: bytes of cells, as large buffers come and go with the allocator, and bytes of pixels.
MAX_BATCH_BYTES, MAX_BATCH_PIXEL_BYTES = 8 << 20, 64 << 20
# Batches of an epoch of few samples.
MIN_BATCHES = 4
# Batches that count, after those that fill the threads: batches in flight at the end must not matter.
MIN_COUNTED_BATCHES = 8
# Few samples are repeated within one epoch up to so many batches: threads are idle between two epochs.
REPEATED_BATCHES = 64
# A slow epoch is stopped after so many times its seconds, but not before so many times SLOW_SECONDS.
MAX_OVERTIME, SLOW_SECONDS = 6, 0.1
SCAN_BYTES = 4 << 20
SCAN_ROWS = 4096
PAGE_BYTES = 4096
CHANNELS = 3


PIPELINES = ("train", "val", "none", "raw")


class Undecoded(ReaderWrapper):
    """A dataset whose images are plain bytes, so that nobody decodes them."""

    def __init__(self, base: Reader) -> None:
        super().__init__(base)
        self.schema = Schema(
            (name, Bytes(optional=field.optional) if isinstance(field, Image) else field)
            for name, field in base.schema.items()
        )


def image_fields(schema: Schema) -> list[str]:
    return [name for name, field in schema.items() if isinstance(field, Image)]


def column_of(schema: Schema) -> str:
    """The field that a query would look at: the first number or flag, else the first text, else the first."""
    for kinds in ((Int, Float, Bool), (Text,), (Field,)):
        for name, field in schema.items():
            if isinstance(field, kinds):
                return name
    raise OptionError("there are no fields")


def pipelines(schema: Schema, name: str, size: int) -> dict[str, list[Op]]:
    """The standard pipeline of that name for every image field; they draw the same boxes and flips."""
    steps: dict[str, Callable[[], list[Op]]] = {
        "train": lambda: [RandomResizedCrop(size, share="box"), RandomHorizontalFlip(share="flip")],
        "val": lambda: [CenterCrop(size)],
        "none": list,
        "raw": list,
    }
    return {field: steps[name]() for field in image_fields(schema)}


def batch_rows(batch: Mapping[str, Any]) -> int:
    """Return the number of samples of a batch."""
    value = next(iter(batch.values()))
    if isinstance(value, SparseRows):
        return value.shape[0]
    # Ragged values are (values, offsets), with one offset more than there are samples.
    return len(value[1]) - 1 if isinstance(value, tuple) else len(value)


@dataclasses.dataclass(frozen=True)
class EpochSettings:
    """Settings of a timed epoch. ``batch_size`` is the upper limit for :func:`quick_epoch`."""

    batch_size: int
    order: str = "random"
    pipeline: str = "train"
    size: int = 224
    workers: int | None = None

    def small_batch(self, schema: Schema, sample_bytes: float) -> int:
        """Return the size of a batch that is surely made quickly."""
        return self._batch(SMALL_BATCH_BYTES, SMALL_BATCH_BYTES, schema, sample_bytes)

    def large_batch(self, schema: Schema, sample_bytes: float) -> int:
        """Return the size of the largest batch of a short measurement."""
        return self._batch(MAX_BATCH_BYTES, MAX_BATCH_PIXEL_BYTES, schema, sample_bytes)

    def _batch(self, cell_bytes: int, pixel_bytes: int, schema: Schema, sample_bytes: float) -> int:
        """Return the samples, a power of two, that fit both budgets: bytes of cells and of pixels."""
        resized = len(image_fields(schema)) * (self.pipeline in ("train", "val"))
        output_bytes = CHANNELS * self.size**2 * resized
        return min(
            self.batch_size,
            _power_of_two(cell_bytes / max(sample_bytes, 1)),
            _power_of_two(pixel_bytes / max(output_bytes, 1)),
        )


@dataclasses.dataclass(frozen=True)
class EpochTiming:
    """Timing of an epoch of ``samples`` samples, the first batch after ``first_batch_seconds``.

    ``rate``: samples/s once the threads are busy; ``rate_with_start``: including the start. ``parts``:
    seconds by part of the pipeline, from the loader's statistics. ``core_share``: share of the time that
    threads got a core when they wanted one; less than 1 where other processes, or more threads than cores,
    compete for them. ``cpu_seconds``: CPU time of this process.
    """

    samples: int
    first_batch_seconds: float
    rate: float
    rate_with_start: float
    parts: Mapping[str, float]
    core_share: float = 1.0
    cpu_seconds: float = 0.0

    @property
    def undisturbed_rate(self) -> float:
        """Estimated samples/s without other processes.

        They stretch the time by as much as our threads wait for a core, but the threads of all cores cannot
        be faster than the CPU time that samples take.
        """
        return min(
            self.rate_with_start / self.core_share, cpu_count() * self.samples / max(self.cpu_seconds, 1e-6)
        )


def quick_epoch(
    reader: Reader,
    settings: EpochSettings,
    *,
    sample_bytes: float,
    seconds: float,
    batch_size: int = 0,
    **options: Any,
) -> tuple[EpochTiming, int]:
    """Time epochs for a short time, with the options of :func:`epoch`; return the timing and the batch size.

    The batch size grows from ``batch_size`` or a small one until a batch takes BATCH_SECONDS.
    """
    batch = max(batch_size, settings.small_batch(reader.schema, sample_bytes))
    largest = settings.large_batch(reader.schema, sample_bytes)
    while True:
        timing = epoch(reader, settings, batch_size=batch, seconds=seconds, **options)
        larger = min(largest, _power_of_two(BATCH_SECONDS * timing.rate))
        # Larger batches may be faster, and then may be larger still.
        if larger <= batch:
            return timing, batch
        batch = larger


def _power_of_two(size: float) -> int:
    """Round down to a power of two, so that similar speeds give the same batch size."""
    return 1 << int(math.log2(max(size, 1.0)))


def epoch(
    reader: Reader,
    settings: EpochSettings,
    *,
    batch_size: int,
    seconds: float | None,
    once: bool = False,
    indices: I64 | None = None,
    seed: int = 0,
    on_batch: Callable[[], None] = lambda: None,
) -> EpochTiming:
    """Time epochs through the Loader for about so many seconds; None: one complete epoch.

    ``once``: one epoch or its beginning, in which no sample repeats. ``indices``: only these samples.
    ``on_batch`` is called after every batch.
    """
    samples = np.arange(len(reader)) if indices is None else indices
    if once or seconds is None or settings.order in orders.BY_BLOCKS:
        batch_size = max(1, min(batch_size, len(samples) // MIN_BATCHES))
    else:
        indices = np.resize(samples, max(len(samples), REPEATED_BATCHES * batch_size))
    done = counted = batches = 0
    counted_seconds = first_batch_seconds = 0.0
    with contextlib.ExitStack() as stack:
        # Warnings about the cost of an order over the network: that cost is being measured.
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        loader = stack.enter_context(
            contextlib.closing(
                Loader(
                    reader, batch_size, order=settings.order, rank=0, world_size=1, indices=indices,
                    workers=settings.workers, seed=seed,
                    pipelines=pipelines(reader.schema, settings.pipeline, settings.size),
                )
            )
        )  # fmt: skip
        # The system has to clear the pages of new buffers: start counting once each was used.
        warmup = min(loader.prefetch_batches + PRODUCERS, len(loader) // 2)
        began = now = time.perf_counter()
        cores, cpu_began = core_seconds(), time.process_time()
        finished = False
        while not finished:
            start = epoch_began = time.perf_counter()
            for number, batch in enumerate(loader):
                now = time.perf_counter()
                done += batch_rows(batch)
                first_batch_seconds = first_batch_seconds or now - epoch_began
                if number < warmup:
                    start = now
                else:
                    counted += batch_rows(batch)
                    batches += 1
                on_batch()
                if seconds is not None:
                    # Producers work in parallel: batches come in groups.
                    is_group = batches and batches % PRODUCERS == 0
                    enough = once or (is_group and batches >= MIN_COUNTED_BATCHES)
                    overtime = now - began >= MAX_OVERTIME * max(seconds, SLOW_SECONDS)
                    finished = overtime or bool(now - began >= seconds and enough)
                if finished:
                    break
            counted_seconds += now - start
            finished = finished or once or seconds is None
            warmup = min(PRODUCERS, warmup)
        share, cpu_seconds = core_share(cores), time.process_time() - cpu_began
        stats = loader.stats()
    rate_with_start = done / max(now - began, 1e-9)
    rate = counted / counted_seconds if counted and counted_seconds else rate_with_start
    parts = {name: float(stats[name]) for name in ("storage", "decode", "transforms")}
    return EpochTiming(done, first_batch_seconds, rate, rate_with_start, parts, share, cpu_seconds)


def scan(
    reader: Reader, *, sample_bytes: float, seconds: float | None, fields: Sequence[str] | None = None
) -> tuple[float, float]:
    """Return samples/s and bytes/s of complete passes from start to end; seconds None: one pass.

    Only a slow pass is stopped early: some formats decompress at its beginning what comes later.
    """
    chunk_rows = SCAN_ROWS if fields else int(np.clip(SCAN_BYTES / max(sample_bytes, 1), 1, SCAN_ROWS))
    # Not timed: imports libraries.
    next(iter(reader.scan(chunk_rows, fields)), None)
    done = size = 0
    began = time.perf_counter()
    while True:
        done_before = done
        for columns in reader.scan(chunk_rows, fields):
            done += columns.rows
            size += touch(columns, every_byte=fields is not None)
            if seconds is not None and time.perf_counter() - began > 2 * seconds:
                break
        spent = time.perf_counter() - began
        if seconds is None or spent > seconds or done == done_before:
            return done / spent, size / spent


def order_rates(
    reader: Reader,
    epochs: Mapping[str, orders.Order],
    *,
    batch_size: int,
    rounds: int,
    seconds: float,
    fields: Sequence[str] | None = None,
    progress: Callable[[int, int], object] = lambda done, of: None,
) -> dict[str, list[float]]:
    """Return samples/s of reading in every order in turn; a round goes on where the one before stopped."""
    rates: dict[str, list[float]] = {name: [] for name in epochs}
    positions = dict.fromkeys(epochs, 0)
    for number in range(rounds * len(epochs)):
        name, order = list(epochs.items())[number % len(epochs)]
        began, done, spent = time.perf_counter(), 0, 0.0
        while not done or spent < seconds:
            batch = order[positions[name] : positions[name] + batch_size]
            reader.read(batch, fields)
            done += len(batch)
            end = positions[name] + len(batch)
            positions[name] = 0 if end >= len(order) else end
            spent = time.perf_counter() - began
        rates[name].append(done / spent)
        progress(number + 1, rounds * len(epochs))
    return rates


def touch(columns: Columns, *, every_byte: bool = False) -> int:
    """Read a byte of every page of cells, which may be views of a mapped file; return their bytes.

    every_byte: read all bytes of contiguous cells, as a query does.
    """
    total = 0
    for column in columns.values():
        data, starts, sizes = column_runs(column)
        size = int(sizes.clip(0).sum())
        if len(starts):
            first, end = int(starts.min()), int((starts + sizes.clip(0)).max())
            if every_byte and end - first == size:
                np.count_nonzero(data[first:end])
            else:
                int(data[first:end:PAGE_BYTES].sum(dtype=np.int64))
        total += size
    return total


# -- the machine ---------------------------------------------------------------------------------------


def describe() -> str:
    """Processor, cores, memory, system and versions; what a reader of figures has to know."""
    cores = cpu_count()
    parts = [
        _processor(),
        f"{cores} core{'' if cores == 1 else 's'}",
        f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB of memory",
        f"{platform.system()} {platform.release()}",
        f"Python {platform.python_version()}",
        f"batchplant {__version__}",
    ]
    return ", ".join(parts)


def busy() -> str | None:
    """A sentence on the load where more threads want to run than there are cores; else empty."""
    cores, load = cpu_count(), os.getloadavg()[0]
    if load <= cores:
        return None
    return f"a load of {load:.1f} on {cores} core{'' if cores == 1 else 's'}"


def core_seconds() -> tuple[float, float]:
    """Seconds that the living threads of this process ran, and that they waited for a core; 0 if unknown."""
    times = [thread_times(thread) for thread in thread_ids()]
    return sum(ran for ran, _ in times), sum(waited for _, waited in times)


def core_share(since: tuple[float, float]) -> float:
    """Fraction of the time that our threads got a core when they wanted one, since :func:`core_seconds`."""
    ran, waited = (max(0.0, now - then) for now, then in zip(core_seconds(), since, strict=True))
    return ran / (ran + waited) if ran else 1.0


def _processor() -> str:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        # ARM's /proc/cpuinfo has numbers only; lscpu knows their names.
        text = Path("/proc/cpuinfo").read_text()
        if shutil.which("lscpu"):
            text = subprocess.run(
                ["lscpu"], capture_output=True, text=True, timeout=10, env={**os.environ, "LC_ALL": "C"}
            ).stdout
        match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE | re.IGNORECASE)
        if match:
            return f"{' '.join(match[1].split())} ({platform.machine()})"
    return platform.machine()
