"""Samples of a batch made of several: mosaics, and objects copied from one image to another.

Steps of several outputs (:mod:`.joint`): images with their boxes, labels and masks. Which samples are mixed
depends on the batch and its samples alone, as all draws do.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..errors import OptionError
from ..ops.base import F64
from ..schema import Boxes
from ..schema.columns import I64, AnyArray, Flags
from .annotations import (
    MoveBoxes,
    MovePolygons,
    MoveRle,
    area_of,
    as_ragged,
    gather_samples,
    merge_samples,
    regroup_rows,
    take_label_rows,
)
from .base import Batch, Draws, Spec, Tensors, check_probability, per_sample
from .dtypes import choose, signed
from .geometry import Motion, shifted
from .joint import JointOp, OutputInfo

Names = str | Sequence[str]

# Draws for the objects of an image; an image with more of them repeats the draws.
MAX_OBJECT_DRAWS = 64


class MixOp(JointOp):
    """Base class of ops that mix samples: the names of the outputs that they mix."""

    mixes = True
    image: str
    boxes: str | None
    labels: tuple[str, ...] | None
    masks: tuple[str, ...] = ()
    _extra_inputs: tuple[str, ...] = ()

    def _set_names(self, image: str, boxes: str | None, labels: Names | None, masks: Names) -> None:
        self.image, self.boxes, self.masks = image, boxes, _listed(masks)
        self.labels = None if labels is None else _listed(labels)

    @property
    def device_inputs(self) -> tuple[str, ...]:
        return (self.image, *self.masks)

    def for_loader(self) -> MixOp:
        return copy.copy(self)

    def __repr__(self) -> str:
        arguments = []
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name)
            if value != parameter.default and value != (parameter.default,):
                arguments.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(arguments)})"

    def _set_inputs(self, outputs: OutputInfo, labels: tuple[str, ...] = ()) -> None:
        """Set ``inputs``: labels default to all outputs with a row for each box, or to ``labels``."""
        boxes = () if self.boxes is None else (self.boxes,)
        rows = outputs.rows.get(self.boxes or "", ()) if boxes else labels
        self._labels: tuple[str, ...] = rows if self.labels is None else self.labels
        names = dict.fromkeys([self.image, *boxes, *self._labels, *self.masks, *self._extra_inputs])
        self.inputs = self.outputs = tuple(names)
        self._movers = {name: outputs.movers[name] for name in names if name in outputs.movers}

    def _check_images(self, outputs: OutputInfo, *, uint8_only: bool = True) -> tuple[int, int, int]:
        """Return the size of the images, and check that masks have the same."""
        spec = outputs.spec(self.image, self)
        size = spec.image(self)
        if uint8_only and spec.dtype != np.uint8:
            raise OptionError(
                f"{type(self).__name__} needs uint8 images, not {spec}: normalize them after it"
            )
        for name in self.masks:
            if outputs.spec(name, self).image(self)[:2] != size[:2]:
                raise OptionError(f"{name!r} has another size than {self.image!r}: {outputs.specs[name]}")
        return size

    def _check_objects(self, outputs: OutputInfo) -> None:
        """Check that boxes, and outputs with a row for each, are of varying length."""
        for name in ([] if self.boxes is None else [self.boxes]) + list(self._labels):
            spec = outputs.spec(name, self)
            if not spec.ragged and (spec.dtype is not None or name == self.boxes):
                raise OptionError(
                    f"{type(self).__name__} takes {name!r} with a row for each box, not {spec}: "
                    f'pad after it: pipelines=[{{…}}, {type(self).__name__}(), {{"{name}": [Pad(100)]}}]'
                )

    def _box_mover(self) -> MoveBoxes:
        """A mover of the boxes as they are in the batch."""
        mover = self._movers.get(self.boxes or "")
        moved_boxes = mover if isinstance(mover, MoveBoxes) else MoveBoxes().bind(Boxes())
        return copy.copy(moved_boxes)


class Mosaic(MixOp):
    """Four images of the batch in one, each at half its size, about a point that is drawn.

    With the probability ``p`` a sample becomes one, its own image and three others of the batch around a
    point within ``center`` (parts of the sides); what none of them covers is ``fill``. Boxes, keypoints and
    polygons go along and are cut. boxes: the output that has them; None where there are none. labels: outputs
    with a row for each box (default: all that there are). min_area: in pixels, of what is left of a box;
    min_visibility: as a part of it. masks: outputs that are mixed like the image.
    """

    def __init__(
        self,
        *,
        image: str = "image",
        boxes: str | None = "boxes",
        labels: str | Sequence[str] | None = None,
        masks: str | Sequence[str] = (),
        p: float = 1.0,
        center: tuple[float, float] = (0.3, 0.7),
        fill: int = 114,
        min_area: float = 0.0,
        min_visibility: float = 0.0,
    ) -> None:
        self._set_names(image, boxes, labels, masks)
        self.p = check_probability(p, "p")
        self.center = (check_probability(center[0], "center"), check_probability(center[1], "center"))
        if self.center[0] > self.center[1] or not 0 <= fill <= 255:
            raise OptionError(f"center is (low, high), fill from 0 to 255; not {center} and {fill}")
        self.fill, self.min_area = int(fill), float(min_area)
        self.min_visibility = check_probability(min_visibility, "min_visibility")

    def infer_all(self, outputs: OutputInfo) -> dict[str, Spec]:
        self._set_inputs(outputs)
        if min(self._check_images(outputs)[:2]) < 2:
            raise OptionError("Mosaic needs images of at least 2×2")
        self._check_objects(outputs)
        return {name: outputs.specs[name] for name in self.outputs}

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        images = batch[self.image]
        count, height, width = images.shape[:3]
        done = draws.chance(self.p)
        # Its own image comes first, at the upper left.
        parts = np.stack([np.arange(count), *(draws.integers(max(count, 1)) for _ in range(3))], axis=1)
        low, high = self.center
        x = np.rint(draws.uniform(low, high) * width).astype(np.int64)
        y = np.rint(draws.uniform(low, high) * height).astype(np.int64)
        rows = np.flatnonzero(done)
        mixed = {self.image: self._lay_out(images, rows, parts, x, y, _halved(images), self.fill)}
        for name in self.masks:
            small = batch[name][:, : height // 2 * 2 : 2, : width // 2 * 2 : 2]
            mixed[name] = self._lay_out(batch[name], rows, parts, x, y, small, 0)
        if self.boxes is not None:
            mixed |= self._move_annotations(batch, _Pieces(done, parts, x, y, (height, width)))
        return mixed

    def _lay_out(
        self, old: AnyArray, rows: I64, parts: I64, x: I64, y: I64, small: AnyArray, fill: int
    ) -> AnyArray:
        canvas = old.copy()
        high, wide = small.shape[1:3]
        height, width = old.shape[1:3]
        for row in rows:
            canvas[row] = fill
            for part, (source, (piece_x, piece_y)) in enumerate(
                zip(parts[row], _corners_at(int(x[row]), int(y[row]), high, wide), strict=True)
            ):
                area = _cell(part, int(x[row]), int(y[row]), height, width)
                x0, x1 = max(piece_x, area[0]), min(piece_x + wide, area[2])
                y0, y1 = max(piece_y, area[1]), min(piece_y + high, area[3])
                if x0 < x1 and y0 < y1:
                    piece = small[source, y0 - piece_y : y1 - piece_y, x0 - piece_x : x1 - piece_x]
                    canvas[row, y0:y1, x0:x1] = piece
        return canvas

    def _move_annotations(self, batch: Batch, pieces: _Pieces) -> dict[str, Batch]:
        """Move the annotations of each piece, cut where it ends."""
        assert self.boxes is not None
        mover = self._box_mover()
        mover.clip, mover.min_area, mover.min_visibility = True, self.min_area, self.min_visibility
        before = gather_samples(batch[self.boxes], pieces.sources)
        boxes, (visible_rows, offsets) = mover.move_with(before, pieces.steps, pieces.sizes)
        moved = {self.boxes: merge_samples(boxes, pieces.first)}
        values = {name: gather_samples(batch[name], pieces.sources) for name in self._labels}
        outlines = []
        for name in self._labels:
            if name in self._movers:
                old, label_mover = values[name], self._movers[name]
                values[name], _ = label_mover.move_with(old, pieces.steps, pieces.sizes)
                if isinstance(label_mover, MoveRle | MovePolygons):
                    outlines.append((label_mover, old, values[name]))
        if mover._areas in values:
            moves = pieces.steps, pieces.sizes
            values[mover._areas] = mover.scale_areas(values[mover._areas], before, outlines, moves)
        for name, value in values.items():
            moved[name] = merge_samples(
                take_label_rows(value, visible_rows, offsets, name, self.boxes), pieces.first
            )
        return moved


class _Pieces:
    """The pieces of images that samples are made of, in order.

    sources: their images. steps: how these move. first: the first piece of each sample, and the end.
    """

    def __init__(self, done: Flags, parts: I64, x: I64, y: I64, size: tuple[int, int]) -> None:
        height, width = size
        sources, cells, matrices, lengths = [], [], [], [0]
        for row in range(len(done)):
            if not done[row]:
                sources.append(row)
                cells.append((0, 0, width, height))
                matrices.append((1.0, 0, 0))
                lengths.append(1)
                continue
            places = _corners_at(int(x[row]), int(y[row]), height // 2, width // 2)
            for part, (piece_x, piece_y) in enumerate(places):
                sources.append(int(parts[row, part]))
                cells.append(_cell(part, int(x[row]), int(y[row]), height, width))
                matrices.append((0.5, piece_x, piece_y))
            lengths.append(4)
        self.sources = np.array(sources, dtype=np.int64)
        self.first = np.cumsum(lengths)
        self.sizes = np.tile(np.array([size], np.int32), (len(sources), 1))
        cell = np.array(cells, dtype=np.int32).reshape(-1, 4)
        scale, right, down = np.array(matrices, dtype=np.float64).reshape(-1, 3).T
        matrix = np.zeros((len(sources), 3, 3))
        matrix[:, 0, 0] = matrix[:, 1, 1] = scale
        matrix[:, 0, 2], matrix[:, 1, 2], matrix[:, 2, 2] = right - cell[:, 0], down - cell[:, 1], 1
        # Into its cell, where it is cut; from there to the place of the cell.
        inner = Motion(matrix, cell[:, [3, 2]] - cell[:, [1, 0]])
        self.steps = (inner, shifted(inner.sizes, cell[:, 0], cell[:, 1], after=self.sizes))


class CopyPaste(MixOp):
    """Objects of another image of the batch, cut out by their mask and laid over one's own.

    boxes: the output that has them; None where there are none. mask: an output of the image's size that is 0
    beside objects. instances: the output that says for each
    box which value its object has in the mask; then each is copied with the probability ``part``, else all
    of them are. Boxes and labels of what is copied are added; one's own are dropped where less than
    ``min_visibility`` of them is still to be seen. labels: outputs with a row for each box (default: all that
    there are). masks: outputs that are copied like the image. p: of a sample to get something.
    """

    def __init__(
        self,
        *,
        image: str = "image",
        mask: str = "mask",
        boxes: str | None = "boxes",
        labels: str | Sequence[str] | None = None,
        masks: str | Sequence[str] = (),
        instances: str | None = None,
        p: float = 0.5,
        part: float = 0.5,
        min_visibility: float = 0.1,
    ) -> None:
        self._set_names(image, boxes, labels, masks)
        self.mask, self.instances = mask, instances
        self._extra_inputs = (mask, *([] if instances is None else [instances]))
        self.p, self.part = check_probability(p, "p"), check_probability(part, "part")
        self.min_visibility = check_probability(min_visibility, "min_visibility")
        if instances is not None and boxes is None:
            raise OptionError("instances names the values that the objects of boxes have: name these")

    def infer_all(self, outputs: OutputInfo) -> dict[str, Spec]:
        self._set_inputs(outputs)
        self._check_images(outputs, uint8_only=False)
        self._check_objects(outputs)
        outputs.spec(self.mask, self).image(self)
        if self.instances is not None and not outputs.spec(self.instances, self).ragged:
            raise OptionError(f"{self.instances!r} has no row for each box: {outputs.specs[self.instances]}")
        return {name: outputs.specs[name] for name in self.outputs}

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        images = (self.image, self.mask, *self.masks)
        mixed = {name: batch[name].copy() for name in images}
        objects = _Objects(self, batch)
        count = len(batch[self.image])
        done = draws.chance(self.p) & (count > 1)
        # Any but itself.
        sources = (np.arange(count) + 1 + draws.integers(max(count - 1, 1))) % max(count, 1)
        chosen = draws.uniform(count=MAX_OBJECT_DRAWS) < self.part
        rows, lengths = [np.empty(0, np.int64)], [0]
        for row, source in enumerate(sources.tolist()):
            own_rows, pasted_rows = objects.rows(row), objects.rows(source)[:0]
            if done[row]:
                pasted_rows = objects.rows(source)
                if self.instances is not None:
                    pasted_rows = pasted_rows[chosen[row, np.arange(len(pasted_rows)) % MAX_OBJECT_DRAWS]]
                laid = objects.mask_of(source, pasted_rows)
                own_rows = objects.uncovered(row, own_rows, laid, self.min_visibility)
                for name in images:
                    mixed[name][row][laid] = batch[name][source][laid]
                if self.instances is not None:
                    mixed[self.mask][row, ..., 0] = objects.numbered(row, own_rows, source, pasted_rows)
            rows += [own_rows, pasted_rows]
            lengths.append(len(own_rows) + len(pasted_rows))
        row_order, after = np.concatenate(rows), np.cumsum(lengths, dtype=np.int64)
        for name in ([] if self.boxes is None else [self.boxes]) + list(self._labels):
            mixed[name] = regroup_rows(batch[name], row_order, after)
        if self.instances is not None:
            values = as_ragged(batch[self.instances])[0][row_order]
            for row in np.flatnonzero(done).tolist():
                values[after[row] : after[row + 1]] = np.arange(1, after[row + 1] - after[row] + 1)
            mixed[self.instances] = (values, after)
        return mixed


class _Objects:
    """The objects of a batch, by the rows of their boxes."""

    def __init__(self, op: CopyPaste, batch: Batch) -> None:
        self._mask: I64 = batch[op.mask][..., 0].astype(np.int64)
        self._values: AnyArray | None = None
        self._offsets: I64 = np.zeros(len(self._mask) + 1, dtype=np.int64)
        if op.boxes is not None:
            size, mover = np.array(self._mask.shape[1:3]), op._box_mover()
            values, self._offsets = as_ragged(batch[op.boxes], 4)
            self._corners = mover.corners(values, np.zeros(len(values), np.int64), size[None])
        if op.instances is not None:
            self._values = as_ragged(batch[op.instances])[0]

    def rows(self, sample: int) -> I64:
        return np.arange(self._offsets[sample], self._offsets[sample + 1])

    def mask_of(self, sample: int, rows: I64) -> Flags:
        """Mask of these objects in their image; without instances, of all objects."""
        mask: I64 = self._mask[sample]
        return mask > 0 if self._values is None else (mask > 0) & np.isin(mask, self._values[rows])

    def uncovered(self, sample: int, rows: I64, laid: Flags, min_visibility: float) -> I64:
        """The objects of which enough is still to be seen."""
        visible_rows = []
        for row in rows:
            if self._values is not None:
                under = laid[self._mask[sample] == self._values[row]]
            else:
                box = np.clip(np.rint(self._corners[row]), 0, laid.shape[::-1] * 2).astype(np.int64)
                under = laid[box[1] : box[3], box[0] : box[2]]
            seen = under.size - np.count_nonzero(under)
            if seen > 0 and seen >= min_visibility * under.size:
                visible_rows.append(row)
        return np.array(visible_rows, dtype=np.int64)

    def numbered(self, sample: int, own_rows: I64, source: int, pasted_rows: I64) -> I64:
        """The mask of a sample's own objects and those that are laid over them, from 1 on."""
        assert self._values is not None
        mask: I64 = np.zeros_like(self._mask[sample])
        for number, row in enumerate(own_rows, 1):
            mask[self._mask[sample] == self._values[row]] = number
        for number, row in enumerate(pasted_rows, len(own_rows) + 1):
            mask[self._mask[source] == self._values[row]] = number
        return mask


