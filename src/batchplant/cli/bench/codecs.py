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
import contextlib
import dataclasses
import importlib
import io
import math
import statistics
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ... import _native
from ...codecs.cells import decode_cell
from ...codecs.media import image, pillow
from ...data.reader import Reader
from ...errors import DataError, DecodeError, EncodeError, MissingLibraryError, OptionError, Problem
from ...loading.stage import LONGEST_SIDE
from ...schema import Image
from ...schema.columns import as_bytes
from ...storage import limits
from ...tools import Document
from ...tools.measure import figures
from ..terminal import add_source, console, human_size, open_source, print_skipped, progress_bar, show_result

Value = TypeVar("Value")
RAW = "raw"
# What Pillow may know and the Loader does not, by the name that Pillow has for it.
BY_PILLOW = {"avif": "AVIF", "jxl": "JPEG XL"}
# Seconds from which on a codec is not asked again for an image: a moment more or less does not matter.
SLOW_SECONDS = 0.2
# SSIM of windows of 8 x 8 pixels, one for every 4, as video encoders measure it.
SSIM_STRIDE = 4
# Images of ImageNet's training set.
IMAGENET = 1_281_167
FULL = "full"
# In dB; a lower PSNR can be seen in a side-by-side comparison.
GOOD_PSNR = 40.0
# A loss that saves less is for nothing.
MAX_WORTHWHILE_SHARE = 0.95
STORED = "as stored"
# Skipped images that are printed.
MAX_SHOWN = 10


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
    show_result(args, result, lambda: print_result(result), lambda: draw(result))
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


def candidates(qualities: list[int], *, mask: bool) -> list[Codec]:
    """Return every codec to measure; a mask is never stored with loss."""
    families = [("JPEG", "jpeg"), ("WebP", "webp")]
    families += [(title, encoding) for encoding, title in BY_PILLOW.items() if pillow_has(encoding)]
    lossy = [
        Codec(f"{title} {quality}", encoding, quality)
        for title, encoding in families
        for quality in qualities
    ]
    exact = [Codec(RAW, RAW), Codec("PNG", "png"), Codec("WebP lossless", "webp")]
    return exact if mask else [*exact, *lossy]


def name_of(codec: Codec, resolution: int | None) -> str:
    return codec.name if resolution is None else f"{codec.name}, {resolution} px"


def measure(
    reader: Reader, field: str, qualities: list[int], resolutions: list[int | None], args: argparse.Namespace
) -> Document:
    """Encode and decode image after image, one at a time, in every way."""
    mask = bool(getattr(reader.schema[field], "mask", False))
    codecs = candidates(qualities, mask=mask)
    chosen = np.unique(np.linspace(0, len(reader) - 1, min(args.limit, len(reader))).astype(np.int64))
    stored = Tally(args.rounds)
    tallies = {(codec, size): Tally(args.rounds) for size in resolutions for codec in codecs}
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
                    for codec in codecs:
                        add_image(engine, codec, smaller, tallies[codec, size], args.rounds)
                done += 1
                progress(number, len(chosen))
                if time.monotonic() - began > args.seconds:
                    break
    finally:
        engine.close()
    every = {(Codec(STORED, ""), None): stored, **tallies}
    return {
        "images": done, "megapixels": stored.pixels / 1e6, "stored as": encodings,
        "formats": {
            name_of(codec, size): {"max resolution": size, **summary(codec, tally, stored, done, len(reader))}
            for (codec, size), tally in every.items() if done and not tally.refused
        },
        "left out": {
            name_of(codec, size): tally.refused[0] for (codec, size), tally in every.items() if tally.refused
        },
        "skipped": [vars(problem) for problem in skipped],
    }  # fmt: skip


