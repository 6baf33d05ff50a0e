"""Colours of numbers and classes, and PNG files made of them. ``page/colours.js`` has the same colours."""

from __future__ import annotations

import functools
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from ....errors import DecodeError
from ....schema.columns import U8, AnyArray
from ... import Document

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
MAX_LEGEND_CLASSES, MAX_SIDE_PIXELS = 64, 2048


@functools.cache
def colour_map() -> U8:
    """Return 256 colours from low to high."""
    stops = np.array(COLOUR_MAP_STOPS)
    positions = np.linspace(0, len(stops) - 1, 256)
    channels = [np.interp(positions, range(len(stops)), stops[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=1).round().astype(np.uint8)


def of_values(values: npt.NDArray[np.floating], low: float, high: float) -> U8:
    """Return the colour of each value; values that are not finite get the lowest."""
    scaled = (values - low) * (255 / (high - low if high > low else 1.0))
    levels = np.nan_to_num(scaled, nan=0, posinf=255, neginf=0).clip(0, 255).astype(np.uint8)
    return np.asarray(colour_map()[levels])


@functools.lru_cache(maxsize=4096)
def of_class(number: int) -> tuple[int, int, int]:
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


def css(colour: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


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
            "colour": css(of_class(number)),
            **({"name": names[number]} if 0 <= number < len(names) else {}),
        }
        for position in largest.tolist()
        for number in [int(values[position])]
    ]  # fmt: skip


def colour_classes(mask: npt.NDArray[np.int64], longest: int = MAX_SIDE_PIXELS, *, over: bool = False) -> U8:
    """Return RGBA pixels, no side longer than ``longest``; with ``over`` class 0 is transparent."""
    step = max(1, -(-max(mask.shape, default=1) // longest))
    small = mask[::step, ::step]
    values, inverse = np.unique(small, return_inverse=True)
    table = np.array(
        [(*of_class(int(value)), 0 if over and value == 0 else 255) for value in values], dtype=np.uint8
    )
    return table.reshape(-1, 4)[inverse].reshape(*small.shape, 4)
