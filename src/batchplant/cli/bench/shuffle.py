"""Compare the orders on a dataset: how random each is, and what reading in it costs.

examples:
  batchplant bench shuffle train.beton
  batchplant bench shuffle 'shards/*.tar' --label cls --figure shuffle.png
  batchplant bench shuffle train.parquet --batch-size 64 --window 4096 --cache 16
  batchplant bench shuffle photos/ --block 100   (as if 100 files lay together)
  batchplant bench shuffle train.beton --json

orders:
  sequential    the samples as they stand
  windowed      a shuffle buffer: no sample is further than --window from its place
  shards        storage blocks in random order, the samples of each as they stand
  quasi_random  storage blocks in random order, the samples mixed within --cache blocks
  random        every order equally likely

how random: `moved` is how far samples are from their place, `apart` how far two come from each other that
are stored side by side, both 1.00 for a uniform shuffle. `neighbours` is the share of samples that are
followed by one stored beside them. `label entropy` is that of a batch as a share of the dataset's; `again`
is how much more often than by chance the next label is the same.

what it costs: blocks are what the format reads at once (a page, a row group, a chunk). `read` is what a
cache of --cache blocks has to read, in bytes and as a multiple of the dataset. Speed is that of reading the
cells, without decoding, from a warm cache of the system: a disk is slower, and the more so the more blocks
are touched.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import numpy as np

from ... import order as orders
from ...data.reader import Reader
from ...data.sizes import sizes_of
from ...errors import OptionError
from ...jobs.summary import SUMMARY_SAMPLES
from ...order import quality
from ...schema import Bool, Int, Text
from ...schema.columns import I64, Ragged
from ...tools import Document
from ...tools.measure import figures, timing
from ..terminal import add_source, console, counted, human_size, open_source, progress_bar, show_result

ORDERS = ("sequential", "windowed", "shards", "quasi_random", "random")
LABELS = ("label", "labels", "class", "cls", "target")
MOST = 1_000_000
# Of what random gives: an order that reaches this mixes the labels well enough.
ENOUGH = 0.95
# Times the dataset; from here on another order is worth some work.
COSTLY = 1.5
DOTS = 4000


def add_args(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument("--batch-size", type=int, default=256, metavar="N", help="default 256")
    parser.add_argument("--label", metavar="FIELD", help="the field of the classes (default: found by name)")
    parser.add_argument("--fields", metavar="A,B", help="read only these fields")
    parser.add_argument(
        "--window", type=int, default=1000, metavar="N", help="samples that windowed holds (default 1000)"
    )
    parser.add_argument(
        "--cache", type=int, default=32, metavar="N",
        help="blocks that a cache holds and that quasi_random mixes (default 32)",
    )  # fmt: skip
    parser.add_argument(
        "--block", type=int, metavar="N", help="take N samples in a row as a block, whatever the format says"
    )
    parser.add_argument("--lags", type=int, default=8, metavar="N", help="of the autocorrelation (default 8)")
    parser.add_argument(
        "--limit", type=int, default=MOST, metavar="N", help=f"at most N samples (default {MOST:,})"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of reading (default 3)")
    parser.add_argument(
        "--seconds", type=float, default=1.0, metavar="S", help="to read in each order and round (default 1)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="another seed, other orders")
    parser.add_argument("--figure", metavar="FILE", help="draw the orders into a .png, .svg or .pdf")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    for name in ("batch_size", "window", "cache", "lags", "limit", "rounds"):
        if getattr(args, name) < 1:
            raise OptionError(f"--{name.replace('_', '-')} is at least 1")
    if (args.block is not None and args.block < 1) or not 0 < args.seconds <= 1e6:
        raise OptionError("--block is at least 1, and --seconds more than 0")
    figures.check(args.figure)
    with open_source(args) as reader:
        count = min(args.limit, len(reader))
        if not count:
            raise OptionError("there are no samples", path=reader.path)
        label = find_label(reader, args.label)
        codes = None if label is None else read_codes(reader, label, count)
        blocks = find_blocks(reader, count, args.block)
        fields = args.fields.split(",") if args.fields else list(reader.schema)
        size = float(sizes_of(reader, fields, np.arange(0, count, -(-count // SUMMARY_SAMPLES))).mean())
        orders_by_name = make_orders(count, blocks, args)
        result: Document = {
            "path": reader.path, "samples": count, "of samples": len(reader), "batch size": args.batch_size,
            "label": label, "classes": None if codes is None else int(codes.max()) + 1,
            "label entropy": None if codes is None else quality.entropy(codes),
            "blocks": None if blocks is None else int(blocks.max()) + 1, "block of": args.block,
            "cache": args.cache, "window": args.window, "bytes": size * count,
            "orders": {
                name: judge(order[:], codes, blocks, size, args) for name, order in orders_by_name.items()
            },
        }  # fmt: skip
        for name, speed in measure(reader, fields, orders_by_name, args).items():
            result["orders"][name] |= {
                "samples/s": speed,
                "MB/s": {k: v * size / 1e6 for k, v in speed.items()},
            }
        result["advice"] = advise(result)
    show_result(args, result, lambda: _print(result), lambda: draw(result, orders_by_name))
    return 0


def find_label(reader: Reader, field_name: str | None) -> str | None:
    """The field of the classes: the one asked for, one whose numbers have names, one with a usual name."""
    if field_name is not None:
        field = reader.schema.select([field_name])[field_name]
        if not isinstance(field, Int | Bool | Text):
            raise OptionError(
                f"labels are whole numbers or text, not {field}", path=reader.path, field=field_name
            )
        return field_name
    integers = {name: field for name, field in reader.schema.items() if isinstance(field, Int)}
    return next(
        (name for name, field in integers.items() if field.names),
        next((n for n in LABELS if n in integers), None),
    )


def read_codes(reader: Reader, label: str, count: int) -> I64:
    """The class of each of the first samples, as numbers from 0 on."""
    parts: list[Any] = []
    for start in range(0, count, 65536):
        column = reader.read(np.arange(start, min(start + 65536, count)), [label])[label]
        if isinstance(column, Ragged):
            parts += [None if cell is None else cell.tobytes() for cell in column]
        else:
            parts += column.tolist()
    numbers: dict[Any, int] = {}
    return np.fromiter((numbers.setdefault(value, len(numbers)) for value in parts), np.int64, count)


def find_blocks(reader: Reader, count: int, block: int | None) -> I64 | None:
    """The storage block of each of the first samples, numbered from 0; None where the format has none."""
    if block is not None:
        return np.arange(count, dtype=np.int64) // block
    blocks = reader.blocks()
    return None if blocks is None else quality.codes_of(blocks[:count])


def make_orders(count: int, blocks: I64 | None, args: argparse.Namespace) -> dict[str, orders.Order]:
    """All orders that this dataset can be read in."""
    options: dict[str, dict[str, Any]] = {
        "windowed": {"window": args.window},
        "shards": {"blocks": blocks},
        "quasi_random": {"blocks": blocks, "window": args.cache},
    }
    return {
        name: orders.make(name, count, seed=args.seed, epoch=0, **options.get(name, {}))
        for name in ORDERS
        if blocks is not None or name not in orders.BY_BLOCKS
    }


def judge(
    samples: I64, codes: I64 | None, blocks: I64 | None, size: float, args: argparse.Namespace
) -> Document:
    """The randomness and the cost of one order."""
    result: Document = {
        "moved": quality.displacement(samples),
        "apart": quality.spread(samples),
        "neighbours": quality.kept_neighbours(samples),
        "autocorrelation": {"samples": quality.autocorrelation(samples, args.lags).tolist(), "labels": None},
        "label entropy": None, "of the dataset's": None,
        "blocks per batch": None, "block loads": None, "loads per block": None,
        "bytes read": size * len(samples),
    }  # fmt: skip
    if codes is not None:
        epoch_codes = codes[samples]
        result["label entropy"] = quality.batch_entropy(epoch_codes, args.batch_size)
        total_entropy = quality.entropy(codes)
        result["of the dataset's"] = result["label entropy"] / total_entropy if total_entropy else None
        result["autocorrelation"]["labels"] = quality.label_autocorrelation(epoch_codes, args.lags).tolist()
    if blocks is not None:
        loads = quality.block_loads(blocks[samples], args.batch_size, args.cache)
        result["blocks per batch"] = quality.blocks_per_batch(blocks[samples], args.batch_size)
        result["block loads"] = int(loads.sum())
        result["loads per block"] = float(loads.mean())
        result["bytes read"] = float(loads @ np.bincount(blocks)) * size
    result["read"] = result["bytes read"] / (size * len(samples)) if size else 1.0
    return result


def measure(
    reader: Reader, fields: list[str], orders_by_name: dict[str, orders.Order], args: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Samples/s of every order, in turn."""
    with progress_bar("reading", quiet=args.quiet or args.json) as progress:
        rates = timing.order_rates(
            reader, orders_by_name, batch_size=args.batch_size, rounds=args.rounds, seconds=args.seconds,
            fields=fields, progress=progress,
        )  # fmt: skip
    return {
        name: {"best": max(runs), "median": statistics.median(runs), "runs": len(runs)}
        for name, runs in rates.items()
    }


