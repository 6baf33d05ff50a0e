"""How large should row groups, chunks and shards be? Read amplification and speed against their size.

examples:
  batchplant bench chunks train.beton
  batchplant bench chunks table.parquet --formats parquet --sizes 256kB,1MB,4MB,16MB
  batchplant bench chunks volumes.h5 --formats hdf5,zarr --fields volume --order random
  batchplant bench chunks photos/ --figure chunks.svg
  batchplant bench chunks photos/ --json

Some of the samples are written with row groups (Parquet), chunks (HDF5, Zarr) and tar shards of every size,
and read in three orders: through a server of its own on this machine, which counts bytes and requests, and
from local files, for the speed. Read amplification is what was fetched, divided by what the samples take: 1.0
means that every byte is fetched once. --memory is what readers may keep; by default a quarter of the data,
for a dataset is usually much larger than memory. All that is written is removed again.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from ...errors import OptionError
from ...tools import Document
from ...tools.measure import chunks as measuring
from ...tools.measure import figures
from .. import terminal
from ..terminal import counted, human_size

SHORT = {"sequential": "seq", "quasi_random": "quasi", "random": "rand"}
# Bytes of a dataset that readers keep without being told to.
SMALL = 256 << 20


def add_args(parser: argparse.ArgumentParser) -> None:
    terminal.add_source(parser)
    parser.add_argument("--formats", metavar="A,B", help=f"of {', '.join(measuring.LAYOUTS)} (default: all)")
    parser.add_argument("--fields", metavar="A,B", help="only these fields")
    parser.add_argument("--sizes", metavar="A,B", help="such as 256kB,1MB,4MB (default: by the data)")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N samples (default: 67 MB of them)")
    parser.add_argument(
        "--memory",
        type=terminal.parse_size,
        metavar="SIZE",
        help="what readers may keep (default: 1/4 of the data)",
    )
    parser.add_argument(
        "--order", choices=measuring.ORDERS, default="quasi_random",
        help="that the recommendation is for (default quasi_random)",
    )  # fmt: skip
    parser.add_argument(
        "--request-cost", type=terminal.parse_size, default=1_000_000, metavar="SIZE",
        help="what one request costs, as bytes: latency times bandwidth (default 1MB: 20 ms at 50 MB/s)",
    )  # fmt: skip
    parser.add_argument("--batch-size", type=int, default=16, metavar="N", help="default 16")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="of reading files (default 2)")
    parser.add_argument(
        "--seconds", type=float, default=0.2, metavar="S", help="of each order and round (default 0.2)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="another seed, other orders")
    parser.add_argument("--scratch", metavar="DIR", help="a folder for files that are removed again")
    parser.add_argument("--figure", metavar="FILE", help="draw both against size into a .png, .svg or .pdf")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    for name in ("limit", "batch_size", "rounds"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise OptionError(f"--{name.replace('_', '-')} is at least 1")
    if not 0 < args.seconds <= 1e6:
        raise OptionError("--seconds is more than 0")
    sizes = None if args.sizes is None else parse_sizes(args.sizes)
    figures.check(args.figure)
    with terminal.open_source(args) as source:
        chosen = source.select(terminal.names_of(args.fields)) if args.fields else source
        formats = None if args.formats is None else terminal.names_of(args.formats)
        layouts, refused = measuring.layouts_for(formats, chosen.schema)
        samples, data = measuring.take_samples(chosen, args.limit)
        memory = args.memory or max(1, data // measuring.DATA_TO_MEMORY)
        plan = measuring.Plan(memory, args.batch_size, args.seconds, args.rounds, args.seed)
        with terminal.progress_bar("sizes", quiet=args.quiet or args.json) as progress:
            rows = measuring.measure(
                samples, data, layouts, sizes or measuring.sizes_for(data), plan, scratch=args.scratch,
                progress=progress,
            )  # fmt: skip
        result: Document = {
            "path": source.path, "samples": len(samples), "of samples": len(source), "bytes": data,
            "memory": memory, "batch size": args.batch_size, "order": args.order,
            "request cost": args.request_cost, "left out": refused,
            "formats": {
                layout.format: summary([row for row in rows if row.format == layout.format], args)
                for layout in layouts
            },
        }  # fmt: skip
    terminal.show_result(args, result, lambda: print_found(result), lambda: draw(result))
    return 0


def parse_sizes(text: str) -> list[int]:
    try:
        return sorted(
            {terminal.parse_size(size_text) for size_text in terminal.names_of(text)}
        ) or parse_sizes("none")
    except argparse.ArgumentTypeError:
        raise OptionError(f"--sizes are sizes with commas between, such as 256kB,1MB, not {text!r}") from None


def summary(rows: list[measuring.SizeResult], args: argparse.Namespace) -> Document:
    best, why = measuring.recommend(rows, args.order, args.request_cost)
    return {
        "unit": best.unit, "recommended": best.size, "option": best.flags, "why": why,
        "sizes": [dataclasses.asdict(row) for row in rows],
    }  # fmt: skip


def print_found(result: Document) -> None:
    limited = "" if result["samples"] == result["of samples"] else f" of {result['of samples']:,}"
    print(
        f"{result['path']}: {counted(result['samples'])}{limited}, {human_size(result['bytes'])}, batches of "
        f"{result['batch size']}, {human_size(result['memory'])} of memory for readers"
    )
    for name, format_result in result["formats"].items():
        print(f"\n{name}")
        terminal.console().print(_table(format_result))
        size = human_size(format_result["recommended"])
        print(f"take {format_result['unit']}s of {size} ({format_result['option']}): {format_result['why']}")
    print("\n×: bytes fetched for each byte needed; requests: for 1,000 samples, quasi_random")
    if result["bytes"] * result["of samples"] / result["samples"] < SMALL:
        print("the whole dataset may well be kept in memory, where sizes hardly matter")
    for name, why in result["left out"].items():
        print(f"\nleft out: {name}: {why}")


def _table(format_result: Document) -> Any:
    fetched, speed = ([f"{name}{sign}" for name in SHORT.values()] for sign in (" ×", "/s"))
    table = figures.table(format_result["unit"], "samples", *fetched, "requests", *speed)
    for row in format_result["sizes"]:
        readings = [row["orders"].get(order) for order in SHORT]
        mixed = row["orders"].get("quasi_random")
        table.add_row(
            human_size(row["size"]), f"{row['unit_samples']:,.{0 if row['unit_samples'] >= 10 else 1}f}",
            *("–" if part is None else f"{part['amplification']:.1f}" for part in readings),
            "–" if mixed is None else f"{1000 * mixed['requests'] / mixed['samples']:,.0f}",
            *("–" if part is None else f"{part['rate']:,.0f}" for part in readings),
        )  # fmt: skip
    return table


def draw(result: Document) -> figures.Figure:
    """For every format amplification and speed against the size; a dotted line at the one to take."""
    formats = result["formats"]
    figure = figures.blank(1.2 + 3.6 * len(formats), 6)
    axes = figure.subplots(2, len(formats), squeeze=False, sharex="col", sharey="row")
    for column, (name, format_result) in enumerate(formats.items()):
        for colour, order in zip(figures.COLOURS, SHORT, strict=False):
            rows = [row for row in format_result["sizes"] if order in row["orders"]]
            x = [row["size"] / 1000 for row in rows]
            for line, key in enumerate(("amplification", "rate")):
                y = [row["orders"][order][key] for row in rows]
                axes[line][column].plot(x, y, "o-", color=colour, markersize=5, linewidth=1.2, label=order)
        axes[0][column].set_title(f"{name}: {format_result['unit']}s", fontsize=10)
        axes[1][column].set_xlabel(f"kB of a {format_result['unit']}", fontsize=9)
        for line in (0, 1):
            panel = axes[line][column]
            panel.axvline(format_result["recommended"] / 1000, color=figures.GREY, linestyle=":", linewidth=1)
            figures.logarithmic(panel)
            panel.margins(0.1)
            figures.tidy(panel)
    axes[0][0].set_ylabel("bytes fetched for each byte needed", fontsize=9)
    axes[1][0].set_ylabel("samples/s, local files", fontsize=9)
    figures.legend_below(figure, axes[0][0], len(SHORT))
    figure.suptitle(
        f"{result['samples']:,} samples of {result['path']}, {human_size(result['bytes'])}, "
        f"{human_size(result['memory'])} of memory; dotted: the size to take",
        fontsize=10,
    )
    return figure
