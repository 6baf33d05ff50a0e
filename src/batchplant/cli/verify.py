"""Check every sample of a dataset and name every problem.

examples:
  batchplant verify train.beton
  batchplant verify train.beton --decode           (also decode every cell)
  batchplant verify train.beton --against photos/  (prove that both hold the same)
  batchplant verify s3://b/a.tar --sample 1000     (a thousand samples, drawn at random)
  batchplant verify 'train-*.tar' --decode --quarantine bad.jsonl
  batchplant verify 'train-*.tar' --decode --processes 8
  batchplant verify /data/train --engine dask --scheduler tcp://10.0.0.1:8786

Structure, bounds and checksums (the format's own, and a .crc side-car) are always checked.
"""

from __future__ import annotations

import argparse

from ..jobs.verify import MAX_PROBLEMS, verify
from . import terminal

SHOWN = 50


def add_args(parser: argparse.ArgumentParser) -> None:
    terminal.add_source(parser)
    parser.add_argument("--decode", action="store_true", help="also decode every cell")
    parser.add_argument("--against", metavar="OTHER", help="compare cell by cell with another dataset")
    parser.add_argument(
        "--differences", type=int, metavar="N", default=20,
        help="compare no further after N cells that differ (default: 20; 0: compare all)",
    )  # fmt: skip
    parser.add_argument(
        "--most", type=int, metavar="N", default=MAX_PROBLEMS,
        help=f"stop after N problems (default: {MAX_PROBLEMS:,}; 0: never)",
    )  # fmt: skip
    parser.add_argument("--sample", type=int, metavar="N", help="only N samples, drawn at random")
    parser.add_argument("--seed", type=int, metavar="N", default=0, help="for --sample (default: 0)")
    parser.add_argument("--quarantine", metavar="FILE", help="write the list of bad samples, for --skip")
    parser.add_argument("--workers", type=int, metavar="N", help="decoding threads (default: all cores)")
    terminal.add_engine(parser, "checks")
    terminal.add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    with terminal.progress_bar("verifying", quiet=args.quiet or args.json) as progress:
        report = verify(
            args.source, decode=args.decode, against=args.against, engine=terminal.engine_of(args),
            workers=args.workers, progress=progress, max_problems=args.most or None,
            max_differences=args.differences or None, sample=args.sample, seed=args.seed,
            quarantine=args.quarantine, **terminal.reading(args, verify),
        )  # fmt: skip
    if args.json:
        problems = [vars(problem) for problem in report.problems]
        terminal.print_json({**vars(report), "ok": report.ok, "problems": problems})
        return 0 if report.ok else 1
    for problem in report.problems[:SHOWN]:
        print(problem)
    if len(report.problems) > SHOWN:
        print(f"… and {len(report.problems) - SHOWN} more (--json lists all)")
    count = len(report.problems)
    verdict = "ok" if report.ok else f"{count} problem{'s' if count > 1 else ''}"
    print(f"{report.path}: {verdict} ({report.samples:,} samples; checked {', '.join(report.checks)})")
    for remark in report.remarks:
        print(f"  note: {remark}")
    return 0 if report.ok else 1
