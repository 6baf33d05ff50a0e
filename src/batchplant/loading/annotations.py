"""Annotations of images: boxes, keypoints and polygons follow the pixels, labels follow their boxes.

``geometric_transforms`` returns how the pipeline of an image moves its pixels; ``AnnotationTransforms``
applies that to the annotations of a batch. :mod:`.plan` decides which output follows which image.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple

import numpy as np

from ..errors import DataError
from ..ops.annotations import MoveBoxes, MovePolygons, MoveRle, move_points, take_label_rows
from ..ops.base import Batch, CellErrors, Draws
from ..ops.geometry import Motion, still
from ..ops.warping import Warp
from ..schema.columns import I32, I64, AnyArray, Flags
from .images import Failures, Request
from .plan import Output, Plan


class GeometricTransforms(NamedTuple):
    """Transforms of the images of a batch, step by step, from their stored ``sizes`` (height, width) on."""

    sizes: I32
    steps: tuple[Motion, ...]

    @property
    def composed(self) -> Motion:
        """All steps as one."""
        return functools.reduce(Motion.then, self.steps)

    def drawn(self, name: str) -> AnyArray:
        """Return a parameter of the transform, as an array with a row for each image.

        matrix: from positions in the stored image to those in the batch. size: the stored height and width.
        box: the visible part of the stored image (left, top, right, bottom). flip: whether it is mirrored.
        angle: its rotation in degrees, clockwise.
        """
        composed = self.composed
        if name == "matrix":
            return composed.matrix
        if name == "size":
            return self.sizes
        mirrored: Flags = np.linalg.det(composed.matrix) < 0
        if name == "flip":
            return mirrored
        if name == "angle":
            # For a mirrored image, the rotation after mirroring.
            side = composed.matrix[:, :2, 0] * np.where(mirrored, -1, 1)[:, None]
            return np.degrees(np.arctan2(side[:, 1], side[:, 0])) + 0.0
        height, width = composed.sizes[:, 0], composed.sizes[:, 1]
        zero = np.zeros(len(composed))
        corners = np.stack([zero, zero, width, zero, width, height, zero, height], axis=1).reshape(-1, 4, 2)
        stored = move_points(corners, np.linalg.inv(composed.matrix).astype(np.float64))
        return np.concatenate([stored.min(axis=1), stored.max(axis=1)], axis=1)


def geometric_transforms(
    output: Output, sizes: I32, ids: I64, *, seed: int, epoch: int
) -> GeometricTransforms:
    """Return the transforms from stored images of these sizes (after EXIF rotation) to those of the batch."""
    current = sizes
    motions: list[Motion] = []
    stage = output.image
    first = () if stage is None else stage.steps
    for number, step in enumerate((*first, *output.steps)):
        draws = Draws(seed, epoch, ids, step.key)
        # Warps that run as one op still count one by one: each cuts off what it moves out of the image.
        chain = step.op.chain(current, draws) if isinstance(step.op, Warp) else [step.op.move(current, draws)]
        moved = [motion for motion in chain if motion is not None]
        # Pixels are sampled once for all steps of the decoder, and once for warps that run as one op.
        inner = len(moved) if number < len(first) - 1 else max(len(moved) - 1, 0)
        motions += [dataclasses.replace(motion, samples=False) for motion in moved[:inner]] + moved[inner:]
        current = motions[-1].sizes if motions else current
    return GeometricTransforms(sizes, tuple(motions) or (still(sizes),))


class AnnotationTransforms:
    """Moves the annotations of images, batch by batch."""

    def __init__(self, plan: Plan) -> None:
        self._movers = [(output, output.mover) for output in plan.outputs if output.mover is not None]
        self._rows = [(output, output.rows_of) for output in plan.outputs if output.rows_of is not None]
        # The image outputs whose transforms are needed.
        self.images = {mover.of for _, mover in self._movers}
        self.images |= {output.of for output in plan.outputs if output.drawn}
        self._stored_sizes: dict[Hashable, I32] = {}

    def sizes(
        self, request: Request, read_sizes: Callable[[I64], I32] | None, key: Hashable, samples: int
    ) -> I32:
        """Return heights and widths of stored images.

        ``read_sizes`` reads them where the images of the request are cached in other sizes; they are then
        remembered under ``key``.
        """
        if read_sizes is None:
            sizes = request.sizes.copy()
        else:
            stored = self._stored_sizes.setdefault(key, np.zeros((samples, 2), dtype=np.int32))
            new = request.ids[~stored[request.ids].all(axis=1)]
            if len(new):
                stored[new] = read_sizes(new)
            sizes = stored[request.ids]
        for row in np.flatnonzero(~sizes.all(axis=1)).tolist():
            # The header does not tell the size.
            try:
                sizes[row] = request.pixels(row).shape[:2]
            except DataError:
                # The error is reported when the image is decoded.
                sizes[row] = 1
        return sizes

    def values(
        self,
        read: Callable[[Output], tuple[Batch, Failures]],
        transforms: Mapping[str, GeometricTransforms],
    ) -> tuple[dict[str, Batch], Failures]:
        """Return the transformed values of all annotations, as the steps of their outputs take them."""
        values: dict[str, Batch] = {}
        stored: dict[str, Batch] = {}
        rows_left: dict[str, tuple[Batch, I64]] = {}
        for output in dict.fromkeys([output for output, _ in (*self._movers, *self._rows)]):
            values[output.name], failures = read(output)
            if failures:
                return {}, {row: error.at(field=output.field) for row, error in failures.items()}
        field = ""
        try:
            for output, mover in self._movers:
                field = output.field
                transform = transforms[mover.of or ""]
                stored[output.name] = values[output.name]
                values[output.name], rows_left[output.name] = mover.move_with(
                    values[output.name], transform.steps, transform.sizes
                )
            for output, mover in self._movers:
                if isinstance(mover, MoveBoxes) and mover._areas is not None:
                    transform = transforms[mover.of or ""]
                    outlines = [
                        (outline, stored[label.name], values[label.name])
                        for label, outline in self._movers
                        if label.name in (mover.labels or ()) and isinstance(outline, MoveRle | MovePolygons)
                    ]
                    values[mover._areas] = mover.scale_areas(
                        values[mover._areas],
                        stored[output.name],
                        outlines,
                        (transform.steps, transform.sizes),
                    )
            for output, boxes in self._rows:
                field = output.field
                rows, offsets = rows_left[boxes]
                values[output.name] = take_label_rows(values[output.name], rows, offsets, output.name, boxes)
        except CellErrors as failed:
            return {}, {row: error.at(field=field) for row, error in failed.errors.items()}
        return values, {}
