"""Functions and modules of higher layers that this layer calls.

``batchplant/__init__.py`` registers a loader for each of them, so that nothing here imports a format, a
framework or the viewer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_LOADERS: dict[str, Callable[[], Any]] = {}


def register(name: str, load: Callable[[], object]) -> None:
    """Register a function that imports the part ``name`` and returns it."""
    _LOADERS[name] = load


def part(name: str) -> Any:
    """Import the part ``name`` and return it."""
    return _LOADERS[name]()