def _listed(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _halved(images: AnyArray) -> AnyArray:
    """Images of half the size: every pixel is the mean of four."""
    high, wide = images.shape[1] // 2 * 2, images.shape[2] // 2 * 2
    total = np.full((len(images), high // 2, wide // 2, images.shape[3]), 2, dtype=np.uint16)
    for y in (0, 1):
        for x in (0, 1):
            total += images[:, y:high:2, x:wide:2]
    return (total >> 2).astype(np.uint8)


def _corners_at(x: int, y: int, high: int, wide: int) -> list[tuple[int, int]]:
    """Left and top of four images of this size that meet at a point."""
    return [(x - wide, y - high), (x, y - high), (x - wide, y), (x, y)]


def _cell(part: int, x: int, y: int, height: int, width: int) -> tuple[int, int, int, int]:
    """The quarter of the canvas that a part may be seen in."""
    x0, x1 = ((0, x), (x, width))[part % 2]
    y0, y1 = ((0, y), (y, height))[part // 2]
    return x0, y0, x1, y1


def check_alpha(alpha: float) -> float:
    """Return the parameter of the Beta distribution that weights are drawn from."""
    if not alpha > 0 or math.isinf(alpha):
        raise OptionError(f"mixup's alpha must be above 0, not {alpha}")
    return float(alpha)


class SoftMix(MixOp):
    """Two samples in one, and labels that say how much of each: rows of class weights."""

    def _classes(self, outputs: OutputInfo, num_classes: int | None) -> dict[str, Spec]:
        specs = {}
        self._sizes: dict[str, int] = {}
        for name in self._labels:
            spec = outputs.spec(name, self)
            soft = len(spec.shape) == 1 and spec.dtype is not None and spec.dtype.kind == "f"
            count = spec.shape[0] if soft else num_classes or outputs.classes.get(name)
            if spec.ragged or (not soft and spec.shape not in ((), (1,))):
                raise OptionError(
                    f"{type(self).__name__} needs one label for each sample, not {name!r}: {spec}"
                )
            if count is None:
                raise OptionError(f"say how many classes {name!r} has: {type(self).__name__}(num_classes=…)")
            self._sizes[name] = int(count)
            specs[name] = Spec(np.dtype(np.float32), (int(count),))
        return specs

    def _soft(self, name: str, labels: npt.ArrayLike) -> AnyArray:
        """Rows of class weights."""
        labels = np.asarray(labels)
        if labels.ndim == 2 and labels.shape[1] == self._sizes[name] and labels.dtype.kind == "f":
            return labels.astype(np.float32)
        labels = labels.reshape(len(labels)).astype(np.int64)
        wrong = (labels < 0) | (labels >= self._sizes[name])
        if wrong.any():
            raise OptionError(
                f"there is a label {labels[wrong][0]} in {name!r}, of {self._sizes[name]} classes"
            )
        weights = np.zeros((len(labels), self._sizes[name]), np.float32)
        weights[np.arange(len(labels)), labels] = 1
        return weights

    def _mix_soft_labels(self, batch: Batch, partners: I64, part: F64) -> dict[str, Batch]:
        """Labels: ``part`` of its own, the rest of the other's."""
        weight = np.asarray(part, dtype=np.float32)[:, None]
        soft = {name: self._soft(name, batch[name]) for name in self._labels}
        return {name: weight * weights + (1 - weight) * weights[partners] for name, weights in soft.items()}


def _draw_partners(alpha: float, p: float, same: bool, draws: Draws) -> tuple[I64, F64]:
    """Draw a partner of the batch for each sample, and the weight of the sample itself."""
    generator = draws.generator()
    count = len(draws)
    partners = generator.permutation(count)
    part = generator.beta(alpha, alpha, 1 if same else count)
    part = np.broadcast_to(part, count)
    return partners, np.where(draws.chance(p), part, 1.0)


class MixUp(SoftMix):
    """Every image mixed with another of the batch, and labels alike: rows of class weights.

    alpha: of the Beta distribution that the part is drawn from; same: one for the whole batch. num_classes:
    of labels that are numbers (default: as many as the field names). With ``boxes``, for detection, those of
    both images stay, and so does all that has a row for each. labels: default ``label``, or these. p: of a
    sample to be mixed.
    """

    def __init__(
        self,
        alpha: float = 0.2,
        *,
        image: str = "image",
        labels: str | Sequence[str] | None = None,
        boxes: str | None = None,
        num_classes: int | None = None,
        p: float = 1.0,
        same: bool = False,
    ) -> None:
        self._set_names(image, boxes, labels, ())
        self.alpha, self.p, self.same = check_alpha(alpha), check_probability(p, "p"), bool(same)
        self.num_classes = num_classes

    def infer_all(self, outputs: OutputInfo) -> dict[str, Spec]:
        self._set_inputs(outputs, ("label",))
        spec = outputs.spec(self.image, self)
        if spec.numbers(self).torch:
            raise OptionError(f"MixUp needs arrays, not {spec}: put it before the step that makes tensors")
        if self.boxes is not None:
            self._check_objects(outputs)
            return {name: outputs.specs[name] for name in self.outputs}
        return {self.image: spec, **self._classes(outputs, self.num_classes)}

    def _mix_labels(self, batch: Batch, partners: I64, part: F64) -> dict[str, Batch]:
        if self.boxes is None:
            return self._mix_soft_labels(batch, partners, part)
        # Of each sample its own, then those of the other.
        mixed = (part < 1) & (partners != np.arange(len(partners)))
        first = np.concatenate([[0], np.cumsum(1 + mixed)])
        sources = np.repeat(np.arange(len(partners)), 1 + mixed)
        sources[first[1:][mixed] - 1] = partners[mixed]
        return {
            name: merge_samples(gather_samples(batch[name], sources), first)
            for name in (self.boxes, *self._labels)
        }

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        partners, part = _draw_partners(self.alpha, self.p, self.same, draws)
        images = batch[self.image]
        weight = per_sample(part, images.ndim).astype(np.float32)
        mixed = weight * images + (1 - weight) * images[partners]
        if images.dtype.kind in "iu":
            mixed = np.floor(mixed + 0.5)
        return {self.image: mixed.astype(images.dtype), **self._mix_labels(batch, partners, part)}

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        partners, part = _draw_partners(self.alpha, self.p, self.same, draws)
        images = batch[self.image]
        weight = tensors.send(per_sample(part, images.ndim).astype(np.float32))
        is_integer = not images.dtype.is_floating_point
        levels = images.float() if is_integer else images
        mixed = weight * levels + (1 - weight) * levels[tensors.send(partners)]
        if is_integer:
            mixed = (mixed + 0.5).floor()
        return {self.image: mixed.to(images.dtype), **self._mix_labels(batch, partners, part)}


class CutMix(SoftMix):
    """A box of another image of the batch in place of one's own, and labels by the area of both.

    alpha: of the Beta distribution that the part which stays is drawn from. num_classes: of labels that are
    numbers (default: as many as the field names). masks: outputs that are cut like the image. p: of a
    sample to be mixed.
    """

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        image: str = "image",
        labels: str | Sequence[str] | None = None,
        masks: str | Sequence[str] = (),
        num_classes: int | None = None,
        p: float = 1.0,
    ) -> None:
        self._set_names(image, None, labels, masks)
        self.alpha, self.p = check_alpha(alpha), check_probability(p, "p")
        self.num_classes = num_classes

    def infer_all(self, outputs: OutputInfo) -> dict[str, Spec]:
        self._set_inputs(outputs, ("label",))
        self._check_images(outputs, uint8_only=False)
        same = {name: outputs.specs[name] for name in (self.image, *self.masks)}
        return {**same, **self._classes(outputs, self.num_classes)}

    def _cuts(self, size: tuple[int, int], draws: Draws) -> tuple[I64, I64, F64]:
        """Draw a partner for each sample, the box of it to paste, and the weight of the sample itself."""
        partners, part = _draw_partners(self.alpha, self.p, False, draws)
        height, width = size
        side = np.sqrt(1 - part)
        x, y = draws.uniform(0, width), draws.uniform(0, height)
        x0, x1 = np.rint(x - side * width / 2), np.rint(x + side * width / 2)
        y0, y1 = np.rint(y - side * height / 2), np.rint(y + side * height / 2)
        box = np.stack([x0.clip(0, width), y0.clip(0, height), x1.clip(0, width), y1.clip(0, height)], 1)
        return partners, box.astype(np.int64), 1 - area_of(box) / (height * width)

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        partners, box, part = self._cuts(batch[self.image].shape[1:3], draws)
        mixed = {}
        for name in (self.image, *self.masks):
            mixed[name] = batch[name].copy()
            for row, (x0, y0, x1, y1) in enumerate(box):
                mixed[name][row, y0:y1, x0:x1] = batch[name][partners[row], y0:y1, x0:x1]
        return {**mixed, **self._mix_soft_labels(batch, partners, part)}

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        torch, size = tensors.torch, tuple(batch[self.image].shape[1:3])
        partners, box, part = self._cuts(size, draws)
        x0, y0, x1, y1 = (tensors.send(per_sample(box[:, side], 4)) for side in range(4))
        mixed = {}
        for name in (self.image, *self.masks):
            # A mask may have been made on the CPU.
            images = tensors.send(batch[name]) if isinstance(batch[name], np.ndarray) else batch[name]
            y = torch.arange(size[0], device=images.device).view(1, -1, 1, 1)
            x = torch.arange(size[1], device=images.device).view(1, 1, -1, 1)
            inside = (y >= y0) & (y < y1) & (x >= x0) & (x < x1)
            partner_images = signed(images)[tensors.send(partners)].view(images.dtype)
            mixed[name] = choose(inside, partner_images, images)
        return {**mixed, **self._mix_soft_labels(batch, partners, part)}
