"""Annotations move with the pixels of their image: boxes, keypoints, polygons, masks.

A loader gives these ops the motions of the image, one for each step that moves pixels, by the same draws.
After each motion, annotations are clipped to the image.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..codecs.media import rle
from ..errors import BatchplantError, DecodeError, OptionError
from ..schema import Boxes, Field, Keypoints, List, Polygons, Tensor, Text
from ..schema.columns import I64, AnyArray, AnyDType, Flags
from ..schema.kinds import check_box_format, swap_pairs
from .base import Batch, CellErrors, Draws, Op, Spec, check_probability
from .cutting import colour, engine
from .geometry import F64, I32, Motion
from .warping import inverses

# Fields of these names, among those with a row for each box, are run-length masks and areas, as in COCO.
RLE, AREA = "rle", "area"


class Mover(Op):
    """A first step that moves stored positions with their image.

    ``of``: the image, an output of the batch; None: what the field says. ``labels``: outputs with a row for
    each box.
    """

    of: str | None = None
    labels: tuple[str, ...] | None = None
    # In parts of the sides: as they are stored, and as they come out.
    _normalized: bool = False
    normalized: bool | None = None

    def infer(self, spec: Spec) -> Spec:
        # The plan takes it away before it asks the other steps.
        raise OptionError(f"{type(self).__name__} takes positions as they are stored: it is the first step")

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        raise NotImplementedError

    def bind(self, field: Field) -> Mover:
        """Return the mover for a field, whose kind gives the defaults; OptionError if it cannot hold such."""
        raise NotImplementedError

    def for_output(self) -> Mover:
        """Return a mover of this mover's output."""
        output_mover = copy.copy(self)
        output_mover._normalized = bool(self.normalized)
        return output_mover

    def infer_moved(self, spec: Spec) -> Spec:
        """Return the spec of moved values."""
        return spec

    def move_with(self, batch: Batch, steps: Sequence[Motion], sizes: I32) -> tuple[Batch, Batch]:
        """Return the batch after these motions of images of these sizes, and the rows left (or None).

        CellErrors where something is wrong with a sample.
        """
        # Data may have any number in the place of a position; one that is none ends up outside.
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            return self._move_batch(batch, steps, sizes)

    def _move_batch(self, batch: Batch, steps: Sequence[Motion], sizes: I32) -> tuple[Batch, Batch]:
        raise NotImplementedError

    def areas_of(self, batch: Batch, rows: I64, sizes: I32, *, stored: bool) -> F64:
        """The area of each object of a batch, in pixels; ``rows``: of which image each is."""
        raise NotImplementedError

    def _scaled(self, sizes: AnyArray, *, stored: bool) -> F64:
        """(x, y) of what positions are multiples of."""
        parts = self._normalized if stored else self.normalized
        return np.asarray(sizes)[..., ::-1].astype(np.float64) if parts else np.ones(2)

    def _scale_by_row(self, sizes: AnyArray, rows: I64, *, stored: bool) -> F64:
        """``_scaled`` of the images of these rows."""
        scale = self._scaled(sizes, stored=stored)
        return scale[rows] if scale.ndim > 1 else scale


