"""Images for the browser: sheets of thumbnails by the native engine, or a single image of any encoding."""

from __future__ import annotations

import functools
import struct
import threading
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _native
from ...codecs import image
from ...errors import BatchplantError, DecodeError
from ...loading.images import locate, turns_of
from ...schema.columns import I64, U8, AnyArray
from ...schema.kinds import Image
from ...storage import limits
from ...storage.platform import cpu_count
from .. import Document
from .cells import Cell, Dataset, cells_of

# A JPEG, and the errors of some of its tiles by position.
Sheet = tuple[bytes, dict[int, str]]

# Tiles side by side in a sheet.
SHEET_COLUMNS = 10
# Grey of tiles without an image, visible on light and dark pages.
BACKGROUND_GREY = 128
MAX_THREADS = 4
# Status of an image that the engine leaves to other decoders.
STATUS_NOT_NATIVE = 2
# Encodings that browsers show.
BROWSER_MEDIA_TYPES = {
    "jpeg": "image/jpeg",
    "png": "image/png",
    "webp": "image/webp",
    "gif": "image/gif",
    "bmp": "image/bmp",
}


class Images:
    """Makes thumbnails with an engine of a few threads, which starts with the first sheet."""

    def __init__(self) -> None:
        self._engine: _native.Engine | None = None
        self._lock = threading.Lock()
        # The engine makes one sheet after the other anyway; waiting requests then need no memory.
        self._sheets = threading.BoundedSemaphore(2)
        self._closed = False

    @property
    def engine(self) -> _native.Engine:
        with self._lock:
            if self._closed:
                raise BatchplantError("the viewer was closed")
            if self._engine is None:
                self._engine = _native.Engine(max(1, min(MAX_THREADS, cpu_count())))
            return self._engine

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._engine is not None:
                self._engine.close()

    def sheet(self, dataset: Dataset, field: str, samples: I64, size: int) -> Sheet:
        """Return one JPEG with the tiles of these samples, and the errors of some of them by position."""
        with self._sheets:
            tiles, errors = self.tiles(dataset, field, samples, size)
            return _sheet(tiles), errors

    def tiles(self, dataset: Dataset, field: str, samples: I64, size: int) -> tuple[U8, dict[int, str]]:
        """Return images stretched to squares, (n, size, size, 3), and the errors of some by position."""
        out = np.full((len(samples), size, size, 3), BACKGROUND_GREY, dtype=np.uint8)
        if dataset.reader.schema[field].kind != "image":
            raise DecodeError(f"there are no images in {field!r}", path=dataset.reader.path)
        errors: dict[int, str] = {}
        rows = self._native(dataset, field, samples, out, errors)
        # Images that the engine cannot decode, or all of them if they cannot be read together.
        for row, cells in zip(rows, cells_of(dataset, samples[rows].tolist(), [field]), strict=True):
            try:
                if not cells[field].missing:
                    out[row] = _square(to_grey_or_rgb(cells[field]), size)
            except (BatchplantError, OSError, MemoryError) as error:
                errors[int(row)] = getattr(error, "message", None) or str(error)
        return out, errors

    def _native(
        self, dataset: Dataset, field: str, samples: I64, out: U8, errors_by_row: dict[int, str]
    ) -> I64:
        """Fill in the images that the engine decodes; return the rows of the others."""
        kind = dataset.reader.schema[field]
        if not isinstance(kind, Image) or kind.mask or kind.mode not in ("RGB", "L", None):
            return np.arange(len(samples))
        try:
            cells = locate(dataset.reader, field, samples)
            present = np.flatnonzero(cells.size > 0)
            cells = cells.take(present)
            decoded = np.empty((len(present), *out.shape[1:]), dtype=np.uint8)
            status, errors, _ = self.engine.decode(
                cells.bases, cells.base, cells.start, cells.size, cells.shape, None, None, decoded,
                layout="nhwc", filter="area", dct="fast", fast_scale=True, orient=turns_of(cells), mode="RGB",
                most_pixels=limits.max_pixels(),
            )  # fmt: skip
        except (BatchplantError, OSError, MemoryError, ValueError, IndexError):
            return np.arange(len(samples))
        for row, pixels in zip(present[status == 0], decoded[status == 0], strict=True):
            out[row] = pixels
        errors_by_row.update({int(present[row]): message for row, message in errors})
        return np.asarray(present[status == STATUS_NOT_NATIVE])


