"""Decoders, the first steps of pipelines."""

from __future__ import annotations

from .basics import FloatDecoder, IntDecoder
from .bytes import BytesDecoder
from .ndarray import NDArrayDecoder
from .rgb_image import CenterCropRGBImageDecoder, RandomResizedCropRGBImageDecoder, SimpleRGBImageDecoder

__all__ = [
    "BytesDecoder",
    "CenterCropRGBImageDecoder",
    "FloatDecoder",
    "IntDecoder",
    "NDArrayDecoder",
    "RandomResizedCropRGBImageDecoder",
    "SimpleRGBImageDecoder",
]
