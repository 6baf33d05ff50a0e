"""The advice: examine the dataset, apply the rules, try the formats that remain, choose one, prove it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...data.reader import Reader
from ...data.tensors import is_tensors
from ...errors import OptionError, SchemaError
from ...formats.base.format import Format
from ...formats.registry import all_formats, get_format
from ...formats.registry import open as open_reader
from ...schema import Image, Schema
from ...storage import is_remote
from .. import Document, measure
from ..measure import Measurement
from ..measure.choice import ALL, candidates, chosen, missing, refusals
from ..measure.harness import scratch_folder
from .case import Answers, Case, Machine, Requirement, machine
from .facts import DEFAULT_CROP_PIXELS, Facts, look
from .rules import RULES, Rule, RuleResult
from .trial import (
    COLUMNAR,
    GOAL_METRICS,
    GOAL_ORDERS,
    IMAGE_SETTINGS,
    OUT_OF_TIME,
    Prediction,
    Progress,
    StorageOption,
    TrialResult,
    kind_of,
    preference,
    run_trials,
)

TRIAL_SECONDS = 8.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Advice:
    """Advice for a dataset, with reasons and predictions.

    best: the advised option, and reason: why; alternatives: other options, best first; now: the unchanged
    dataset; tried: all options. rules: every rule with its result. settings: the advice of the rules that
    apply. unmet: requirements that no format meets. left_out: why formats were not considered. commands: for
    a shell; opened: the dataset that they make; loop: the Loader in Python.
    """

    facts: Facts
    machine: Machine
    answers: Answers
    rules: Sequence[tuple[Rule, RuleResult]]
    settings: Mapping[str, Any]
    best: TrialResult
    reason: str
    alternatives: Sequence[TrialResult]
    now: TrialResult | None
    tried: Sequence[TrialResult]
    unmet: Sequence[str]
    left_out: Mapping[str, str]
    commands: Sequence[str]
    opened: str
    loop: str
    seconds: float

    @property
    def not_tried(self) -> dict[str, list[str]]:
        """Formats that were not tried, by reason."""
        return untried(self.facts.schema, self.tried, self.answers.formats, self.facts.format)

    @property
    def format(self) -> str:
        return self.best.option.format

    @property
    def prediction(self) -> Prediction:
        return self.best.prediction

    def to_json(self) -> Document:
        facts = {**{f.name: getattr(self.facts, f.name) for f in dataclasses.fields(self.facts)}}
        facts["schema"] = self.facts.schema.to_json()
        facts["fields"] = {
            name: {f.name: getattr(field, f.name) for f in dataclasses.fields(field) if f.name != "field"}
            for name, field in self.facts.fields.items()
        }
        return {
            "facts": facts, "machine": dataclasses.asdict(self.machine),
            "answers": {**dataclasses.asdict(self.answers), "yes": sorted(self.answers.yes)},
            "format": self.format, "settings": dict(self.settings), "advice": self.best.to_json(),
            "reason": self.reason,
            "alternatives": [result.to_json() for result in self.alternatives],
            "now": None if self.now is None else self.now.to_json(), "unmet": list(self.unmet),
            "left out": dict(self.left_out), "not tried": self.not_tried,
            "commands": list(self.commands), "loop": self.loop,
            "rules": [
                {"name": rule.name, "applies": result.applies, "saw": result.message,
                 "sentence": rule.sentence, "doc": rule.doc}
                for rule, result in self.rules
            ],
            "seconds": self.seconds,
        }  # fmt: skip


def apply_rules(case: Case) -> list[tuple[Rule, RuleResult]]:
    """Apply every rule to a case."""
    return [(rule, rule.look(case)) for rule in RULES.values()]


def advise(
    source: Any,
    answers: Answers | None = None,
    *,
    on: Machine | None = None,
    seconds: float = TRIAL_SECONDS,
    trial_runner: Callable[..., list[TrialResult]] = run_trials,
    named: Sequence[str] = (),
    reading: Sequence[str] = (),
    progress: Progress | None = None,
    **answers_by_name: Any,
) -> Advice:
    """Advise on a dataset: ``advise("photos", goal="train", gpus=4, step_ms=120)``.

    source: a Reader, or what :func:`batchplant.open` takes. answers, or the same by name: see
    :class:`Answers`. on: the machine, if it is not this one. seconds: how long trials may take.
    trial_runner: tries formats, in place of :func:`run_trials`. named: the name of the source
    in commands, and reading: the flags that open it.
    """
    began = time.perf_counter()
    answers = dataclasses.replace(answers or Answers(), **answers_by_name)
    with contextlib.ExitStack() as stack:
        reader = source if isinstance(source, Reader) else stack.enter_context(open_reader(source))
        if is_tensors(reader.schema):
            raise OptionError("this is a model; advice is for datasets", path=reader.path)
        if not len(reader):
            raise OptionError("there are no samples to look at", path=reader.path)
        facts = look(reader)
        local_machine = on or machine(reader, answers.storage)
        case = Case(facts, local_machine, answers)
        answers = dataclasses.replace(answers, size=case.size)
        rules = apply_rules(case)
        settings = merge_settings(result for _, result in rules)
        requirements = list(
            dict.fromkeys(
                requirement for _, result in rules if result.applies for requirement in result.requirements
            )
        )
        formats, unmet, left_out = eligible(case, requirements)
        with scratch_folder(None, str(facts.path), needed=256 << 20) as folder:
            tried = trial_runner(
                reader, case, [get_format(name) for name in formats], settings, str(folder),
                seconds=seconds, progress=progress,
            )  # fmt: skip
    chosen = choose(case, tried, settings, requirements)
    best = chosen.best
    if settings.get("order") == "quasi_random" and not best.trial.blocks:
        # This format has no blocks.
        settings["order"] = "random"
    called = list(named) or ([source] if isinstance(source, str) else [str(facts.path)])
    lines, opened = commands(called, best.option, settings, answers, reading=reading)
    return Advice(
        facts=facts, machine=local_machine, answers=answers, rules=rules, settings=settings, best=best,
        reason=chosen.reason, alternatives=chosen.alternatives, now=chosen.current, tried=tried, unmet=unmet,
        left_out=left_out, commands=lines, opened=opened,
        loop=loop(opened, facts.schema, settings, answers),
        seconds=time.perf_counter() - began,
    )  # fmt: skip


def merge_settings(results: Iterable[RuleResult]) -> Document:
    """Return the settings of the rules that apply; earlier rules take precedence."""
    settings: Document = {}
    for result in results:
        if result.applies:
            settings = {**result.settings, **settings}
    return settings


def target_of(source: str, option: StorageOption, settings: Mapping[str, Any]) -> tuple[str, str]:
    """Return the target of the conversion, in the current folder, and the path to open afterwards."""
    name = os.path.basename(source.rstrip("/")) if not re.search(r"[*{?\[]|…", source) else ""
    stem = re.sub(r"[^\w.-]+", "_", name.split(".")[0]) or "data"
    if "shard_size" in settings:
        folder = f"{stem}-{option.format}"
        return f"{folder}/{stem}{option.suffix}", folder
    new = f"{stem}{option.suffix}" if option.suffix else f"{stem}-{option.format}"
    # Never overwrite a file, such as the source itself.
    exists = os.path.lexists(new)
    new = f"{stem}-new{option.suffix}" if exists else new
    return new, new


def commands(
    source: Sequence[str],
    option: StorageOption,
    settings: Mapping[str, Any],
    answers: Answers,
    *,
    reading: Sequence[str] = (),
) -> tuple[list[str], str]:
    """Return the commands, and the path that the loop opens. ``reading``: flags that open the source."""
    paths = list(source)
    lines: list[str] = []
    opened = paths[0]
    if not option.unchanged:
        target, opened = target_of(paths[0], option, settings)
        lines.append(_convert(paths[0], target, option, settings, reading))
        checked = ["batchplant", "verify", opened, "--decode"]
        # Smaller or lossy images differ from their source.
        if not option.images and not settings.get("shuffle") and not settings.get("skip_errors"):
            checked += ["--against", paths[0]]
        lines.append(shlex.join(checked))
    extra = list(reading) if option.unchanged else []
    if answers.goal in ("train", "stream"):
        order = str(settings.get("order", "random"))
        lines.append(
            shlex.join(["batchplant", "bench", "loader", opened, "--order", order, *_size(answers), *extra])
        )
    else:
        lines.append(shlex.join(["batchplant", "info", opened, *extra]))
    return lines, opened


def _size(answers: Answers) -> list[str]:
    flags = ["--batch-size", str(answers.batch_size)] if answers.batch_size != Answers().batch_size else []
    return flags + (["--size", str(answers.size)] if answers.size not in (None, DEFAULT_CROP_PIXELS) else [])


def _convert(
    source: str, target: str, option: StorageOption, settings: Mapping[str, Any], reading: Sequence[str]
) -> str:
    words = ["batchplant", "convert", source, target, *reading]
    if not option.suffix:
        words += ["--to", option.format]
    for name, value in option.writer_options.items():
        words += ["--to-option", f"{name}={value}"]
    for name, value in option.images.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    if "shard_size" in settings:
        words += ["--shard-size", f"{round(settings['shard_size'] / 1e6)}MB"]
    if settings.get("shuffle"):
        words.append("--shuffle")
    if settings.get("skip_errors"):
        words += ["--on-error", "skip"]
    return shlex.join(words)


def loop(opened: str, schema: Schema, settings: Mapping[str, Any], answers: Answers) -> str:
    """Return Python code of a Loader with the settings."""
    images = [name for name, field in schema.items() if isinstance(field, Image)]
    options = [f'order="{settings.get("order", "random")}"', f"workers={settings.get('workers')}"]
    options.append(f"prefetch_batches={settings.get('prefetch_batches', 3)}")
    source = f'"{opened}"'
    if settings.get("cache") and is_remote(opened):
        source = f'bp.open({source}, cache="cache")'
    lines = ["import batchplant as bp"]
    if images:
        lines.append("from batchplant.ops import RandomHorizontalFlip, RandomResizedCrop")
        steps = f"[RandomResizedCrop({answers.size or DEFAULT_CROP_PIXELS}), RandomHorizontalFlip()]"
        pipes = ", ".join(f'"{name}": {steps}' for name in images)
        options.append(f"pipelines={{{pipes}}}")
    arguments = "".join(f"    {argument},\n" for argument in [source, str(answers.batch_size), *options])
    return "\n".join([*lines, "", f"loader = bp.Loader(\n{arguments})"])


# -- the choice ----------------------------------------------------------------------------------------

# Options this near to the best are equally good; the simpler format is chosen.
TIE_SHARE = 0.05
# Gain that a conversion must bring, for it costs time, space and a second copy.
MIN_GAIN = 0.10
# Upper limits however much rounds differ: of options further apart, the better one is chosen.
MAX_TIE_SHARE, MAX_NOISE = 0.10, 0.30
MAX_ALTERNATIVES = 4


@dataclasses.dataclass(frozen=True)
class Choice:
    """The advised option and the reason, the unchanged dataset, and the alternatives, best first."""

    best: TrialResult
    reason: str
    current: TrialResult | None
    alternatives: Sequence[TrialResult]


def eligible(case: Case, requirements: Sequence[Requirement]) -> tuple[list[str], list[str], dict[str, str]]:
    """Return the formats that meet all requirements, the requirements that none meets, and the rejections."""
    schema = case.facts.schema
    named = list(case.answers.formats)
    for name in named:
        get_format(name)
    usual = named or candidates(schema)
    every = named or [candidate.format for candidate in chosen([ALL], schema)]
    if not every:
        raise OptionError("no format that is installed holds these fields", path=case.facts.path)
    for pool in (usual, every):
        fitting = [name for name in pool if not _unmet(name, requirements)]
        if fitting:
            unmet_by = {name: _unmet(name, requirements) for name in every if name not in fitting}
            reasons = {name: f"cannot {why}" for name, why in unmet_by.items() if why}
            return fitting, [], {**({} if named else _refused(schema, fitting)), **reasons}
    # No format meets all: take those that meet most.
    counts = {
        name: sum(not requirement.is_met(get_format(name)) for requirement in requirements) for name in every
    }
    fitting = [name for name in every if counts[name] == min(counts.values())]
    unmet = [
        requirement.description
        for requirement in requirements
        if not all(requirement.is_met(get_format(name)) for name in fitting)
    ]
    return (
        fitting,
        unmet,
        {name: f"cannot {_unmet(name, requirements)}" for name in every if name not in fitting},
    )


def _refused(schema: Schema, but: Sequence[str]) -> dict[str, str]:
    return {name: why for name, why in refusals(schema).items() if name not in but}


def _unmet(name: str, requirements: Iterable[Requirement]) -> str | None:
    format = get_format(name)
    return next(
        (requirement.description for requirement in requirements if not requirement.is_met(format)), None
    )


def choose(
    case: Case,
    results: Sequence[TrialResult],
    settings: Mapping[str, Any],
    requirements: Sequence[Requirement] = (),
) -> Choice:
    """Choose a way. The dataset stays as it is unless another way is better beyond doubt, or it must change.

    musts: what the format has to be able to do.
    """
    more_is_better = GOAL_METRICS[case.goal][1]
    current = next((result for result in results if result.option.unchanged), None)
    measured = [
        result
        for result in results
        if result.value is not None and not result.option.unchanged and not result.is_extra
    ]
    measured.sort(key=lambda result: (result.value or 0.0) * (-1 if more_is_better else 1))
    finished = [result for result in measured if result.trial.stopped is None]
    needed, wish = _reasons(case, settings, requirements, current)
    if current is not None and not needed:
        best, reason = _compare_with_current(case, current, finished, wish)
    elif finished:
        best, reason = _preferred(finished, case), needed
    else:
        failed = next(
            (result.trial.error for result in results if result.trial.error), "nothing could be tried"
        )
        raise OptionError(f"no format could be tried: {failed}", path=case.facts.path)
    same = current.option.format if best is current and current is not None else None
    alternatives = [
        result for result in measured if result.option != best.option and result.option.format != same
    ]
    shown = alternatives[:MAX_ALTERNATIVES]
    if case.goal == "analyse":
        # Always show the formats that analysis programs read best.
        shown += [result for result in alternatives[MAX_ALTERNATIVES:] if result.option.format in COLUMNAR]
    shown += [result for result in results if result.value is not None and result.is_extra]
    priced = [dataclasses.replace(result, price=price(result, best, case)) for result in shown]
    return Choice(best, reason, current, priced)


def _reasons(
    case: Case, settings: Mapping[str, Any], requirements: Sequence[Requirement], current: TrialResult | None
) -> tuple[str, str]:
    """Return why the dataset must change, and why it should if that is no loss; empty without a reason."""
    if current is None:
        return "", ""
    format = all_formats().get(current.option.format)
    if format is None:
        return "it is not in a file", ""
    lacks = [requirement for requirement in requirements if not requirement.is_met(format)]
    needed = [
        f"it cannot {requirement.description} as it is" for requirement in lacks if not requirement.optional
    ]
    if settings.get("shuffle"):
        needed.append("its labels stand together, and a stream is not shuffled well enough")
    if "shard_size" in settings and case.facts.files < case.answers.gpus:
        needed.append("there are fewer files than GPUs")
    wish = [f"it cannot {requirement.description} as it is" for requirement in lacks if requirement.optional]
    if settings.get("rewrite"):
        wish.append("its blocks, chunks or compression make single samples slow to read")
    if any(name in settings for name in IMAGE_SETTINGS):
        wish.append("its images are larger or slower to decode than training needs")
    return next(iter(needed), ""), next(iter(wish), "")


def _compare_with_current(
    case: Case, current: TrialResult, finished: Sequence[TrialResult], wish: str
) -> tuple[TrialResult, str]:
    """Return the option that beats the unchanged dataset by more than noise, else that; and the reason."""
    more_is_better = GOAL_METRICS[case.goal][1]
    word, comparative = ("fast", "faster") if more_is_better else ("small", "smaller")
    if not finished:
        return current, f"nothing that could be tried is as {word}"
    if current.value is None:
        # It could not be tried at its future location: a trial of the same format stands for it.
        best = _preferred(finished, case)
        same = (
            best.option.format == current.option.format
            and not best.option.writer_options
            and not best.option.images
        )
        return (current, "copy it there in the format that it has") if same else (best, wish)
    top = finished[0]
    noise, gain = _noise(top, current), ratio(top, current, more_is_better) - 1
    margin = max(MIN_GAIN, noise)
    gains = [(result, ratio(result, current, more_is_better) - 1) for result in finished]
    better = [result for result, gain_ in gains if (gain_ >= 0 if wish else gain_ > margin)]
    if better:
        best = _preferred(better, case)
        message = _gain_text(ratio(best, current, more_is_better) - 1, word)
        return best, f"{wish}; {message}" if wish else message
    if gain <= 0:
        return current, f"nothing that was tried is {comparative}; the {word}est was {top.option.label}"
    message = f"the {word}est that was tried, {top.option.label}, is {gain:.0%} {comparative}"
    if gain <= max(noise, TIE_SHARE):
        return current, f"{message}: within the noise of these measurements"
    return current, f"{message}: a conversion has to bring {margin:.0%}"


def _gain_text(gain: float, word: str) -> str:
    if gain < 1:
        return f"{gain:.0%} {'faster' if word == 'fast' else 'smaller'} than it is now"
    return f"{gain + 1:,.1f} times as {word} as it is now"


def _noise(a: TrialResult, b: TrialResult) -> float:
    return min(MAX_NOISE, max(a.trial.noise, b.trial.noise))


def ratio(a: TrialResult, b: TrialResult, more_is_better: bool) -> float:
    """Return how many times better ``a`` is than ``b``: 1.1 is ten per cent better."""
    value_a, value_b = a.value or 0.0, b.value or 0.0
    return value_a / max(value_b, 1e-12) if more_is_better else value_b / max(value_a, 1e-12)


def _preferred(finished: Sequence[TrialResult], case: Case) -> TrialResult:
    """Return the preferred option among those that noise cannot tell from the best."""
    kind = kind_of(case.facts, [result.option.format for result in finished])
    top = finished[0]
    near = [
        result
        for result in finished
        if ratio(top, result, GOAL_METRICS[case.goal][1])
        <= 1 + min(MAX_TIE_SHARE, max(TIE_SHARE, _noise(top, result)))
    ]
    return min(
        near, key=lambda result: (*preference(result.option.format, kind, case.goal), result.prediction.bytes)
    )


def price(alternative: TrialResult, best: TrialResult, case: Case) -> str:
    """Describe what an alternative costs or brings, compared with the best."""
    words = []
    figure = GOAL_METRICS[case.goal][0]
    if alternative.value and best.value:
        change = alternative.value / best.value - 1
        words.append(f"{change:+.0%} {'space' if figure == 'bytes' else 'speed'}")
    if figure != "bytes" and best.prediction.bytes:
        words.append(f"{alternative.prediction.bytes / best.prediction.bytes - 1:+.0%} disk")
    if alternative.trial.stopped is not None:
        words.append("tried briefly")
    return ", ".join(words)


def untried(
    schema: Schema, results: Iterable[TrialResult], named: Sequence[str] = (), source: str = ""
) -> dict[str, list[str]]:
    """Return the writable formats that were not tried, by reason.

    named: restrict them to these. source: the format of the dataset.
    """
    trials = {
        result.option.format: result
        for result in results
        if not result.option.unchanged and not result.is_extra
    }
    formats: dict[str, list[str]] = {}
    for name, format in sorted(all_formats().items()):
        considered = name in named if named else format.writer is not None
        if considered and name != source and (name not in trials or trials[name].value is None):
            formats.setdefault(_why(format, schema, trials.get(name)), []).append(name)
    return formats


def _why(format: Format, schema: Schema, result: TrialResult | None) -> str:
    if result is not None and result.trial.stopped is not None:
        return f"stopped, {result.trial.stopped}"
    if result is not None:
        return "no time left" if result.trial.error == OUT_OF_TIME else "failed"
    try:
        format.check(schema)
    except SchemaError:
        return "cannot hold these fields"
    return "not installed" if missing(format) else "not made for what is asked"


# -- proof ---------------------------------------------------------------------------------------------------

# The advised option and the next best.
MAX_PROVED = 2


@dataclasses.dataclass(frozen=True)
class Figure:
    """A predicted and a measured number."""

    name: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Error of the prediction relative to the measurement."""
        return abs(self.predicted - self.measured) / max(abs(self.measured), 1e-12)


