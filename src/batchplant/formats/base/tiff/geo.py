"""Georeference of a page: transform, coordinate system and nodata; and windows by coordinates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....errors import DamagedError, OptionError, exceptions_as
from .directory import Directory

PIXEL_SCALE, TIEPOINTS, TRANSFORMATION, GEO_KEYS, GEO_TEXTS = 33550, 33922, 34264, 34735, 34737
RASTER_TYPE, CITATION, GEOGRAPHIC, GEOGRAPHIC_CITATION, PROJECTED, PROJECTED_CITATION = (
    1025, 1026, 2048, 2049, 3072, 3073,
)  # fmt: skip
PIXEL_IS_POINT, USER_DEFINED = 2, 32767
NODATA = 42113
MAX_KEYS = 4096

# a, b, c, d, e, f: x = a·column + b·row + c, y = d·column + e·row + f, of the corner of a pixel.
Transform = tuple[float, float, float, float, float, float]


def georeference(page: Directory) -> dict[str, Any]:
    """Return ``transform``, ``crs`` and ``nodata`` of a page, those that it has."""
    keys = _keys(page)
    result: dict[str, Any] = {}
    transform = _transform(page)
    if transform is not None:
        a, b, c, d, e, f = transform
        if keys.get(RASTER_TYPE) == PIXEL_IS_POINT:
            c, f = c - (a + b) / 2, f - (d + e) / 2
        result["transform"] = (a, b, c, d, e, f)
    codes = [keys.get(name) for name in (PROJECTED, GEOGRAPHIC)]
    texts = [keys.get(name) for name in (PROJECTED_CITATION, CITATION, GEOGRAPHIC_CITATION)]
    names = [f"EPSG:{code}" for code in codes if isinstance(code, int) and 1024 <= code < USER_DEFINED]
    names += [text for text in texts if isinstance(text, str)]
    if names:
        result["crs"] = names[0]
    nodata = page.text(NODATA).strip()
    if nodata:
        try:
            result["nodata"] = float(nodata)
        except ValueError:
            result["nodata"] = nodata
    return result


def _transform(page: Directory) -> Transform | None:
    matrix, scale, ties = (
        page.values(tag).astype(np.float64).tolist() for tag in (TRANSFORMATION, PIXEL_SCALE, TIEPOINTS)
    )
    if len(matrix) == 16:
        a, b, _, c, d, e, _, f = matrix[:8]
    elif len(scale) >= 2 and len(ties) >= 6:
        a, b, d, e = scale[0], 0.0, 0.0, -scale[1]
        c, f = ties[3] - ties[0] * a, ties[4] - ties[1] * e
    else:
        return None
    transform = (a, b, c, d, e, f)
    if not all(map(math.isfinite, transform)) or not a * e - b * d:
        raise DamagedError(f"its georeference is damaged: {transform}", offset=page.offset)
    return transform


def _keys(page: Directory) -> dict[int, int | str]:
    """Return the keys that are numbers or texts."""
    numbers, texts = page.values(GEO_KEYS).tolist(), page.text(GEO_TEXTS)
    keys: dict[int, int | str] = {}
    for place in range(4, min(len(numbers), 4 * MAX_KEYS) - 3, 4):
        key, tag, count, value = map(int, numbers[place : place + 4])
        if tag == 0:
            keys[key] = value
        elif tag == GEO_TEXTS:
            keys[key] = texts[value : value + count].rstrip("|")
    return keys


def scaled(transform: Transform, full: Sequence[int], level: Sequence[int]) -> Transform:
    """Return the transform of a level of this (height, width)."""
    (a, b, c, d, e, f), y, x = transform, full[0] / level[0], full[1] / level[1]
    return a * x, b * y, c, d * x, e * y, f


def window(transform: Transform | None, size: Sequence[int], bounds: Sequence[float]) -> tuple[slice, slice]:
    """Return the rows and columns that touch ``(left, bottom, right, top)``, cut to the page."""
    if transform is None:
        raise OptionError("it has no georeference: windows are by pixels only")
    a, b, c, d, e, f = transform
    with exceptions_as(OptionError, "bounds are (left, bottom, right, top)", ValueError, TypeError):
        left, bottom, right, top = map(float, bounds)
    if not (left < right and bottom < top):
        raise OptionError(f"bounds are (left, bottom, right, top), not {tuple(bounds)}")
    x, y, det = (
        np.array([left, left, right, right]) - c,
        np.array([bottom, top, bottom, top]) - f,
        a * e - b * d,
    )
    columns, rows = (e * x - b * y) / det, (a * y - d * x) / det
    picks = []
    for places, length in ((rows, size[0]), (columns, size[1])):
        # Coordinates are rounded where they were written: a thousandth of a pixel is no pixel.
        first, end = math.floor(places.min() + 1e-3), math.ceil(places.max() - 1e-3)
        picks.append(slice(max(0, first), min(length, end)))
    if any(pick.start >= pick.stop for pick in picks):
        raise OptionError(f"the bounds {tuple(bounds)} lie outside of what it covers")
    return picks[0], picks[1]
