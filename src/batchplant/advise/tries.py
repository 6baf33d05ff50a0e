"""Which formats come into question, how they are tried, and which one is taken."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import BatchplantError, OptionError
from ..format import Format
from ..measure.choice import ALL, candidates, chosen, refusals
from ..measure.pipelines import column_of
from ..measure.serving import serving_apart
from ..reader import Reader
from ..registry import get_format
from ..schema import Schema
from .predict import FIGURES, Prediction, predict
from .rules import Case, Must
from .trial import BYTES, SCANNED_BYTES, Bench, Held, Trial, hold
from .ways import PICTURES, Way, raw_of, way_of

# Ways this near to the best are as good; what else they can do decides.
TIE = 0.05
# What a conversion must bring, for it costs time, space and a second copy.
GAIN = 0.10
# How much worse one may have been that is tried again, and how often.
NEAR, ROUNDS = 0.30, 4
ROUND_SECONDS = 0.1
# The part of the time that is kept for trying the best of them again.
KEPT = 0.3
SHOWN = 4
OVER = "not tried: the time was over"
# Those who read a format in order to train from it.
TRAINERS = frozenset({
    "DALI", "FFCV", "Hugging Face", "JAX", "Keras", "MXNet", "MosaicML Streaming", "PyTorch", "TensorFlow",
    "WebDataset", "ffrecord", "torchaudio", "torchvision",
})  # fmt: skip
# Raw pixels of larger pictures, in crops, would mostly be read for nothing.
RAW_SIDE = 2.5


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
            "price": self.price,
            "prediction": dataclasses.asdict(self.prediction), "error": self.trial.error,
        }  # fmt: skip


def eligible(case: Case, musts: Sequence[Must]) -> tuple[list[str], list[str], dict[str, str]]:
    """The formats that can do all that is asked; what none can; and why the others are left out."""
    schema = case.facts.schema
    named = list(case.answers.formats)
    for name in named:
        get_format(name)
    usual = named or candidates(schema)
    every = named or [one.format for one in chosen([ALL], schema)]
    if not every:
        raise OptionError("no format that is installed holds these fields", path=case.facts.path)
    for pool in (usual, every):
        fitting = [name for name in pool if not _fails(name, musts)]
        if fitting:
            left = {name: _fails(name, musts) for name in every if name not in fitting}
            reasons = {name: f"cannot {why}" for name, why in left.items() if why}
            return fitting, [], {**({} if named else _refused(schema, fitting)), **reasons}
    # Those that can do most of it.
    counts = {name: sum(not one.holds(get_format(name)) for one in musts) for name in every}
    fitting = [name for name in every if counts[name] == min(counts.values())]
    unmet = [one.words for one in musts if not all(one.holds(get_format(name)) for name in fitting)]
    return fitting, unmet, {name: f"cannot {_fails(name, musts)}" for name in every if name not in fitting}


def _refused(schema: Schema, but: Sequence[str]) -> dict[str, str]:
    return {name: why for name, why in refusals(schema).items() if name not in but}


def _fails(name: str, musts: Iterable[Must]) -> str | None:
    found = get_format(name)
    return next((one.words for one in musts if not one.holds(found)), None)


def virtues(name: str, goal: str) -> int:
    """How much a format can do besides: what decides between ways that are equally good."""
    found = get_format(name)
    can = found.can
    said = (can.spans, can.remote_ranges, can.keeps_schema, bool(can.checksums), can.splittable, can.append,
            can.streaming_write)  # fmt: skip
    # Who is given data reads it with what they have. A file is easier to move than a folder of chunks.
    readers = 2 * len(can.ecosystem) if goal == "share" else min(len(can.ecosystem), 4)
    if goal == "train":
        readers = 2 * min(len(TRAINERS.intersection(can.ecosystem)), 3)
    return sum(said) + readers + 2 * (found.folder is False) + 2 * (goal == "train" and can.memory_map)


def promise(name: str) -> int:
    """How quickly a format is likely to give its samples."""
    can = get_format(name).can
    return can.memory_map + can.spans


def tries(
    reader: Reader,
    case: Case,
    formats: Sequence[Format],
    settings: Mapping[str, Any],
    folder: str,
    *,
    seconds: float,
    progress: Callable[[int, int], None] | None = None,
) -> list[Tried]:
    """Each format on a few samples of the dataset, the best of them twice, and the dataset as it lies."""
    deadline = time.monotonic() + seconds
    facts, answers = case.facts, case.answers
    scanned = FIGURES[case.goal][0] in ("sequential_rate", "column_rate")
    held, read_each = hold(reader, facts, SCANNED_BYTES if scanned else BYTES)
    ways = [way_of(one, settings, facts.schema) for one in formats]
    # The most promising first: the time may not be enough for all of them.
    ways.sort(
        key=lambda one: (one.format != facts.format, -promise(one.format), -virtues(one.format, case.goal))
    )
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(serving_apart(Path(folder))) if case.storage == "s3" else None
        bench = Bench(held, facts, folder, batch_size=answers.batch_size, size=answers.size, url=url)
        stack.callback(bench.close)
        encoded, encode_each, ways = _encoded(bench, ways)
        if encoded is not None:
            bench.held = encoded
        done: dict[str, list[Trial]] = {}
        total = len(ways) + 1

        def told() -> None:
            if progress is not None:
                progress(len(done), total)

        stays = Way(facts.format, stays=True)
        done[stays.label] = [_measure(bench, bench.stay(stays, reader), case, ROUND_SECONDS)]
        for way in ways:
            told()
            if time.monotonic() > deadline - KEPT * seconds and len(done) > 2:
                done[way.label] = [Trial(way=way, error=OVER)]
                continue
            trial = bench.write(way)
            done[way.label] = [trial]
            if trial.error is None:
                done[way.label] = [_measure(bench, trial, case, ROUND_SECONDS / 2) for _ in range(2)]
        near = _near((fastest(some, case) for some in done.values()), case)
        # In turns: what else the machine does meanwhile then hits all of them alike.
        for trial in itertools.chain.from_iterable(itertools.repeat(near, ROUNDS)):
            if time.monotonic() > deadline:
                break
            done[trial.way.label].append(_measure(bench, trial, case, ROUND_SECONDS))
        trials = [fastest(some, case) for some in done.values()]
        aside = _raw(bench, trials, case) if time.monotonic() < deadline else None
        told()
    tried = [_tried(one, case, read_each, encode_each) for one in trials]
    return [*tried, *([] if aside is None else [dataclasses.replace(_tried(aside, case), aside=True)])]


def _raw(bench: Bench, trials: Iterable[Trial], case: Case) -> Trial | None:
    """The best way with raw pixels, where pictures are no larger than a batch needs them."""
    near = [one for one in _near(trials, case) if not one.way.stays]
    pictures = case.facts.having(kind="image")
    if case.goal != "train" or not near or not pictures or near[0].way.images.get("image_format") == "raw":
        return None
    side = near[0].way.images.get("max_resolution") or max(max(one.width, one.height) for one in pictures)
    if side > RAW_SIDE * case.answers.size:
        return None
    trial = bench.write(raw_of(near[0].way))
    return None if trial.error else bench.epoch(trial, 0.2)


def _encoded(bench: Bench, ways: list[Way]) -> tuple[Held | None, float, list[Way]]:
    """The samples with their pictures as the settings want them, made once; the seconds that one took.

    Ways that cannot hold such pictures keep them as they are.
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


