"""Large images for the page: a pyramid of levels, of which it gets tiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...codecs import image
from ...data.arrays import Array
from ...data.reader import Reader
from ...errors import NotFoundError, SchemaError
from ...schema.columns import U8, AnyArray
from .. import Document
from .jobs import RecentCache

TILE_PIXELS = 256
JPEG_QUALITY = 88
# Pixels along a side of the part whose values tell what is black and what is white.
RANGE_PIXELS = 1024
# Percentiles that become black and white, and how many planes of an image remember theirs.
RANGE_PERCENTILES, MAX_RANGES = (0.5, 99.5), 256


class Slide:
    """Levels of an image, and a letter for each of their axes."""

    def __init__(self, axes: str, levels: Sequence[Array]) -> None:
        self.axes, self.levels = axes, levels
        if not 0 <= axes.find("Y") < axes.find("X") or any(len(axes) != level.ndim for level in levels):
            raise SchemaError(f"an image has rows and columns, and this has the axes {axes or 'of no name'}")
        colours = levels[0].shape[axes.index("S")] if "S" in axes else 1
        # Other arrays of several values are shown one value at a time.
        self.coloured = colours in (3, 4) and levels[0].dtype == np.uint8
        self.planes = [n for n, axis in enumerate(axes) if axis not in ("YXS" if self.coloured else "YX")]
        self._ranges: RecentCache[tuple[float, float]] = RecentCache(MAX_RANGES, lambda _: 1)

    def size(self, level: int) -> tuple[int, int]:
        """Return height and width of a level."""
        shape = self.levels[level].shape
        return shape[self.axes.index("Y")], shape[self.axes.index("X")]

    def describe(self) -> Document:
        shape = self.levels[0].shape
        return {
            "levels": [self.size(level) for level in range(len(self.levels))],
            "tile": TILE_PIXELS,
            "planes": [{"name": _name(self.axes[axis]), "size": shape[axis]} for axis in self.planes],
        }

    def tile(self, level: int, row: int, column: int, at: Sequence[int]) -> bytes:
        """Return a tile as JPEG; ``at`` is the plane. NotFoundError for one that is not there."""
        if not 0 <= level < len(self.levels):
            raise NotFoundError(f"there is no level {level}; there are {len(self.levels)}")
        height, width = self.size(level)
        top, left = row * TILE_PIXELS, column * TILE_PIXELS
        if not (0 <= top < height and 0 <= left < width):
            raise NotFoundError(f"there is no tile {row}, {column} of level {level}")
        shape = self.levels[0].shape
        sizes = [shape[axis] for axis in self.planes]
        if len(at) != len(sizes) or any(not 0 <= n < size for n, size in zip(at, sizes, strict=True)):
            raise NotFoundError(f"there is no plane {tuple(at)} of {tuple(sizes)}")
        values = self._values(level, slice(top, top + TILE_PIXELS), slice(left, left + TILE_PIXELS), at)
        return image.encode(self._pixels(values, at), "jpeg", quality=JPEG_QUALITY)

    def _values(self, level: int, rows: slice, columns: slice, at: Sequence[int]) -> AnyArray:
        array, picks = self.levels[level], {self.axes.index("Y"): rows, self.axes.index("X"): columns}
        key: list[slice | int] = [picks.get(axis, slice(None)) for axis in range(array.ndim)]
        for axis, number in zip(self.planes, at, strict=True):
            # A lower level may have fewer planes.
            key[axis] = number * array.shape[axis] // self.levels[0].shape[axis]
        values = np.asarray(array[tuple(key)])
        colours = self.coloured and self.axes.index("S") < self.axes.index("X")
        return np.moveaxis(values, 0, -1) if colours else values

    def _pixels(self, values: AnyArray, at: Sequence[int]) -> U8:
        if self.coloured:
            return np.ascontiguousarray(values[..., :3])
        low, high = self._ranges.get(tuple(at), lambda: self._range(at))
        values = _real(values)
        with np.errstate(invalid="ignore", over="ignore"):
            scaled = (values - low) * (255 / (high - low if high > low else 1))
        return np.nan_to_num(scaled, nan=0, posinf=255, neginf=0).clip(0, 255).astype(np.uint8)

    def _range(self, at: Sequence[int]) -> tuple[float, float]:
        """Return the values that are black and white in a plane, of the middle of its lowest level."""
        last = len(self.levels) - 1
        rows, columns = (
            slice(max(0, (size - RANGE_PIXELS) // 2), (size + RANGE_PIXELS) // 2) for size in self.size(last)
        )
        values = _real(self._values(last, rows, columns, at))
        values = values[np.isfinite(values)]
        if not values.size:
            return 0.0, 1.0
        low, high = np.percentile(values, RANGE_PERCENTILES)
        # Few values, as of a mask, may all lie outside of the percentiles.
        return (float(low), float(high)) if low < high else (float(values.min()), float(values.max()))


def _real(values: AnyArray) -> AnyArray:
    return (np.abs(values) if values.dtype.kind == "c" else values).astype(np.float64)


def _name(axis: str) -> str:
    return {"T": "time", "C": "channel", "Z": "depth", "S": "band", "I": "page"}.get(axis, axis)


def slide_of(reader: Reader, number: int) -> Slide:
    if not 0 <= number < reader._pyramids:
        raise NotFoundError(f"there is no slide {number}; there are {reader._pyramids}")
    return Slide(*reader._pyramid_of(number))
