"""Samples of a batch made of several: mosaics, and objects copied from one image to another.

Steps of several outputs (:mod:`.joint`): images with their boxes, labels and masks. Which samples are mixed
depends on the batch and its samples alone, as all draws do.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import OptionError
from ..schema import Boxes
from ..schema.columns import I64
from .annotations import (
    MoveBoxes,
    MovePolygons,
    MoveRle,
    area_of,
    as_ragged,
    gathered,
    merged,
    regrouped,
    rows_taken,
)
from .base import Draws, Spec, Tensors, check_probability, per_sample
from .dtypes import choose, signed
from .geometry import Motion, shifted
from .joint import JointOp, Known

# Of the objects in an image; those beyond are chosen as the first ones are.
MOST_CHOSEN = 64


class MixOp(JointOp):
    """What the mixing steps have in common: the names of what they mix."""

    mixes = True
    image: str
    boxes: str | None
    labels: tuple[str, ...] | None
    masks: tuple[str, ...] = ()
    # Besides those above.
    _more: tuple[str, ...] = ()

    def _take(self, image: str, boxes: str | None, labels: Any, masks: Any) -> None:
        self.image, self.boxes, self.masks = image, boxes, _listed(masks)
        self.labels = None if labels is None else _listed(labels)

    @property
    def there(self) -> tuple[str, ...]:
        return (self.image, *self.masks)

    def own(self) -> MixOp:
        # What a batch has is noted in it.
        return copy.copy(self)

    def __repr__(self) -> str:
        said = []
        for name, one in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name)
            if value != one.default and value != (one.default,):
                said.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(said)})"

    def _note(self, known: Known, labels: tuple[str, ...] = ()) -> None:
        """Note what goes in: all that has a row for each box, unless it is said; else these labels."""
        boxes = () if self.boxes is None else (self.boxes,)
        rows = known.rows.get(self.boxes or "", ()) if boxes else labels
        self._labels: tuple[str, ...] = rows if self.labels is None else self.labels
        names = dict.fromkeys([self.image, *boxes, *self._labels, *self.masks, *self._more])
        self.inputs = self.outputs = tuple(names)
        self._movers = {name: known.movers[name] for name in names if name in known.movers}

    def _images(self, known: Known, *, whole: bool = True) -> tuple[int, int, int]:
        """The size of images, whose masks have the same."""
        spec = known.spec(self.image, self)
        size = spec.image(self)
        if whole and spec.dtype != np.uint8:
            raise OptionError(
                f"{type(self).__name__} needs uint8 images, not {spec}: normalize them after it"
            )
        for name in self.masks:
            if known.spec(name, self).image(self)[:2] != size[:2]:
                raise OptionError(f"{name!r} has another size than {self.image!r}: {known.specs[name]}")
        return size

    def _objects(self, known: Known) -> None:
        """Boxes and what has a row for each are of varying length."""
        for name in ([] if self.boxes is None else [self.boxes]) + list(self._labels):
            spec = known.spec(name, self)
            if not spec.ragged and (spec.dtype is not None or name == self.boxes):
                raise OptionError(
                    f"{type(self).__name__} takes {name!r} with a row for each box, not {spec}: "
                    f'pad after it, as in joint=[{type(self).__name__}(), {{"{name}": [Pad(100)]}}]'
                )

    def _mover(self) -> MoveBoxes:
        """What moves the boxes as they are in the batch."""
        found = self._movers.get(self.boxes or "")
        made = found if isinstance(found, MoveBoxes) else MoveBoxes().bound(Boxes())
        return copy.copy(made)


class Mosaic(MixOp):
    """Four images of the batch in one, each at half its size, about a point that is drawn.

    With the probability ``p`` a sample becomes one, its own image and three others of the batch around a
    point within ``center`` (parts of the sides); what none of them covers is ``fill``. Boxes, keypoints and
    polygons go along and are cut. labels: outputs with a row for each box (default: all that there are).
    min_area: in pixels, of what is left of a box; min_visibility: as a part of it. masks: outputs that are
    mixed like the image.
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
        self._take(image, boxes, labels, masks)
        self.p = check_probability(p, "p")
        self.center = (check_probability(center[0], "center"), check_probability(center[1], "center"))
        if self.center[0] > self.center[1] or not 0 <= fill <= 255:
            raise OptionError(f"center is (low, high), fill from 0 to 255; not {center} and {fill}")
        self.fill, self.min_area = int(fill), float(min_area)
        self.min_visibility = check_probability(min_visibility, "min_visibility")

    def infer_all(self, known: Known) -> dict[str, Spec]:
        self._note(known)
        if min(self._images(known)[:2]) < 2:
            raise OptionError("Mosaic needs images of at least 2×2")
        self._objects(known)
        return {name: known.specs[name] for name in self.outputs}

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        images = batch[self.image]
        count, height, width = images.shape[:3]
        done = draws.chance(self.p)
        # Its own image comes first, at the upper left.
        parts = np.stack([np.arange(count), *(draws.integers(max(count, 1)) for _ in range(3))], axis=1)
        low, high = self.center
        x = np.rint(draws.uniform(low, high) * width).astype(np.int64)
        y = np.rint(draws.uniform(low, high) * height).astype(np.int64)
        rows = np.flatnonzero(done)
        made = {self.image: self._laid(images, rows, parts, x, y, _halved(images), self.fill)}
        for name in self.masks:
            small = batch[name][:, : height // 2 * 2 : 2, : width // 2 * 2 : 2]
            made[name] = self._laid(batch[name], rows, parts, x, y, small, 0)
        if self.boxes is not None:
            made |= self._moved(batch, _Pieces(done, parts, x, y, (height, width)))
        return made

    def _laid(self, old: Any, rows: Any, parts: Any, x: Any, y: Any, small: Any, fill: int) -> Any:
        made = old.copy()
        high, wide = small.shape[1:3]
        height, width = old.shape[1:3]
        for row in rows:
            made[row] = fill
            for part, (source, (left, top)) in enumerate(
                zip(parts[row], _corners_at(int(x[row]), int(y[row]), high, wide), strict=True)
            ):
                area = _cell(part, int(x[row]), int(y[row]), height, width)
                x0, y0, x1, y1 = (
                    max(left, area[0]), max(top, area[1]), min(left + wide, area[2]), min(top + high, area[3])
                )  # fmt: skip
                if x0 < x1 and y0 < y1:
                    made[row, y0:y1, x0:x1] = small[source, y0 - top : y1 - top, x0 - left : x1 - left]
        return made

    def _moved(self, batch: Any, pieces: _Pieces) -> dict[str, Any]:
        """What lies in the images, cut where each piece ends."""
        assert self.boxes is not None
        mover = self._mover()
        mover.clip, mover.min_area, mover.min_visibility = True, self.min_area, self.min_visibility
        before = gathered(batch[self.boxes], pieces.sources)
        boxes, (kept, offsets) = mover.move_with(before, pieces.steps, pieces.sizes)
        made = {self.boxes: merged(boxes, pieces.first)}
        values = {name: gathered(batch[name], pieces.sources) for name in self._labels}
        outlines = []
        for name in self._labels:
            if name in self._movers:
                old, other = values[name], self._movers[name]
                values[name], _ = other.move_with(old, pieces.steps, pieces.sizes)
                if isinstance(other, MoveRle | MovePolygons):
                    outlines.append((other, old, values[name]))
        if mover._areas in values:
            moves = pieces.steps, pieces.sizes
            values[mover._areas] = mover.resized(values[mover._areas], before, outlines, moves)
        for name, value in values.items():
            made[name] = merged(rows_taken(value, kept, offsets, name, self.boxes), pieces.first)
        return made


class _Pieces:
    """The pieces of images that samples are made of, in order.

    sources: of which images they are. steps: how these move. first: the first piece of each sample, and the
    end.
    """

    def __init__(self, done: Any, parts: Any, x: Any, y: Any, size: tuple[int, int]) -> None:
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
            for part, (left, top) in enumerate(places):
                sources.append(int(parts[row, part]))
                cells.append(_cell(part, int(x[row]), int(y[row]), height, width))
                matrices.append((0.5, left, top))
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

    mask: an output of the image's size that is 0 beside objects. instances: the output that says for each
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
        self._take(image, boxes, labels, masks)
        self.mask, self.instances = mask, instances
        self._more = (mask, *([] if instances is None else [instances]))
        self.p, self.part = check_probability(p, "p"), check_probability(part, "part")
        self.min_visibility = check_probability(min_visibility, "min_visibility")
        if instances is not None and boxes is None:
            raise OptionError("instances names the values that the objects of boxes have: name these")

    def infer_all(self, known: Known) -> dict[str, Spec]:
        self._note(known)
        self._images(known, whole=False)
        self._objects(known)
        known.spec(self.mask, self).image(self)
        if self.instances is not None and not known.spec(self.instances, self).ragged:
            raise OptionError(f"{self.instances!r} has no row for each box: {known.specs[self.instances]}")
        return {name: known.specs[name] for name in self.outputs}

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        images = (self.image, self.mask, *self.masks)
        made = {name: batch[name].copy() for name in images}
        objects = _Objects(self, batch)
        count = len(batch[self.image])
        done = draws.chance(self.p) & (count > 1)
        # Any but itself.
        other = (np.arange(count) + 1 + draws.integers(max(count - 1, 1))) % max(count, 1)
        chosen = draws.uniform(count=MOST_CHOSEN) < self.part
        rows, lengths = [np.empty(0, np.int64)], [0]
        for row, source in enumerate(other.tolist()):
            own, theirs = objects.rows(row), objects.rows(source)[:0]
            if done[row]:
                theirs = objects.rows(source)
                if self.instances is not None:
                    theirs = theirs[chosen[row, np.arange(len(theirs)) % MOST_CHOSEN]]
                laid = objects.mask_of(source, theirs)
                own = objects.uncovered(row, own, laid, self.min_visibility)
                for name in images:
                    made[name][row][laid] = batch[name][source][laid]
                if self.instances is not None:
                    made[self.mask][row, ..., 0] = objects.numbered(row, own, source, theirs)
            rows += [own, theirs]
            lengths.append(len(own) + len(theirs))
        taken, after = np.concatenate(rows), np.cumsum(lengths, dtype=np.int64)
        for name in ([] if self.boxes is None else [self.boxes]) + list(self._labels):
            made[name] = regrouped(batch[name], taken, after)
        if self.instances is not None:
            values = as_ragged(batch[self.instances])[0][taken]
            for row in np.flatnonzero(done).tolist():
                values[after[row] : after[row + 1]] = np.arange(1, after[row + 1] - after[row] + 1)
            made[self.instances] = (values, after)
        return made


class _Objects:
    """The objects of a batch, by the rows of their boxes."""

    def __init__(self, op: CopyPaste, batch: Any) -> None:
        self._mask = batch[op.mask][..., 0].astype(np.int64)
        self._values: Any = None
        self._offsets: I64 = np.zeros(len(self._mask) + 1, dtype=np.int64)
        if op.boxes is not None:
            size, mover = np.array(self._mask.shape[1:3]), op._mover()
            values, self._offsets = as_ragged(batch[op.boxes], 4)
            self._corners = mover.corners(values, np.zeros(len(values), np.int64), size[None])
        if op.instances is not None:
            self._values = as_ragged(batch[op.instances])[0]

    def rows(self, sample: int) -> I64:
        return np.arange(self._offsets[sample], self._offsets[sample + 1])

    def mask_of(self, sample: int, rows: I64) -> Any:
        """Where these objects are in their image; without instances, where any is."""
        mask = self._mask[sample]
        return mask > 0 if self._values is None else (mask > 0) & np.isin(mask, self._values[rows])

    def uncovered(self, sample: int, rows: I64, laid: Any, least: float) -> I64:
        """The objects of which enough is still to be seen."""
        kept = []
        for row in rows:
            if self._values is not None:
                under = laid[self._mask[sample] == self._values[row]]
            else:
                box = np.clip(np.rint(self._corners[row]), 0, laid.shape[::-1] * 2).astype(np.int64)
                under = laid[box[1] : box[3], box[0] : box[2]]
            seen = under.size - np.count_nonzero(under)
            if seen > 0 and seen >= least * under.size:
                kept.append(row)
        return np.array(kept, dtype=np.int64)

    def numbered(self, sample: int, own: I64, source: int, theirs: I64) -> Any:
        """The mask of a sample's own objects and those that are laid over them, from 1 on."""
        made = np.zeros_like(self._mask[sample])
        for number, row in enumerate(own, 1):
            made[self._mask[sample] == self._values[row]] = number
        for number, row in enumerate(theirs, len(own) + 1):
            made[self._mask[source] == self._values[row]] = number
        return made


def _listed(names: Any) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _halved(images: Any) -> Any:
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
    left, right = ((0, x), (x, width))[part % 2]
    top, bottom = ((0, y), (y, height))[part // 2]
    return left, top, right, bottom


def check_alpha(alpha: float) -> float:
    """Return the parameter of the Beta distribution that weights are drawn from."""
    if not alpha > 0 or math.isinf(alpha):
        raise OptionError(f"mixup's alpha must be above 0, not {alpha}")
    return float(alpha)


class SoftMix(MixOp):
    """Two samples in one, and labels that say how much of each: rows of class weights."""

    def _classes(self, known: Known, num_classes: int | None) -> dict[str, Spec]:
        found = {}
        self._sizes: dict[str, int] = {}
        for name in self._labels:
            spec = known.spec(name, self)
            soft = len(spec.shape) == 1 and spec.dtype is not None and spec.dtype.kind == "f"
            count = spec.shape[0] if soft else num_classes or known.classes.get(name)
            if spec.ragged or (not soft and spec.shape not in ((), (1,))):
                raise OptionError(
                    f"{type(self).__name__} needs one label for each sample, not {name!r}: {spec}"
                )
            if count is None:
                raise OptionError(f"say how many classes {name!r} has: {type(self).__name__}(num_classes=…)")
            self._sizes[name] = int(count)
            found[name] = Spec(np.dtype(np.float32), (int(count),))
        return found

    def _soft(self, name: str, labels: Any) -> Any:
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
        made = np.zeros((len(labels), self._sizes[name]), np.float32)
        made[np.arange(len(labels)), labels] = 1
        return made

    def _mixed(self, batch: Any, other: I64, part: Any) -> dict[str, Any]:
        """Labels: ``part`` of its own, the rest of the other's."""
        weight = np.asarray(part, dtype=np.float32)[:, None]
        soft = {name: self._soft(name, batch[name]) for name in self._labels}
        return {name: weight * one + (1 - weight) * one[other] for name, one in soft.items()}


def _drawn(alpha: float, p: float, same: bool, draws: Draws) -> tuple[I64, Any]:
    """For each sample another of the batch, and how much it keeps of itself."""
    generator = draws.generator()
    count = len(draws)
    other = generator.permutation(count)
    part = generator.beta(alpha, alpha, 1 if same else count)
    part = np.broadcast_to(part, count)
    return other, np.where(draws.chance(p), part, 1.0)


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
        self._take(image, boxes, labels, ())
        self.alpha, self.p, self.same = check_alpha(alpha), check_probability(p, "p"), bool(same)
        self.num_classes = num_classes

    def infer_all(self, known: Known) -> dict[str, Spec]:
        self._note(known, ("label",))
        spec = known.spec(self.image, self)
        if spec.numbers(self).torch:
            raise OptionError(f"MixUp needs arrays, not {spec}: put it before the step that makes tensors")
        if self.boxes is not None:
            self._objects(known)
            return {name: known.specs[name] for name in self.outputs}
        return {self.image: spec, **self._classes(known, self.num_classes)}

    def _rest(self, batch: Any, other: I64, part: Any) -> dict[str, Any]:
        if self.boxes is None:
            return self._mixed(batch, other, part)
        # Of each sample its own, then those of the other.
        mixed = (part < 1) & (other != np.arange(len(other)))
        first = np.concatenate([[0], np.cumsum(1 + mixed)])
        sources = np.repeat(np.arange(len(other)), 1 + mixed)
        sources[first[1:][mixed] - 1] = other[mixed]
        return {name: merged(gathered(batch[name], sources), first) for name in (self.boxes, *self._labels)}

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        other, part = _drawn(self.alpha, self.p, self.same, draws)
        images = batch[self.image]
        weight = per_sample(part, images.ndim).astype(np.float32)
        mixed = weight * images + (1 - weight) * images[other]
        if images.dtype.kind in "iu":
            mixed = np.floor(mixed + 0.5)
        return {self.image: mixed.astype(images.dtype), **self._rest(batch, other, part)}

    def on_device(self, batch: Any, ids: I64, draws: Draws, tensors: Tensors) -> Any:
        other, part = _drawn(self.alpha, self.p, self.same, draws)
        images = batch[self.image]
        weight = tensors.send(per_sample(part, images.ndim).astype(np.float32))
        whole = not images.dtype.is_floating_point
        levels = images.float() if whole else images
        mixed = weight * levels + (1 - weight) * levels[tensors.send(other)]
        if whole:
            mixed = (mixed + 0.5).floor()
        return {self.image: mixed.to(images.dtype), **self._rest(batch, other, part)}


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
        self._take(image, None, labels, masks)
        self.alpha, self.p = check_alpha(alpha), check_probability(p, "p")
        self.num_classes = num_classes

    def infer_all(self, known: Known) -> dict[str, Spec]:
        self._note(known, ("label",))
        self._images(known, whole=False)
        same = {name: known.specs[name] for name in (self.image, *self.masks)}
        return {**same, **self._classes(known, self.num_classes)}

    def _cuts(self, size: tuple[int, int], draws: Draws) -> tuple[I64, Any, Any]:
        """For each sample another, the box of it (left, top, right, bottom), and the part that stays."""
        other, part = _drawn(self.alpha, self.p, False, draws)
        height, width = size
        side = np.sqrt(1 - part)
        x, y = draws.uniform(0, width), draws.uniform(0, height)
        left, right = np.rint(x - side * width / 2), np.rint(x + side * width / 2)
        top, bottom = np.rint(y - side * height / 2), np.rint(y + side * height / 2)
        box = np.stack(
            [left.clip(0, width), top.clip(0, height), right.clip(0, width), bottom.clip(0, height)], 1
        )
        return other, box.astype(np.int64), 1 - area_of(box) / (height * width)

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        other, box, part = self._cuts(batch[self.image].shape[1:3], draws)
        made = {}
        for name in (self.image, *self.masks):
            # Others take from what was there before.
            made[name] = batch[name].copy()
            for row, (left, top, right, bottom) in enumerate(box):
                made[name][row, top:bottom, left:right] = batch[name][other[row], top:bottom, left:right]
        return {**made, **self._mixed(batch, other, part)}

    def on_device(self, batch: Any, ids: I64, draws: Draws, tensors: Tensors) -> Any:
        torch, size = tensors.torch, tuple(batch[self.image].shape[1:3])
        other, box, part = self._cuts(size, draws)
        left, top, right, bottom = (tensors.send(per_sample(box[:, side], 4)) for side in range(4))
        made = {}
        for name in (self.image, *self.masks):
            # A mask may have been made on the CPU.
            images = tensors.send(batch[name]) if isinstance(batch[name], np.ndarray) else batch[name]
            y = torch.arange(size[0], device=images.device).view(1, -1, 1, 1)
            x = torch.arange(size[1], device=images.device).view(1, 1, -1, 1)
            inside = (y >= top) & (y < bottom) & (x >= left) & (x < right)
            others = signed(images)[tensors.send(other)].view(images.dtype)
            made[name] = choose(inside, others, images)
        return {**made, **self._mixed(batch, other, part)}
