"""tf.image: decoding by the native core, and the common operations on single images."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import _native
from ...codecs.media import image as codec
from ...errors import DecodeError, OptionError, SchemaError
from .pixels import adjust_brightness, adjust_contrast, convert_image_dtype
from .random_image import (
    random_brightness,
    random_contrast,
    random_crop,
    random_flip_left_right,
    random_flip_up_down,
    sample_distorted_bounding_box,
    stateless_random_crop,
    stateless_random_flip_left_right,
    stateless_random_flip_up_down,
)
from .resize import ResizeMethod, resize
from .values import Tensor, as_bytes, as_dtype, float32, int32, tensor, uint8

__all__ = [
    "ResizeMethod",
    "adjust_brightness",
    "adjust_contrast",
    "central_crop",
    "convert_image_dtype",
    "crop_to_bounding_box",
    "decode_and_crop_jpeg",
    "decode_bmp",
    "decode_gif",
    "decode_image",
    "decode_jpeg",
    "decode_png",
    "encode_jpeg",
    "encode_png",
    "extract_jpeg_shape",
    "flip_left_right",
    "flip_up_down",
    "grayscale_to_rgb",
    "pad_to_bounding_box",
    "per_image_standardization",
    "random_brightness",
    "random_contrast",
    "random_crop",
    "random_flip_left_right",
    "random_flip_up_down",
    "resize",
    "resize_with_crop_or_pad",
    "rgb_to_grayscale",
    "rot90",
    "sample_distorted_bounding_box",
    "stateless_random_crop",
    "stateless_random_flip_left_right",
    "stateless_random_flip_up_down",
    "transpose",
]


def _channels(wanted: Any, allowed: tuple[int, ...]) -> int:
    if wanted not in (None, *allowed):
        raise OptionError(f"channels is one of {', '.join(map(str, allowed))}, not {wanted}")
    return int(wanted or 0)


def _with_channels(pixels: Any, channels: int) -> Any:
    """(height, width, channels) with so many channels; 0: as they are."""
    out = codec.expand(np.asarray(pixels))
    found = out.shape[2]
    if channels in (0, found):
        return out.view(Tensor)
    top = np.iinfo(out.dtype).max
    alpha = out[:, :, -1:] if found in (2, 4) else np.full_like(out[:, :, :1], top)
    colour = out[:, :, : found - 1] if found in (2, 4) else out
    if channels in (1, 2) and colour.shape[2] == 3:
        raise DecodeError(f"cannot convert an image of {found} channels to {channels}")
    if channels in (3, 4) and colour.shape[2] == 1:
        colour = np.repeat(colour, 3, axis=2)
    return (np.concatenate([colour, alpha], axis=2) if channels in (2, 4) else colour).view(Tensor)


def decode_jpeg(
    contents: Any,
    channels: Any = 0,
    ratio: int = 1,
    fancy_upscaling: bool = True,
    try_recover_truncated: bool = False,
    acceptable_fraction: float = 1.0,
    dct_method: str = "",
    name: Any = None,
) -> Any:
    """The pixels of a JPEG, as (height, width, channels). TensorFlow's default DCT, the quick one."""
    if ratio != 1 or not fancy_upscaling or try_recover_truncated:
        raise OptionError("ratio, fancy_upscaling and try_recover_truncated are not mirrored")
    if dct_method not in ("", "INTEGER_FAST", "INTEGER_ACCURATE"):
        raise OptionError(f"dct_method is INTEGER_FAST or INTEGER_ACCURATE, not {dct_method!r}")
    wanted, data = _channels(channels, (0, 1, 3)), as_bytes(contents)
    found = codec.header(np.frombuffer(data, dtype=np.uint8))
    if found.encoding != "jpeg":
        return decode_image(data, wanted, expand_animations=False)
    if found.mode == "CMYK":
        return _with_channels(codec.to_rgb(data), wanted)
    try:
        pixels = _native.jpeg_decode(
            data,
            {0: None, 1: "L", 3: "RGB"}[wanted],
            "accurate" if dct_method == "INTEGER_ACCURATE" else "fast",
        )
    except ValueError as error:
        raise DecodeError(str(error)) from None
    return pixels.view(Tensor)


