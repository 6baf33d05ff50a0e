"""Images in another type or lightness."""

from __future__ import annotations

from typing import Any

import numpy as np

from .values import Tensor, as_dtype, float32, tensor


def convert_image_dtype(image: Any, dtype: Any, saturate: bool = False, name: Any = None) -> Any:
    """Another type and its range: integers over their whole range, floats from 0 to 1."""
    given, kind = tensor(image), as_dtype(dtype)
    pixels, old = np.asarray(given), as_dtype(given.dtype)
    if kind == old:
        return given
    if old.is_integer and kind.is_integer:
        bits = 8 * (kind.size - old.size) - (kind.dtype.kind == "i") + (old.dtype.kind == "i")
        wide = pixels.astype(np.int64)
        return (wide << bits if bits > 0 else wide >> -bits).astype(kind.dtype).view(Tensor)
    if old.is_integer:
        return (pixels.astype(kind.dtype) * kind.dtype.type(1 / old.max)).view(Tensor)
    if kind.is_integer:
        # Half a level more than the range, so that all levels take the same share of it.
        scaled = pixels * old.dtype.type(kind.max + 0.5)
        if saturate:
            scaled = np.clip(scaled, kind.min, kind.max)
        return scaled.astype(kind.dtype).view(Tensor)
    return pixels.astype(kind.dtype).view(Tensor)


def adjust_brightness(image: Any, delta: Any) -> Any:
    given = tensor(image)
    moved = np.asarray(convert_image_dtype(given, float32)) + np.float32(delta)
    return convert_image_dtype(moved.view(Tensor), given.dtype, saturate=True)


def adjust_contrast(images: Any, contrast_factor: Any) -> Any:
    given = tensor(images)
    pixels = np.asarray(convert_image_dtype(given, float32))
    mean = pixels.mean(axis=(-3, -2), keepdims=True)
    moved = ((pixels - mean) * np.float32(contrast_factor) + mean).astype(np.float32)
    return convert_image_dtype(moved.view(Tensor), given.dtype, saturate=True)
