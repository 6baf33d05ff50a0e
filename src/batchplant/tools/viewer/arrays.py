"""Arrays: slices that are small enough to draw, statistics, and the tensors of a model.

Only the values that are needed are read.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ...codecs import image
from ...data.arrays import Array
from ...data.reader import Reader
from ...data.tensors import as_array, is_tensors, shape_of, size_of, text_of
from ...errors import BatchplantError, NotFoundError, OptionError, SchemaError, located
from ...schema.columns import U8, AnyArray, AnyDType, Columns
from ...schema.kinds import Sparse, Tensor
from ...storage import limits
from .. import Document
from .cells import Cell, Progress

# Values along each of two axes that are drawn; a longer axis is thinned.
MAX_IMAGE_SIDE = 512
# Points of a curve; more values become the minimum and maximum of each part.
MAX_CURVE_POINTS = 2048
# Values that are read for a curve; a longer axis is thinned.
MAX_CURVE_VALUES = 1 << 24
# Values that statistics hold in memory at a time.
MAX_CHUNK_VALUES = 1 << 22
HISTOGRAM_BINS = 64
# Tensors whose names and shapes are read together.
READ_TENSORS = 2048
SORT_KEYS = ("name", "dtype", "parameters", "bytes")


@dataclasses.dataclass(frozen=True)
class LazyArray:
    """An array that ``take`` reads slices of. ``axes`` are names, empty where they have none."""

    shape: tuple[int, ...]
    dtype: AnyDType
    take: Callable[[tuple[Any, ...]], AnyArray]
    axes: tuple[str, ...] = ()


def lazy_array(cell: Cell, *, every: bool = False) -> LazyArray:
    """Return the array of a cell; with ``every`` the cells of all samples, stacked."""
    reader = cell.dataset.reader
    if cell.name == "data" and is_tensors(reader.schema):
        columns = reader.read([cell.sample], ["dtype", "shape"])
        dtype, shape = text_of(columns["dtype"], 0), shape_of(columns["shape"], 0)
        return _in_memory(_with_location(cell, lambda: as_array(dtype, shape, cell.data)))
    if not isinstance(cell.kind, Tensor):
        value = _with_location(cell, lambda: _dense(cell))
        if value.dtype.kind not in "biufcmM":
            raise OptionError(f"{cell.kind} is no array of numbers")
        return _in_memory(value)
    volume = None if every else reader._cell_array(cell.name, cell.sample)
    if volume is not None:
        return LazyArray(volume.shape, volume.dtype, lambda key: np.asarray(volume[key]))
    if cell.kind.cell is None:
        if every:
            raise OptionError("arrays of different shapes, or some that are missing, are not one array")
        return _in_memory(np.asarray(cell.value()))
    array: Array = reader.array(cell.name)
    if every:
        return LazyArray(array.shape, array.dtype, lambda key: np.asarray(array[key]), ("sample",))
    return LazyArray(array.shape[1:], array.dtype, lambda key: np.asarray(array[(cell.sample, *key)]))


def _dense(cell: Cell) -> AnyArray:
    """Return the value of a cell; of a row of a sparse matrix all columns."""
    value = cell.value()
    if not isinstance(cell.kind, Sparse):
        return np.asarray(value)
    limits.check("all columns of a row", cell.kind.shape[0] * np.dtype(cell.kind.dtype).itemsize)
    row = np.zeros(cell.kind.shape, cell.kind.dtype)
    np.add.at(row, value.indices, value.values)
    return row


def _with_location(cell: Cell, make: Callable[[], AnyArray]) -> AnyArray:
    with located(path=cell.dataset.reader.path, sample=cell.sample, field=cell.name):
        return make()


def _in_memory(values: AnyArray) -> LazyArray:
    return LazyArray(values.shape, values.dtype, lambda key: values[key])


def default_axes(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the axes to draw first: the last two that are longer than a few channels."""
    wide = [axis for axis, size in enumerate(shape) if size > 4]
    narrow = [axis for axis, size in enumerate(shape) if 1 < size <= 4]
    axes = (narrow[len(wide) - 2 :] if len(wide) < 2 else []) + wide[-2:]
    return tuple(sorted(axes)) or tuple(range(len(shape)))[-2:]