def decode_and_crop_jpeg(contents: Any, crop_window: Any, channels: Any = 0, **options: Any) -> Any:
    """A part of a JPEG: crop_window is [top, left, height, width]."""
    top, left, height, width = (int(one) for one in np.asarray(crop_window).reshape(-1))
    return crop_to_bounding_box(decode_jpeg(contents, channels, **options), top, left, height, width)


def extract_jpeg_shape(contents: Any, output_type: Any = int32, name: Any = None) -> Any:
    """[height, width, channels], read off the header."""
    found = codec.header(np.frombuffer(as_bytes(contents), dtype=np.uint8))
    if found.encoding != "jpeg" or not found.mode:
        raise DecodeError("these bytes are not a JPEG file")
    channels = {"L": 1, "RGB": 3}.get(found.mode, 4)
    return np.array([found.height, found.width, channels], dtype=as_dtype(output_type).dtype).view(Tensor)


def decode_png(contents: Any, channels: Any = 0, dtype: Any = uint8, name: Any = None) -> Any:
    wanted, kind = _channels(channels, (0, 1, 2, 3, 4)), as_dtype(dtype)
    if kind.name not in ("uint8", "uint16"):
        raise OptionError(f"a PNG is decoded to uint8 or uint16, not {kind.name}")
    pixels = codec.decode(as_bytes(contents))
    if pixels.dtype == np.uint16 and kind == uint8:
        pixels = (pixels >> 8).astype(np.uint8)
    elif pixels.dtype == np.uint8 and kind != uint8:
        pixels = pixels.astype(np.uint16) * 257
    return _with_channels(pixels, wanted)


def decode_bmp(contents: Any, channels: Any = 0, name: Any = None) -> Any:
    return _with_channels(codec.decode(as_bytes(contents)), _channels(channels, (0, 1, 3, 4)))


def decode_gif(contents: Any, name: Any = None) -> Any:
    """All images of a GIF: (images, height, width, 3)."""
    return np.stack(codec.frames(as_bytes(contents))).view(Tensor)


def decode_image(
    contents: Any, channels: Any = 0, dtype: Any = uint8, name: Any = None, expand_animations: bool = True
) -> Any:
    """The pixels of a JPEG, PNG, BMP or GIF; a GIF has a dimension more unless told otherwise."""
    data = as_bytes(contents)
    encoding = codec.header(np.frombuffer(data, dtype=np.uint8)).encoding
    wanted = _channels(channels, (0, 1, 3, 4))
    if encoding == "jpeg":
        pixels = decode_jpeg(data, wanted)
    elif encoding == "png":
        pixels = decode_png(
            data, wanted, "uint16" if as_dtype(dtype).name in ("uint16", "float32") else uint8
        )
    elif encoding == "bmp":
        pixels = decode_bmp(data, wanted)
    elif encoding == "gif":
        pixels = decode_gif(data)
        pixels = pixels if expand_animations else pixels[0]
    else:
        raise DecodeError("these bytes are not a JPEG, PNG, BMP or GIF file")
    return convert_image_dtype(pixels, dtype)


def encode_jpeg(image: Any, format: str = "", quality: int = 95, **ignored: Any) -> Any:
    if format not in ("", "rgb", "grayscale"):
        raise OptionError(f"format is 'rgb' or 'grayscale', not {format!r}")
    return tensor(codec.encode(np.asarray(image), "jpeg", quality=int(quality)))


def encode_png(image: Any, compression: int = -1, name: Any = None) -> Any:
    return tensor(codec.encode(np.asarray(image), "png"))


