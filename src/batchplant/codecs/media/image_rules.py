"""Rules by which writers store images: which cells pass untouched, and how others are encoded.

A cell that the target can hold and that is within the bounds passes byte for byte. Nothing else is
lossy unless the caller asked for it: without a ``write_mode`` or an ``image_format``, a JPEG or lossy WebP
that has to shrink is encoded so again, and every other image stays lossless. A mask is never stored in a
lossy way. What is encoded anew keeps its EXIF data and its ICC profile where the encoding can hold them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ...errors import BatchplantError, EncodeError, OptionError
from ...schema import Field, Image
from ...schema.columns import I64, Flags, Ragged
from ...storage.limits import human_size
from . import exif, image, pillow

WRITE_MODES = ("jpg", "raw", "smart", "proportion")
IMAGE_FORMATS = ("jpeg", "png", "webp", "tiff", "bmp", "raw")
LOSSY = ("jpeg", "webp")
# What a target holds that keeps encoded files as they are.
ANY_ENCODED = frozenset(encoding for encoding in image.ENCODINGS if encoding)
# Images that take more than so many times the room, and so many bytes more, are remarked on.
GROWTH = 4
GROWTH_BYTES = 1_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """Options of a writer for images, those of all fields or of one.

    write_mode: None (keep what is there, lossless otherwise), or FFCV's ``jpg``, ``raw``, ``smart`` (JPEG
    where the raw pixels exceed ``smart_threshold`` bytes, else raw) and ``proportion`` (JPEG with
    probability ``compress_probability``, drawn with ``seed``). max_resolution bounds the longer side.
    reencode: encode also what could pass through. to_rgb: drop alpha and convert CMYK, 16-bit and grayscale
    images.

    image_format: the encoding that all are to have, ``jpeg``, ``png``, ``webp``, ``tiff``, ``bmp`` or
    ``raw``; those that have it pass through. quality: of JPEG and lossy WebP (``jpeg_quality`` is FFCV's name
    for it). lossless: WebP without loss. orient: turn the pixels as EXIF says, and store them upright.
    """

    write_mode: str | None = None
    max_resolution: int | None = None
    jpeg_quality: int = 90
    smart_threshold: int = 256 * 256 * 3
    compress_probability: float = 0.5
    reencode: bool = False
    to_rgb: bool = False
    seed: int = 0
    image_format: str | None = None
    quality: int | None = None
    lossless: bool = False
    orient: bool = False

    def __post_init__(self) -> None:
        if self.image_format == "jpg":
            object.__setattr__(self, "image_format", "jpeg")
        if self.write_mode is not None and self.write_mode not in WRITE_MODES:
            raise OptionError(f"write_mode is one of {', '.join(WRITE_MODES)}, not {self.write_mode!r}")
        if self.max_resolution is not None and self.max_resolution < 1:
            raise OptionError(f"max_resolution must be at least 1, not {self.max_resolution}")
        if not 1 <= self.jpeg_quality <= 100:
            raise OptionError(f"jpeg_quality must be from 1 to 100, not {self.jpeg_quality}")
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise OptionError(f"quality must be from 1 to 100, not {self.quality}")
        self._check_format()
        if not 0 <= self.compress_probability <= 1:
            raise OptionError(f"compress_probability must be from 0 to 1, not {self.compress_probability}")
        if not 0 <= self.seed < 2**63:
            raise OptionError(f"seed must be a number from 0 to 2**63 - 1, not {self.seed}")

    def _check_format(self) -> None:
        chosen = self.image_format
        if chosen is not None and chosen not in IMAGE_FORMATS:
            raise OptionError(f"image_format is one of {', '.join(IMAGE_FORMATS)}, not {chosen!r}")
        if chosen is not None and self.write_mode is not None:
            raise OptionError("write_mode and image_format both say how images are stored; give one of them")
        if self.lossless and chosen in (None, "jpeg"):
            problem = "jpeg cannot be" if chosen else "lossless needs an image_format that can be"
            raise OptionError(f"{problem} lossless; choose webp, png, tiff, bmp or raw")
        if self.quality is not None and (self.lossless or chosen in ("png", "tiff", "bmp", "raw")):
            raise OptionError(f"quality is for lossy encodings, and {chosen} is stored without loss here")

    @property
    def level(self) -> int:
        """The quality of what is encoded with loss."""
        return self.jpeg_quality if self.quality is None else self.quality

    @property
    def lossy(self) -> bool:
        """True if the caller asked for a lossy encoding."""
        webp = self.image_format == "webp" and not self.lossless
        return webp or self.image_format == "jpeg" or self.write_mode not in (None, "raw")


# For all fields of images, or for some by name.
Images = ImageOptions | Mapping[str, ImageOptions]


@dataclasses.dataclass(frozen=True)
class ImageTarget:
    """Capabilities of a format's image fields: encodings ("raw" among them), and modes (None: all)."""

    encodings: frozenset[str] = ANY_ENCODED
    modes: frozenset[str] | None = None


