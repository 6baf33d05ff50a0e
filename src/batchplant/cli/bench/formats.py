"""Which format should I train from? Your own data in each of them: size, speed, memory.

examples:
  batchplant bench formats photos/
  batchplant bench formats train.beton --formats beton,webdataset,parquet,lmdb --pipeline val
  batchplant bench formats table.csv --formats parquet,parquet:compression=zstd,arrow --fields id,text
  batchplant bench formats photos/ --figure formats.svg
  batchplant bench formats train.tar --remote s3://bucket/scratch --order quasi_random
  batchplant bench formats photos/ --full --scratch /data/scratch --json
  batchplant bench formats /data/photos --engine dask --scheduler tcp://10.0.0.1:8786

Some samples, taken evenly from the dataset, are written in every format and read back: in sequence, one by
one, and as shuffled epochs through the Loader, with a cold and a warm page cache. Each format has a process
of its own, and they take turns. All that is written is removed again, also after Ctrl-C. A format may have
options, as parquet:compression=zstd:shard_samples=5000 (`batchplant formats NAME` lists them), and `all`
stands for every format that holds the fields.

pipelines, for every image field:
  train  RandomResizedCrop(SIZE), RandomHorizontalFlip()
  val    CenterCrop(SIZE)
  none   whole images, which have to be of one size
  raw    the encoded bytes: what storage alone can give
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable

from rich.text import Text

from ...errors import OptionError, shown
from ...jobs.engines.base import Inline, portable_source
from ...storage.platform import cpu_count
from ...tools import Document, measure
from ...tools.measure import Measurement, figures, report
from ...tools.measure.comparison import QUICK_SECONDS, caveats
from ...tools.measure.timing import PIPELINES, describe, image_fields
from .. import terminal
from ..terminal import human_size, printable, say
from .loader import ORDERS

SHOWN = 6
# A terminal of less shows fewer columns.
NARROW = 72
EXTRAS = ("per sample", "files", "(best)")
Columns = dict[str, Callable[[Measurement], str]]


def add_args(parser: argparse.ArgumentParser) -> None:
    terminal.add_source(parser)
    parser.add_argument(
        "--formats", metavar="A,B", help="only these (default: those that suit training and hold the fields)"
    )
    parser.add_argument("--fields", metavar="A,B", help="only these fields")
    parser.add_argument("--sample", type=int, metavar="N", help="N samples (default: what the time allows)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=QUICK_SECONDS,
        metavar="S",
        help=f"about how long (default {QUICK_SECONDS:g})",
    )
    parser.add_argument("--full", action="store_true", help="all samples, however long it takes")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of reading (default 3)")
    parser.add_argument("--pipeline", choices=PIPELINES, default="train", help="see below; default train")
    parser.add_argument(
        "--size", type=int, default=224, metavar="PX", help="of images in a batch (default 224)"
    )
    parser.add_argument("--order", choices=ORDERS, default="random", help="of the epochs; default random")
    parser.add_argument("--batch-size", type=int, default=256, metavar="N", help="at most; default 256")
    parser.add_argument("--workers", type=int, metavar="N", help="threads (default: all cores)")
    parser.add_argument(
        "--remote", metavar="URL", help="write and read in a new folder below this URL, removed afterwards"
    )
    parser.add_argument(
        "--remote-option", metavar="NAME=VALUE", action="append", default=[],
        help="of --remote: endpoint, region, anonymous, profile, cache, fetch_bytes, retry_seconds",
    )  # fmt: skip
    parser.add_argument(
        "--scratch", metavar="DIR", help="where files are written (default: where there is room)"
    )
    parser.add_argument(
        "--by",
        choices=tuple(report.SPEEDS),
        help="the speed that ranks (default: warm, or cold with --remote)",
    )
    parser.add_argument("--figure", metavar="FILE", help="draw size against speed into a .png, .svg or .pdf")
    terminal.add_engine(parser, "measures, one format at a time each")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    figures.check(args.figure)
    if args.batch_size < 1 or args.size < 1 or (args.workers is not None and args.workers < 1):
        raise OptionError("--batch-size, --size and --workers are at least 1")
    remote_options = {name: str(value) for name, value in terminal.parse_options(args.remote_option).items()}
    by = args.by or ("warm" if args.remote is None else "cold")
    engine = terminal.engine_of(args, 1)
    if not isinstance(engine, Inline):
        args.source = portable_source(args.source)
    began = time.monotonic()
    with contextlib.closing(terminal.open_source(args)) as opened:
        reader = opened.select(terminal.names_of(args.fields)) if args.fields else opened
        names = terminal.names_of(args.formats) if args.formats else None
        with terminal.progress_bar("formats", quiet=args.quiet or args.json) as progress:
            rows = measure.formats(
                reader, names, sample=args.sample, pipeline=args.pipeline, size=args.size,
                batch_size=args.batch_size, workers=args.workers, order=args.order, remote=args.remote,
                remote_options=remote_options, scratch=args.scratch,
                seconds=None if args.full else args.seconds, rounds=args.rounds,
                engine=engine, progress=progress,
            )  # fmt: skip
        about = report.About(
            path=printable(shown(reader.path)), format=reader.format, total=len(reader),
            samples=max(row.samples for row in rows),
            unit="images" if image_fields(reader.schema) else "samples",
            how=_how(args), machine=_machine(rows), seconds=time.monotonic() - began,
            remote=None if args.remote is None else shown(args.remote), by=by,
            refused={} if names else measure.refusals(reader.schema),
        )  # fmt: skip
    rows = report.ranked(rows, by)
    if args.figure:
        figures.save(report.draw(rows, about), args.figure)
    if args.json:
        terminal.print_json(_as_json(rows, about))
    else:
        _print(rows, about)
        if args.figure:
            say(f"wrote {args.figure}")
    return 0 if any(row.error is None for row in rows) else 1


def _machine(rows: list[Measurement]) -> str:
    """The machine that all were measured on."""
    machines = {row.machine for row in rows if row.machine is not None}
    return f"{len(machines)} machines" if len(machines) > 1 else machines.pop() if machines else describe()


def _how(args: argparse.Namespace) -> str:
    workers = args.workers or cpu_count()
    pipeline = args.pipeline + (f" {args.size}" if args.pipeline in ("train", "val") else "")
    where = "" if args.remote is None else f", over {printable(shown(args.remote))}"
    return f"pipeline {pipeline}, order {args.order}, {workers} worker{'s' * (workers != 1)}{where}"


def _as_json(rows: list[Measurement], about: report.About) -> Document:
    front = {row.label for row in measure.pareto(rows, report.SPEEDS[about.by][0])}
    return {
        "path": about.path, "format": about.format, "samples": about.total, "sample": about.samples,
        "how": about.how, "machine": about.machine, "seconds": about.seconds, "remote": about.remote,
        "by": about.by, "left out": about.refused,
        "caveats": caveats(rows, report.SPEEDS[about.by][0]),
        "formats": [
            {**row.to_json(), "whole": report.whole(row, about.total), "front": row.label in front}
            for row in rows
        ],
    }  # fmt: skip


def _print(rows: list[Measurement], about: report.About) -> None:
    say(f"{about.title}, {about.how}")
    say(about.machine)
    print()
    good = [row for row in rows if row.error is None]
    front = measure.pareto(rows, report.SPEEDS[about.by][0])
    out = terminal.console()
    # Where there is little room, what tells least goes first.
    narrow = out.width < NARROW
    stored: Columns = {
        "size": lambda row: human_size(report.whole(row, about.total)),
        "per sample": lambda row: human_size(row.bytes_per_sample),
        "files": lambda row: _rate(row.files),
        "write/s": lambda row: _rate(row.write_rate),
        "open": lambda row: _time(row.open_seconds),
        "memory": lambda row: human_size(row.memory),
    }
    read: Columns = {
        "MB/s": lambda row: _rate(row.sequential_mb_s),
        "single/s": lambda row: _rate(row.random_rate),
        "cold/s": lambda row: _rate(row.epoch_cold),
        "(best)": lambda row: _rate(row.best.get("epoch_cold")),
        "warm/s": lambda row: _rate(row.epoch_warm),
        "(best) ": lambda row: _rate(row.best.get("epoch_warm")),
    }
    net: Columns = {
        "fetched": lambda row: human_size(row.fetched),
        "per sample": lambda row: human_size((row.fetched or 0) / row.samples),
        "requests": lambda row: _rate(row.requests),
    }
    for title, columns in (("stored as", stored), ("read back", read), ("from the server", net)):
        if columns is net and about.remote is None:
            continue
        shown_columns = {
            name: value for name, value in columns.items() if not narrow or name.strip() not in EXTRAS
        }
        table = figures.table(title, *(name.strip() for name in shown_columns))
        # Numbers are never cut; a long name goes on in the next line.
        table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
        for row in good:
            on_front = row in front
            name = Text(row.label + " *" * on_front, style="bold" if on_front else "")
            table.add_row(name, *(value(row) for value in shown_columns.values()))
        with out.capture() as drawn:
            out.print(table)
        print("\n".join(line.rstrip() for line in drawn.get().splitlines()), end="\n\n")
    if front:
        words = report.SPEEDS[about.by][1]
        say(f"* no other is smaller and faster ({words}); the fastest first")
    for text in caveats(rows, report.SPEEDS[about.by][0]):
        say(f"note: {text}")
    if about.samples < about.total:
        say(f"size: of all {about.total:,} samples, estimated from {about.samples:,}")
    _notes(rows, about)


def _notes(rows: list[Measurement], about: report.About) -> None:
    labels_by_text: dict[str, list[str]] = {}
    for row in rows:
        for text in row.remarks:
            labels_by_text.setdefault(text, []).append(row.label)
    for text, labels in labels_by_text.items():
        say(f"note: {text} ({'all' if len(labels) > 1 and len(labels) == len(rows) else ', '.join(labels)})")
    machines: dict[str, list[str]] = {}
    for row in rows:
        machines.setdefault(row.machine or "", []).append(row.label)
    for machine, labels in sorted(machines.items()):
        if machine and len(machines) > 1:
            say(f"on {machine}: {', '.join(labels)}")
    for row in rows:
        if row.error is not None:
            say(f"left out: {row.label}: {row.error}")
    if about.refused:
        names = list(about.refused)
        hidden = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        say(f"not tried: {', '.join(names[:SHOWN])}{hidden} (--formats names any; --json says why)")


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:,.1f} s" if seconds >= 1 else f"{seconds * 1e3:,.1f} ms"


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"
