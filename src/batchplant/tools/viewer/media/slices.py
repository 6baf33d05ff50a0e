"""Two axes of an array at a time, small enough to draw: only what is shown is read."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ....data.arrays import Array
from ....data.tensors import as_array, is_tensors, shape_of, text_of
from ....errors import BatchplantError, OptionError
from ....schema.kinds import Tensor

if TYPE_CHECKING:
    from ..cells.cell import Cell

# Values along an axis that are drawn; of longer ones every second, third, … is.
ACROSS = 512
# Values of one axis alone; more become the lowest and the highest of each part.
ALONG = 2048
# Values of the axis that are looked at for that.
MOST_ALONG = 1 << 24


@dataclasses.dataclass(frozen=True)
class Source:
    """An array that is not in memory yet. ``axes`` are names, empty where they have none."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    take: Callable[[tuple[Any, ...]], npt.NDArray[Any]]
    axes: tuple[str, ...] = ()


def source(cell: Cell, *, every: bool = False) -> Source:
    """The array of a cell; ``every``: of all samples, one above the other."""
    reader = cell.side.reader
    if cell.name == "data" and is_tensors(reader.schema):
        columns = reader.read([cell.sample], ["dtype", "shape"])
        dtype, shape = text_of(columns["dtype"], 0), shape_of(columns["shape"], 0)
        return _of_values(_named(cell, lambda: as_array(dtype, shape, cell.data)))
    if not isinstance(cell.kind, Tensor):
        value = _named(cell, lambda: np.asarray(cell.value()))
        if value.dtype.kind not in "biufcmM":
            raise OptionError(f"{cell.kind} is no array of numbers")
        return _of_values(value)
    if cell.kind.cell is None:
        if every:
            raise OptionError("arrays of different shapes, or some that are missing, are not one array")
        return _of_values(np.asarray(cell.value()))
    whole: Array = reader.array(cell.name)
    if every:
        return Source(whole.shape, whole.dtype, lambda key: np.asarray(whole[key]), ("sample",))
    return Source(whole.shape[1:], whole.dtype, lambda key: np.asarray(whole[(cell.sample, *key)]))


def _named(cell: Cell, make: Callable[[], npt.NDArray[Any]]) -> npt.NDArray[Any]:
    try:
        return make()
    except BatchplantError as error:
        raise error.at(path=cell.side.reader.path, sample=cell.sample, field=cell.name) from None


def _of_values(values: npt.NDArray[Any]) -> Source:
    return Source(values.shape, values.dtype, lambda key: values[key])


def drawn_axes(shape: Sequence[int]) -> tuple[int, ...]:
    """The axes to begin with: the last two that are longer than a few channels, rows before columns."""
    wide = [axis for axis, size in enumerate(shape) if size > 4]
    narrow = [axis for axis, size in enumerate(shape) if 1 < size <= 4]
    axes = (narrow[len(wide) - 2 :] if len(wide) < 2 else []) + wide[-2:]
    return tuple(sorted(axes)) or tuple(range(len(shape)))[-2:]


def take(source: Source, axes: Sequence[int], at: Sequence[int]) -> tuple[dict[str, Any], bytes]:
    """Facts about a slice along one or two axes, at a place of each other one; and its values, row by row.

    Values are float32 where that is exact enough, else float64, both little-endian. Of one long axis they are
    the lowest of each part and then the highest.
    """
    shape = source.shape
    if (
        len(axes) not in (0, 1, 2)
        or len(set(axes)) != len(axes)
        or any(not 0 <= one < len(shape) for one in axes)
    ):
        raise OptionError(f"one or two different axes of {len(shape)} can be drawn")
    if len(at) != len(shape) or any(not 0 <= one < max(1, size) for one, size in zip(at, shape, strict=True)):
        raise OptionError("there is no such slice")
    most = MOST_ALONG if len(axes) == 1 else ACROSS
    steps = {axis: max(1, math.ceil(shape[axis] / most)) for axis in axes}
    empty = 0 in shape
    key = tuple(
        slice(None, None, steps[axis]) if axis in steps else (slice(0, 0) if empty else at[axis])
        for axis in range(len(shape))
    )
    values = _plain(source.take(key)).reshape(
        [-(-shape[axis] // steps[axis]) for axis in axes] if not empty else (0,)
    )
    if len(axes) == 2 and axes[0] > axes[1]:
        # NumPy keeps axes in their order.
        values = values.reshape([-(-shape[axis] // steps[axis]) for axis in sorted(axes)]).T
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    facts: dict[str, Any] = {
        "shape": list(values.shape), "steps": [steps[axis] for axis in axes], "values": int(values.size),
        "low": _number(finite.min()) if finite.size else None,
        "high": _number(finite.max()) if finite.size else None,
        "mean": _number(finite.mean()) if finite.size else None,
        "odd": int(values.size - finite.size),
    }  # fmt: skip
    if len(axes) == 1 and values.size > ALONG:
        edges = np.arange(ALONG) * values.size // ALONG
        values = np.stack([np.minimum.reduceat(values, edges), np.maximum.reduceat(values, edges)])
        facts["peaks"] = True
        facts["shape"] = [ALONG]
    exact = (values.dtype.kind == "f" and values.dtype.itemsize <= 4) or values.dtype.itemsize <= 2
    facts["type"] = "f4" if exact else "f8"
    return facts, np.ascontiguousarray(values, dtype="<f4" if exact else "<f8").tobytes()


def _plain(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Numbers that can be compared: of complex ones their size, of times their count."""
    kind = values.dtype.kind
    if kind == "c":
        return np.asarray(np.abs(values))
    if kind in "mM":
        return values.view(np.int64).astype(np.float64)
    if kind == "V":
        # The dtypes that NumPy lacks.
        return values.astype(np.float32)
    return values.astype(np.uint8) if kind == "b" else values


def _number(value: Any) -> int | float:
    found: int | float = value.item()
    return found
