"""Find what spoils a training run: damage, duplicates, sorted labels, odd images, awkward files.

examples:
  batchplant doctor photos/
  batchplant doctor 'train-*.tar' --world-size 8       (are the files good for 8 ranks?)
  batchplant doctor s3://bucket/train.parquet --sample 500
  batchplant doctor photos/ --all                 (every sample, not some of them)
  batchplant doctor photos/ --all --only duplicates --quarantine twice.jsonl
  batchplant doctor train.beton --json
  batchplant doctor --explain                     (what each check looks for, and why)

Some samples from all over the dataset are read and decoded; the output says how many. Nothing is changed.
exit codes: 0 no errors (there may be warnings and notes), 1 errors were found, 2 wrong use
"""

from __future__ import annotations

import argparse
import dataclasses
import textwrap
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from ..data import quarantine
from ..errors import OptionError, Problem
from ..tools import doctor
from . import terminal
from .terminal import counted, printable

STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}


def add_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="PATH", nargs="*", help="file, folder, URL, glob or braces of shards"
    )
    terminal.add_reading(parser)
    parser.add_argument(
        "--sample", type=int, metavar="N", default=doctor.SAMPLE,
        help=f"look at N samples at most, fewer if they are large (default: {doctor.SAMPLE:,})",
    )  # fmt: skip
    parser.add_argument("--all", action="store_true", help="look at every sample")
    parser.add_argument("--only", metavar="CHECK,…", help="run only these checks")
    parser.add_argument("--without", metavar="CHECK,…", help="leave these checks out")
    parser.add_argument("--explain", action="store_true", help="say what a check looks for, and why")
    used = parser.add_argument_group("how the data will be used")
    used.add_argument("--world-size", type=int, metavar="N", help="ranks that share the files")
    used.add_argument("--crop", type=int, metavar="PX", default=224, help="what training sees (default: 224)")
    used.add_argument("--batch-size", type=int, metavar="N", default=256, help="default: 256")
    used.add_argument(
        "--window", type=int, metavar="N", default=1000, help="of a shuffle buffer (default: 1000)"
    )
    used.add_argument("--label", metavar="FIELD", help="the field of the classes (default: found by name)")
    parser.add_argument(
        "--quarantine", metavar="FILE",
        help="say how many samples are damaged or there before, and list them for --skip of all commands",
    )  # fmt: skip
    parser.add_argument("--workers", type=int, metavar="N", help="decoding threads (default: all cores)")
    terminal.add_quiet(parser)
    listed = "\n".join(f"  {kind.name:<17} {kind.title}" for kind in doctor.CHECKS)
    parser.epilog = f"{parser.epilog}\nchecks:\n{listed}\n"


def run(args: argparse.Namespace) -> int:
    checks = doctor.choose(
        terminal.names_of(args.only) if args.only else None,
        terminal.names_of(args.without) if args.without else (),
    )
    if not args.source:
        if not args.explain:
            raise OptionError("which dataset? `batchplant doctor PATH`; `--explain` tells about the checks")
        _explain(checks, as_json=args.json)
        return 0
    with terminal.progress_bar("examining", quiet=args.quiet or args.json) as progress:
        report = doctor.examine(
            args.source,
            sample=None if args.all else args.sample, world_size=args.world_size, crop=args.crop,
            batch_size=args.batch_size, window=args.window, label=args.label,
            only=[kind.name for kind in checks], workers=args.workers, progress=progress,
            **terminal.reading(args, doctor.examine),
        )  # fmt: skip
    listed = _listed(report, terminal.names_of(args.only) if args.only else [])
    if args.json:
        terminal.print_json(_as_json(report) | ({"quarantine": _counts(listed)} if args.quarantine else {}))
    else:
        _print(report, args.explain)
    if args.quarantine:
        if not args.json:
            # Before anything is written.
            _say(terminal.console(), f"--quarantine leaves out {_rule(report, listed)}", 0)
        _quarantine(args, listed)
        if not args.json:
            print(f"wrote {args.quarantine}: {counted(len(listed))} to leave out")
    return 0 if report.ok else 1


def _listed(report: doctor.Report, only: list[str]) -> list[tuple[int, doctor.Finding]]:
    """The samples that are better left out, each once.

    Samples that merely look like another one are listed only where that check is asked for by name.
    """
    findings_by_sample: dict[int, doctor.Finding] = {}
    for finding in report.findings:
        for sample in finding.samples if finding.severity != "note" or finding.check in only else ():
            findings_by_sample.setdefault(sample, finding)
    return sorted(findings_by_sample.items(), key=lambda pair: pair[0])


def _counts(listed: list[tuple[int, doctor.Finding]]) -> dict[str, int]:
    """Number of samples that each finding leaves out."""
    counts: dict[str, int] = {}
    for _, finding in listed:
        counts[finding.message] = counts.get(finding.message, 0) + 1
    return counts


