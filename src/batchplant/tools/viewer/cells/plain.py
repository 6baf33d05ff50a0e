"""Numbers, classes, truth values, times, texts and bytes, as text."""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from ....schema import Int
from ....schema.kinds import Float, Json

if TYPE_CHECKING:
    from .cell import Cell

# Letters of a text, in short and in full.
SHORT, FULL = 200, 100_000
# Characters of a class name in the view of its sample.
NAME = 2000
# What JavaScript counts exactly.
EXACT = 2**53


def short(cell: Cell) -> dict[str, Any]:
    return _told(cell, SHORT)


def full(cell: Cell) -> dict[str, Any]:
    return _told(cell, FULL)


def _told(cell: Cell, most: int) -> dict[str, Any]:
    kind = cell.kind
    if cell.shows == "bytes":
        data = cell.data
        return {"size": len(data), "hex": data[:16].tobytes().hex(), "text": f"{len(data):,} bytes"}
    if cell.shows in ("sound", "video"):
        return {"size": len(cell.data), "text": f"{len(cell.data):,} bytes"}
    if cell.shows in ("array", "boxes", "tokens") and not cell.loaded:
        return {"text": f"{getattr(kind, 'dtype', '')} {getattr(kind, 'shape', '')}".strip()}
    value = cell.value()
    if isinstance(kind, Int) and kind.names:
        number = int(value)
        inside = 0 <= number < len(kind.names)
        # A number that is no class is worth seeing, too.
        if not inside:
            return {"value": number, "text": f"{number} (no class)"}
        return {"value": number, **cut(kind.names[number], min(most, NAME))}
    if isinstance(value, bool | np.bool_):
        return {"value": bool(value), "text": "true" if value else "false"}
    if isinstance(kind, Float) and isinstance(value, float):
        # As many digits as the number has, not those of a wider one.
        return {"value": value, "text": str(np.dtype(kind.dtype).type(value))}
    if isinstance(value, int):
        return {"value": value if abs(value) < EXACT else str(value), "text": str(value)}
    if isinstance(value, str) and not isinstance(kind, Json):
        return cut(value, most)
    return cut(as_text(value), most)


def cut(text: str, most: int) -> dict[str, Any]:
    """A text, or its beginning and how long it is."""
    if len(text) <= most:
        return {"text": text}
    return {"text": text[:most], "letters": len(text), "cut": True}


def as_text(value: Any) -> str:
    """One line of a value of any kind."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        return str(value).replace("T", " ")
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ")
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    if isinstance(value, np.ndarray):
        head = np.array2string(value.reshape(-1)[:8], separator=", ", max_line_width=1000)[1:-1]
        return f"{value.dtype} {value.shape} [{head}{', …' if value.size > 8 else ''}]"
    return str(value)
