"""`bench loader --matrix`: the user's images as JPEG and as raw pixels, of some sizes, in three orders."""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Iterator

import numpy as np

from ...codecs.media import image
from ...codecs.media.image_rules import ImageOptions
from ...data.reader import Reader
from ...errors import DecodeError, OptionError
from ...loading.loader import Loader
from ...schema.columns import Ragged
from ...storage.platform import cpu_count
from ...tools import Document
from ...tools.measure import Candidate, figures
from ...tools.measure.harness import Harness, StoredCandidate
from ...tools.measure.pipelines import image_fields, pipelines
from ...tools.measure.scratch import scratch_folder
from ...tools.measure.timing import epoch_rate
from ..terminal import console, counted, human_size, open_source, progress_bar, show_result
from . import _way
from .codecs import parse_resolutions

ORDERS = ("sequential", "quasi_random", "random")
MODES = {"JPEG": "jpg", "raw": "raw"}
# Images that are measured, and their longer side, by default.
DEFAULT_IMAGES, DEFAULT_SIDE = 1000, "256"
PROBED_IMAGES = 64


def run(args: argparse.Namespace) -> int:
    resolutions = parse_resolutions(args.max_resolution or DEFAULT_SIDE)
    if args.pipeline == "raw" or args.device is not None:
        raise OptionError("--matrix decodes images into memory: it takes no --device and no --pipeline raw")
    with open_source(args) as source:
        names = args.fields.split(",") if args.fields else image_fields(source.schema)
        chosen = source.select(names)
        if not image_fields(chosen.schema):
            raise OptionError(f"there is no image field among {', '.join(source.schema)}", path=source.path)
        count = min(args.limit or DEFAULT_IMAGES, len(chosen))
        if not count:
            raise OptionError("there are no samples", path=source.path)
        images = chosen.subset(np.linspace(0, len(chosen) - 1, count).astype(np.int64))
        result: Document = {
            "path": source.path, "samples": count, "of samples": len(source), "batch size": args.batch_size,
            "workers": args.workers or cpu_count(), "pipeline": args.pipeline,
            "size": args.size, "epochs": args.epochs,
        }  # fmt: skip
        result["rows"] = list(_rows(images, resolutions, args))
    show_result(args, result, lambda: _print(result), lambda: draw(result))
    return 1 if any(row["skipped"] for row in result["rows"]) else 0


def _rows(images: Reader, resolutions: list[int | None], args: argparse.Namespace) -> Iterator[Document]:
    """Yield a row for each size, mode and order; a file is removed as soon as it is measured."""
    steps = len(resolutions) * len(MODES) * (1 + len(ORDERS) * args.epochs)
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(progress_bar("matrix", quiet=args.quiet or args.json))
        needed = _needed_bytes(images, resolutions)
        folder = stack.enter_context(
            scratch_folder(
                args.scratch, images.path, needed, what="raw images take", less="a smaller --limit"
            )
        )
        harness = Harness(folder)
        done = 0
        for resolution in resolutions:
            for name, mode in MODES.items():
                options = ImageOptions(write_mode=mode, max_resolution=resolution, to_rgb=_is_colour(images))
                stored = harness.store(
                    images, Candidate("beton", suffix=".beton"), images=options, on_error="skip"
                )
                done += 1
                progress(done, steps)
                for order in ORDERS:
                    measured = _epochs(harness, stored, order, args)
                    done += args.epochs
                    progress(done, steps)
                    yield {
                        "stored": name,
                        "max resolution": resolution,
                        "order": order,
                        "samples": stored.samples,
                        "skipped": len(stored.skipped),
                        **measured,
                    }
                harness.remove(stored)


def _is_colour(images: Reader) -> bool:
    """Return whether to convert to RGB: JPEG has no alpha and no CMYK; gray images and masks stay gray."""
    return all(getattr(images.schema[name], "mode", None) != "L" for name in image_fields(images.schema))


def _needed_bytes(images: Reader, resolutions: list[int | None]) -> int:
    """Return the bytes of the largest file: all images raw."""
    probed = np.unique(np.linspace(0, len(images) - 1, min(PROBED_IMAGES, len(images))).astype(np.int64))
    total = 0.0
    largest = None if None in resolutions else max(side for side in resolutions if side is not None)
    for name in image_fields(images.schema):
        column = images.read(probed, [name])[name]
        assert isinstance(column, Ragged)
        sides = image.probe(column)[:, 1:3].astype(np.float64)
        if largest is not None:
            sides *= np.minimum(1, largest / np.maximum(sides.max(axis=1, keepdims=True), 1))
        total += float(sides.prod(axis=1).mean()) * 3
    return int(total * len(images))