def stored_field(field: Image, options: ImageOptions, target: ImageTarget) -> Image:
    """Return the field that describes the images once they are stored."""
    encoding, mode = field.encoding, field.mode
    requested = {"jpg": "jpeg"}.get(options.write_mode or "", options.write_mode) or options.image_format
    if field.mask:
        changes = options.max_resolution or options.reencode or options.orient
        if requested in ("png", "tiff", "bmp", "raw"):
            encoding = requested
        elif encoding is not None:
            encoding = None if changes and encoding in LOSSY else _natural(encoding, target)
        return dataclasses.replace(field, encoding=encoding)
    if options.to_rgb:
        mode = "RGB"
    if requested is not None:
        encoding = requested if requested in IMAGE_FORMATS else None
        # WebP knows no grayscale: what comes back has three channels.
        mode = None if requested == "webp" and mode in ("L", "LA") else mode
    elif encoding is not None:
        encoding = _natural(encoding, target)
    return dataclasses.replace(field, encoding=encoding, mode=mode)


def remarks(fields: Mapping[str, Field], options_of: Callable[[str], ImageOptions]) -> list[str]:
    """Sentences on masks that a user may not expect. ``options_of``: the options of a field."""
    masks = []
    for name in (name for name, field in fields.items() if isinstance(field, Image) and field.mask):
        options = options_of(name)
        if options.lossy or options.to_rgb or options.image_format == "webp":
            masks.append(name)
    note = "a mask is stored without loss and as it is, whatever is asked for images"
    return [f"{', '.join(masks)}: {note}"] if masks else []


def growth_remark(
    before: int, after: int, options: ImageOptions, target: ImageTarget, *, mask: bool, format: str
) -> str | None:
    """Say why a field's images take many times more room, and what avoids it.

    ``before`` and ``after`` are the bytes of all its cells. None where they grew little, or where the
    caller chose the encoding.
    """
    if after <= GROWTH * before or after - before <= GROWTH_BYTES:
        return None
    if options.image_format or options.write_mode:
        return None
    raw, any_encoding = "raw" in target.encodings, target.encodings >= ANY_ENCODED
    names = " or ".join(sorted(encoding.upper() for encoding in target.encodings - {"raw"}))
    kept_images = "them" if any_encoding or not names else f"images that are not {names}"
    ways = []
    if raw and "png" in target.encodings:
        ways.append("image_format='png' (convert --image-format png) makes them smaller without loss")
    elif "jpeg" in target.encodings and not mask:
        ways.append("image_format='jpeg' (convert --image-format jpeg) makes them smaller with loss")
    if not any_encoding:
        ways.append("a .tar or .parquet file keeps their encoding")
    reason = f"{format} stores {kept_images} as {'pixels' if raw else 'PNG'}"
    return "; ".join([f"{human_size(before)} of images became {human_size(after)}: {reason}", *ways])


