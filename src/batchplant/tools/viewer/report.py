"""Report on a dataset: its metadata, statistics and first samples, for an HTML file or as JSON."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Sequence

import numpy as np

from ..._version import __version__
from ...codecs import image
from ...errors import BatchplantError, shown
from .. import Document
from .cells import Side, cells_of
from .media import overlays
from .overview import collect_overview
from .pixels import Images
from .render import summarize

Progress = Callable[[int, int], None]

# Samples that are read together, and the longer side of their images.
READ_SAMPLES = 50
THUMBNAIL_PIXELS = 192
# An image of more pixels is not decoded for a thumbnail.
MAX_DECODED_PIXELS = 64_000_000


def collect_report(
    side: Side, count: int, *, exact: bool = False, progress: Progress | None = None
) -> Document:
    """Return metadata, statistics of some samples (``exact``: of all), and the first ``count`` samples."""
    reader = side.reader
    images = Images()
    drawings = _overlays(side)
    samples: list[Document] = []
    try:
        for start in range(0, min(count, len(reader)), READ_SAMPLES):
            numbers = list(range(start, min(start + READ_SAMPLES, count, len(reader))))
            samples += describe_samples(side, images, numbers, drawn=drawings)
            if progress is not None:
                progress(len(samples), min(count, len(reader)))
    finally:
        images.close()
    try:
        statistics: Document = collect_overview(reader, None, exact=exact, progress=lambda done, of: None)
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
        return overlays.find_overlays(side) if side.image is not None else []
    except (BatchplantError, OSError, MemoryError):
        # The samples show the error.
        return []


def describe_samples(
    side: Side, images: Images, numbers: list[int], size: int = THUMBNAIL_PIXELS,
    drawn: Sequence[overlays.Overlay] = (),
) -> list[Document]:  # fmt: skip
    """Summarize samples, with their images as ``src``: a square that stands for width × height.

    ``drawn``: the overlays whose shapes come with them, as ``annotations`` of their image.
    """
    cells_by_sample = cells_of(side, numbers, side.reader.schema)
    samples: list[Document] = [
        {"sample": number, "cells": {name: summarize(cell) for name, cell in cells.items()}}
        for number, cells in zip(numbers, cells_by_sample, strict=True)
    ]
    for field, shows in side.shows.items():
        if shows in ("image", "mask"):
            _add_thumbnails(side, images, field, samples, size)
    for sample, cells in zip(samples, cells_by_sample, strict=True):
        for overlay in drawn:
            # A damaged annotation shows its error as the text of its own field.
            with contextlib.suppress(BatchplantError, OSError, MemoryError):
                if shapes := overlays.shapes_of(side, overlay, cells):
                    attributes = {
                        "field": overlay.field,
                        "format": overlay.format,
                        "relative": overlay.relative,
                    }
                    sample["cells"][overlay.image].setdefault("annotations", []).append(
                        {**attributes, **shapes}
                    )
    return samples


def _add_thumbnails(side: Side, images: Images, field: str, samples: list[Document], size: int) -> None:
    shown_samples = [sample for sample in samples if _is_small(sample["cells"][field])]
    if not shown_samples:
        return
    try:
        tiles, errors = images.tiles(
            side, field, np.array([sample["sample"] for sample in shown_samples]), size
        )
    except (BatchplantError, OSError, MemoryError):
        return
    for row, sample in enumerate(shown_samples):
        if row in errors:
            sample["cells"][field]["error"] = errors[row]
        else:
            data = image.encode(np.ascontiguousarray(tiles[row]), "jpeg", quality=82)
            sample["cells"][field]["src"] = f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"


def _is_small(cell: Document) -> bool:
    if "missing" in cell or "error" in cell:
        return False
    pixels: int = cell.get("width", 0) * cell.get("height", 0)
    return pixels <= MAX_DECODED_PIXELS


def text_of(cell: Document) -> str:
    """Return a cell as a short text."""
    if cell.get("missing"):
        return "–"
    if "error" in cell:
        return f"⚠ {cell['error']}"
    if "text" in cell:
        return str(cell["text"])
    if "width" in cell:
        return f"{cell['width']}×{cell['height']}"
    attributes = {
        name: value for name, value in cell.items() if name not in ("field", "shows", "src", "annotations")
    }
    if len(attributes) == 1:
        return str(next(iter(attributes.values())))
    return ", ".join(
        f"{name} {value}" for name, value in attributes.items() if isinstance(value, str | int | float)
    )
