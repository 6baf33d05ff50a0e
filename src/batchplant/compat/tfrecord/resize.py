"""tf.image.resize: every result is a weighted sum of a few pixels along each side, computed in float32."""

from __future__ import annotations

import enum
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import OptionError
from .values import Tensor, tensor

Floats = npt.NDArray[np.float32]


class ResizeMethod(enum.Enum):
    BILINEAR = "bilinear"
    NEAREST_NEIGHBOR = "nearest"
    BICUBIC = "bicubic"
    AREA = "area"
    LANCZOS3 = "lanczos3"
    LANCZOS5 = "lanczos5"
    GAUSSIAN = "gaussian"
    MITCHELLCUBIC = "mitchellcubic"

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


# TensorFlow's kernels, step by step in float32: a place that is rounded otherwise is another weight. Where it
# multiplies and adds in one step on some processors, the step is rounded once here too.
_ONE, _HALF = np.float32(1.0), np.float32(0.5)
_SMALLEST = np.float32(1000.0) * np.finfo(np.float32).tiny


def _triangle(x: Floats) -> Any:
    return np.where(x < _ONE, _ONE - x, np.float32(0.0))


def _keys_cubic(x: Floats) -> Any:
    far = ((np.float32(-0.5) * x + np.float32(2.5)) * x - np.float32(4.0)) * x + np.float32(2.0)
    near = ((np.float32(1.5) * x - np.float32(2.5)) * x) * x + _ONE
    return np.where(x >= 2, np.float32(0.0), np.where(x >= 1, far, near))


def _mitchell_cubic(x: Floats) -> Any:
    far = (np.float32(-7 / 18) * x + np.float32(2.0)) * x - np.float32(10 / 3)
    near = ((np.float32(7 / 6) * x - np.float32(2.0)) * x) * x + np.float32(8 / 9)
    return np.where(x >= 2, np.float32(0.0), np.where(x >= 1, far * x + np.float32(16 / 9), near))


def _gaussian(x: Floats) -> Any:
    # The radius is 1.5, and that is three times the deviation.
    return np.where(x >= np.float32(1.5), 0.0, np.exp(-(x.astype(np.float64) ** 2) / 0.5)).astype(np.float32)


def _lanczos(radius: float) -> Any:
    size, pi = np.float32(radius), np.float32(math.pi)

    def kernel(x: Floats) -> Any:
        inside = np.maximum(x, np.float32(1e-3))
        waves = size * np.sin(pi * inside) * np.sin(pi * inside / size)
        found = waves / (pi * pi * inside * inside)
        return np.where(x > size, np.float32(0.0), np.where(x <= np.float32(1e-3), _ONE, found))

    return kernel


# Half the width of a kernel, and its values at distances from the middle.
_KERNELS: dict[ResizeMethod, tuple[float, Any]] = {
    ResizeMethod.BILINEAR: (1.0, _triangle),
    ResizeMethod.BICUBIC: (2.0, _keys_cubic),
    ResizeMethod.LANCZOS3: (3.0, _lanczos(3.0)),
    ResizeMethod.LANCZOS5: (5.0, _lanczos(5.0)),
    ResizeMethod.GAUSSIAN: (1.5, _gaussian),
    ResizeMethod.MITCHELLCUBIC: (2.0, _mitchell_cubic),
}

# Of the cubic without antialiasing TensorFlow keeps so many steps between two pixels in a table.
_STEPS = 1024

Taps = tuple[npt.NDArray[np.int64], Floats]


def _taps(old: int, new: int, method: ResizeMethod, antialias: bool, half: bool) -> Taps:
    """For each of ``new`` results which pixels it is made of, and how much of each: (new, k) both."""
    scale = np.float32(old) / np.float32(new)
    if method is ResizeMethod.NEAREST_NEIGHBOR:
        at = scale * (np.arange(new, dtype=np.float32) + np.float32(0.5 if half else 0.0))
        return np.minimum(at.astype(np.int64), old - 1)[:, None], np.ones((new, 1), dtype=np.float32)
    if method is ResizeMethod.AREA:
        return _area(old, new, scale)
    if antialias or method not in (ResizeMethod.BILINEAR, ResizeMethod.BICUBIC):
        return _sampled(old, new, method, antialias)
    shift = 0.5 if half else 0.0
    places = ((np.arange(new) + shift) * np.float64(scale) - shift).astype(np.float32)
    low = np.floor(places)
    part, first = places - low, low.astype(np.int64)[:, None]
    if method is ResizeMethod.BILINEAR:
        return np.clip(first + np.arange(2), 0, old - 1), np.stack([_ONE - part, part], axis=1)
    return _cubic(old, first, part, half)