def conform(
    cells: Ragged, options: ImageOptions, target: ImageTarget, numbers: I64, *, mask: bool = False
) -> tuple[Ragged, list[tuple[int, BatchplantError]]]:
    """The cells as the target stores them, and (row, error) of those that cannot be stored.

    ``numbers`` are the samples' numbers in the whole dataset; a random choice depends on nothing else.
    """
    if mask:
        options = dataclasses.replace(options, to_rgb=False)
    if options.to_rgb:
        target = dataclasses.replace(target, modes=frozenset({"RGB"}))
    headers = image.probe(cells)
    encodings = _choose_encodings(headers, options, numbers)
    if mask:
        encodings = [None if name in LOSSY else name for name in encodings]
    keep = _untouched(cells, headers, encodings, options, target)
    if keep.all():
        return cells, []
    new: list[Any] = []
    shapes: list[Any] = []
    failed: list[tuple[int, BatchplantError]] = []
    for row in range(len(cells)):
        data = cells[row]
        shape = None if cells.shape is None else tuple(int(size) for size in cells.shape[row])
        if not keep[row]:
            assert data is not None
            try:
                data, shape = _store(data, shape, encodings[row], options, target, mask)
            except BatchplantError as error:
                failed.append((row, error))
                data, shape = np.empty(0, dtype=np.uint8), None
        new.append(data)
        shapes.append(shape if shape and any(shape) else None)
    return Ragged.from_cells(new, shapes), failed


def _choose_encodings(headers: Any, options: ImageOptions, numbers: I64) -> list[str | None]:
    """The encoding that each cell is to have; None: as it is."""
    rows = len(headers)
    mode = options.image_format or options.write_mode
    if mode not in ("smart", "proportion"):
        return [{"jpg": "jpeg"}.get(mode or "", mode)] * rows
    if mode == "smart":
        bound = options.max_resolution or 1 << 30
        sizes = headers[:, 1:3].astype(np.float64)
        sizes *= np.minimum(1.0, bound / np.maximum(sizes.max(axis=1), 1))[:, None]
        jpeg = np.floor(sizes).prod(axis=1) * 3 > options.smart_threshold
    else:
        draws = [np.random.Philox(key=[options.seed, int(number)]).random_raw() for number in numbers]
        jpeg = np.array(draws, dtype=np.float64) < options.compress_probability * 2.0**64
    return ["jpeg" if chosen else "raw" for chosen in jpeg]


def _untouched(
    cells: Ragged, headers: Any, want: list[str | None], options: ImageOptions, target: ImageTarget
) -> Flags:
    """Mask of the cells that pass byte for byte."""
    codes = headers[:, 0]
    raw = cells.raw
    allowed = np.array([encoding in target.encodings for encoding in image.ENCODINGS])
    # A target that keeps any file keeps unknown bytes too; whether they decode is verify's question.
    allowed[0] = target.encodings >= ANY_ENCODED and target.modes is None
    keep = np.where(raw, "raw" in target.encodings, allowed[codes])
    target_codes = [
        -1 if name is None else 0 if name == "raw" else image.ENCODINGS.index(name) for name in want
    ]
    have = np.where(raw, 0, np.where(codes == 0, -2, codes))
    keep &= (np.array(target_codes) == -1) | (have == np.array(target_codes))
    if options.max_resolution is not None:
        keep &= headers[:, 1:3].max(axis=1) <= options.max_resolution
    if target.modes is not None:
        representable = np.array([mode in target.modes for mode in image.MODES])[headers[:, 3]]
        # Every decoder of RGB gives a grayscale JPEG as RGB, each level three times.
        representable |= (headers[:, 3] == image.MODES.index("L")) & (codes == 1) & ("RGB" in target.modes)
        keep &= representable & (headers[:, 4] == 8) & (headers[:, 1:3] > 0).all(axis=1)
    if options.reencode:
        keep &= raw
    if options.orient:
        for row in np.flatnonzero(keep & np.isin(codes, [1, 2, 3, 6])).tolist():
            keep[row] = exif.orientation(cells[row]) == 1
    if cells.valid is not None:
        keep |= ~cells.valid
    return np.asarray(keep, dtype=np.bool_)


class _Decoded(NamedTuple):
    """An image on its way from one encoding to another."""

    pixels: image.Pixels
    mode: str
    # "raw" where it was pixels before.
    source: str
    lossy: bool = False
    palette: pillow.Palette | None = None
    metadata: exif.Metadata = exif.Metadata()


