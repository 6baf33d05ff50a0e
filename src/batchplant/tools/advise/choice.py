"""The formats that meet all requirements, and the choice among those that were tried."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...errors import OptionError, SchemaError
from ...formats.base.format import Format
from ...formats.registry import all_formats, get_format
from ...schema import Schema
from ..measure.choice import ALL, candidates, chosen, missing, refusals
from .contest import COLUMNAR, OUT_OF_TIME, TrialResult, kind_of, preference
from .rules import Case, Requirement
from .trial import GOAL_METRICS, IMAGE_SETTINGS

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
