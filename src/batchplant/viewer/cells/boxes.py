"""Boxes: how many in short, all numbers in full. They are drawn over the picture of their sample, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import array

if TYPE_CHECKING:
    from .cell import Cell

full = array.full


def short(cell: Cell) -> dict[str, Any]:
    count = int(cell.value().reshape(-1, 4).shape[0])
    return {"count": count, "text": f"{count} box{'' if count == 1 else 'es'}"}
