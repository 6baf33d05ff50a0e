"""Pixels as arrays, (height, width) or (height, width, channels): their mode; resized; turned."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ... import _native
from ...errors import EncodeError
from ...schema.columns import AnyArray, AnyDType

Pixels = AnyArray


def mode_name(dtype: AnyDType, channels: int) -> str:
    """The mode of pixels of this dtype."""
    if dtype == np.uint8 and channels <= 4:
        return ("L", "LA", "RGB", "RGBA")[channels - 1]
    if dtype == np.uint16 and channels <= 4:
        return ("I;16", "LA;16", "RGB;16", "RGBA;16")[channels - 1]
    if channels == 1:
        return {"int32": "I", "float32": "F"}.get(dtype.name, dtype.name)
    return f"{dtype.name}x{channels}"


def mode_of(pixels: Pixels) -> str:
    """The mode that an array of pixels has; EncodeError where it is none."""
    channels = 1 if pixels.ndim == 2 else pixels.shape[2] if pixels.ndim == 3 else 0
    if 0 in pixels.shape or not 1 <= channels < 1 << 16:
        raise EncodeError(
            f"an image of shape {pixels.shape} has no image format; store it in a Tensor field instead"
        )
    if pixels.dtype.kind not in "iuf" or pixels.dtype.itemsize > 8:
        message = f"an image of {pixels.dtype} has no image format; store it in a Tensor field instead"
        raise EncodeError(message)
    return mode_name(pixels.dtype, channels)


def expand(pixels: Pixels) -> Pixels:
    """With a channel axis."""
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def squeeze(pixels: Pixels) -> Pixels:
    """Without the channel axis where there is one channel."""
    return pixels[:, :, 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels


def pixels_to_rgb(pixels: Pixels) -> Pixels:
    """Pixels of 8 bits as RGB: grayscale three times, alpha dropped."""
    colour = expand(pixels)[:, :, : pixels.shape[2] - 1 if mode_of(pixels) in ("LA", "RGBA") else None]
    return colour if colour.shape[2] == 3 else np.repeat(colour, 3, axis=2)


def orient(pixels: Pixels, orientation: int) -> Pixels:
    """The image turned and mirrored as EXIF's number says, so that it is upright."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def fitted_size(height: int, width: int, longest: int) -> tuple[int, int]:
    """Return height and width scaled so that the longer is ``longest``, rounded as FFCV does."""
    ratio = longest / max(height, width)
    return max(1, int(ratio * height)), max(1, int(ratio * width))


def fit(pixels: Pixels, longest: int | None, *, nearest: bool = False) -> Pixels:
    """Shrink by area averaging until the longer side is at most ``longest``.

    ``nearest`` takes one of the pixels in place of their mean: numbers of classes have none.
    """
    height, width = pixels.shape[:2]
    if longest is None or max(height, width) <= longest:
        return pixels
    high, wide = fitted_size(height, width, longest)
    if nearest:
        rows, columns = (
            ((np.arange(new) + 0.5) * old / new).astype(np.int64)
            for old, new in ((height, high), (width, wide))
        )
        return np.ascontiguousarray(pixels[rows][:, columns])
    if pixels.dtype == np.uint8 and expand(pixels).shape[2] <= 4:
        return squeeze(_native.resize_area(np.ascontiguousarray(expand(pixels)), wide, high))
    mean = np.tensordot(_shares(height, high), pixels, (1, 0))
    mean = np.moveaxis(np.tensordot(_shares(width, wide), mean, (1, 1)), 0, 1)
    return (np.rint(mean) if pixels.dtype.kind in "iu" else mean).astype(pixels.dtype)


def _shares(old: int, new: int) -> npt.NDArray[np.float64]:
    """For every new pixel the share that each old one has in it."""
    edges = np.arange(new + 1) * old / new
    position = np.arange(old)
    inside = np.minimum(edges[1:, None], position + 1) - np.maximum(edges[:-1, None], position)
    return np.asarray(np.clip(inside, 0, None) * new / old)
