"""Look after Delta, Iceberg and Lance tables: their history, old files, the way back, small files.

examples:
  batchplant lake history events.delta
  batchplant lake vacuum events.delta --dry-run
  batchplant lake rollback events.delta --to 12
  batchplant lake compact iceberg://production/logs.events
  batchplant lake vacuum --help
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import re
import sys
from typing import Any

from ..errors import OptionError
from ..formats.base.lake import FILE_BYTES, State
from ..jobs import lake
from ..tools import Document
from . import terminal
from .parser import Command, add_commands
from .terminal import counted, human_size, print_json, printable, say

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
# Versions, and files, that are listed.
MAX_STATES, MAX_FILES = 50, 10


def add_args(parser: argparse.ArgumentParser) -> None:
    commands = (
        Command(_add_history, history),
        Command(_add_vacuum, vacuum),
        Command(_add_rollback, rollback),
        Command(_add_compact, compact),
    )
    add_commands(parser, commands)


def _add_table(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "table", metavar="TABLE", help="a folder, a URL, or iceberg://CATALOG/NAMESPACE.TABLE"
    )
    parser.add_argument("--format", metavar="NAME", help="delta or iceberg (default: found by content)")
    parser.add_argument(
        "--option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an option of the format or of the URL: catalog, storage, endpoint, region …",
    )


def _add_change(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only say what would happen")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


def _options(args: argparse.Namespace) -> dict[str, Any]:
    return {"format": args.format, **terminal.parse_options(args.option)}


def _consents(args: argparse.Namespace, question: str) -> bool:
    """Return whether to go on: ask a person; a script needs --yes."""
    if args.yes:
        return True
    if args.json or sys.stdin is None or not sys.stdin.isatty():
        raise OptionError(f"{question} Say so with --yes, or look first with --dry-run", path=args.table)
    print(f"{question} [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _describe(state: State) -> Document:
    return {
        "id": state.id, "at": state.at.isoformat(), "operation": state.operation, "rows": state.rows,
        "current": state.current, "refs": list(state.refs),
    }  # fmt: skip


# -- history ---------------------------------------------------------------------------------------------


def _add_history(parser: argparse.ArgumentParser) -> None:
    _add_table(parser)
    parser.add_argument(
        "-n", type=int, default=MAX_STATES, metavar="N", help=f"how many (default {MAX_STATES})"
    )


def history(args: argparse.Namespace) -> int:
    """List the versions of a Delta or Lance table or the snapshots of an Iceberg table, the latest first.

    examples:
      batchplant lake history events.delta
      batchplant lake history events.iceberg -n 0          (all, however many)
      batchplant lake history iceberg://production/logs.events --json

    Read an older one with `batchplant head TABLE --option version=3` (Delta) or `--option snapshot=ID`
    (Iceberg).
    """
    states = lake.history(args.table, **_options(args))
    shown = states[: args.n] if args.n > 0 else states
    if args.json:
        print_json({"table": args.table, "states": [_describe(state) for state in shown]})
        return 0
    rows = [("", "id", "time (UTC)", "operation", "rows added", "refs")]
    for state in shown:
        count = "" if state.rows is None else f"{state.rows:,}"
        moment, refs = f"{state.at:%Y-%m-%d %H:%M:%S}", printable(", ".join(state.refs))
        rows.append(("*" * state.current, str(state.id), moment, printable(state.operation), count, refs))
    terminal.print_columns(rows)
    if len(states) > len(shown):
        print(f"… and {len(states) - len(shown):,} older ones; -n 0 shows all")
    return 0


# -- vacuum ----------------------------------------------------------------------------------------------


def _add_vacuum(parser: argparse.ArgumentParser) -> None:
    _add_table(parser)
    parser.add_argument(
        "--older-than",
        type=parse_age,
        default=lake.RETENTION,
        metavar="AGE",
        help="7d (default), 12h, 30m, 0",
    )
    _add_change(parser)


def parse_age(text: str) -> datetime.timedelta:
    """Parse a length of time: 7d, 12h, 30m, 0."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip().lower())
    if text.strip() == "0":
        return datetime.timedelta(0)
    try:
        if match is not None:
            return datetime.timedelta(**{UNITS[match[2]]: float(match[1])})
    except OverflowError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is no length of time; write 7d, 12h or 30m")