def summary(codec: Codec, tally: Tally, stored: Tally, images: int, samples: int) -> Document:
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
        "encoding": codec.encoding or None, "quality": codec.quality,
        "bytes per image": image_bytes, "of stored": tally.bytes / max(stored.bytes, 1),
        "bits per pixel": 8 * tally.bytes / tally.pixels,
        "bytes of ImageNet": round(image_bytes * IMAGENET), "bytes of dataset": round(image_bytes * samples),
        "lossless": codec.lossless and not lossy,
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
    good = [name for name in formats if psnr(name) >= GOOD_PSNR]
    small = min(good, key=size, default=exact)
    if size(small) < MAX_WORTHWHILE_SHARE * size(exact):
        share = size(small) / size(exact)
        sentences += f"; with a loss that is hard to see ({psnr(small):.0f} dB): {small}, {share:.2f} of that"
    fast = max(formats, key=speed)
    if fast != exact:
        times, larger = speed(fast) / speed(exact), size(fast) / size(exact)
        sentences += f"; fastest to decode: {fast}, {times:.1f} times as fast and {larger:.1f} times as large"
    return sentences


# -- one image in one codec -----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Codec:
    """An encoding of an image, at a quality or without loss."""

    name: str
    encoding: str
    quality: int | None = None

    @property
    def lossless(self) -> bool:
        return self.quality is None

    def encode(self, pixels: image.Pixels) -> bytes:
        if self.encoding == RAW:
            return pixels.tobytes()
        if self.encoding in BY_PILLOW:
            if pixels.dtype != np.uint8:
                raise EncodeError(f"Pillow writes {BY_PILLOW[self.encoding]} of 8 bits, not {pixels.dtype}")
            return pillow.save(
                image.squeeze(pixels), self.encoding, image.mode_of(pixels), quality=self.quality
            )
        return image.encode(pixels, self.encoding, quality=self.quality or 90, lossless=self.lossless)


def pillow_has(encoding: str) -> bool:
    """True where Pillow, or an installed plug-in of it, both reads and writes such images."""
    try:
        library = pillow.library()
    except MissingLibraryError:
        return False
    if encoding == "jxl":
        with contextlib.suppress(ImportError):
            importlib.import_module("pillow_jxl")
    library.init()
    return encoding.upper() in library.SAVE and encoding.upper() in library.OPEN


class Tally:
    """Measurements of a candidate so far."""

    def __init__(self, rounds: int) -> None:
        self.bytes = self.pixels = 0
        # Of all images, by round.
        self.encode, self.decode = np.zeros(rounds), np.zeros(rounds)
        self.psnr: list[float] = []
        self.ssim: list[float] = []
        self.worst = 0
        self.refused: list[str] = []


def load(
    reader: Reader, field: str, row: int, *, to_rgb: bool, mask: bool = False
) -> tuple[Any, tuple[int, ...] | None, image.Pixels]:
    """The stored cell, its shape where it is raw pixels, and its pixels."""
    column = reader.read([row], [field]).ragged(field)
    cell = column[0]
    if cell is None:
        raise DecodeError("there is no image")
    shape = (
        tuple(int(size) for size in column.shape[0]) if column.raw[0] and column.shape is not None else None
    )
    if shape is not None:
        pixels = decode_cell(Image(mode=None), column, 0)
        return cell, shape, image.pixels_to_rgb(pixels) if to_rgb else pixels
    if to_rgb:
        return cell, None, image.to_rgb(cell)
    if image.header(cell).mode == "CMYK":
        raise DecodeError("the image is CMYK, which nothing else here holds; --to-rgb converts it")
    pixels = image.decode(cell, mask=mask)
    if pixels.dtype not in (np.uint8, np.uint16) or image.expand(pixels).shape[2] > 4:
        raise DecodeError(
            f"{image.mode_of(pixels)} pixels are for TIFF alone, so there is nothing to compare"
        )
    return cell, None, pixels


