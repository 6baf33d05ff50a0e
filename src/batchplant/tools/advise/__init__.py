"""Recommend format and settings for a dataset, a machine and a goal, with reasons and predicted gains.

``advise.advise("photos", goal="train")`` looks at the data (:func:`look`) and at the machine
(:func:`machine`), asks the rules (:data:`RULES`), tries the formats that remain on a few samples, and gives
an :class:`Advice`, which `batchplant advise` prints. A user of open, convert and the Loader, it knows formats
by their capabilities.
"""

from __future__ import annotations

from .advice import Advice, advise
from .case import GOALS, QUESTIONS, STORAGES, Answers, Case, Machine, machine
from .facts import Facts, FieldFacts, look
from .rules import RULES, Rule, RuleResult
from .trial import Prediction

__all__ = [
    "GOALS",
    "QUESTIONS",
    "RULES",
    "STORAGES",
    "Advice",
    "Answers",
    "Case",
    "Facts",
    "FieldFacts",
    "Machine",
    "Prediction",
    "Rule",
    "RuleResult",
    "advise",
    "look",
    "machine",
]
