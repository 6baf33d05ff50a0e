"""Masks, images whose values are classes: colours and a legend."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ....errors import DecodeError
from ....schema.columns import U8
from . import colours

# Classes that a legend lists, and pixels along the longer side of a coloured mask.
MAX_LEGEND_CLASSES, MAX_SIDE_PIXELS = 64, 2048


def classes(value: Any) -> npt.NDArray[np.int64]:
    """Return the class of each pixel (height, width); of a stack of masks, the first that covers it."""
    array = np.asarray(value)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.dtype.kind not in "biu":
        raise DecodeError(f"values of {array.dtype} are no classes")
    if array.ndim == 2:
        return array.astype(np.int64)
    if array.ndim != 3:
        raise DecodeError(f"an array of shape {array.shape} is no mask")
    if array.shape[2] in (3, 4) and array.shape[0] > 4:
        # Classes are coded as colours.
        packed = array[:, :, :3].astype(np.int64)
        return (packed[:, :, 0] << 16) | (packed[:, :, 1] << 8) | packed[:, :, 2]
    covered = array != 0
    return np.where(covered.any(axis=0), covered.argmax(axis=0) + 1, 0)


def legend(mask: npt.NDArray[np.int64], names: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """List the classes of a mask, the one with the most pixels first."""
    values, counts = np.unique(mask, return_counts=True)
    largest = np.argsort(-counts, kind="stable")[:MAX_LEGEND_CLASSES]
    return [
        {
            "class": number, "share": int(counts[position]) / mask.size,
            "colour": colours.css(colours.of_class(number)),
            **({"name": names[number]} if 0 <= number < len(names) else {}),
        }
        for position in largest.tolist()
        for number in [int(values[position])]
    ]  # fmt: skip


def colour_classes(mask: npt.NDArray[np.int64], longest: int = MAX_SIDE_PIXELS, *, over: bool = False) -> U8:
    """Return RGBA pixels, no side longer than ``longest``; with ``over`` class 0 is transparent."""
    step = max(1, -(-max(mask.shape, default=1) // longest))
    small = mask[::step, ::step]
    values, inverse = np.unique(small, return_inverse=True)
    table = np.array(
        [(*colours.of_class(int(value)), 0 if over and value == 0 else 255) for value in values],
        dtype=np.uint8,
    )
    return table.reshape(-1, 4)[inverse].reshape(*small.shape, 4)
