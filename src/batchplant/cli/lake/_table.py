"""Shared code of the table commands: the table, consent, times."""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from typing import Any

from ...errors import OptionError
from ...formats.base.lake import State
from ...tools import Document
from ..terminal import parse_options

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def add_table(parser: argparse.ArgumentParser) -> None:
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


def add_change(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only say what would happen")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


def options_of(args: argparse.Namespace) -> dict[str, Any]:
    return {"format": args.format, **parse_options(args.option)}


def consents(args: argparse.Namespace, question: str) -> bool:
    """True to go on: ask a person; a script needs --yes."""
    if args.yes:
        return True
    if args.json or sys.stdin is None or not sys.stdin.isatty():
        raise OptionError(f"{question} Say so with --yes, or look first with --dry-run", path=args.table)
    print(f"{question} [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def parse_age(text: str) -> datetime.timedelta:
    """A length of time: 7d, 12h, 30m, 0."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip().lower())
    if text.strip() == "0":
        return datetime.timedelta(0)
    try:
        if match is not None:
            return datetime.timedelta(**{UNITS[match[2]]: float(match[1])})
    except OverflowError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is no length of time; write 7d, 12h or 30m")


def described(state: State) -> Document:
    """A state as JSON."""
    return {
        "id": state.id, "at": state.at.isoformat(), "operation": state.operation, "rows": state.rows,
        "current": state.current, "refs": list(state.refs),
    }  # fmt: skip
