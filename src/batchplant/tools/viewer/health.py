"""What ``verify`` and ``doctor`` find, with the samples to look at."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from ...data.reader import Reader
from ...errors import Problem, shown
from ...jobs.verify import verify
from ...schema.columns import I64
from .. import doctor

Progress = Callable[[int, int], None]

# Problems that the page gets; verify looks for no more.
PROBLEMS = 1000
_SAMPLE = re.compile(r"\bsample (\d[\d,]*)")


def verified(
    reader: Reader, rows: I64 | None, *, decode: bool, sample: int | None, told: Progress
) -> dict[str, Any]:
    """Structure, bounds, checksums, and with ``decode`` every cell; ``sample``: of so many samples only."""
    chosen = reader if rows is None else reader.subset(rows)
    found = verify(chosen, decode=decode, sample=sample, most=PROBLEMS, progress=told)
    return {
        "ok": found.ok, "samples": found.samples, "of": len(chosen), "checks": list(found.checks),
        "problems": [_problem(one, rows, reader) for one in found.problems], "remarks": list(found.remarks),
    }  # fmt: skip


def examined(
    reader: Reader, rows: I64 | None, *, everything: bool, world_size: int | None, told: Progress
) -> dict[str, Any]:
    """The findings of all checks of the doctor, the worst first."""
    chosen = reader if rows is None else reader.subset(rows)
    report = doctor.examine(
        chosen, sample=None if everything else doctor.SAMPLE, world_size=world_size, progress=told
    )  # fmt: skip
    known = {kind.name: kind for kind in doctor.CHECKS}
    findings = []
    for one in report.findings:
        examples = [_placed(dataclasses.asdict(example), rows, report.path) for example in one.examples]
        findings.append(
            {
                "check": one.check, "severity": one.severity, "message": one.message, "count": one.count,
                "of": one.of, "unit": one.unit, "about": one.about, "field": one.field, "mend": one.mend,
                "title": known[one.check].title, "why": known[one.check].sentence, "examples": examples,
            }
        )  # fmt: skip
    return {
        "ok": report.ok, "samples": report.samples, "looked_at": report.looked_at, "findings": findings,
        "checks": list(report.checks), "remarks": list(report.remarks),
    }  # fmt: skip


def _problem(one: Problem, rows: I64 | None, reader: Reader) -> dict[str, Any]:
    found = _placed(
        {"message": one.message, "sample": one.sample, "field": one.field, "offset": one.offset}, rows
    )
    if one.path is not None and one.path != reader.path:
        found["path"] = shown(one.path)
    return found


def _number(text: str, rows: I64) -> str:
    at = int(text.replace(",", ""))
    return f"{int(rows[at]):,}" if at < len(rows) else text


def _placed(found: dict[str, Any], rows: I64 | None, path: str | None = None) -> dict[str, Any]:
    """With the sample's number in the whole dataset; without a path that is known anyway."""
    sample = found.get("sample")
    if sample is not None and rows is not None and 0 <= sample < len(rows):
        found["sample"] = int(rows[sample])
    if rows is not None and found.get("said"):
        # Another sample that it is like.
        found["said"] = _SAMPLE.sub(lambda one: f"sample {_number(one[1], rows)}", found["said"])
    if path is not None and found.get("path") == path:
        found["path"] = None
    return found
