"""Videos: their encoding in short, what their packets tell in full. Frames come by routes of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....codecs import video as codec
from ....errors import DecodeError
from ..media import video

if TYPE_CHECKING:
    from .cell import Cell


def short(cell: Cell) -> dict[str, Any]:
    data = cell.data
    encoding = codec.encoding_of(data)
    if encoding is None:
        raise DecodeError("these bytes are no video that batchplant knows" if len(data) else "it is empty")
    return {"size": len(data), "encoding": encoding, "text": f"{encoding}, {len(data):,} bytes"}


def full(cell: Cell) -> dict[str, Any]:
    return {**short(cell), **video.facts(video.Movie(cell.data))}
