"""Two samples of a batch in one: MixUp and CutMix, with labels that say how much there is of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import OptionError
from ..schema.columns import I64
from .base import Draws, Spec, Tensors, check_probability, per_sample
from .dtypes import choose, signed
from .joint import Known
from .mixing import MixOp
from .positions import area_of, gathered, merged


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
