"""Boxes: how many in short, all numbers in full. They are drawn over the image of their sample, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....schema.kinds import Boxes, Labels
from . import array
from .labels import names_of

if TYPE_CHECKING:
    from .cell import Cell


def short(cell: Cell) -> dict[str, Any]:
    count = int(cell.value().reshape(-1, 4).shape[0])
    return {"count": count, "text": f"{count} box{'' if count == 1 else 'es'}"}


def full(cell: Cell) -> dict[str, Any]:
    kind = cell.kind
    told = array.full(cell)
    if not isinstance(kind, Boxes):
        return told
    schema = cell.side.reader.schema
    for name in kind.labels:
        labels = schema.get(name)
        if isinstance(labels, Labels) and labels.names and "values" in told:
            told["names"] = names_of(labels, cell.beside(name).value().reshape(-1).tolist())
            break
    return {**told, "format": kind.format}
