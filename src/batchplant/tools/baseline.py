"""Compares datasets with a baseline, for CI: what stats and the doctor count, decided by limits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any
from xml.sax.saxutils import quoteattr

from .._version import __version__
from ..data.concat import concat
from ..data.reader import Reader
from ..errors import DamagedError, exceptions_as
from ..jobs import stats
from ..storage import NOTE_ERRORS
from . import doctor

VERSION = 1
RULES = {
    "schema": "Fields are those of the baseline, with the same kinds.",
    "label-names": "Names of classes are those of the baseline, in the same order.",
    "count": "The number of samples does not change by more than a share.",
    "missing": "The share of missing values of a field does not rise.",
    "range": "Values stay within the range of the baseline and a margin.",
    "classes": "Shares of classes do not move by more than a limit, and none comes or goes.",
    "duplicates": "There are not more duplicates than before.",
    "leakage": "No sample of a split is in another one, byte for byte or to the eye.",
    "health": "The doctor finds no error, such as cells that cannot be read.",
}
# Checks of the doctor that compare samples.
COPIES = ("duplicates", "similar-images")
# Values of a field are classes if there are no more of them, and so many samples of each on average.
MAX_CLASSES, MIN_CLASS_SAMPLES = 200, 5


@dataclasses.dataclass(frozen=True)
class Limits:
    """How far a dataset may be from its baseline, as shares."""

    count: float = 0.1
    missing: float = 0.01
    range: float = 0.1
    classes: float = 0.05


@dataclasses.dataclass(frozen=True)
class Violation:
    """A rule that a dataset breaks; ``split`` and ``field``: where."""

    rule: str
    message: str
    split: str
    path: str
    field: str | None = None


def profile(reader: Reader, *, sample: int | None = None) -> dict[str, Any]:
    """Return JSON of what a dataset is like: fields, counts, ranges, classes, what the doctor finds."""
    collected = stats.collect(reader, sample=sample)
    report = doctor.examine(reader, sample=sample)
    fields: dict[str, Any] = {}
    for name, field in collected.fields.items():
        cells = max(field.count + field.missing, 1)
        entry: dict[str, Any] = {"kind": str(reader.schema[name]), "missing": field.missing / cells}
        if (names := getattr(reader.schema[name], "names", None)) is not None:
            entry["names"] = list(names)
        entry["range"] = {
            quantity: [float(numbers.min), float(numbers.max)]
            for quantity, numbers in field.numbers.items()
            if numbers.min is not None
            and numbers.max is not None
            and math.isfinite(numbers.min + numbers.max)
        }
        values = field.values.get("values")
        if values is not None and values.exact and _are_classes(len(values.counts), cells):
            total = max(sum(values.counts.values()), 1)
            entry["classes"] = {str(value): count / total for value, count in values.counts.items()}
        fields[name] = entry
    return {
        "samples": len(reader), "fields": fields,
        "copies": {check: _count(report, check) for check in COPIES},
        "errors": {finding.check: [finding.message, finding.count] for finding in report.of("error")},
    }  # fmt: skip


def _count(report: doctor.Report, check: str) -> int:
    return sum(finding.count for finding in report.findings if finding.check == check)


def _are_classes(count: int, samples: int) -> bool:
    return 0 < count <= MAX_CLASSES and samples >= MIN_CLASS_SAMPLES * count


def measure(splits: Mapping[str, Reader], *, sample: int | None = None) -> dict[str, Any]:
    """Return the baseline of a dataset: the profile of every split, and what they have in common."""
    profiles = {name: profile(reader, sample=sample) for name, reader in splits.items()}
    leakage = dict.fromkeys(COPIES, 0)
    if len(splits) > 1:
        report = doctor.examine(concat(list(splits.values())), sample=sample, only=COPIES)
        for check in COPIES:
            # What is twice in a split is no leakage.
            inside = sum(entry["copies"][check] for entry in profiles.values())
            leakage[check] = max(0, _count(report, check) - inside)
    return {"baseline": VERSION, "batchplant": __version__, "splits": profiles, "leakage": leakage}


def compare(
    now: Mapping[str, Any], before: Mapping[str, Any] | None, paths: Mapping[str, str], limits: Limits
) -> list[Violation]:
    """Return the rules that a dataset breaks; without a baseline those that need none."""
    with exceptions_as(DamagedError, "not a baseline of batchplant check", *NOTE_ERRORS):
        if before is not None and before["baseline"] != VERSION:
            raise DamagedError(f"the baseline is of version {before['baseline']}, and this reads {VERSION}")
        return list(_violations(now, before, paths, limits))


def _violations(
    now: Mapping[str, Any], before: Mapping[str, Any] | None, paths: Mapping[str, str], limits: Limits
) -> Iterator[Violation]:
    for check, count in now["leakage"].items():
        if count:
            words = "byte for byte" if check == "duplicates" else "to the eye"
            samples = "sample is" if count == 1 else "samples are"
            names = ", ".join(paths)
            yield Violation(
                "leakage",
                f"{count:,} {samples} in several splits, {words}",
                names,
                next(iter(paths.values())),
            )
    for split, entry in now["splits"].items():
        path, old = paths[split], None if before is None else before["splits"].get(split)
        for check, (message, count) in entry["errors"].items():
            yield Violation("health", f"{check}: {message} ({count:,})", split, path)
        if before is not None and old is None:
            yield Violation("schema", "the baseline has no such split", split, path)
        if old is not None:
            for rule, message, field in _differences(entry, old, limits):
                yield Violation(rule, message, split, path, field)
    for split in (before or {"splits": {}})["splits"]:
        if split not in now["splits"]:
            yield Violation("schema", "the split of the baseline is not there", split, split)


def _differences(now: Any, old: Any, limits: Limits) -> Iterator[tuple[str, str, str | None]]:
    change = (now["samples"] - old["samples"]) / max(old["samples"], 1)
    if abs(change) > limits.count:
        yield (
            "count",
            f"{now['samples']:,} samples, and {old['samples']:,} in the baseline ({change:+.1%})",
            None,
        )
    for check in COPIES:
        if now["copies"][check] > old["copies"][check]:
            yield (
                "duplicates",
                f"{check}: {now['copies'][check]:,}, and {old['copies'][check]:,} before",
                None,
            )
    for name in [*old["fields"], *(name for name in now["fields"] if name not in old["fields"])]:
        if name not in now["fields"] or name not in old["fields"]:
            state = "is missing" if name not in now["fields"] else "is new"
            yield "schema", f"the field {state}", name
            continue
        for rule, message in _field_differences(now["fields"][name], old["fields"][name], limits):
            yield rule, message, name


def _field_differences(now: Any, old: Any, limits: Limits) -> Iterator[tuple[str, str]]:
    if now.get("names") != old.get("names"):
        yield "label-names", "names of classes, or their order, have changed"
    elif now["kind"] != old["kind"]:
        yield "schema", f"it is {now['kind']}, and was {old['kind']}"
    if now["missing"] > old["missing"] + limits.missing:
        yield "missing", f"{now['missing']:.1%} are missing, and {old['missing']:.1%} before"
    for quantity, (low, high) in now["range"].items():
        first, last = old["range"].get(quantity, (low, high))
        margin = limits.range * (last - first)
        if low < first - margin or high > last + margin:
            yield "range", f"{quantity} are {low:g} to {high:g}, and were {first:g} to {last:g}"
    if "classes" in now and "classes" in old:
        for value in sorted({*now["classes"], *old["classes"]}):
            share, usual = now["classes"].get(value, 0.0), old["classes"].get(value, 0.0)
            if not share or not usual or abs(share - usual) > limits.classes:
                yield "classes", f"{value} is {share:.1%} of the samples, and was {usual:.1%}"


# -- reports ------------------------------------------------------------------------------------------------


def text(violations: list[Violation]) -> str:
    """Return a line for each violation."""
    return "".join(f"{_place(entry)}: {entry.rule}: {entry.message}\n" for entry in violations)


def _place(entry: Violation) -> str:
    return f"{entry.split}, field {entry.field!r}" if entry.field else entry.split


def junit(violations: list[Violation]) -> str:
    """Return JUnit XML: a test case for each rule, with its violations as failures."""
    cases = []
    for rule, meaning in RULES.items():
        failures = "".join(
            f"<failure message={quoteattr(f'{_place(entry)}: {entry.message}')}/>"
            for entry in violations
            if entry.rule == rule
        )
        cases.append(f"<testcase classname={quoteattr(meaning)} name={quoteattr(rule)}>{failures}</testcase>")
    failed = len({entry.rule for entry in violations})
    head = f'<testsuite name="batchplant check" tests="{len(RULES)}" failures="{failed}">'
    return f'<?xml version="1.0" encoding="utf-8"?>\n{head}{"".join(cases)}</testsuite>\n'


def sarif(violations: list[Violation]) -> dict[str, Any]:
    """Return SARIF 2.1.0, for the code scanning of GitHub and others."""
    driver = {
        "name": "batchplant check", "version": __version__,
        "rules": [{"id": rule, "shortDescription": {"text": meaning}} for rule, meaning in RULES.items()],
    }  # fmt: skip
    results = [
        {
            "ruleId": entry.rule, "level": "error", "message": {"text": f"{_place(entry)}: {entry.message}"},
            "locations": [{"physicalLocation": {"artifactLocation": {"uri": entry.path}}}],
        }
        for entry in violations
    ]  # fmt: skip
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }  # fmt: skip


def markdown(violations: list[Violation], now: Mapping[str, Any]) -> str:
    """Return a summary for the page of a GitHub run."""
    counts = ", ".join(f"{name}: {entry['samples']:,}" for name, entry in now["splits"].items())
    lines = [f"### Dataset: {'failed' if violations else 'ok'}", "", f"Samples: {counts}", ""]
    if violations:
        lines += ["| Rule | Where | What |", "| --- | --- | --- |"]
        lines += [
            f"| {entry.rule} | {_cell(_place(entry))} | {_cell(entry.message)} |" for entry in violations
        ]
    return "\n".join(lines) + "\n"


def _cell(value: str) -> str:
    return value.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
