"""A dataset in one piece: what it is, its statistics, its first samples. For a file to send, or as JSON."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..._version import __version__
from ...codecs import image
from ...errors import BatchplantError, shown
from .cells import short
from .cells.cell import cells_of
from .media import overlays
from .overview import overview
from .pixels import Images
from .session import Side

Progress = Callable[[int, int], None]

# Samples at a time, and the longest side of their images.
STEP = 50
THUMBNAIL = 192
# An image of more pixels is not decoded for a thumbnail.
MOST_PIXELS = 64_000_000


def report(side: Side, count: int, *, exact: bool = False, told: Progress | None = None) -> dict[str, Any]:
    """What the dataset is, statistics of some samples (``exact``: of all), the first ``count`` samples."""
    reader = side.reader
    images = Images()
    drawings = _overlays(side)
    samples: list[dict[str, Any]] = []
    try:
        for start in range(0, min(count, len(reader)), STEP):
            numbers = list(range(start, min(start + STEP, count, len(reader))))
            samples += described(side, images, numbers, drawn=drawings)
            if told is not None:
                told(len(samples), min(count, len(reader)))
    finally:
        images.close()
    try:
        statistics: dict[str, Any] = overview(reader, None, exact=exact, told=lambda done, of: None)
    except (BatchplantError, OSError, MemoryError) as error:
        statistics = {"error": str(error)}
    return {
        "title": side.title, "path": shown(reader.path), "format": reader.format, "count": len(reader),
        "version": __version__, "facts": _facts(side),
        "fields": [{"name": name, "kind": str(kind)} for name, kind in reader.schema.items()],
        "statistics": statistics, "samples": samples,
    }  # fmt: skip


def _facts(side: Side) -> dict[str, str]:
    try:
        return {str(name): str(value) for name, value in side.reader.facts().items()}
    except (BatchplantError, OSError) as error:
        return {"error": str(error)}


def _overlays(side: Side) -> list[overlays.Overlay]:
    try:
        return overlays.found(side) if side.image is not None else []
    except (BatchplantError, OSError, MemoryError):
        # Its samples say what is wrong.
        return []


def described(
    side: Side, images: Images, numbers: list[int], size: int = THUMBNAIL,
    drawn: Sequence[overlays.Overlay] = (),
) -> list[dict[str, Any]]:  # fmt: skip
    """Samples in short, their images as ``src``: a square that stands for width × height.

    ``drawn``: the overlays whose shapes come with them, as ``annotations`` of their image.
    """
    found = cells_of(side, numbers, side.reader.schema)
    samples: list[dict[str, Any]] = [
        {"sample": number, "cells": {name: short(cell) for name, cell in cells.items()}}
        for number, cells in zip(numbers, found, strict=True)
    ]
    for field, shows in side.shows.items():
        if shows in ("image", "mask"):
            _add_thumbnails(side, images, field, samples, size)
    for one, cells in zip(samples, found, strict=True):
        for overlay in drawn:
            # A damaged annotation is told as the text of its own field.
            with contextlib.suppress(BatchplantError, OSError, MemoryError):
                if shapes := overlays.drawn(side, overlay, cells):
                    told = {"field": overlay.field, "format": overlay.format, "relative": overlay.relative}
                    one["cells"][overlay.image].setdefault("annotations", []).append({**told, **shapes})
    return samples


def _add_thumbnails(side: Side, images: Images, field: str, samples: list[dict[str, Any]], size: int) -> None:
    told = [one for one in samples if _is_small(one["cells"][field])]
    if not told:
        return
    try:
        tiles, wrong = images.tiles(side, field, np.array([one["sample"] for one in told]), size)
    except (BatchplantError, OSError, MemoryError):
        return
    for row, one in enumerate(told):
        if row in wrong:
            one["cells"][field]["error"] = wrong[row]
        else:
            data = image.encode(np.ascontiguousarray(tiles[row]), "jpeg", quality=82)
            one["cells"][field]["src"] = f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"


def _is_small(cell: dict[str, Any]) -> bool:
    if "missing" in cell or "error" in cell:
        return False
    pixels: int = cell.get("width", 0) * cell.get("height", 0)
    return pixels <= MOST_PIXELS


def text_of(cell: dict[str, Any]) -> str:
    """A cell in a few words."""
    if cell.get("missing"):
        return "–"
    if "error" in cell:
        return f"⚠ {cell['error']}"
    if "text" in cell:
        return str(cell["text"])
    if "width" in cell:
        return f"{cell['width']}×{cell['height']}"
    own = {
        name: value for name, value in cell.items() if name not in ("field", "shows", "src", "annotations")
    }
    if len(own) == 1:
        return str(next(iter(own.values())))
    return ", ".join(f"{name} {value}" for name, value in own.items() if isinstance(value, str | int | float))
