"""Arrays: slices that are small enough to draw, statistics, and the tensors of a model.

Only the values that are needed are read.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ....data.arrays import Array
from ....data.reader import Reader
from ....data.tensors import as_array, is_tensors, shape_of, size_of, text_of
from ....errors import BatchplantError, OptionError, located
from ....schema.columns import I64, AnyArray, AnyDType, Columns
from ....schema.kinds import Sparse, Tensor
from ....storage import limits
from ... import Document
from ..cells import Cell
from ..jobs import Progress

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
    if (
        len(axes) not in (0, 1, 2)
        or len(set(axes)) != len(axes)
        or any(not 0 <= axis < len(shape) for axis in axes)
    ):
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
        "low": _number(finite.min()) if finite.size else None,
        "high": _number(finite.max()) if finite.size else None,
        "mean": _number(finite.mean()) if finite.size else None,
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


def _number(value: np.generic) -> int | float:
    return value.item()


# -- statistics ----------------------------------------------------------------------------------------------


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


# -- tensors of a model --------------------------------------------------------------------------------------


def list_tensors(reader: Reader, samples: I64, progress: Progress) -> list[Document]:
    """Return name, dtype, shape, parameters and bytes of these tensors, without reading their values."""
    rows = []
    for start in range(0, len(samples), READ_TENSORS):
        progress(start, len(samples))
        chunk = samples[start : start + READ_TENSORS]
        columns = reader.read(chunk, ["name", "dtype", "shape"])
        for row, sample in enumerate(chunk.tolist()):
            rows.append({"sample": sample, **_tensor(columns, row)})
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