def crop_to_bounding_box(
    image: Any, offset_height: Any, offset_width: Any, target_height: Any, target_width: Any
) -> Any:
    top, left, height, width = (int(x) for x in (offset_height, offset_width, target_height, target_width))
    image = tensor(image)
    room = image.shape[-3], image.shape[-2]
    if min(top, left) < 0 or min(height, width) < 1 or top + height > room[0] or left + width > room[1]:
        raise SchemaError(
            f"a crop of {height} × {width} at ({top}, {left}) does not lie in {room[0]} × {room[1]}"
        )
    return image[..., top : top + height, left : left + width, :]


def pad_to_bounding_box(
    image: Any, offset_height: Any, offset_width: Any, target_height: Any, target_width: Any
) -> Any:
    top, left, height, width = (int(x) for x in (offset_height, offset_width, target_height, target_width))
    image = tensor(image)
    below, right = height - top - image.shape[-3], width - left - image.shape[-2]
    if min(top, left, below, right) < 0:
        raise SchemaError(f"{image.shape} at ({top}, {left}) does not fit in {height} × {width}")
    around = [(0, 0)] * (image.ndim - 3) + [(top, below), (left, right), (0, 0)]
    return np.pad(np.asarray(image), around).view(Tensor)


def resize_with_crop_or_pad(image: Any, target_height: Any, target_width: Any) -> Any:
    """The middle, cut or filled up with zeros to this size."""
    image, height, width = tensor(image), int(target_height), int(target_width)
    top, left = max((image.shape[-3] - height) // 2, 0), max((image.shape[-2] - width) // 2, 0)
    kept = crop_to_bounding_box(image, top, left, min(height, image.shape[-3]), min(width, image.shape[-2]))
    top, left = (height - kept.shape[-3]) // 2, (width - kept.shape[-2]) // 2
    return pad_to_bounding_box(kept, top, left, height, width)


def central_crop(image: Any, central_fraction: Any) -> Any:
    fraction = float(central_fraction)
    if not 0 < fraction <= 1:
        raise OptionError(f"central_fraction is above 0 and at most 1, not {fraction}")
    image = tensor(image)
    top = int((image.shape[-3] - image.shape[-3] * fraction) / 2)
    left = int((image.shape[-2] - image.shape[-2] * fraction) / 2)
    return image[..., top : image.shape[-3] - top, left : image.shape[-2] - left, :]


def flip_left_right(image: Any) -> Any:
    return tensor(image)[..., ::-1, :]


def flip_up_down(image: Any) -> Any:
    return tensor(image)[..., ::-1, :, :]


def rot90(image: Any, k: int = 1, name: Any = None) -> Any:
    image = tensor(image)
    return np.rot90(image, int(k) % 4, axes=(image.ndim - 3, image.ndim - 2))


def transpose(image: Any, name: Any = None) -> Any:
    return np.swapaxes(tensor(image), -3, -2)


def rgb_to_grayscale(images: Any, name: Any = None) -> Any:
    given = tensor(images)
    pixels = np.asarray(convert_image_dtype(given, float32))
    gray = pixels @ np.array([0.2989, 0.5870, 0.1140], dtype=np.float32)
    return convert_image_dtype(gray[..., None].view(Tensor), given.dtype)


def grayscale_to_rgb(images: Any, name: Any = None) -> Any:
    return np.repeat(np.asarray(tensor(images)), 3, axis=-1).view(Tensor)


def per_image_standardization(image: Any) -> Any:
    pixels = np.asarray(tensor(image), dtype=np.float32)
    axes = (-3, -2, -1)
    least = 1.0 / np.sqrt(np.float32(np.prod(pixels.shape[-3:])))
    spread = np.maximum(pixels.std(axis=axes, keepdims=True), least)
    return ((pixels - pixels.mean(axis=axes, keepdims=True)) / spread).astype(np.float32).view(Tensor)
