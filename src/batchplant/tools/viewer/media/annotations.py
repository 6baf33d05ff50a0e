"""The numbers and the JSON of annotations, as boxes, points and polygons with labels."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ....codecs import rle
from ....errors import BatchplantError, shortened

# ``boxes`` four numbers each, ``points`` lists of [x, y, shown], ``polygons`` lists of x, y, x, y, …,
# ``labels`` and ``scores`` one for each; None where an entry has none. What no entry has is left out.
Drawn = dict[str, list[Any]]

# Of one sample.
MOST, MOST_CORNERS = 300, 2000
# Characters of the label of a box.
LABEL_CHARACTERS = 100
_BOX = ("bbox", "box", "bboxes", "boxes")
_LABEL = ("category_name", "category", "label", "name", "class", "category_id", "labels", "categories", "id")
_SCORE = ("score", "scores", "confidence")


def of_numbers(draws: str, value: Any) -> Drawn:
    """Boxes or points of an array, or of lists of numbers; nothing where they are no such thing."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return {}
    if not array.size:
        return {}
    if draws == "boxes":
        if array.ndim not in (1, 2) or array.shape[-1] != 4:
            return {}
        boxes = array.reshape(-1, 4)[:MOST]
        return {"boxes": [box.tolist() if np.isfinite(box).all() else None for box in boxes]}
    if array.ndim not in (2, 3) or array.shape[-1] not in (2, 3):
        return {}
    groups = array.reshape(-1, *array.shape[-2:])[:MOST, :MOST]
    return {"points": [_shown(group.tolist()) for group in groups]}


def of_labels(value: Any, names: Sequence[str]) -> list[Any]:
    """Labels as text: class names where they are known. Scores as numbers."""
    if value is None:
        return []
    found = value.tolist() if isinstance(value, np.ndarray) else value
    found = found if isinstance(found, list) else [found]
    return [_label(one, names) for one in found[:MOST]]


def of_json(value: Any) -> Drawn:
    """Annotations as COCO has them: a list of objects, an object of lists, or such a list in an object."""
    if isinstance(value, dict):
        # The name under which files of COCO, and tools that follow them, keep the list.
        inner = next((value[name] for name in ("annotations", "objects", "instances") if name in value), None)
        if isinstance(inner, dict | list):
            return of_json(inner)
        if any(_is_list_of_boxes(value.get(name)) for name in _BOX):
            return of_json(_turned(value))
        return of_json([value]) if any(name in value for name in (*_BOX, "keypoints")) else {}
    if not isinstance(value, list):
        return {}
    entries = [one for one in value[:MOST] if isinstance(one, dict)]
    found: Drawn = {
        "boxes": [_four(_first(one, _BOX)) for one in entries],
        "points": [_triples(one.get("keypoints")) for one in entries],
        "polygons": [_polygons(one.get("segmentation")) for one in entries],
        "labels": [_label(_first(one, _LABEL), ()) for one in entries],
        "scores": [_number(_first(one, _SCORE)) for one in entries],
    }
    kept = {name: column for name, column in found.items() if any(one is not None for one in column)}
    return kept if kept.keys() & {"boxes", "points", "polygons"} else {}


def _turned(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """An object of lists as a list of objects."""
    lists = {name: column for name, column in columns.items() if isinstance(column, list)}
    rows = max(len(column) for column in lists.values())
    return [
        {name: column[row] for name, column in lists.items() if row < len(column)}
        for row in range(min(rows, MOST))
    ]


def _is_list_of_boxes(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], list)


def _first(entry: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((entry[name] for name in names if entry.get(name) is not None), None)


def _number(value: Any) -> float | None:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        return float(value) if plain and math.isfinite(value) else None
    except OverflowError:
        return None


def _numbers(value: Any) -> list[float] | None:
    found = [_number(one) for one in value] if isinstance(value, list) else None
    return None if found is None or None in found else [one for one in found if one is not None]


def _four(value: Any) -> list[float] | None:
    found = _numbers(value)
    return found if found is not None and len(found) == 4 else None


def _triples(value: Any) -> list[list[float]] | None:
    """COCO's flat x, y, visible, x, y, visible, …"""
    found = _numbers(value)
    if not found or len(found) % 3:
        return None
    return _shown([found[at : at + 3] for at in range(0, len(found), 3)][:MOST])


def _shown(points: list[list[float]]) -> list[list[float]]:
    """[x, y, shown] of each: shown unless the third number is 0, which means that there is no such point."""
    return [
        [point[0], point[1], float(point[2] > 0) if len(point) > 2 else 1.0]
        if all(map(math.isfinite, point))
        else [0.0, 0.0, 0.0]
        for point in points
    ]


def of_rle(texts: Any, height: int, width: int) -> Drawn:
    """Masks in COCO's run-length text, as the rings around them; those that are none are left out."""
    found = [_rings(one, height, width) for one in texts[:MOST]] if isinstance(texts, list) else []
    return {"polygons": found} if any(found) else {}


def _rings(text: Any, height: int, width: int) -> list[list[float]] | None:
    if not isinstance(text, str) or not text:
        return None
    with contextlib.suppress(BatchplantError):
        return [ring[: 2 * MOST_CORNERS] for ring in rle.outlines(text, height, width)[:MOST]] or None
    return None


def _polygons(value: Any) -> list[list[float]] | None:
    if isinstance(value, dict):
        # A run-length mask as COCO has it.
        with contextlib.suppress(BatchplantError, KeyError, TypeError, ValueError):
            height, width = (int(one) for one in value["size"])
            return _rings(rle.text_of(value, height, width), height, width)
    if not isinstance(value, list):
        return None
    found = [_numbers(one[: 2 * MOST_CORNERS]) for one in value[:MOST] if isinstance(one, list)]
    kept = [one for one in found if one is not None and len(one) >= 6]
    return kept or None


def _label(value: Any, names: Sequence[str]) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return shortened(str(names[value]), LABEL_CHARACTERS) if 0 <= value < len(names) else value
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return shortened(value, LABEL_CHARACTERS) if isinstance(value, str) else None