def slice_of(source: LazyArray, axes: Sequence[int], position: Sequence[int]) -> tuple[Document, bytes]:
    """Return facts about a slice along one or two axes, at a position of the others, and its values as bytes.

    Values are float32 where that is exact enough, else float64, both little-endian. For one long axis they
    are the minimum of each part, then the maximum of each.
    """
    shape = source.shape
    if len(axes) > 2 or len(set(axes)) != len(axes) or not set(axes) <= set(range(len(shape))):
        raise OptionError(f"one or two different axes of {len(shape)} can be drawn")
    if len(position) != len(shape) or any(
        not 0 <= index < max(1, size) for index, size in zip(position, shape, strict=True)
    ):
        raise OptionError("there is no such slice")
    max_values = MAX_CURVE_VALUES if len(axes) == 1 else MAX_IMAGE_SIDE
    steps = {axis: max(1, math.ceil(shape[axis] / max_values)) for axis in axes}
    empty = 0 in shape
    key = tuple(
        slice(None, None, steps[axis]) if axis in steps else (slice(0, 0) if empty else position[axis])
        for axis in range(len(shape))
    )
    values = _plain(source.take(key)).reshape(
        [-(-shape[axis] // steps[axis]) for axis in axes] if not empty else (0,)
    )
    if len(axes) == 2 and axes[0] > axes[1]:
        # NumPy keeps axes in their order.
        values = values.reshape([-(-shape[axis] // steps[axis]) for axis in sorted(axes)]).T
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    facts: Document = {
        "shape": list(values.shape), "steps": [steps[axis] for axis in axes], "values": int(values.size),
        "low": finite.min().item() if finite.size else None,
        "high": finite.max().item() if finite.size else None,
        "mean": finite.mean().item() if finite.size else None,
        "odd": int(values.size - finite.size),
    }  # fmt: skip
    if len(axes) == 1 and values.size > MAX_CURVE_POINTS:
        edges = np.arange(MAX_CURVE_POINTS) * values.size // MAX_CURVE_POINTS
        values = np.stack([np.minimum.reduceat(values, edges), np.maximum.reduceat(values, edges)])
        facts["peaks"] = True
        facts["shape"] = [MAX_CURVE_POINTS]
    exact = (values.dtype.kind == "f" and values.dtype.itemsize <= 4) or values.dtype.itemsize <= 2
    facts["type"] = "f4" if exact else "f8"
    return facts, np.ascontiguousarray(values, dtype="<f4" if exact else "<f8").tobytes()


def _plain(values: AnyArray) -> AnyArray:
    """Return comparable numbers: magnitudes of complex numbers, counts of times."""
    kind = values.dtype.kind
    if kind == "c":
        return np.asarray(np.abs(values))
    if kind in "mM":
        return values.view(np.int64).astype(np.float64)
    if kind == "V":
        # Dtypes that NumPy lacks, such as bfloat16.
        return values.astype(np.float32)
    return values.astype(np.uint8) if kind == "b" else values


# -- statistics ----------------------------------------------------------------------------------------


def statistics(
    source: LazyArray, progress: Progress = lambda done, of: None, chunk_values: int = MAX_CHUNK_VALUES
) -> Document:
    """Return statistics of all values; a second pass makes the histogram."""
    keys = list(chunks(source.shape, chunk_values))
    count, total, squares, zeros, odd = 0, 0.0, 0.0, 0, 0
    low, high = math.inf, -math.inf
    # Sums are shifted by the first value, so that no digits are lost where all values are far from zero.
    shift: float | None = None
    with np.errstate(over="ignore", invalid="ignore"):
        for step, key in enumerate(keys):
            progress(step, 2 * len(keys))
            values = _as_floats(source.take(key))
            finite = values[np.isfinite(values)]
            odd += values.size - finite.size
            zeros += int((finite == 0).sum())
            if not finite.size:
                continue
            shift = float(finite[0]) if shift is None else shift
            shifted = finite - shift
            count += finite.size
            total += float(shifted.sum())
            squares += float(np.square(shifted).sum())
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    summary: Document = {"values": math.prod(source.shape), "zeros": zeros, "not_finite": odd}
    if shift is None:
        return summary
    mean = total / count
    summary |= {
        "low": low, "high": high, "mean": shift + mean,
        "spread": math.sqrt(max(0.0, squares / count - mean * mean)) if math.isfinite(squares) else math.inf,
    }  # fmt: skip
    if not math.isfinite(high - low):
        return summary
    counts = np.zeros(HISTOGRAM_BINS, dtype=np.int64)
    bounds = (low, high) if high > low else (low - 0.5, high + 0.5)
    edges = np.linspace(*bounds, HISTOGRAM_BINS + 1)
    for step, key in enumerate(keys):
        progress(len(keys) + step, 2 * len(keys))
        values = _as_floats(source.take(key))
        counts += np.histogram(values[np.isfinite(values)], edges)[0]
    return summary | {"histogram": {"edges": edges.tolist(), "counts": counts.tolist()}}


def chunks(shape: tuple[int, ...], max_values: int) -> Iterator[tuple[Any, ...]]:
    """Yield slices of at most ``max_values`` values that together cover an array."""
    if 0 in shape:
        return
    # The axis to cut: later axes are taken completely, earlier ones index by index.
    cut = next((axis for axis in range(len(shape)) if math.prod(shape[axis + 1 :]) <= max_values), None)
    if cut is None:
        yield ()
        return
    step = max(1, max_values // math.prod(shape[cut + 1 :]))
    for prefix in itertools.product(*(range(size) for size in shape[:cut])):
        for start in range(0, shape[cut], step):
            yield *prefix, slice(start, start + step)


def _as_floats(values: AnyArray) -> npt.NDArray[np.float64]:
    if values.dtype.kind == "c":
        values = np.abs(values)
    return np.asarray(values.view(np.int64) if values.dtype.kind in "mM" else values, dtype=np.float64)


# -- tensors of a model --------------------------------------------------------------------------------


def list_tensors(reader: Reader, progress: Progress) -> list[Document]:
    """Return name, dtype, shape, parameters and bytes of all tensors, without reading their values."""
    rows = []
    for start in range(0, len(reader), READ_TENSORS):
        progress(start, len(reader))
        samples = range(start, min(start + READ_TENSORS, len(reader)))
        columns = reader.read(samples, ["name", "dtype", "shape"])
        rows += [{"sample": sample, **_tensor(columns, row)} for row, sample in enumerate(samples)]
    return rows


def _tensor(columns: Columns, row: int) -> Document:
    try:
        name, dtype = text_of(columns["name"], row), text_of(columns["dtype"], row)
        shape = shape_of(columns["shape"], row)
        return {
            "name": name, "dtype": dtype, "shape": list(shape), "parameters": math.prod(shape),
            "bytes": size_of(dtype, shape),
        }  # fmt: skip
    except BatchplantError as error:
        return {"name": "", "dtype": "", "shape": [], "parameters": 0, "bytes": 0, "error": error.message}


def select_tensors(
    rows: list[Document], search: str, sort: str, down: bool, start: int, count: int
) -> Document:
    """Return a page of the tensors with this text in their name, and the totals of all of them."""
    lower = search.lower()
    matches = [row for row in rows if lower in row["name"].lower()] if lower else rows
    if sort in SORT_KEYS:
        matches = sorted(matches, key=lambda item: item[sort], reverse=down)
    dtypes, counts = np.unique([row["dtype"] for row in matches], return_counts=True)
    return {
        "tensors": matches[start : start + count], "count": len(matches), "of": len(rows),
        "parameters": sum(row["parameters"] for row in matches),
        "bytes": sum(row["bytes"] for row in matches),
        "dtypes": dict(zip(dtypes.tolist(), counts.tolist(), strict=True)),
    }  # fmt: skip


# -- large images: a pyramid of levels, of which the page gets tiles -----------------------------------

TILE_PIXELS = 256
AXIS_NAMES = {"T": "time", "C": "channel", "Z": "depth", "S": "band", "I": "page"}
# Pixels along a side of the part whose values tell what is black and what is white.
RANGE_PIXELS = 1024
# Percentiles that become black and white, and how many planes of an image remember theirs.
RANGE_PERCENTILES, MAX_RANGES = (0.5, 99.5), 256


class Slide:
    """Levels of an image, and a letter for each of their axes."""

    # About what its directories and chunks take in memory.
    nbytes: ClassVar[int] = 16 << 20

    def __init__(self, axes: str, levels: Sequence[Array]) -> None:
        self.axes, self.levels = axes, levels
        if not 0 <= axes.find("Y") < axes.find("X") or any(len(axes) != level.ndim for level in levels):
            raise SchemaError(f"an image has rows and columns, and this has the axes {axes or 'of no name'}")
        colours = levels[0].shape[axes.index("S")] if "S" in axes else 1
        # Other arrays of several values are shown one value at a time.
        self.coloured = colours in (3, 4) and levels[0].dtype == np.uint8
        self.planes = [n for n, axis in enumerate(axes) if axis not in ("YXS" if self.coloured else "YX")]
        self._range = functools.lru_cache(MAX_RANGES)(self._find_range)

    def size(self, level: int) -> tuple[int, int]:
        """Return height and width of a level."""
        shape = self.levels[level].shape
        return shape[self.axes.index("Y")], shape[self.axes.index("X")]

    def describe(self) -> Document:
        shape = self.levels[0].shape
        return {
            "levels": [self.size(level) for level in range(len(self.levels))],
            "tile": TILE_PIXELS,
            "planes": [
                {"name": AXIS_NAMES.get(self.axes[axis], self.axes[axis]), "size": shape[axis]}
                for axis in self.planes
            ],
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
        return image.encode(self._pixels(values, at), "jpeg", quality=88)

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
        low, high = self._range(tuple(at))
        values = _real(values)
        with np.errstate(invalid="ignore", over="ignore"):
            scaled = (values - low) * (255 / (high - low if high > low else 1))
        return np.nan_to_num(scaled, nan=0, posinf=255, neginf=0).clip(0, 255).astype(np.uint8)

    def _find_range(self, at: Sequence[int]) -> tuple[float, float]:
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


def slide_of(reader: Reader, number: int) -> Slide:
    if not 0 <= number < reader._pyramids:
        raise NotFoundError(f"there is no slide {number}; there are {reader._pyramids}")
    return Slide(*reader._pyramid_of(number))
