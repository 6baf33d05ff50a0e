"""Ops that decode, crop, resize, flip and pad images; the engine does the first of them while it decodes.

A decoder says which box of every image it wants and at what size; the engine decodes only that box. Crops
and flips, a normalisation and the change to channels first that follow it cost no pass of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import _native
from ..errors import OptionError
from ..schema.columns import I32, I64
from .base import F64, Batch, Draws, Op, Spec, Tensors, check_probability, per_sample
from .cutting import Cutting, Flags, check_fill, sizes_of
from .dtypes import choose, signed
from .geometry import Motion, mirrored, shifted, stretched

FILTERS = ("area", "bilinear", "bicubic", "nearest")


class ImageDecoder(Cutting):
    """Turns encoded images into pixels: a box of each, resized. Behind another step, the same to pixels.

    ``filter`` None: area, and nearest for masks, whose values must not be blended. ``orient``: every image
    is first turned as its EXIF data say, where this is the first step; sizes and boxes are those of the
    turned image.
    """

    orient: bool = False

    @property
    def resamples(self) -> bool:
        return True

    @property
    def boxed(self) -> bool:
        """True if ``boxes`` and a size describe the op completely."""
        return True

    def boxes(self, sizes: I32, draws: Draws) -> F64:
        """Return (left, top, right, bottom) of every image; ``sizes`` are (height, width)."""
        raise NotImplementedError

    def move(self, sizes: I32, draws: Draws) -> Motion:
        return stretched(self.boxes(sizes, draws), self.after(sizes))


def pair_of(size: int | Sequence[int]) -> tuple[int, int]:
    """(height, width); one number stands for both."""
    pair = [int(side) for side in np.atleast_1d(np.asarray(size)).flat]
    pair = pair * 2 if len(pair) == 1 else pair
    if len(pair) != 2 or min(pair) < 1:
        raise OptionError(f"a size is one or two numbers from 1 on, not {size!r}")
    return pair[0], pair[1]


def check_filter(name: str | None) -> str | None:
    if name is not None and name not in FILTERS:
        raise OptionError(f"filter is one of {', '.join(FILTERS)}, not {name!r}")
    return name


class Decode(ImageDecoder):
    """The whole image as it is."""

    def __init__(self, *, orient: bool = False) -> None:
        self.orient = bool(orient)

    @property
    def resamples(self) -> bool:
        return False

    def boxes(self, sizes: I32, draws: Draws) -> F64:
        """Return (left, top, right, bottom) of every image; ``sizes`` are (height, width)."""
        return whole_boxes(sizes)


class Resize(ImageDecoder):
    """The whole image, resized: to ``size``, or with its aspect kept.

    shorter: the length of its shorter side. longer: of its longer one. fit: as large as it fits into (height,
    width).
    """

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        *,
        shorter: int | None = None,
        longer: int | None = None,
        fit: int | Sequence[int] | None = None,
        filter: str | None = None,
        orient: bool = False,
    ) -> None:
        if sum(option is not None for option in (size, shorter, longer, fit)) != 1:
            raise OptionError("Resize takes one of: size, shorter, longer, fit")
        self.size = None if size is None else pair_of(size)
        self.shorter, self.longer = (option and pair_of(option)[0] for option in (shorter, longer))
        self.fit = None if fit is None else pair_of(fit)
        self.filter, self.orient = check_filter(filter), bool(orient)

    def after(self, sizes: I32) -> I32:
        """Return height and width of what images of these sizes become."""
        if self.size is not None:
            return super().after(sizes)
        # As torchvision rounds a shorter side, and OpenCV's users the others.
        if self.shorter is not None:
            return (sizes * self.shorter // sizes.min(axis=1, keepdims=True).astype(np.int64)).astype(
                np.int32
            )
        return largest_fit(sizes, self.fit or (self.longer or 0, self.longer or 0))

    def boxes(self, sizes: I32, draws: Draws) -> F64:
        """Return (left, top, right, bottom) of every image; ``sizes`` are (height, width)."""
        return whole_boxes(sizes)


def largest_fit(sizes: I32, room: tuple[int, int]) -> I32:
    """The largest sizes of these aspects that fit into ``room``."""
    scale = (np.array(room) / sizes).min(axis=1, keepdims=True)
    return np.maximum(np.rint(sizes * scale), 1).astype(np.int32)


DEFAULT_RATIO = 224 / 256


class CenterCrop(ImageDecoder):
    """The middle of the image.

    As a first step: the square in the middle, ``ratio`` of the shorter side wide, resized. Behind another
    step, or with ``ratio=None``: so many pixels in the middle, with black around them where there are fewer.
    size: (height, width) of the result, or one number for both.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        ratio: float | None = DEFAULT_RATIO,
        *,
        filter: str | None = None,
        orient: bool = False,
    ) -> None:
        self.size = pair_of(size)
        self.ratio = None if ratio is None else check_probability(ratio, "ratio")
        self.filter, self.orient = check_filter(filter), bool(orient)

    @property
    def resamples(self) -> bool:
        return self.ratio is not None

    @property
    def boxed(self) -> bool:
        return self.ratio is not None

    def after_decoding(self) -> CenterCrop:
        """Return the op as it works behind another step."""
        return CenterCrop(self.size, None) if self.ratio == DEFAULT_RATIO and self.size else self

    def fills(self, size: tuple[int | None, int | None]) -> bool:
        assert self.size is not None
        return self.ratio is None and any(
            length is None or length < side for length, side in zip(size, self.size, strict=True)
        )

    def move(self, sizes: I32, draws: Draws) -> Motion:
        if self.ratio is not None:
            return super().move(sizes, draws)
        # Halves of pixels go as torchvision has it: to even where something is cut off, down where not.
        room = np.asarray(sizes, dtype=np.int64) - np.array(self.size)
        begin = np.where(room > 0, np.rint(room / 2), -(-room // 2)).astype(np.int64)
        return shifted(sizes, -begin[:, 1], -begin[:, 0], after=self.size)

    def boxes(self, sizes: I32, draws: Draws) -> F64:
        """Return (left, top, right, bottom) of every image; ``sizes`` are (height, width)."""
        ratio = 1.0 if self.ratio is None else self.ratio
        side = np.maximum(1, (ratio * sizes.min(axis=1)).astype(np.int64))
        y0, x0 = (sizes[:, 0] - side) // 2, (sizes[:, 1] - side) // 2
        return np.stack([x0, y0, x0 + side, y0 + side], axis=1).astype(np.float64)


class RandomResizedCrop(ImageDecoder):
    """A box of random area (``scale``) and aspect (``ratio``), resized to ``size``; as torchvision's."""

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        *,
        filter: str | None = None,
        orient: bool = False,
        share: str | None = None,
    ) -> None:
        self.size = pair_of(size)
        self.scale, self.ratio = (float(scale[0]), float(scale[1])), (float(ratio[0]), float(ratio[1]))
        self.filter, self.orient = check_filter(filter), bool(orient)
        self.share = share
        if not 0 < self.scale[0] <= self.scale[1] or not 0 < self.ratio[0] <= self.ratio[1]:
            raise OptionError(f"scale and ratio are (low, high) above 0, not {scale} and {ratio}")

    def boxes(self, sizes: I32, draws: Draws) -> F64:
        """Return (left, top, right, bottom) of every image; ``sizes`` are (height, width)."""
        return random_boxes(sizes, self.scale, self.ratio, draws)


def random_boxes(sizes: I32, scale: tuple[float, float], ratio: tuple[float, float], draws: Draws) -> F64:
    """Ten tries for a box that fits, then the largest in the middle of an allowed aspect."""
    tries = 10
    # An area and an aspect for each try, and the place.
    first = draws.reserve(2 * tries + 2)
    return _native.random_boxes(draws.keys, np.ascontiguousarray(sizes), scale, ratio, tries, first)


def whole_boxes(sizes: I32) -> F64:
    """The whole of every image."""
    zeros = np.zeros(len(sizes))
    return np.stack([zeros, zeros, sizes[:, 1], sizes[:, 0]], axis=1).astype(np.float64)


class _Flip(Cutting):
    """Mirror images along an axis (of a batch) with probability ``flip_prob``."""

    _axis: int
    flip_prob: float

    def __init__(self, flip_prob: float = 0.5, *, share: str | None = None) -> None:
        self.flip_prob = check_probability(flip_prob, "flip_prob")
        self.share = share

    def flips(self, draws: Draws) -> Flags:
        return draws.chance(self.flip_prob)

    def move(self, sizes: I32, draws: Draws) -> Motion:
        flips = self.flips(draws)
        return mirrored(sizes, across=flips) if self._axis == 2 else mirrored(sizes, down=flips)

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        if isinstance(batch, list):
            return super().run(batch, ids, draws)
        flip = self.flips(draws)
        batch[flip] = np.flip(batch[flip], self._axis)
        return batch

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        flip = tensors.send(per_sample(self.flips(draws), 4))
        pixels = signed(batch)
        return choose(flip, pixels.flip(self._axis), pixels).view(batch.dtype)


class RandomHorizontalFlip(_Flip):
    """Mirror left and right with probability ``flip_prob``."""

    _axis = 2


class RandomVerticalFlip(_Flip):
    """Mirror top and bottom with probability ``flip_prob``."""

    _axis = 1
    mirrors_down = True


class HorizontalFlip(RandomHorizontalFlip):
    """Mirror left and right."""

    flip_prob = 1.0

    def __init__(self) -> None:
        pass


class VerticalFlip(RandomVerticalFlip):
    """Mirror top and bottom."""

    flip_prob = 1.0

    def __init__(self) -> None:
        pass


Padding = int | Sequence[int]


def padding_of(padding: Padding) -> tuple[int, int, int, int]:
    """(left, top, right, bottom), of one number, of (left and right, top and bottom), or of all four."""
    numbers = [int(number) for number in np.atleast_1d(np.asarray(padding)).flat]
    if min(numbers, default=0) < 0:
        raise OptionError(f"padding must not be negative, as {padding} is")
    if len(numbers) not in (1, 2, 4):
        raise OptionError(f"padding is one, two or four numbers, not {padding!r}")
    left, top, right, bottom = numbers * (4 // len(numbers))
    return left, top, right, bottom


def _stored(padding: Padding) -> int | tuple[int, ...]:
    sides = padding_of(padding)
    return sides[0] if len(set(sides)) == 1 else sides


class RandomTranslate(Cutting):
    """Shift by up to ``padding`` pixels each way, the rest filled with a colour."""

    def __init__(self, padding: int, fill: int | Sequence[int] = 0, *, share: str | None = None) -> None:
        if padding < 0:
            raise OptionError(f"padding must not be negative, as {padding} is")
        self.padding = int(padding)
        self.fill = np.array(fill)
        self.share = share

    def fills(self, size: tuple[int | None, int | None]) -> bool:
        return self.padding > 0

    def move(self, sizes: I32, draws: Draws) -> Motion:
        top, left = draws.integers(2 * self.padding + 1), draws.integers(2 * self.padding + 1)
        return shifted(sizes, self.padding - left, self.padding - top)


class RandomCrop(Cutting):
    """A random part of ``size`` pixels, after ``padding``, filled with a colour.

    padding: on every side, or (left and right, top and bottom), or (left, top, right, bottom).
    pad_if_needed: smaller images are padded too, on both sides by what is missing; else they are an error.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        padding: Padding = 0,
        fill: int | Sequence[int] = 0,
        *,
        pad_if_needed: bool = False,
        share: str | None = None,
    ) -> None:
        self.size: tuple[int, int] = pair_of(size)
        self.padding, self.fill, self.share = _stored(padding), np.array(fill), share
        self.pad_if_needed = bool(pad_if_needed)

    def _padded(self, sizes: I32) -> I64:
        left, top, right, bottom = padding_of(self.padding)
        return np.asarray(sizes, dtype=np.int64) + np.array([top + bottom, left + right])

    def infer(self, spec: Spec) -> Spec:
        cropped = super().infer(spec)
        height, width = spec.shape[:2]
        checkable = height is not None and width is not None and not self.pad_if_needed
        if checkable and (self._padded(np.array([height, width], np.int32)) < self.size).any():
            raise OptionError(
                f"RandomCrop of {self.size} does not fit images of {width}×{height}; "
                "pad_if_needed=True pads them"
            )
        return cropped

    def fills(self, size: tuple[int | None, int | None]) -> bool:
        small = any(length is None or length < side for length, side in zip(size, self.size, strict=True))
        return any(padding_of(self.padding)) or (self.pad_if_needed and small)

    def too_small(self, sizes: I32) -> Flags | None:
        """Return the mask of the images that are too small for it; None: none can be."""
        if self.pad_if_needed:
            return None
        return np.asarray((self._padded(sizes) < np.array(self.size)).any(axis=1))

    def move(self, sizes: I32, draws: Draws) -> Motion:
        left, top = padding_of(self.padding)[:2]
        room = self._padded(sizes) - self.size
        # Padded by what is missing on both sides, an image has as much room as it lacks.
        missing = np.maximum(-room, 0)
        room = np.abs(room)
        down, right = draws.integers(room[:, 0] + 1), draws.integers(room[:, 1] + 1)
        return shifted(sizes, left + missing[:, 1] - right, top + missing[:, 0] - down, after=self.size)


class ImagePad(Cutting):
    """Images with a border of a colour.

    padding: on every side, or (left and right, top and bottom), or (left, top, right, bottom).
    """

    def __init__(self, padding: Padding, fill: int | Sequence[int] = 0) -> None:
        self.padding, self.fill = _stored(padding), np.array(fill)

    def after(self, sizes: I32) -> I32:
        """Return height and width of what images of these sizes become."""
        left, top, right, bottom = padding_of(self.padding)
        return sizes + np.array([top + bottom, left + right], dtype=np.int32)

    def fills(self, size: tuple[int | None, int | None]) -> bool:
        return any(padding_of(self.padding))

    def move(self, sizes: I32, draws: Draws) -> Motion:
        left, top = padding_of(self.padding)[:2]
        return shifted(sizes, left, top, after=self.after(sizes))


class Letterbox(Cutting):
    """The whole image, its aspect kept, as large as it fits, in the middle of a canvas of ``size``.

    scale_up: False leaves images that are smaller than the canvas as they are.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        fill: int | Sequence[int] = 114,
        *,
        scale_up: bool = True,
        filter: str | None = None,
    ) -> None:
        self.size: tuple[int, int] = pair_of(size)
        self.fill, self.scale_up, self.filter = np.array(fill), bool(scale_up), check_filter(filter)

    @property
    def resamples(self) -> bool:
        return True

    def fills(self, size: tuple[int | None, int | None]) -> bool:
        height, width = size
        if height is None or width is None:
            return True
        return bool((self._inner(np.array([[height, width]], np.int32))[0] != self.size).any())

    def _inner(self, sizes: I32) -> I32:
        fitting = largest_fit(sizes, self.size)
        small = (sizes <= self.size).all(axis=1, keepdims=True)
        return fitting if self.scale_up else np.where(small, sizes, fitting).astype(np.int32)

    def move(self, sizes: I32, draws: Draws) -> Motion:
        inner = self._inner(sizes)
        source_boxes = np.concatenate([np.zeros_like(sizes), sizes[:, ::-1]], axis=1).astype(np.float64)
        margin = (np.array(self.size) - inner) // 2
        return stretched(source_boxes, inner).then(
            shifted(inner, margin[:, 1], margin[:, 0], after=self.size)
        )


class Collate(Op):
    """Images of unequal sizes as one batch, behind the steps that crop and resize them.

    how: ``pad`` makes one array, as large as the largest image of the batch; each image lies at its upper
    left, and the batch has their sizes (height, width) too, as ``image_sizes`` of the output ``image``.
    ``list`` makes a list of arrays. multiple_of: rounds the size of the array up. fill: what is beside the
    images.
    """

    def __init__(self, how: str = "pad", *, multiple_of: int = 1, fill: int | Sequence[int] = 0) -> None:
        if how not in ("pad", "list"):
            raise OptionError(f"Collate makes pad or list of unequal images, not {how!r}")
        if multiple_of < 1:
            raise OptionError(f"multiple_of is a number from 1 on, not {multiple_of}")
        self.how, self.multiple_of, self.fill = how, int(multiple_of), np.array(fill)

    def infer(self, spec: Spec) -> Spec:
        channels = spec.channels(self, unequal=True)
        check_fill(self.fill, channels, spec)
        # Also of images that turn out to have one size: what comes out must not depend on that.
        return spec.replace(shape=(None, None, channels), unequal=self.how == "list")

    def canvas(self, sizes: I32) -> tuple[int, int]:
        """Return height and width of the array for images of these sizes."""
        largest = sizes.max(axis=0, initial=1)
        height, width = (-(-largest // self.multiple_of) * self.multiple_of).tolist()
        return height, width

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        images = list(batch)
        if self.how == "list":
            return images
        channels = images[0].shape[-1] if images else np.shape(batch)[-1] if np.ndim(batch) == 4 else 1
        dtype = images[0].dtype if images else np.dtype(np.uint8)
        out = np.empty((len(images), *self.canvas(sizes_of(images)), channels), dtype)
        out[:] = self.fill
        for to, image in zip(out, images, strict=True):
            to[: image.shape[0], : image.shape[1]] = image
        return out
