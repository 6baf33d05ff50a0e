"""Storage options of a dataset, trials of them in a contest, and predictions for the whole dataset."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...codecs.media.image_rules import ImageOptions
from ...data.reader import Reader
from ...errors import BatchplantError
from ...formats.base.format import Format
from ...formats.base.options import own_options
from ...formats.registry import get_format
from ...formats.registry import open as open_reader
from ...schema import Audio, Image, Schema, Tensor, Video
from ...schema.columns import Columns
from ...storage.limits import human_size
from .. import Document
from ..measure import Candidate, timing
from ..measure.harness import QUICK_SAMPLES, Harness, Stored, size_of, spread_rows
from ..measure.serving import serving
from .case import Answers, Case, Machine
from .facts import Facts

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

    @property
    def candidate(self) -> Candidate:
        """The option as a candidate of `measure`."""
        images = {"images": self.image_options} if self.images else {}
        return Candidate(self.format, {**self.writer_options, **images}, self.suffix or None)


def _option_text(value: object) -> str:
    return f"{value >> 20} MiB" if isinstance(value, int) and value >= 1 << 20 else str(value)


def storage_option(
    format: Format, settings: Mapping[str, Any], schema: Schema, *, source: str = ""
) -> StorageOption:
    """Return the option that applies these settings to a format, as far as its writer has them.

    source: the format of the dataset. Changes within that format are listed even where they are the
    writer's defaults.
    """
    parameters = own_options(format.writer) if format.writer else {}
    options: Document = {}
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
# A complete epoch over the network, unless it takes longer.
REMOTE_EPOCH_SECONDS = 0.5
# Samples of the first conversion, which shows the fixed cost of a conversion.
PROBE_SAMPLES = 8


def load_samples(reader: Reader, facts: Facts, *, scanned: bool = False) -> tuple[Columns, float]:
    """Read the samples of the trials into memory; return them with the seconds that reading one took."""
    total, most = (SCAN_TRIAL_BYTES, SCAN_TRIAL_SAMPLES) if scanned else (TRIAL_BYTES, QUICK_SAMPLES)
    count = int(np.clip(total / max(facts.sample_bytes, 1), MIN_TRIAL_SAMPLES, most))
    rows = spread_rows(len(reader), count)
    began = time.perf_counter()
    columns = reader.read(rows)
    return columns, (time.perf_counter() - began) / max(len(rows), 1)


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
        self,
        columns: Columns,
        facts: Facts,
        folder: str,
        settings: timing.EpochSettings,
        *,
        column: str | None = None,
        url: Callable[[str], str] | None = None,
        busy: bool = False,
    ) -> None:
        self.columns, self.facts = columns, facts
        self.column, self.url = column, url
        self._harness = Harness(folder, busy=busy)
        self._settings = settings
        self._readers: dict[str, Reader] = {}
        self._stored: dict[str, Stored] = {}
        self._probes: dict[str, Stored] = {}
        self._folders = 0
        # One batch size for all options, and one for the unchanged dataset.
        self._batch_sizes = {False: 0, True: 0}

    @property
    def samples(self) -> int:
        return self.columns.rows

    @property
    def sample_bytes(self) -> int:
        return size_of(self.columns) // max(self.samples, 1)

    def probe(self, option: StorageOption) -> Trial:
        """Convert a few samples to learn the bytes of each."""
        self._probes[option.label] = probe = self._store(option, min(PROBE_SAMPLES, self.samples))
        sample_bytes = probe.bytes / max(probe.samples, 1)
        if sample_bytes > self.sample_bytes and probe.samples < self.samples:
            # Most of it may be the fixed part of a file.
            larger = self._store(option, min(4 * PROBE_SAMPLES, self.samples))
            sample_bytes = (larger.bytes - probe.bytes) / max(larger.samples - probe.samples, 1)
        return self._trial(option, samples=probe.samples, bytes_per_sample=max(sample_bytes, 0.0))

    def write(self, option: StorageOption, samples: int) -> Trial:
        """Convert so many samples, after :meth:`probe`."""
        probe, stored = self._probes[option.label], self._store(option, samples)
        added = stored.samples - probe.samples
        if added > 0:
            sample_bytes = (stored.bytes - probe.bytes) / added
            sample_seconds = max(stored.seconds - probe.seconds, 0.02 * stored.seconds) / added
        else:
            sample_bytes, sample_seconds = stored.bytes / stored.samples, stored.seconds / stored.samples
        return self._trial(
            option,
            samples=stored.samples,
            bytes_per_sample=sample_bytes,
            bytes_fixed=max(0.0, stored.bytes - sample_bytes * stored.samples),
            seconds_per_sample=sample_seconds,
            seconds_fixed=max(0.0, stored.seconds - sample_seconds * stored.samples),
        )

    def keep(self, option: StorageOption, reader: Reader) -> Trial:
        """Return the trial of the unchanged dataset; nothing is written."""
        self._readers[option.label] = reader
        sample_bytes = (self.facts.bytes or 0) / max(len(reader), 1)
        return self._trial(option, samples=self.samples, bytes_per_sample=sample_bytes)

    def encode_images(self, option: StorageOption) -> float:
        """Replace the images of the samples by those of an option; return the seconds that one took."""
        seconds = self._store(option, self.samples).seconds
        reader = self._readers[option.label]
        self.columns = reader.read(range(len(reader))).take(np.arange(len(reader)))
        return seconds / max(self.samples, 1)

    def _trial(self, option: StorageOption, **figures: Any) -> Trial:
        return Trial(option=option, blocks=self._readers[option.label].blocks() is not None, **figures)

    def _store(self, option: StorageOption, samples: int) -> Stored:
        self._folders += 1
        columns = self.columns.take(np.arange(samples))
        stored = self._harness.store(
            [columns], self.facts.schema, option.candidate, f"{self._folders:03}", length=samples
        )
        self._stored[option.label] = stored
        self._readers[option.label] = self._harness.open(stored)
        return stored

    def measure(self, trial: Trial, seconds: float) -> Trial:
        """Time an epoch through the Loader, or scans of the column, for about so many seconds."""
        option, harness = trial.option, self._harness
        seconds *= BUSY_PATIENCE if harness.busy else 1
        reader, stored = self._readers[option.label], self._stored.get(option.label)
        # Images may be smaller in all but the unchanged dataset, of which a trial reads as many samples.
        sample_bytes = self.facts.sample_bytes if option.unchanged else self.sample_bytes
        indices = spread_rows(len(reader), self.samples) if option.unchanged else None
        if self.column is not None:
            rate, _ = harness.scan_rates(
                reader, sample_bytes=sample_bytes, seconds=seconds, field=self.column
            )
            paths = reader.path if stored is None else stored.paths
            return dataclasses.replace(
                trial, column_rate=rate, open_seconds=harness.open_seconds(paths, option.format)
            )
        if self.url is not None:
            # A first epoch with its start: later ones would find cached bytes.
            batch_size = self._settings.small_batch(reader.schema, sample_bytes)
            with contextlib.ExitStack() as stack:
                if stored is not None:
                    urls = [self.url(path) for path in stored.paths]
                    source = urls if len(urls) > 1 else urls[0]
                    reader = stack.enter_context(open_reader(source, format=option.format))
                options: Document = {"once": True, "indices": indices, "batch_size": batch_size}
                epoch = timing.epoch(reader, self._settings, seconds=REMOTE_EPOCH_SECONDS, **options)
            return dataclasses.replace(trial, epoch_rate=epoch.rate_with_start, parts=epoch.parts)
        epoch, self._batch_sizes[option.unchanged] = timing.quick_epoch(
            reader, self._settings, sample_bytes=sample_bytes, seconds=seconds, indices=indices,
            batch_size=self._batch_sizes[option.unchanged],
        )  # fmt: skip
        rate = epoch.undisturbed_rate if harness.busy else epoch.rate
        return dataclasses.replace(trial, epoch_rate=rate, parts=epoch.parts)

    def close(self) -> None:
        for label in self._stored:
            self._readers[label].close()


def attempt(work: Callable[..., Trial], option: StorageOption, *arguments: object) -> Trial:
    """Call ``work``; a failure is a trial with an error."""
    try:
        return work(*arguments)
    except (BatchplantError, OSError) as error:
        return Trial(option=option, error=str(error))


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


# -- the contest ---------------------------------------------------------------------------------------

# Formats that suit a kind of data, the simplest and most portable first. They are tried in this order, and
# of those that are equally good the first is advised.
SUITED = {
    "table": ("parquet", "arrow", "beton", "hdf5", "npz", "zarr", "mds", "lmdb", "tfrecord"),
    "images": ("beton", "webdataset", "tfrecord", "mds", "lmdb", "recordio", "arrow", "parquet", "hdf5"),
    "media": ("webdataset", "beton", "tfrecord", "mds", "arrow", "lmdb", "parquet", "npz", "hdf5"),
    "arrays": ("npy", "zarr", "hdf5", "beton", "npz", "arrow", "webdataset", "mds", "tfrecord"),
    "tokens": ("megatron", "tokens", "npy", "beton", "arrow", "mds", "parquet", "hdf5", "npz"),
}
COLUMNAR = ("parquet", "arrow")
TOKEN_FORMATS = {"megatron", "tokens"}
# Formats that are tried even if the time is short, besides columnar formats for the goal analyse.
ALWAYS_TRIED = 3
# Bytes of the samples of a first, short trial.
SKETCH_BYTES = 1 << 20
# Limit of a conversion for a trial; it converts fewer samples if need be.
WRITE_SECONDS = 1.0
# Trials and their rounds take so many times longer on a busy machine: threads wait most of the time.
BUSY_PATIENCE = 4.0
# Share of the time for the first, short trials of all formats.
SKETCH_SHARE = 0.6
# A format that takes more than so many times the bytes of the cells and of the dataset is stopped.
MAX_GROWTH = 4.0
# A format that is so much slower (or larger) than the leader in the first trial is stopped.
CLEARLY_WORSE = 0.35
FINALISTS, NEAR_SHARE = 6, 0.12
ROUND_SECONDS = 0.1
MIN_ROUNDS, MAX_ROUNDS = 3, 10
# The best round of an option is trusted once two other rounds are this near.
SETTLED_NOISE, AGREEING_ROUNDS = 0.03, 3
# Raw pixels of images larger than so many times the crop would mostly be read in vain.
MAX_RAW_SIDE_RATIO = 2.5
OUT_OF_TIME = "not tried: the time was over"

Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialResult:
    """A storage option with its trial and its prediction. value: the metric of the goal."""

    option: StorageOption
    trial: Trial
    prediction: Prediction
    value: float | None
    price: str = ""
    # A trade-off that the rules do not make: shown beside the advice, never chosen.
    is_extra: bool = False

    def to_json(self) -> Document:
        return {
            "format": self.option.format, "suffix": self.option.suffix,
            "options": dict(self.option.writer_options),
            "images": dict(self.option.images), "as it is": self.option.unchanged, "value": self.value,
            "noise": self.trial.noise, "price": self.price,
            "prediction": dataclasses.asdict(self.prediction), "error": self.trial.error,
            "stopped": self.trial.stopped,
        }  # fmt: skip


def kind_of(facts: Facts, formats: Iterable[str]) -> str:
    """Return the kind of data, a key of :data:`SUITED`."""
    fields = facts.schema.values()
    if any(isinstance(field, Image) for field in fields):
        return "images"
    if any(isinstance(field, Audio | Video) for field in fields):
        return "media"
    if TOKEN_FORMATS.intersection(formats):
        return "tokens"
    tensors = sum(
        field_facts.bytes for field_facts in facts.fields.values() if isinstance(field_facts.field, Tensor)
    )
    return "arrays" if tensors > facts.sample_bytes / 2 else "table"


def preference(name: str, kind: str, goal: str) -> tuple[int, int, int, str]:
    """Return the sort key of a format among equally good ones; smaller is better, no two are equal."""
    can = get_format(name).can
    suited = (COLUMNAR if goal == "analyse" else ()) + SUITED[kind]
    rank = suited.index(name) if name in suited else len(suited)
    # Shared data is read with the programs that people have.
    readers = -len(can.ecosystem) if goal == "share" else 0
    return readers, rank, -(can.memory_map + can.spans), name


class Contest:
    """Tries storage options and spends the time on those that may be the best.

    bench: writes and measures; clock: returns seconds, as :func:`time.monotonic`.
    """

    def __init__(
        self, bench: TrialBench, case: Case, *, seconds: float,
        clock: Callable[[], float] = time.monotonic, note: Callable[[int], None] = lambda done: None,
    ) -> None:  # fmt: skip
        self.bench, self.case, self.clock, self.note = bench, case, clock, note
        self._began, self._seconds = clock(), seconds
        self._metric, self._more_is_better, _ = GOAL_METRICS[case.goal]
        self._timed = self._metric != "bytes"
        # Rounds of the last conversion of each option, by its label.
        self._rounds: dict[str, list[Trial]] = {}

    def run(self, current: Trial | None, options: Sequence[StorageOption]) -> list[Trial]:
        """Return the trials of all options, and of the unchanged dataset."""
        if current is not None:
            self._rounds[current.option.label] = [self._measured(current)]
        always = ALWAYS_TRIED
        if self.case.goal == "analyse":
            always = max(always, sum(option.format in COLUMNAR for option in options))
        for number, option in enumerate(options):
            self.note(number)
            late = number >= always and self._spent() > SKETCH_SHARE * self._seconds
            self._rounds[option.label] = (
                [Trial(option=option, error=OUT_OF_TIME)] if late else self._sketch(option, current)
            )
        finalists = self._finalists()
        for trial in finalists:
            self._enlarge(trial)
        if self._timed:
            self._alternate([self._rounds[trial.option.label][-1] for trial in finalists])
        self.note(len(options))
        return [self._best(rounds) for rounds in self._rounds.values()]

    def _spent(self) -> float:
        return self.clock() - self._began

    def _measured(self, trial: Trial) -> Trial:
        if trial.error is not None or not self._timed:
            return trial
        return attempt(self.bench.measure, trial.option, trial, ROUND_SECONDS)

    def _sketch(self, option: StorageOption, current: Trial | None) -> list[Trial]:
        """Try an option briefly with few samples; stop one that a probe shows to be absurdly large."""
        trial = attempt(self.bench.probe, option, option)
        if trial.error is not None:
            return [trial]
        usual = max(
            self.bench.sample_bytes,
            0.0 if current is None or option.images else current.bytes_per_sample,
            1.0,
        )
        if trial.bytes_per_sample > MAX_GROWTH * usual and not self.case.answers.formats:
            growth = f"{trial.bytes_per_sample / usual:,.0f} times the size"
            return [
                dataclasses.replace(
                    trial, stopped=f"{growth} ({human_size(trial.bytes_per_sample)} a sample)"
                )
            ]
        # Few samples of a format with blocks lie in a single block, which tells nothing about many.
        size = math.inf if trial.blocks else SKETCH_BYTES
        samples = self._bounded(size / max(self.bench.sample_bytes, 1))
        trial = attempt(self.bench.write, option, option, samples)
        if trial.error is not None or not self._timed:
            return [trial]
        return [attempt(self.bench.measure, option, trial, ROUND_SECONDS / 2) for _ in range(2)]

    def _bounded(self, samples: float) -> int:
        return int(min(max(samples, PROBE_SAMPLES), self.bench.samples))

    def _value(self, trial: Trial) -> float:
        """Return the metric of a trial, negated where less is better."""
        value = trial.metric(self.case.goal, self.case.facts.samples)
        if value is None or trial.stopped is not None:
            return -math.inf
        return value if self._more_is_better else -value

    def _worse(self, trial: Trial, leader: Trial) -> float:
        """Return the fraction by which a trial is worse than the leader."""
        mine, best = abs(self._value(trial)), abs(self._value(leader))
        return 1 - (mine / max(best, 1e-12) if self._more_is_better else best / max(mine, 1e-12))

    def _best(self, rounds: Sequence[Trial]) -> Trial:
        """Return the fastest round, with the noise; a failed round fails the option.

        Other processes make a short trial slower, and nothing makes it faster.
        """
        failed = [trial for trial in rounds if trial.error is not None]
        if failed:
            return failed[0]
        ordered = sorted(rounds, key=self._value, reverse=True)
        noise = 0.0
        if self._timed and len(ordered) > 1 and ordered[0].stopped is None:
            noise = self._worse(ordered[:AGREEING_ROUNDS][-1], ordered[0])
        return dataclasses.replace(ordered[0], noise=noise)

    def _contenders(self, trials: Iterable[Trial]) -> list[Trial]:
        """Return the trials that may be the best, the best first."""
        options = [trial for trial in trials if not trial.option.unchanged and self._value(trial) > -math.inf]
        options.sort(key=self._value, reverse=True)
        return [trial for trial in options if self._worse(trial, options[0]) <= CLEARLY_WORSE]

    def _finalists(self) -> list[Trial]:
        """Return the best of the short trials and the unchanged dataset; stop the others."""
        trials = [self._best(rounds) for rounds in self._rounds.values()]
        leading = self._contenders(trials)
        # A short trial cannot rank similar ones: continue with the preferred ones.
        near = [trial for trial in leading[1:] if self._worse(trial, leading[0]) <= NEAR_SHARE]
        near.sort(key=lambda trial: list(self._rounds).index(trial.option.label))
        far = [trial for trial in leading[1:] if self._worse(trial, leading[0]) > NEAR_SHARE]
        finalists = [*leading[:1], *near, *far][:FINALISTS]
        for trial in trials:
            if trial not in finalists and not trial.option.unchanged and self._value(trial) > -math.inf:
                behind = (
                    f"{self._worse(trial, leading[0]):.0%} {'slower' if self._more_is_better else 'worse'}"
                )
                stopped = dataclasses.replace(trial, stopped=f"{behind} than {leading[0].option.label}")
                self._rounds[trial.option.label] = [stopped]
        return [
            *(trial for trial in trials if trial.option.unchanged and self._value(trial) > -math.inf),
            *finalists,
        ]

    def _enlarge(self, trial: Trial) -> None:
        """Convert again with all samples that the time allows."""
        samples = self._bounded(WRITE_SECONDS / max(trial.seconds_per_sample, 1e-9))
        if trial.option.unchanged or samples < 1.5 * trial.samples:
            return
        trial = attempt(self.bench.write, trial.option, trial.option, samples)
        self._rounds[trial.option.label] = [self._measured(trial)]

    def _alternate(self, trials: list[Trial]) -> None:
        """Measure in turns, so that other processes hit all alike, until the best rounds are settled."""
        for number in range(MAX_ROUNDS):
            for trial in trials:
                if trial.error is None:
                    self._rounds[trial.option.label].append(self._measured(trial))
            best = [self._best(self._rounds[trial.option.label]) for trial in trials]
            trials = [*(trial for trial in best if trial.option.unchanged), *self._contenders(best)]
            settled = all(trial.noise <= SETTLED_NOISE for trial in trials)
            if self._spent() > self._seconds or (number + 1 >= MIN_ROUNDS and settled):
                break


def run_trials(
    reader: Reader,
    case: Case,
    formats: Sequence[Format],
    settings: Mapping[str, Any],
    folder: str,
    *,
    seconds: float,
    progress: Progress | None = None,
    make_bench: Callable[..., Any] = TrialBench,
    clock: Callable[[], float] = time.monotonic,
) -> list[TrialResult]:
    """Try each format, and the unchanged dataset, on a few samples.

    make_bench: makes the bench, in place of :class:`TrialBench`; clock: see :class:`Contest`.
    """
    facts = case.facts
    column = timing.column_of(facts.schema) if case.goal == "analyse" else None
    columns, read_seconds = load_samples(reader, facts, scanned=column is not None)
    kind = kind_of(facts, [format.name for format in formats])
    options = [storage_option(format, settings, facts.schema, source=facts.format) for format in formats]
    options = [
        option for option in options if option.format != facts.format or changes(option, case, settings)
    ]
    options.sort(key=lambda option: preference(option.format, kind, case.goal))
    total = len(options) + 1

    def note(done: int) -> None:
        if progress is not None:
            progress(done, total)

    with contextlib.ExitStack() as stack:
        url = stack.enter_context(serving(Path(folder))) if case.storage == "s3" else None
        order = GOAL_ORDERS.get(case.goal, "random")
        epochs = timing.EpochSettings(case.answers.batch_size, order=order, size=case.size)
        busy = timing.busy() is not None
        seconds *= BUSY_PATIENCE if busy else 1
        bench = make_bench(columns, facts, folder, epochs, column=column, url=url, busy=busy)
        stack.callback(bench.close)
        encode_seconds, options = _with_encoded_images(bench, options)
        contest = Contest(bench, case, seconds=seconds, clock=clock, note=note)
        current = bench.keep(StorageOption(facts.format, unchanged=True), reader)
        began = clock()
        # A dataset that will be moved cannot be tried there: a trial of its format stands for it.
        trials = [current, *contest.run(None, options)] if case.moves else contest.run(current, options)
        extra = _try_raw_images(bench, trials, case) if clock() - began < seconds else None
        note(total)
    results = [trial_result(trial, case, read_seconds, encode_seconds) for trial in trials]
    if extra is not None:
        results.append(dataclasses.replace(trial_result(extra, case), is_extra=True))
    return results


def changes(option: StorageOption, case: Case, settings: Mapping[str, Any]) -> bool:
    """Return whether an option with the dataset's own format would change the files."""
    anew = any(settings.get(name) for name in ("rewrite", "shuffle", "shard_size"))
    packed = "compress" in settings and option.suffix != "".join(get_format(option.format).suffixes[:1])
    return bool(anew or option.writer_options or option.images or packed or case.moves)


