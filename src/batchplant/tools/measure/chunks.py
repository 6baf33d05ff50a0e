"""The best size of row groups, chunks and shards: bytes fetched from a server, and speed, by size.

``measure`` writes some samples with units of every size, reads them in every order through a local server
that counts bytes and requests (:mod:`.serving`), and times reads from the disk. ``recommend`` picks a size.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ... import order as orders
from ...data.reader import Reader
from ...errors import OptionError, SchemaError
from ...formats.registry import get_format
from ...formats.registry import open as open_reader
from ...schema import Bool, Field, Float, Int, Tensor
from ...storage.remote import totals
from .. import Document
from . import timing
from .choice import Candidate, refusal
from .harness import BATCH_BYTES, Harness, Stored, mean_size, scratch_folder, spread_rows
from .serving import serving

ORDERS = ("sequential", "quasi_random", "random")
# Bytes and samples that are measured by default.
DEFAULT_BYTES, DEFAULT_SAMPLES = 64 << 20, 20_000
MIN_SIZE_BYTES = 16_000
# Default sizes: their number, and the factor between two.
SIZE_FACTOR, SIZE_COUNT = 4, 5
# The data is so many times as large as the memory; where it fits, chunks hardly matter.
DATA_TO_MEMORY = 4
# The end of a window overlaps with the beginning of the next one.
WINDOWS = 2
# Reading through the server stops after so long.
MAX_REMOTE_SECONDS = 1.0
# Blocks that quasi_random has to mix for a good order.
MIN_MIXED_BLOCKS = 8
# Sizes that cost up to so many times the best are equally good.
MAX_COST_RATIO = 1.1


@dataclasses.dataclass(frozen=True)
class Layout:
    """A format whose data comes in units of a size that its writer takes."""

    format: str
    unit: str
    suffix: str
    # The option of the writer: bytes, or samples; None: files of their own, by the size of a shard.
    option: str | None
    in_bytes: bool = False
    # The reader's option for the bytes that it caches.
    cache: str | None = "cache"
    also: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # The order that its size is chosen for, whatever the user asks: shards are read sequentially.
    judged: str | None = None

    def candidate(self, size: int, samples: int) -> tuple[Candidate, str]:
        """Return the candidate with units of a size, and the same as flags of ``convert``."""
        if self.option is None:
            return Candidate(self.format, {"shard_size": size}, self.suffix), f"--shard-size {size}"
        options = {**self.also, self.option: size if self.in_bytes else samples}
        flags = " ".join(f"--to-option {name}={value}" for name, value in options.items())
        return Candidate(self.format, options, self.suffix), flags

    def refuses(self, schema: Mapping[str, Field]) -> str | None:
        """Return why a dataset with these fields cannot be measured; None if it can."""
        if self.option is not None and not self.in_bytes:
            varying = [name for name, field in schema.items() if not _fixed(field)]
            if varying:
                return f"cells of {', '.join(varying)} vary in size, and such chunks are cut by other rules"
        return refusal(get_format(self.format), schema)


LAYOUTS = {
    layout.format: layout
    for layout in (
        Layout("parquet", "row group", ".parquet", "row_group_size", in_bytes=True),
        # Without compression it is contiguous, and every sample is read where it lies.
        Layout("hdf5", "chunk", ".h5", "chunk", also={"compression": "gzip"}),
        Layout("zarr", "chunk", ".zarr", "chunk_samples"),
        Layout("webdataset", "shard", ".tar", None, cache=None, judged="sequential"),
    )
}


@dataclasses.dataclass(frozen=True)
class Reading:
    """Cost of an epoch in one order, including opening; ``mixes``: units that quasi_random mixes."""

    amplification: float
    fetched: int
    requests: int
    samples: int
    mixes: int | None
    rate: float
    best: float


@dataclasses.dataclass(frozen=True)
class SizeResult:
    """Measurements of one size of a layout. ``size``: requested; ``unit_bytes``: mean bytes of a unit."""

    format: str
    unit: str
    size: int
    flags: str
    units: int
    unit_bytes: float
    unit_samples: float
    samples: int
    open_requests: int
    orders: Mapping[str, Reading]

    def cost(self, order: str, request_bytes: int) -> float:
        """Return the bytes per sample, where a request costs as much as so many bytes."""
        reading = self.orders[order]
        return (reading.fetched + reading.requests * request_bytes) / reading.samples


@dataclasses.dataclass(frozen=True)
class Plan:
    """Settings of the measurement."""

    memory: int
    batch_size: int
    seconds: float
    rounds: int
    seed: int


def _fixed(field: Field) -> bool:
    if field.optional:
        return False
    if isinstance(field, Tensor):
        return None not in field.shape
    return isinstance(field, Int | Float | Bool)


def take_samples(reader: Reader, limit: int | None) -> tuple[Reader, int]:
    """Return some samples in runs, spread over the dataset, and the bytes of their cells."""
    if not len(reader):
        raise OptionError("there are no samples", path=reader.path)
    sample_bytes = max(1.0, mean_size(reader))
    count = min(DEFAULT_SAMPLES, math.ceil(DEFAULT_BYTES / sample_bytes)) if limit is None else limit
    rows = spread_rows(len(reader), min(count, len(reader)))
    return reader.subset(rows), round(sample_bytes * len(rows))


def sizes_for(data: int) -> list[int]:
    """Return round sizes, the largest half of the data."""
    sizes = [data // 2 // SIZE_FACTOR**step for step in reversed(range(SIZE_COUNT))]
    return sorted({max(MIN_SIZE_BYTES, int(float(f"{size:.1e}"))) for size in sizes})


def measure(
    reader: Reader,
    data: int,
    layouts: Sequence[Layout],
    sizes: Sequence[int],
    plan: Plan,
    *,
    scratch: str | None = None,
    progress: Callable[[int, int], object] = lambda done, steps: None,
) -> list[SizeResult]:
    """Measure every layout with units of every size; ``data``: bytes of the samples."""
    steps, done = len(layouts) * len(sizes), 0
    results: list[SizeResult] = []
    with (
        scratch_folder(
            scratch, reader.path, 2 * data, what="the files take", less="a smaller --limit"
        ) as folder,
        serving(folder) as url,
    ):
        harness = Harness(str(folder))
        for layout in layouts:
            measured: set[str] = set()
            for size in sizes:
                samples = max(1, round(size * len(reader) / data))
                candidate, flags = layout.candidate(size, samples)
                # Different sizes may round to the same number of samples.
                if flags not in measured:
                    measured.add(flags)
                    batches = reader.scan(max(1, BATCH_BYTES * len(reader) // data))
                    stored = harness.store(batches, reader.schema, candidate, "data", length=len(reader))
                    if layout.option is None:
                        # As recommended for shards on a server: one request for the index of each.
                        open_reader(stored.paths, format=layout.format, index="write").close()
                    results.append(_measure_size(harness, stored, layout, size, flags, plan, url))
                    harness.remove("data")
                done += 1
                progress(done, steps)
    return results


def _measure_size(
    harness: Harness,
    stored: Stored,
    layout: Layout,
    size: int,
    flags: str,
    plan: Plan,
    url: Callable[[str], str],
) -> SizeResult:
    options: Document = {} if layout.cache is None else {layout.cache: plan.memory}
    with harness.open(stored, **options) as local:
        blocks = local.blocks()
        block_count = 1 if blocks is None else len(np.unique(blocks))
        needed = max(1, _needed_bytes(local, stored))
        window = max(1, plan.memory * block_count // (WINDOWS * needed))
        epochs = {}
        for name in ORDERS:
            by_blocks = {"blocks": blocks, "window": window} if name in orders.BY_BLOCKS else {}
            if not by_blocks or blocks is not None:
                epochs[name] = orders.make(name, len(local), seed=plan.seed, epoch=0, **by_blocks)
        rates = timing.order_rates(
            local, epochs, batch_size=plan.batch_size, rounds=plan.rounds, seconds=plan.seconds
        )
    readings: dict[str, Reading] = {}
    open_requests: list[int] = []
    for name, order in epochs.items():
        before = totals()
        with open_reader(
            [url(path) for path in stored.paths], format=layout.format, fetch_bytes=plan.memory, **options
        ) as reader:
            opened = totals()
            done = 0
            began = time.monotonic()
            while done < len(order) and time.monotonic() - began < MAX_REMOTE_SECONDS:
                batch = order[done : done + plan.batch_size]
                reader.read(batch)
                done += len(batch)
        # Closed: no request is in flight any more.
        share = done / len(order)
        requests, fetched = (
            round(end - start + share * (start - first))
            for end, start, first in zip(totals(), opened, before, strict=True)
        )
        open_requests.append(opened[0] - before[0])
        readings[name] = Reading(
            fetched / max(1.0, share * needed), fetched, requests, done,
            min(window, block_count) if name in orders.BY_BLOCKS else None,
            statistics.median(rates[name]), max(rates[name]),
        )  # fmt: skip
    # A large shard has several blocks.
    units, length = len(stored.paths) if layout.option is None else block_count, stored.samples
    return SizeResult(
        layout.format, layout.unit, size, flags, units, needed / units, length / units, length,
        min(open_requests), readings,
    )  # fmt: skip


def _needed_bytes(reader: Reader, stored: Stored) -> int:
    """Return the bytes of all samples in their files, each counted once."""
    spans = reader.ranges(None, np.arange(len(reader)))
    if spans is None:
        return stored.bytes
    runs = np.unique(np.stack([spans.file.astype(np.int64), spans.start, spans.size]), axis=1)
    return int(runs[2].clip(0).sum())


def recommend(rows: Sequence[SizeResult], order: str, request_bytes: int) -> tuple[SizeResult, str]:
    """Return the best size for an order, and the reason in one sentence."""
    order = LAYOUTS[rows[0].format].judged or order
    if not any(order in result.orders for result in rows):
        order = "random"

    def read(result: SizeResult) -> Reading:
        return result.orders[order]

    max_mixes = max(read(result).mixes or 0 for result in rows)
    mixing = [result for result in rows if (read(result).mixes or 0) >= min(MIN_MIXED_BLOCKS, max_mixes)]
    lowest = min(result.cost(order, request_bytes) for result in mixing)
    good = [result for result in mixing if result.cost(order, request_bytes) <= MAX_COST_RATIO * lowest]
    best = max(good, key=lambda result: read(result).rate)
    mixed = f", and mixes {read(best).mixes} {best.unit}s at a time" if read(best).mixes else ""
    message = f"{order} fetches {_times(read(best))} what it needs, {_requests(read(best))}{mixed}"
    smaller = [result for result in rows if result.size < best.size]
    larger = [result for result in rows if result.size > best.size]
    if smaller:
        message += f"; smaller ones: {_requests(read(smaller[-1]))}, {_times(read(smaller[-1]))}"
    if larger:
        fewer = f", mixing {read(larger[0]).mixes}" if read(larger[0]).mixes else ""
        message += f"; larger ones: {_times(read(larger[0]))}, {_requests(read(larger[0]))}{fewer}"
    return best, message


def _times(reading: Reading) -> str:
    return f"{reading.amplification:.1f}×"


def _requests(reading: Reading) -> str:
    return f"{1000 * reading.requests / reading.samples:,.0f} requests for 1,000 samples"


def layouts_for(
    names: Sequence[str] | None, schema: Mapping[str, Field]
) -> tuple[list[Layout], dict[str, str]]:
    """Return the layouts to measure, and why others are left out; raise for a named one."""
    for name in names or ():
        if name not in LAYOUTS:
            raise OptionError(f"chunks are measured of {', '.join(LAYOUTS)}, not of {name!r}")
    refused = {
        name: why for name, layout in LAYOUTS.items()
        if (names is None or name in names) and (why := layout.refuses(schema)) is not None
    }  # fmt: skip
    layouts = [
        layout for name, layout in LAYOUTS.items() if (names is None or name in names) and name not in refused
    ]
    if names is not None and refused:
        raise SchemaError("; ".join(f"{name}: {why}" for name, why in refused.items()))
    if not layouts:
        raise OptionError("; ".join(f"{name}: {why}" for name, why in refused.items()))
    return layouts, refused
