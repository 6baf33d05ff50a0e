"""Images: their size in short, how they are encoded in full. ``sheet`` and ``image`` give the pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....codecs import image
from ....errors import DecodeError

if TYPE_CHECKING:
    from .cell import Cell


def short(cell: Cell) -> dict[str, Any]:
    raw = cell.pixels_shape
    if raw is not None:
        return {"height": raw[0], "width": raw[1]}
    data = cell.data
    found = image.header(data)
    if not found.encoding:
        raise DecodeError("these bytes are no image that batchplant knows" if len(data) else "it is empty")
    height, width = found.height, found.width
    # 5 to 8 lie on their side.
    return (
        {"height": width, "width": height}
        if image.orientation(data) > 4
        else {"height": height, "width": width}
    )


def full(cell: Cell) -> dict[str, Any]:
    found = short(cell)
    raw = cell.pixels_shape
    if raw is not None:
        return {**found, "encoding": "raw", "channels": raw[2]}
    header = image.header(cell.data)
    return {**found, "encoding": header.encoding, "mode": header.mode, "bits": header.bits}
