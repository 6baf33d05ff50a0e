"""Augmentation by policies: a few changes drawn from a list, each with a magnitude, for every sample.

Lists and magnitudes are those of torchvision. All changes of a batch are made in one pass by the native core;
on a device, each change once to all images that it was drawn for.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import OptionError
from ..order.keyed import whole
from ..schema.columns import I64
from .base import F64, Batch, Draws, Spec, Tensors
from .changes import AMOUNTS, Change, Changes, change, change_on_device, mix_changed
from .colour import FillOp
from .geometry import I32, Motion

FILTERS = ("nearest", "bilinear")


class Choice(NamedTuple):
    """One change of a policy.

    magnitudes: weakest first. signed: either way. amounts: (n, AMOUNTS), of a magnitude for each of images
    of these sizes.
    """

    change: Change
    magnitudes: F64
    signed: bool
    amounts: Callable[[F64, I32], F64]


def _only(values: F64, sizes: I32) -> F64:
    amounts = np.zeros((len(values), AMOUNTS))
    amounts[:, 0] = values
    return amounts


def _from_one(values: F64, sizes: I32) -> F64:
    return _only(1 + values, sizes)


def _affine(values: F64, **parts: npt.ArrayLike) -> F64:
    matrix = np.zeros((len(values), AMOUNTS))
    matrix[:, 0] = matrix[:, 4] = 1
    for name, part in parts.items():
        matrix[:, "abcdef".index(name)] = part
    return matrix


def _shear_x(values: F64, sizes: I32) -> F64:
    return _affine(values, b=values)


def _shear_y(values: F64, sizes: I32) -> F64:
    return _affine(values, d=values)


def _translate_x(values: F64, sizes: I32) -> F64:
    return _affine(values, c=-np.trunc(values))


def _translate_y(values: F64, sizes: I32) -> F64:
    return _affine(values, f=-np.trunc(values))


def _translate_x_part(values: F64, sizes: I32) -> F64:
    return _translate_x(values * sizes[:, 1], sizes)


def _translate_y_part(values: F64, sizes: I32) -> F64:
    return _translate_y(values * sizes[:, 0], sizes)


def _rotate(values: F64, sizes: I32) -> F64:
    """Counter-clockwise by so many degrees, about the middle."""
    angle = -np.radians(values)
    # As Pillow rounds them.
    cos, sin = np.round(np.cos(angle), 15), np.round(np.sin(angle), 15)
    x, y = sizes[:, 1] / 2, sizes[:, 0] / 2
    return _affine(values, a=cos, b=sin, c=-cos * x - sin * y + x, d=-sin, e=cos, f=sin * x - cos * y + y)


def _choices(bins: int, *, shear: float, translate: float, part: bool, rotate: float, enhance: float,
             bits: tuple[int, int]) -> list[Choice]:  # fmt: skip
    """Choices of a policy. ``translate``: in pixels, or as a ``part`` of the side.

    ``bits``: from how many posterising goes, and by how many down.
    """

    def line(end: float) -> F64:
        return np.linspace(0.0, end, bins)

    across, down = (_translate_x_part, _translate_y_part) if part else (_translate_x, _translate_y)
    bit_counts = bits[0] - np.round(np.arange(bins) / ((bins - 1) / bits[1]))
    return [
        Choice(Change.NONE, np.zeros(bins), False, _only),
        Choice(Change.AFFINE, line(shear), True, _shear_x),
        Choice(Change.AFFINE, line(shear), True, _shear_y),
        Choice(Change.AFFINE, line(translate), True, across),
        Choice(Change.AFFINE, line(translate), True, down),
        Choice(Change.AFFINE, line(rotate), True, _rotate),
        Choice(Change.BRIGHTNESS, line(enhance), True, _from_one),
        Choice(Change.SATURATION, line(enhance), True, _from_one),
        Choice(Change.CONTRAST, line(enhance), True, _from_one),
        Choice(Change.SHARPNESS, line(enhance), True, _from_one),
        Choice(Change.POSTERIZE, bit_counts, False, _only),
        Choice(Change.SOLARIZE, np.linspace(255.0, 0.0, bins), False, _only),
        Choice(Change.AUTOCONTRAST, np.zeros(bins), False, _only),
        Choice(Change.EQUALIZE, np.zeros(bins), False, _only),
    ]


class Policy(FillOp):
    """An op that draws changes for every sample from a list.

    filter: how pixels that are moved are sampled. fill: what moves into an image.
    """

    filter: str
    _list: list[Choice]
    _on_masks = False

    def __init__(self, fill: int | Sequence[int], filter: str, share: str | None) -> None:
        if filter not in FILTERS:
            raise OptionError(f"filter is one of {', '.join(FILTERS)}, not {filter!r}")
        self.fill, self.filter, self.share = np.array(fill), filter, share

    def infer(self, spec: Spec) -> Spec:
        if super().infer(spec).dtype != np.uint8 or spec.shape[-1] not in (1, 3):
            raise OptionError(
                f"{type(self).__name__} needs uint8 images of one or three channels, not {spec}"
            )
        return spec

    def _draw_step(
        self, changes: Changes, step: int, sizes: I32, draws: Draws, bins: npt.ArrayLike | None = None
    ) -> None:
        """Draw one change for each sample; ``bins``: its magnitudes, else any."""
        number = draws.integers(len(self._list))
        bins = draws.integers(len(self._list[0].magnitudes)) if bins is None else bins
        sign = np.where(draws.chance(0.5), -1.0, 1.0)
        bins = np.broadcast_to(bins, number.shape)
        for n in np.unique(number):
            choice, rows = self._list[n], np.flatnonzero(number == n)
            values = choice.magnitudes[bins[rows]] * (sign[rows] if choice.signed else 1.0)
            changes.codes[rows, step] = choice.change
            changes.amounts[rows, step] = choice.amounts(values, sizes[rows])

    def of_masks(self) -> Policy:
        """Return the policy for masks, which move as their images do and keep their values."""
        mask_policy = copy.copy(self)
        mask_policy.filter, mask_policy._on_masks = "nearest", True
        return mask_policy

    def changes(self, sizes: I32, draws: Draws) -> Changes:
        """Draw the changes of images of these sizes, (height, width)."""
        raise NotImplementedError

    def _draw_changes(self, batch: Batch, draws: Draws) -> Changes:
        changes = self.changes(_sizes(batch), draws)
        if self._on_masks:
            changes.codes[changes.codes != Change.AFFINE] = Change.NONE
        return changes

    def move(self, sizes: I32, draws: Draws) -> Motion | None:
        return self.changes(np.asarray(sizes), draws).motion(sizes)

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        return change(batch, self._draw_changes(batch, draws), self.fill, self.filter == "bilinear")

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        changes = self._draw_changes(batch, draws)
        return change_on_device(batch, changes, tensors, self.fill, self.filter == "bilinear")


def _sizes(batch: Batch) -> I32:
    return np.broadcast_to(np.array(batch.shape[1:3], dtype=np.int32), (len(batch), 2))


class RandAugment(Policy):
    """``num_ops`` changes of one magnitude, drawn from 14: colours, sharpness, shear, shift, rotation.

    magnitude: from 0, the weakest, to num_magnitude_bins - 1.
    """

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        num_magnitude_bins: int = 31,
        *,
        fill: int | Sequence[int] = 0,
        filter: str = "nearest",
        share: str | None = None,
    ) -> None:
        self.num_ops = whole("num_ops", num_ops, 1, 100)
        self.num_magnitude_bins = whole("num_magnitude_bins", num_magnitude_bins, 2, 10_000)
        self.magnitude = whole("magnitude", magnitude, 0, self.num_magnitude_bins - 1)
        super().__init__(fill, filter, share)
        self._list = _choices(
            self.num_magnitude_bins, shear=0.3, translate=150 / 331, part=True, rotate=30.0, enhance=0.9,
            bits=(8, 4),
        )  # fmt: skip

    def changes(self, sizes: I32, draws: Draws) -> Changes:
        """Return the changes that are drawn for images of these sizes, (height, width)."""
        changes = Changes.none(len(sizes), self.num_ops)
        for step in range(self.num_ops):
            self._draw_step(changes, step, sizes, draws, self.magnitude)
        return changes


class TrivialAugment(Policy):
    """One change of any magnitude, drawn from 14 that go further than RandAugment's (TrivialAugmentWide).

    num_magnitude_bins: how many magnitudes there are to draw from.
    """

    def __init__(
        self,
        num_magnitude_bins: int = 31,
        *,
        fill: int | Sequence[int] = 0,
        filter: str = "nearest",
        share: str | None = None,
    ) -> None:
        self.num_magnitude_bins = whole("num_magnitude_bins", num_magnitude_bins, 2, 10_000)
        super().__init__(fill, filter, share)
        self._list = _choices(
            self.num_magnitude_bins, shear=0.99, translate=32.0, part=False, rotate=135.0, enhance=0.99,
            bits=(8, 6),
        )  # fmt: skip

    def changes(self, sizes: I32, draws: Draws) -> Changes:
        """Return the changes that are drawn for images of these sizes, (height, width)."""
        changes = Changes.none(len(sizes), 1)
        self._draw_step(changes, 0, sizes, draws)
        return changes


class AugMix(Policy):
    """The image, mixed with ``mixture_width`` copies of it that went through chains of changes.

    severity: the magnitudes that are drawn from, from 1 to 10. chain_depth: changes in a chain; None: one to
    three. alpha: of the Dirichlet distribution of the weights. all_ops: brightness, contrast, saturation and
    sharpness, too. Boxes, keypoints and masks stay where they are, as most of the image does.
    """

    _BINS, _DEEPEST = 10, 3

    def __init__(
        self,
        severity: int = 3,
        mixture_width: int = 3,
        chain_depth: int | None = None,
        alpha: float = 1.0,
        all_ops: bool = True,
        *,
        fill: int | Sequence[int] = 0,
        filter: str = "bilinear",
        share: str | None = None,
    ) -> None:
        self.severity = whole("severity", severity, 1, self._BINS)
        self.mixture_width = whole("mixture_width", mixture_width, 1, 100)
        # torchvision says -1 for None.
        deep = None if chain_depth is None or chain_depth == -1 else whole("chain_depth", chain_depth, 1, 100)
        self.chain_depth = deep
        if not 0 < alpha < 1e6:
            raise OptionError(f"alpha must be above 0, not {alpha}")
        self.alpha, self.all_ops = float(alpha), bool(all_ops)
        super().__init__(fill, filter, share)
        every = _choices(
            self._BINS, shear=0.3, translate=1 / 3, part=True, rotate=30.0, enhance=0.9, bits=(4, 4)
        )
        self._list = [choice for choice in every[1:] if all_ops or choice.amounts is not _from_one]

    def chains(self, sizes: I32, draws: Draws) -> tuple[list[Changes], F64]:
        """The changes of every chain, and the weights: (n, 1 + chains), that of the image first."""
        shares = _dirichlet(self.alpha, 2, draws)
        weights = np.concatenate(
            [shares[:, :1], shares[:, 1:] * _dirichlet(self.alpha, self.mixture_width, draws)], axis=1
        )
        chains = []
        for _ in range(self.mixture_width):
            chain = Changes.none(len(sizes), self.chain_depth or self._DEEPEST)
            deep = 1 + draws.integers(self._DEEPEST)
            for step in range(chain.codes.shape[1]):
                self._draw_step(chain, step, sizes, draws, draws.integers(self.severity))
                if self.chain_depth is None:
                    chain.codes[step >= deep, step] = Change.NONE
            chains.append(chain)
        return chains, weights

    def move(self, sizes: I32, draws: Draws) -> None:
        return None

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        if self._on_masks:
            return batch
        chains, weights = self.chains(_sizes(batch), draws)
        return mix_changed(batch, chains, weights, self.fill, self.filter == "bilinear")

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        if self._on_masks:
            return batch
        chains, weights = self.chains(_sizes(batch), draws)
        sums = tensors.send(weights[:, 0].reshape(-1, 1, 1, 1)) * batch.float()
        for number, chain in enumerate(chains):
            changed = change_on_device(batch, chain, tensors, self.fill, self.filter == "bilinear")
            sums += tensors.send(weights[:, number + 1].reshape(-1, 1, 1, 1)) * changed.float()
        return sums.clamp(0, 255).to(batch.dtype)


def _dirichlet(alpha: float, parts: int, draws: Draws) -> F64:
    """(n, parts), each row adding up to one."""
    gammas = np.stack([_gamma(alpha, draws) for _ in range(parts)], axis=1)
    total = gammas.sum(axis=1, keepdims=True)
    # Where alpha is so small that all are zero, one of them has it all.
    gammas[:, :1] += total == 0
    return gammas / gammas.sum(axis=1, keepdims=True)


def _gamma(alpha: float, draws: Draws) -> F64:
    """The method of Marsaglia and Tsang, with so many tries at once that none fails."""
    tries = 12
    shape = alpha if alpha >= 1 else alpha + 1
    third = shape - 1 / 3
    unit = np.maximum(draws.uniform(0, 1, 3 * tries + 1), 2.0**-53)
    radius, angle, height = unit[:, :tries], unit[:, tries : 2 * tries], unit[:, 2 * tries : 3 * tries]
    normal = np.sqrt(-2 * np.log(radius)) * np.cos(2 * np.pi * angle)
    root = 1 + normal / np.sqrt(9 * third)
    cube = np.maximum(root, 1e-9) ** 3
    accepted = (root > 0) & (np.log(height) < 0.5 * normal**2 + third * (1 - cube + np.log(cube)))
    gamma: F64 = third * np.take_along_axis(cube, accepted.argmax(axis=1)[:, None], axis=1)[:, 0]
    return gamma if alpha >= 1 else gamma * unit[:, -1] ** (1 / alpha)
