"""What a rule is: a small function that looks at a case and says what it saw and what follows from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ...format import Format
from ..answers import Answers
from ..facts import Facts
from ..machine import Machine

GUIDE = "docs/choosing.md"


@dataclasses.dataclass(frozen=True)
class Case:
    """What a rule looks at."""

    facts: Facts
    machine: Machine
    answers: Answers

    @property
    def goal(self) -> str:
        return self.answers.goal

    @property
    def storage(self) -> str:
        return self.answers.storage or self.machine.storage

    @property
    def loads(self) -> bool:
        """Whether samples go into a training loop."""
        return self.goal in ("train", "stream")

    @property
    def larger_than_memory(self) -> bool:
        return (self.facts.bytes or 0) > 0.7 * self.machine.memory


class Must(NamedTuple):
    """Something that the format has to be able to do: in words, and how to tell."""

    words: str
    holds: Callable[[Format], bool]


@dataclasses.dataclass(frozen=True)
class Seen:
    """What a rule saw in a case. ``settings`` are what it advises, by name; see :mod:`..settings`."""

    said: str
    applies: bool = True
    must: tuple[Must, ...] = ()
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # Something that the user has to know, though no setting can mend it.
    warns: bool = False


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule with its sentence and the section that explains it."""

    name: str
    sentence: str
    doc: str
    look: Callable[[Case], Seen]


RULES: dict[str, Rule] = {}


def rule(sentence: str, doc: str) -> Callable[[Callable[[Case], Seen]], Callable[[Case], Seen]]:
    """Adds a function to :data:`RULES`, under its name with hyphens."""

    def add(look: Callable[[Case], Seen]) -> Callable[[Case], Seen]:
        name = look.__name__.replace("_", "-")
        RULES[name] = Rule(name, sentence, doc if "docs/" in doc else f"{GUIDE}#{doc}", look)
        return look

    return add


def no(said: str) -> Seen:
    """The rule does not apply, and why."""
    return Seen(said, applies=False)
