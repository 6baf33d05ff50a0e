"""Which image format should I store? Size, speed and loss of each, on your own images.

examples:
  batchplant bench codecs photos/
  batchplant bench codecs train.beton --limit 200 --qualities 60,75,90
  batchplant bench codecs photos/ --max-resolution 256,384,512 --qualities 50,75,90,95
  batchplant bench codecs shards/*.tar --field png --to-rgb
  batchplant bench codecs photos/ --figure codecs.svg
  batchplant bench codecs photos/ --json

Some of the images, taken evenly from the whole dataset, are encoded and decoded in every way. Speed is that
of one core: processor time, as the Loader decodes (in the native engine where that can), without resizing.
PSNR and SSIM compare with the image as it was before, at the same size: 40 dB and more is hard to see, an
SSIM of 1 and a dash mean that nothing is lost. Images that are JPEG now have lost something before; that is
not counted. With --max-resolution they are shrunk first, as convert --max-resolution does.
The last columns say what 1.28 million images like these, as many as ImageNet has, and all of yours take.
AVIF and JPEG XL are measured where Pillow has them, by Pillow; the Loader does not decode them.
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
from ...data.reader import Reader
from ...errors import DataError, DecodeError, OptionError, Problem
from ...loading.stage import LONGEST_SIDE
from ...schema import Image
from ...tools import Document
from ...tools.measure import figures
from ..terminal import add_source, human_size, open_source, progress_bar, show_result
from ._codec_tables import STORED, draw, print_found
from ._coding import BY_PILLOW, RAW, Candidate, Tally, decoder, load, one_way, pillow_has, watch

# Images of ImageNet's training set.
IMAGENET = 1_281_167
FULL = "full"
# dB; below, the loss can be seen by who looks for it.
GOOD = 40.0
# A loss that saves less is for nothing.
WORTH = 0.95


def add_args(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument("--field", metavar="NAME", help="the image field (default: the first)")
    parser.add_argument("--limit", type=int, default=64, metavar="N", help="at most N images (default 64)")
    parser.add_argument(
        "--qualities", default="70,80,90,95", metavar="A,B",
        help="of JPEG, WebP, AVIF and JPEG XL (default 70,80,90,95)",
    )  # fmt: skip
    parser.add_argument(
        "--max-resolution", default=FULL, metavar="A,B",
        help="shrink to at most so many pixels on the longer side first, e.g. 256,512,full (default full)",
    )  # fmt: skip
    parser.add_argument("--to-rgb", action="store_true", help="drop alpha, convert CMYK and 16 bits first")
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="of encoding and decoding (default 3)"
    )
    parser.add_argument(
        "--seconds", type=float, default=120, metavar="S", help="take no further image after S (default 120)"
    )
    parser.add_argument("--figure", metavar="FILE", help="draw size against speed into a .png, .svg or .pdf")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    if args.limit < 1 or args.rounds < 1 or not args.seconds > 0:
        raise OptionError("--limit and --rounds are at least 1, and --seconds more than 0")
    ways = parse_qualities(args.qualities), parse_resolutions(args.max_resolution)
    figures.check(args.figure)
    with open_source(args) as reader:
        field = find_field(reader, args.field)
        result: Document = {
            "path": reader.path, "field": field, "samples": len(reader), "rounds": args.rounds,
            **measure(reader, field, *ways, args),
        }  # fmt: skip
    if not result["images"]:
        if not result["skipped"]:
            raise OptionError("there are no images", path=result["path"])
        raise DecodeError(
            "not one image could be decoded; the first: " + str(Problem(**result["skipped"][0]))
        )
    result["advice"] = advise(result)
    show_result(args, result, lambda: print_found(result), lambda: draw(result))
    return 1 if result["skipped"] else 0


def parse_qualities(text: str) -> list[int]:
    try:
        qualities = sorted({int(part) for part in text.split(",")})
    except ValueError:
        qualities = []
    if not qualities or qualities[0] < 1 or qualities[-1] > 100:
        raise OptionError(f"--qualities are numbers from 1 to 100 with commas between, not {text!r}")
    return qualities


def parse_resolutions(text: str) -> list[int | None]:
    """The smallest first; None for the images as they are."""
    try:
        resolutions = {None if part.strip() == FULL else int(part) for part in text.split(",")}
    except ValueError:
        resolutions = {0}
    if any(side is not None and not 1 <= side <= LONGEST_SIDE for side in resolutions):
        raise OptionError(
            f"--max-resolution takes numbers of pixels, or {FULL}, with commas between, not {text!r}"
        )
    return sorted(resolutions, key=lambda side: side or math.inf)


def find_field(reader: Reader, name_asked: str | None) -> str:
    images = [name for name, field in reader.schema.items() if isinstance(field, Image)]
    if name_asked is None and not images:
        raise OptionError(f"there is no image field among {', '.join(reader.schema)}", path=reader.path)
    name = images[0] if name_asked is None else name_asked
    if not isinstance(reader.schema.select([name])[name], Image):
        raise OptionError(f"{name} is no image field", path=reader.path, field=name)
    return name


def candidates(qualities: list[int], *, mask: bool) -> list[Candidate]:
    """Every way to store an image; a mask is never stored with loss."""
    families = [("JPEG", "jpeg"), ("WebP", "webp")]
    families += [(title, encoding) for encoding, title in BY_PILLOW.items() if pillow_has(encoding)]
    lossy = [
        Candidate(f"{title} {quality}", encoding, quality)
        for title, encoding in families
        for quality in qualities
    ]
    exact = [Candidate(RAW, RAW), Candidate("PNG", "png"), Candidate("WebP lossless", "webp")]
    return exact if mask else [*exact, *lossy]


def name_of(way: Candidate, resolution: int | None) -> str:
    return way.name if resolution is None else f"{way.name}, {resolution} px"


def measure(
    reader: Reader, field: str, qualities: list[int], resolutions: list[int | None], args: argparse.Namespace
) -> Document:
    """Encode and decode image after image, one at a time, in every way."""
    mask = bool(getattr(reader.schema[field], "mask", False))
    ways = candidates(qualities, mask=mask)
    chosen = np.unique(np.linspace(0, len(reader) - 1, min(args.limit, len(reader))).astype(np.int64))
    stored = Tally(args.rounds)
    tallies = {(way, size): Tally(args.rounds) for size in resolutions for way in ways}
    engine = _native.Engine(1)
    encodings: dict[str, int] = {}
    skipped: list[Problem] = []
    done = 0
    began = time.monotonic()
    try:
        with progress_bar("images", quiet=args.quiet or args.json) as progress:
            for number, row in enumerate(chosen.tolist(), 1):
                try:
                    cell, shape, pixels = load(reader, field, row, to_rgb=args.to_rgb, mask=mask)
                    # Whether it decodes is seen here, before anything is counted.
                    seconds = watch(decoder(engine, cell, shape), args.rounds)[1]
                except DataError as error:
                    skipped.append(Problem.of(error.at(path=reader.where(row), sample=row, field=field)))
                    continue
                encoding = RAW if shape else image.header(cell).encoding
                encodings[encoding] = encodings.get(encoding, 0) + 1
                stored.bytes += len(cell)
                stored.decode += seconds
                stored.pixels += pixels.shape[0] * pixels.shape[1]
                for size in resolutions:
                    smaller = image.fit(pixels, size, nearest=mask)
                    for way in ways:
                        one_way(engine, way, smaller, tallies[way, size], args.rounds)
                done += 1
                progress(number, len(chosen))
                if time.monotonic() - began > args.seconds:
                    break
    finally:
        engine.close()
    every = {(Candidate(STORED, ""), None): stored, **tallies}
    return {
        "images": done, "megapixels": stored.pixels / 1e6, "stored as": encodings,
        "formats": {
            name_of(way, size): {"max resolution": size, **summary(way, tally, stored, done, len(reader))}
            for (way, size), tally in every.items() if done and not tally.refused
        },
        "left out": {
            name_of(way, size): tally.refused[0] for (way, size), tally in every.items() if tally.refused
        },
        "skipped": [vars(problem) for problem in skipped],
    }  # fmt: skip


def summary(way: Candidate, tally: Tally, stored: Tally, images: int, samples: int) -> Document:
    """Every number that is printed of one candidate. JSON has no infinity: None where nothing is lost."""

    def speed(seconds: Any) -> dict[str, float]:
        spent = {"best": float(seconds.min()), "median": statistics.median(seconds.tolist())}
        # A clock that did not move is no reason to divide by nothing.
        return {
            f"{what}/s, {key}": count / max(value, 1e-9)
            for what, count in (("images", images), ("megapixels", tally.pixels / 1e6))
            for key, value in spent.items()
        }

    lossy = [psnr_value for psnr_value in tally.psnr if math.isfinite(psnr_value)]
    image_bytes = tally.bytes / images
    return {
        "encoding": way.encoding or None, "quality": way.quality,
        "bytes per image": image_bytes, "of stored": tally.bytes / max(stored.bytes, 1),
        "bits per pixel": 8 * tally.bytes / tally.pixels,
        "bytes of ImageNet": round(image_bytes * IMAGENET), "bytes of dataset": round(image_bytes * samples),
        "lossless": way.lossless and not lossy,
        "PSNR": {"median": statistics.median(lossy), "worst": min(lossy)} if lossy else None,
        "SSIM": {"median": statistics.median(tally.ssim), "worst": min(tally.ssim)} if lossy else None,
        "largest error": tally.worst,
        "encode": None if tally is stored else speed(tally.encode), "decode": speed(tally.decode),
    }  # fmt: skip


def advise(result: Document) -> list[str]:
    """One sentence of what the numbers say, for each resolution."""
    resolutions = {row.get("max resolution") for row in result["formats"].values()}
    sentences = []
    for size in sorted(resolutions, key=lambda size: size or math.inf):
        rows = {
            name.partition(",")[0]: row
            for name, row in result["formats"].items()
            # Not what could not be used after all.
            if row.get("max resolution") == size and row.get("encoding") not in BY_PILLOW
        }
        # Images that are measured smaller only have nothing to be compared with as they are.
        if set(rows) != {STORED}:
            sentences.append((f"at {size} px: " if size else "") + _advice(rows, result["stored as"]))
    return sentences


def _advice(formats: Document, stored: dict[str, int]) -> str:
    def size(name: str) -> float:
        return float(formats[name]["bytes per image"])

    def speed(name: str) -> float:
        return float(formats[name]["decode"]["megapixels/s, median"])

    def psnr(name: str) -> float:
        return float(formats[name]["PSNR"]["median"]) if formats[name]["PSNR"] else math.inf

    exact = min((name for name in formats if formats[name]["lossless"]), key=size)
    what = f"{exact} ({' and '.join(stored)})" if exact == STORED else exact
    sentences = f"smallest that loses nothing: {what}, {human_size(size(exact))} an image"
    good = [name for name in formats if psnr(name) >= GOOD]
    small = min(good, key=size, default=exact)
    if size(small) < WORTH * size(exact):
        share = size(small) / size(exact)
        sentences += f"; with a loss that is hard to see ({psnr(small):.0f} dB): {small}, {share:.2f} of that"
    fast = max(formats, key=speed)
    if fast != exact:
        times, larger = speed(fast) / speed(exact), size(fast) / size(exact)
        sentences += f"; fastest to decode: {fast}, {times:.1f} times as fast and {larger:.1f} times as large"
    return sentences
