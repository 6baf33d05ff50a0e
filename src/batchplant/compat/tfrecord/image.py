"""tf.image: decoding and encoding by the native core, resizing and conversion of pixels by NumPy."""

from __future__ import annotations

import enum
from typing import Any, SupportsInt, TypeAlias

import numpy as np
import numpy.typing as npt

from ... import _native
from ...codecs.media import image as codec
from ...errors import DecodeError, OptionError, SchemaError
from ...schema.columns import AnyArray
from .errors import missing_name
from .values import String, Tensor, as_bytes, as_dtype, as_tensor, int32, tensor, uint8

__all__ = [
    "ResizeMethod",
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
    "resize",
]

__getattr__ = missing_name(__name__)
Floats: TypeAlias = npt.NDArray[np.float32]


def _channel_count(channels: Any, allowed: tuple[int, ...]) -> int:
    if channels not in (None, *allowed):
        raise OptionError(f"channels is one of {', '.join(map(str, allowed))}, not {channels}")
    return int(channels or 0)


def _with_channels(pixels: AnyArray, channels: int) -> Tensor:
    """Return (height, width, channels) with this number of channels; 0 keeps the image's own."""
    image = codec.expand(np.asarray(pixels))
    stored = image.shape[2]
    if channels in (0, stored):
        return image.view(Tensor)
    top = np.iinfo(image.dtype).max
    alpha = image[:, :, -1:] if stored in (2, 4) else np.full_like(image[:, :, :1], top)
    colour = image[:, :, : stored - 1] if stored in (2, 4) else image
    if channels in (1, 2) and colour.shape[2] == 3:
        raise DecodeError(f"cannot convert an image of {stored} channels to {channels}")
    if channels in (3, 4) and colour.shape[2] == 1:
        colour = np.repeat(colour, 3, axis=2)
    return as_tensor(np.concatenate([colour, alpha], axis=2) if channels in (2, 4) else colour)


def decode_jpeg(
    contents: object,
    channels: int | None = 0,
    ratio: int = 1,
    fancy_upscaling: bool = True,
    try_recover_truncated: bool = False,
    acceptable_fraction: float = 1.0,
    dct_method: str = "",
    name: object = None,
) -> Tensor:
    """Return the pixels of a JPEG as (height, width, channels), decoded with the fast DCT by default."""
    if ratio != 1 or not fancy_upscaling or try_recover_truncated:
        raise OptionError("ratio, fancy_upscaling and try_recover_truncated are not mirrored")
    if dct_method not in ("", "INTEGER_FAST", "INTEGER_ACCURATE"):
        raise OptionError(f"dct_method is INTEGER_FAST or INTEGER_ACCURATE, not {dct_method!r}")
    count, data = _channel_count(channels, (0, 1, 3)), as_bytes(contents)
    header = codec.header(np.frombuffer(data, dtype=np.uint8))
    if header.encoding != "jpeg":
        return decode_image(data, count, expand_animations=False)
    if header.mode == "CMYK":
        return _with_channels(codec.to_rgb(data), count)
    mode = {0: None, 1: "L", 3: "RGB"}[count]
    try:
        pixels = _native.jpeg_decode(data, mode, "accurate" if dct_method == "INTEGER_ACCURATE" else "fast")
    except ValueError as error:
        raise DecodeError(str(error)) from None
    return as_tensor(pixels)


def decode_and_crop_jpeg(
    contents: object, crop_window: object, channels: int | None = 0, **options: Any
) -> Tensor:
    """Return a part of a JPEG: crop_window is [top, left, height, width]."""
    top, left, height, width = (int(size) for size in np.asarray(crop_window).reshape(-1))
    return crop_to_bounding_box(decode_jpeg(contents, channels, **options), top, left, height, width)


def extract_jpeg_shape(contents: object, output_type: object = int32, name: object = None) -> Tensor:
    """Return [height, width, channels] from the header."""
    header = codec.header(np.frombuffer(as_bytes(contents), dtype=np.uint8))
    if header.encoding != "jpeg" or not header.mode:
        raise DecodeError("these bytes are not a JPEG file")
    channels = {"L": 1, "RGB": 3}.get(header.mode, 4)
    return as_tensor(np.array([header.height, header.width, channels], dtype=as_dtype(output_type).dtype))


