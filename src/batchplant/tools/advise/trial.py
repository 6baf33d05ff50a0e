"""Storage options for a dataset, trials of them on a few samples, and predictions for the whole dataset."""

from __future__ import annotations

import contextlib
import dataclasses
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
from ...schema import Image, Schema
from ...schema.columns import I64, Columns
from .. import Document
from ..measure import Candidate, timing
from ..measure.harness import Harness, StoredCandidate
from ..measure.staging import QUICK_SAMPLES, size_of
from .answers import Answers
from .facts import Facts
from .machine import Machine

# The metric of a goal: its name, whether more is better, and its description.
GOAL_METRICS = {
    "train": ("epoch_rate", True, "samples/s of a shuffled epoch through the Loader"),
    "stream": ("epoch_rate", True, "samples/s of an epoch in order through the Loader"),
    "analyse": ("column_rate", True, "time to open it and read one column"),
    "archive": ("bytes", False, "bytes on disk"),
    "share": ("bytes", False, "bytes on disk"),
}
GOAL_ORDERS = {"stream": "sequential"}

# -- storage options -----------------------------------------------------------------------------------

# Compressions by preference, of those that a format has: the smallest, or what every reader has.
COMPRESSIONS = {"small": ("zstd", "brotli", "gzip", "lz4", "lzf"), "known": ("gzip", "zstd", "lz4", "lzf")}
COMPRESSION_LEVEL = 9
# Writers' names for the same options: bytes of a block, samples of a chunk.
BLOCK_BYTES_OPTIONS = ("row_group_size", "batch_size")
CHUNK_SAMPLES_OPTIONS = ("chunk_samples", "chunk")
IMAGE_SETTINGS = ("max_resolution", "image_format", "quality")


@dataclasses.dataclass(frozen=True)
class StorageOption:
    """A way to store the dataset: a format, the options of its writer, the settings of images.

    ``unchanged``: the dataset as it is now. ``note``: what else differs from that.
    """

    format: str
    suffix: str = ""
    writer_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    images: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    unchanged: bool = False
    note: str = ""

    @property
    def label(self) -> str:
        options = {**self.writer_options, **self.images}
        words = [f"{name.replace('_', ' ')} {_option_text(value)}" for name, value in options.items()]
        details = ", ".join([*words, *([self.note] if self.note else [])])
        return f"{self.format}{' as it is' if self.unchanged else ''}{f' ({details})' if details else ''}"

    @property
    def image_options(self) -> ImageOptions:
        return ImageOptions(**self.images)


def _option_text(value: Any) -> str:
    return f"{value >> 20} MiB" if isinstance(value, int) and value >= 1 << 20 else str(value)


def storage_option(
    format: Format, settings: Mapping[str, Any], schema: Schema, *, source: str = ""
) -> StorageOption:
    """Return the option that applies these settings to a format, as far as its writer has them.

    source: the format of the dataset. Changes within that format are listed even where they are the
    writer's defaults.
    """
    parameters = own_options(format.writer) if format.writer else {}
    options: dict[str, Any] = {}
    suffix = "".join(format.suffixes[:1])
    if "compress" in settings:
        options, suffix = _compression(format, parameters, suffix, COMPRESSIONS[settings["compress"]])
    if "unit_bytes" in settings:
        options |= {name: settings["unit_bytes"] for name in BLOCK_BYTES_OPTIONS if name in parameters}
    if "chunk_samples" in settings:
        options |= {name: settings["chunk_samples"] for name in CHUNK_SAMPLES_OPTIONS if name in parameters}
    rewritten = format.name == source and bool(settings.get("rewrite"))
    if not rewritten:
        options = {name: value for name, value in options.items() if parameters[name].default != value}
    has_images = any(isinstance(field, Image) for field in schema.values())
    images = {name: settings[name] for name in IMAGE_SETTINGS if name in settings} if has_images else {}
    note = "written anew" if rewritten and not options and not images else ""
    return StorageOption(format.name, suffix, options, images, note=note)


def with_raw_images(option: StorageOption) -> StorageOption:
    """Return the option with images as raw pixels: nothing to decode, for a multiple of the space."""
    images = {name: value for name, value in option.images.items() if name == "max_resolution"}
    return dataclasses.replace(option, images={**images, "image_format": "raw"})