def _measure(bench: Bench, trial: Trial, case: Case, seconds: float) -> Trial:
    """What the goal is about."""
    figure = FIGURES[case.goal][0]
    if figure == "epoch_rate":
        return bench.epoch(trial, seconds)
    if figure == "column_rate":
        return bench.scan(trial, seconds, column_of(case.facts.schema))
    return bench.scan(trial, seconds)


def _tried(trial: Trial, case: Case, read_each: float = 0.0, encode_each: float = 0.0) -> Tried:
    extra = encode_each if trial.way.images else 0.0
    found = predict(trial, case.facts, case.machine, case.answers, read_each=read_each, encode_each=extra)
    return Tried(way=trial.way, trial=trial, prediction=found, value=value_of(trial, found, case.goal))


def value_of(trial: Trial, prediction: Prediction, goal: str) -> float | None:
    """What the goal is about, of the whole dataset; None where the trial failed."""
    figure = FIGURES[goal][0]
    if trial.error is not None:
        return None
    if figure == "bytes":
        return prediction.bytes
    return trial.column_rate if figure == "column_rate" else prediction.rate


def fastest(trials: Sequence[Trial], case: Case) -> Trial:
    """Of the trials of one way, as `measure` finds the best of its rounds; one that failed has failed.

    Whatever else happens on a machine makes a short trial slower, and nothing makes it faster.
    """
    figure = FIGURES[case.goal][0]
    failed = [one for one in trials if one.error is not None]
    return failed[0] if failed else max(trials, key=lambda one: getattr(one, figure, 0.0) or 0.0)