@dataclasses.dataclass(frozen=True)
class Proof:
    """Measurements of a storage option beside its predictions."""

    label: str
    figures: tuple[Figure, ...]
    samples: int = 0
    failed: str | None = None

    def lines(self) -> Iterator[str]:
        if self.failed is not None:
            yield f"not measured: {self.failed}"
        for figure in self.figures:
            comparison = f"{figure.predicted:,.0f} predicted, {figure.measured:,.0f} measured"
            yield f"{figure.name}: {comparison} ({figure.error:.0%} off)"

    def to_json(self) -> Document:
        return {
            "way": self.label, "samples": self.samples, "failed": self.failed,
            "figures": [{**dataclasses.asdict(figure), "error": figure.error} for figure in self.figures],
        }  # fmt: skip


def prove(
    reader: Reader, advice: Advice, *, seconds: float, progress: Callable[[int, int], None] | None = None
) -> list[Proof]:
    """Measure the advised option and the runner-up on a sample that takes about so many seconds."""
    results = [advice.best, *advice.alternatives][:MAX_PROVED]
    on_progress = None if progress is None else lambda done, total, name: progress(done, total)
    answers = advice.answers
    rows = measure.formats(
        reader, [result.option.candidate for result in results], size=answers.size or DEFAULT_CROP_PIXELS,
        batch_size=answers.batch_size, order=GOAL_ORDERS.get(answers.goal, "random"),
        seconds=seconds, progress=on_progress,
    )  # fmt: skip
    return [compare(result, row, advice.answers.goal) for result, row in zip(results, rows, strict=True)]


def compare(result: TrialResult, row: Measurement, goal: str) -> Proof:
    """Compare the predictions for the measured number of samples with the measurements."""
    if row.error is not None:
        return Proof(result.option.label, (), row.samples, row.error)
    trial = result.trial
    seconds = trial.seconds_fixed + trial.seconds_per_sample * row.samples
    written = None if result.option.unchanged or not seconds else row.samples / seconds
    pairs = [
        ("samples/s of an epoch", trial.epoch_rate, row.best.get("epoch_warm")),
        ("samples/s of one column", trial.column_rate, row.best.get("column_rate")),
        ("bytes", trial.disk_bytes(row.samples), row.bytes),
        ("samples/s written", written, row.write_rate),
    ]  # fmt: skip
    figures = [
        Figure(name, predicted, measured)
        for name, predicted, measured in pairs
        if predicted is not None and measured is not None
    ]
    metric = GOAL_METRICS[goal][0]
    first = {"epoch_rate": 0, "column_rate": 1, "bytes": 2}.get(metric, 0)
    leading = [figure for figure in figures if figure.name == pairs[first][0]]
    return Proof(
        result.option.label, (*leading, *(figure for figure in figures if figure not in leading)), row.samples
    )