def add_image(engine: _native.Engine, codec: Codec, pixels: image.Pixels, tally: Tally, rounds: int) -> None:
    """Add one image to the tally of a codec."""
    try:
        cell, encode_seconds = watch(lambda: codec.encode(pixels), rounds)
        shape = image.expand(pixels).shape if codec.encoding == RAW and pixels.dtype == np.uint8 else None
        if codec.encoding == RAW and shape is None:
            raise EncodeError(f"raw pixels are of 8 bits, not {pixels.dtype}")
        if codec.encoding in BY_PILLOW:
            # The bench made this image itself, so that nothing about it has to be checked.
            decoded, seconds = watch(lambda: np.asarray(pillow.library().open(io.BytesIO(cell))), rounds)
        else:
            decoded, seconds = watch(decoder(engine, as_bytes(cell), shape), rounds)
    except DataError as error:
        tally.refused.append(error.message)
        return
    loss, largest = difference(pixels, decoded)
    tally.bytes += len(cell)
    tally.pixels += pixels.shape[0] * pixels.shape[1]
    tally.encode += encode_seconds
    tally.decode += seconds
    tally.psnr.append(loss)
    tally.ssim.append(ssim(pixels, decoded))
    tally.worst = max(tally.worst, largest)


def watch(work: Callable[[], Value], rounds: int) -> tuple[Value, npt.NDArray[np.float64]]:
    """Return the result of some work, and the processor time of each round."""
    seconds = np.zeros(rounds)
    for number in range(rounds):
        began = time.process_time()
        value = work()
        seconds[number:] = time.process_time() - began
        if seconds[number] > SLOW_SECONDS:
            break
    return value, seconds


def decoder(engine: _native.Engine, cell: Any, shape: tuple[int, ...] | None) -> Callable[[], Any]:
    """As the Loader decodes: in the engine where that can, else as `image.decode` does."""
    zero = np.zeros(1, dtype=np.int64)
    where = [cell], zero.astype(np.int32), zero, np.array([len(cell)], dtype=np.int64)
    shapes = None if shape is None else np.array([shape], dtype=np.int32)
    if shape is None:
        header = image.header(cell)
        shape = header.height, header.width, {"L": 1, "RGB": 3}.get(header.mode, 0) if header.bits == 8 else 0
    # Absurd sizes are refused by who decodes; until then nothing is allocated for them.
    if 0 in shape or math.prod(shape) > limits.allowed(len(cell)):
        return lambda: image.decode(cell)
    out = np.empty((1, *shape), dtype=np.uint8)

    def native() -> image.Pixels | None:
        status, errors, _ = engine.decode(*where, shapes, None, None, out, layout="nhwc", filter="area")
        if errors:
            raise DecodeError(errors[0][1])
        return None if status[0] else image.squeeze(out[0])

    return native if native() is not None else lambda: image.decode(cell)


def difference(pixels: image.Pixels, decoded: image.Pixels) -> tuple[float, int]:
    """PSNR in dB (infinite where nothing differs) and the largest error."""
    first, second = _alike(pixels, decoded)
    error = np.abs(first.astype(np.int32) - second)
    mean = float(np.square(error, dtype=np.float64).mean())
    top = _top(pixels)
    return (10 * math.log10(top * top / mean) if mean else math.inf), int(error.max())


def ssim(pixels: image.Pixels, decoded: image.Pixels) -> float:
    """Similarity of two images, 1 where they are the same: the mean SSIM of their brightness.

    Of windows of 8 x 8 pixels; an image smaller than that is one window.
    """
    first, second = (_brightness(each) for each in _alike(pixels, decoded))
    means = [_window_means(each) for each in (first, second, first * first, second * second, first * second)]
    left, right, left_square, right_square, both = means
    calm, noise = (0.01 * _top(pixels)) ** 2, (0.03 * _top(pixels)) ** 2
    alike = (2 * left * right + calm) * (2 * (both - left * right) + noise)
    most = (left**2 + right**2 + calm) * (left_square - left**2 + right_square - right**2 + noise)
    return float((alike / most).mean())


