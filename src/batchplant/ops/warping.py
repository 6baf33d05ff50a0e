"""Rotation, affine maps and perspective, as torchvision defines them.

Neighbouring ones of a pipeline become one: every pixel of the result is looked for once, in the image that
was there before all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import OptionError
from ..ops.base import DeviceForm, Tensor
from ..schema.columns import I32, I64, AnyArray
from .base import F64, Batch, Draws, Op, Spec, Tensors, check_probability
from .cutting import check_fill, colour, engine, sizes_of
from .geometry import Motion

FILTERS = ("bilinear", "nearest")


class Warp(Op):
    """An op that takes images (uint8) through a matrix for each, which ``move`` gives.

    ``filter`` None: bilinear, and nearest for masks. ``fill``: what is seen beside the image, a number or
    one for each channel.
    """

    filter: str | None = None
    fill: AnyArray = np.array(0)
    resamples: bool = True
    # Images change their size.
    expand: bool = False

    def move(self, sizes: I32, draws: Draws) -> Motion:
        raise NotImplementedError

    def chain(self, sizes: I32, draws: Draws) -> list[Motion]:
        """The motions that it consists of."""
        return [self.move(sizes, draws)]

    def infer(self, spec: Spec) -> Spec:
        channels = spec.channels(self, unequal=True)
        if spec.dtype != np.uint8 or channels > 4:
            raise OptionError(f"{type(self).__name__} needs uint8 images of 1 to 4 channels, not {spec}")
        check_fill(self.fill, channels, spec)
        return spec.replace(shape=(None, None, channels), unequal=True) if self.expand else spec

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        sizes = sizes_of(batch)
        inverse, canvases, after = inverses(sizes, self.chain(sizes, draws))
        if isinstance(batch, np.ndarray) and not self.expand:
            out = np.empty(batch.shape, np.uint8)
            self._warp_into(batch, inverse, canvases, out)
            return out
        results = []
        for row, image in enumerate(batch):
            out = np.empty((*after[row], image.shape[-1]), np.uint8)
            rows = slice(row, row + 1)
            self._warp_into(image[None], inverse[rows], canvases[rows], out[None])
            results.append(out)
        return results

    def _warp_into(self, batch: Batch, inverse: F64, canvases: I32, out: AnyArray) -> None:
        if len(batch):
            images, filter = np.ascontiguousarray(batch), self.filter or "bilinear"
            engine().warp(images, inverse, canvases, out, filter, colour(self.fill, batch.shape[-1]))

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        sizes = np.tile(np.array(batch.shape[1:3], np.int32), (len(batch), 1))
        inverse, canvases, _ = inverses(sizes, self.chain(sizes, draws))
        return warp_tensor(batch, inverse, canvases, self.filter != "nearest", self.fill, tensors)

    @property
    def device_form(self) -> DeviceForm | None:
        return None if self.expand else super().device_form

    def joined(self, key: str, before: tuple[Op, str]) -> Warp | None:
        """This op, whose draws go by ``key``, and the one before it as one; None where they do not join."""
        previous, other_key = before
        if not isinstance(previous, Warp) or self.filter != previous.filter:
            return None
        if not (self.composes and previous.composes and np.array_equal(self.fill, previous.fill)):
            return None
        first = previous.parts if isinstance(previous, _Joined) else ((previous, other_key),)
        return _Joined((*first, (self, key)))


class _Joined(Warp):
    """Several, each with the name that its draws go by."""

    def __init__(self, parts: tuple[tuple[Warp, str], ...]) -> None:
        self.parts = parts
        self.filter, self.fill = parts[0][0].filter, parts[0][0].fill
        self.expand = any(op.expand for op, _ in parts)

    def __repr__(self) -> str:
        return " + ".join(repr(op) for op, _ in self.parts)

    def chain(self, sizes: I32, draws: Draws) -> list[Motion]:
        motions: list[Motion] = []
        for op, key in self.parts:
            motions.append(op.move(motions[-1].sizes if motions else sizes, draws.named(key)))
        return motions

    def move(self, sizes: I32, draws: Draws) -> Motion:
        first, *later_motions = self.chain(sizes, draws)
        for motion in later_motions:
            first = first.then(motion)
        return first


def inverses(sizes: I32, motions: list[Motion]) -> tuple[F64, I32, I32]:
    """Matrices from results back to each canvas, the image first; sizes of canvases; sizes of results."""
    canvases = [np.asarray(sizes, dtype=np.int32), *(step.sizes for step in motions[:-1])]
    inverse_maps = []
    back = np.broadcast_to(np.eye(3), (len(sizes), 3, 3))
    for motion in reversed(motions):
        inverse = np.linalg.inv(motion.matrix)
        inverse /= inverse[:, 2:, 2:]
        back = inverse @ back
        inverse_maps.append(back)
    return (
        np.ascontiguousarray(np.stack(inverse_maps[::-1], axis=1)),
        np.ascontiguousarray(np.stack(canvases, axis=1), dtype=np.int32),
        motions[-1].sizes,
    )


def _span(value: float | Sequence[float], name: str) -> tuple[float, float]:
    """From the number's negative to it, or from the first of two to the second."""
    if isinstance(value, int | float):
        value = (-abs(value), abs(value))
    if len(value) != 2 or not value[0] <= value[1]:
        raise OptionError(f"{name} is a number or (low, high), not {value!r}")
    return float(value[0]), float(value[1])