def _rule(report: doctor.Report, listed: list[tuple[int, doctor.Finding]]) -> str:
    """Summary of the samples that are left out, and the reasons."""
    reasons = [f"{count:,} ({message})" for message, count in _counts(listed).items()]
    count_text = f"{len(listed):,} of {counted(report.samples)}"
    return f"{count_text}: {'; '.join(reasons)}" if reasons else count_text


def _quarantine(args: argparse.Namespace, listed: list[tuple[int, doctor.Finding]]) -> None:
    problems = [Problem(finding.message, None, sample, finding.field) for sample, finding in listed]
    quarantine.write(args.quarantine, terminal.open_source(args) if problems else None, problems)


def _as_json(report: doctor.Report) -> dict[str, object]:
    checks_by_name = {kind.name: kind for kind in doctor.CHECKS}
    findings = []
    for finding in report.findings:
        entry = {
            **vars(finding),
            "docs": checks_by_name[finding.check].docs(),
            "explanation": checks_by_name[finding.check].sentence,
        }
        entry["examples"] = [dataclasses.asdict(example) for example in finding.examples]
        del entry["samples"]
        findings.append(entry)
    return {**vars(report), "ok": report.ok, "findings": findings}


def _explain(checks: list[type[doctor.Check]], *, as_json: bool) -> None:
    if as_json:
        terminal.print_json(
            [
                {"check": check.name, "severity": check.severity, "title": check.title,
                 "sentence": check.sentence, "docs": check.docs()}
                for check in checks
            ]
        )  # fmt: skip
        return
    screen = terminal.console()
    for check in checks:
        screen.print(Text.assemble((f"{check.severity:<8}", STYLES[check.severity]), (check.name, "bold")))
        _say(screen, check.sentence, 2)
        _say(screen, check.docs(), 2)


def _print(report: doctor.Report, explain: bool) -> None:
    screen = terminal.console()
    _say(screen, f"{report.path}: {terminal.counts_of(report)}" if report.samples else report.path, 0)
    checks_by_name = {kind.name: kind for kind in doctor.CHECKS}
    for finding in report.findings:
        screen.print()
        about = "about " if finding.about else ""
        screen.print(
            Text.assemble(
                (f"{finding.severity:<8}", STYLES[finding.severity]),
                (finding.check, "bold"),
                (
                    f"  {about}{finding.count:,} of {finding.of:,} "
                    f"{finding.unit if finding.of != 1 else finding.unit[:-1]}",
                    "default",
                ),
            )
        )
        _say(screen, finding.message, 2)
        if explain:
            _say(
                screen,
                f"{checks_by_name[finding.check].sentence} ({checks_by_name[finding.check].docs()})",
                2,
                style="dim",
            )
        for example in finding.examples:
            _say(screen, _place(report, example), 4, style="dim")
        hidden = finding.count - len(finding.examples)
        if finding.examples and len(finding.examples) == doctor.EXAMPLES and hidden > 0:
            _say(screen, f"… and {hidden:,} more", 4, style="dim")
        for number, line in enumerate(finding.mend.splitlines()):
            _say(screen, f"{'→' if number == 0 else ' '} {line}", 2, command="batchplant " in line)
    screen.print()
    _say(screen, _verdict(report), 0, style="bold")
    for remark in report.remarks:
        _say(screen, f"note: {remark}", 0)


def _verdict(report: doctor.Report) -> str:
    counts_text = [
        counted(len(findings), severity)
        for severity in doctor.SEVERITIES
        if (findings := report.of(severity))
    ]
    count = counted(len(report.checks), "check")
    return f"{count}: {', '.join(counts_text) or 'nothing found'}"


def _place(report: doctor.Report, example: doctor.Example) -> str:
    parts = [] if example.sample is None else [f"sample {example.sample:,}"]
    if example.key is not None:
        parts.append(example.key)
    elif example.path is not None and example.path != report.path:
        parts.append(example.path)
    elif example.sample is None and example.field is not None:
        parts.append(example.field)
    return ": ".join(part for part in (", ".join(parts), example.said) if part)


def _say(screen: Console, text: str, indent: int, *, style: str = "", command: bool = False) -> None:
    """Lines that fit the terminal; a command stays in one line, to be copied."""
    for line in _wrapped(printable(text), screen.width, indent, whole=command):
        screen.print(Text(line, style=style), soft_wrap=True)


def _wrapped(text: str, width: int, indent: int, *, whole: bool) -> Iterator[str]:
    space = " " * indent
    if whole or width >= terminal.UNLIMITED:
        yield space + text
        return
    hanging = space + ("  " if text[:1] in "→ " else "")
    yield from textwrap.wrap(
        text, max(width, 20), initial_indent=space, subsequent_indent=hanging, break_on_hyphens=False
    )
