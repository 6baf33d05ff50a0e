"""Classes of the objects in a sample, by name: the first in short, with their numbers in full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....errors import shortened
from ....schema.kinds import Labels
from . import array
from .plain import SHORT, cut

if TYPE_CHECKING:
    from .cell import Cell

# Objects whose classes are named one by one, and characters of each name.
FEW, MAX_OBJECTS, NAME = 24, 1000, 200


def short(cell: Cell) -> dict[str, Any]:
    values = cell.value().reshape(-1)
    text = ", ".join(names_of(cell.kind, values[:FEW].tolist())) or "none"
    return {**cut(text, SHORT), **({"cut": True} if values.size > FEW else {}), "of": values.size}


def full(cell: Cell) -> dict[str, Any]:
    values = cell.value().reshape(-1)
    first = values[:MAX_OBJECTS].tolist()
    return {**array.full(cell), "names": names_of(cell.kind, first), "classes": first, "of": values.size}


def names_of(kind: Any, values: list[int]) -> list[str]:
    """The names of these classes; a number that is no class is told as such."""
    names = (kind.names if isinstance(kind, Labels) else None) or ()
    return [shortened(names[one], NAME) if 0 <= one < len(names) else f"{one} (no class)" for one in values]