def _compression(
    format: Format, parameters: Mapping[str, Any], suffix: str, preferred: tuple[str, ...]
) -> tuple[Document, str]:
    """Return the writer's options and the suffix for the preferred compression that a format has."""
    compression = next((name for name in preferred if name in format.can.compression), None)
    if compression is None:
        return {}, suffix
    if "compression" in parameters:
        level = {"level": COMPRESSION_LEVEL} if "level" in parameters else {}
        return {"compression": compression, **level}, suffix
    ending = {"zstd": ".zst", "gzip": ".gz"}.get(compression, "")
    return {}, next((name for name in format.suffixes if ending and name.endswith(ending)), suffix)


# -- trials --------------------------------------------------------------------------------------------

# Bytes and samples of a trial. Scans get more: a pass over few samples is mostly its start.
TRIAL_BYTES, SCAN_TRIAL_BYTES = 12 << 20, 32 << 20
SCAN_TRIAL_SAMPLES = 4 * QUICK_SAMPLES
MIN_TRIAL_SAMPLES = 8
# Runs of neighbours, spread over the dataset: neighbours compress well together.
TRIAL_RUNS = 8
# A complete epoch over the network, unless it takes longer.
REMOTE_EPOCH_SECONDS = 0.5
# Samples of the first conversion, which shows the fixed cost of a conversion.
PROBE_SAMPLES = 8


class MemorySamples(Reader):
    """Samples whose cells are in memory, so that no trial pays for reading the source."""

    def __init__(self, path: str, schema: Schema, columns: Columns) -> None:
        self.path, self.schema, self.length, self._columns = path, schema, columns.rows, columns

    @property
    def sample_bytes(self) -> int:
        return size_of(self._columns) // max(len(self), 1)

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        return Columns((name, self._columns[name]) for name in fields).take(indices)


def load_samples(reader: Reader, facts: Facts, *, scanned: bool = False) -> tuple[MemorySamples, float]:
    """Read the samples of the trials; return them with the seconds that reading one took."""
    total, most = (SCAN_TRIAL_BYTES, SCAN_TRIAL_SAMPLES) if scanned else (TRIAL_BYTES, QUICK_SAMPLES)
    count = int(np.clip(total / max(facts.sample_bytes, 1), MIN_TRIAL_SAMPLES, most))
    rows = trial_rows(len(reader), count)
    began = time.perf_counter()
    columns = reader.read(rows)
    seconds = (time.perf_counter() - began) / max(len(rows), 1)
    return MemorySamples(reader.path, reader.schema, columns), seconds


