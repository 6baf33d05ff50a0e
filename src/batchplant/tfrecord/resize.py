"""tf.image.resize: every result is a weighted sum of a few pixels along each side, computed in float32."""

from __future__ import annotations

import enum
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import OptionError
from .values import Tensor, tensor

Floats = npt.NDArray[np.float32]


class ResizeMethod(enum.Enum):
    BILINEAR = "bilinear"
    NEAREST_NEIGHBOR = "nearest"
    BICUBIC = "bicubic"
    AREA = "area"
    LANCZOS3 = "lanczos3"
    LANCZOS5 = "lanczos5"

    @classmethod
    def of(cls, given: Any) -> ResizeMethod:
        # The numbers are those of TensorFlow 1.
        old = {0: cls.BILINEAR, 1: cls.NEAREST_NEIGHBOR, 2: cls.BICUBIC, 3: cls.AREA}
        if isinstance(given, cls):
            return given
        if isinstance(given, int) and given in old:
            return old[given]
        try:
            return cls(given)
        except ValueError:
            known = ", ".join(one.value for one in cls)
            raise OptionError(f"method {given!r} is not mirrored; there are {known}") from None


# Half the width of a kernel, and its values at distances from the middle.
def _triangle(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.asarray(np.maximum(0.0, 1.0 - np.abs(x)))


def _cubic(a: float) -> Any:
    def kernel(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        x = np.abs(x)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.where(x <= 1, near, np.where(x < 2, far, 0.0))

    return kernel


def _lanczos(radius: float) -> Any:
    def kernel(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.where(np.abs(x) < radius, np.sinc(x) * np.sinc(x / radius), 0.0)

    return kernel


_KERNELS: dict[ResizeMethod, tuple[float, Any]] = {
    ResizeMethod.BILINEAR: (1.0, _triangle),
    ResizeMethod.BICUBIC: (2.0, _cubic(-0.5)),
    ResizeMethod.LANCZOS3: (3.0, _lanczos(3.0)),
    ResizeMethod.LANCZOS5: (5.0, _lanczos(5.0)),
}


def _taps(old: int, new: int, method: ResizeMethod, antialias: bool, half: bool) -> tuple[Any, Floats]:
    """For each of ``new`` results which pixels it is made of, and how much of each: (new, k) both."""
    scale = old / new
    if method is ResizeMethod.NEAREST_NEIGHBOR:
        # TensorFlow computes the place in float32.
        at = np.float32(scale) * (np.arange(new, dtype=np.float32) + np.float32(0.5 if half else 0.0))
        return np.minimum(at.astype(np.int64), old - 1)[:, None], np.ones((new, 1), dtype=np.float32)
    if method is ResizeMethod.AREA:
        first, last = np.arange(new) * scale, (np.arange(new) + 1) * scale
        count = int(np.max(np.ceil(last) - np.floor(first)))
        at = np.floor(first).astype(np.int64)[:, None] + np.arange(count)
        share = np.minimum(at + 1, last[:, None]) - np.maximum(at, first[:, None])
        share = np.maximum(share, 0.0) / scale
        return np.clip(at, 0, old - 1), share.astype(np.float32)
    if method is ResizeMethod.BILINEAR and not antialias:
        at32 = np.arange(new, dtype=np.float32)
        shift = np.float32(0.5 if half else 0.0)
        places = (at32 + shift) * np.float32(scale) - shift
        low = np.floor(places)
        weight = (places - low).astype(np.float32)
        at = low.astype(np.int64)[:, None] + np.arange(2)
        return np.clip(at, 0, old - 1), np.stack([1 - weight, weight], axis=1)
    radius, kernel = _KERNELS[method]
    wide = max(scale, 1.0) if antialias else 1.0
    middles = (np.arange(new) + 0.5) * scale
    count = math.ceil(2 * radius * wide) + 1
    at = np.floor(middles - radius * wide).astype(np.int64)[:, None] + np.arange(count)
    weights = kernel((at + 0.5 - middles[:, None]) / wide)
    # What lies outside of the picture does not count; the rest makes up for it.
    weights = np.where((at >= 0) & (at < old), weights, 0.0)
    weights /= weights.sum(axis=1, keepdims=True)
    return np.clip(at, 0, old - 1), weights.astype(np.float32)


def _along(pixels: Floats, axis: int, taps: tuple[Any, Floats]) -> Any:
    at, weights = taps
    shape = [1] * pixels.ndim
    shape[axis] = len(at)
    out = np.take(pixels, at[:, 0], axis=axis) * weights[:, 0].reshape(shape)
    for tap in range(1, at.shape[1]):
        out += np.take(pixels, at[:, tap], axis=axis) * weights[:, tap].reshape(shape)
    return out


def _between(pixels: Any, axis: int, taps: tuple[Any, Floats]) -> Any:
    """Between two pixels each: near + (far - near) * weight."""
    at, weights = taps
    shape = [1] * pixels.ndim
    shape[axis] = len(at)
    near = np.take(pixels, at[:, 0], axis=axis).astype(np.float32, copy=False)
    far = np.take(pixels, at[:, 1], axis=axis).astype(np.float32, copy=False)
    far -= near
    far *= weights[:, 1].reshape(shape)
    far += near
    return far


def resize(
    images: Any,
    size: Any,
    method: Any = ResizeMethod.BILINEAR,
    preserve_aspect_ratio: bool = False,
    antialias: bool = False,
    name: Any = None,
    *,
    half_pixel_centers: bool = True,
) -> Any:
    """A picture (height, width, channels), or a batch of them, in another size.

    The result is float32, but for the nearest neighbour, which keeps the type.
    """
    given = tensor(images)
    pixels = np.asarray(given)
    if pixels.ndim not in (3, 4) or 0 in pixels.shape:
        raise OptionError(f"a picture of shape {pixels.shape} cannot be resized")
    height, width = (int(one) for one in np.asarray(size).reshape(-1))
    if height < 1 or width < 1:
        raise OptionError(f"a size of {height} × {width} is none")
    old_height, old_width = pixels.shape[-3], pixels.shape[-2]
    if preserve_aspect_ratio:
        ratio = min(height / old_height, width / old_width)
        height, width = max(1, round(ratio * old_height)), max(1, round(ratio * old_width))
    wanted = ResizeMethod.of(method)
    if (height, width) == (old_height, old_width):
        return given if wanted is ResizeMethod.NEAREST_NEIGHBOR else pixels.astype(np.float32).view(Tensor)
    rows = _taps(old_height, height, wanted, antialias, half_pixel_centers)
    columns = _taps(old_width, width, wanted, antialias, half_pixel_centers)
    if wanted is ResizeMethod.NEAREST_NEIGHBOR:
        near = np.take(np.take(pixels, rows[0][:, 0], axis=-3), columns[0][:, 0], axis=-2)
        return near.view(Tensor)
    if wanted is ResizeMethod.BILINEAR and not antialias:
        # TensorFlow's order of steps, and so its rounding.
        return _between(_between(pixels, -2 % pixels.ndim, columns), -3 % pixels.ndim, rows).view(Tensor)
    # Rows first: fewer pixels are left for the slower direction.
    out = _along(pixels.astype(np.float32, copy=False), -3 % pixels.ndim, rows)
    return _along(out, -2 % pixels.ndim, columns).view(Tensor)