def _check(filter: str | None) -> str | None:
    if filter not in (None, *FILTERS):
        raise OptionError(f"filter is one of {', '.join(FILTERS)}, not {filter!r}")
    return filter


def _about_middle(linear: AnyArray, sizes: I32, shift: F64 | None = None) -> F64:
    """(n, 3, 3): by ``linear`` (n, 2, 2) about the middle of images, then by ``shift`` (n, 2)."""
    middle = sizes[:, ::-1] / 2
    matrix = np.zeros((len(sizes), 3, 3))
    matrix[:, :2, :2], matrix[:, 2, 2] = linear, 1
    matrix[:, :2, 2] = middle - np.einsum("nij,nj->ni", linear, middle) + (0 if shift is None else shift)
    return matrix


class RandomRotation(Warp):
    """Turn by a random angle, counterclockwise: from -``degrees`` to ``degrees``, or (low, high).

    expand: make images so large that nothing is cut off; then they are of unequal sizes.
    """

    def __init__(
        self,
        degrees: float | Sequence[float],
        *,
        expand: bool = False,
        fill: int | Sequence[int] = 0,
        filter: str | None = None,
        share: str | None = None,
    ) -> None:
        self.degrees, self.expand = _span(degrees, "degrees"), bool(expand)
        self.fill, self.filter, self.share = np.array(fill), _check(filter), share

    def move(self, sizes: I32, draws: Draws) -> Motion:
        angle = np.radians(draws.uniform(*self.degrees))
        # Rounded, as Pillow does it: so a quarter turn is one.
        cos, sin = np.round(np.cos(angle), 15), np.round(np.sin(angle), 15)
        linear = np.stack([np.stack([cos, sin], axis=1), np.stack([-sin, cos], axis=1)], axis=1)
        matrix = _about_middle(linear, sizes)
        if not self.expand:
            return Motion(matrix, np.asarray(sizes, dtype=np.int32))
        corners = np.array([[0, 0, 1], [0, 1, 1], [1, 0, 1], [1, 1, 1]]) * np.concatenate(
            [sizes[:, None, ::-1], np.ones((len(sizes), 1, 1))], axis=2
        )
        # Backwards, as Pillow has it: the same numbers, but for how they are rounded.
        positions = np.einsum("nij,nkj->nki", np.linalg.inv(matrix)[:, :2], corners)
        positions = np.where(np.abs(positions - np.rint(positions)) < 1e-9, np.rint(positions), positions)
        after = (np.ceil(positions.max(axis=1)) - np.floor(positions.min(axis=1)))[:, ::-1].astype(np.int32)
        matrix[:, :2, 2] += (after - sizes)[:, ::-1] / 2
        return Motion(matrix, after)


