"""Trials of the candidate formats, in an order that suits the data, until the best one is known."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...data.reader import Reader
from ...errors import BatchplantError
from ...formats.base.format import Format
from ...formats.registry import get_format
from ...schema import Audio, Image, Tensor, Video
from ...storage.limits import human_size
from .. import Document
from ..measure.machine import busy
from ..measure.pipelines import column_of
from ..measure.serving import serving_apart
from .facts import Facts
from .rules import Case
from .trial import (
    GOAL_METRICS,
    GOAL_ORDERS,
    PROBE_SAMPLES,
    MemorySamples,
    Prediction,
    StorageOption,
    Trial,
    TrialBench,
    load_samples,
    predict,
    storage_option,
    with_raw_images,
)

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
# Trials may take so many times longer on a busy machine.
MAX_PATIENCE = 4.0
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
        return self.bench.measure(trial, ROUND_SECONDS) if self._timed else trial

    def _sketch(self, option: StorageOption, current: Trial | None) -> list[Trial]:
        """Try an option briefly with few samples; stop one that a probe shows to be absurdly large."""
        trial = self.bench.probe(option)
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
        trial = self.bench.write(option, self._bounded(size / max(self.bench.sample_bytes, 1)))
        if trial.error is not None or not self._timed:
            return [trial]
        return [self.bench.measure(trial, ROUND_SECONDS / 2) for _ in range(2)]

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
        self._rounds[trial.option.label] = [self._measured(self.bench.write(trial.option, samples))]

    def _alternate(self, trials: list[Trial]) -> None:
        """Measure in turns, so that other processes hit all alike, until the best rounds are settled."""
        for number in range(MAX_ROUNDS):
            for trial in trials:
                if trial.error is None:
                    self._rounds[trial.option.label].append(self.bench.measure(trial, ROUND_SECONDS))
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
    clock: Callable[[], float] | None = None,
) -> list[TrialResult]:
    """Try each format, and the unchanged dataset, on a few samples.

    make_bench: makes the bench, in place of :class:`TrialBench`; clock: see :class:`Contest`.
    """
    facts, answers = case.facts, case.answers
    column = column_of(facts.schema) if case.goal == "analyse" else None
    memory, read_seconds = load_samples(reader, facts, scanned=column is not None)
    kind = kind_of(facts, [format.name for format in formats])
    options = [storage_option(format, settings, facts.schema, source=facts.format) for format in formats]
    options = [
        option for option in options if option.format != facts.format or changes(option, case, settings)
    ]
    options.sort(key=lambda option: preference(option.format, kind, case.goal))
    crowded = busy() is not None
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(serving_apart(Path(folder))) if case.storage == "s3" else None
        bench = make_bench(
            memory, facts, folder, batch_size=answers.batch_size, size=case.size,
            order=GOAL_ORDERS.get(case.goal, "random"), column=column, url=url, busy=crowded,
        )  # fmt: skip
        stack.callback(bench.close)
        encoded, encode_seconds, options = _with_encoded_images(bench, options)
        if encoded is not None:
            bench.memory = encoded
        clock = clock or _clock_without_waits(bench)
        total = len(options) + 1
        note = (lambda done: None) if progress is None else lambda done: progress(done, total)
        contest = Contest(bench, case, seconds=seconds, clock=clock, note=note)
        current = bench.keep(StorageOption(facts.format, unchanged=True), reader)
        began = clock()
        # A dataset that will be moved cannot be tried there: a trial of its format stands for it.
        trials = [current, *contest.run(None, options)] if case.moves else contest.run(current, options)
        extra = _try_raw_images(bench, trials, case) if clock() - began < seconds else None
        if progress is not None:
            progress(total, total)
    results = [trial_result(trial, case, read_seconds, encode_seconds) for trial in trials]
    if extra is not None:
        results.append(dataclasses.replace(trial_result(extra, case), is_extra=True))
    return results


def _clock_without_waits(bench: TrialBench) -> Callable[[], float]:
    """Return a clock that excludes, within bounds, the time lost to other processes."""
    began = time.monotonic()

    def clock() -> float:
        spent = time.monotonic() - began
        return max(spent - bench.lost, spent / MAX_PATIENCE)

    return clock


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
    trial = bench.probe(with_raw_images(option))
    trial = trial if trial.error else bench.write(with_raw_images(option), bench.samples)
    trial = trial if trial.error else bench.measure(trial, 2 * ROUND_SECONDS)
    return None if trial.error else trial


def _with_encoded_images(
    bench: Any, options: list[StorageOption]
) -> tuple[MemorySamples | None, float, list[StorageOption]]:
    """Encode the images of the samples once, as the settings say; return the seconds per sample, too.

    If no option can hold such images, all options keep the images as they are.
    """
    for option in options:
        if not option.images:
            break
        with contextlib.suppress(BatchplantError, OSError):
            reader, seconds = bench.convert_all(option)
            columns = reader.read(range(len(reader)))
            memory = MemorySamples(reader.path, reader.schema, columns.take(range(columns.rows)))
            return memory, seconds / max(len(reader), 1), options
    return None, 0.0, [dataclasses.replace(option, images={}) for option in options]


def trial_result(
    trial: Trial, case: Case, read_seconds: float = 0.0, encode_seconds: float = 0.0
) -> TrialResult:
    """Return a trial with its prediction."""
    column = column_of(case.facts.schema) if case.goal == "analyse" else None
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
