"""How large should a row group, a chunk or a shard be? Bytes fetched, counted at a server, and speed by size.

``measure`` writes some samples with units of every size, reads them in every order through a server of our
own that counts (:mod:`.serving`), and from the disk against the clock. ``recommend`` says which size to take.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ... import order as orders
from ...data.reader import Reader
from ...errors import OptionError, SchemaError
from ...formats.registry import get_format
from ...formats.registry import open as open_reader
from ...jobs.convert import convert
from ...schema import Bool, Field, Float, Int, Tensor
from ...schema.columns import I64
from .choice import refusal
from .scratch import scratch_folder
from .serving import Served, serving
from .staging import mean_size, picked

ORDERS = ("sequential", "quasi_random", "random")
# What is measured where nobody says how much.
TAKEN_BYTES, TAKEN_SAMPLES = 64 << 20, 20_000
SMALLEST = 16_000
# Sizes where nobody names any: each so many times the one before.
STEP, STEPS = 4, 5
# So many times as large as memory is the data: where it fits, its chunks hardly matter.
SHARE = 4
# While the last samples of a window are taken, the first of the next one are.
WINDOWS = 2
# Seconds after which reading through the server stops; what was read until then tells enough.
LONGEST = 1.0
# So many blocks have to be mixed for an order that is worth the name.
MIXED = 8
# What costs this much more is as good.
ALIKE = 1.1


@dataclasses.dataclass(frozen=True)
class Layout:
    """A format whose data comes in units of a size that its writer takes."""

    format: str
    unit: str
    suffix: str
    # The option of the writer: bytes, or samples; None: files of their own, by the size of a shard.
    option: str | None
    in_bytes: bool = False
    # How a reader is told to keep so much in memory.
    cache: str | None = "cache"
    also: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # The order that its size is chosen for, whatever is asked: samples of shards are read where they lie.
    judged: str | None = None

    def writing(self, size: int, samples: int) -> tuple[dict[str, Any], str]:
        """What ``convert`` is told, and how the same is said at the command line."""
        if self.option is None:
            return {"shard_size": size}, f"--shard-size {size}"
        given = {**self.also, self.option: size if self.in_bytes else samples}
        said = " ".join(f"--to-option {name}={value}" for name, value in given.items())
        return {"target_options": given}, said

    def refuses(self, schema: Mapping[str, Field]) -> str | None:
        """Why these fields cannot be measured so."""
        if self.option is not None and not self.in_bytes:
            varying = [name for name, field in schema.items() if not _fixed(field)]
            if varying:
                return f"cells of {', '.join(varying)} vary in size, and such chunks are cut by other rules"
        return refusal(get_format(self.format), schema)


LAYOUTS = {
    one.format: one
    for one in (
        Layout("parquet", "row group", ".parquet", "row_group_size", in_bytes=True),
        # Without compression it is contiguous, and every sample is read where it lies.
        Layout("hdf5", "chunk", ".h5", "chunk", also={"compression": "gzip"}),
        Layout("zarr", "chunk", ".zarr", "chunk_samples"),
        Layout("webdataset", "shard", ".tar", None, cache=None, judged="sequential"),
    )
}


@dataclasses.dataclass(frozen=True)
class Reading:
    """What an epoch in one order cost, opening included; ``mixes``: units that quasi_random has in hand."""

    amplification: float
    fetched: int
    requests: int
    samples: int
    mixes: int | None
    rate: float
    best: float


@dataclasses.dataclass(frozen=True)
class Sized:
    """One size of one layout. ``size``: as asked for; ``unit_bytes``: what a unit has on average."""

    format: str
    unit: str
    size: int
    said: str
    units: int
    unit_bytes: float
    unit_samples: float
    samples: int
    open_requests: int
    orders: Mapping[str, Reading]

    def cost(self, order: str, request_bytes: int) -> float:
        """Bytes for a sample, where a request costs as much as so many bytes."""
        read = self.orders[order]
        return (read.fetched + read.requests * request_bytes) / read.samples


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is measured and how."""

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


def taken(reader: Reader, limit: int | None) -> tuple[Reader, int]:
    """Some samples in runs, spread over the dataset, and the bytes of their cells."""
    if not len(reader):
        raise OptionError("there are no samples", path=reader.path)
    each = max(1.0, mean_size(reader))
    count = min(TAKEN_SAMPLES, math.ceil(TAKEN_BYTES / each)) if limit is None else limit
    rows = picked(len(reader), min(count, len(reader)))
    return reader.subset(rows), round(each * len(rows))