def mixes(result: Document, name: str) -> bool:
    """Return whether an order is about as random as random, by its labels or else by its samples."""
    mine, best = result["orders"][name], result["orders"]["random"]
    if best["label entropy"]:
        return bool(mine["label entropy"] >= ENOUGH * best["label entropy"])
    return bool(
        abs(mine["autocorrelation"]["samples"][0] - best["autocorrelation"]["samples"][0]) < 1 - ENOUGH
    )


def advise(result: Document) -> str:
    """One sentence: the cheapest order that mixes well. Sequential is the same every time, so it is none."""
    subject = "the labels" if result["orders"]["random"]["label entropy"] else "the samples"
    good = [name for name in result["orders"] if name != "sequential" and mixes(result, name)]
    if result["blocks"] is None:
        return "random: the format names no blocks, so a sample costs the same in every order"
    cost = {name: round(result["orders"][name]["read"], 1) for name in good}
    # To a tenth, for what is read a little more often does not matter; then the most random.
    best = min(good, key=lambda name: (cost[name], name != "random", -result["orders"][name]["apart"]))
    reads, random_reads = result["orders"][best]["read"], result["orders"]["random"]["read"]
    if best == "random":
        message = f"random: it reads {random_reads:.1f} times the dataset"
        message += ", and no order that mixes as well reads less"
        return message + (
            "; a larger --cache or convert --shuffle can change that" if random_reads > COSTLY else ""
        )
    return (
        f"{best}: it mixes {subject} about as well as random and reads {reads:.1f} times the dataset, "
        f"where random reads {random_reads:.1f} times"
    )


