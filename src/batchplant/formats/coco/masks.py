"""Masks of objects: COCO's run-length text, the outlines beside it, and pictures painted with both."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _native, limits
from ...columns import I64
from ...errors import DamagedError


def counts_of(text: bytes, height: int, width: int) -> I64:
    """The runs of a run-length text, down the columns: out, in, out …"""
    found = _native.rle_counts(np.frombuffer(text, dtype=np.uint8), height * width)
    if found is None:
        raise DamagedError(f"it is no run-length text of {height}×{width} pixels")
    return found


def rle_text(found: Any, height: int, width: int) -> str:
    """The run-length text of a segmentation that is an object: ``{"size": [h, w], "counts": …}``."""
    try:
        size, counts = [int(one) for one in found["size"]], found["counts"]
        runs = None if isinstance(counts, str) else np.array(counts, dtype=np.int64)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise DamagedError(f"{json.dumps(found)[:60]} is no run-length mask") from None
    if size != [height, width]:
        shown = "×".join(map(str, size))
        raise DamagedError(f"a run-length mask of {shown} in a picture of {height}×{width}")
    if runs is None:
        counts_of(counts.encode(), height, width)
        return str(counts)
    if runs.ndim != 1 or (runs < 0).any() or int(runs.sum()) != height * width:
        raise DamagedError(f"runs that are not {height}×{width} pixels together")
    return _native.rle_text(runs).decode()


def painted(
    objects: Sequence[tuple[int, list[list[float]], str]], height: int, width: int
) -> npt.NDArray[Any]:
    """A picture of objects (value, rings, run-length text), one after another; 0 where there is none."""
    limits.check("a mask", 2 * height * width)
    deep = max((value for value, *_ in objects), default=0) > 255
    canvas = np.zeros((height, width), dtype=np.uint16 if deep else np.uint8)
    for value, rings, text in objects:
        if text:
            _native.rle_paint(counts_of(text.encode(), height, width), canvas, value)
        for ring in rings:
            counts = _native.rle_of_polygon(np.array(ring, dtype=np.float64), height, width)
            if counts is None:
                raise DamagedError("a polygon reaches too far out of its picture")
            _native.rle_paint(counts, canvas, value)
    return canvas