def sizes_for(data: int) -> list[int]:
    """The largest is half of the data; as people write numbers."""
    found = [data // 2 // STEP**step for step in reversed(range(STEPS))]
    return sorted({max(SMALLEST, int(float(f"{one:.1e}"))) for one in found})


def measure(
    reader: Reader,
    data: int,
    layouts: Sequence[Layout],
    sizes: Sequence[int],
    plan: Plan,
    *,
    scratch: str | None = None,
    progress: Callable[[int, int], Any] = lambda done, steps: None,
) -> list[Sized]:
    """A row for each layout and size; ``data``: bytes of the samples."""
    steps, done = len(layouts) * len(sizes), 0
    found: list[Sized] = []
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(
            scratch_folder(scratch, reader.path, 2 * data, what="the files take", less="a smaller --limit")
        )
        served = stack.enter_context(serving(folder))
        for layout in layouts:
            seen: set[str] = set()
            for size in sizes:
                one = _one(reader, data, layout, size, plan, served, seen)
                found += [] if one is None else [one]
                done += 1
                progress(done, steps)
    return found


def _one(
    reader: Reader, data: int, layout: Layout, size: int, plan: Plan, served: Served, seen: set[str]
) -> Sized | None:
    """One size, measured and removed again; None where it is the same as one before."""
    samples = max(1, round(size * len(reader) / data))
    writing, said = layout.writing(size, samples)
    if said in seen:
        return None
    seen.add(said)
    folder = served.folder / f"{layout.format}-{size}"
    folder.mkdir()
    try:
        made = convert(reader, folder / f"data{layout.suffix}", target_format=layout.format, **writing)
        if layout.option is None:
            # As who keeps shards on a server should: one request tells what is in each.
            open_reader(made.files, format=layout.format, index="write").close()
        return _measured(made.files, layout, size, said, plan, served)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measured(files: list[str], layout: Layout, size: int, said: str, plan: Plan, served: Served) -> Sized:
    options: dict[str, Any] = {} if layout.cache is None else {layout.cache: plan.memory}
    with open_reader(files, format=layout.format, **options) as local:
        blocks = local.blocks()
        parts = 1 if blocks is None else len(np.unique(blocks))
        stored = max(1, _stored(local, files))
        made = {
            name: _order(name, len(local), blocks, plan.memory * parts // (WINDOWS * stored), plan.seed)
            for name in ORDERS
            if name not in orders.BY_BLOCKS or blocks is not None
        }
        rates = _rates(local, {name: order for name, (order, _) in made.items()}, plan)
    urls = [served.at(path) for path in files]
    found: dict[str, Reading] = {}
    opened: list[int] = []
    for name, (order, mixes) in made.items():
        with _remote(urls, layout, options, plan, served) as (distant, (requests, fetched)):
            opened.append(requests)
            read = 0
            began = time.monotonic()
            while read < len(order) and time.monotonic() - began < LONGEST:
                batch = order[read : read + plan.batch_size]
                distant.read(batch)
                read += len(batch)
        # After it was closed: nothing is under way any more.
        part = read / len(order)
        fetched, requests = round(served.bytes + part * fetched), round(served.requests + part * requests)
        found[name] = Reading(
            fetched / max(1.0, part * stored), fetched, requests, read, mixes,
            statistics.median(rates[name]), max(rates[name]),
        )  # fmt: skip
    length = len(next(iter(made.values()))[0])
    # A large shard has several blocks.
    units = len(files) if layout.option is None else parts
    return Sized(
        layout.format, layout.unit, size, said, units, stored / units, length / units, length,
        min(opened), found,
    )  # fmt: skip


def _stored(reader: Reader, files: list[str]) -> int:
    """The bytes that all samples take in their files, each counted once."""
    spans = reader.ranges(None, np.arange(len(reader)))
    if spans is None:
        return sum(
            one.stat().st_size
            for path in map(Path, files)
            for one in ([path] if path.is_file() else path.rglob("*"))
            if one.is_file()
        )
    runs = np.unique(np.stack([spans.file.astype(np.int64), spans.start, spans.size]), axis=1)
    return int(runs[2].clip(0).sum())


def _order(
    name: str, count: int, blocks: I64 | None, window: int, seed: int
) -> tuple[orders.Order, int | None]:
    if name not in orders.BY_BLOCKS:
        return orders.make(name, count, seed=seed, epoch=0), None
    units = len(np.unique(blocks)) if blocks is not None else 1
    window = max(1, window)
    return orders.make(name, count, seed=seed, epoch=0, blocks=blocks, window=window), min(window, units)


@contextlib.contextmanager
def _remote(
    urls: list[str], layout: Layout, options: dict[str, Any], plan: Plan, served: Served
) -> Iterator[tuple[Reader, tuple[int, int]]]:
    """The same files over the network, and the requests and bytes that opening them took."""
    served.begin()
    with open_reader(urls, format=layout.format, fetch_bytes=plan.memory, **options) as distant:
        opening = served.requests, served.bytes
        served.begin()
        yield distant, opening


def _rates(reader: Reader, made: Mapping[str, orders.Order], plan: Plan) -> dict[str, list[float]]:
    """Samples/s from the disk, or rather its cache, of every order in turn."""
    rates: dict[str, list[float]] = {name: [] for name in made}
    at = dict.fromkeys(made, 0)
    for _ in range(plan.rounds):
        for name, order in made.items():
            began, done = time.perf_counter(), 0
            while True:
                batch = order[at[name] : at[name] + plan.batch_size]
                reader.read(batch)
                done += len(batch)
                at[name] = 0 if at[name] + len(batch) >= len(order) else at[name] + len(batch)
                spent = time.perf_counter() - began
                if spent >= plan.seconds:
                    break
            rates[name].append(done / spent)
    return rates


def recommend(rows: Sequence[Sized], order: str, request_bytes: int) -> tuple[Sized, str]:
    """The size to take for an order, and why, in one sentence."""
    order = LAYOUTS[rows[0].format].judged or order
    if not any(order in one.orders for one in rows):
        order = "random"

    def read(one: Sized) -> Reading:
        return one.orders[order]

    most = max(read(one).mixes or 0 for one in rows)
    mixing = [one for one in rows if (read(one).mixes or 0) >= min(MIXED, most)]
    least = min(one.cost(order, request_bytes) for one in mixing)
    good = [one for one in mixing if one.cost(order, request_bytes) <= ALIKE * least]
    best = max(good, key=lambda one: read(one).rate)
    mixed = f", and mixes {read(best).mixes} {best.unit}s at a time" if read(best).mixes else ""
    said = f"{order} fetches {_times(read(best))} what it needs, {_requests(read(best))}{mixed}"
    smaller = [one for one in rows if one.size < best.size]
    larger = [one for one in rows if one.size > best.size]
    if smaller:
        said += f"; smaller ones: {_requests(read(smaller[-1]))}, {_times(read(smaller[-1]))}"
    if larger:
        fewer = f", mixing {read(larger[0]).mixes}" if read(larger[0]).mixes else ""
        said += f"; larger ones: {_times(read(larger[0]))}, {_requests(read(larger[0]))}{fewer}"
    return best, said


def _times(one: Reading) -> str:
    return f"{one.amplification:.1f}×"


def _requests(one: Reading) -> str:
    return f"{1000 * one.requests / one.samples:,.0f} requests for 1,000 samples"


def layouts_for(
    names: Sequence[str] | None, schema: Mapping[str, Field]
) -> tuple[list[Layout], dict[str, str]]:
    """Those to measure, and why the others are left out; one that is named and cannot be is an error."""
    for name in names or ():
        if name not in LAYOUTS:
            raise OptionError(f"chunks are measured of {', '.join(LAYOUTS)}, not of {name!r}")
    left = {
        name: why for name, one in LAYOUTS.items()
        if (names is None or name in names) and (why := one.refuses(schema)) is not None
    }  # fmt: skip
    found = [one for name, one in LAYOUTS.items() if (names is None or name in names) and name not in left]
    if names is not None and left:
        raise SchemaError("; ".join(f"{name}: {why}" for name, why in left.items()))
    if not found:
        raise OptionError("; ".join(f"{name}: {why}" for name, why in left.items()))
    return found, left
