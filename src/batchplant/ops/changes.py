"""Changes that augmentation makes to images, by number: what the native core does, and a device as well.

An op draws :class:`Changes`: for every image of a batch which changes, one after the other, and how much of
each. Then ``change`` makes them in one pass over the batch, and ``changes_device`` on tensors.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from .cutting import colour, engine
from .geometry import F64, I32, Motion

U8 = npt.NDArray[np.uint8]
# For each change; all but AFFINE use the first only.
AMOUNTS = 6


class Change(enum.IntEnum):
    """What its amounts mean is said in native/images/changes.hpp."""

    NONE = 0
    BRIGHTNESS = 1
    CONTRAST = 2
    SATURATION = 3
    SHARPNESS = 4
    POSTERIZE = 5
    SOLARIZE = 6
    INVERT = 7
    AUTOCONTRAST = 8
    EQUALIZE = 9
    JPEG = 10
    AFFINE = 11


@dataclasses.dataclass(frozen=True)
class Changes:
    """codes: (images, steps). amounts: (images, steps, AMOUNTS)."""

    codes: U8
    amounts: F64

    @staticmethod
    def none(images: int, steps: int) -> Changes:
        return Changes(np.zeros((images, steps), np.uint8), np.zeros((images, steps, AMOUNTS)))

    def motion(self, sizes: I32) -> Motion | None:
        """Where they take the pixels of images of these sizes."""
        if not (self.codes == Change.AFFINE).any():
            return None
        matrix = np.broadcast_to(np.eye(3), (len(sizes), 3, 3)).copy()
        for step in range(self.codes.shape[1]):
            rows = np.flatnonzero(self.codes[:, step] == Change.AFFINE)
            back = np.broadcast_to(np.eye(3), (len(rows), 3, 3)).copy()
            back[:, :2] = self.amounts[rows, step].reshape(-1, 2, 3)
            matrix[rows] = np.linalg.inv(back) @ matrix[rows]
        return Motion(matrix, np.asarray(sizes, dtype=np.int32))


def change(images: Any, changes: Changes, fill: Any = 0, smooth: bool = False) -> Any:
    """Images (n, height, width, channels) of bytes, changed; in place, where they lie in one piece.

    ``fill``: what moves into an image. ``smooth``: pixels that are moved are blended of four.
    """
    images = np.ascontiguousarray(images)
    fill = colour(fill, images.shape[-1])
    _native.change_images(images, changes.codes, changes.amounts, fill, smooth, engine())
    return images


def mix_changed(images: Any, chains: list[Changes], weights: F64, fill: Any = 0, smooth: bool = False) -> Any:
    """The sum of the images as they are and after each of the chains, by weight; in place as ``change``.

    ``weights``: (n, 1 + chains), that of the image as it is first.
    """
    images = np.ascontiguousarray(images)
    codes = np.concatenate([one.codes for one in chains], axis=1)
    amounts = np.concatenate([one.amounts for one in chains], axis=1)
    fill = colour(fill, images.shape[-1])
    _native.mix_changed(images, codes, amounts, weights.astype(np.float32), fill, smooth, engine())
    return images
