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
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.text import Text

from ...errors import OptionError, shown
from ...jobs.engines.base import Inline, portable_source
from ...storage.platform import cpu_count
from ...tools import Document, measure
from ...tools.measure import Measurement, figures, pareto
from ...tools.measure.comparison import QUICK_SECONDS, caveats
from ...tools.measure.timing import PIPELINES, describe, image_fields
from .. import terminal
from ..terminal import human_size, printable, say
from .loader import ORDERS

# Formats that were not tried and are named.
MAX_SHOWN = 6
# A terminal of less shows fewer columns.
NARROW_COLUMNS = 72
EXTRAS = ("per sample", "files", "(best)")
Columns = dict[str, Callable[[Measurement], str]]
# Speeds that rank: the value of a Measurement, and how it is called.
SPEEDS = {
    "warm": ("epoch_warm", "shuffled epoch, warm"),
    "cold": ("epoch_cold", "shuffled epoch, cold"),
    "random": ("random_rate", "single samples"),
    "sequential": ("sequential_rate", "in sequence"),
    "write": ("write_rate", "written"),
}
INK, FAINT, FRONT = "#1f2933", "#8a94a0", "#c2410c"
# Beyond this ratio a linear axis shows one dot and a heap.
MAX_LINEAR_RATIO = 8.0
# Points between a dot and its name, and how far up or down a name may go, the nearest first: a line of the
# front may leave a dot to the right.
NAME_GAP = 8.0
LIFTS = (9, -9, 21, -21, 33, -33, 45, -45, 57, -57, 69, -69)


@dataclasses.dataclass(frozen=True)
class About:
    """Facts of the measurement: dataset and machine."""

    path: str
    format: str
    total: int
    samples: int
    unit: str
    how: str
    machine: str
    seconds: float
    remote: str | None = None
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    by: str = "warm"

    @property
    def title(self) -> str:
        samples = f"{self.samples:,} of {self.total:,}" if self.samples < self.total else f"{self.total:,}"
        return f"{shown(self.path)}: {samples} samples"


def size_unit(largest: float) -> tuple[float, str]:
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if largest >= factor:
            return factor, unit
    return 1, "bytes"


def whole(row: Measurement, total: int) -> float | None:
    """The bytes of the whole dataset in this format, as far as the sample tells."""
    return None if row.bytes_per_sample is None else row.bytes_per_sample * total


def ranked(rows: Sequence[Measurement], by: str) -> list[Measurement]:
    """The fastest first; those that were not measured last."""
    speed = SPEEDS[by][0]
    return sorted(
        rows, key=lambda entry: (entry.error is not None, -(getattr(entry, speed) or 0), entry.label)
    )


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
        choices=tuple(SPEEDS),
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
        about = About(
            path=printable(shown(reader.path)), format=reader.format, total=len(reader),
            samples=max(row.samples for row in rows),
            unit="images" if image_fields(reader.schema) else "samples",
            how=_how(args), machine=_machine(rows), seconds=time.monotonic() - began,
            remote=None if args.remote is None else shown(args.remote), by=by,
            refused={} if names else measure.refusals(reader.schema),
        )  # fmt: skip
    rows = ranked(rows, by)
    if args.figure:
        figures.save(draw(rows, about), args.figure)
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


def _as_json(rows: list[Measurement], about: About) -> Document:
    front = {row.label for row in pareto(rows, SPEEDS[about.by][0])}
    return {
        "path": about.path, "format": about.format, "samples": about.total, "sample": about.samples,
        "how": about.how, "machine": about.machine, "seconds": about.seconds, "remote": about.remote,
        "by": about.by, "left out": about.refused,
        "caveats": caveats(rows, SPEEDS[about.by][0]),
        "formats": [
            {**row.to_json(), "whole": whole(row, about.total), "front": row.label in front}
            for row in rows
        ],
    }  # fmt: skip


def _print(rows: list[Measurement], about: About) -> None:
    say(f"{about.title}, {about.how}")
    say(about.machine)
    print()
    good = [row for row in rows if row.error is None]
    front = pareto(rows, SPEEDS[about.by][0])
    out = terminal.console()
    # Where there is little room, what tells least goes first.
    narrow = out.width < NARROW_COLUMNS
    stored: Columns = {
        "size": lambda row: human_size(whole(row, about.total)),
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
        words = SPEEDS[about.by][1]
        say(f"* no other is smaller and faster ({words}); the fastest first")
    for text in caveats(rows, SPEEDS[about.by][0]):
        say(f"note: {text}")
    if about.samples < about.total:
        say(f"size: of all {about.total:,} samples, estimated from {about.samples:,}")
    _notes(rows, about)


def _notes(rows: list[Measurement], about: About) -> None:
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
        hidden = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
        say(f"not tried: {', '.join(names[:MAX_SHOWN])}{hidden} (--formats names any; --json says why)")


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:,.1f} s" if seconds >= 1 else f"{seconds * 1e3:,.1f} ms"


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


# -- the figure: size against speed --------------------------------------------------------------------


