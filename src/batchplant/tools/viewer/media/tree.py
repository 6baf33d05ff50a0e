"""Nested values as a tree that is sent in parts: what is opened is asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....errors import NotFoundError

# Nodes of one answer, entries of one container, letters of one text, and how deep an answer goes.
NODES, ENTRIES, LETTERS, DEPTH = 1000, 100, 2000, 24


def node(value: Any, start: int = 0) -> dict[str, Any]:
    """A value: ``{"is": "text" | "number" | …, "text"}``, or a container with its first entries.

    A container has ``of``, how many entries there are, ``start`` and ``entries``: pairs of key and node.
    Where not all of them are there, the rest is asked for by its path and ``start``.
    """
    return _Growing(NODES).node(value, start, 0)


def at(value: Any, path: Sequence[str | int]) -> Any:
    """What lies there; NotFoundError where nothing does."""
    for step in path:
        if isinstance(value, dict) and isinstance(step, str) and step in value:
            value = value[step]
        elif isinstance(value, list | tuple) and step in range(len(value)):
            value = value[int(step)]
        else:
            raise NotFoundError("there is nothing at this place of the value")
    return value


class _Growing:
    def __init__(self, room: int) -> None:
        self.room = room

    def node(self, value: Any, start: int, depth: int) -> dict[str, Any]:
        self.room -= 1
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if isinstance(value, dict):
            return self._container("object", [(str(key), one) for key, one in value.items()], start, depth)
        if isinstance(value, list | tuple):
            return self._container("list", list(enumerate(value)), start, depth)
        return leaf(value)

    def _container(
        self, name: str, items: list[tuple[str | int, Any]], start: int, depth: int
    ) -> dict[str, Any]:
        entries = []
        for key, one in items[start : start + ENTRIES]:
            # Those of one container always come along: it was asked for.
            if self.room <= 0 and depth:
                break
            inside = depth + 1 < DEPTH and self.room > 0
            entries.append([key, self.node(one, 0, depth + 1) if inside else _closed(one)])
        return {"is": name, "of": len(items), "start": start, "entries": entries}


def _closed(value: Any) -> dict[str, Any]:
    if isinstance(value, dict | list | tuple):
        return {
            "is": "object" if isinstance(value, dict) else "list",
            "of": len(value),
            "start": 0,
            "entries": [],
        }
    return leaf(value)


def leaf(value: Any) -> dict[str, Any]:
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
            "text": value[:LETTERS],
            **({"letters": len(value)} if len(value) > LETTERS else {}),
        }
    if isinstance(value, bytes):
        return {"is": "bytes", "text": f"{len(value):,} bytes"}
    return {"is": type(value).__name__.lower(), "text": str(value)[:LETTERS]}