def _try_raw_images(bench: Any, trials: Iterable[Trial], case: Case) -> Trial | None:
    """Try the fastest option with raw pixels, unless images are larger than a batch needs."""
    images = case.facts.having(kind="image")
    fast = [
        trial for trial in trials if not trial.option.unchanged and trial.stopped is None and trial.epoch_rate
    ]
    if case.goal != "train" or not fast or not images:
        return None
    option = max(fast, key=lambda trial: trial.epoch_rate or 0.0).option
    side = option.images.get("max_resolution") or max(max(field.width, field.height) for field in images)
    if side > MAX_RAW_SIDE_RATIO * case.size or option.images.get("image_format") == "raw":
        return None
    raw = with_raw_images(option)
    trial = attempt(bench.probe, raw, raw)
    trial = trial if trial.error else attempt(bench.write, raw, raw, bench.samples)
    trial = trial if trial.error else attempt(bench.measure, raw, trial, 2 * ROUND_SECONDS)
    return None if trial.error else trial


def _with_encoded_images(bench: Any, options: list[StorageOption]) -> tuple[float, list[StorageOption]]:
    """Encode the images of the samples once, as the settings say; return the seconds per sample, too.

    If no option can hold such images, all options keep the images as they are.
    """
    for option in options:
        if not option.images:
            break
        with contextlib.suppress(BatchplantError, OSError):
            return bench.encode_images(option), options
    return 0.0, [dataclasses.replace(option, images={}) for option in options]


def trial_result(
    trial: Trial, case: Case, read_seconds: float = 0.0, encode_seconds: float = 0.0
) -> TrialResult:
    """Return a trial with its prediction."""
    column = timing.column_of(case.facts.schema) if case.goal == "analyse" else None
    prediction = predict(
        trial, case.facts, case.machine, case.answers, read_seconds=read_seconds, column=column,
        encode_seconds=encode_seconds if trial.option.images else 0.0,
    )  # fmt: skip
    value = prediction.bytes if GOAL_METRICS[case.goal][0] == "bytes" else prediction.rate
    return TrialResult(
        option=trial.option,
        trial=trial,
        prediction=prediction,
        value=None if trial.error is not None else value,
    )
