"""Which image format should I store? Size, speed and loss of each, on your own pictures.

examples:
  batchplant bench codecs photos/
  batchplant bench codecs train.beton --limit 200 --qualities 60,75,90
  batchplant bench codecs shards/*.tar --field png --to-rgb
  batchplant bench codecs photos/ --figure codecs.svg
  batchplant bench codecs photos/ --json

Some of the pictures, taken evenly from the whole dataset, are encoded and decoded in every way. Speed is that
of one core: processor time, as the Loader decodes (in the native engine where that can), without resizing.
PSNR compares with the decoded picture as it is stored, in dB: 40 and more is hard to see, none means that
nothing is lost. Pictures that are JPEG now have lost something before; that is not counted.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from typing import Any

import numpy as np

from ... import _native
from ...codecs.media import image
from ...errors import DataError, DecodeError, OptionError, Problem
from ...reader import Reader
from ...schema import Image
from ..terminal import add_source, console, human_size, open_source, print_json, progress_bar
from . import _show
from ._coding import RAW, Candidate, Tally, load, one_way, watch

STORED = "as stored"
# dB; below, the loss can be seen by who looks for it.
GOOD = 40.0
# A loss that saves less is for nothing.
WORTH = 0.95
SHOWN = 10


def add_args(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument("--field", metavar="NAME", help="the image field (default: the first)")
    parser.add_argument("--limit", type=int, default=64, metavar="N", help="at most N pictures (default 64)")
    parser.add_argument(
        "--qualities", default="70,80,90,95", metavar="A,B", help="of JPEG and WebP (default 70,80,90,95)"
    )
    parser.add_argument("--to-rgb", action="store_true", help="drop alpha, convert CMYK and 16 bits first")
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="of encoding and decoding (default 3)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=120,
        metavar="S",
        help="take no further picture after S (default 120)",
    )
    parser.add_argument("--figure", metavar="FILE", help="draw size against speed into a .png, .svg or .pdf")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    if args.limit < 1 or args.rounds < 1 or not args.seconds > 0:
        raise OptionError("--limit and --rounds are at least 1, and --seconds more than 0")
    qualities = parse_qualities(args.qualities)
    _show.check(args.figure)
    with open_source(args) as reader:
        field = find_field(reader, args.field)
        found: dict[str, Any] = {
            "path": reader.path, "field": field, "samples": len(reader), "rounds": args.rounds,
            **measure(reader, field, qualities, args),
        }  # fmt: skip
    if not found["pictures"]:
        if not found["skipped"]:
            raise OptionError("there are no pictures", path=found["path"])
        raise DecodeError(
            "not one picture could be decoded; the first: " + str(Problem(**found["skipped"][0]))
        )
    found["advice"] = advise(found)
    if args.figure:
        _show.save(draw(found), args.figure)
    if args.json:
        print_json(found)
    else:
        _print(found)
        if args.figure:
            print(f"\nwrote {args.figure}")
    return 1 if found["skipped"] else 0


def parse_qualities(text: str) -> list[int]:
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1 or found[-1] > 100:
        raise OptionError(f"--qualities are numbers from 1 to 100 with commas between, not {text!r}")
    return found


def find_field(reader: Reader, asked: str | None) -> str:
    pictures = [name for name, field in reader.schema.items() if isinstance(field, Image)]
    if asked is None and not pictures:
        raise OptionError(f"there is no image field among {', '.join(reader.schema)}", path=reader.path)
    name = pictures[0] if asked is None else asked
    if not isinstance(reader.schema.select([name])[name], Image):
        raise OptionError(f"{name} is no image field", path=reader.path, field=name)
    return name


def candidates(qualities: list[int], *, mask: bool) -> list[Candidate]:
    """Every way to store a picture; a mask is never stored with loss."""
    lossy = [
        Candidate(f"{title} {quality}", encoding, quality)
        for title, encoding in (("JPEG", "jpeg"), ("WebP", "webp"))
        for quality in qualities
    ]
    exact = [Candidate(RAW, RAW), Candidate("PNG", "png"), Candidate("WebP lossless", "webp")]
    return exact if mask else [*exact, *lossy]


def measure(reader: Reader, field: str, qualities: list[int], args: argparse.Namespace) -> dict[str, Any]:
    """Encode and decode picture after picture, one at a time, in every way."""
    mask = bool(getattr(reader.schema[field], "mask", False))
    ways = candidates(qualities, mask=mask)
    chosen = np.unique(np.linspace(0, len(reader) - 1, min(args.limit, len(reader))).astype(np.int64))
    tallies = {STORED: Tally(args.rounds), **{way.name: Tally(args.rounds) for way in ways}}
    engine = _native.Engine(1)
    encodings: dict[str, int] = {}
    skipped: list[Problem] = []
    done = pixels_seen = 0
    began = time.monotonic()
    try:
        with progress_bar("pictures", quiet=args.quiet or args.json) as progress:
            for number, row in enumerate(chosen.tolist(), 1):
                try:
                    cell, shape, pixels = load(reader, field, row, to_rgb=args.to_rgb, mask=mask)
                    # Whether it decodes is seen here, before anything is counted.
                    stored = watch(engine, cell, shape, args.rounds)
                except DataError as error:
                    skipped.append(Problem.of(error.at(path=reader.where(row), sample=row, field=field)))
                    continue
                encoding = RAW if shape else image.header(cell).encoding
                encodings[encoding] = encodings.get(encoding, 0) + 1
                tallies[STORED].bytes += len(cell)
                tallies[STORED].decode += stored[1]
                for way in ways:
                    one_way(engine, way, pixels, tallies[way.name], args.rounds)
                done += 1
                pixels_seen += pixels.shape[0] * pixels.shape[1]
                progress(number, len(chosen))
                if time.monotonic() - began > args.seconds:
                    break
    finally:
        engine.close()
    kinds = {STORED: Candidate(STORED, ""), **{way.name: way for way in ways}}
    return {
        "pictures": done, "megapixels": pixels_seen / 1e6, "stored as": encodings,
        "formats": {
            name: summary(kinds[name], tally, tallies[STORED], done, pixels_seen)
            for name, tally in tallies.items() if done and not tally.refused
        },
        "left out": {name: tally.refused[0] for name, tally in tallies.items() if tally.refused},
        "skipped": [vars(one) for one in skipped],
    }  # fmt: skip


def summary(way: Candidate, tally: Tally, stored: Tally, pictures: int, pixels: int) -> dict[str, Any]:
    """Every number that is printed of one candidate. JSON has no infinity: None where nothing is lost."""

    def speed(seconds: Any) -> dict[str, float]:
        spent = {"best": float(seconds.min()), "median": statistics.median(seconds.tolist())}
        # A clock that did not move is no reason to divide by nothing.
        return {
            f"{what}/s, {key}": count / max(value, 1e-9)
            for what, count in (("pictures", pictures), ("megapixels", pixels / 1e6))
            for key, value in spent.items()
        }

    lossy = [one for one in tally.psnr if math.isfinite(one)]
    return {
        "encoding": way.encoding or None, "quality": way.quality,
        "bytes per picture": tally.bytes / pictures, "of stored": tally.bytes / max(stored.bytes, 1),
        "bits per pixel": 8 * tally.bytes / pixels,
        "lossless": way.lossless and not lossy,
        "PSNR": {"median": statistics.median(lossy), "worst": min(lossy)} if lossy else None,
        "largest error": tally.worst,
        "encode": None if tally is stored else speed(tally.encode), "decode": speed(tally.decode),
    }  # fmt: skip


def advise(found: dict[str, Any]) -> str:
    """One sentence of what the numbers say."""
    formats = found["formats"]

    def size(name: str) -> float:
        return float(formats[name]["bytes per picture"])

    def speed(name: str) -> float:
        return float(formats[name]["decode"]["megapixels/s, median"])

    def psnr(name: str) -> float:
        return float(formats[name]["PSNR"]["median"]) if formats[name]["PSNR"] else math.inf

    exact = min((name for name in formats if formats[name]["lossless"]), key=size)
    what = f"{exact} ({' and '.join(found['stored as'])})" if exact == STORED else exact
    said = f"smallest that loses nothing: {what}, {human_size(size(exact))} a picture"
    good = [name for name in formats if psnr(name) >= GOOD]
    small = min(good, key=size, default=exact)
    if size(small) < WORTH * size(exact):
        share = size(small) / size(exact)
        said += f"; with a loss that is hard to see ({psnr(small):.0f} dB): {small}, {share:.2f} of that"
    fast = max(formats, key=speed)
    if fast != exact:
        times, larger = speed(fast) / speed(exact), size(fast) / size(exact)
        said += f"; fastest to decode: {fast}, {times:.1f} times as fast and {larger:.1f} times as large"
    return said


def _print(found: dict[str, Any]) -> None:
    kinds = ", ".join(f"{count} {name}" for name, count in found["stored as"].items())
    mean = found["megapixels"] / found["pictures"]
    print(
        f"{found['path']}, field {found['field']}: {found['pictures']} of {found['samples']:,} pictures "
        f"({kinds}), {mean:.3g} megapixels on average; best and median of {found['rounds']}\n"
    )
    sizes = _show.table(
        "size and loss", "a picture", "of stored", "bits/pixel", "PSNR", "worst", "largest error"
    )
    speeds = _show.table("one core", "encode/s", "(best)", "MP/s", "decode/s", "(best)", "MP/s")
    for name, one in found["formats"].items():
        psnr = one["PSNR"]
        sizes.add_row(
            name, human_size(one["bytes per picture"]), f"{one['of stored']:.2f}",
            f"{one['bits per pixel']:.2f}",
            *(("–", "–") if psnr is None else (f"{psnr['median']:.1f}", f"{psnr['worst']:.1f}")),
            str(one["largest error"]) if psnr else "–",
        )  # fmt: skip
        shown: list[str] = []
        for part in (one["encode"], one["decode"]):
            keys = ("pictures/s, median", "pictures/s, best", "megapixels/s, median")
            shown += ["–"] * 3 if part is None else [_number(part[key]) for key in keys]
        speeds.add_row(name, *shown)
    console().print(sizes)
    print()
    console().print(speeds)
    print()
    for name, why in found["left out"].items():
        print(f"left out: {name}: {why}")
    for problem in found["skipped"][:SHOWN]:
        print(f"skipped: {Problem(**problem)}")
    if len(found["skipped"]) > SHOWN:
        print(f"… and {len(found['skipped']) - SHOWN} more (--json lists all)")
    print(f"advice: {found['advice']}")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def draw(found: dict[str, Any]) -> Any:
    """Size against decoding speed."""
    figure = _show.blank(7.6, 5)
    axes = figure.subplots()
    families: dict[str, list[tuple[float, float, str]]] = {}
    for name, one in found["formats"].items():
        family = name if one["quality"] is None else name.rpartition(" ")[0]
        label = name if one["quality"] is None else str(one["quality"])
        label += f" ({one['PSNR']['median']:.0f} dB)" if one["PSNR"] else ""
        point = one["bytes per picture"] / 1000, one["decode"]["megapixels/s, median"], label
        families.setdefault(family, []).append(point)
    for (family, points), colour in zip(families.items(), _show.COLOURS, strict=False):
        x, y, labels = zip(*points, strict=True)
        own = family == STORED
        # What is stored is often what one of the others makes, so it lies around it and not upon it.
        look = (
            {"marker": "o", "fillstyle": "none", "markersize": 13}
            if own
            else {"marker": "o", "markersize": 6}
        )
        axes.plot(x, y, color=colour, linewidth=1, label=family, zorder=3 if own else 2, **look)
        # The legend names it; a label would lie upon those of its neighbours.
        for number, text in enumerate(() if own else labels):
            above = 9 if number % 2 else -15
            axes.annotate(
                text, (x[number], y[number]), xytext=(0, above), textcoords="offset points", ha="center",
                fontsize=8, color=colour,
            )  # fmt: skip
    _show.logarithmic(axes)
    axes.margins(0.12)
    axes.set_xlabel("kB a picture (smaller is better)", fontsize=9)
    axes.set_ylabel("megapixels decoded a second, one core", fontsize=9)
    axes.set_title(f"{found['pictures']} pictures of {found['path']}", fontsize=10)
    axes.legend(fontsize=8, frameon=False)
    _show.tidy(axes)
    return figure
