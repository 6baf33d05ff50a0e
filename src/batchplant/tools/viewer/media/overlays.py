"""What belongs onto an image: boxes, points, polygons and masks in other fields of its sample.

Which fields these are is told by names and shapes, how their numbers are meant by looking at a few samples:
both are guesses, which the page shows and lets people change.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ....errors import BatchplantError
from ....schema.kinds import Boxes, Field, Image, Json, Keypoints, Labels, List, Polygons, Tensor
from ..cells.cell import Cell, cells_of
from ..cells.image import short as size_of
from .annotations import Drawn, of_json, of_labels, of_numbers, of_rle

if TYPE_CHECKING:
    from ..session import Side

FORMATS = ("xyxy", "xywh", "cxcywh")
# Samples that are looked at.
PROBED = 12
# What formats of detection call the masks of objects in COCO's run-length text.
RLE = "rle"
_BOX = re.compile(r"bbox|box|rect|roi", re.I)
_POINTS = re.compile(r"key_?point|landmark|joint|kpt|pose|corner|point", re.I)
_MASK = re.compile(r"mask|segm|semantic|panoptic|instance|label_?map", re.I)
_LABELS = re.compile(r"label|categor|class|name|id", re.I)
_SCORES = re.compile(r"score|conf|prob", re.I)


@dataclasses.dataclass(frozen=True)
class Overlay:
    """``draws``: boxes, points, mask, or annotations, whose entries say for themselves what they are."""

    field: str
    draws: str
    image: str
    labels: str | None = None
    scores: str | None = None
    # How four numbers are a box, and whether they count from 0 to 1 instead of pixels.
    format: str = "xyxy"
    relative: bool = False
    why: str = ""
    # Which of these people may change: what the schema says of outlines and masks is no guess.
    choices: tuple[str, ...] = ()


def found(side: Side) -> list[Overlay]:
    """The overlays of a dataset, its first image being what they lie on."""
    schema = side.reader.schema
    image = next((name for name, kind in schema.items() if isinstance(kind, Image) and not kind.mask), None)
    if image is None or not len(side.reader):
        return []
    candidates = [one for name, kind in schema.items() for one in _candidate(name, kind, image)]
    if not candidates:
        return []
    count = min(PROBED, len(side.reader))
    numbers = np.unique(np.linspace(0, len(side.reader) - 1, count).astype(np.int64)).tolist()
    names = [image, *dict.fromkeys(one.field for one in candidates if one.draws != "mask")]
    samples = cells_of(side, numbers, names)
    return [made for one in candidates for made in _looked_at(one, samples, schema)]


def drawn(side: Side, overlay: Overlay, cells: dict[str, Cell]) -> Drawn:
    """What there is to draw of one sample; raises what is wrong with its cells."""
    value = cells[overlay.field].value()
    if value is None or overlay.draws == "mask":
        return {}
    kind = side.reader.schema[overlay.field]
    if isinstance(kind, Polygons):
        made = of_json([{"segmentation": rings} for rings in value])
    elif _is_rle(overlay.field, kind):
        size = size_of(cells[overlay.image])
        made = of_rle(value, int(size["height"]), int(size["width"]))
    elif overlay.draws == "annotations":
        return of_json(value)
    else:
        made = of_numbers(overlay.draws, value)
    for name, field in (("labels", overlay.labels), ("scores", overlay.scores)):
        if made and field is not None:
            made[name] = of_labels(cells[field].value(), _names(side, field))
    return made


def _names(side: Side, field: str) -> Sequence[str]:
    kind = side.reader.schema[field]
    names = getattr(kind, "names", None) or side.reader.attributes.get(field, {}).get("names")
    return names if isinstance(names, list | tuple) else ()


def fields_of(overlays: Sequence[Overlay]) -> list[str]:
    """The fields to read for these."""
    names = [
        name
        for one in overlays
        if one.draws != "mask"
        # How large an image is tells how a run-length mask lies on it.
        for name in (one.field, one.labels, one.scores, one.image if one.field == RLE else None)
        if name
    ]
    return list(dict.fromkeys(names))


# -- finding -------------------------------------------------------------------------------------------------


def _is_rle(name: str, kind: Field) -> bool:
    return name == RLE and isinstance(kind, List)


def _candidate(name: str, kind: Field, image: str) -> Iterator[Overlay]:
    if isinstance(kind, Image) and kind.mask:
        yield Overlay(name, "mask", image, why="a mask")
    elif isinstance(kind, Boxes):
        yield Overlay(name, "boxes", image)
    elif isinstance(kind, Keypoints):
        yield Overlay(name, "points", image)
    elif isinstance(kind, Json):
        # Its values tell.
        yield Overlay(name, "annotations", image)
    elif isinstance(kind, Tensor):
        shape, numeric = kind.shape, np.dtype(kind.dtype).kind in "iuf"
        if numeric and len(shape) in (1, 2) and shape[-1] == 4 and _BOX.search(name):
            yield Overlay(name, "boxes", image)
        elif numeric and len(shape) in (2, 3) and shape[-1] in (2, 3) and _POINTS.search(name):
            yield Overlay(name, "points", image)
        elif np.dtype(kind.dtype).kind in "biu" and len(shape) in (2, 3) and _MASK.search(name):
            yield Overlay(name, "mask", image, why="whole numbers under the name of a mask")


def _looked_at(one: Overlay, samples: list[dict[str, Cell]], schema: Any) -> Iterator[Overlay]:
    kind = schema[one.field]
    if isinstance(kind, Polygons):
        one = dataclasses.replace(one, relative=kind.normalized, why="outlines")
    if _is_rle(one.field, kind):
        one = dataclasses.replace(one, why="run-length masks")
    one = dataclasses.replace(one, labels=_classes_of_rows(one.field, schema))
    if one.draws == "mask" or isinstance(kind, Polygons) or _is_rle(one.field, kind):
        yield one
        return
    boxes: list[tuple[npt.NDArray[np.float64], float, float]] = []
    points: list[tuple[npt.NDArray[np.float64], float, float]] = []
    draws = one.draws
    for cells in samples:
        try:
            value = cells[one.field].value()
            size = size_of(cells[one.image])
        except (BatchplantError, OSError, MemoryError):
            continue
        if value is None:
            continue
        if draws == "annotations" and _BOX.search(one.field) and of_numbers("boxes", value):
            # Lists of four numbers, where a format has no arrays.
            draws = "boxes"
        made = of_json(value) if draws == "annotations" else of_numbers(draws, value)
        for name, into in (("boxes", boxes), ("points", points)):
            if made.get(name):
                flat = np.array([box for box in made[name] if box is not None], dtype=np.float64)
                into.append((flat.reshape(-1, 4) if name == "boxes" else flat[..., :2].reshape(-1, 2),
                             float(size["width"]), float(size["height"])))  # fmt: skip
    if draws == "points" or (draws == "annotations" and points and not boxes):
        relative = bool(points) and max(float(flat.max(initial=0)) for flat, _, _ in points) <= 1.0
        relative = kind.normalized if isinstance(kind, Keypoints) else relative
        why = _why("", relative)
        yield dataclasses.replace(one, draws=draws, relative=relative, why=why, choices=("unit",))
    elif boxes or draws == "boxes":
        if isinstance(kind, Boxes):
            format, relative = kind.format, kind.normalized
        else:
            format, relative = guess(boxes, one.field if draws == "boxes" else "bbox of COCO")
        beside = _beside(one, schema) if draws == "boxes" else {}
        why = _why(format, relative)
        yield dataclasses.replace(
            one, draws=draws, format=format, relative=relative, why=why, choices=("format", "unit"), **beside
        )


def guess(boxes: Sequence[tuple[npt.NDArray[np.float64], float, float]], name: str) -> tuple[str, bool]:
    """How boxes are meant: format, and whether relative. Each with the width and height of its image."""
    filled = [one for one in boxes if len(one[0])]
    relative = bool(filled) and max(float(flat.max()) for flat, _, _ in filled) <= 1.5
    lower = name.lower()
    for format in ("cxcywh", "xyxy", "xywh"):
        if format in lower:
            return format, relative
    if "yolo" in lower:
        return "cxcywh", True
    if not filled:
        return ("xywh" if "bbox" in lower else "xyxy"), False
    scaled = [
        flat if relative else flat / np.array([width, height, width, height])
        for flat, width, height in filled
    ]
    every = np.concatenate(scaled)
    x, y, third, fourth = every.T
    # The share of boxes that lie on the image, were they meant so.
    near = 0.02
    fits = {
        "xyxy": (third >= x) & (fourth >= y) & (every.max(axis=1) <= 1 + near) & (every.min(axis=1) >= -near),
        "xywh": (x + third <= 1 + near) & (y + fourth <= 1 + near) & (every.min(axis=1) >= -near),
        "cxcywh": (np.abs(x - 0.5) + third / 2 <= 0.5 + near) & (np.abs(y - 0.5) + fourth / 2 <= 0.5 + near),
    }  # fmt: skip
    shares = {format: float(good.mean()) for format, good in fits.items()}
    # COCO's own name for x, y, width, height; else corners are the most common.
    order = (
        ("xywh", "cxcywh", "xyxy") if "coco" in lower else ("xyxy", "cxcywh" if relative else "xywh", "xywh")
    )
    best = max(shares.values())
    return next(format for format in (*order, *FORMATS) if shares[format] >= best - 1e-9), relative


def _classes_of_rows(field: str, schema: Any) -> str | None:
    """The classes of the objects that a field has a row for each of, as the boxes beside it say."""
    rows = next(
        (kind.labels for kind in schema.values() if isinstance(kind, Boxes) and field in kind.labels), ()
    )
    return next((name for name in rows if isinstance(schema.get(name), Labels)), None)


def _why(format: str, relative: bool) -> str:
    words = {"xyxy": "corners", "xywh": "corner and size", "cxcywh": "middle and size", "": "points"}
    return f"looks like {words[format]}, {'from 0 to 1' if relative else 'in pixels'}"


def _beside(one: Overlay, schema: Any) -> dict[str, str]:
    """The fields with the labels and the scores of boxes: one value for each."""
    found: dict[str, str] = {}
    flat = {
        name: kind
        for name, kind in schema.items()
        if name != one.field
        and (isinstance(kind, Json) or (isinstance(kind, Tensor) and len(kind.shape) == 1))
    }
    for role, pattern in (("scores", _SCORES), ("labels", _LABELS)):
        fitting = [name for name in flat if pattern.search(name) and name not in found.values()]
        if fitting:
            found[role] = fitting[0]
    return found
