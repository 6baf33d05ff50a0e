"""What ``interop`` offers to the core, which knows no framework: the package's ``__init__`` registers it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_PARTS: dict[str, Callable[[], Any]] = {}


def register(name: str, load: Callable[[], Any]) -> None:
    """``load`` imports the part of a framework when somebody asks for it."""
    _PARTS[name] = load


def part(name: str) -> Any:
    """:mod:`batchplant.interop.NAME`, imported now."""
    return _PARTS[name]()


def torch_part() -> Any:
    """:mod:`batchplant.interop.torch`: tensors on devices, torch's datasets."""
    return part("torch")
