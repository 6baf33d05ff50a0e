"""Where the images of a batch are taken by their whole pipeline; what belongs to them goes along."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np

from ..ops.base import Draws
from ..ops.geometry import Motion, still
from ..ops.positions import positions
from ..ops.warping import Warp
from ..schema.columns import I32, I64
from .plan import Output


class Moves(NamedTuple):
    """What became of the images of a batch, step by step, from those ``sizes`` (height, width) on."""

    sizes: I32
    steps: tuple[Motion, ...]

    @property
    def whole(self) -> Motion:
        """All steps as one."""
        return functools.reduce(Motion.then, self.steps)

    def kept(self, what: str) -> Any:
        """What was drawn, as an array with a row for each image.

        matrix: from positions in the stored image to those in the batch. size: the stored height and width.
        box: the part of the stored image that is seen (left, top, right, bottom). flip: whether it is
        mirrored. angle: by how many degrees it is turned, clockwise.
        """
        whole = self.whole
        if what == "matrix":
            return whole.matrix
        if what == "size":
            return self.sizes
        mirrored = np.linalg.det(whole.matrix) < 0
        if what == "flip":
            return mirrored
        if what == "angle":
            # Of a mirrored image, what it is turned by after that.
            side = whole.matrix[:, :2, 0] * np.where(mirrored, -1, 1)[:, None]
            return np.degrees(np.arctan2(side[:, 1], side[:, 0])) + 0.0
        height, width = whole.sizes[:, 0], whole.sizes[:, 1]
        zero = np.zeros(len(whole))
        corners = np.stack([zero, zero, width, zero, width, height, zero, height], axis=1).reshape(-1, 4, 2)
        back = positions(corners, np.linalg.inv(whole.matrix).astype(np.float64))
        return np.concatenate([back.min(axis=1), back.max(axis=1)], axis=1)


def moves(output: Output, sizes: I32, ids: I64, *, seed: int, epoch: int) -> Moves:
    """From stored images of these sizes (turned as their decoder turns them) to those of the batch."""
    at = sizes
    found: list[Motion] = []
    stage = output.image
    first = () if stage is None else stage.steps
    for number, step in enumerate((*first, *output.steps)):
        draws = Draws(seed, epoch, ids, step.key)
        # Several that are run as one are told apart: each cuts off what it takes out of the image.
        one = step.op.chain(at, draws) if isinstance(step.op, Warp) else [step.op.move(at, draws)]
        motions = [moved for moved in one if moved is not None]
        # The decoder's steps are one for the pixels, and so are several that are run as one.
        inside = len(motions) if number < len(first) - 1 else max(len(motions) - 1, 0)
        found += [dataclasses.replace(moved, samples=False) for moved in motions[:inside]] + motions[inside:]
        at = found[-1].sizes if found else at
    return Moves(sizes, tuple(found) or (still(sizes),))


def motion(output: Output, sizes: I32, ids: I64, *, seed: int, epoch: int) -> Motion:
    """All of it as one."""
    return moves(output, sizes, ids, seed=seed, epoch=epoch).whole