class MoveBoxes(Mover):
    """Boxes go with their image, and those that end up outside are dropped.

    Fields of kind Boxes do so by themselves; name it to say how, or for a Tensor field, whose boxes ``kind``
    describes: ``MoveBoxes(Boxes("xywh", of="image", labels=["label"]))``. clip: cut off what reaches beyond
    the image. min_area: of what is left, in pixels; min_visibility: as a part of the box. format,
    normalized: what comes out (default: as they are stored). A box that is turned becomes the box around it.
    of, labels: outputs of the batch, where several show one field. of="": leave them as they are stored.
    areas: which of the labels is the area of the object, to be made that of what is left of it (default: the
    field ``area``; "": none).
    """

    def __init__(
        self,
        kind: Boxes | None = None,
        *,
        of: str | None = None,
        labels: Sequence[str] | None = None,
        areas: str | None = None,
        format: str | None = None,
        normalized: bool | None = None,
        clip: bool = True,
        min_area: float = 0.0,
        min_visibility: float = 0.0,
    ) -> None:
        if kind is not None and not isinstance(kind, Boxes):
            raise OptionError(f'MoveBoxes takes a Boxes, as in MoveBoxes(Boxes("xywh")), not {kind!r}')
        if not 0 <= min_area < math.inf:
            raise OptionError(f"min_area must not be negative, as {min_area} is")
        self.kind, self.of, self.areas = kind, of, areas
        self.labels = None if labels is None else (labels,) if isinstance(labels, str) else tuple(labels)
        self.format = None if format is None else check_box_format(format)
        self.normalized, self.clip = normalized, bool(clip)
        self.min_area = float(min_area)
        self.min_visibility = check_probability(min_visibility, "min_visibility")

    def bind(self, field: Field) -> MoveBoxes:
        kind = self.kind or field
        if not isinstance(field, Tensor) or not _has_last(field, 4):
            raise OptionError(f"MoveBoxes needs a field of boxes, (objects, 4), not {field}")
        if not isinstance(kind, Boxes):
            raise OptionError(f'say what the boxes of {field} are: MoveBoxes(Boxes("xyxy", of="image"))')
        bound = copy.copy(self)
        bound._stored, bound._normalized = kind.format, kind.normalized
        bound.of = kind.of if self.of is None else self.of
        bound.labels = kind.labels if self.labels is None else self.labels
        bound.format = self.format or kind.format
        bound.normalized = kind.normalized if self.normalized is None else self.normalized
        return bound

    def for_output(self) -> MoveBoxes:
        output_mover = copy.copy(self)
        output_mover._stored, output_mover._normalized = self.format or "xyxy", bool(self.normalized)
        return output_mover

    def infer_moved(self, spec: Spec) -> Spec:
        width = spec.shape[-1] if spec.shape else 4
        return Spec(_float_of(spec), (None, width), ragged=True)

    def corners(self, values: AnyArray, rows: I64, sizes: AnyArray) -> F64:
        """Return left, top, right, bottom of boxes in the images of these rows, in pixels."""
        corners = corners_of(values[:, :4].astype(np.float64), self._stored).reshape(-1, 2, 2)
        scale = np.expand_dims(self._scale_by_row(sizes, rows, stored=True), -2)
        return (corners * scale).reshape(-1, 4)

    def _move_batch(self, batch: Batch, steps: Sequence[Motion], sizes: I32) -> tuple[Batch, Batch]:
        values, offsets = as_ragged(batch, 4)
        rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        moved = values.astype(_float_of(Spec(values.dtype)))
        boxes = self.corners(values, rows, sizes)
        visible = np.ones(len(boxes))
        for step in steps:
            boxes = bounding_boxes(boxes, step.matrix[rows])
            inside = np.clip(boxes, 0, step.sizes[:, [1, 0, 1, 0]][rows])
            area = area_of(inside)
            visible *= np.nan_to_num(area / area_of(boxes))
            boxes = inside if self.clip else boxes
        # Numbers are not exact: a box that keeps just as much as is asked for stays.
        visible_rows = (area > 0) & (area >= self.min_area - 1e-6) & (visible >= self.min_visibility - 1e-9)
        boxes = boxes.reshape(-1, 2, 2) / np.expand_dims(
            self._scale_by_row(steps[-1].sizes, rows, stored=False), -2
        )
        moved[:, :4] = from_corners(boxes.reshape(-1, 4), self.format or "xyxy")
        return take_rows((moved, offsets), visible_rows), (visible_rows, offsets)

    def scale_areas(
        self,
        areas: Batch,
        boxes: Batch,
        outlines: Sequence[tuple[Mover, Batch, Batch]],
        moves: tuple[Sequence[Motion], I32],
    ) -> Batch:
        """The areas of objects after motions of images that had these sizes (``moves``).

        They shrink and grow with the run-length mask or polygon of the object: ``outlines`` has what moves
        it, and all of these before and after. An object without one does so with its box.
        """
        steps, sizes = moves
        values, offsets = as_ragged(areas)
        boxes, box_offsets = as_ragged(boxes, 4)
        if not np.array_equal(offsets, box_offsets):
            # ``take_label_rows`` reports the mismatch.
            return areas
        rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            before, after = np.ones(len(rows)), self._growth(boxes, rows, steps, sizes)
            for mover, stored, moved in outlines:
                if [len(objects or ()) for objects in stored] == np.diff(offsets).tolist():
                    old = mover.areas_of(stored, rows, sizes, stored=True)
                    new = mover.areas_of(moved, rows, steps[-1].sizes, stored=False)
                    before, after = np.where(old > 0, old, before), np.where(old > 0, new, after)
            resized = values.astype(np.float64) * after / before
            resized = resized if values.dtype.kind == "f" else np.rint(resized)
            return resized.astype(values.dtype), offsets

    def _growth(self, boxes: AnyArray, rows: I64, steps: Sequence[Motion], sizes: I32) -> F64:
        """Factor of the area of each box; clipped area counts as lost."""
        corners, growth = self.corners(boxes, rows, sizes), np.ones(len(boxes))
        for step in steps:
            matrix = step.matrix[rows]
            middle = (corners[:, :2] + corners[:, 2:]) / 2
            depth = (matrix[:, 2, :2] * middle).sum(axis=1) + matrix[:, 2, 2]
            growth *= np.abs(np.linalg.det(matrix) / depth**3)
            around_it = bounding_boxes(corners, matrix)
            corners = np.clip(around_it, 0, step.sizes[:, [1, 0, 1, 0]][rows])
            growth *= np.nan_to_num(area_of(corners) / area_of(around_it))
        return growth

    _stored = "xyxy"
    # The output of the areas, once the outputs are known.
    _areas: str | None = None


