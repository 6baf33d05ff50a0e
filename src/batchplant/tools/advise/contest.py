"""The formats that come into question, tried in an order that suits the data until the best is known."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ...data.reader import Reader
from ...errors import BatchplantError
from ...formats.base.format import Format
from ...formats.registry import get_format
from ...schema import Audio, Image, Tensor, Video
from ...storage.limits import human_size
from ..measure.machine import busy
from ..measure.pipelines import column_of
from ..measure.serving import serving_apart
from .facts import Facts
from .rules import Case
from .trial import (
    FIGURES,
    FIRST,
    ORDERS,
    Bench,
    Held,
    Prediction,
    Trial,
    Way,
    hold,
    predict,
    raw_of,
    way_of,
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
# The first so many are tried even if the time is short, and columnar formats for the goal analyse.
ALWAYS_TRIED = 3
# A first, short trial is with so many bytes of samples.
SKETCH_BYTES = 1 << 20
# Seconds that a conversion for a trial may take: with fewer samples, if need be.
WRITE_SECONDS = 1.0
# How many times longer trials may take on a machine that other processes keep busy.
MAX_PATIENCE = 4.0
# Fraction of the time for the first, short trials of all formats.
SKETCH_TIME = 0.6
# A format whose samples take so many times the bytes of the cells, and of the dataset, is not tried further.
MAX_GROWTH = 4.0
# A format that is so much slower (or larger) than the leader in the first trial is not tried further.
CLEARLY_WORSE = 0.35
FINALISTS, NEAR = 6, 0.12
ROUND_SECONDS = 0.1
MIN_ROUNDS, MAX_ROUNDS = 3, 10
# The best round of a way is trusted once two others came so near to it.
SETTLED, AGREEING = 0.03, 3
# Raw pixels of larger images, in crops, would mostly be read for nothing.
RAW_SIDE = 2.5
OVER = "not tried: the time was over"

Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tried:
    """A way with its trial and what it means for the whole dataset. value: what the goal is about."""

    way: Way
    trial: Trial
    prediction: Prediction
    value: float | None
    price: str = ""
    # Another trade than the rules make: shown beside the advice, and not taken by itself.
    aside: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "format": self.way.format, "suffix": self.way.suffix, "options": dict(self.way.options),
            "images": dict(self.way.images), "as it is": self.way.stays, "value": self.value,
            "noise": self.trial.noise, "price": self.price,
            "prediction": dataclasses.asdict(self.prediction), "error": self.trial.error,
            "stopped": self.trial.stopped,
        }  # fmt: skip


class Measures(Protocol):
    """The part of :class:`Bench` that a contest needs."""

    @property
    def samples(self) -> int: ...

    @property
    def sample_bytes(self) -> int: ...

    def probe(self, way: Way) -> Trial: ...

    def write(self, way: Way, samples: int) -> Trial: ...

    def measure(self, trial: Trial, seconds: float) -> Trial: ...


def kind_of(facts: Facts, formats: Iterable[str]) -> str:
    """The kind of data, as a key of :data:`SUITED`."""
    fields = facts.schema.values()
    if any(isinstance(field, Image) for field in fields):
        return "images"
    if any(isinstance(field, Audio | Video) for field in fields):
        return "media"
    if TOKEN_FORMATS.intersection(formats):
        return "tokens"
    tensors = sum(one.bytes for one in facts.fields.values() if isinstance(one.field, Tensor))
    return "arrays" if tensors > facts.sample_bytes / 2 else "table"


def preference(name: str, kind: str, goal: str) -> tuple[int, int, int, str]:
    """Sort key of a format among those that are equally good; smaller is better, and no two are equal."""
    can = get_format(name).can
    suited = (COLUMNAR if goal == "analyse" else ()) + SUITED[kind]
    place = suited.index(name) if name in suited else len(suited)
    # Whoever is given data reads it with the programs that they have.
    readers = -len(can.ecosystem) if goal == "share" else 0
    return readers, place, -(can.memory_map + can.spans), name


class Contest:
    """Tries ways in turn, and spends the time on those that may be the best.

    bench: who writes and measures; clock: seconds, as :func:`time.monotonic` gives them.
    """

    def __init__(
        self, bench: Measures, case: Case, *, seconds: float, clock: Callable[[], float] = time.monotonic,
        note: Callable[[int], None] = lambda done: None,
    ) -> None:  # fmt: skip
        self.bench, self.case, self.clock, self.note = bench, case, clock, note
        self._began, self._seconds = clock(), seconds
        self._figure, self._more, _ = FIGURES[case.goal]
        self._timed = self._figure != "bytes"
        # All rounds of a way, by its label; those of the last conversion.
        self._rounds: dict[str, list[Trial]] = {}

    def run(self, now: Trial | None, ways: Sequence[Way]) -> list[Trial]:
        """The trials of all ways, and of the dataset as it lies."""
        if now is not None:
            self._rounds[now.way.label] = [self._measured(now)]
        always = ALWAYS_TRIED
        if self.case.goal == "analyse":
            always = max(always, sum(way.format in COLUMNAR for way in ways))
        for number, way in enumerate(ways):
            self.note(number)
            late = number >= always and self._spent() > SKETCH_TIME * self._seconds
            self._rounds[way.label] = [Trial(way=way, error=OVER)] if late else self._sketch(way, now)
        finalists = self._finalists()
        for trial in finalists:
            self._enlarge(trial)
        if self._timed:
            self._alternate([self._rounds[trial.way.label][-1] for trial in finalists])
        self.note(len(ways))
        return [self._best(rounds) for rounds in self._rounds.values()]

    def _spent(self) -> float:
        return self.clock() - self._began

    def _measured(self, trial: Trial) -> Trial:
        return self.bench.measure(trial, ROUND_SECONDS) if self._timed else trial

    def _sketch(self, way: Way, now: Trial | None) -> list[Trial]:
        """A short trial with few samples; none of a way that a handful of samples shows to be absurd."""
        trial = self.bench.probe(way)
        if trial.error is not None:
            return [trial]
        usual = max(self.bench.sample_bytes, 0.0 if now is None or way.images else now.bytes_each, 1.0)
        if trial.bytes_each > MAX_GROWTH * usual and not self.case.answers.formats:
            growth = f"{trial.bytes_each / usual:,.0f} times the size"
            return [dataclasses.replace(trial, stopped=f"{growth} ({human_size(trial.bytes_each)} a sample)")]
        # Few samples of a format with blocks lie in one block: that is no measure of many.
        size = math.inf if trial.blocks else SKETCH_BYTES
        trial = self.bench.write(way, self._bounded(size / max(self.bench.sample_bytes, 1)))
        if trial.error is not None or not self._timed:
            return [trial]
        return [self.bench.measure(trial, ROUND_SECONDS / 2) for _ in range(2)]

    def _bounded(self, samples: float) -> int:
        return int(min(max(samples, FIRST), self.bench.samples))

    def _value(self, trial: Trial) -> float:
        """The figure of a trial, so that more is better."""
        value = trial.figure(self.case.goal, self.case.facts.samples)
        if value is None or trial.stopped is not None:
            return -math.inf
        return value if self._more else -value

    def _worse(self, trial: Trial, leader: Trial) -> float:
        """By which fraction a trial is worse than the leader."""
        mine, best = abs(self._value(trial)), abs(self._value(leader))
        return 1 - (mine / max(best, 1e-12) if self._more else best / max(mine, 1e-12))

    def _best(self, rounds: Sequence[Trial]) -> Trial:
        """The fastest round, with the noise; a way of which a round failed has failed.

        Other processes make a short trial slower, and nothing makes it faster.
        """
        failed = [one for one in rounds if one.error is not None]
        if failed:
            return failed[0]
        ordered = sorted(rounds, key=self._value, reverse=True)
        noise = 0.0
        if self._timed and len(ordered) > 1 and ordered[0].stopped is None:
            noise = self._worse(ordered[:AGREEING][-1], ordered[0])
        return dataclasses.replace(ordered[0], noise=noise)

    def _leading(self, trials: Iterable[Trial]) -> list[Trial]:
        """The ways that may be the best, the best first."""
        ways = [one for one in trials if not one.way.stays and self._value(one) > -math.inf]
        ways.sort(key=self._value, reverse=True)
        return [one for one in ways if self._worse(one, ways[0]) <= CLEARLY_WORSE]

    def _finalists(self) -> list[Trial]:
        """The best of the short trials and the dataset as it lies; the others are stopped."""
        trials = [self._best(rounds) for rounds in self._rounds.values()]
        leading = self._leading(trials)
        # A short trial does not tell near ones apart: of those, the preferred ones are tried on.
        near = [one for one in leading[1:] if self._worse(one, leading[0]) <= NEAR]
        near.sort(key=lambda one: list(self._rounds).index(one.way.label))
        far = [one for one in leading[1:] if self._worse(one, leading[0]) > NEAR]
        finalists = [*leading[:1], *near, *far][:FINALISTS]
        for trial in trials:
            if trial not in finalists and not trial.way.stays and self._value(trial) > -math.inf:
                behind = f"{self._worse(trial, leading[0]):.0%} {'slower' if self._more else 'worse'}"
                stopped = dataclasses.replace(trial, stopped=f"{behind} than {leading[0].way.label}")
                self._rounds[trial.way.label] = [stopped]
        return [*(one for one in trials if one.way.stays and self._value(one) > -math.inf), *finalists]

    def _enlarge(self, trial: Trial) -> None:
        """Convert again with all samples that the time allows."""
        samples = self._bounded(WRITE_SECONDS / max(trial.seconds_each, 1e-9))
        if trial.way.stays or samples < 1.5 * trial.samples:
            return
        self._rounds[trial.way.label] = [self._measured(self.bench.write(trial.way, samples))]

    def _alternate(self, trials: list[Trial]) -> None:
        """Measure in turns, so that other processes hit all alike, until the best rounds are settled."""
        for number in range(MAX_ROUNDS):
            for trial in trials:
                if trial.error is None:
                    self._rounds[trial.way.label].append(self.bench.measure(trial, ROUND_SECONDS))
            best = [self._best(self._rounds[one.way.label]) for one in trials]
            trials = [*(one for one in best if one.way.stays), *self._leading(best)]
            settled = all(one.noise <= SETTLED for one in trials)
            if self._spent() > self._seconds or (number + 1 >= MIN_ROUNDS and settled):
                break


def tries(
    reader: Reader,
    case: Case,
    formats: Sequence[Format],
    settings: Mapping[str, Any],
    folder: str,
    *,
    seconds: float,
    progress: Progress | None = None,
    make_bench: Callable[..., Any] = Bench,
    clock: Callable[[], float] | None = None,
) -> list[Tried]:
    """Each format on a few samples of the dataset, and the dataset as it lies.

    make_bench: who writes and measures, in place of :class:`Bench`; clock: see :class:`Contest`.
    """
    facts, answers = case.facts, case.answers
    column = column_of(facts.schema) if case.goal == "analyse" else None
    held, read_each = hold(reader, facts, scanned=column is not None)
    kind = kind_of(facts, [one.name for one in formats])
    ways = [way_of(one, settings, facts.schema, source=facts.format) for one in formats]
    ways = [way for way in ways if way.format != facts.format or changes(way, case, settings)]
    ways.sort(key=lambda way: preference(way.format, kind, case.goal))
    crowded = busy() is not None
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(serving_apart(Path(folder))) if case.storage == "s3" else None
        bench = make_bench(
            held, facts, folder, batch_size=answers.batch_size, size=case.size,
            order=ORDERS.get(case.goal, "random"), column=column, url=url, busy=crowded,
        )  # fmt: skip
        stack.callback(bench.close)
        encoded, encode_each, ways = _encoded(bench, ways)
        if encoded is not None:
            bench.held = encoded
        clock = clock or _patient(bench)
        total = len(ways) + 1
        note = (lambda done: None) if progress is None else lambda done: progress(done, total)
        contest = Contest(bench, case, seconds=seconds, clock=clock, note=note)
        now = bench.stay(Way(facts.format, stays=True), reader)
        began = clock()
        # It cannot be tried where it will lie; then a trial of its format stands for it.
        trials = [now, *contest.run(None, ways)] if case.moves else contest.run(now, ways)
        aside = _raw(bench, trials, case) if clock() - began < seconds else None
        if progress is not None:
            progress(total, total)
    tried = [tried_of(one, case, read_each, encode_each) for one in trials]
    return [*tried, *([] if aside is None else [dataclasses.replace(tried_of(aside, case), aside=True)])]


def _patient(bench: Bench) -> Callable[[], float]:
    """A clock that leaves out, within bounds, what was lost to other processes."""
    began = time.monotonic()

    def clock() -> float:
        spent = time.monotonic() - began
        return max(spent - bench.lost, spent / MAX_PATIENCE)

    return clock


def changes(way: Way, case: Case, settings: Mapping[str, Any]) -> bool:
    """Whether a file in the format that the dataset has would be another one."""
    anew = any(settings.get(name) for name in ("rewrite", "shuffle", "shard_size"))
    packed = "compress" in settings and way.suffix != "".join(get_format(way.format).suffixes[:1])
    return bool(anew or way.options or way.images or packed or case.moves)


def _raw(bench: Any, trials: Iterable[Trial], case: Case) -> Trial | None:
    """The best way with raw pixels, where images are no larger than a batch needs them."""
    images = case.facts.having(kind="image")
    fast = [one for one in trials if not one.way.stays and one.stopped is None and one.epoch_rate]
    if case.goal != "train" or not fast or not images:
        return None
    way = max(fast, key=lambda one: one.epoch_rate or 0.0).way
    side = way.images.get("max_resolution") or max(max(one.width, one.height) for one in images)
    if side > RAW_SIDE * case.size or way.images.get("image_format") == "raw":
        return None
    trial = bench.probe(raw_of(way))
    trial = trial if trial.error else bench.write(raw_of(way), bench.samples)
    trial = trial if trial.error else bench.measure(trial, 2 * ROUND_SECONDS)
    return None if trial.error else trial


def _encoded(bench: Any, ways: list[Way]) -> tuple[Held | None, float, list[Way]]:
    """The samples with their images as the settings want them, made once; the seconds that one took.

    Ways that cannot hold such images keep them as they are.
    """
    for way in ways:
        if not way.images:
            break
        with contextlib.suppress(BatchplantError, OSError):
            reader, seconds = bench.converted(way)
            columns = reader.read(range(len(reader)))
            held = Held(reader.path, reader.schema, columns.take(range(columns.rows)))
            return held, seconds / max(len(reader), 1), ways
    return None, 0.0, [dataclasses.replace(one, images={}) for one in ways]


def tried_of(trial: Trial, case: Case, read_each: float = 0.0, encode_each: float = 0.0) -> Tried:
    """A trial with its prediction."""
    column = column_of(case.facts.schema) if case.goal == "analyse" else None
    prediction = predict(
        trial, case.facts, case.machine, case.answers, read_each=read_each, column=column,
        encode_each=encode_each if trial.way.images else 0.0,
    )  # fmt: skip
    value = prediction.bytes if FIGURES[case.goal][0] == "bytes" else prediction.rate
    return Tried(
        way=trial.way, trial=trial, prediction=prediction, value=None if trial.error is not None else value
    )