def decode_png(
    contents: object, channels: int | None = 0, dtype: object = uint8, name: object = None
) -> Tensor:
    count, target = _channel_count(channels, (0, 1, 2, 3, 4)), as_dtype(dtype)
    if target.name not in ("uint8", "uint16"):
        raise OptionError(f"a PNG is decoded to uint8 or uint16, not {target.name}")
    pixels: AnyArray = codec.decode(as_bytes(contents))
    if pixels.dtype == np.uint16 and target == uint8:
        pixels = (pixels >> 8).astype(np.uint8)
    elif pixels.dtype == np.uint8 and target != uint8:
        pixels = pixels.astype(np.uint16) * 257
    return _with_channels(pixels, count)


def decode_bmp(contents: object, channels: int | None = 0, name: object = None) -> Tensor:
    return _with_channels(codec.decode(as_bytes(contents)), _channel_count(channels, (0, 1, 3, 4)))


def decode_gif(contents: object, name: object = None) -> Tensor:
    """Return all frames of a GIF: (frames, height, width, 3)."""
    return as_tensor(np.stack(codec.frames(as_bytes(contents))))


def decode_image(
    contents: object,
    channels: int | None = 0,
    dtype: object = uint8,
    name: object = None,
    expand_animations: bool = True,
) -> Tensor:
    """Return the pixels of a JPEG, PNG, BMP or GIF; a GIF has a dimension of frames by default."""
    data = as_bytes(contents)
    encoding = codec.header(np.frombuffer(data, dtype=np.uint8)).encoding
    count = _channel_count(channels, (0, 1, 3, 4))
    if encoding == "jpeg":
        pixels = decode_jpeg(data, count)
    elif encoding == "png":
        is_deep = as_dtype(dtype).name in ("uint16", "float32")
        pixels = decode_png(data, count, "uint16" if is_deep else uint8)
    elif encoding == "bmp":
        pixels = decode_bmp(data, count)
    elif encoding == "gif":
        frames = decode_gif(data)
        pixels = frames if expand_animations else frames[0]
    else:
        raise DecodeError("these bytes are not a JPEG, PNG, BMP or GIF file")
    return convert_image_dtype(pixels, dtype)


def encode_jpeg(image: object, format: str = "", quality: int = 95, **ignored: object) -> String:
    if format not in ("", "rgb", "grayscale"):
        raise OptionError(f"format is 'rgb' or 'grayscale', not {format!r}")
    return String(codec.encode(np.asarray(image), "jpeg", quality=int(quality)))


def encode_png(image: object, compression: int = -1, name: object = None) -> String:
    return String(codec.encode(np.asarray(image), "png"))


def crop_to_bounding_box(
    image: object,
    offset_height: SupportsInt,
    offset_width: SupportsInt,
    target_height: SupportsInt,
    target_width: SupportsInt,
) -> Tensor:
    top, left, height, width = (int(x) for x in (offset_height, offset_width, target_height, target_width))
    pixels: Tensor = tensor(image)
    rows, columns = pixels.shape[-3], pixels.shape[-2]
    if min(top, left) < 0 or min(height, width) < 1 or top + height > rows or left + width > columns:
        raise SchemaError(
            f"a crop of {height} × {width} at ({top}, {left}) does not lie in {rows} × {columns}"
        )
    return as_tensor(pixels[..., top : top + height, left : left + width, :])


