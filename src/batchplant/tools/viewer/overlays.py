"""Overlays of images: boxes, points, polygons and masks in other fields of a sample.

Names and shapes of fields tell which fields these are; a few samples tell the layout of their numbers. Both
are guesses, which the page shows and lets users change.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...codecs import rle
from ...errors import BatchplantError, shortened
from ...schema.kinds import Boxes, Field, Image, Json, Keypoints, Labels, List, Polygons, Tensor
from .. import Document
from .cells import Cell, Dataset, cells_of
from .render import image_size

# ``boxes`` four numbers each, ``points`` lists of [x, y, shown], ``polygons`` lists of x, y, x, y, …,
# ``labels`` and ``scores`` one for each; None where an entry has none. Keys that no entry has are left out.
Shapes = dict[str, list[Any]]
# Boxes or points of an image, and its width and height.
ImageShapes = tuple[npt.NDArray[np.float64], float, float]

# Shapes of one sample, and corners of one polygon.
MAX_SHAPES, MAX_CORNERS = 300, 2000
# Letters of the label of a box.
LABEL_LETTERS = 100
_BOX_KEYS = ("bbox", "box", "bboxes", "boxes")
_NAME_KEYS = ("category_name", "category", "label", "name", "class")
_LABEL_KEYS = (*_NAME_KEYS, "category_id", "labels", "categories", "id")
_SCORE_KEYS = ("score", "scores", "confidence")
# Layouts of the four numbers of a box.
FORMATS = ("xyxy", "xywh", "cxcywh")
# Samples that are read to guess the layout of boxes.
PROBED_SAMPLES = 12
# The field in which detection formats store masks as COCO's run-length text.
RLE_FIELD = "rle"
_BOX = re.compile(r"bbox|box|rect|roi", re.I)
_POINTS = re.compile(r"key_?point|landmark|joint|kpt|pose|corner|point", re.I)
_MASK = re.compile(r"mask|segm|semantic|panoptic|instance|label_?map", re.I)
_LABELS = re.compile(r"label|categor|class|name|id", re.I)
_SCORES = re.compile(r"score|conf|prob", re.I)


@dataclasses.dataclass(frozen=True)
class Overlay:
    """A field to draw over an image. ``draws``: boxes, points, mask, or annotations (JSON of any of them)."""

    field: str
    draws: str
    image: str
    labels: str | None = None
    scores: str | None = None
    # Layout of the four numbers of a box, and whether they are from 0 to 1 instead of pixels.
    format: str = "xyxy"
    relative: bool = False
    why: str = ""
    # Attributes that users may change: what the schema says of outlines and masks is no guess.
    choices: tuple[str, ...] = ()


def find_overlays(dataset: Dataset) -> list[Overlay]:
    """Find the overlays of a dataset; they belong to its first image field."""
    schema = dataset.reader.schema
    image = next((name for name, kind in schema.items() if isinstance(kind, Image) and not kind.mask), None)
    if image is None or not len(dataset.reader):
        return []
    candidates = [overlay for name, kind in schema.items() for overlay in _candidate(name, kind, image)]
    if not candidates:
        return []
    count = min(PROBED_SAMPLES, len(dataset.reader))
    numbers = np.unique(np.linspace(0, len(dataset.reader) - 1, count).astype(np.int64)).tolist()
    names = [image, *dict.fromkeys(overlay.field for overlay in candidates if overlay.draws != "mask")]
    samples = cells_of(dataset, numbers, names)
    return [overlay for candidate in candidates for overlay in _probe(candidate, samples, schema)]


def shapes_of(dataset: Dataset, overlay: Overlay, cells: dict[str, Cell]) -> Shapes:
    """Return the shapes of one sample; raises the errors of its cells."""
    value = cells[overlay.field].value()
    if value is None or overlay.draws == "mask":
        return {}
    kind = dataset.reader.schema[overlay.field]
    if isinstance(kind, Polygons):
        shapes = of_json([{"segmentation": rings} for rings in value])
    elif _is_rle(overlay.field, kind):
        size = image_size(cells[overlay.image])
        shapes = of_rle(value, int(size["height"]), int(size["width"]))
    elif overlay.draws == "annotations":
        return of_json(value)
    else:
        shapes = of_numbers(overlay.draws, value)
    for name, field in (("labels", overlay.labels), ("scores", overlay.scores)):
        if shapes and field is not None:
            shapes[name] = of_labels(cells[field].value(), _names(dataset, field))
    return shapes


def _names(dataset: Dataset, field: str) -> Sequence[str]:
    kind = dataset.reader.schema[field]
    names = getattr(kind, "names", None) or dataset.reader.attributes.get(field, {}).get("names")
    return names if isinstance(names, list | tuple) else ()


def fields_of(overlays: Sequence[Overlay]) -> list[str]:
    """Return the fields to read for these overlays."""
    names: dict[str, None] = {}
    for overlay in overlays:
        if overlay.draws != "mask":
            # A run-length mask needs the size of its image.
            image = overlay.image if overlay.field == RLE_FIELD else None
            parts = (overlay.field, overlay.labels, overlay.scores, image)
            names.update((name, None) for name in parts if name)
    return list(names)


# -- finding -------------------------------------------------------------------------------------------


def _is_rle(name: str, kind: Field) -> bool:
    return name == RLE_FIELD and isinstance(kind, List)


def _candidate(name: str, kind: Field, image: str) -> Iterator[Overlay]:
    if isinstance(kind, Image) and kind.mask:
        yield Overlay(name, "mask", image, why="a mask")
    elif isinstance(kind, Boxes):
        yield Overlay(name, "boxes", image)
    elif isinstance(kind, Keypoints):
        yield Overlay(name, "points", image)
    elif isinstance(kind, Json):
        # Its values decide.
        yield Overlay(name, "annotations", image)
    elif isinstance(kind, Tensor):
        shape, numeric = kind.shape, np.dtype(kind.dtype).kind in "iuf"
        if numeric and len(shape) in (1, 2) and shape[-1] == 4 and _BOX.search(name):
            yield Overlay(name, "boxes", image)
        elif numeric and len(shape) in (2, 3) and shape[-1] in (2, 3) and _POINTS.search(name):
            yield Overlay(name, "points", image)
        elif np.dtype(kind.dtype).kind in "biu" and len(shape) in (2, 3) and _MASK.search(name):
            yield Overlay(name, "mask", image, why="whole numbers under the name of a mask")


def _probe(overlay: Overlay, samples: list[dict[str, Cell]], schema: Any) -> Iterator[Overlay]:
    kind, draws = schema[overlay.field], overlay.draws
    overlay = dataclasses.replace(overlay, labels=_classes_of_rows(overlay.field, schema))
    if isinstance(kind, Polygons):
        yield dataclasses.replace(overlay, relative=kind.normalized, why="outlines")
        return
    if draws == "mask" or _is_rle(overlay.field, kind):
        yield overlay if draws == "mask" else dataclasses.replace(overlay, why="run-length masks")
        return
    boxes: list[ImageShapes] = []
    points: list[ImageShapes] = []
    for cells in samples:
        try:
            value = cells[overlay.field].value()
            size = image_size(cells[overlay.image])
        except (BatchplantError, OSError, MemoryError):
            continue
        if value is None:
            continue
        if draws == "annotations" and _BOX.search(overlay.field) and of_numbers("boxes", value):
            # Lists of four numbers, where a format has no arrays.
            draws = "boxes"
        shapes = of_json(value) if draws == "annotations" else of_numbers(draws, value)
        for name, arrays in (("boxes", boxes), ("points", points)):
            if shapes.get(name):
                flat = np.array([box for box in shapes[name] if box is not None], dtype=np.float64)
                arrays.append((flat.reshape(-1, 4) if name == "boxes" else flat[..., :2].reshape(-1, 2),
                             float(size["width"]), float(size["height"])))  # fmt: skip
    if draws == "points" or (draws == "annotations" and points and not boxes):
        relative = bool(points) and max(float(flat.max(initial=0)) for flat, _, _ in points) <= 1.0
        relative = kind.normalized if isinstance(kind, Keypoints) else relative
        why = _why("", relative)
        yield dataclasses.replace(overlay, draws=draws, relative=relative, why=why, choices=("unit",))
    elif boxes or draws == "boxes":
        if isinstance(kind, Boxes):
            format, relative = kind.format, kind.normalized
        else:
            format, relative = guess_box_format(boxes, overlay.field if draws == "boxes" else "bbox of COCO")
        label_fields = _label_fields(overlay, schema) if draws == "boxes" else {}
        why = _why(format, relative)
        yield dataclasses.replace(
            overlay,
            draws=draws,
            format=format,
            relative=relative,
            why=why,
            choices=("format", "unit"),
            **label_fields,
        )


def guess_box_format(boxes: Sequence[ImageShapes], name: str) -> tuple[str, bool]:
    """Guess the format of boxes, given with the size of their images, and whether they are relative."""
    non_empty = [group for group in boxes if len(group[0])]
    relative = bool(non_empty) and max(float(flat.max()) for flat, _, _ in non_empty) <= 1.5
    lower = name.lower()
    for format in ("cxcywh", "xyxy", "xywh"):
        if format in lower:
            return format, relative
    if "yolo" in lower:
        return "cxcywh", True
    if not non_empty:
        return ("xywh" if "bbox" in lower else "xyxy"), False
    scaled = np.concatenate(
        [flat if relative else flat / [width, height, width, height] for flat, width, height in non_empty]
    )
    x, y, third, fourth = scaled.T
    # Fraction of boxes that lie on the image, by format.
    low, high = -0.02, 1.02
    positive = scaled.min(axis=1) >= low
    fits = {
        "xyxy": (third >= x) & (fourth >= y) & (scaled.max(axis=1) <= high) & positive,
        "xywh": (x + third <= high) & (y + fourth <= high) & positive,
        "cxcywh": (np.abs(x - 0.5) + third / 2 <= high - 0.5) & (np.abs(y - 0.5) + fourth / 2 <= high - 0.5),
    }
    shares = {format: float(good.mean()) for format, good in fits.items()}
    # COCO's own name for x, y, width, height; else corners are the most common.
    order = (
        ("xywh", "cxcywh", "xyxy") if "coco" in lower else ("xyxy", "cxcywh" if relative else "xywh", "xywh")
    )
    best = max(shares.values())
    return next(format for format in (*order, *FORMATS) if shares[format] >= best - 1e-9), relative


def _classes_of_rows(field: str, schema: Any) -> str | None:
    """Return the field of the objects' classes, if boxes say that this field has a row for each object."""
    rows = next(
        (kind.labels for kind in schema.values() if isinstance(kind, Boxes) and field in kind.labels), ()
    )
    return next((name for name in rows if isinstance(schema.get(name), Labels)), None)