class MoveKeypoints(Mover):
    """Keypoints go with their image; the visibility of those that end up outside becomes 0.

    Fields of kind Keypoints do so by themselves; for a Tensor field of shape (…, 2) or (…, 3) ``kind``
    describes them. A mirror exchanges the pairs of ``swap``. Whole numbers are the middles of pixels, unless
    they are normalized. of: an output of the batch; "": leave them as they are stored.
    """

    def __init__(
        self,
        kind: Keypoints | None = None,
        *,
        of: str | None = None,
        normalized: bool | None = None,
        swap: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        if kind is not None and not isinstance(kind, Keypoints):
            raise OptionError(
                f"MoveKeypoints takes a Keypoints, as in MoveKeypoints(Keypoints(17)), not {kind!r}"
            )
        self.kind, self.of, self.normalized, self.swap = kind, of, normalized, swap

    def bind(self, field: Field) -> MoveKeypoints:
        kind = self.kind or field
        fits = isinstance(field, Tensor) and (_has_last(field, 2) or _has_last(field, 3))
        if not fits:
            raise OptionError(f"MoveKeypoints needs a field of keypoints, (…, 2) or (…, 3), not {field}")
        assert isinstance(field, Tensor)
        bound = copy.copy(self)
        points = field.shape[-2]
        if isinstance(kind, Keypoints):
            bound._normalized, bound.of = kind.normalized, kind.of if self.of is None else self.of
            bound.swap, points = kind.swap, kind.points
            bound.normalized = kind.normalized if self.normalized is None else self.normalized
        if self.swap is not None:
            bound.swap = swap_pairs(self.swap, points or 0, getattr(kind, "names", None) or ())
        if bound.of is None:
            raise OptionError(f'say which image the keypoints of {field} are of: MoveKeypoints(of="image")')
        if bound.swap and max(map(max, bound.swap)) >= (field.shape[-2] or 0):
            raise OptionError(f"swap names keypoints that {field} does not have")
        return bound

    def infer_moved(self, spec: Spec) -> Spec:
        return spec.replace(dtype=_float_of(spec)) if spec.dtype is not None else spec

    def _move_batch(self, batch: Batch, steps: Sequence[Motion], sizes: I32) -> tuple[Batch, Batch]:
        if isinstance(batch, list):
            moved = [
                None
                if part is None
                else self._moved(part[None], [step.take([row]) for step in steps], sizes[[row]])[0]
                for row, part in enumerate(batch)
            ]
            return moved, None
        if not isinstance(batch, tuple):
            return self._moved(batch, steps, sizes), None
        values, offsets = batch
        rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        return (self._moved(values, [step.take(rows) for step in steps], sizes[rows]), offsets), None

    def _moved(self, values: AnyArray, steps: Sequence[Motion], sizes: I32) -> AnyArray:
        """Move values (rows, …, 2 or 3) with a motion for each row."""
        width = values.shape[-1]
        moved = values.astype(_float_of(Spec(values.dtype)))
        # Without rows, reshape(-1) could not tell how many points a row has.
        points_per_row = math.prod(moved.shape[1:-1])
        flat = moved.reshape(len(moved), points_per_row, width).astype(np.float64)
        middle = 0.0 if self._normalized else 0.5
        points = flat[..., :2] * self._spread(sizes, stored=True) + middle
        labelled = flat[..., 2] > 0 if width == 3 else np.ones(flat.shape[:2], bool)
        inside, mirrored = labelled.copy(), np.zeros(len(flat), bool)
        for step in steps:
            points = move_points(points, step.matrix)
            pixel = points - middle
            inside &= ((pixel >= 0) & (pixel < step.sizes[:, None, ::-1])).all(axis=2)
            mirrored ^= np.linalg.det(step.matrix) < 0
        points = (points - (0.0 if self.normalized else middle)) / self._spread(steps[-1].sizes, stored=False)
        flat[..., :2] = np.where(labelled[..., None], points, flat[..., :2])
        if width == 3:
            flat[..., 2] *= inside
        moved[:] = flat.reshape(moved.shape)
        if self.swap:
            order = np.arange(moved.shape[-2])
            for first, second in self.swap:
                order[[first, second]] = second, first
            moved[mirrored] = moved[mirrored][..., order, :]
        return moved

    def _spread(self, sizes: AnyArray, *, stored: bool) -> F64:
        scale = self._scaled(sizes, stored=stored)
        return scale[:, None] if scale.ndim > 1 else scale


class MovePolygons(Mover):
    """Polygons go with their image and are cut where it ends; of an object outside, no ring is left.

    Fields of kind Polygons do so by themselves. of: an output of the batch; "": leave them as stored.
    normalized: what comes out, parts of the sides or pixels (default: as they are stored).
    """

    def __init__(self, *, of: str | None = None, normalized: bool | None = None) -> None:
        self.of, self.normalized = of, normalized

    def bind(self, field: Field) -> MovePolygons:
        if not isinstance(field, Polygons):
            raise OptionError(f"MovePolygons needs a field of kind Polygons, not {field}")
        bound = copy.copy(self)
        bound.of = field.of if self.of is None else self.of
        bound._normalized = field.normalized
        bound.normalized = field.normalized if self.normalized is None else self.normalized
        return bound

    def _move_batch(self, batch: Batch, steps: Sequence[Motion], sizes: I32) -> tuple[Batch, Batch]:
        rings = [
            (row, ring) for row, objects in enumerate(batch) for rings in objects or () for ring in rings
        ]
        rows = np.array([row for row, _ in rings], dtype=np.int64)
        numbers = itertools.chain.from_iterable(ring for _, ring in rings)
        points = np.fromiter(numbers, dtype=np.float64).reshape(-1, 2)
        ring = np.repeat(np.arange(len(rings)), [len(numbers) // 2 for _, numbers in rings])
        points = points * self._scale_by_row(sizes, rows[ring], stored=True)
        for step in steps:
            points = move_points(points[:, None], step.matrix[rows[ring]])[:, 0]
            points, ring = clip_rings(points, ring, step.sizes[rows])
        # A ring along an edge has no area.
        nonempty = ring_areas(points, ring, len(rings)) > 1e-9
        points = points / self._scale_by_row(steps[-1].sizes, rows[ring], stored=False)
        ends = np.searchsorted(ring, np.arange(len(rings) + 1)).tolist()
        moved_rings = iter(
            points[start:end].reshape(-1).tolist() if stays else None
            for start, end, stays in zip(ends, ends[1:], nonempty.tolist(), strict=False)
        )
        polygons = [
            objects
            and [[moved for _ in rings if (moved := next(moved_rings)) is not None] for rings in objects]
            for objects in batch
        ]
        return polygons, None

    def areas_of(self, batch: Batch, rows: I64, sizes: I32, *, stored: bool) -> F64:
        objects = [rings for polygons in batch for rings in polygons or ()]
        rings = [(number, ring) for number, rings in enumerate(objects) for ring in rings]
        points = np.array(list(itertools.chain.from_iterable(ring for _, ring in rings)), dtype=np.float64)
        ring = np.repeat(np.arange(len(rings)), [len(numbers) // 2 for _, numbers in rings])
        areas = ring_areas(points.reshape(-1, 2), ring, len(rings))
        owner = np.array([number for number, _ in rings], dtype=np.int64)
        object_areas = np.bincount(owner, weights=areas, minlength=len(objects))
        return object_areas * self._scale_by_row(sizes, rows, stored=stored).prod(axis=-1)


class MoveRle(Mover):
    """Run-length masks go with their image: COCO's text of the mask in the stored image becomes that of
    the mask in the batch.

    A field of texts called ``rle`` does so by itself; name it for another one. Masks are sampled by the
    nearest pixel. "" stays "": such an object has no mask. of: an output of the batch; "": leave them as they
    are stored.
    """

    def __init__(self, *, of: str | None = None) -> None:
        self.of = of

    @staticmethod
    def fits(field: Field) -> bool:
        """Return whether a field of this kind can be moved."""
        return isinstance(field, List) and isinstance(field.of, Text)

    def bind(self, field: Field) -> MoveRle:
        if not self.fits(field):
            raise OptionError(f"MoveRle needs a list of run-length texts, List(Text()), not {field}")
        return copy.copy(self)

    def _move_batch(self, batch: Batch, steps: Sequence[Motion], sizes: I32) -> tuple[Batch, Batch]:
        still = all((step.matrix == np.eye(3)).all() and np.array_equal(step.sizes, sizes) for step in steps)
        if still:
            return batch, None
        moved, errors = [], {}
        sampled = _sampled(steps, sizes)
        for row, texts in enumerate(batch):
            nonempty = [number for number, text in enumerate(texts or ()) if text]
            if not nonempty:
                moved.append(texts)
                continue
            height, width = sizes[row].tolist()
            try:
                masks = np.stack([rle.decode(texts[number], height, width) for number in nonempty])
            except BatchplantError as error:
                errors[row] = DecodeError(error.message)
                continue
            masks = masks[..., None]
            for inverse, canvases, after in sampled:
                out = np.empty((len(nonempty), *after[row].tolist(), 1), np.uint8)
                back = np.repeat(inverse[[row]], len(nonempty), axis=0)
                size = np.repeat(canvases[[row]], len(nonempty), axis=0)
                engine().warp(masks, back, size, out, "nearest", colour(np.array(0), 1))
                masks = out
            done = dict(zip(nonempty, masks[..., 0], strict=True))
            moved.append([rle.encode(done[n]) if n in done else text for n, text in enumerate(texts)])
        if errors:
            raise CellErrors(errors)
        return moved, None

    def areas_of(self, batch: Batch, rows: I64, sizes: I32, *, stored: bool) -> F64:
        texts = [text for masks in batch for text in masks or ()]
        areas = [
            int(rle.counts_of(text.encode(), *sizes[row].tolist())[1::2].sum()) if text else 0
            for text, row in zip(texts, rows.tolist(), strict=True)
        ]
        return np.array(areas, dtype=np.float64)


class MoveMask(Op):
    """A mask, or another image of the same thing, goes with its image: the first step of its pipeline.

    It stands for all steps of the output ``of`` that move pixels, by the same draws. A mask is sampled by the
    nearest pixel, so that its values stay what they are; what comes in from outside is ``fill``.
    """

    def __init__(self, of: str = "image", fill: int = 0) -> None:
        self.of, self.fill = of, fill

    def filled(self, op: Op) -> Op:
        """A step of the image, for this one."""
        if not hasattr(op, "fill"):
            return op
        copied: Any = copy.copy(op)
        copied.fill = np.array(self.fill)
        return copied

    def infer(self, spec: Spec) -> Spec:
        # The plan puts the steps in its place before it asks them.
        raise OptionError("MoveMask is the first step of an image's pipeline")


MOVERS: dict[type[Field], type[Mover]] = {
    Boxes: MoveBoxes,
    Keypoints: MoveKeypoints,
    Polygons: MovePolygons,
}


def _sampled(steps: Sequence[Motion], sizes: I32) -> list[tuple[F64, I32, I32]]:
    """Motions as ``inverses`` has them, one for each time that pixels are sampled."""
    samplings, group = [], []
    for number, step in enumerate(steps):
        group.append(step)
        if step.samples or number == len(steps) - 1:
            samplings.append(inverses(sizes, group))
            group, sizes = [], step.sizes
    return samplings


def _has_last(field: Tensor, width: int) -> bool:
    last = field.shape[-1] if field.shape else None
    return last is not None and (last >= width if width == 4 else last == width) and len(field.shape) > 1


def _float_of(spec: Spec) -> AnyDType:
    """Positions that move are real numbers."""
    real = spec.dtype is not None and spec.dtype.kind == "f"
    return spec.dtype if real and spec.dtype is not None else np.dtype(np.float32)


# -- rows --------------------------------------------------------------------------------------------------


def as_ragged(batch: Batch, width: int | None = None) -> tuple[AnyArray, I64]:
    """(values, offsets) of an array, of (values, offsets) or of a list of arrays, where None is none."""
    if isinstance(batch, tuple):
        return batch[0], np.asarray(batch[1], dtype=np.int64)
    if isinstance(batch, np.ndarray):
        offsets = np.arange(len(batch) + 1, dtype=np.int64) * batch.shape[1]
        return batch.reshape(-1, *batch.shape[2:]), offsets
    arrays = [None if array is None else np.asarray(array) for array in batch]
    like = next(
        (array for array in arrays if array is not None and array.ndim), np.empty((0, width or 1), np.float32)
    )
    filled = [np.empty((0, *like.shape[1:]), like.dtype) if array is None else array for array in arrays]
    offsets = np.cumsum([0, *map(len, filled)], dtype=np.int64)
    return np.concatenate(filled) if filled else like[:0], offsets


def take_rows(batch: Batch, mask: Flags) -> Batch:
    """The rows of (values, offsets) that are kept."""
    values, offsets = batch
    counts = np.concatenate([[0], np.cumsum(mask)])
    return values[mask], counts[offsets]


def take_label_rows(batch: Batch, mask: Flags, offsets: I64, name: str, boxes: str) -> Batch:
    """Select the rows of boxes that stay, of an output with a row for each box; CellErrors if it has not."""
    if isinstance(batch, list):
        lengths = np.array([0 if values is None else len(values) for values in batch], dtype=np.int64)
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
        return take_rows(batch, mask)
    return [
        None if values is None else _rows(values, mask[offsets[row] : offsets[row + 1]])
        for row, values in enumerate(batch)
    ]


def gather_samples(batch: Batch, sources: I64) -> Batch:
    """The values of these samples of a batch, as a batch."""
    if isinstance(batch, list):
        return [batch[sample] for sample in sources]
    values, offsets = as_ragged(batch)
    lengths = np.diff(offsets)[sources]
    after = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    rows = np.arange(after[-1]) - np.repeat(after[:-1] - offsets[:-1][sources], lengths)
    return values[rows], after


def regroup_rows(batch: Batch, rows: I64, offsets: I64) -> Batch:
    """Rows of all samples, by their number, as the samples that the offsets tell."""
    if not isinstance(batch, list):
        return as_ragged(batch)[0][rows], offsets
    flat = [row for values in batch for row in (() if values is None else values)]
    return [[flat[row] for row in rows[start:end]] for start, end in itertools.pairwise(offsets)]


def merge_samples(batch: Batch, first: I64) -> Batch:
    """Neighbouring samples as one; ``first``: where each begins, and the end."""
    if isinstance(batch, list):
        return [
            [row for values in batch[start:end] for row in (() if values is None else values)]
            for start, end in itertools.pairwise(first)
        ]
    values, offsets = batch
    return values, offsets[first]


def _rows(values: AnyArray, mask: Flags) -> Batch:
    if isinstance(values, np.ndarray):
        return values[mask]
    return [value for value, stays in zip(values, mask, strict=True) if stays]


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


def move_points(points: F64, matrix: F64) -> F64:
    """Move points (rows, points, 2) by a matrix for each row."""
    x, y = _moved(points[..., 0].T, points[..., 1].T, matrix)
    return np.stack([x.T, y.T], axis=-1)


def _moved(x: F64, y: F64, matrix: F64) -> tuple[F64, F64]:
    """The same of (points, rows): arithmetic on long rows is many times as fast as on many small matrices."""
    across, down, depth = np.ascontiguousarray(matrix.transpose(1, 2, 0))
    moved = [side[0] * x + side[1] * y + side[2] for side in (across, down)]
    if (depth != [[0], [0], [1]]).any():
        far = depth[0] * x + depth[1] * y + depth[2]
        moved = [side / far for side in moved]
    return moved[0], moved[1]


def bounding_boxes(boxes: F64, matrix: F64) -> F64:
    """The boxes around the corners, once these were moved."""
    x0, y0, x1, y1 = boxes.T
    x, y = _moved(np.stack([x0, x1, x1, x0]), np.stack([y0, y0, y1, y1]), matrix)
    return np.stack([x.min(axis=0), y.min(axis=0), x.max(axis=0), y.max(axis=0)], axis=1)


def area_of(boxes: F64) -> F64:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


# -- rings -------------------------------------------------------------------------------------------------


def clip_rings(points: F64, ring: I64, sizes: I32) -> tuple[F64, I64]:
    """Clip rings to their images: return their points (points, 2), and the ring of each point.

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
    crossing = points + part[:, None] * (points[after] - points)
    # Every point that is kept, then where its side leaves or comes in.
    retained = np.stack([depth >= 0, crosses], axis=1)
    return np.stack([points, crossing], axis=1)[retained], np.repeat(ring, retained.sum(axis=1))


def ring_areas(points: F64, ring: I64, count: int) -> F64:
    """The areas of rings; those without points have none."""
    if not len(points):
        return np.zeros(count)
    first = np.flatnonzero(np.diff(ring, prepend=-1))
    after = np.arange(1, len(points) + 1)
    after[np.append(first[1:], len(points)) - 1] = first
    (x, y), (u, v) = points.T, points[after].T
    return np.abs(np.bincount(ring, weights=x * v - u * y, minlength=count)) / 2