def _alike(pixels: image.Pixels, decoded: image.Pixels) -> tuple[image.Pixels, image.Pixels]:
    """Both with the same channels."""
    first, second = image.expand(pixels), image.expand(decoded)
    if first.shape[2] != second.shape[2]:
        # WebP knows RGB and RGBA alone, and no alpha where all is opaque.
        first, second = _rgba(first), _rgba(second)
    if first.shape != second.shape:
        raise DecodeError(f"it was {pixels.shape} and decodes to {decoded.shape}")
    return first, second


def _top(pixels: image.Pixels) -> int:
    return 65535 if pixels.dtype == np.uint16 else 255


def _brightness(pixels: image.Pixels) -> Any:
    if pixels.shape[2] < 3:
        return pixels[:, :, 0].astype(np.float64)
    return pixels[:, :, :3] @ np.array([0.299, 0.587, 0.114])


def _window_means(values: Any) -> Any:
    height, width = (size - size % SSIM_STRIDE for size in values.shape)
    if min(height, width) < 2 * SSIM_STRIDE:
        return values.mean()
    tiles = (
        values[:height, :width]
        .reshape(height // SSIM_STRIDE, SSIM_STRIDE, width // SSIM_STRIDE, SSIM_STRIDE)
        .mean(axis=(1, 3))
    )
    return (tiles[:-1, :-1] + tiles[1:, :-1] + tiles[:-1, 1:] + tiles[1:, 1:]) / 4


def _rgba(pixels: image.Pixels) -> image.Pixels:
    """Gray three times, opaque where there is no alpha."""
    colours = pixels[:, :, :1] if pixels.shape[2] < 3 else pixels[:, :, :3]
    alpha = pixels[:, :, -1:] if pixels.shape[2] in (2, 4) else np.full_like(pixels[:, :, :1], 255)
    return np.concatenate([np.broadcast_to(colours, (*pixels.shape[:2], 3)), alpha], axis=2)


# -- the output -----------------------------------------------------------------------------------------


def print_result(result: Document) -> None:
    kinds = ", ".join(f"{count} {name}" for name, count in result["stored as"].items())
    mean = result["megapixels"] / result["images"]
    print(
        f"{result['path']}, field {result['field']}: {result['images']} of {result['samples']:,} images "
        f"({kinds}), {mean:.3g} megapixels on average; best and median of {result['rounds']}\n"
    )
    sizes = figures.table(
        "size and loss", "an image", "of stored", "bits/px", "PSNR", "SSIM", "ImageNet", "yours"
    )
    speeds = figures.table("one core", "encode/s", "(best)", "MP/s", "decode/s", "(best)", "MP/s")
    before = None
    for name, row in result["formats"].items():
        resolution = row["max resolution"]
        if resolution != before:
            for table in (sizes, speeds):
                table.add_row(f"at most {resolution} px" if resolution else "full size")
        before = resolution
        _add_row(sizes, speeds, name.partition(",")[0], row)
    console().print(sizes)
    print()
    console().print(speeds)
    print(f"\nImageNet: 1.28 million images like these; yours: {result['samples']:,}")
    encodings = {row["encoding"] for row in result["formats"].values()}
    by_pillow = [title for key, title in BY_PILLOW.items() if key in encodings]
    if by_pillow:
        print(f"{' and '.join(by_pillow)}: by Pillow; the Loader and convert do not know them")
    for name, why in result["left out"].items():
        print(f"left out: {name}: {why}")
    print_skipped(result["skipped"], MAX_SHOWN)
    for line in result["advice"]:
        print(f"advice: {line}")


def _add_row(sizes: Any, speeds: Any, name: str, row: Document) -> None:
    psnr, ssim = row["PSNR"], row["SSIM"]
    sizes.add_row(
        name, human_size(row["bytes per image"]), f"{row['of stored']:.2f}",
        f"{row['bits per pixel']:.2f}",
        "–" if psnr is None else f"{psnr['median']:.1f}",
        "–" if ssim is None else f"{ssim['median']:.3f}",
        human_size(row["bytes of ImageNet"]), human_size(row["bytes of dataset"]),
    )  # fmt: skip
    shown: list[str] = []
    for part in (row["encode"], row["decode"]):
        keys = ("images/s, median", "images/s, best", "megapixels/s, median")
        shown += ["–"] * 3 if part is None else [_number(part[key]) for key in keys]
    speeds.add_row(name, *shown)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def draw(result: Document) -> figures.Figure:
    """Size against decoding speed, a panel for each resolution."""
    resolutions = {row["max resolution"] for row in result["formats"].values()}
    sizes = sorted(resolutions, key=lambda size: size or math.inf)
    if len(sizes) > 1 and sum(row["max resolution"] is None for row in result["formats"].values()) == 1:
        # Of full size there is only what is stored, which stands in every panel.
        sizes.remove(None)
    figure = figures.blank(7.6 if len(sizes) == 1 else 1 + 4.2 * len(sizes), 5.2)
    panels = figure.subplots(1, len(sizes), squeeze=False, sharex=True, sharey=True)[0]
    for axes, size in zip(panels, sizes, strict=True):
        panel_rows = {
            name.partition(",")[0]: row
            for name, row in result["formats"].items()
            if row["max resolution"] == size or name == STORED
        }
        _panel(axes, panel_rows)
        if len(sizes) > 1:
            axes.set_title(f"at most {size} px" if size else "full size", fontsize=10)
        axes.set_xlabel("kB an image (smaller is better)", fontsize=9)
    panels[0].set_ylabel("images decoded a second, one core", fontsize=9)
    figures.legend_below(figure, panels[-1], 8)
    for axes in panels:
        figures.logarithmic(axes)
        axes.margins(0.12)
        figures.tidy(axes)
        # kB an image times 1.28 million images are so many GB.
        above = axes.secondary_xaxis("top", functions=(lambda kb: kb * 1.281167, lambda gb: gb / 1.281167))
        above.set_xlabel("GB for 1.28 million images, as ImageNet has", fontsize=8, color=figures.GREY)
        figures.plain_numbers(above.xaxis)
        above.tick_params(labelsize=8, colors=figures.GREY)
        above.spines["top"].set_color(figures.GREY)
    figure.suptitle(f"{result['images']} images of {result['path']}", fontsize=10)
    return figure


def _panel(axes: figures.Axes, formats: Document) -> None:
    families: dict[str, list[tuple[float, float, str]]] = {}
    for name, row in formats.items():
        family = name if row["quality"] is None else name.rpartition(" ")[0]
        label = name if row["quality"] is None else str(row["quality"])
        label += f" ({row['PSNR']['median']:.0f} dB)" if row["PSNR"] else ""
        point = row["bytes per image"] / 1000, row["decode"]["images/s, median"], label
        families.setdefault(family, []).append(point)
    for (family, points), colour in zip(families.items(), figures.COLOURS, strict=False):
        x, y, labels = zip(*points, strict=True)
        is_stored = family == STORED
        # What is stored is often what one of the others makes, so it lies around it and not upon it.
        look = (
            {"marker": "o", "fillstyle": "none", "markersize": 13}
            if is_stored
            else {"marker": "o", "markersize": 6}
        )
        axes.plot(x, y, color=colour, linewidth=1, label=family, zorder=3 if is_stored else 2, **look)
        # The legend names it; a label would lie upon those of its neighbours.
        for number, text in enumerate(() if is_stored else labels):
            axes.annotate(
                text, (x[number], y[number]), xytext=(3, 5), textcoords="offset points", ha="left",
                rotation=30, rotation_mode="anchor", fontsize=7, color=colour,
            )  # fmt: skip