def _store(
    data: Any,
    shape: tuple[int, ...] | None,
    want: str | None,
    options: ImageOptions,
    target: ImageTarget,
    mask: bool,
) -> tuple[Any, tuple[int, ...] | None]:
    """One image decoded, bounded and encoded as the target needs it."""
    if shape and any(shape):
        pixels = image.squeeze(data.reshape(shape))
        pixels = image.pixels_to_rgb(pixels) if options.to_rgb else pixels
        decoded = _Decoded(pixels, image.mode_of(pixels), "raw")
    else:
        decoded = _decoded(data, options, mask)
    if target.modes == frozenset({"RGB"}) and decoded.mode == "L":
        decoded = decoded._replace(pixels=np.repeat(decoded.pixels[:, :, None], 3, axis=2), mode="RGB")
    if target.modes is not None and decoded.mode not in target.modes:
        raise _wrong_mode(decoded.mode, target)
    pixels = image.fit(decoded.pixels, options.max_resolution, nearest=mask)
    encoding = want or _natural(decoded.source, target)
    if want is None and (not image.holds(encoding, decoded.mode) or (mask and encoding in LOSSY)):
        # Raw pixels have no palette either.
        encoding = "png" if image.holds("png", decoded.mode) else "tiff"
    if encoding not in target.encodings:
        names = ", ".join(sorted(target.encodings))
        raise EncodeError(f"this format cannot hold {encoding} images, only {names}")
    if encoding == "raw":
        if not image.holds("raw", decoded.mode) and decoded.mode != "P":
            raise _wrong_mode(decoded.mode, ImageTarget(modes=frozenset(image.LOSSLESS_MODES["raw"])))
        return np.ascontiguousarray(pixels).reshape(-1), image.expand(pixels).shape
    lossless = not decoded.lossy if want is None else options.lossless
    encoded = image.encode(
        pixels, encoding, quality=options.level, lossless=lossless, mode=decoded.mode, palette=decoded.palette
    )
    encoded = exif.attach(encoded, encoding, decoded.metadata, channels=image.expand(pixels).shape[2])
    return np.frombuffer(encoded, np.uint8), None


def _decoded(data: Any, options: ImageOptions, mask: bool) -> _Decoded:
    header = image.header(data)
    if not options.to_rgb and image.page_count(data) > 1:
        raise EncodeError(
            f"it has {image.page_count(data)} pages, and only the first would be kept; save them as images "
            "of their own, or take the first with to_rgb (--to-rgb)"
        )
    palette = None
    if mask and header.mode == "P":
        pixels, palette = image.decode_palette(data)
    else:
        bound = None if mask else options.max_resolution
        shrunk = None if bound is None else image.decode_shrunk(data, bound)
        decode = image.to_rgb if options.to_rgb else image.decode
        pixels = decode(data) if shrunk is None else shrunk
    # As pixels, CMYK is four channels like RGBA, and would be taken for it.
    mode = "CMYK" if header.mode == "CMYK" and not options.to_rgb else image.mode_of(pixels)
    metadata = exif.read(data)
    turn = exif.orientation(data) if options.orient else 1
    if turn != 1:
        pixels, metadata = image.orient(pixels, turn), exif.upright(metadata)
    lossy = header.encoding == "jpeg" or exif.is_lossy_webp(data)
    return _Decoded(pixels, mode if palette is None else "P", header.encoding, lossy, palette, metadata)


def _wrong_mode(mode: str, target: ImageTarget) -> EncodeError:
    modes = " and ".join(sorted(target.modes or ()))
    return EncodeError(
        f"the image is {mode}, and what it is to be stored as holds only {modes}; convert it with to_rgb "
        f"(--to-rgb), skip it, or keep the file as it is in a field Image(mode={mode!r})"
    )


def _natural(source: str, target: ImageTarget) -> str:
    """The encoding to choose when the caller named none: the same again, else lossless."""
    if source in target.encodings and source in ("jpeg", *image.LOSSLESS):
        return source
    return "raw" if "raw" in target.encodings else "png"
