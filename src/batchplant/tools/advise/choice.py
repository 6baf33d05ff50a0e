"""Which formats can do what is asked, and which of those that were tried is advised."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...errors import OptionError, SchemaError
from ...formats.base.format import Format
from ...formats.registry import all_formats, get_format
from ...schema import Schema
from ..measure.choice import ALL, candidates, chosen, missing, refusals
from .contest import COLUMNAR, OVER, Tried, kind_of, preference
from .rules import Case, Must
from .trial import FIGURES, IMAGE_SETTINGS

# Ways this near to the best are as good; the simpler format is taken.
TIE = 0.05
# Fraction that a conversion must bring, for it costs time, space and a second copy.
GAIN = 0.10
# However much the rounds differ: of ways further apart than this, the better one is taken.
MAX_TIE, MAX_NOISE = 0.10, 0.30
SHOWN = 4


@dataclasses.dataclass(frozen=True)
class Choice:
    """The way that is advised, why, the dataset as it lies, and the others with their price, best first."""

    best: Tried
    reason: str
    now: Tried | None
    others: Sequence[Tried]


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


def choose(
    case: Case, tried: Sequence[Tried], settings: Mapping[str, Any], musts: Sequence[Must] = ()
) -> Choice:
    """Choose a way. The dataset stays as it is unless another way is better beyond doubt, or it must change.

    musts: what the format has to be able to do.
    """
    more = FIGURES[case.goal][1]
    now = next((one for one in tried if one.way.stays), None)
    known = [one for one in tried if one.value is not None and not one.way.stays and not one.aside]
    known.sort(key=lambda one: (one.value or 0.0) * (-1 if more else 1))
    running = [one for one in known if one.trial.stopped is None]
    needed, wished = _reasons(case, settings, musts, now)
    if now is not None and not needed:
        best, reason = _compared(case, now, running, wished)
    elif running:
        best, reason = _tied(running, case), needed
    else:
        failed = next((one.trial.error for one in tried if one.trial.error), "nothing could be tried")
        raise OptionError(f"no format could be tried: {failed}", path=case.facts.path)
    same = now.way.format if best is now and now is not None else None
    others = [one for one in known if one.way != best.way and one.way.format != same]
    shown = others[:SHOWN]
    if case.goal == "analyse":
        # Programs that analyse read these first, so they are shown, however they did.
        shown += [one for one in others[SHOWN:] if one.way.format in COLUMNAR]
    shown += [one for one in tried if one.value is not None and one.aside]
    priced = [dataclasses.replace(one, price=price(one, best, case)) for one in shown]
    return Choice(best, reason, now, priced)


def _reasons(
    case: Case, settings: Mapping[str, Any], musts: Sequence[Must], now: Tried | None
) -> tuple[str, str]:
    """Why the dataset must change, and why it should where that is no loss; empty: there is no reason."""
    if now is None:
        return "", ""
    found = all_formats().get(now.way.format)
    if found is None:
        return "it is not in a file", ""
    lacks = [one for one in musts if not one.holds(found)]
    needed = [f"it cannot {one.words} as it is" for one in lacks if not one.wish]
    if settings.get("shuffle"):
        needed.append("its labels stand together, and a stream is not shuffled well enough")
    if "shard_size" in settings and case.facts.files < case.answers.gpus:
        needed.append("there are fewer files than GPUs")
    wished = [f"it cannot {one.words} as it is" for one in lacks if one.wish]
    if settings.get("rewrite"):
        wished.append("its blocks, chunks or compression make single samples slow to read")
    if any(name in settings for name in IMAGE_SETTINGS):
        wished.append("its images are larger or slower to decode than training needs")
    return next(iter(needed), ""), next(iter(wished), "")


def _compared(case: Case, now: Tried, running: Sequence[Tried], wished: str) -> tuple[Tried, str]:
    """The way that is better than the dataset as it lies by more than noise, or that itself; and why."""
    more = FIGURES[case.goal][1]
    word, comparative = ("fast", "faster") if more else ("small", "smaller")
    if not running:
        return now, f"nothing that could be tried is as {word}"
    if now.value is None:
        # It could not be tried where it will lie: a trial of the same format stands for it.
        best = _tied(running, case)
        same = best.way.format == now.way.format and not best.way.options and not best.way.images
        return (now, "copy it there in the format that it has") if same else (best, wished)
    top = running[0]
    noise, gain = _noise(top, now), ratio(top, now, more) - 1
    margin = max(GAIN, noise)
    gains = [(one, ratio(one, now, more) - 1) for one in running]
    better = [one for one, each in gains if (each >= 0 if wished else each > margin)]
    if better:
        best = _tied(better, case)
        said = _times(ratio(best, now, more) - 1, word)
        return best, f"{wished}; {said}" if wished else said
    if gain <= 0:
        return now, f"nothing that was tried is {comparative}; the {word}est was {top.way.label}"
    said = f"the {word}est that was tried, {top.way.label}, is {gain:.0%} {comparative}"
    if gain <= max(noise, TIE):
        return now, f"{said}: within the noise of these measurements"
    return now, f"{said}: a conversion has to bring {margin:.0%}"


def _times(gain: float, word: str) -> str:
    if gain < 1:
        return f"{gain:.0%} {'faster' if word == 'fast' else 'smaller'} than it is now"
    return f"{gain + 1:,.1f} times as {word} as it is now"


def _noise(one: Tried, other: Tried) -> float:
    return min(MAX_NOISE, max(one.trial.noise, other.trial.noise))


def ratio(one: Tried, other: Tried, more: bool) -> float:
    """How much better the one is than the other: 1.1 is ten per cent."""
    mine, theirs = one.value or 0.0, other.value or 0.0
    return mine / max(theirs, 1e-12) if more else theirs / max(mine, 1e-12)


def _tied(running: Sequence[Tried], case: Case) -> Tried:
    """The best, or the preferred one of those that noise does not tell from it."""
    kind = kind_of(case.facts, [one.way.format for one in running])
    top = running[0]
    near = [
        one
        for one in running
        if ratio(top, one, FIGURES[case.goal][1]) <= 1 + min(MAX_TIE, max(TIE, _noise(top, one)))
    ]
    return min(near, key=lambda one: (*preference(one.way.format, kind, case.goal), one.prediction.bytes))


def price(one: Tried, best: Tried, case: Case) -> str:
    """What an alternative costs or brings, beside the best."""
    words = []
    figure = FIGURES[case.goal][0]
    if one.value and best.value:
        change = one.value / best.value - 1
        words.append(f"{change:+.0%} {'space' if figure == 'bytes' else 'speed'}")
    if figure != "bytes" and best.prediction.bytes:
        words.append(f"{one.prediction.bytes / best.prediction.bytes - 1:+.0%} disk")
    if one.trial.stopped is not None:
        words.append("tried briefly")
    return ", ".join(words)


def untried(
    schema: Schema, tried: Iterable[Tried], named: Sequence[str] = (), source: str = ""
) -> dict[str, list[str]]:
    """The formats that can be written and were not tried, by the reason.

    named: of these only, where some are. source: the format that the dataset has.
    """
    trials = {one.way.format: one for one in tried if not one.way.stays and not one.aside}
    found: dict[str, list[str]] = {}
    for name, one in sorted(all_formats().items()):
        considered = name in named if named else one.writer is not None
        if considered and name != source and (name not in trials or trials[name].value is None):
            found.setdefault(_why(one, schema, trials.get(name)), []).append(name)
    return found


def _why(one: Format, schema: Schema, tried: Tried | None) -> str:
    if tried is not None and tried.trial.stopped is not None:
        return f"stopped, {tried.trial.stopped}"
    if tried is not None:
        return "no time left" if tried.trial.error == OVER else "failed"
    try:
        one.check(schema)
    except SchemaError:
        return "cannot hold these fields"
    return "not installed" if missing(one) else "not made for what is asked"