class RandomAffine(Warp):
    """Turn (clockwise), shift, scale and shear at random, about the middle.

    degrees: a number, or (low, high). translate: the most to the side and down, as parts of width and height.
    scale: (low, high). shear: degrees along x, a number or (low, high); four numbers: along x and along y.
    """

    def __init__(
        self,
        degrees: float | Sequence[float],
        translate: Sequence[float] | None = None,
        scale: Sequence[float] | None = None,
        shear: float | Sequence[float] | None = None,
        *,
        fill: int | Sequence[int] = 0,
        filter: str | None = None,
        share: str | None = None,
    ) -> None:
        self.degrees = _span(degrees, "degrees")
        self.translate, self.scale, self.shear = translate, scale, shear
        if translate is not None and (len(translate) != 2 or not 0 <= min(translate) <= max(translate) <= 1):
            raise OptionError(f"translate is two numbers from 0 to 1, not {translate!r}")
        if scale is not None and _span(scale, "scale")[0] <= 0:
            raise OptionError(f"scale is (low, high) above 0, not {scale!r}")
        self._shears = (0.0, 0.0), (0.0, 0.0)
        if shear is not None:
            shears: list[Any] = [shear]
            if isinstance(shear, Sequence) and len(shear) == 4:
                shears = [shear[:2], shear[2:]]
            spans = [_span(shear_range, "shear") for shear_range in shears]
            self._shears = spans[0], spans[1] if len(spans) == 2 else (0.0, 0.0)
        self.fill, self.filter, self.share = np.array(fill), _check(filter), share

    def move(self, sizes: I32, draws: Draws) -> Motion:
        angle = np.radians(draws.uniform(*self.degrees))
        room = np.asarray(self.translate or (0.0, 0.0)) * sizes[:, ::-1]
        shift = np.rint((2 * draws.uniform(count=2) - 1) * room)
        scale = draws.uniform(*_span(self.scale or (1.0, 1.0), "scale"))
        x, y = (np.radians(draws.uniform(*span)) for span in self._shears)
        lean, tan = np.cos(y), np.tan(x)
        across = np.stack([np.cos(angle - y) / lean, -np.cos(angle - y) * tan / lean - np.sin(angle)], axis=1)
        down = np.stack([np.sin(angle - y) / lean, -np.sin(angle - y) * tan / lean + np.cos(angle)], axis=1)
        linear = scale[:, None, None] * np.stack([across, down], axis=1)
        return Motion(_about_middle(linear, sizes, shift), np.asarray(sizes, dtype=np.int32))


class RandomPerspective(Warp):
    """See the image from another side, with probability ``prob``: its corners move inwards at random.

    distortion: how far at most, as a part of half the width and height.
    """

    def __init__(
        self,
        distortion: float = 0.5,
        prob: float = 0.5,
        *,
        fill: int | Sequence[int] = 0,
        filter: str | None = None,
        share: str | None = None,
    ) -> None:
        self.distortion = check_probability(distortion, "distortion")
        self.prob = check_probability(prob, "prob")
        self.fill, self.filter, self.share = np.array(fill), _check(filter), share

    def move(self, sizes: I32, draws: Draws) -> Motion:
        chosen = draws.chance(self.prob)
        width, height = (sizes[:, axis].astype(np.float64) for axis in (1, 0))
        right, bottom, zero = width - 1, height - 1, np.zeros(len(sizes))
        start = np.stack([zero, zero, right, zero, right, bottom, zero, bottom], axis=1).reshape(-1, 4, 2)
        room = (self.distortion * (np.stack([width, height], axis=1) // 2)).astype(np.int64)
        drawn = np.floor(draws.uniform(count=8).reshape(-1, 4, 2) * (room[:, None] + 1))
        inwards = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]])
        # An image of one pixel has no corners.
        chosen &= np.minimum(width, height) > 1
        end = start + np.where(chosen[:, None, None], drawn * inwards, 0)
        matrix = np.broadcast_to(np.eye(3), (len(sizes), 3, 3)).copy()
        rows = np.flatnonzero(chosen)
        if len(rows):
            matrix[rows] = _between(start[rows], end[rows])
        return Motion(matrix, np.asarray(sizes, dtype=np.int32))


