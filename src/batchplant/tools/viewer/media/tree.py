"""Nested values as a tree that the page fetches in parts, as branches are opened."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....errors import NotFoundError
from ... import Document

# Limits of one answer: nodes, entries of one container, letters of one text, and depth.
MAX_NODES, MAX_ENTRIES, MAX_LETTERS, MAX_DEPTH = 1000, 100, 2000, 24


def node(value: Any, start: int = 0) -> Document:
    """Return a value: ``{"is": "text" | "number" | …, "text"}``, or a container with its first entries.

    A container has ``of``, how many entries there are, ``start`` and ``entries``: pairs of key and node.
    The page asks for further entries by their path and ``start``.
    """
    return _TreeBuilder(MAX_NODES).node(value, start, 0)


def value_at(value: Any, path: Sequence[str | int]) -> Any:
    """Return the part of a value at a path; raise NotFoundError where there is none."""
    for step in path:
        if isinstance(value, dict) and isinstance(step, str) and step in value:
            value = value[step]
        elif isinstance(value, list | tuple) and step in range(len(value)):
            value = value[int(step)]
        else:
            raise NotFoundError("there is nothing at this place of the value")
    return value


class _TreeBuilder:
    def __init__(self, max_nodes: int) -> None:
        self.nodes_left = max_nodes

    def node(self, value: Any, start: int, depth: int) -> Document:
        self.nodes_left -= 1
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if isinstance(value, dict):
            return self._container(
                "object", [(str(key), child) for key, child in value.items()], start, depth
            )
        if isinstance(value, list | tuple):
            return self._container("list", list(enumerate(value)), start, depth)
        return leaf(value)

    def _container(self, name: str, items: list[tuple[str | int, Any]], start: int, depth: int) -> Document:
        entries = []
        for key, child in items[start : start + MAX_ENTRIES]:
            # The container that was asked for always comes with its entries.
            if self.nodes_left <= 0 and depth:
                break
            expand = depth + 1 < MAX_DEPTH and self.nodes_left > 0
            entries.append([key, self.node(child, 0, depth + 1) if expand else _collapsed(child)])
        return {"is": name, "of": len(items), "start": start, "entries": entries}


def _collapsed(value: Any) -> Document:
    if isinstance(value, dict | list | tuple):
        return {
            "is": "object" if isinstance(value, dict) else "list",
            "of": len(value),
            "start": 0,
            "entries": [],
        }
    return leaf(value)


def leaf(value: Any) -> Document:
    if value is None:
        return {"is": "null", "text": "null"}
    if isinstance(value, bool):
        return {"is": "bool", "text": "true" if value else "false"}
    if isinstance(value, int | float):
        odd = isinstance(value, float) and not math.isfinite(value)
        return {"is": "number", "text": str(value) if not odd else "NaN" if math.isnan(value) else f"{value}"}
    if isinstance(value, str):
        return {
            "is": "text",
            "text": value[:MAX_LETTERS],
            **({"letters": len(value)} if len(value) > MAX_LETTERS else {}),
        }
    if isinstance(value, bytes):
        return {"is": "bytes", "text": f"{len(value):,} bytes"}
    return {"is": type(value).__name__.lower(), "text": str(value)[:MAX_LETTERS]}