def _why(format: str, relative: bool) -> str:
    words = {"xyxy": "corners", "xywh": "corner and size", "cxcywh": "middle and size", "": "points"}
    return f"looks like {words[format]}, {'from 0 to 1' if relative else 'in pixels'}"


def _label_fields(overlay: Overlay, schema: Any) -> dict[str, str]:
    """Return the fields with the labels and the scores of boxes."""
    fields: dict[str, str] = {}
    flat = {
        name: kind
        for name, kind in schema.items()
        if name != overlay.field
        and (isinstance(kind, Json) or (isinstance(kind, Tensor) and len(kind.shape) == 1))
    }
    for role, pattern in (("scores", _SCORES), ("labels", _LABELS)):
        matches = [name for name in flat if pattern.search(name) and name not in fields.values()]
        if matches:
            fields[role] = matches[0]
    return fields


# -- parsing annotations -------------------------------------------------------------------------------


def of_numbers(draws: str, value: Any) -> Shapes:
    """Parse boxes or points of an array or of lists of numbers; nothing where the shape does not fit."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return {}
    if not array.size:
        return {}
    if draws == "boxes":
        if array.ndim not in (1, 2) or array.shape[-1] != 4:
            return {}
        boxes = array.reshape(-1, 4)[:MAX_SHAPES]
        return {"boxes": [box.tolist() if np.isfinite(box).all() else None for box in boxes]}
    if array.ndim not in (2, 3) or array.shape[-1] not in (2, 3):
        return {}
    groups = array.reshape(-1, *array.shape[-2:])[:MAX_SHAPES, :MAX_SHAPES]
    return {"points": [_visible(group.tolist()) for group in groups]}


def of_labels(value: Any, names: Sequence[str]) -> list[Any]:
    """Return labels as text, class names where there are some, and scores as numbers."""
    if value is None:
        return []
    labels = value.tolist() if isinstance(value, np.ndarray) else value
    labels = labels if isinstance(labels, list) else [labels]
    return [_label(label, names) for label in labels[:MAX_SHAPES]]


def of_json(value: Any) -> Shapes:
    """Parse COCO's annotations: a list of objects, an object of lists, or such a list in an object."""
    if isinstance(value, dict):
        # Keys of the list in COCO files and in those of similar tools.
        inner = next((value[name] for name in ("annotations", "objects", "instances") if name in value), None)
        if isinstance(inner, dict | list):
            return of_json(inner)
        if any(_is_list_of_boxes(value.get(name)) for name in _BOX_KEYS):
            return of_json(_transpose(value))
        return of_json([value]) if any(name in value for name in (*_BOX_KEYS, "keypoints")) else {}
    if not isinstance(value, list):
        return {}
    entries = [entry for entry in value[:MAX_SHAPES] if isinstance(entry, dict)]
    shapes: Shapes = {
        "boxes": [_box(_first(entry, _BOX_KEYS)) for entry in entries],
        "points": [_triples(entry.get("keypoints")) for entry in entries],
        "polygons": [_polygons(entry.get("segmentation")) for entry in entries],
        "labels": [_label(_first(entry, _LABEL_KEYS), ()) for entry in entries],
        "scores": [_number(_first(entry, _SCORE_KEYS)) for entry in entries],
    }
    present = {name: column for name, column in shapes.items() if any(shape is not None for shape in column)}
    return present if present.keys() & {"boxes", "points", "polygons"} else {}


