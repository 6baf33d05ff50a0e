"""Results of an examination: Report, Finding, Example."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

# The worst first.
SEVERITIES = ("error", "warning", "note")
# A finding names so many places; it counts all of them.
EXAMPLES = 5
# Samples to leave out that a finding lists.
LISTED = 1_000_000


@dataclasses.dataclass(frozen=True)
class Example:
    """One place where a finding shows. ``said``: what is there; None where a part makes no sense."""

    sample: int | None = None
    field: str | None = None
    key: str | None = None
    path: str | None = None
    said: str = ""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One gotcha of a dataset.

    ``check`` is the name of the check, ``count`` how many have it of the ``of`` that were looked at (samples,
    or what ``unit`` says), ``mend`` the command, the code or the sentence that helps. ``facts`` are the
    numbers behind the message; ``about``: they are an estimate. ``samples`` are those that can be left out,
    where that mends it.
    """

    check: str
    severity: str
    message: str
    count: int
    of: int
    mend: str = ""
    examples: tuple[Example, ...] = ()
    field: str | None = None
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    about: bool = False
    unit: str = "samples"
    samples: tuple[int, ...] = dataclasses.field(default=(), repr=False)


@dataclasses.dataclass(frozen=True)
class Report:
    """All findings, the worst first. ``looked_at``: how many samples were read; ``checks``: which ran."""

    path: str
    format: str
    samples: int
    looked_at: int
    findings: tuple[Finding, ...]
    checks: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Nothing is wrong that stops a training run or spoils it; warnings and notes may be there."""
        return not self.of("error")

    def of(self, severity: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == severity]

    def get(self, check: str) -> Finding | None:
        """The first finding of a check, None where it is silent."""
        return next((finding for finding in self.findings if finding.check == check), None)
