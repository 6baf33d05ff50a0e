"""Ways to store a dataset, each tried on a few of its samples, and what a trial predicts for all of them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...codecs.media.image_rules import ImageOptions
from ...data.reader import Reader
from ...errors import BatchplantError
from ...formats.base.format import Format
from ...formats.base.options import own_options
from ...formats.registry import open as open_reader
from ...formats.registry import size_of as bytes_of
from ...jobs.convert import convert
from ...schema import Image, Schema
from ...schema.columns import I64, Columns
from ..measure import timing
from ..measure.machine import core_seconds, core_share
from ..measure.staging import QUICK_SAMPLES, size_of
from .answers import Answers
from .facts import Facts
from .machine import Machine

# The figure that a goal is about: its name, whether more is better, and what it is in words.
FIGURES = {
    "train": ("epoch_rate", True, "samples/s of a shuffled epoch through the Loader"),
    "stream": ("epoch_rate", True, "samples/s of an epoch in order through the Loader"),
    "analyse": ("column_rate", True, "time to open it and read one column"),
    "archive": ("bytes", False, "bytes on disk"),
    "share": ("bytes", False, "bytes on disk"),
}
ORDERS = {"stream": "sequential"}

# -- ways ----------------------------------------------------------------------------------------------

# Best first, of those that a format knows: the smallest, or what every reader of the format has.
PACKERS = {"small": ("zstd", "brotli", "gzip", "lz4", "lzf"), "known": ("gzip", "zstd", "lz4", "lzf")}
LEVEL = 9
# Names that writers have for the same thing: bytes in a block, samples in a chunk.
UNIT_NAMES = ("row_group_size", "batch_size")
CHUNK_NAMES = ("chunk_samples", "chunk")
IMAGE_SETTINGS = ("max_resolution", "image_format", "quality")


@dataclasses.dataclass(frozen=True)
class Way:
    """A format, the options of its writer, how images are stored. ``stays``: the dataset as it lies.

    ``note``: what else is different from the dataset as it lies.
    """

    format: str
    suffix: str = ""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    images: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    stays: bool = False
    note: str = ""

    @property
    def label(self) -> str:
        options = {**self.options, **self.images}
        words = [f"{name.replace('_', ' ')} {_shown(value)}" for name, value in options.items()]
        details = ", ".join([*words, *([self.note] if self.note else [])])
        return f"{self.format}{' as it is' if self.stays else ''}{f' ({details})' if details else ''}"

    @property
    def image_options(self) -> ImageOptions:
        return ImageOptions(**self.images)


def _shown(value: Any) -> str:
    return f"{value >> 20} MiB" if isinstance(value, int) and value >= 1 << 20 else str(value)


def way_of(found: Format, settings: Mapping[str, Any], schema: Schema, *, source: str = "") -> Way:
    """How these settings are written in a format, as far as it knows them.

    source: the format that the dataset has. What changes in a file of the same format is named, even where
    the writer does it by default.
    """
    own = own_options(found.writer) if found.writer else {}
    options: dict[str, Any] = {}
    suffix = "".join(found.suffixes[:1])
    if "compress" in settings:
        options, suffix = _compressed(found, own, suffix, PACKERS[settings["compress"]])
    if "unit_bytes" in settings:
        options |= {name: settings["unit_bytes"] for name in UNIT_NAMES if name in own}
    if "chunk_samples" in settings:
        options |= {name: settings["chunk_samples"] for name in CHUNK_NAMES if name in own}
    rewritten = found.name == source and bool(settings.get("rewrite"))
    if not rewritten:
        # What the writer does by itself need not be said.
        options = {name: value for name, value in options.items() if own[name].default != value}
    has_images = any(isinstance(field, Image) for field in schema.values())
    images = {name: settings[name] for name in IMAGE_SETTINGS if name in settings} if has_images else {}
    note = "written anew" if rewritten and not options and not images else ""
    return Way(found.name, suffix, options, images, note=note)


def raw_of(way: Way) -> Way:
    """The same with images as raw pixels: nothing to decode, for a multiple of the space."""
    kept = {name: value for name, value in way.images.items() if name == "max_resolution"}
    return dataclasses.replace(way, images={**kept, "image_format": "raw"})


def _compressed(
    found: Format, own: Mapping[str, Any], suffix: str, packers: tuple[str, ...]
) -> tuple[dict[str, Any], str]:
    packer = next((one for one in packers if one in found.can.compression), None)
    if packer is None:
        return {}, suffix
    if "compression" in own:
        # 9 is hard for each of them, and quick enough.
        return {"compression": packer, **({"level": LEVEL} if "level" in own else {})}, suffix
    ending = {"zstd": ".zst", "gzip": ".gz"}.get(packer, "")
    return {}, next((one for one in found.suffixes if ending and one.endswith(ending)), suffix)


# -- trials --------------------------------------------------------------------------------------------

# A pass over few samples is mostly its start, and there are fewer formats to scan than to load from.
BYTES, SCANNED_BYTES = 12 << 20, 32 << 20
SCANNED_SAMPLES = 4 * QUICK_SAMPLES
LEAST = 8
# Runs of neighbours, spread over the dataset: what compresses well does so by its neighbours.
RUNS = 8
# A whole epoch over the network, unless it takes longer.
DISTANT_SECONDS = 0.5
# Samples of the first conversion, which shows what every conversion costs whatever its size.
FIRST = 8


class Held(Reader):
    """Samples whose cells are in memory, so that no trial pays for reading the source."""

    def __init__(self, path: str, schema: Schema, columns: Columns) -> None:
        self.path, self.schema, self.length, self._columns = path, schema, columns.rows, columns

    @property
    def sample_bytes(self) -> int:
        return size_of(self._columns) // max(len(self), 1)

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        return Columns((name, self._columns[name]) for name in fields).take(indices)


def hold(reader: Reader, facts: Facts, *, scanned: bool = False) -> tuple[Held, float]:
    """Some samples in memory, and the seconds that reading one of them took; more where they are scanned."""
    size, most = (SCANNED_BYTES, SCANNED_SAMPLES) if scanned else (BYTES, QUICK_SAMPLES)
    count = int(np.clip(size / max(facts.sample_bytes, 1), LEAST, most))
    rows = pilot_rows(len(reader), count)
    began = time.perf_counter()
    columns = reader.read(rows)
    return Held(reader.path, reader.schema, columns), (time.perf_counter() - began) / max(len(rows), 1)


def pilot_rows(samples: int, count: int) -> I64:
    """``count`` samples in runs of neighbours; all, where there are no more."""
    if samples <= count:
        return np.arange(samples)
    each = max(1, count // RUNS)
    starts = np.linspace(0, samples - each, RUNS).astype(np.int64)
    return np.unique((starts[:, None] + np.arange(each)).ravel())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """Figures of a way on a few samples. Rates are samples/s, None where they were not tried.

    bytes and seconds of a conversion grow by so much with each sample, from what every conversion costs.
    column_rate: rows/s of one column, and open_seconds: to open the file before.
    parts: where the time of an epoch went, by the loader's own account. blocks: whether the format tells in
    which block a sample lies, as orders by blocks need it. noise: how far rounds were apart, as a fraction.
    stopped: why it was not tried to the end.
    """

    way: Way
    samples: int = 0
    bytes_each: float = 0.0
    bytes_fixed: float = 0.0
    seconds_each: float = 0.0
    seconds_fixed: float = 0.0
    epoch_rate: float | None = None
    column_rate: float | None = None
    open_seconds: float = 0.0
    parts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    blocks: bool = False
    noise: float = 0.0
    error: str | None = None
    stopped: str | None = None

    def disk(self, samples: int) -> float:
        return self.bytes_fixed + self.bytes_each * samples

    def figure(self, goal: str, samples: int) -> float | None:
        """The figure that the goal is about; None where it was not tried."""
        if self.error is not None:
            return None
        name = FIGURES[goal][0]
        if name == "bytes":
            return self.disk(samples)
        return self.query_rate(samples) if name == "column_rate" else self.epoch_rate

    def query_rate(self, samples: int) -> float | None:
        """Rows/s of a query that opens the file and reads one column of so many rows."""
        if not self.column_rate:
            return None
        return samples / (self.open_seconds + samples / self.column_rate)


class Bench:
    """Tries ways in a scratch folder. Files stay there, so that a way can be tried again.

    column: the field that a scan reads, None: epochs through the Loader in that order. url: the URL of a
    file, where epochs are those that come over a network. busy: other processes want the cores too, and the
    rates are those that there would be without them.
    """

    def __init__(
        self, held: Held, facts: Facts, folder: str, *, batch_size: int, size: int, order: str = "random",
        column: str | None = None, url: Callable[[str], str] | None = None, busy: bool = False,
    ) -> None:  # fmt: skip
        self.held, self.facts, self.folder = held, facts, folder
        self.column, self.url, self.busy = column, url, busy
        self._how = timing.How(batch_size, order=order, size=size)
        self._files: dict[str, Reader] = {}
        self._written: dict[str, list[str]] = {}
        # Bytes, seconds and samples of the first conversion.
        self._probes: dict[str, tuple[int, float, int]] = {}
        # Seconds that our threads waited for a core, where others want it too.
        self.lost = 0.0
        # One batch size for all ways, and one for the dataset itself.
        self._batch = {False: 0, True: 0}

    @property
    def samples(self) -> int:
        return len(self.held)

    @property
    def sample_bytes(self) -> int:
        return self.held.sample_bytes

    def probe(self, way: Way) -> Trial:
        """Convert a handful of samples: the bytes that each takes. A way that cannot hold them says why."""
        try:
            self._probes[way.label] = size, _, count = self._convert(way, min(FIRST, self.samples))
            each = size / max(count, 1)
            if each > self.sample_bytes and count < self.samples:
                # Most of it may be what every file has, however many samples are in it.
                more, _, several = self._convert(way, min(4 * FIRST, self.samples))
                each = (more - size) / max(several - count, 1)
        except (BatchplantError, OSError) as error:
            return Trial(way=way, error=str(error))
        blocks = self.reader(way).blocks() is not None
        return Trial(way=way, samples=count, bytes_each=max(each, 0.0), blocks=blocks)

    def write(self, way: Way, samples: int) -> Trial:
        """Convert so many samples, after :meth:`probe`."""
        small, few, least = self._probes[way.label]
        try:
            size, seconds, most = self._convert(way, samples)
        except (BatchplantError, OSError) as error:
            return Trial(way=way, error=str(error))
        more = max(most - least, 1)
        each = (size - small) / more if most > least else size / most
        paid = max(seconds - few, 0.02 * seconds) / more if most > least else seconds / most
        return Trial(
            way=way, samples=most, bytes_each=each, bytes_fixed=max(0.0, size - each * most),
            seconds_each=paid, seconds_fixed=max(0.0, seconds - paid * most),
            blocks=self.reader(way).blocks() is not None,
        )  # fmt: skip

    def _convert(self, way: Way, samples: int) -> tuple[int, float, int]:
        """Bytes, seconds and samples of a conversion."""
        target = os.path.join(self.folder, f"{way.format}-{len(os.listdir(self.folder))}{way.suffix}")
        began, cores = time.perf_counter(), core_seconds()
        done = convert(
            self.held, target, target_format=way.format, images=way.image_options, limit=samples,
            target_options=dict(way.options),
        )  # fmt: skip
        took = time.perf_counter() - began
        if self.busy:
            share = core_share(cores)
            took, self.lost = took * share, self.lost + (1 - share) * took
        self._written[way.label] = done.files if len(done.files) > 1 else [target]
        self._files[way.label] = open_reader(done.files if len(done.files) > 1 else target, format=way.format)
        return sum(map(bytes_of, done.files)), took, done.samples

    def converted(self, way: Way) -> tuple[Reader, float]:
        """All samples in that way, and the seconds it took."""
        _, seconds, _ = self._convert(way, self.samples)
        return self.reader(way), seconds

    def reader(self, way: Way) -> Reader:
        return self._files[way.label]

    def stay(self, way: Way, reader: Reader) -> Trial:
        """The dataset as it lies; nothing is written."""
        self._files[way.label] = reader
        size = self.facts.bytes or 0
        return Trial(
            way=way, samples=self.samples, bytes_each=size / max(len(reader), 1),
            blocks=reader.blocks() is not None,
        )  # fmt: skip

    def _bytes(self, way: Way) -> float:
        """Of a sample; its images may have been made smaller for all but the dataset itself."""
        return self.facts.sample_bytes if way.stays else self.held.sample_bytes

    def measure(self, trial: Trial, seconds: float) -> Trial:
        """An epoch through the Loader or scans of the column, for about so many seconds."""
        try:
            return self._scan(trial, seconds) if self.column is not None else self._epoch(trial, seconds)
        except (BatchplantError, OSError) as error:
            return dataclasses.replace(trial, error=str(error))

    def _epoch(self, trial: Trial, seconds: float) -> Trial:
        way, reader = trial.way, self.reader(trial.way)
        rows = pilot_rows(len(reader), self.samples) if way.stays else None
        if self.url is not None:
            return self._distant(trial, reader, rows)
        timer = timing.crowded_epoch if self.busy else timing.quick_epoch
        began = time.perf_counter()
        timed, self._batch[way.stays] = timer(
            reader, self._how, sample_bytes=self._bytes(way), seconds=seconds, indices=rows,
            batch=self._batch[way.stays],
        )  # fmt: skip
        self.lost += (1 - timed.share) * (time.perf_counter() - began) if self.busy else 0.0
        return dataclasses.replace(trial, epoch_rate=timed.rate, parts=timed.parts)

    def _distant(self, trial: Trial, reader: Reader, rows: I64 | None) -> Trial:
        """A first epoch over the network, with its start: what is kept from one is no measure of the next."""
        batch = self._how.small_batch(reader.schema, self._bytes(trial.way))
        with contextlib.ExitStack() as stack:
            if not trial.way.stays and self.url is not None:
                urls = [self.url(path) for path in self._written[trial.way.label]]
                where = urls if len(urls) > 1 else urls[0]
                reader = stack.enter_context(open_reader(where, format=trial.way.format))
            timed = timing.epoch(
                reader, self._how, batch=batch, seconds=DISTANT_SECONDS, once=True, indices=rows
            )
        return dataclasses.replace(trial, epoch_rate=timed.whole, parts=timed.parts)

    def _scan(self, trial: Trial, seconds: float) -> Trial:
        fields = [str(self.column)]
        cores = core_seconds()
        rate, _ = timing.scan(
            self.reader(trial.way), sample_bytes=self._bytes(trial.way), seconds=seconds, fields=fields
        )
        if self.busy:
            share = core_share(cores)
            rate, self.lost = rate / share, self.lost + (1 - share) * seconds
        return dataclasses.replace(trial, column_rate=rate, open_seconds=self._open_seconds(trial.way))

    def _open_seconds(self, way: Way) -> float:
        """Seconds to open a file again; 0 where it is not in a file."""
        paths = [self.reader(way).path] if way.stays else self._written[way.label]
        began, cores = time.perf_counter(), core_seconds()
        with contextlib.suppress(BatchplantError, OSError):
            open_reader(paths if len(paths) > 1 else paths[0], format=way.format).close()
            took = time.perf_counter() - began
            return took * core_share(cores) if self.busy else took
        return 0.0

    def close(self) -> None:
        for way, reader in self._files.items():
            if not way.endswith(" as it is"):
                reader.close()


# -- predictions ---------------------------------------------------------------------------------------

# Part of the memory that files stay in, beside what a training process holds.
KEPT = 0.7
WORDS = {
    "decode": "decoding on the CPU", "storage": "reading samples", "transforms": "transforms on the CPU",
    "disk": "the disk", "link": "the network", "step": "the GPU's own step", "scan": "reading samples",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
    """What the whole dataset would give. rate: samples/s of later epochs; first: of the first.

    For the goal analyse, both are those of one column. needed: samples/s that the GPUs take, where that is
    known. bottleneck: what bounds the rate, in words.
    """

    rate: float | None
    first: float | None
    bytes: float
    seconds: float
    bottleneck: str
    needed: float | None = None


def predict(
    trial: Trial,
    facts: Facts,
    machine: Machine,
    answers: Answers,
    *,
    read_each: float = 0.0,
    encode_each: float = 0.0,
    column: str | None = None,
) -> Prediction:
    """Predict the whole dataset; no rate is above the one that was measured.

    read_each, encode_each: seconds to read a sample of the source, and to encode its images. column: the
    field of which the rate is.
    """
    size = trial.disk(facts.samples)
    rate = trial.query_rate(facts.samples) if answers.goal == "analyse" else trial.epoch_rate
    read = trial.bytes_each
    if column is not None and column in facts.fields:
        read *= min(1.0, facts.fields[column].bytes / max(facts.sample_bytes, 1.0))
    bound = machine.read_mb_s * 1e6 / max(read, 1.0)
    outside = "link" if machine.storage == "s3" else "disk"
    first = None if rate is None else min(rate, bound)
    fits = size < KEPT * machine.memory and machine.storage != "s3"
    later = rate if fits else first
    needed = answers.needed if answers.goal in ("train", "stream") else None
    what = max(trial.parts, key=lambda one: trial.parts[one]) if trial.parts else "scan"
    if later is not None and rate is not None and later < rate:
        what = outside
    if needed is not None and later is not None and later >= needed:
        what = "step"
    # Reading goes on while the last samples are written.
    each = max(trial.seconds_each + encode_each, read_each)
    seconds = 0.0 if trial.way.stays else trial.seconds_fixed + each * facts.samples
    return Prediction(
        rate=later, first=first, bytes=size, seconds=seconds, bottleneck=WORDS[what], needed=needed
    )  # fmt: skip