def _print(result: Document) -> None:
    parts = "no blocks named" if result["blocks"] is None else counted(result["blocks"], "block")
    if result["block of"]:
        parts += f" of {result['block of']} samples"
    limited = "" if result["samples"] == result["of samples"] else f" of {result['of samples']:,}"
    print(
        f"{result['path']}: {result['samples']:,} samples{limited}, {human_size(result['bytes'])}, {parts}, "
        f"batches of {result['batch size']}, cache of {counted(result['cache'], 'block')}"
    )
    if result["label"] is None:
        print("no field of labels (--label names one)\n")
    else:
        print(f"{result['label']}: {result['classes']:,} classes, {result['label entropy']:.2f} bits\n")
    random = figures.table("how random", "moved", "apart", "neighbours", "label entropy", "again")
    cost = figures.table("what it costs", "blocks/batch", "read", "times", "samples/s", "(best)", "MB/s")
    for name, row in result["orders"].items():
        again, share, speed = row["autocorrelation"]["labels"], row["of the dataset's"], row["samples/s"]
        random.add_row(
            name, f"{row['moved']:.2f}", f"{row['apart']:.2f}", f"{row['neighbours']:.1%}",
            "–" if share is None else f"{share:.1%}",
            "–" if again is None else f"{again[0]:+.2f}",
        )  # fmt: skip
        cost.add_row(
            name,
            "–" if row["blocks per batch"] is None else f"{row['blocks per batch']:.1f}",
            human_size(row["bytes read"]), f"{row['read']:.1f}",
            f"{speed['median']:,.0f}", f"{speed['best']:,.0f}", f"{row['MB/s']['median']:,.0f}",
        )  # fmt: skip
    console().print(random)
    print()
    console().print(cost)
    if result["blocks"] is None:
        print("\nno blocks are named: shards and quasi_random have nothing to go by (--block gives some)")
    print(f"\nread warm: the system holds the files in memory\nadvice: {result['advice']}")


def draw(result: Document, orders_by_name: dict[str, orders.Order]) -> figures.Figure:
    """For every order which sample stands where, and its autocorrelation."""
    figure = figures.blank(2.5 * len(orders_by_name) + 0.4, 5.2)
    axes = figure.subplots(2, len(orders_by_name), squeeze=False, sharey="row")
    subject = "labels" if result["label"] is not None else "samples"
    for column, (name, order) in enumerate(orders_by_name.items()):
        row, top, below = result["orders"][name], axes[0][column], axes[1][column]
        positions = np.unique(np.linspace(0, len(order) - 1, min(DOTS, len(order))).astype(np.int64))
        top.plot(
            positions, order.take(positions), ".", markersize=1.2, color=figures.COLOURS[0], rasterized=True
        )
        entropy = row["of the dataset's"]
        mixed = f"apart {row['apart']:.2f}" if entropy is None else f"label entropy {entropy:.0%}"
        speed = f"read {row['read']:.1f}×, {row['samples/s']['median']:,.0f} samples/s"
        top.set_title(f"{name}\n{mixed}\n{speed}", fontsize=9)
        top.set_xlabel("position in the epoch", fontsize=8)
        values = row["autocorrelation"][subject]
        below.bar(np.arange(1, len(values) + 1), values, color=figures.COLOURS[1], width=0.7)
        below.axhline(0, color=figures.GREY, linewidth=0.8)
        below.set_xlabel("lag", fontsize=8)
        below.set_ylim(
            min(-0.1, *(min(judged["autocorrelation"][subject]) for judged in result["orders"].values())),
            1.05,
        )
        top.locator_params(axis="x", nbins=3)
        figures.tidy(top)
        figures.tidy(below)
    axes[0][0].set_ylabel("sample", fontsize=9)
    axes[1][0].set_ylabel(f"autocorrelation of {subject}", fontsize=9)
    figure.suptitle(
        f"{result['samples']:,} samples, batches of {result['batch size']}, "
        f"cache of {result['cache']} blocks",
        fontsize=10,
    )
    return figure
