"""Sounds: what their header says. Waves, spectrograms and what a player plays come by routes of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..media import sound

if TYPE_CHECKING:
    from .cell import Cell


def short(cell: Cell) -> dict[str, Any]:
    found = sound.facts(cell.data)
    seconds = found["seconds"]
    return {"seconds": seconds, "size": len(cell.data), "text": f"{seconds:.1f} s"}


def full(cell: Cell) -> dict[str, Any]:
    return {**short(cell), **sound.facts(cell.data)}
