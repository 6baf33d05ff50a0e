"""Run the Loader over a dataset: images/s, memory, and what the time went into.

examples:
  batchplant bench loader train.beton
  batchplant bench loader photos/ --pipeline val --size 320
  batchplant bench loader train.beton --order quasi_random --workers 4 --epochs 5
  batchplant bench loader train.beton --pipeline raw   (read the bytes, decode nothing)
  batchplant bench loader train.beton --device cuda:0 --json
  batchplant bench loader s3://bucket/train.tar --order quasi_random --option cache=/data/cache
  batchplant bench loader train.beton --figure loader.svg
  batchplant bench loader photos/ --matrix --max-resolution 256,384 --figure matrix.svg

pipelines, for every image field:
  train  RandomResizedCrop(SIZE), RandomHorizontalFlip()
  val    CenterCrop(SIZE)
  none   whole images, which have to be of one size
  raw    the encoded bytes: what storage alone can give

The first epoch reads from the disk what the system does not hold in memory yet; the others show what the
processor can do. With --matrix some of the images are stored as JPEG and as raw pixels, of each size that
is named, in .beton files in a scratch folder, and loaded in sequential, quasi_random and random order.
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
from ...errors import OptionError, Problem
from ...jobs.summary import SUMMARY_SAMPLES
from ...loading.loader import Loader
from ...storage.platform import cpu_count, resident_memory
from ...tools import Document
from ...tools.measure import figures
from ...tools.measure.pipelines import PIPELINES, Undecoded, image_fields, pipelines
from ...tools.measure.timing import batch_rows
from ..terminal import add_source, counted, human_size, open_source, progress_bar, show_result
from . import _matrix, _way

ORDERS = ("sequential", "random", "quasi_random", "shards", "windowed")
SHOWN = 20


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
    parser.add_argument("--matrix", action="store_true", help="JPEG and raw, each in three orders")
    parser.add_argument(
        "--max-resolution", metavar="A,B",
        help="with --matrix: longer sides of the images, e.g. 256,384,full (default 256)",
    )  # fmt: skip
    parser.add_argument("--scratch", metavar="DIR", help="with --matrix: a folder for files that are removed")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    if args.epochs < 1 or (args.limit is not None and args.limit < 1):
        raise OptionError("--epochs and --limit are at least 1")
    figures.check(args.figure)
    if args.matrix:
        return _matrix.run(args)
    for name in ("max_resolution", "scratch"):
        if getattr(args, name) is not None:
            raise OptionError(f"--{name.replace('_', '-')} is for --matrix")
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
    show_result(args, result, lambda: _print(result, args.size), lambda: _way.draw(result))
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
        "batch": _way.split(stats, opened),
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
    for line in _way.lines(result["batch"]):
        print(line)
    print("the loop, all epochs")
    total = stats["waited"] + stats["step"] or 1.0
    for name, key in (("waiting", "waited"), ("its step", "step")):
        print(f"    {name:<9} {stats[key]:>9.3f} s {stats[key] / total:>4.0%}")
    print(f"\n{'bottleneck':<12} {stats['bottleneck']}: {stats['advice']}")
    if stats["jpeg warnings"]:
        print(f"{'note':<12} {counted(stats['jpeg warnings'], 'warning')} of the JPEG decoder")
    for problem in result["skipped"][:SHOWN]:
        print(f"  skipped: {Problem(**problem)}")
    if len(result["skipped"]) > SHOWN:
        print(f"  … and {len(result['skipped']) - SHOWN} more (--json lists all)")
