"""Arrays: dtype and shape; the numbers themselves where they are few. The rest comes in slices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ....schema.kinds import Field, Tensor
from ..media import slices
from . import plain

if TYPE_CHECKING:
    from .cell import Cell

# Numbers that are told one by one.
FEW = 1024
# Values along each of two axes of an array that is shown as a heat map in the grid.
FEWEST_ACROSS = 8


def short(cell: Cell) -> dict[str, Any]:
    return {**_in_words(cell), **({"map": True} if is_map(cell.kind) else {})}


def is_map(kind: Field) -> bool:
    """Whether cells are worth a small heat map: volumes, matrices, stacks of them; all of one size."""
    if not isinstance(kind, Tensor) or kind.cell is None or np.dtype(kind.dtype).kind not in "biuf":
        return False
    return sum(size is not None and size >= FEWEST_ACROSS for size in kind.shape) >= 2


def _in_words(cell: Cell) -> dict[str, Any]:
    if not cell.loaded or getattr(cell.kind, "dtype", None) is None:
        sizes = _sizes(getattr(cell.kind, "shape", ()))
        return {"text": f"{getattr(cell.kind, 'dtype', 'array')} {sizes}".strip()}
    value = np.asarray(cell.value())
    return {**plain.cut(plain.as_text(value), plain.SHORT), "shape": value.shape}


def full(cell: Cell) -> dict[str, Any]:
    found = slices.source(cell)
    told: dict[str, Any] = {
        "dtype": str(found.dtype), "shape": found.shape, "axes": slices.drawn_axes(found.shape),
        # Whether all samples together are an array, too.
        "every": cell.kind.cell is not None and len(cell.side.reader) > 1,
    }  # fmt: skip
    if math.prod(found.shape) <= FEW:
        told["values"] = _told(np.asarray(found.take((slice(None),) * len(found.shape))))
    return told


def _told(values: Any) -> list[Any]:
    flat = values.reshape(-1)
    if flat.dtype.kind in "cmMV":
        return [str(one) for one in flat]
    # Floats as many digits as they have, whole numbers beyond what JavaScript counts as text.
    if flat.dtype.kind == "f":
        return [float(str(one)) for one in flat]
    return [one if abs(int(one)) < plain.EXACT else str(one) for one in flat.tolist()]


def _sizes(shape: Any) -> str:
    return "×".join("?" if size is None else str(size) for size in shape)
