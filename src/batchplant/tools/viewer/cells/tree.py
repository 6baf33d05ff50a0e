"""Nested values: one line in short, a tree in full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..media import tree
from .plain import short

if TYPE_CHECKING:
    from .cell import Cell

__all__ = ["full", "short"]


def full(cell: Cell) -> dict[str, Any]:
    return {"tree": tree.node(cell.value())}
