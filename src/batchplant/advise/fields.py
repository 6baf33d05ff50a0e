"""The facts of one field, from the cells that were looked at."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codecs.media import image
from ..columns import Column, Masked, Ragged, column_runs
from ..schema import Field, Float, Image, Int, Tensor, Text

# More classes than this are no labels.
MOST_CLASSES = 10_000
LEAST_LABELS = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class FieldFacts:
    """What the cells of a field are.

    bytes: mean of a cell; missing: how many have none. Pictures: encodings by count, width and height
    (median), pixel_bytes: encoded bytes a pixel. labels: few values that many samples share, as numbers or
    text; classes: how many; sorted: equal ones stand together. padding: the part of all values that fills up.
    """

    name: str
    kind: str
    field: Field
    bytes: float = 0.0
    missing: int = 0
    encodings: Mapping[str, int] = dataclasses.field(default_factory=dict)
    width: float = 0.0
    height: float = 0.0
    pixel_bytes: float = 0.0
    labels: str = ""
    classes: int = 0
    sorted: bool = False
    padding: float = 0.0
    wide: bool = False


def describe(name: str, field: Field, column: Column) -> FieldFacts:
    sizes = column_runs(column)[2]
    there = sizes[sizes >= 0]
    found: dict[str, Any] = {
        "bytes": float(there.mean()) if len(there) else 0.0,
        "missing": int((sizes < 0).sum()),
    }
    if isinstance(field, Image) and isinstance(column, Ragged):
        found |= _pictures(column)
    values = _values(field, column)
    if values is not None and values.ndim == 1:
        found |= _labels(field, values)
    if values is not None and values.ndim == 2 and values.dtype.kind in "iu":
        found["padding"] = _padding(values)
    found["wide"] = isinstance(field, Float | Tensor) and field.dtype == "float64"
    return FieldFacts(name=name, kind=field.kind, field=field, **found)


def _values(field: Field, column: Column) -> npt.NDArray[Any] | None:
    """Numbers, or texts, one row for each cell; None where there are no such."""
    if type(field) is Text and isinstance(column, Ragged):
        return np.array([b"" if cell is None else cell.tobytes() for cell in column], dtype=object)
    if isinstance(column, Masked):
        return column.values
    return None if isinstance(column, Ragged) else column


def _pictures(column: Ragged) -> dict[str, Any]:
    headers, raw = image.probe(column), column.raw
    encodings = Counter(
        "raw" if raw[row] else image.ENCODINGS[code] or "?" for row, code in enumerate(headers[:, 0])
    )
    known = headers[:, 1] > 0
    if not known.any():
        return {"encodings": dict(encodings)}
    sizes = headers[known, 1:3].astype(np.float64)
    width, height = np.median(sizes, axis=0)
    pixels = sizes.prod(axis=1).sum()
    return {
        "encodings": dict(encodings.most_common()), "width": float(width), "height": float(height),
        "pixel_bytes": float(column.sizes[known].sum() / pixels),
    }  # fmt: skip


def _labels(field: Field, values: npt.NDArray[Any]) -> dict[str, Any]:
    """Whether a field is labels, how many classes there are, and whether equal ones stand together."""
    if len(values) < LEAST_LABELS or type(field) not in (Int, Text):
        return {}
    distinct = len(set(values.tolist()))
    named = isinstance(field, Int) and field.names is not None
    few = 1 < distinct <= min(MOST_CLASSES, max(2, len(values) // 4))
    if not (few or (named and distinct > 1)):
        return {}
    changes = int(np.count_nonzero(values[1:] != values[:-1]))
    # In random order nearly every neighbour differs; in sorted order one for each class.
    together = changes <= 1.5 * distinct and changes < 0.5 * len(values) * (1 - 1 / distinct)
    return {
        "labels": "text" if type(field) is Text else "number",
        "classes": distinct,
        "sorted": bool(together),
    }


def _padding(values: npt.NDArray[Any]) -> float:
    """The part of the values behind the last that is not the filler: the most common last value."""
    if values.shape[1] < 8:
        return 0.0
    last = Counter(values[:, -1].tolist()).most_common(1)[0]
    if last[1] < 0.3 * len(values):
        return 0.0
    own = values != last[0]
    tails = np.where(own.any(axis=1), own[:, ::-1].argmax(axis=1), values.shape[1])
    return float(tails.sum() / values.size)
