"""Masks: images whose values are classes, as colours and with a legend."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ....errors import DecodeError
from ....schema.columns import U8
from . import colours

# Classes that a legend lists, and a side of what is drawn.
LISTED, LARGEST = 64, 2048


def classes(value: Any) -> npt.NDArray[np.int64]:
    """The class of each pixel (height, width); of several masks the number of the first that has it."""
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
        # Classes that are colours: each colour is one.
        packed = array[:, :, :3].astype(np.int64)
        return (packed[:, :, 0] << 16) | (packed[:, :, 1] << 8) | packed[:, :, 2]
    covered = array != 0
    return np.where(covered.any(axis=0), covered.argmax(axis=0) + 1, 0)


def legend(found: npt.NDArray[np.int64], names: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """The classes that there are, the one with the most pixels first."""
    values, counts = np.unique(found, return_counts=True)
    most = np.argsort(-counts, kind="stable")[:LISTED]
    return [
        {
            "class": number, "share": int(counts[one]) / found.size,
            "colour": colours.css(colours.of_class(number)),
            **({"name": names[number]} if 0 <= number < len(names) else {}),
        }
        for one in most.tolist()
        for number in [int(values[one])]
    ]  # fmt: skip


def coloured(found: npt.NDArray[np.int64], largest: int = LARGEST, *, over: bool = False) -> U8:
    """RGBA pixels, no side longer than ``largest``. ``over``: to lay over an image, class 0 left out."""
    step = max(1, -(-max(found.shape, default=1) // largest))
    small = found[::step, ::step]
    values, inverse = np.unique(small, return_inverse=True)
    table = np.array(
        [(*colours.of_class(int(one)), 0 if over and one == 0 else 255) for one in values], dtype=np.uint8
    )
    return table.reshape(-1, 4)[inverse].reshape(*small.shape, 4)
