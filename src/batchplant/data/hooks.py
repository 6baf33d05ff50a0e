"""Functions and modules of higher layers that this layer calls.

``batchplant/__init__.py`` registers a loader for each of them, so that nothing here imports a format, a
framework or the viewer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .reader import Reader

_LOADERS: dict[str, Callable[[], Any]] = {}


def register(name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a function that imports the part ``name`` and returns it."""

    def decorate(load: Callable[[], Any]) -> Callable[[], Any]:
        _LOADERS[name] = load
        return load

    return decorate


def part(name: str) -> Any:
    """Import the part ``name`` and return it."""
    return _LOADERS[name]()


def open_reader(source: Any, **options: Any) -> Reader:
    """Open a dataset as :func:`batchplant.open` does."""
    reader: Reader = part("open")(source, **options)
    return reader
