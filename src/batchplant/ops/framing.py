"""Crops at native resolution, padding and letterboxes; batches of images of unequal sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import OptionError
from ..schema.columns import I32, I64
from .base import Draws, Op, Spec
from .cutting import Cutting, Flags, check_fill, sizes_of
from .decode import check_filter, fitted, pair_of
from .geometry import Motion, shifted, stretched

Padding = int | Sequence[int]


def padding_of(padding: Padding) -> tuple[int, int, int, int]:
    """(left, top, right, bottom), of one number, of (left and right, top and bottom), or of all four."""
    given = [int(one) for one in np.atleast_1d(np.asarray(padding)).flat]
    if min(given, default=0) < 0:
        raise OptionError(f"padding must not be negative, as {padding} is")
    if len(given) not in (1, 2, 4):
        raise OptionError(f"padding is one, two or four numbers, not {padding!r}")
    left, top, right, bottom = given * (4 // len(given))
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

    def _padded(self, sizes: I32) -> Any:
        left, top, right, bottom = padding_of(self.padding)
        return np.asarray(sizes, dtype=np.int64) + np.array([top + bottom, left + right])

    def infer(self, spec: Spec) -> Spec:
        made = super().infer(spec)
        height, width = spec.shape[:2]
        known = height is not None and width is not None and not self.pad_if_needed
        if known and (self._padded(np.array([height, width], np.int32)) < self.size).any():
            raise OptionError(
                f"RandomCrop of {self.size} does not fit images of {width}×{height}; "
                "pad_if_needed=True pads them"
            )
        return made

    def fills(self, size: tuple[int | None, int | None]) -> bool:
        small = any(there is None or there < side for there, side in zip(size, self.size, strict=True))
        return any(padding_of(self.padding)) or (self.pad_if_needed and small)

    def too_small(self, sizes: I32) -> Flags | None:
        found: Flags = (self._padded(sizes) < self.size).any(axis=1)
        return None if self.pad_if_needed else found

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
        found = fitted(sizes, self.size)
        small = (sizes <= self.size).all(axis=1, keepdims=True)
        return found if self.scale_up else np.where(small, sizes, found).astype(np.int32)

    def move(self, sizes: I32, draws: Draws) -> Motion:
        inner = self._inner(sizes)
        whole = np.concatenate([np.zeros_like(sizes), sizes[:, ::-1]], axis=1).astype(np.float64)
        margin = (np.array(self.size) - inner) // 2
        return stretched(whole, inner).then(shifted(inner, margin[:, 1], margin[:, 0], after=self.size))


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
        return spec.but(shape=(None, None, channels), unequal=self.how == "list")

    def canvas(self, sizes: I32) -> tuple[int, int]:
        """Height and width of the array for images of these sizes."""
        most = sizes.max(axis=0, initial=1)
        height, width = (-(-most // self.multiple_of) * self.multiple_of).tolist()
        return height, width

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        images = list(batch)
        if self.how == "list":
            return images
        channels = images[0].shape[-1] if images else np.shape(batch)[-1] if np.ndim(batch) == 4 else 1
        dtype = images[0].dtype if images else np.dtype(np.uint8)
        out = np.empty((len(images), *self.canvas(sizes_of(images)), channels), dtype)
        out[:] = self.fill
        for to, one in zip(out, images, strict=True):
            to[: one.shape[0], : one.shape[1]] = one
        return out