def _near(trials: Iterable[Trial], case: Case) -> list[Trial]:
    """Those that may be the best, the most able first: tried again, for the first time was short."""
    figure = FIGURES[case.goal][0]
    if figure == "bytes":
        return []
    rated = [(getattr(one, figure), one) for one in trials if one.error is None and getattr(one, figure)]
    most = max((rate for rate, _ in rated), default=0.0)
    near = [one for rate, one in rated if rate >= (1 - NEAR) * most]
    return sorted(near, key=lambda one: -math.inf if one.way.stays else -virtues(one.way.format, case.goal))


def choose(
    case: Case, tried: Sequence[Tried], settings: Mapping[str, Any]
) -> tuple[Tried, Tried | None, list[Tried]]:
    """The best way, the dataset as it lies, and the others with their price, best first."""
    more = FIGURES[case.goal][1]
    now = next((one for one in tried if one.way.stays), None)
    known = [one for one in tried if one.value is not None and not one.way.stays and not one.aside]
    aside = [one for one in tried if one.value is not None and one.aside]
    if not known:
        reason = next((one.trial.error for one in tried if one.trial.error), "nothing could be tried")
        raise OptionError(f"no format could be tried: {reason}", path=case.facts.path)
    known.sort(key=lambda one: (one.value or 0.0) * (-1 if more else 1))
    best = tied(known, case.goal)
    if now is not None and now.value is not None and stays(case, now, known, settings):
        best, known = now, [one for one in known if one.way.format != now.way.format]
    others = [*[one for one in known if one.way != best.way][:SHOWN], *aside]
    return best, now, [dataclasses.replace(one, price=price(one, best, case)) for one in others]


def ratio(one: Tried, other: Tried, more: bool) -> float:
    """How much better the one is than the other: 1.1 is ten per cent."""
    mine, theirs = one.value or 0.0, other.value or 0.0
    return mine / max(theirs, 1e-12) if more else theirs / max(mine, 1e-12)


def tied(known: Sequence[Tried], goal: str) -> Tried:
    """The best, or one as good that can do more besides."""
    near = [one for one in known if ratio(known[0], one, FIGURES[goal][1]) <= 1 + TIE]
    return max(near, key=lambda one: (virtues(one.way.format, goal), -one.prediction.bytes))


def stays(case: Case, now: Tried, known: Sequence[Tried], settings: Mapping[str, Any]) -> bool:
    """Whether the dataset should stay as it is: it can do what is asked, and a conversion brings little."""
    changes = settings.get("rewrite") or settings.get("shuffle") or any(name in settings for name in PICTURES)
    fit = any(one.way.format == now.way.format for one in known)
    shards = "shard_size" in settings and case.facts.files < case.answers.gpus
    return fit and not changes and not shards and ratio(known[0], now, FIGURES[case.goal][1]) <= 1 + GAIN


def price(one: Tried, best: Tried, case: Case) -> str:
    """What an alternative costs or brings, beside the best."""
    said = []
    figure = FIGURES[case.goal][0]
    if one.value and best.value:
        change = one.value / best.value - 1
        said.append(f"{change:+.0%} {'space' if figure == 'bytes' else 'samples/s'}")
    if figure != "bytes" and best.prediction.bytes:
        said.append(f"{one.prediction.bytes / best.prediction.bytes - 1:+.0%} disk")
    return ", ".join(said)
