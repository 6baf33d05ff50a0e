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
from ...errors import OptionError
from ...formats.registry import get_format
from ...formats.registry import open as open_reader
from ...schema import Image, Schema
from ...storage import is_remote
from .. import Document, measure
from ..measure import Candidate, Measurement
from ..measure.scratch import scratch_folder
from .answers import Answers
from .choice import choose, eligible, untried
from .contest import Progress, TrialResult, run_trials
from .facts import DEFAULT_CROP_PIXELS, Facts, look
from .machine import Machine, machine
from .rules import RULES, Case, Rule, RuleResult
from .trial import GOAL_METRICS, GOAL_ORDERS, Prediction, StorageOption

TRIAL_SECONDS = 8.0
IMAGE_SETTINGS = {
    "max_resolution": "--max-resolution",
    "image_format": "--image-format",
    "quality": "--quality",
}


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


def merge_settings(results: Iterable[RuleResult]) -> dict[str, Any]:
    """Return the settings of the rules that apply; earlier rules take precedence."""
    settings: dict[str, Any] = {}
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
        words += [IMAGE_SETTINGS[name], str(value)]
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


def candidate(result: TrialResult) -> Candidate:
    """Return an option as a candidate of `measure`."""
    images = {"images": result.option.image_options} if result.option.images else {}
    return Candidate(
        result.option.format, {**result.option.writer_options, **images}, result.option.suffix or None
    )


def prove(
    reader: Reader, advice: Advice, *, seconds: float, progress: Callable[[int, int], None] | None = None
) -> list[Proof]:
    """Measure the advised option and the runner-up on a sample that takes about so many seconds."""
    results = [advice.best, *advice.alternatives][:MAX_PROVED]
    on_progress = None if progress is None else lambda done, total, name: progress(done, total)
    rows = measure.formats(
        reader, [candidate(result) for result in results], size=advice.answers.size or DEFAULT_CROP_PIXELS,
        batch_size=advice.answers.batch_size, order=GOAL_ORDERS.get(advice.answers.goal, "random"),
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