def _sheet(tiles: U8) -> bytes:
    count, size = tiles.shape[:2]
    width = min(count, SHEET_COLUMNS)
    full_rows, last_row = divmod(count, width)
    grid = np.full((full_rows + bool(last_row), size, width, size, 3), BACKGROUND_GREY, dtype=np.uint8)
    grid[:full_rows] = tiles[: full_rows * width].reshape(full_rows, width, size, size, 3).swapaxes(1, 2)
    if last_row:
        grid[full_rows, :, :last_row] = tiles[full_rows * width :].swapaxes(0, 1)
    return image.encode(grid.reshape(len(grid) * size, width * size, 3), "jpeg", quality=85)


def to_grey_or_rgb(cell: Cell) -> U8:
    """Return an image as 8-bit grey or RGB, upright. Other values are stretched to 0…255."""
    raw = cell.pixels_shape
    if cell.shows == "mask":
        return colour_classes(classes(cell.value()))[..., :3]
    if raw is None and image.header(cell.data).mode == "CMYK":
        return np.asarray(image.to_rgb(cell.data), dtype=np.uint8)
    pixels = np.asarray(cell.value())
    if raw is None:
        pixels = image.orient(image.expand(pixels), image.orientation(cell.data))
    return _as_bytes(image.expand(pixels))


