"""Token numbers: the first of them, and with a tokenizer the text that they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..media import tokens
from .plain import cut

if TYPE_CHECKING:
    from .cell import Cell

# In short.
FEW = 48


def short(cell: Cell) -> dict[str, Any]:
    value = cell.value().reshape(-1)
    first = value[:FEW].tolist()
    tokenizer = cell.side.tokenizer
    text = " ".join(map(str, first)) if tokenizer is None else tokenizer.text(first)
    return {**cut(text, 200), **({"cut": True} if value.size > FEW else {}), "of": value.size}


def full(cell: Cell) -> dict[str, Any]:
    value = cell.value().reshape(-1)
    return tokens.told(value[: tokens.MOST].tolist(), value.size, cell.side.tokenizer)