def vacuum(args: argparse.Namespace) -> int:
    """Remove files that no recent version of a table needs.

    examples:
      batchplant lake vacuum events.delta --dry-run
      batchplant lake vacuum events.delta                          (asks before it removes anything)
      batchplant lake vacuum events.iceberg --older-than 30d --yes

    Versions that were the latest one at any time within --older-than stay readable, and so does everything
    that a branch or tag names. Older ones can not be read afterwards. A reader or writer that has been at
    work for longer than that may lose files: choose an age longer than your longest job.
    """
    options = {"older_than": args.older_than, **_options(args)}
    report = lake.vacuum(args.table, dry_run=True, **options)
    summary = f"{counted(len(report.files), 'file')}, {human_size(report.bytes)}"
    if report.states:
        summary += f", of {counted(len(report.states), 'snapshot')} that can not be read afterwards"
    if not args.dry_run and (report.files or report.states):
        if not _consents(args, f"Remove {summary}?"):
            say(f"{args.table}: nothing was removed")
            return 0
        report = lake.vacuum(args.table, dry_run=False, **options)
    if args.json:
        print_json(
            {"files": report.files, "bytes": report.bytes, "snapshots": report.states, "removed": report.done}
        )
        return 0
    if not report.files and not report.states:
        say(f"{args.table}: there is nothing to remove")
        return 0
    say(f"{args.table}: {summary} {'removed' if report.done else 'would be removed'}")
    if not report.done:
        for file in report.files[:MAX_FILES]:
            say(f"  {file}")
        if len(report.files) > MAX_FILES:
            print(f"  … and {len(report.files) - MAX_FILES:,} more (--json lists all)")
    return 0


# -- rollback --------------------------------------------------------------------------------------------


def _add_rollback(parser: argparse.ArgumentParser) -> None:
    _add_table(parser)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--to", type=int, metavar="ID", help="the version (Delta) or snapshot (Iceberg)")
    group.add_argument("--at", metavar="TIME", help="what was current then: 2025-01-31T12:00:00 (UTC)")
    _add_change(parser)


def rollback(args: argparse.Namespace) -> int:
    """Make an older version of a table the current one, as a new transaction.

    examples:
      batchplant lake rollback events.delta --to 12
      batchplant lake rollback events.iceberg --to 5541278932141
      batchplant lake rollback events.delta --at 2025-01-31T12:00:00 --dry-run

    The versions in between stay in the history, so that you can go forward again. `lake history` lists them.
    """
    state = lake.rollback(args.table, args.to, dry_run=True, at=args.at, **_options(args))
    label = f"{state.id} of {state.at:%Y-%m-%d %H:%M:%S}Z"
    done = False
    if state.current:
        outcome = "is the current one"
    elif args.dry_run:
        outcome = "would become the current one"
    elif _consents(args, f"Make {label} the current one?"):
        lake.rollback(args.table, state.id, dry_run=False, **_options(args))
        done, outcome = True, "is the current one now"
    else:
        outcome = "was not made the current one"
    if args.json:
        print_json({"to": _describe(state), "done": done})
    else:
        say(f"{args.table}: {label} {outcome}")
    return 0


# -- compact ---------------------------------------------------------------------------------------------


def _add_compact(parser: argparse.ArgumentParser) -> None:
    _add_table(parser)
    parser.add_argument(
        "--file-size",
        type=terminal.parse_size,
        default=FILE_BYTES,
        metavar="SIZE",
        help="smaller files are put together up to this size (default 512MiB)",
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would happen")
    terminal.add_quiet(parser)


def compact(args: argparse.Namespace) -> int:
    """Put the small files of a table together, as many appends leave them.

    examples:
      batchplant lake compact events.delta --dry-run
      batchplant lake compact events.delta --file-size 256MB
      batchplant lake compact iceberg://production/logs.events --json

    The rows stay the same, but may change their order. Older versions keep their files until `lake vacuum`.
    """
    with terminal.progress_bar("compacting", quiet=args.quiet or args.json or args.dry_run) as progress:
        report = lake.compact(
            args.table, file_size=args.file_size, dry_run=args.dry_run, progress=progress, **_options(args)
        )
    if args.json:
        print_json(dataclasses.asdict(report))
        return 0
    if not report.removed:
        say(f"{args.table}: no files can be put together")
    else:
        became = "became" if report.done else "would become"
        files = f"{counted(report.removed, 'file')}, {human_size(report.bytes)},"
        say(f"{args.table}: {files} {became} {'' if report.done else 'about '}{report.added:,}")
    if report.left:
        print(f"  left as they are, for rows of them are deleted: {counted(report.left, 'file')}")
    return 0
