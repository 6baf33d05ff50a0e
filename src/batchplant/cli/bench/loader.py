"""Run the Loader over a dataset: images/s, memory, and what the time went into.

examples:
  batchplant bench loader train.beton
  batchplant bench loader photos/ --pipeline val --size 320
  batchplant bench loader train.beton --order quasi_random --workers 4 --epochs 5
  batchplant bench loader train.beton --pipeline raw   (read the bytes, decode nothing)
  batchplant bench loader train.beton --device cuda:0 --json
  batchplant bench loader s3://bucket/train.tar --order quasi_random --option cache=/data/cache
  batchplant bench loader train.beton --figure loader.svg

pipelines, for every image field:
  train  RandomResizedCrop(SIZE), RandomHorizontalFlip()
  val    CenterCrop(SIZE)
  none   whole images, which have to be of one size
  raw    the encoded bytes: what storage alone can give

The first epoch reads from the disk what the system does not hold in memory yet; the others show what the
processor can do.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import statistics
import sys
import time

import numpy as np

from ...data.sizes import sizes_of
from ...errors import OptionError
from ...jobs.summary import SUMMARY_SAMPLES
from ...loading.loader import Loader
from ...storage.platform import cpu_count, resident_memory
from ...tools import Document
from ...tools.measure import figures
from ...tools.measure.timing import PIPELINES, Undecoded, batch_rows, image_fields, pipelines
from ..terminal import add_source, counted, human_size, open_source, print_skipped, progress_bar, show_result

ORDERS = ("sequential", "random", "quasi_random", "shards", "windowed")
# Skipped samples that are printed.
MAX_SHOWN = 20


def add_args(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument("--batch-size", type=int, default=256, metavar="N", help="default 256")
    parser.add_argument("--epochs", type=int, default=3, metavar="N", help="default 3")
    parser.add_argument("--workers", type=int, metavar="N", help="decoding threads (default: all cores)")
    parser.add_argument("--order", choices=ORDERS, default="random", help="default random")
    parser.add_argument("--pipeline", choices=PIPELINES, default="train", help="see below; default train")
    parser.add_argument(
        "--size", type=int, default=224, metavar="PX", help="of images in a batch (default 224)"
    )
    parser.add_argument("--fields", metavar="A,B", help="only these fields")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N samples in an epoch")
    parser.add_argument("--device", metavar="DEV", help="give tensors there, e.g. cuda:0 (needs PyTorch)")
    parser.add_argument(
        "--on-error", choices=("raise", "skip"), default="raise", help="leave bad samples out and list them"
    )
    parser.add_argument("--figure", metavar="FILE", help="draw what was measured into a .png, .svg or .pdf")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    if args.epochs < 1 or (args.limit is not None and args.limit < 1):
        raise OptionError("--epochs and --limit are at least 1")
    figures.check(args.figure)
    began = time.perf_counter()
    with contextlib.ExitStack() as stack:
        reader = stack.enter_context(open_source(args))
        chosen = reader.select(args.fields.split(",")) if args.fields else reader
        if args.pipeline == "raw":
            chosen = Undecoded(chosen)
        workers = args.workers or cpu_count()
        loader = Loader(
            chosen, args.batch_size, order=args.order, workers=workers, device=args.device,
            pipelines=pipelines(chosen.schema, args.pipeline, args.size), on_error=args.on_error,
            indices=None if args.limit is None else range(min(args.limit, len(chosen))),
        )  # fmt: skip
        stack.callback(loader.close)
        if not loader.samples:
            raise OptionError("there are no samples", path=chosen.path)
        result: Document = {
            "path": reader.path, "samples": loader.samples, "batch size": args.batch_size,
            "workers": workers, "order": args.order, "pipeline": args.pipeline, "device": args.device,
            "unit": "images" if image_fields(reader.schema) else "samples", **measure(loader, args, began),
        }  # fmt: skip
    show_result(args, result, lambda: _print(result, args.size), lambda: draw(result))
    return 1 if result["skipped"] else 0


def measure(loader: Loader, args: argparse.Namespace, began: float) -> Document:
    """Run the epochs; every number that is printed."""
    opened = time.perf_counter() - began
    epochs: list[dict[str, float]] = []
    first = process_memory = 0.0
    for number in range(1, args.epochs + 1):
        start, done = time.perf_counter(), 0
        quiet = args.quiet or args.json
        with progress_bar(f"epoch {number} of {args.epochs}", quiet=quiet) as progress:
            for batch in loader:
                first = first or time.perf_counter() - began
                done += batch_rows(batch)
                progress(done, loader.samples)
            _finish_copies(args.device)
        epochs.append({"samples": done, "seconds": time.perf_counter() - start})
        process_memory = max(process_memory, resident_memory("RssAnon"))
    # Before more is read.
    stats = loader.stats()
    size = encoded_size(loader)
    for epoch in epochs:
        epoch["rate"] = epoch["samples"] / epoch["seconds"]
        epoch["MB/s"] = epoch["rate"] * size / 1e6
    rates = [epoch["rate"] for epoch in epochs]
    summary = {"first": rates[0], "best": max(rates), "median": statistics.median(rates)}
    return {
        "epochs": epochs, "rate": summary,
        "MB/s": {name: rate * size / 1e6 for name, rate in summary.items()},
        "first batch": first, "memory": {"peak": _peak_memory(), "own": process_memory}, "stats": stats,
        "batch": split_batch(stats, opened),
        "skipped": [vars(problem) for problem in dict.fromkeys(loader.skipped)],
    }  # fmt: skip


def encoded_size(loader: Loader) -> float:
    """Bytes of one sample as it is stored, the mean over some samples, in the fields in use."""
    examined = loader.ids_at(np.arange(0, loader.samples, max(1, loader.samples // SUMMARY_SAMPLES)))
    fields = list(dict.fromkeys(output.field for output in loader.plan.outputs))
    return float(sizes_of(loader.reader, fields, examined).mean())


def _finish_copies(device: str | None) -> None:
    """Copies to a device go on after the last batch was given out; they belong to the epoch."""
    if device is not None and device.startswith("cuda"):
        sys.modules["torch"].cuda.synchronize(device)


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _print(result: Document, size: int) -> None:
    pipeline = result["pipeline"] + (f" {size}" if result["pipeline"] in ("train", "val") else "")
    where = f", to {result['device']}" if result["device"] else ""
    print(
        f"{result['path']}: {result['samples']:,} samples, batches of {result['batch size']}, "
        f"{counted(result['workers'], 'worker')}, order {result['order']}, pipeline {pipeline}{where}\n"
    )
    unit = f"{result['unit']}/s"
    print(f"{'epoch':<12} {unit:>10} {'MB/s':>9}")
    rows = [(str(number), epoch["rate"], epoch["MB/s"]) for number, epoch in enumerate(result["epochs"], 1)]
    rows += [(name, result["rate"][name], result["MB/s"][name]) for name in ("best", "median")]
    for name, rate, speed in rows:
        print(f"{name:<12} {rate:>10,.0f} {speed:>9,.0f}")
    memory, stats = result["memory"], result["stats"]
    print(f"\n{'first batch':<12} {result['first batch']:.3f} s after the dataset began to open")
    print(
        f"{'memory':<12} {human_size(memory['own'])}, at most {human_size(memory['peak'])} with mapped files"
    )
    if "requests" in stats:
        fetched = human_size(stats["bytes fetched"])
        print(
            f"{'network':<12} {counted(stats['requests'], 'request')}, {fetched}, since the loader was made"
        )
    print()
    for line in batch_lines(result["batch"]):
        print(line)
    print("the loop, all epochs")
    total = stats["waited"] + stats["step"] or 1.0
    for name, key in (("waiting", "waited"), ("its step", "step")):
        print(f"    {name:<9} {stats[key]:>9.3f} s {stats[key] / total:>4.0%}")
    print(f"\n{'bottleneck':<12} {stats['bottleneck']}: {stats['advice']}")
    if stats["jpeg warnings"]:
        print(f"{'note':<12} {counted(stats['jpeg warnings'], 'warning')} of the JPEG decoder")
    print_skipped(result["skipped"], MAX_SHOWN, "  ")


# -- the time of a batch ------------------------------------------------------------------------------
# Breakdown of the time of a batch, from the first byte to the loop: numbers, text, a figure.

# In the order in which they happen, each with what it is drawn with in a terminal.
PARTS = {"open": "·", "read": "░", "decode": "█", "resize": "▓", "transform": "▒", "copy": "≡", "wait": "-"}
BAR_CHARACTERS = 60
PART_COLOURS = dict(zip(PARTS, (*figures.COLOURS[1:5], *figures.COLOURS[6:8], "#d1d5db"), strict=True))
NOTES = {
    "open": "the dataset, once, shared by all batches",
    "read": "to find cells, and for fields without images",
    "decode": "on {threads} at once",
    "resize": "one pass with crop, flip and normalisation",
    "transform": "the ops behind the decoder",
    "copy": "to the device",
    "wait": "for threads that are busy with other batches",
}
# Where a device makes the images, nobody measures one without the other.
TOGETHER = "and resizing and waiting, which are one here"


def split_batch(stats: Document, opened: float) -> Document:
    """Seconds of a batch by what they went into, on average; ``opened``: how long it took to open.

    Decoding threads work on a batch together, so what they add up to is divided by their number.
    """
    batches, workers = max(stats["batches"], 1), stats["workers"]
    busy = {name: workers[name] / workers["threads"] for name in ("decode", "resize")}
    notes = {name: text.format(threads=_threads(workers["threads"])) for name, text in NOTES.items()}
    if "augment" in stats:
        busy = {"decode": stats["decode"], "resize": 0.0}
        notes |= {"decode": TOGETHER, "resize": "see decode"}
    seconds = {
        "open": opened, "read": stats["storage"], **busy, "transform": stats["transforms"],
        "copy": stats["device"], "wait": max(0.0, stats["decode"] - sum(busy.values())),
    }  # fmt: skip
    return {
        "seconds": {name: seconds[name] / batches for name in PARTS},
        "notes": {name: notes[name] for name in PARTS if seconds[name]},
    }


def _threads(number: int) -> str:
    return f"{number} thread{'' if number == 1 else 's'}"


def bar(seconds: dict[str, float], width: int = BAR_CHARACTERS) -> str:
    """A stacked bar of exactly so many characters; empty where nothing took any time."""
    total = sum(seconds.values())
    if not total:
        return ""
    exact = {name: width * seconds[name] / total for name in PARTS}
    cells = {name: int(size) for name, size in exact.items()}
    # What rounding down left over goes to those that lost most.
    for name in sorted(PARTS, key=lambda name: cells[name] - exact[name])[: width - sum(cells.values())]:
        cells[name] += 1
    return "".join(PARTS[name] * cells[name] for name in PARTS)


def batch_lines(way: Document) -> list[str]:
    """The bar, and what each of its parts is."""
    seconds = way["seconds"]
    total = sum(seconds.values())
    text_lines = [f"a batch on its way to the loop, {1000 * total:,.1f} ms on average", f"  {bar(seconds)}"]
    for name, mark in PARTS.items():
        if seconds[name]:
            share = seconds[name] / total
            line = f"  {mark} {name:<9} {1000 * seconds[name]:>8,.1f} ms {share:>4.0%}"
            text_lines.append(f"{line}  {way['notes'][name]}")
    return text_lines


def draw(result: Document) -> figures.Figure:
    """Draw the breakdown of a batch's time, and that of the loop."""
    figure = figures.blank(8.4, 3.0)
    axes = figure.subplots()
    seconds = result["batch"]["seconds"]
    start, longest = 0.0, sum(seconds.values()) or 1.0
    for name in PARTS:
        value = 1000 * seconds[name]
        # What cannot be seen needs no entry in the legend.
        if value < longest:
            continue
        axes.barh(
            ["a batch"], [value], left=[start], color=PART_COLOURS[name], label=name, height=0.6,
            edgecolor="white", linewidth=0.5,
        )  # fmt: skip
        # Thin parts have no room for a number.
        if value > 60 * longest:
            axes.text(
                start + value / 2, "a batch", f"{value:,.3g}", ha="center", va="center", fontsize=8,
                color="white" if name != "wait" else "black",
            )  # fmt: skip
        start += value
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds of a batch, on average", fontsize=9)
    figures.tidy(axes)
    stats, batches = result["stats"], max(result["stats"]["batches"], 1)
    start = 0.0
    for name, key, colour in (("loop waits", "waited", "#9ca3af"), ("its step", "step", "#374151")):
        value = 1000 * stats[key] / batches
        axes.barh(["the loop"], [value], left=[start], color=colour, label=name, height=0.6)
        start += value
    rate = f"{result['rate']['median']:,.0f} {result['unit']}/s"
    axes.set_title(
        f"{result['path']}: {rate}, batches of {result['batch size']}, order {result['order']}", fontsize=10
    )
    figures.legend_below(figure, axes, len(PARTS) + 2)
    return figure
