"""Ops that cut, resize, mirror and frame images, and how any number of them becomes one.

What such ops make of an image is a box of it, resized, mirrored, at a place of a canvas that is filled
otherwise: :class:`Cuts`. The plan hands those of the first steps to the engine, which does them while it
decodes; behind those an op works on pixels, here.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _native
from ..errors import OptionError
from ..ops.base import Tensor
from ..order import default_threads
from ..schema.columns import I32, I64, AnyArray
from .base import F64, Batch, Draws, Op, Spec, Tensors
from .dtypes import choose, signed
from .geometry import Motion

Flags = npt.NDArray[np.bool_]
# Boxes come from divisions: a coordinate this close to the edge of a pixel is meant to be on it.
EDGE_TOLERANCE = 1e-6
# The engine takes no thinner box.
MIN_BOX_SIDE = 1 / 256


class Cuts(NamedTuple):
    """Crop, flip and position of every image.

    boxes: (left, top, right, bottom) of what is seen of it. flips, downs: whether that is mirrored left to
    right, upside down; None: nowhere. places: (top, left, height, width) of it in the result; None: all of
    it. sizes: height and width of each result.
    """

    boxes: F64
    flips: Flags | None
    downs: Flags | None
    places: I32 | None
    sizes: I32


def cuts_of(sizes: I32, motions: Sequence[Motion]) -> Cuts:
    """Compose motions along the axes, one after another, of images of these sizes."""
    # (x, y) of the corners of what is left of the image, and from its positions to those there.
    low, high = np.zeros((len(sizes), 2)), sizes[:, ::-1].astype(np.float64)
    scale, shift = np.ones_like(low), np.zeros_like(low)
    after = sizes
    for motion in motions:
        by, to = motion.matrix[:, (0, 1), (0, 1)], motion.matrix[:, :2, 2]
        ends, canvas = (by * low + to, by * high + to), motion.sizes[:, ::-1]
        low, high = (np.clip(side(*ends), 0, canvas) for side in (np.minimum, np.maximum))
        scale, shift, after = by * scale, by * shift + to, motion.sizes
    low, high = np.rint(low), np.rint(high)
    ends = (low - shift) / scale, (high - shift) / scale
    boxes = np.concatenate([_snap(np.minimum(*ends)), _snap(np.maximum(*ends))], axis=1)
    boxes = np.clip(boxes, 0, np.tile(sizes[:, ::-1], 2))
    for axis in (0, 1):
        thin = boxes[:, axis + 2] - boxes[:, axis] < MIN_BOX_SIDE
        boxes[thin, axis] = np.maximum(boxes[thin, axis] - MIN_BOX_SIDE, 0)
        boxes[thin, axis + 2] = boxes[thin, axis] + MIN_BOX_SIDE
    places = np.concatenate([low[:, ::-1], (high - low)[:, ::-1]], axis=1).astype(np.int32)
    mirrored = scale < 0
    return Cuts(
        boxes,
        np.ascontiguousarray(mirrored[:, 0]) if mirrored[:, 0].any() else None,
        np.ascontiguousarray(mirrored[:, 1]) if mirrored[:, 1].any() else None,
        None if (places[:, 2:] == after).all() else places,
        np.ascontiguousarray(after, dtype=np.int32),
    )


def _snap(values: F64) -> F64:
    near = np.rint(values)
    return np.where(np.abs(values - near) < EDGE_TOLERANCE, near, values)


class Cutting(Op):
    """An op that cuts, resizes, mirrors or frames images. A subclass says how in ``move``, along the axes.

    ``size``: (height, width) of what it makes of any image; None: it depends on the image, see ``after``.
    ``resamples``: it may make pixels of another size. ``mirrors_down``: it may turn images upside down.
    ``fill``: what is seen beside the image, a number or one for each channel.
    """

    size: tuple[int, int] | None = None
    filter: str | None = None
    fill: AnyArray = np.array(0)
    mirrors_down: bool = False

    @property
    def resamples(self) -> bool:
        return False

    def move(self, sizes: I32, draws: Draws) -> Motion:
        raise NotImplementedError

    def after(self, sizes: I32) -> I32:
        """Height and width of what images of these sizes become."""
        return sizes if self.size is None else np.tile(np.array(self.size, np.int32), (len(sizes), 1))

    def fills(self, size: tuple[int | None, int | None]) -> bool:
        """True if images of this size (None: unknown) may get a border of ``fill``."""
        return False

    def too_small(self, sizes: I32) -> Flags | None:
        """Mask of the images that are too small for it; None: none can be."""
        return None

    def infer(self, spec: Spec) -> Spec:
        channels = spec.channels(self, unequal=True)
        if self.resamples and spec.dtype != np.uint8:
            raise OptionError(f"{type(self).__name__} needs uint8 images, not {spec}")
        check_fill(self.fill, channels, spec)
        height, width = spec.shape[:2]
        if self.size is not None:
            return spec.replace(shape=(*self.size, channels), unequal=False)
        if height is None or width is None:
            return spec
        size = self.after(np.array([[height, width]], dtype=np.int32))[0].tolist()
        return spec.replace(shape=(*size, channels))

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        sizes = sizes_of(batch)
        cuts = cuts_of(sizes, [self.move(sizes, draws)])
        form = self._resample_into if self.resamples else self._copy_into
        channels = batch[0].shape[-1] if len(batch) else np.shape(batch)[-1] if np.ndim(batch) == 4 else 1
        if isinstance(batch, list) and self.size is None:
            pairs = zip(cuts.sizes, batch, strict=True)
            results = [np.empty((*size, channels), image.dtype) for size, image in pairs]
            for row, result in enumerate(results):
                form(batch[row : row + 1], part(cuts, slice(row, row + 1)), result[None])
            return results
        if len(cuts.sizes):
            size = cuts.sizes[0].tolist()
        else:
            size = self.size or self.after(np.array([batch.shape[1:3]], dtype=np.int32))[0].tolist()
        dtype = batch.dtype if isinstance(batch, np.ndarray) else np.dtype(np.uint8)
        out = np.empty((len(batch), *size, channels), dtype)
        form(batch, cuts, out)
        return out

    def _copy_into(self, batch: Batch, cuts: Cuts, out: AnyArray) -> None:
        if cuts.places is not None:
            out[:] = self.fill
        for row, image in enumerate(batch):
            x0, y0, x1, y1 = cuts.boxes[row].astype(np.int64)
            seen = image[y0:y1, x0:x1]
            seen = seen[:, ::-1] if cuts.flips is not None and cuts.flips[row] else seen
            seen = seen[::-1] if cuts.downs is not None and cuts.downs[row] else seen
            y, x, height, width = (0, 0, *out.shape[1:3]) if cuts.places is None else cuts.places[row]
            out[row, y : y + height, x : x + width] = seen[:height, :width]

    def _resample_into(self, batch: Batch, cuts: Cuts, out: AnyArray) -> None:
        resample(batch, cuts, out, self.filter or "area", self.fill)

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        sizes = np.tile(np.array(batch.shape[1:3], np.int32), (len(batch), 1))
        cuts = cuts_of(sizes, [self.move(sizes, draws)])
        size = self.after(np.array([batch.shape[1:3]], dtype=np.int32))[0].tolist()
        filter = (self.filter or "area") if self.resamples else None
        return cut_tensor(batch, cuts, size, self.fill, filter, tensors)


def sizes_of(batch: Batch) -> I32:
    """Height and width of every image of a batch, or of a list of images."""
    if isinstance(batch, list):
        return np.array([image.shape[:2] for image in batch], dtype=np.int32).reshape(-1, 2)
    return np.tile(np.array(batch.shape[1:3], np.int32), (len(batch), 1))


def part(cuts: Cuts, rows: slice | I64) -> Cuts:
    """Some of them, or one several times."""
    subset: Any = (None if array is None else array[rows] for array in cuts)
    return Cuts(*subset)


def check_fill(fill: AnyArray, channels: int, spec: Spec) -> None:
    """OptionError where images cannot be filled with it."""
    if fill.shape not in ((), (1,), (channels,)):
        raise OptionError(f"the fill has {fill.size} numbers, and the images are {spec}")
    if spec.dtype is not None and spec.dtype.kind in "iu":
        limits = np.iinfo(spec.dtype)
        if not limits.min <= fill.min() <= fill.max() <= limits.max:
            raise OptionError(f"the fill {fill.tolist()} is out of range for {spec.dtype}")


def colour(fill: AnyArray | int, channels: int) -> npt.NDArray[np.uint8]:
    """A byte for each channel."""
    return np.ascontiguousarray(np.broadcast_to(np.asarray(fill).reshape(-1), (channels,)), dtype=np.uint8)


def resample(batch: Batch, cuts: Cuts, out: AnyArray, filter: str, fill: AnyArray) -> None:
    """Pixels, a batch or a list of images of uint8, by the engine."""
    if not len(batch):
        return
    images = [np.ascontiguousarray(image) for image in batch]
    zeros = np.zeros(len(images), dtype=np.int64)
    engine().decode(
        [image.reshape(-1) for image in images], np.arange(len(images), dtype=np.int32), zeros,
        np.array([image.size for image in images], dtype=np.int64),
        np.array([image.shape for image in images], dtype=np.int32), cuts.boxes, cuts.flips, out,
        layout="nhwc", filter=filter, down=cuts.downs, place=cuts.places, fill=colour(fill, out.shape[-1]),
    )  # fmt: skip


_engines: dict[int, _native.Engine] = {}


def engine() -> _native.Engine:
    """Return the engine of ops in this process; that of a Loader is busy with decoding."""
    engine_of_process = _engines.get(os.getpid())
    if engine_of_process is None:
        engine_of_process = _engines.setdefault(os.getpid(), _native.Engine(default_threads()))
    return engine_of_process


@atexit.register
def _close_engines() -> None:
    for engine in _engines.values():
        with contextlib.suppress(RuntimeError):
            engine.close()
    _engines.clear()


def cut_tensor(
    batch: Batch, cuts: Cuts, size: list[int], fill: AnyArray, filter: str | None, tensors: Tensors
) -> Tensor:
    """Images (n, height, width, channels) of a tensor, cut; ``filter`` None: every pixel stays as it is."""
    torch = tensors.torch
    count, height, width, _ = batch.shape
    places = cuts.places if cuts.places is not None else np.tile([0, 0, *size], (count, 1))
    # For rows and columns: where the box begins and ends, and its place; from which end it is laid.
    sides = [
        (cuts.boxes[:, 1], cuts.boxes[:, 3], places[:, 0], places[:, 2], cuts.downs, size[0], height),
        (cuts.boxes[:, 0], cuts.boxes[:, 2], places[:, 1], places[:, 3], cuts.flips, size[1], width),
    ]
    steps, inside = zip(*(_steps(*side[2:6]) for side in sides), strict=True)
    if filter is None:
        y, x = (
            tensors.send(np.clip(side[0][:, None].astype(np.int64) + step, 0, side[6] - 1))
            for side, step in zip(sides, steps, strict=True)
        )
        row = torch.arange(count, device=batch.device).view(-1, 1, 1)
        result = signed(batch)[row, y[:, :, None], x[:, None, :]].view(batch.dtype)
    else:
        grows = np.zeros(count, dtype=np.bool_)
        for low, high, _, length, _, _, _ in sides:
            grows |= (high - low) < length
        down, across = (
            tensors.send(_weights(low, high, length, step, source, filter, grows))
            for (low, high, _, length, _, _, source), step in zip(sides, steps, strict=True)
        )
        middle = torch.einsum("nxw,nhwc->nhxc", across, batch.float())
        if filter != "area":
            middle = middle.round().clamp(0, 255)
        result = torch.einsum("nyh,nhxc->nyxc", down, middle).round().clamp(0, 255).to(batch.dtype)
    if cuts.places is None:
        return result
    visible = tensors.send(inside[0][:, :, None, None] & inside[1][:, None, :, None])
    return choose(visible, result, tensors.send(np.asarray(fill)).to(batch.dtype))


def _steps(start: AnyArray, length: AnyArray, mirrored: Flags | None, result: int) -> tuple[AnyArray, Flags]:
    """Map each pixel of the result to a pixel of its place, and tell which pixels lie inside the place."""
    pixel = np.arange(result)[None] - start[:, None]
    inside = (pixel >= 0) & (pixel < length[:, None])
    if mirrored is not None:
        pixel = np.where(mirrored[:, None], length[:, None] - 1 - pixel, pixel)
    return pixel, inside


def _weights(low: Any, high: Any, length: Any, step: Any, source: int, filter: str, grows: Flags) -> F64:
    """Weights (n, result, source) of every source pixel in a result pixel, as the engine computes them."""
    scale = ((high - low) / np.maximum(length, 1))[:, None, None]
    begin, step = low[:, None, None], step[:, :, None].astype(np.float64)
    pixel = np.arange(source, dtype=np.float64)[None, None]
    middle = begin + (step + 0.5) * scale
    if filter == "nearest":
        # Added up, as Pillow does it: the last bit decides which of two pixels is taken.
        positions = np.repeat(scale[:, :, 0], int(length.max(initial=1)), axis=1)
        positions[:, 0] = low + scale[:, 0, 0] * 0.5
        index = np.clip(step[:, :, 0].astype(np.int64), 0, positions.shape[1] - 1)
        middle = np.take_along_axis(np.cumsum(positions, axis=1), index, axis=1)[:, :, None]
        return (np.clip(np.floor(middle), 0, source - 1) == pixel).astype(np.float64)
    if filter == "area":
        start = begin + step * scale
        weights = np.clip(np.minimum(start + scale, pixel + 1) - np.maximum(start, pixel), 0, None)
        if grows.any():
            first = np.floor(start + np.where(begin % 1, 1e-6, 0.0))
            share = (step + 1) - (first + 1 - begin) / scale
            share = np.where(share <= 0, 0.0, share - np.floor(share))
            pair = (pixel == np.clip(first, 0, source - 1)) * (1 - share)
            pair = pair + (pixel == np.clip(first + 1, 0, source - 1)) * share
            weights = np.where(grows[:, None, None], pair, weights)
    else:
        distance = np.abs(pixel + 0.5 - middle) / np.maximum(scale, 1.0)
        weights = _kernel(distance, filter)
    sums = weights.sum(axis=2, keepdims=True)
    return weights / np.where(sums == 0, 1.0, sums)


def _kernel(distance: F64, filter: str) -> F64:
    """Weight of a pixel at this distance from the middle of a result pixel."""
    if filter == "bilinear":
        return np.clip(1 - distance, 0, None)
    near = (1.5 * distance - 2.5) * distance * distance + 1
    far = ((distance - 5) * distance + 8) * distance * -0.5 + 2
    return np.where(distance < 1, near, np.where(distance < 2, far, 0.0))