def trial_rows(samples: int, count: int) -> I64:
    """Return ``count`` samples in runs of neighbours; all samples where there are no more."""
    if samples <= count:
        return np.arange(samples)
    run_length = max(1, count // TRIAL_RUNS)
    starts = np.linspace(0, samples - run_length, TRIAL_RUNS).astype(np.int64)
    return np.unique((starts[:, None] + np.arange(run_length)).ravel())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """Measurements of a storage option on a few samples. Rates are samples/s, None if not measured.

    A conversion takes bytes_fixed + samples × bytes_per_sample, likewise seconds. column_rate: rows/s of one
    column; open_seconds: to open the file before. parts: seconds of an epoch by part, from the loader's
    statistics. blocks: whether the format knows the block of a sample, as orders by blocks need it. noise:
    relative difference between rounds. stopped: why it was not tried to the end.
    """

    option: StorageOption
    samples: int = 0
    bytes_per_sample: float = 0.0
    bytes_fixed: float = 0.0
    seconds_per_sample: float = 0.0
    seconds_fixed: float = 0.0
    epoch_rate: float | None = None
    column_rate: float | None = None
    open_seconds: float = 0.0
    parts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    blocks: bool = False
    noise: float = 0.0
    error: str | None = None
    stopped: str | None = None

    def disk_bytes(self, samples: int) -> float:
        """Return the bytes of so many samples."""
        return self.bytes_fixed + self.bytes_per_sample * samples

    def metric(self, goal: str, samples: int) -> float | None:
        """Return the metric of a goal; None if it was not measured."""
        if self.error is not None:
            return None
        name = GOAL_METRICS[goal][0]
        if name == "bytes":
            return self.disk_bytes(samples)
        return self.query_rate(samples) if name == "column_rate" else self.epoch_rate

    def query_rate(self, samples: int) -> float | None:
        """Return the rows/s of a query that opens the file and reads one column of so many rows."""
        if not self.column_rate:
            return None
        return samples / (self.open_seconds + samples / self.column_rate)


class TrialBench:
    """Tries storage options with a :class:`Harness`. Files stay, so that an option can be measured again.

    column: the field that scans read; None: epochs through the Loader in that order. url: returns the URL of
    a file, where epochs come over a network. busy: other processes compete for the cores.
    """

    def __init__(
        self, memory: MemorySamples, facts: Facts, folder: str, *, batch_size: int, size: int,
        order: str = "random", column: str | None = None, url: Callable[[str], str] | None = None,
        busy: bool = False,
    ) -> None:  # fmt: skip
        self.memory, self.facts = memory, facts
        self.column, self.url = column, url
        self._harness = Harness(folder, busy=busy)
        self._settings = timing.EpochSettings(batch_size, order=order, size=size)
        self._stored: dict[str, StoredCandidate] = {}
        self._readers: dict[str, Reader] = {}
        self._probes: dict[str, StoredCandidate] = {}
        # One batch size for all options, and one for the unchanged dataset.
        self._batch_sizes = {False: 0, True: 0}

    @property
    def samples(self) -> int:
        return len(self.memory)

    @property
    def sample_bytes(self) -> int:
        return self.memory.sample_bytes

    @property
    def lost(self) -> float:
        """Seconds that threads waited for a core on a busy machine."""
        return self._harness.lost

    def probe(self, option: StorageOption) -> Trial:
        """Convert a few samples to learn the bytes of each. The trial has an error if that fails."""
        try:
            self._probes[option.label] = probe = self._store(option, min(PROBE_SAMPLES, self.samples))
            sample_bytes = probe.bytes / max(probe.samples, 1)
            if sample_bytes > self.sample_bytes and probe.samples < self.samples:
                # Most of it may be the fixed part of a file.
                larger = self._store(option, min(4 * PROBE_SAMPLES, self.samples))
                sample_bytes = (larger.bytes - probe.bytes) / max(larger.samples - probe.samples, 1)
        except (BatchplantError, OSError) as error:
            return Trial(option=option, error=str(error))
        return Trial(
            option=option,
            samples=probe.samples,
            bytes_per_sample=max(sample_bytes, 0.0),
            blocks=self._has_blocks(option),
        )

    def write(self, option: StorageOption, samples: int) -> Trial:
        """Convert so many samples, after :meth:`probe`."""
        probe = self._probes[option.label]
        try:
            stored = self._store(option, samples)
        except (BatchplantError, OSError) as error:
            return Trial(option=option, error=str(error))
        if stored.samples > probe.samples:
            added = stored.samples - probe.samples
            sample_bytes = (stored.bytes - probe.bytes) / added
            sample_seconds = max(stored.seconds - probe.seconds, 0.02 * stored.seconds) / added
        else:
            sample_bytes = stored.bytes / stored.samples
            sample_seconds = stored.seconds / stored.samples
        return Trial(
            option=option,
            samples=stored.samples,
            bytes_per_sample=sample_bytes,
            bytes_fixed=max(0.0, stored.bytes - sample_bytes * stored.samples),
            seconds_per_sample=sample_seconds,
            seconds_fixed=max(0.0, stored.seconds - sample_seconds * stored.samples),
            blocks=self._has_blocks(option),
        )

    def convert_all(self, option: StorageOption) -> tuple[Reader, float]:
        """Convert all samples; return a reader of them and the seconds that it took."""
        stored = self._store(option, self.samples)
        return self._readers[option.label], stored.seconds

    def _store(self, option: StorageOption, samples: int) -> StoredCandidate:
        candidate = Candidate(option.format, option.writer_options, option.suffix)
        stored = self._harness.store(self.memory, candidate, images=option.image_options, limit=samples)
        self._stored[option.label] = stored
        self._readers[option.label] = stored.open()
        return stored

    def _has_blocks(self, option: StorageOption) -> bool:
        return self._readers[option.label].blocks() is not None

    def keep(self, option: StorageOption, reader: Reader) -> Trial:
        """Return the trial of the unchanged dataset; nothing is written."""
        self._readers[option.label] = reader
        return Trial(
            option=option,
            samples=self.samples,
            bytes_per_sample=(self.facts.bytes or 0) / max(len(reader), 1),
            blocks=reader.blocks() is not None,
        )

    def _sample_bytes(self, option: StorageOption) -> float:
        """Return the bytes of a sample; images may be smaller in all but the unchanged dataset."""
        return self.facts.sample_bytes if option.unchanged else self.memory.sample_bytes

    def measure(self, trial: Trial, seconds: float) -> Trial:
        """Time an epoch through the Loader, or scans of the column, for about so many seconds."""
        try:
            if self.column is not None:
                return self._measure_scan(trial, seconds, self.column)
            if self.url is not None:
                return self._measure_remote_epoch(trial, self.url)
            return self._measure_epoch(trial, seconds)
        except (BatchplantError, OSError) as error:
            return dataclasses.replace(trial, error=str(error))

    def _indices(self, option: StorageOption) -> I64 | None:
        """Return the samples of the unchanged dataset that a trial reads."""
        reader = self._readers[option.label]
        return trial_rows(len(reader), self.samples) if option.unchanged else None

    def _measure_epoch(self, trial: Trial, seconds: float) -> Trial:
        option = trial.option
        epoch, self._batch_sizes[option.unchanged] = self._harness.quick_epoch(
            self._readers[option.label],
            self._settings,
            sample_bytes=self._sample_bytes(option),
            seconds=seconds,
            indices=self._indices(option),
            batch_size=self._batch_sizes[option.unchanged],
        )
        return dataclasses.replace(trial, epoch_rate=epoch.rate, parts=epoch.parts)

    def _measure_remote_epoch(self, trial: Trial, url: Callable[[str], str]) -> Trial:
        """Time a first epoch over the network with its start; later ones would find cached bytes."""
        option, reader = trial.option, self._readers[trial.option.label]
        indices = self._indices(option)
        batch_size = self._settings.small_batch(reader.schema, self._sample_bytes(option))
        with contextlib.ExitStack() as stack:
            if not option.unchanged:
                urls = [url(path) for path in self._stored[option.label].files]
                source = urls if len(urls) > 1 else urls[0]
                reader = stack.enter_context(open_reader(source, format=option.format))
            epoch = timing.epoch(
                reader,
                self._settings,
                batch_size=batch_size,
                seconds=REMOTE_EPOCH_SECONDS,
                once=True,
                indices=indices,
            )
        return dataclasses.replace(trial, epoch_rate=epoch.rate_with_start, parts=epoch.parts)

    def _measure_scan(self, trial: Trial, seconds: float, column: str) -> Trial:
        option = trial.option
        reader = self._readers[option.label]
        rate = self._harness.scan_rate(
            reader, column, sample_bytes=self._sample_bytes(option), seconds=seconds
        )
        paths = reader.path if option.unchanged else self._stored[option.label].paths
        open_seconds = self._harness.open_seconds(paths, option.format)
        return dataclasses.replace(trial, column_rate=rate, open_seconds=open_seconds)

    def close(self) -> None:
        for label, reader in self._readers.items():
            if label in self._stored:
                reader.close()


# -- predictions ---------------------------------------------------------------------------------------

# Fraction of the memory in which files stay cached, beside what a training process needs.
PAGE_CACHE_SHARE = 0.7
BOTTLENECKS = {
    "decode": "decoding on the CPU",
    "storage": "reading samples",
    "transforms": "transforms on the CPU",
    "disk": "the disk",
    "link": "the network",
    "step": "the GPU's own step",
    "scan": "reading samples",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
    """Prediction for the whole dataset. rate: samples/s of later epochs; first: of the first.

    For the goal analyse, both are of one column. needed: samples/s that the GPUs take, if that is known.
    bottleneck: what limits the rate, in words.
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
    read_seconds: float = 0.0,
    encode_seconds: float = 0.0,
    column: str | None = None,
) -> Prediction:
    """Predict the whole dataset; no rate is above the measured one.

    read_seconds, encode_seconds: to read a sample of the source, and to encode its images. column: the field
    that the rate is about.
    """
    size = trial.disk_bytes(facts.samples)
    rate = trial.query_rate(facts.samples) if answers.goal == "analyse" else trial.epoch_rate
    read_bytes = trial.bytes_per_sample
    if column is not None and column in facts.fields:
        read_bytes *= min(1.0, facts.fields[column].bytes / max(facts.sample_bytes, 1.0))
    storage_rate = machine.read_mb_s * 1e6 / max(read_bytes, 1.0)
    first = None if rate is None else min(rate, storage_rate)
    cached = size < PAGE_CACHE_SHARE * machine.memory and machine.storage != "s3"
    later = rate if cached else first
    needed = answers.needed if answers.goal in ("train", "stream") else None
    bottleneck = max(trial.parts, key=lambda name: trial.parts[name]) if trial.parts else "scan"
    if later is not None and rate is not None and later < rate:
        bottleneck = "link" if machine.storage == "s3" else "disk"
    if needed is not None and later is not None and later >= needed:
        bottleneck = "step"
    # Reading and writing overlap.
    sample_seconds = max(trial.seconds_per_sample + encode_seconds, read_seconds)
    seconds = 0.0 if trial.option.unchanged else trial.seconds_fixed + sample_seconds * facts.samples
    return Prediction(
        rate=later,
        first=first,
        bytes=size,
        seconds=seconds,
        bottleneck=BOTTLENECKS[bottleneck],
        needed=needed,
    )
