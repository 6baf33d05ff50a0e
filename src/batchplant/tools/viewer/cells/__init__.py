"""Cells as the page shows them: what the JSON of each says. One module for each way of showing.

A module has ``short(cell)`` for grids and tables, cheap and small, and ``full(cell)`` for the view of one
sample, bounded. Both return what their kind needs; what all cells have (``field``, ``shows``, ``missing``,
``error``, and in full what kind it is, how large, where it lies, its first bytes) is added here.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from ....errors import BatchplantError
from ....schema.kinds import (
    Audio,
    Bool,
    Boxes,
    Bytes,
    Decimal,
    Duration,
    Field,
    Image,
    Int,
    Json,
    Labels,
    Tensor,
    Text,
    Time,
    Uuid,
    Video,
)
from . import array, boxes, image, labels, mask, plain, sound, tokens, tree, video
from .cell import Cell
from .place import place_of

# What shows a cell. What is not here is shown as plain text.
MODULES: dict[str, ModuleType] = {
    "image": image,
    "mask": mask,
    "sound": sound,
    "video": video,
    "tree": tree,
    "tokens": tokens,
    "array": array,
    "boxes": boxes,
    "labels": labels,
}
BYTES_SHOWN = 256


def shows(name: str, kind: Field) -> str:
    """How cells of a field are shown."""
    if isinstance(kind, Image):
        return "mask" if kind.mask else "image"
    for one, how in _HOW.items():
        if isinstance(kind, one):
            return how
    if isinstance(kind, Int) and kind.names:
        return "class"
    if isinstance(kind, Tensor):
        return _array(name, kind)
    return "number"


_HOW: dict[type[Field], str] = {
    Audio: "sound", Video: "video", Uuid: "text", Decimal: "number", Text: "text", Json: "tree", Time: "time",
    Duration: "time", Bool: "bool", Bytes: "bytes",
}  # fmt: skip


def _array(name: str, kind: Tensor) -> str:
    if kind.shape == ():
        return "time" if np.dtype(kind.dtype).kind in "mM" else "number"
    if isinstance(kind, Labels) and kind.names:
        return "labels"
    lower = name.lower()
    if isinstance(kind, Boxes):
        return "boxes"
    if len(kind.shape) == 2 and kind.shape[1] == 4 and ("box" in lower or "bbox" in lower):
        return "boxes"
    whole = np.dtype(kind.dtype).kind in "iu" and np.dtype(kind.dtype).itemsize > 1
    if len(kind.shape) == 1 and whole and ("token" in lower or lower.endswith("ids")):
        return "tokens"
    return "array"


def short(cell: Cell) -> dict[str, Any]:
    """A cell in a grid or a table."""
    return _told(cell, "short")


def full(cell: Cell) -> dict[str, Any]:
    """A cell in the view of its sample, and all about it."""
    kind = cell.kind
    found: dict[str, Any] = {"kind": str(kind), "optional": kind.optional}
    found |= {
        name: value
        for name in ("dtype", "shape", "encoding", "mode")
        if (value := getattr(kind, name, None)) is not None
    }
    found |= _told(cell, "full")
    if "missing" in found:
        return found
    try:
        found["place"] = place_of(cell)
        if cell.loaded or not cell.large:
            data = cell.data
            found["size"] = len(data)
            found["hex"] = data[:BYTES_SHOWN].tobytes().hex()
    except (BatchplantError, OSError, MemoryError) as error:
        found.setdefault("error", _message(error))
    return found


def _told(cell: Cell, how: str) -> dict[str, Any]:
    found: dict[str, Any] = {"field": cell.name, "shows": cell.shows}
    try:
        if cell.missing:
            return {**found, "missing": True}
        return {**found, **getattr(MODULES.get(cell.shows, plain), how)(cell)}
    except (BatchplantError, OSError, MemoryError) as error:
        return {**found, "error": _message(error)}


def _message(error: Exception) -> str:
    if isinstance(error, BatchplantError):
        # The place is where the message stands.
        return error.message
    return "it does not fit into memory" if isinstance(error, MemoryError) else str(error)


__all__ = ["MODULES", "Cell", "full", "short", "shows"]
