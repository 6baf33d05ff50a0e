"""What ``interop`` offers to the core, which knows no framework: the package's ``__init__`` registers it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_PARTS: dict[str, Callable[[], Any]] = {}


def register(name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """For a function that imports a module of interop."""

    def decorate(load: Callable[[], Any]) -> Callable[[], Any]:
        _PARTS[name] = load
        return load

    return decorate


def part(name: str) -> Any:
    """:mod:`batchplant.interop.NAME`, imported now."""
    return _PARTS[name]()
