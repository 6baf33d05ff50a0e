"""Masks: their size as images have it, and in full which classes they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..media import masks
from . import image
from .image import short

if TYPE_CHECKING:
    from .cell import Cell

__all__ = ["full", "short"]


def full(cell: Cell) -> dict[str, Any]:
    return {**image.full(cell), "legend": masks.legend(masks.classes(cell.value()))}