def _epochs(harness: Harness, stored: StoredCandidate, order: str, args: argparse.Namespace) -> Document:
    """Measure images/s of the first epoch, from the disk, and of the others, from memory."""
    cold = harness.drop_page_cache(stored)
    with harness.stopwatch() as opening:
        reader = stored.open()
    with reader:
        if not len(reader):
            raise DecodeError("not one of the images could be decoded", path=stored.files[0])
        loader = Loader(
            reader, args.batch_size, order=order, workers=args.workers, on_error="skip",
            pipelines=pipelines(reader.schema, args.pipeline, args.size),
        )  # fmt: skip
        image_bytes = _stored_bytes(reader)
        try:
            rates = [epoch_rate(loader) for _ in range(args.epochs)]
            stats = loader.stats()
        finally:
            loader.close()
    warm = rates[1:] or rates
    return {
        "rate": {
            "first": rates[0],
            "from disk": cold,
            "median": statistics.median(warm),
            "best": max(warm),
            "epochs": len(rates),
        },
        "bytes per image": image_bytes,
        "batch": _way.split(stats, opening.seconds),
        "bottleneck": stats["bottleneck"],
    }


def _stored_bytes(reader: Reader) -> float:
    """Return the mean bytes of a sample's images, without the padding of a .beton file."""
    spans = [reader.spans(name) for name in image_fields(reader.schema)]
    return sum(float(span.size.mean()) for span in spans if span is not None)


def _name(row: Document) -> str:
    return (
        f"{row['stored']}, {'full' if row['max resolution'] is None else str(row['max resolution']) + ' px'}"
    )


def _print(result: Document) -> None:
    pipeline = result["pipeline"] + (f" {result['size']}" if result["pipeline"] in ("train", "val") else "")
    print(
        f"{result['path']}: {counted(result['samples'], 'image')} of {result['of samples']:,}, batches of "
        f"{result['batch size']}, {counted(result['workers'], 'worker')}, pipeline {pipeline}\n"
    )
    table = figures.table("stored as", "each", "order", "first", "warm", "(best)", "read", "decode", "resize")
    before = ""
    for row in result["rows"]:
        name, rate, seconds = _name(row), row["rate"], row["batch"]["seconds"]
        total = sum(seconds.values()) or 1.0
        same = name == before
        table.add_row(
            "" if same else name, "" if same else human_size(row["bytes per image"]), row["order"],
            f"{rate['first']:,.0f}" + ("" if rate["from disk"] else "*"), f"{rate['median']:,.0f}",
            f"{rate['best']:,.0f}",
            *(f"{seconds[part] / total:.0%}" for part in ("read", "decode", "resize")),
        )  # fmt: skip
        before = name
    console().print(table)
    print("\nimages/s: the first epoch reads from the disk, the others (warm) from memory")
    if not all(row["rate"]["from disk"] for row in result["rows"]):
        print("* the system would not forget the file, so this epoch was warm too")
    print("read, decode, resize: shares of a batch's time; in the rest it waits for others")
    lost = max(row["skipped"] for row in result["rows"])
    if lost:
        print(f"left out: {counted(lost, 'image')} that cannot be decoded (batchplant verify --decode)")


def draw(result: Document) -> figures.Figure:
    """Draw images/s by order, and the parts of a batch's time."""
    names = list(dict.fromkeys(map(_name, result["rows"])))
    figure = figures.blank(11, 1.8 + 0.85 * len(names) + 0.6)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.25))
    height = 0.8 / len(ORDERS)
    for number, order in enumerate(ORDERS):
        order_rows = [row for row in result["rows"] if row["order"] == order]
        heights = np.arange(len(names)) + (number - (len(ORDERS) - 1) / 2) * height
        rates = [row["rate"]["median"] for row in order_rows]
        left.barh(heights, rates, height=0.92 * height, color=figures.COLOURS[number], label=order)
        left.plot(
            [row["rate"]["first"] for row in order_rows], heights, "|", color="black", markersize=9,
            label=None if number else "first epoch",
        )  # fmt: skip
        for height_position, rate in zip(heights, rates, strict=True):
            left.text(rate, height_position, f" {rate:,.0f}", va="center", fontsize=7)
    left.set_yticks(np.arange(len(names)), names)
    left.invert_yaxis()
    left.margins(x=0.14)
    left.xaxis.set_major_formatter("{x:,.0f}")
    left.set_xlabel(f"images/s, {result['workers']} workers (more is better)", fontsize=9)
    figures.tidy(left)
    _way.draw_bars(right, {f"{_name(row)}, {row['order']}": row["batch"] for row in result["rows"]})
    for axes, columns in ((left, 2), (right, 4)):
        axes.legend(fontsize=8, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns)
    figure.suptitle(
        f"{result['path']}: {result['samples']:,} images, pipeline {result['pipeline']} {result['size']}",
        fontsize=10,
    )
    return figure
