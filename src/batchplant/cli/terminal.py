"""Functions that all commands share: arguments, JSON, tables, sizes, a progress bar."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import math
import os
import re
import sys
import textwrap
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.reader import Reader
from ..errors import OptionError, Problem
from ..errors import printable as printable
from ..formats.base.options import Typed
from ..formats.registry import open as open_reader
from ..formats.registry import size_of as bytes_of
from ..jobs import engines
from ..storage import is_remote
from ..storage.limits import human_size as human_size
from ..storage.settings import UNITS

if TYPE_CHECKING:
    from rich.console import Console

    from ..jobs.stats import Stats
    from ..tools.doctor import Report

# Objects whose sizes are asked for.
ASKED = 100
# Columns of an output that is no terminal.
UNLIMITED = 1 << 20
# What results come back from.
RETURNING = tuple(name for name in engines.NAMES if name != "ranks")


def console() -> Console:
    """Lines are wrapped and tables cut where a terminal is too narrow for them, and nowhere else."""
    from rich.console import Console

    terminal = sys.stdout is not None and sys.stdout.isatty()
    return Console(highlight=False, soft_wrap=False, width=None if terminal else UNLIMITED)


def say(line: str) -> None:
    """One line, whatever is in it."""
    print(printable(line))


def add_source(parser: argparse.ArgumentParser, *, where: bool = True) -> None:
    """PATH… and how to read it; ``where``: maybe only some samples."""
    parser.add_argument(
        "source", metavar="PATH", nargs="+", help="file, folder, URL, glob or braces of shards"
    )
    add_reading(parser, where=where)


def add_reading(parser: argparse.ArgumentParser, *, where: bool = True) -> None:
    parser.add_argument("--format", metavar="NAME", help="the format to read (default: found by content)")
    parser.add_argument(
        "--option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an option of the reader, e.g. allow_pickle=true (`batchplant formats NAME` lists them), or for "
        "URLs: endpoint, region, anonymous, profile, cache, cache_bytes, fetch_bytes, retry_seconds",
    )
    parser.add_argument("--skip", metavar="FILE", help="leave out samples: a list of verify --quarantine")
    if where:
        parser.add_argument(
            "--where",
            metavar="CONDITION",
            help="only the samples of which this is true, as \"label == 'cat' and width > 64\"",
        )


def add_writing(parser: argparse._ActionsContainer, target: str = "DST") -> None:
    """Add the format to write, and the options of its writer."""
    parser.add_argument(
        "--to", metavar="NAME", help=f"the format to write (default: by the suffix of {target})"
    )
    parser.add_argument(
        "--to-option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an option of the format's writer, or of the store of a URL: endpoint, region, profile",
    )


def add_quiet(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def reading(args: argparse.Namespace, taker: Callable[..., Any] = open_reader) -> dict[str, Any]:
    """Return the keyword arguments of ``open`` from the command line, for a function that passes them on."""
    options = {"format": args.format, "skip": args.skip, "where": args.where}
    return {**options, **parse_options(args.option, taker)}


def open_source(args: argparse.Namespace, **options: Any) -> Reader:
    return open_reader(args.source, **reading(args), **options)


def parse_options(texts: list[str], taker: Callable[..., Any] = open_reader) -> dict[str, Any]:
    """Parse NAME=VALUE pairs for a function that passes them to a format, which knows their types."""
    options = {}
    parameters = [
        parameter.name
        for parameter in inspect.signature(taker).parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    # Tables with transactions of their own have more modes than there are flags; media have no flag.
    names = {*parameters} - {"mode", "media"}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise OptionError(f"{text!r} is not NAME=VALUE")
        if name in names:
            raise OptionError(f"{name} is no option of a format; `--help` shows what the command takes")
        options[name] = Typed(value)
    return options


def names_of(text: str) -> list[str]:
    """A,B,C as a list; spaces around a name do not count."""
    return [name.strip() for name in text.split(",") if name.strip()]


def parse_size(text: str) -> int:
    """Bytes: 500MB, 1GiB, 65536."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", text.strip().lower())
    if match is None or match[2] not in UNITS or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 500MB or 1GiB")
    return int(float(match[1]) * UNITS[match[2]])


