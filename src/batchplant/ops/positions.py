"""Positions in images: boxes and rings of points, moved and cut; and the rows that are left of a batch."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from ..errors import DecodeError
from ..schema.columns import I64
from .base import CellErrors
from .geometry import F64

# -- rows --------------------------------------------------------------------------------------------------


def as_ragged(batch: Any, width: int | None = None) -> tuple[Any, I64]:
    """(values, offsets) of an array, of (values, offsets) or of a list of arrays, where None is none."""
    if isinstance(batch, tuple):
        return batch[0], np.asarray(batch[1], dtype=np.int64)
    if isinstance(batch, np.ndarray):
        offsets = np.arange(len(batch) + 1, dtype=np.int64) * batch.shape[1]
        return batch.reshape(-1, *batch.shape[2:]), offsets
    arrays = [None if one is None else np.asarray(one) for one in batch]
    like = next(
        (one for one in arrays if one is not None and one.ndim), np.empty((0, width or 1), np.float32)
    )
    filled = [np.empty((0, *like.shape[1:]), like.dtype) if one is None else one for one in arrays]
    offsets = np.cumsum([0, *map(len, filled)], dtype=np.int64)
    return np.concatenate(filled) if filled else like[:0], offsets


def taken(batch: Any, kept: Any) -> Any:
    """The rows of (values, offsets) that are kept."""
    values, offsets = batch
    counts = np.concatenate([[0], np.cumsum(kept)])
    return values[kept], counts[offsets]


def rows_taken(batch: Any, kept: Any, offsets: I64, name: str, boxes: str) -> Any:
    """What has a row for each box, without those of the boxes that are gone; CellErrors where it has not."""
    if isinstance(batch, list):
        lengths = np.array([0 if one is None else len(one) for one in batch], dtype=np.int64)
    else:
        batch = as_ragged(batch)
        lengths = np.diff(batch[1])
    wrong = np.flatnonzero(lengths != np.diff(offsets))
    if len(wrong):
        count = np.diff(offsets)
        raise CellErrors(
            {
                int(row): DecodeError(f"{lengths[row]} rows of {name} for {count[row]} boxes of {boxes}")
                for row in wrong
            }
        )
    if not isinstance(batch, list):
        return taken(batch, kept)
    return [
        None if one is None else _rows(one, kept[offsets[row] : offsets[row + 1]])
        for row, one in enumerate(batch)
    ]


def gathered(batch: Any, sources: Any) -> Any:
    """The values of these samples of a batch, as a batch."""
    if isinstance(batch, list):
        return [batch[one] for one in sources]
    values, offsets = as_ragged(batch)
    lengths = np.diff(offsets)[sources]
    after = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    rows = np.arange(after[-1]) - np.repeat(after[:-1] - offsets[:-1][sources], lengths)
    return values[rows], after


def regrouped(batch: Any, rows: I64, offsets: I64) -> Any:
    """Rows of all samples, by their number, as the samples that the offsets tell."""
    if not isinstance(batch, list):
        return as_ragged(batch)[0][rows], offsets
    flat = [row for one in batch for row in (() if one is None else one)]
    return [[flat[row] for row in rows[start:end]] for start, end in itertools.pairwise(offsets)]


def merged(batch: Any, first: I64) -> Any:
    """Neighbouring samples as one; ``first``: where each begins, and the end."""
    if isinstance(batch, list):
        return [
            [row for one in batch[start:end] for row in (() if one is None else one)]
            for start, end in itertools.pairwise(first)
        ]
    values, offsets = batch
    return values, offsets[first]


def _rows(one: Any, kept: Any) -> Any:
    if isinstance(one, np.ndarray):
        return one[kept]
    return [value for value, stays in zip(one, kept, strict=True) if stays]


# -- numbers -----------------------------------------------------------------------------------------------


def corners_of(boxes: F64, format: str) -> F64:
    """Left, top, right, bottom."""
    if format == "xyxy":
        return boxes
    first, size = boxes[:, :2], boxes[:, 2:]
    corner = first if format == "xywh" else first - size / 2
    return np.concatenate([corner, corner + size], axis=1)


def from_corners(boxes: F64, format: str) -> F64:
    if format == "xyxy":
        return boxes
    corner, size = boxes[:, :2], boxes[:, 2:] - boxes[:, :2]
    return np.concatenate([corner if format == "xywh" else corner + size / 2, size], axis=1)


def positions(points: F64, matrix: F64) -> F64:
    """Where points (rows, points, 2) go, by a matrix for each row."""
    x, y = _moved(points[..., 0].T, points[..., 1].T, matrix)
    return np.stack([x.T, y.T], axis=-1)


def _moved(x: F64, y: F64, matrix: F64) -> tuple[F64, F64]:
    """The same of (points, rows): arithmetic on long rows is many times as fast as on many small matrices."""
    across, down, depth = np.ascontiguousarray(matrix.transpose(1, 2, 0))
    found = [side[0] * x + side[1] * y + side[2] for side in (across, down)]
    if (depth != [[0], [0], [1]]).any():
        far = depth[0] * x + depth[1] * y + depth[2]
        found = [one / far for one in found]
    return found[0], found[1]


def around(boxes: F64, matrix: F64) -> F64:
    """The boxes around the corners, once these were moved."""
    left, top, right, bottom = boxes.T
    x, y = _moved(np.stack([left, right, right, left]), np.stack([top, top, bottom, bottom]), matrix)
    return np.stack([x.min(axis=0), y.min(axis=0), x.max(axis=0), y.max(axis=0)], axis=1)


def area_of(boxes: F64) -> F64:
    found: F64 = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return found


# -- rings -------------------------------------------------------------------------------------------------


def clipped_rings(points: F64, ring: I64, sizes: Any) -> tuple[F64, I64]:
    """What of rings lies in their images: their points (points, 2), and which ring each is of.

    ``ring`` counts up; ``sizes``: height and width for each. As Sutherland and Hodgman: cut by one edge after
    the other, all rings at once.
    """
    far = np.asarray(sizes, dtype=np.float64)[:, ::-1]
    for axis in (0, 1):
        for sign in (1.0, -1.0):
            depth = points[:, axis] if sign > 0 else far[ring, axis] - points[:, axis]
            if len(points) and depth.min() < 0:
                points, ring = _cut(points, ring, depth)
    return points, ring


def _cut(points: F64, ring: I64, depth: F64) -> tuple[F64, I64]:
    """The parts whose depth is not below 0."""
    first = np.flatnonzero(np.diff(ring, prepend=-1))
    after = np.arange(1, len(points) + 1)
    after[np.append(first[1:], len(points)) - 1] = first
    crosses = (depth >= 0) != (depth[after] >= 0)
    part = np.where(crosses, depth / np.where(crosses, depth - depth[after], 1.0), 0.0)
    at = points + part[:, None] * (points[after] - points)
    # Every point that is kept, then where its side leaves or comes in.
    kept = np.stack([depth >= 0, crosses], axis=1)
    return np.stack([points, at], axis=1)[kept], np.repeat(ring, kept.sum(axis=1))


def ring_areas(points: F64, ring: I64, count: int) -> F64:
    """The areas of rings; those without points have none."""
    if not len(points):
        return np.zeros(count)
    first = np.flatnonzero(np.diff(ring, prepend=-1))
    after = np.arange(1, len(points) + 1)
    after[np.append(first[1:], len(points)) - 1] = first
    (x, y), (u, v) = points.T, points[after].T
    return np.abs(np.bincount(ring, weights=x * v - u * y, minlength=count)) / 2
