"""How pictures are stored: which cells pass through untouched, and what becomes of the others.

A cell that the target can hold and that is within the bounds passes byte for byte. Nothing else is
lossy unless the caller asked for it: without a ``write_mode``, a JPEG that has to shrink is encoded as
JPEG again, and every other picture stays lossless.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ..columns import I64, Flags, Ragged
from ..errors import BatchplantError, EncodeError, OptionError
from . import image

WRITE_MODES = ("jpg", "raw", "smart", "proportion")
# What a target holds that keeps encoded files as they are.
ANY_ENCODED = frozenset(encoding for encoding in image.ENCODINGS if encoding)


@dataclasses.dataclass(frozen=True)
class ImageOptions:
    """How a writer stores the pictures of one field.

    write_mode: None (keep what is there, lossless otherwise), or FFCV's ``jpg``, ``raw``, ``smart`` (JPEG
    where the raw pixels exceed ``smart_threshold`` bytes, else raw) and ``proportion`` (JPEG with
    probability ``compress_probability``). max_resolution bounds the longer side. reencode: encode also
    what could pass through. to_rgb: drop alpha and convert CMYK, 16-bit and grayscale pictures.
    """

    write_mode: str | None = None
    max_resolution: int | None = None
    jpeg_quality: int = 90
    smart_threshold: int = 256 * 256 * 3
    compress_probability: float = 0.5
    reencode: bool = False
    to_rgb: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.write_mode is not None and self.write_mode not in WRITE_MODES:
            raise OptionError(f"write_mode is one of {', '.join(WRITE_MODES)}, not {self.write_mode!r}")
        if self.max_resolution is not None and self.max_resolution < 1:
            raise OptionError(f"max_resolution must be at least 1, not {self.max_resolution}")
        if not 1 <= self.jpeg_quality <= 100:
            raise OptionError(f"jpeg_quality must be from 1 to 100, not {self.jpeg_quality}")
        if not 0 <= self.compress_probability <= 1:
            raise OptionError(f"compress_probability must be from 0 to 1, not {self.compress_probability}")
        if not 0 <= self.seed < 2**63:
            raise OptionError(f"seed must be a number from 0 to 2**63 - 1, not {self.seed}")


@dataclasses.dataclass(frozen=True)
class ImageTarget:
    """What a format can hold in an image field: encodings ("raw" among them), and modes (None: all)."""

    encodings: frozenset[str] = ANY_ENCODED
    modes: frozenset[str] | None = None


def stored_encoding(encoding: str | None, options: ImageOptions, target: ImageTarget) -> str | None:
    """The encoding that a field's pictures have once they are stored; None: it may differ."""
    if options.write_mode is not None:
        return {"jpg": "jpeg", "raw": "raw"}.get(options.write_mode)
    return None if encoding is None else _natural(encoding, target)


def conform(
    cells: Ragged, options: ImageOptions, target: ImageTarget, numbers: I64
) -> tuple[Ragged, list[tuple[int, BatchplantError]]]:
    """The cells as the target stores them, and (row, error) of those that cannot be stored.

    ``numbers`` are the samples' numbers in the whole dataset; a random choice depends on nothing else.
    """
    if options.to_rgb:
        target = dataclasses.replace(target, modes=frozenset({"RGB"}))
    headers = image.probe(cells)
    want = _wanted(headers, options, numbers)
    keep = _untouched(cells, headers, want, options, target)
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
                data, shape = _store(data, shape, want[row], options, target)
            except BatchplantError as error:
                failed.append((row, error))
                data, shape = np.empty(0, dtype=np.uint8), None
        new.append(data)
        shapes.append(shape if shape and any(shape) else None)
    return Ragged.from_cells(new, shapes), failed


def _wanted(headers: Any, options: ImageOptions, numbers: I64) -> list[str | None]:
    """The encoding that each cell is to have; None: as it is."""
    rows = len(headers)
    mode = options.write_mode
    if mode in (None, "jpg", "raw"):
        return [{"jpg": "jpeg"}.get(mode or "", mode)] * rows
    if mode == "smart":
        bound = options.max_resolution or 1 << 30
        sizes = headers[:, 1:3].astype(np.float64)
        sizes *= np.minimum(1.0, bound / np.maximum(sizes.max(axis=1), 1))[:, None]
        jpeg = np.floor(sizes).prod(axis=1) * 3 > options.smart_threshold
    else:
        draws = [np.random.Philox(key=[options.seed, int(number)]).random_raw() for number in numbers]
        jpeg = np.array(draws, dtype=np.float64) < options.compress_probability * 2.0**64
    return ["jpeg" if one else "raw" for one in jpeg]