def _as_bytes(pixels: AnyArray) -> U8:
    channels = pixels.shape[2]
    if channels == 2:
        # Grey and alpha.
        pixels = pixels[..., :1]
    elif channels == 4 and pixels.dtype == np.uint8:
        alpha = pixels[..., 3:].astype(np.uint16)
        pixels = ((pixels[..., :3] * alpha + BACKGROUND_GREY * (255 - alpha)) // 255).astype(np.uint8)
    elif channels > 3:
        pixels = pixels[..., :3]
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype == np.bool_:
        return pixels.astype(np.uint8) * 255
    if pixels.dtype == np.uint16 and pixels.size and pixels.max() > 4095:
        return (pixels >> 8).astype(np.uint8)
    return stretch_to_bytes(pixels)


def stretch_to_bytes(values: AnyArray) -> U8:
    """Map numbers to 0 … 255, from the least to the largest; numbers that are not finite to 0."""
    finite = np.isfinite(values)
    good = values[finite]
    if not good.size:
        return np.zeros(values.shape, dtype=np.uint8)
    low, high = float(good.min()), float(good.max())
    scale = 255 / (high - low) if high > low else 0.0
    with np.errstate(all="ignore"):
        scaled = (np.where(finite, values, low).astype(np.float64) - low) * scale
    return np.asarray(scaled.clip(0, 255), dtype=np.uint8)


def _square(pixels: U8, size: int) -> U8:
    pixels = image.fit(pixels, 4 * size)
    rows, columns = (((np.arange(size) + 0.5) * old / size).astype(np.int64) for old in pixels.shape[:2])
    square = image.expand(pixels)[rows][:, columns]
    return np.broadcast_to(square, (size, size, 3)) if square.shape[2] == 1 else square


def for_browser(cell: Cell, longest: int) -> tuple[bytes, str]:
    """Return an image and its media type: the stored bytes if browsers show them and they are small."""
    raw = cell.pixels_shape
    if raw is None and cell.shows != "mask":
        data = cell.data
        header = image.header(data)
        image.check(header, data)
        # Browsers disagree on the colours of CMYK and on 16 bits.
        plain = header.encoding in BROWSER_MEDIA_TYPES and header.mode != "CMYK" and header.bits <= 8
        if plain and max(header.width, header.height) <= longest:
            return data.tobytes(), BROWSER_MEDIA_TYPES[header.encoding]
    pixels = image.fit(to_grey_or_rgb(cell), longest)
    # JPEG would smear the hard edges of small images.
    if max(pixels.shape[:2]) <= 256:
        return image.encode(image.squeeze(pixels), "png"), "image/png"
    return image.encode(image.squeeze(pixels), "jpeg", quality=92), "image/jpeg"


# -- colours of numbers and classes: page/colours.js has the same --------------------------------------

# Colour map from low to high, of increasing lightness so that it also reads in grey.
COLOUR_MAP_STOPS = ((20, 14, 46), (44, 40, 110), (32, 92, 140), (26, 142, 134), (96, 190, 98), (250, 226, 90))
# Colours of the first classes, as distinct as possible; later classes go around the wheel of hues.
CLASS_COLOURS = (
    (230, 70, 60), (70, 130, 230), (245, 200, 50), (60, 180, 90), (190, 90, 220), (250, 150, 50),
    (70, 210, 220), (240, 130, 190), (160, 120, 80), (160, 220, 70), (100, 90, 200), (200, 200, 200),
)  # fmt: skip
# Fraction of a turn between the hues of consecutive classes.
GOLDEN_RATIO = 0.618033988749895
# Classes that a legend lists, and pixels along the longer side of a coloured mask.
MAX_LEGEND_CLASSES, MAX_MASK_PIXELS = 64, 2048


@functools.cache
def colour_map() -> U8:
    """Return 256 colours from low to high."""
    stops = np.array(COLOUR_MAP_STOPS)
    positions = np.linspace(0, len(stops) - 1, 256)
    channels = [np.interp(positions, range(len(stops)), stops[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=1).round().astype(np.uint8)


def colours_of_values(values: npt.NDArray[np.floating], low: float, high: float) -> U8:
    """Return the colour of each value; values that are not finite get the lowest."""
    scaled = (values - low) * (255 / (high - low if high > low else 1.0))
    levels = np.nan_to_num(scaled, nan=0, posinf=255, neginf=0).clip(0, 255).astype(np.uint8)
    return np.asarray(colour_map()[levels])


@functools.lru_cache(maxsize=4096)
def colour_of_class(number: int) -> tuple[int, int, int]:
    """Return the colour of a class; 0 is black because it usually is the background."""
    if number == 0:
        return 0, 0, 0
    if 0 < number <= len(CLASS_COLOURS):
        return CLASS_COLOURS[number - 1]
    hue = (number * GOLDEN_RATIO) % 1.0 * 6
    # Three levels of lightness tell apart classes with similar hues.
    light, dark = ((235, 60), (200, 20), (255, 130))[number % 3]
    middle = int(light - abs(hue % 2 - 1) * (light - dark))
    red, green, blue = (
        (light, middle, dark), (middle, light, dark), (dark, light, middle),
        (dark, middle, light), (middle, dark, light), (light, dark, middle),
    )[int(hue) % 6]  # fmt: skip
    return red, green, blue


# Number of channels to PNG's colour type.
PNG_COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}


def encode_png(pixels: AnyArray) -> bytes:
    """Encode 8-bit pixels (height, width[, channels]) without filters: these images are small."""
    array = np.ascontiguousarray(pixels[:, :, None] if pixels.ndim == 2 else pixels, dtype=np.uint8)
    height, width, channels = array.shape
    # Every row begins with the number of its filter: 0 is none.
    rows = np.zeros((height, 1 + width * channels), dtype=np.uint8)
    rows[:, 1:] = array.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, PNG_COLOUR_TYPES[channels], 0, 0, 0)
    body = zlib.compress(rows.tobytes(), 1)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def classes(value: Any) -> npt.NDArray[np.int64]:
    """Return the class of each pixel (height, width); of a stack of masks, the first that covers it."""
    array = np.asarray(value)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.dtype.kind not in "biu":
        raise DecodeError(f"values of {array.dtype} are no classes")
    if array.ndim == 2:
        return array.astype(np.int64)
    if array.ndim != 3:
        raise DecodeError(f"an array of shape {array.shape} is no mask")
    if array.shape[2] in (3, 4) and array.shape[0] > 4:
        # Classes are coded as colours.
        packed = array[:, :, :3].astype(np.int64)
        return (packed[:, :, 0] << 16) | (packed[:, :, 1] << 8) | packed[:, :, 2]
    covered = array != 0
    return np.where(covered.any(axis=0), covered.argmax(axis=0) + 1, 0)


def legend(mask: npt.NDArray[np.int64], names: tuple[str, ...] = ()) -> list[Document]:
    """List the classes of a mask, the one with the most pixels first."""
    values, counts = np.unique(mask, return_counts=True)
    largest = np.argsort(-counts, kind="stable")[:MAX_LEGEND_CLASSES]
    return [
        {
            "class": number, "share": int(counts[position]) / mask.size,
            "colour": "#{:02x}{:02x}{:02x}".format(*colour_of_class(number)),
            **({"name": names[number]} if 0 <= number < len(names) else {}),
        }
        for position in largest.tolist()
        for number in [int(values[position])]
    ]  # fmt: skip


def colour_classes(mask: npt.NDArray[np.int64], longest: int = MAX_MASK_PIXELS, *, over: bool = False) -> U8:
    """Return RGBA pixels, no side longer than ``longest``; with ``over`` class 0 is transparent."""
    step = max(1, -(-max(mask.shape, default=1) // longest))
    small = mask[::step, ::step]
    values, inverse = np.unique(small, return_inverse=True)
    table = np.array(
        [(*colour_of_class(int(value)), 0 if over and value == 0 else 255) for value in values],
        dtype=np.uint8,
    )
    return table.reshape(-1, 4)[inverse].reshape(*small.shape, 4)
