"""Motion of the pixels of images, by which boxes, keypoints and masks move along.

Positions are (x, y) with x to the right and y down, and whole numbers are the corners of pixels: the middle
of the first pixel is (0.5, 0.5), an image reaches from (0, 0) to (width, height).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from ..schema.columns import I64, AnyArray

F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]


@dataclasses.dataclass(frozen=True)
class Motion:
    """Map of positions of the images of a batch, one row for each.

    matrix: (n, 3, 3), from positions before to positions after it. sizes: (n, 2), height and width after it.
    samples: pixels are sampled after it; motions up to then are one step for them.
    """

    matrix: F64
    sizes: I32
    samples: bool = True

    def __len__(self) -> int:
        return len(self.sizes)

    def then(self, following: Motion) -> Motion:
        """Compose with a motion that follows this one."""
        return Motion(following.matrix @ self.matrix, following.sizes)

    def take(self, rows: I64 | list[int]) -> Motion:
        return Motion(self.matrix[rows], self.sizes[rows], self.samples)

    def points(self, row: int, points: npt.ArrayLike) -> F64:
        """Positions (…, 2) of one image after the motion."""
        points = np.asarray(points, dtype=np.float64)
        moved = points @ self.matrix[row, :, :2].T + self.matrix[row, :, 2]
        return moved[..., :2] / moved[..., 2:]


def still(sizes: I32) -> Motion:
    """Nothing moves."""
    return Motion(np.broadcast_to(np.eye(3), (len(sizes), 3, 3)).copy(), np.asarray(sizes, dtype=np.int32))


def stretched(boxes: F64, sizes: AnyArray) -> Motion:
    """The boxes (left, top, right, bottom) become the whole of images of these sizes."""
    boxes = np.asarray(boxes, dtype=np.float64)
    after = np.broadcast_to(np.asarray(sizes, dtype=np.int32), (len(boxes), 2))
    matrix = np.zeros((len(boxes), 3, 3))
    for axis in (0, 1):
        scale = after[:, 1 - axis] / (boxes[:, 2 + axis] - boxes[:, axis])
        matrix[:, axis, axis] = scale
        matrix[:, axis, 2] = -scale * boxes[:, axis]
    matrix[:, 2, 2] = 1
    return Motion(matrix, after)


def shifted(
    sizes: I32, right: npt.ArrayLike, down: npt.ArrayLike, after: npt.ArrayLike | None = None
) -> Motion:
    """The upper left corner comes to (right, down) in images of the sizes ``after``."""
    motion = still(sizes)
    motion.matrix[:, 0, 2], motion.matrix[:, 1, 2] = right, down
    if after is None:
        return motion
    return Motion(motion.matrix, np.broadcast_to(np.asarray(after, dtype=np.int32), motion.sizes.shape))


def mirrored(sizes: I32, across: npt.ArrayLike | None = None, down: npt.ArrayLike | None = None) -> Motion:
    """Left and right (``across``) or top and bottom (``down``) change places where these are true."""
    motion = still(sizes)
    for axis, flags in ((0, across), (1, down)):
        if flags is not None:
            rows = np.flatnonzero(flags)
            motion.matrix[rows, axis, axis] = -1
            motion.matrix[rows, axis, 2] = motion.sizes[rows, 1 - axis]
    return motion