def _untouched(
    cells: Ragged, headers: Any, want: list[str | None], options: ImageOptions, target: ImageTarget
) -> Flags:
    """Which cells pass byte for byte."""
    codes = headers[:, 0]
    raw = cells.raw
    allowed = np.array([encoding in target.encodings for encoding in image.ENCODINGS])
    # A target that keeps any file keeps unknown bytes too; whether they decode is verify's question.
    allowed[0] = target.encodings >= ANY_ENCODED and target.modes is None
    keep = np.where(raw, "raw" in target.encodings, allowed[codes])
    wanted = [-1 if one is None else 0 if one == "raw" else image.ENCODINGS.index(one) for one in want]
    have = np.where(raw, 0, np.where(codes == 0, -2, codes))
    keep &= (np.array(wanted) == -1) | (have == np.array(wanted))
    if options.max_resolution is not None:
        keep &= headers[:, 1:3].max(axis=1) <= options.max_resolution
    if target.modes is not None:
        held = np.array([mode in target.modes for mode in image.MODES])[headers[:, 3]]
        # Every decoder of RGB gives a grayscale JPEG as RGB, each level three times.
        held |= (headers[:, 3] == image.MODES.index("L")) & (codes == 1) & ("RGB" in target.modes)
        keep &= held & (headers[:, 4] == 8) & (headers[:, 1:3] > 0).all(axis=1)
    if options.reencode:
        keep &= raw
    if cells.valid is not None:
        keep |= ~cells.valid
    return np.asarray(keep, dtype=np.bool_)


def _store(
    data: Any,
    shape: tuple[int, ...] | None,
    want: str | None,
    options: ImageOptions,
    target: ImageTarget,
) -> tuple[Any, tuple[int, ...] | None]:
    """One picture decoded, bounded and encoded as the target needs it."""
    source = "raw"
    if shape and any(shape):
        pixels = image.squeeze(data.reshape(shape))
        pixels = image.pixels_to_rgb(pixels) if options.to_rgb else pixels
    else:
        found = image.header(data)
        source = found.encoding
        # As pixels, CMYK is four channels like RGBA, and would be taken for it; 16 bits would be cut to 8.
        if not options.to_rgb and (found.mode == "CMYK" or (found.bits == 16 and found.mode != "I;16")):
            raise _wrong_mode(found.mode, target)
        pixels = image.to_rgb(data) if options.to_rgb else image.decode(data)
    if target.modes == frozenset({"RGB"}) and image.mode_of(pixels) == "L":
        pixels = np.repeat(pixels[:, :, None], 3, axis=2)
    pixels = image.fit(pixels, options.max_resolution)
    mode = image.mode_of(pixels)
    if target.modes is not None and mode not in target.modes:
        raise _wrong_mode(mode, target)
    encoding = want or _natural(source, target)
    if encoding not in target.encodings:
        held = ", ".join(sorted(target.encodings))
        raise EncodeError(f"this format cannot hold {encoding} pictures, only {held}")
    if encoding == "raw":
        if pixels.dtype != np.uint8:
            raise EncodeError(f"raw pictures have 8 bits a channel, and this one is {mode}; use png or tiff")
        return np.ascontiguousarray(pixels).reshape(-1), image.expand(pixels).shape
    return np.frombuffer(image.encode(pixels, encoding, quality=options.jpeg_quality), np.uint8), None


def _wrong_mode(mode: str, target: ImageTarget) -> EncodeError:
    kept = "pixels are" if target.modes is None else "the image field of this format holds"
    held = "L, LA, RGB, RGBA or I;16" if target.modes is None else " and ".join(sorted(target.modes))
    return EncodeError(
        f"the picture is {mode}, and {kept} only {held}; convert it with to_rgb (--to-rgb), skip it, "
        f"or keep the file as it is in a field Image(mode={mode!r})"
    )


def _natural(source: str, target: ImageTarget) -> str:
    """The encoding to choose when the caller named none: the same again, else lossless."""
    if source in target.encodings and source in ("jpeg", *image.LOSSLESS):
        return source
    return "raw" if "raw" in target.encodings else "png"