def _transpose(columns: Mapping[str, Any]) -> list[Document]:
    """Turn an object of lists into a list of objects."""
    lists = {name: column for name, column in columns.items() if isinstance(column, list)}
    rows = max(len(column) for column in lists.values())
    return [
        {name: column[row] for name, column in lists.items() if row < len(column)}
        for row in range(min(rows, MAX_SHAPES))
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
    numbers = [_number(number) for number in value] if isinstance(value, list) else None
    return (
        None if numbers is None or None in numbers else [number for number in numbers if number is not None]
    )


def _box(value: Any) -> list[float] | None:
    numbers = _numbers(value)
    return numbers if numbers is not None and len(numbers) == 4 else None


def _triples(value: Any) -> list[list[float]] | None:
    """Parse COCO's flat x, y, visibility, x, y, visibility, …"""
    numbers = _numbers(value)
    if not numbers or len(numbers) % 3:
        return None
    return _visible([numbers[start : start + 3] for start in range(0, len(numbers), 3)][:MAX_SHAPES])


def _visible(points: list[list[float]]) -> list[list[float]]:
    """Return [x, y, visible] of each point: visibility 0 means that there is no such point."""
    return [
        [point[0], point[1], float(point[2] > 0) if len(point) > 2 else 1.0]
        if all(map(math.isfinite, point))
        else [0.0, 0.0, 0.0]
        for point in points
    ]


def of_rle(texts: Any, height: int, width: int) -> Shapes:
    """Return the outlines of masks in COCO's run-length text; None for invalid ones."""
    polygons = [_rings(text, height, width) for text in texts[:MAX_SHAPES]] if isinstance(texts, list) else []
    return {"polygons": polygons} if any(polygons) else {}


def _rings(text: Any, height: int, width: int) -> list[list[float]] | None:
    if not isinstance(text, str) or not text:
        return None
    with contextlib.suppress(BatchplantError):
        return [ring[: 2 * MAX_CORNERS] for ring in rle.outlines(text, height, width)[:MAX_SHAPES]] or None
    return None


def _polygons(value: Any) -> list[list[float]] | None:
    if isinstance(value, dict):
        # A run-length mask as COCO stores it.
        with contextlib.suppress(BatchplantError, KeyError, TypeError, ValueError):
            height, width = (int(side) for side in value["size"])
            return _rings(rle.text_of(value, height, width), height, width)
    if not isinstance(value, list):
        return None
    rings = [_numbers(ring[: 2 * MAX_CORNERS]) for ring in value[:MAX_SHAPES] if isinstance(ring, list)]
    valid = [ring for ring in rings if ring is not None and len(ring) >= 6]
    return valid or None


def _label(value: Any, names: Sequence[str]) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return shortened(str(names[value]), LABEL_LETTERS) if 0 <= value < len(names) else value
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return shortened(value, LABEL_LETTERS) if isinstance(value, str) else None
