"""Check a dataset against a baseline: schema, counts, classes, ranges, duplicates, leakage.

examples:
  batchplant check photos/ --baseline photos.json              (the first run writes it)
  batchplant check train=photos/train val=photos/val --baseline photos.json
  batchplant check photos/ --baseline photos.json --update     (what is new is as it should be)
  batchplant check photos/ --baseline photos.json --junit report.xml --sarif report.sarif

Under GitHub Actions, a summary is added to the page of the run.
exit codes: 0 ok, or the baseline was written; 1 a rule is broken; 2 wrong use
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os

from ..errors import DamagedError, OptionError, exceptions_as, located
from ..formats.registry import open as open_reader
from ..storage import NOTE_ERRORS, parse_object, put_file, read_whole
from ..tools import baseline
from .terminal import add_reading, counted, print_json, printable, reading, say


def add_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="[SPLIT=]PATH", nargs="+", help="file, folder, URL or glob; several are splits"
    )
    add_reading(parser)
    parser.add_argument(
        "--baseline", metavar="FILE", help="what the dataset was like; written if it is not there"
    )
    parser.add_argument("--update", action="store_true", help="write the baseline anew")
    parser.add_argument(
        "--sample", type=int, metavar="N", help="look at N samples of each split (default: all)"
    )
    for field in dataclasses.fields(baseline.Limits):
        parser.add_argument(
            f"--max-{field.name}", type=float, metavar="SHARE", default=field.default,
            help=f"{baseline.RULES[field.name]} (default: {field.default:g})",
        )  # fmt: skip
    parser.add_argument("--junit", metavar="FILE", help="write a report as JUnit XML")
    parser.add_argument("--sarif", metavar="FILE", help="write a report as SARIF")


def run(args: argparse.Namespace) -> int:
    paths = {}
    for source in args.source:
        name, equals, path = source.partition("=")
        split, path = (name, path) if equals and "/" not in name else (source, source)
        if split in paths:
            raise OptionError(f"there are two splits {split}")
        paths[split] = path
    if len(paths) == 1:
        # The baseline of a dataset fits it in another folder, too.
        paths = dict(zip(["dataset"], paths.values(), strict=True))
    with contextlib.ExitStack() as stack:
        splits = {
            name: stack.enter_context(open_reader(path, **reading(args))) for name, path in paths.items()
        }
        now = baseline.measure(splits, sample=args.sample)
    exists = args.baseline is not None and os.path.exists(args.baseline)
    before = None
    if exists and not args.update:
        message = "not a baseline of batchplant check"
        with exceptions_as(DamagedError, message, *NOTE_ERRORS, path=args.baseline):
            before = parse_object(read_whole(args.baseline))
    limits = baseline.Limits(
        **{field.name: getattr(args, f"max_{field.name}") for field in dataclasses.fields(baseline.Limits)}
    )
    with located(path=args.baseline):
        violations = baseline.compare(now, before, paths, limits)
    if args.baseline is not None and before is None:
        put_file(args.baseline, json.dumps(now, indent=1, ensure_ascii=False).encode() + b"\n")
    _report(args, violations, now, wrote=args.baseline is not None and before is None)
    return 1 if violations else 0


def _report(
    args: argparse.Namespace, violations: list[baseline.Violation], now: dict[str, object], *, wrote: bool
) -> None:
    if args.junit:
        put_file(args.junit, baseline.junit(violations).encode())
    if args.sarif:
        put_file(args.sarif, json.dumps(baseline.sarif(violations), indent=1).encode())
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(summary, "a", encoding="utf-8") as file:
            file.write(baseline.markdown(violations, now))
    if args.json:
        print_json({"ok": not violations, "violations": [vars(entry) for entry in violations], "now": now})
        return
    for line in baseline.text(violations).splitlines():
        say(line)
    if wrote:
        say(f"wrote {printable(args.baseline)}")
    say(f"{counted(len(violations), 'violation')} of {len(baseline.RULES)} rules" if violations else "ok")
