"""Masks as COCO keeps them: run-length text, outlines, and the pixels of both.

Runs go down the columns, pixels that are out and pixels that are in by turns. Outlines are followed on a grid
five times as fine as the pixels, as pycocotools does, so that the same pixels come out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _native
from ...errors import DamagedError, EncodeError
from ...schema.columns import I64, U8, AnyArray
from ...storage import limits

Rings = Sequence[Sequence[float]]


def decode(text: str | bytes, height: int, width: int) -> U8:
    """The mask that a run-length text means: 1 where it is in."""
    return painted([(1, [], text if isinstance(text, str) else text.decode())], height, width)


def encode(mask: npt.ArrayLike) -> str:
    """The run-length text of a mask (height, width): what is not 0 is in."""
    pixels = np.asarray(mask)
    if pixels.ndim != 2:
        raise EncodeError(f"a mask has a height and a width, not the shape {pixels.shape}")
    return _native.rle_text(_native.rle_of_mask(np.ascontiguousarray(pixels != 0).view(np.uint8))).decode()


def of_polygons(rings: Rings, height: int, width: int) -> str:
    """The run-length text of what lies in any of these rings ``[x, y, x, y, …]``."""
    return encode(painted([(1, rings, "")], height, width))


def counts_of(text: bytes, height: int, width: int) -> I64:
    """The runs of a run-length text."""
    counts = _native.rle_counts(np.frombuffer(text, dtype=np.uint8), height * width)
    if counts is None:
        raise DamagedError(f"it is no run-length text of {height}×{width} pixels")
    return counts


def text_of(rle: Any, height: int, width: int) -> str:
    """The run-length text of a segmentation that is an object: ``{"size": [h, w], "counts": …}``."""
    try:
        size, counts = [int(side) for side in rle["size"]], rle["counts"]
        runs = None if isinstance(counts, str) else np.array(counts, dtype=np.int64)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise DamagedError(f"{json.dumps(rle)[:60]} is no run-length mask") from None
    if size != [height, width]:
        shown = "×".join(map(str, size))
        raise DamagedError(f"a run-length mask of {shown} in an image of {height}×{width}")
    if runs is None:
        counts_of(counts.encode(), height, width)
        return str(counts)
    if runs.ndim != 1 or (runs < 0).any() or int(runs.sum()) != height * width:
        raise DamagedError(f"runs that are not {height}×{width} pixels together")
    return _native.rle_text(runs).decode()


def painted(objects: Iterable[tuple[int, Rings, str]], height: int, width: int) -> AnyArray:
    """An image of objects (value, rings, run-length text), one after another; 0 where there is none."""
    limits.check("a mask", 2 * height * width)
    listed = list(objects)
    deep = max((value for value, *_ in listed), default=0) > 255
    canvas = np.zeros((height, width), dtype=np.uint16 if deep else np.uint8)
    for value, rings, text in listed:
        if text:
            _native.rle_paint(counts_of(text.encode(), height, width), canvas, value)
        for ring in rings:
            counts = _native.rle_of_polygon(np.array(ring, dtype=np.float64), height, width)
            if counts is None:
                raise DamagedError("a polygon reaches too far out of its image")
            _native.rle_paint(counts, canvas, value)
    return canvas


def outlines(text: str, height: int, width: int) -> list[list[float]]:
    """The rings around what is in, along the edges of its pixels; holes are rings, too."""
    mask = np.pad(decode(text, height, width).astype(np.int8), 1)
    # Edges of pixels, each with what is in on its right: from a corner to the next.
    ends: dict[tuple[int, int], list[tuple[int, int]]] = {}
    down, right = np.diff(mask, axis=0), np.diff(mask, axis=1)
    for y, x in np.argwhere(down).tolist():
        pair = ((x - 1, y), (x, y)) if down[y, x] > 0 else ((x, y), (x - 1, y))
        ends.setdefault(pair[0], []).append(pair[1])
    for y, x in np.argwhere(right).tolist():
        pair = ((x, y), (x, y - 1)) if right[y, x] > 0 else ((x, y - 1), (x, y))
        ends.setdefault(pair[0], []).append(pair[1])
    rings = []
    while ends:
        start = vertex = next(iter(ends))
        corners: list[tuple[int, int]] = []
        while True:
            after = ends[vertex].pop()
            if not ends[vertex]:
                del ends[vertex]
            straight = len(corners) > 0 and (after[0] == corners[-1][0] or after[1] == corners[-1][1])
            if not straight:
                corners.append(vertex)
            vertex = after
            if vertex == start:
                break
        # It may have begun in the midst of an edge.
        if any(corners[-1][side] == corners[0][side] == corners[1][side] for side in (0, 1)):
            corners.pop(0)
        rings.append([float(value) for corner in corners for value in corner])
    return rings