def counted(number: int, noun: str = "sample") -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def plain(value: Any) -> Any:
    """A value that JSON can hold, NumPy's kinds included."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    # JSON knows neither infinity nor complex numbers nor dates: as text.
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if isinstance(value, str | int | None) else str(value)


def print_columns(rows: Iterable[Sequence[str]], numbers: Container[int] = ()) -> None:
    """Print rows of text as columns; those that are ``numbers`` are aligned at the right."""
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    for row in zip(*columns, strict=True):
        cells = (
            cell.rjust(width) if number in numbers else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join(cells).rstrip())


def counts_of(report: Report | Stats) -> str:
    """Describe how many samples a report is about, and how many were looked at."""
    looked = "all of them" if report.looked_at == report.samples else f"{report.looked_at:,} of them"
    format = f" of {report.format}" if report.format else ""
    return f"{counted(report.samples)}{format}, looked at {looked}"


def print_json(value: Any) -> None:
    print(json.dumps(plain(value), ensure_ascii=False, indent=2))


def show_result(
    args: argparse.Namespace, result: Mapping[str, Any], show: Callable[[], None], draw: Callable[[], Any]
) -> None:
    """Print a result as JSON or by ``show``, after ``--figure`` was written with what ``draw`` returns."""
    if args.figure:
        from ..tools.measure import figures

        figures.save(draw(), args.figure)
    if args.json:
        print_json(result)
        return
    show()
    if args.figure:
        print(f"\nwrote {args.figure}")


def print_skipped(problems: Sequence[Mapping[str, Any]], limit: int, indent: str = "") -> None:
    """Print the samples that were left out, as ``vars`` of their problems, up to a limit."""
    for problem in problems[:limit]:
        print(f"{indent}skipped: {Problem(**problem)}")
    if len(problems) > limit:
        print(f"{indent}… and {len(problems) - limit} more (--json lists all)")


def wrapped(text: str) -> None:
    """Print text, each of its lines wrapped where a terminal is too narrow."""
    for line in text.splitlines():
        print(textwrap.fill(line, console().width, subsequent_indent="  "))


@contextlib.contextmanager
def progress_bar(label: str, *, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Draw a bar on standard error with rate and time left; nothing where that is no terminal.

    Yields a function of (done, total), and of another label where that changes.
    """
    # Rich takes long to import, and not every command draws.
    from rich import progress
    from rich.console import Console
    from rich.text import Text

    from ..storage import uploads

    class Rate(progress.ProgressColumn):
        def render(self, task: progress.Task) -> Text:
            # Steps that take seconds have no rate worth telling.
            speed = f"{task.speed:,.0f}/s" if (task.speed or 0) >= 0.5 else ""
            return Text(speed, style="progress.data.speed")

    screen = Console(stderr=True)
    bar = progress.Progress(
        progress.TextColumn("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn(),
        Rate(), progress.TimeElapsedColumn(), progress.TextColumn("left"), progress.TimeRemainingColumn(),
        console=screen, disable=quiet or not screen.is_terminal,
    )  # fmt: skip
    sent: dict[str, tuple[int, int]] = {}

    def show_upload(url: str, done: int, size: int) -> None:
        if not sent:
            bar.add_task("sending (MB)")
        sent[url] = done, size
        completed, total = (sum(part) // 10**6 for part in zip(*sent.values(), strict=True))
        bar.update(bar.task_ids[-1], completed=completed, total=total)

    with bar, uploads.watching(show_upload):
        task = bar.add_task(label, total=None)
        yield lambda done, total, now=label: bar.update(task, completed=done, total=total, description=now)


def size_of(files: list[str]) -> int | None:
    """The bytes that were written; None where that takes long to find out."""
    near = all(map(os.path.isfile, files))
    return sum(map(bytes_of, files)) if near or (all(map(is_remote, files)) and len(files) <= ASKED) else None


def add_engine(parser: argparse._ActionsContainer, verb: str, *, ranks: bool = False) -> None:
    """``what`` they do: "writes the shards". ``ranks``: also as one of several processes."""
    parser.add_argument(
        "--engine", choices=engines.NAMES if ranks else RETURNING,
        help=f"who {verb} (default: threads of this process)",
    )  # fmt: skip
    parser.add_argument("--processes", type=int, metavar="N", help="workers of processes, dask or ray")
    if ranks:
        parser.add_argument("--rank", type=int, metavar="R", help="of ranks, if the environment is silent")
        parser.add_argument("--world-size", type=int, metavar="N", help="how many ranks there are")
    parser.add_argument("--scheduler", metavar="ADDR", help="of dask or ray (default: a local cluster)")


def engine_of(args: argparse.Namespace, workers: int | None = None) -> engines.Engine:
    """``workers``: of engines on this machine, where nothing else is said."""
    rank, world_size = getattr(args, "rank", None), getattr(args, "world_size", None)
    usual = "threads" if rank is None else "ranks"
    if args.processes is not None and rank is None:
        usual = "processes"
    name = args.engine or usual
    if args.processes is None and args.scheduler is None and name in ("processes", "dask", "ray"):
        args.processes = workers
    return engines.make(
        name, workers=args.processes, rank=rank, world_size=world_size, scheduler=args.scheduler
    )