def _area(old: int, new: int, scale: np.float32) -> Taps:
    first = np.arange(new, dtype=np.float32) * scale
    last = np.arange(1, new + 1, dtype=np.float32) * scale
    count = int(np.max(np.ceil(last) - np.floor(first)))
    at = np.floor(first).astype(np.int64)[:, None] + np.arange(count)
    near, begin, end = at.astype(np.float32), first[:, None], last[:, None]
    cut = near + _ONE > end
    share = np.where(
        near < begin,
        np.where(cut, scale, near + _ONE - begin),
        np.where(cut, end - near, _ONE),
    )
    share = np.where(near < np.ceil(end), share, np.float32(0.0)) / scale
    return np.clip(at, 0, old - 1), share.astype(np.float32)


def _cubic(old: int, first: npt.NDArray[np.int64], part: Floats, half: bool) -> Taps:
    """Four pixels, with weights out of a table; a = -0.5, and -0.75 where pixels have no middles."""
    a = -0.5 if half else -0.75
    x = np.arange(_STEPS + 1, dtype=np.float64) / _STEPS
    near = (((a + 2) * x - (a + 3)) * x * x + 1).astype(np.float32)
    x += 1.0
    far = (((a * x - 5 * a) * x + 8 * a) * x - 4 * a).astype(np.float32)
    step = np.rint(part * np.float32(_STEPS)).astype(np.int64)
    weights = np.stack([far[step], near[step], near[_STEPS - step], far[_STEPS - step]], axis=1)
    at = first + np.arange(-1, 3)
    bound = np.clip(at, 0, old - 1)
    return bound, _whole(np.where(at == bound, weights, np.float32(0.0))) if half else weights


def _sampled(old: int, new: int, method: ResizeMethod, antialias: bool) -> Taps:
    """As the kernel lies over the pixels; the wider, the more pixels a result is made of."""
    radius, kernel = _KERNELS[method]
    inverse = np.float32(1.0 / np.float64(np.float32(new) / np.float32(old)))
    wide = np.maximum(inverse, _ONE) if antialias else _ONE
    middles = (np.arange(new, dtype=np.float32) + _HALF) * inverse
    reach = np.float32(radius) * wide
    start = np.clip(np.ceil(middles - reach - _HALF).astype(np.int64), 0, old - 1)
    end = np.clip(np.floor(middles + reach - _HALF).astype(np.int64), 0, old - 1) + 1
    at = start[:, None] + np.arange(int(np.max(end - start)))
    distance = np.abs(at.astype(np.float32) + _HALF - middles[:, None]) * (_ONE / wide)
    # What lies outside of the image does not count; the rest makes up for it.
    weights = np.where(at < end[:, None], kernel(distance), np.float32(0.0))
    return np.minimum(at, old - 1), _whole(weights)


def _whole(weights: Any) -> Floats:
    """The weights of each result, made to add up to one."""
    total = np.add.accumulate(weights, axis=1, dtype=np.float32)[:, -1:]
    some = np.abs(total) >= _SMALLEST
    return np.where(some, weights * (_ONE / np.where(some, total, _ONE)), np.float32(0.0)).astype(np.float32)


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
    """An image (height, width, channels), or a batch of them, in another size.

    The result is float32, but for the nearest neighbour, which keeps the type.
    """
    given = tensor(images)
    pixels = np.asarray(given)
    if pixels.ndim not in (3, 4) or 0 in pixels.shape:
        raise OptionError(f"an image of shape {pixels.shape} cannot be resized")
    height, width = (int(one) for one in np.asarray(size).reshape(-1))
    if height < 1 or width < 1:
        raise OptionError(f"a size is at least 1 × 1, not {height} × {width}")
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