def convert_image_dtype(image: object, dtype: object, saturate: bool = False, name: object = None) -> Tensor:
    """Return the image in another type and its range: integers over their whole range, floats from 0 to 1."""
    source: Tensor = tensor(image)
    pixels, old, new = np.asarray(source), as_dtype(source.dtype), as_dtype(dtype)
    if new == old:
        return source
    if old.is_integer and new.is_integer:
        bits = 8 * (new.size - old.size) - (new.dtype.kind == "i") + (old.dtype.kind == "i")
        wide = pixels.astype(np.int64)
        return as_tensor((wide << bits if bits > 0 else wide >> -bits).astype(new.dtype))
    if old.is_integer:
        return as_tensor(pixels.astype(new.dtype) * new.dtype.type(1 / old.max))
    if new.is_integer:
        # Half a level more than the range, so that all levels cover the same share of it.
        scaled = pixels * old.dtype.type(new.max + 0.5)
        if saturate:
            scaled = np.clip(scaled, new.min, new.max)
        return as_tensor(scaled.astype(new.dtype))
    return as_tensor(pixels.astype(new.dtype))


class ResizeMethod(enum.Enum):
    BILINEAR = "bilinear"
    NEAREST_NEIGHBOR = "nearest"


def resize(
    images: object,
    size: object,
    method: ResizeMethod | str = ResizeMethod.BILINEAR,
    preserve_aspect_ratio: bool = False,
    antialias: bool = False,
    name: object = None,
) -> Tensor:
    """Return an image (height, width, channels), or a batch of images, in another size.

    The result is float32, except for the nearest neighbour, which keeps the type.
    """
    source: Tensor = tensor(images)
    pixels: AnyArray = np.asarray(source)
    if pixels.ndim not in (3, 4) or 0 in pixels.shape:
        raise OptionError(f"an image of shape {pixels.shape} cannot be resized")
    height, width = (int(length) for length in np.asarray(size).reshape(-1))
    if height < 1 or width < 1:
        raise OptionError(f"a size is at least 1 × 1, not {height} × {width}")
    old_height, old_width = pixels.shape[-3], pixels.shape[-2]
    if preserve_aspect_ratio:
        ratio = min(height / old_height, width / old_width)
        height, width = max(1, round(ratio * old_height)), max(1, round(ratio * old_width))
    if antialias:
        raise OptionError("resize(antialias=True) is not mirrored; use batchplant.ops.Resize or PIL")
    try:
        method = ResizeMethod(method)
    except ValueError:
        names = ", ".join(choice.value for choice in ResizeMethod)
        raise OptionError(f"method {method!r} is not mirrored; there are {names}") from None
    if method is ResizeMethod.NEAREST_NEIGHBOR:
        if (height, width) == (old_height, old_width):
            return source
        rows, columns = _nearest(old_height, height), _nearest(old_width, width)
        return as_tensor(np.take(np.take(pixels, rows, axis=-3), columns, axis=-2))
    if (height, width) == (old_height, old_width):
        return as_tensor(pixels.astype(np.float32))
    # TensorFlow's order of steps, and therefore its rounding.
    return as_tensor(_bilinear(_bilinear(pixels, pixels.ndim - 2, width), pixels.ndim - 3, height))


# TensorFlow's kernels step by step in float32: a position that is rounded differently has another weight.


def _nearest(old: int, new: int) -> npt.NDArray[np.int64]:
    """Return the index of the source pixel of each new pixel."""
    positions = np.float32(old) / np.float32(new) * (np.arange(new, dtype=np.float32) + np.float32(0.5))
    return np.minimum(positions.astype(np.int64), old - 1)


def _bilinear(pixels: AnyArray, axis: int, new: int) -> Floats:
    """Resize one axis: each new pixel lies between two old ones, near + (far - near) * weight."""
    old = pixels.shape[axis]
    scale = np.float32(old) / np.float32(new)
    positions = ((np.arange(new) + 0.5) * np.float64(scale) - 0.5).astype(np.float32)
    low = np.floor(positions)
    first = low.astype(np.int64)
    near = np.take(pixels, np.clip(first, 0, old - 1), axis=axis).astype(np.float32, copy=False)
    far = np.take(pixels, np.clip(first + 1, 0, old - 1), axis=axis).astype(np.float32, copy=False)
    far -= near
    far *= (positions - low).reshape([-1 if other == axis else 1 for other in range(pixels.ndim)])
    far += near
    return far