def draw(rows: Sequence[Measurement], about: About) -> figures.Figure:
    """Size against speed, with the front of those that no other beats."""
    speed, words = SPEEDS[about.by]
    good = [row for row in rows if row.bytes_per_sample is not None and getattr(row, speed) is not None]
    front = pareto(good, speed)
    largest = max((whole(row, about.total) or 0 for row in good), default=1.0)
    factor, unit = size_unit(largest)
    spot = {row.label: ((whole(row, about.total) or 0) / factor, getattr(row, speed)) for row in good}
    figure = figures.blank(8.6, 5.4)
    axes = figure.add_subplot()
    figures.tidy(axes)
    axes.margins(0.14, 0.16)
    _scales(axes, list(spot.values()))
    for row in good:
        on_front = row in front
        colour = FRONT if on_front else FAINT
        x, y = spot[row.label]
        axes.plot([x], [y], "o", markersize=9 if on_front else 7, color=colour, zorder=4)
        if speed == "epoch_warm" and row.epoch_cold is not None:
            axes.plot([x, x], [row.epoch_cold, y], linewidth=1, color=colour, alpha=0.5, zorder=2)
            axes.plot(
                [x], [row.epoch_cold], "o", markersize=5, color=colour, markerfacecolor="white", zorder=3
            )
    axes.set_xlabel(f"size of the whole dataset ({unit}), smaller is better", fontsize=10, color=INK)
    axes.set_ylabel(f"{about.unit}/s, {words}, higher is better", fontsize=10, color=INK)
    axes.set_title(f"{about.title}\n{about.how}", fontsize=10, loc="left", color=INK, parse_math=False)
    figure.supxlabel(about.machine, fontsize=7, color=FAINT, x=0.01, ha="left", parse_math=False)
    if speed == "epoch_warm" and any(row.epoch_cold is not None for row in good):
        axes.plot([], [], "o", color=INK, markersize=7, label="warm: the files are in memory")
        axes.plot(
            [], [], "o", color=INK, markersize=5, markerfacecolor="white", label="cold: they are on the disk"
        )
    axes.plot([], [], color=FRONT, linewidth=1.6, label="Pareto front: no other is smaller and faster")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, frameon=False, fontsize=8)
    _name(figure, axes, good, front, spot)
    return figure


def _scales(axes: figures.Axes, spots: list[tuple[float, float]]) -> None:
    """Linear, unless one dot would push the others into a heap."""
    for number, (axis, scale) in enumerate(((axes.xaxis, axes.set_xscale), (axes.yaxis, axes.set_yscale))):
        values = [spot[number] for spot in spots if spot[number] > 0]
        if values and max(values) / min(values) > MAX_LINEAR_RATIO:
            scale("log")
            figures.plain_numbers(axis)
        else:
            figures.in_thousands(axis)


def _name(
    figure: figures.Figure,
    axes: figures.Axes,
    good: list[Measurement],
    front: list[Measurement],
    spot: dict[str, tuple[float, float]],
) -> None:
    """The front as steps, and names beside the dots once everything else has its place."""
    renderer = figures.renderer(figure)
    figure.draw(renderer)
    # From here on nothing moves.
    figure.set_layout_engine("none")
    right, bottom = axes.get_xlim()[1], axes.get_ylim()[0]
    axes.set_xlim(axes.get_xlim())
    axes.set_ylim(axes.get_ylim())
    if front:
        across = [spot[row.label][0] for row in front]
        up = [spot[row.label][1] for row in front]
        axes.step(
            [across[0], *across, right], [bottom, *up, up[-1]], where="post", color=FRONT, linewidth=1.6,
            alpha=0.9, zorder=2,
        )  # fmt: skip
        beaten: dict[str, Any] = {"color": FRONT, "alpha": 0.06, "linewidth": 0, "zorder": 0}
        axes.fill_between([*across, right], [*up, up[-1]], bottom, step="post", **beaten)
    # Those on the front choose their places first.
    occupied: list[Any] = []
    for row in sorted(good, key=lambda entry: (entry not in front, -spot[entry.label][1])):
        occupied.append(_write_name(axes, renderer, row, spot[row.label], row in front, occupied))


def _write_name(
    axes: figures.Axes,
    renderer: Any,
    row: Measurement,
    spot: tuple[float, float],
    on_front: bool,
    occupied: Sequence[Any],
) -> Any:
    """Write the name of a row beside its dot, with a thin line to it; return the box that it takes."""
    colour = FRONT if on_front else INK
    name = axes.annotate(
        row.label, spot, (NAME_GAP, 0), textcoords="offset points", parse_math=False, fontsize=9,
        color=colour, fontweight="bold" if on_front else "normal", va="center",
        arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "alpha": 0.6, "shrinkA": 0},
    )  # fmt: skip
    if name.get_window_extent(renderer).x1 > axes.get_window_extent(renderer).x1:
        name.set_ha("right")
    side = -NAME_GAP if name.get_ha() == "right" else NAME_GAP
    for lift in LIFTS:
        name.set_position((side, lift))
        box = name.get_window_extent(renderer)
        if not any(box.overlaps(other) for other in occupied):
            break
    return box
