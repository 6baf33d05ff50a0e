"""The advice: looks, asks the rules, tries what is left, and says what to do and what it would give."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...data.reader import Reader
from ...data.tensors import is_tensors
from ...errors import OptionError
from ...formats.registry import get_format
from ...formats.registry import open as open_reader
from ..measure.scratch import scratch_folder
from . import commands
from .answers import Answers
from .choice import choose, eligible, untried
from .contest import Progress, Tried, tries
from .facts import Facts, look
from .machine import Machine, machine
from .rules import RULES, Case, Rule, Seen
from .trial import Prediction

SECONDS = 8.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Advice:
    """What to do with a dataset, why, and what that would give.

    best: the way that is advised, and reason: why, in words; alternatives: others, best first; now: the
    dataset as it lies; tried: all.
    rules: every rule with what it saw. settings: what the rules that apply advise. unmet: what no format can
    do, though it was asked for. left_out: why formats were not considered. commands: to be pasted into a
    shell; opened: what they make; loop: the Loader in Python.
    """

    facts: Facts
    machine: Machine
    answers: Answers
    rules: Sequence[tuple[Rule, Seen]]
    settings: Mapping[str, Any]
    best: Tried
    reason: str
    alternatives: Sequence[Tried]
    now: Tried | None
    tried: Sequence[Tried]
    unmet: Sequence[str]
    left_out: Mapping[str, str]
    commands: Sequence[str]
    opened: str
    loop: str
    seconds: float

    @property
    def not_tried(self) -> dict[str, list[str]]:
        """The formats that were not tried, by the reason."""
        return untried(self.facts.schema, self.tried, self.answers.formats, self.facts.format)

    @property
    def format(self) -> str:
        return self.best.way.format

    @property
    def prediction(self) -> Prediction:
        return self.best.prediction

    def to_json(self) -> dict[str, Any]:
        facts = {**{f.name: getattr(self.facts, f.name) for f in dataclasses.fields(self.facts)}}
        facts["schema"] = self.facts.schema.to_json()
        facts["fields"] = {
            name: {f.name: getattr(one, f.name) for f in dataclasses.fields(one) if f.name != "field"}
            for name, one in self.facts.fields.items()
        }
        return {
            "facts": facts, "machine": dataclasses.asdict(self.machine),
            "answers": {**dataclasses.asdict(self.answers), "yes": sorted(self.answers.yes)},
            "format": self.format, "settings": dict(self.settings), "advice": self.best.to_json(),
            "reason": self.reason,
            "alternatives": [one.to_json() for one in self.alternatives],
            "now": None if self.now is None else self.now.to_json(), "unmet": list(self.unmet),
            "left out": dict(self.left_out), "not tried": self.not_tried,
            "commands": list(self.commands), "loop": self.loop,
            "rules": [
                {"name": rule.name, "applies": seen.applies, "saw": seen.said, "sentence": rule.sentence,
                 "doc": rule.doc}
                for rule, seen in self.rules
            ],
            "seconds": self.seconds,
        }  # fmt: skip


def ask(case: Case) -> list[tuple[Rule, Seen]]:
    """Every rule, and what it sees in a case."""
    return [(rule, rule.look(case)) for rule in RULES.values()]


def advise(
    source: Any,
    answers: Answers | None = None,
    *,
    on: Machine | None = None,
    seconds: float = SECONDS,
    try_ways: Callable[..., list[Tried]] = tries,
    named: Sequence[str] = (),
    reading: Sequence[str] = (),
    progress: Progress | None = None,
    **given: Any,
) -> Advice:
    """What to do with a dataset: ``advise("photos", goal="train", gpus=4, step_ms=120)``.

    source: a Reader, or what :func:`batchplant.open` takes. answers, or the same by name: see
    :class:`Answers`. on: the machine, where it is not this one. seconds: how long trials may take. try_ways:
    what tries formats on a few samples, in place of :func:`tries`. named: what a command calls the source,
    and reading: the flags with which it opens it.
    """
    began = time.perf_counter()
    answers = dataclasses.replace(answers or Answers(), **given)
    with contextlib.ExitStack() as stack:
        reader = source if isinstance(source, Reader) else stack.enter_context(open_reader(source))
        if is_tensors(reader.schema):
            raise OptionError("this is a model; advice is for datasets", path=reader.path)
        if not len(reader):
            raise OptionError("there are no samples to look at", path=reader.path)
        facts = look(reader)
        here = on or machine(reader, answers.storage)
        case = Case(facts, here, answers)
        answers = dataclasses.replace(answers, size=case.size)
        rules = ask(case)
        settings = merged(seen for _, seen in rules)
        musts = list(dict.fromkeys(one for _, seen in rules if seen.applies for one in seen.must))
        formats, unmet, left_out = eligible(case, musts)
        with scratch_folder(None, str(facts.path), needed=256 << 20) as folder:
            tried = try_ways(
                reader, case, [get_format(name) for name in formats], settings, str(folder),
                seconds=seconds, progress=progress,
            )  # fmt: skip
    choice = choose(case, tried, settings, musts)
    best = choice.best
    if settings.get("order") == "quasi_random" and not best.trial.blocks:
        # This format's samples stand by themselves: there are no blocks to go by.
        settings["order"] = "random"
    called = list(named) or ([source] if isinstance(source, str) else [str(facts.path)])
    found, opened = commands.commands(called, best.way, settings, answers, reading=reading)
    return Advice(
        facts=facts, machine=here, answers=answers, rules=rules, settings=settings, best=best,
        reason=choice.reason, alternatives=choice.others, now=choice.now, tried=tried, unmet=unmet,
        left_out=left_out, commands=found, opened=opened,
        loop=commands.loop(opened, facts.schema, settings, answers),
        seconds=time.perf_counter() - began,
    )  # fmt: skip


def merged(seen: Any) -> dict[str, Any]:
    """The settings of the rules that apply; those of a later rule do not replace an earlier one's."""
    found: dict[str, Any] = {}
    for one in seen:
        if one.applies:
            found = {**one.settings, **found}
    return found