def _between(start: F64, end: F64) -> F64:
    """The perspective (n, 3, 3) that takes four corners (n, 4, 2) to others."""
    lines = np.zeros((len(start), 8, 8))
    x, y, to_x, to_y = start[..., 0], start[..., 1], end[..., 0], end[..., 1]
    lines[:, ::2, 0], lines[:, ::2, 1], lines[:, ::2, 2] = x, y, 1
    lines[:, 1::2, 3], lines[:, 1::2, 4], lines[:, 1::2, 5] = x, y, 1
    for row, to in ((0, to_x), (1, to_y)):
        lines[:, row::2, 6], lines[:, row::2, 7] = -x * to, -y * to
    solved = np.linalg.solve(lines, end.reshape(-1, 8, 1))[..., 0]
    return np.concatenate([solved, np.ones((len(start), 1))], axis=1).reshape(-1, 3, 3)


def warp_tensor(
    batch: Batch, inverse: F64, canvases: I32, bilinear: bool, fill: AnyArray | int, tensors: Tensors
) -> Tensor:
    """Images (n, height, width, channels) of a tensor; the matrices as the engine takes them."""
    torch = tensors.torch
    count, height, width, channels = batch.shape
    x = torch.arange(width, device=batch.device).double() + 0.5
    y = torch.arange(height, device=batch.device).double()[:, None] + 0.5
    inside = torch.ones((count, height, width), dtype=torch.bool, device=batch.device)
    for number in range(inverse.shape[1] - 1, -1, -1):
        # In float64, as the engine: what lies at an edge falls to the same side. And no product of matrices,
        # which torch may be told to round (TF32).
        sent = tensors.send(np.ascontiguousarray(inverse[:, number]).view(np.int64)).view(torch.float64)
        parts = sent.view(count, 3, 3, 1, 1).unbind(1)
        across, down, depth = (part[:, 0] * x + (part[:, 1] * y + part[:, 2]) for part in parts)
        across, down = across / depth, down / depth
        high, wide = tensors.send(canvases[:, number].reshape(count, 2, 1, 1)).unbind(1)
        inside &= (across >= 0) & (across < wide) & (down >= 0) & (down < high)
    inside, across, down = (plane.reshape(count, height * width) for plane in (inside, across, down))
    flat = batch.reshape(count, height * width, channels)
    # What is nowhere is not looked at.
    across, down = (torch.where(inside, plane, torch.zeros_like(plane)) for plane in (across, down))

    def pixels_at(row: Tensor, column: Tensor) -> Tensor:
        index = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
        return flat.gather(1, index[..., None].expand(-1, -1, channels))

    if bilinear:
        across, down = across - 0.5, down - 0.5
        x0, y0 = across.floor(), down.floor()
        right_share, lower_share = (across - x0).float()[..., None], (down - y0).float()[..., None]
        column, row = x0.long(), y0.long()
        upper = pixels_at(row, column) * (1 - right_share) + pixels_at(row, column + 1) * right_share
        lower = pixels_at(row + 1, column) * (1 - right_share) + pixels_at(row + 1, column + 1) * right_share
        warped = (upper * (1 - lower_share) + lower * lower_share).round().to(batch.dtype)
    else:
        warped = pixels_at(down.long(), across.long())
    colour = tensors.send(np.asarray(fill)).to(batch.dtype)
    return torch.where(inside[..., None], warped, colour).reshape(batch.shape)
