"""Images through Pillow (extra ``images``): opened as the encoding that we found, and as no other."""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from ...errors import BatchplantError, DecodeError, EncodeError, MissingLibraryError, needs
from ...schema.columns import U8, AnyArray
from ...storage import limits
from . import exif
from .memory import Memory

PLUGINS = {"jpeg": "Jpeg", "png": "Png", "webp": "WebP", "gif": "Gif", "bmp": "Bmp", "tiff": "Tiff"}
# (from, to) of conversions that keep every value.
EXACT = {("L", "RGB"), ("RGB", "RGBA"), ("L", "RGBA"), ("L", "LA"), ("LA", "RGBA")}
# Larger images are converted strip by strip: Pillow would make two more copies of the whole.
STRIP_BYTES = 1 << 21

Pixels = AnyArray


class Palette(NamedTuple):
    """The colours of a palette image, and which of them are transparent."""

    colours: bytes
    transparency: int | bytes | None


def library() -> ModuleType:
    with needs("this image needs Pillow", "images"):
        import PIL.Image
    return PIL.Image


def own_limit() -> float:
    """The pixels from which on Pillow warns, or refuses to decode."""
    max_pixels = library().MAX_IMAGE_PIXELS
    return float("inf") if max_pixels is None else float(max_pixels)


@contextlib.contextmanager
def decoding() -> Iterator[None]:
    """Raise as DecodeError what decoders raise on damaged bytes: OSError, SyntaxError, struct.error, …"""
    try:
        yield
    except BatchplantError:
        raise
    except Exception as error:
        raise DecodeError(f"{type(error).__name__}: {error}") from None


def open_image(view: U8, encoding: str) -> Any:
    """A PIL image, nothing of it decoded yet; a DecodeError where it is larger than allowed.

    Pillow's own ``open`` would try other formats too, and warns or raises by a limit of its own.
    """
    opened = library()
    if encoding == "tiff" and exif.orientation(view) != 1:
        # Pillow would turn the pixels of a TIFF, and of nothing else.
        view = np.frombuffer(exif.upright(exif.Metadata(view.tobytes())).exif, np.uint8)
    file = io.BufferedReader(Memory(view.data)) if view.size > STRIP_BYTES else io.BytesIO(view.tobytes())
    with decoding():
        importlib.import_module(f"PIL.{PLUGINS[encoding]}ImagePlugin")
        image = opened.OPEN[encoding.upper()][0](file, "")
        width, height = image.size
    # A header may not tell all: an image of an animation can be larger than the whole.
    if width * height > limits.max_pixels():
        raise DecodeError(f"the image has {width}×{height} pixels, and the limit is {limits.max_pixels()}")
    size = width * height * len(image.getbands())
    if size > limits.allowed(view.size):
        raise DecodeError(limits.too_large(f"the image of {width}×{height} pixels", size, view.size))
    return image


def load(view: U8, encoding: str) -> Any:
    """A decoded PIL image."""
    image = open_image(view, encoding)
    with decoding():
        image.load()
    return image


def pixels_of(
    image: Any, mode: str | None = None, *, indices: bool = False, strip_bytes: int = STRIP_BYTES
) -> Pixels:
    """The pixels of a PIL image, converted to ``mode`` where that loses nothing.

    Palettes are looked up; with ``indices`` the numbers of the colours are the pixels.
    """
    transparent = "transparency" in image.info
    if image.mode == "P" and indices:
        return array_of(image, strip_bytes=strip_bytes)
    looked_up = "RGBA" if transparent else "RGB"
    has = {"P": looked_up, "1": "L"}.get(image.mode, image.mode)
    if mode not in (None, has) and ((has, mode) not in EXACT or transparent):
        raise DecodeError(f"the image is {has}; making it {mode} would change its pixels")
    return array_of(image, has, mode or has, strip_bytes=strip_bytes)


def array_of(image: Any, *conversions: str, strip_bytes: int = STRIP_BYTES) -> Pixels:
    """The pixels of a PIL image, converted to one mode after the other."""
    width, height = image.size
    rows = max(1, strip_bytes // (4 * max(1, width)))
    array: Pixels | None = None
    for top in range(0, max(1, height), rows):
        part = image if height <= rows else image.crop((0, top, width, min(top + rows, height)))
        for mode in conversions:
            part = part.convert(mode) if part.mode != mode else part
        pixels = np.asarray(part)
        pixels = pixels.astype(pixels.dtype.newbyteorder("="), copy=False)
        if height <= rows:
            return pixels
        if array is None:
            array = np.empty((height, *pixels.shape[1:]), pixels.dtype)
        array[top : top + rows] = pixels
    assert array is not None
    return array


def palette_of(image: Any) -> Palette | None:
    """The palette of a PIL image that has one."""
    if image.mode != "P":
        return None
    return Palette(bytes(image.getpalette("RGB")), image.info.get("transparency"))


def save(pixels: Pixels, encoding: str, mode: str, palette: Palette | None = None, **options: Any) -> bytes:
    """An encoded image of these pixels, one channel without its axis."""
    out = io.BytesIO()
    try:
        if mode in ("CMYK", "P"):
            image = library().frombytes(mode, pixels.shape[1::-1], np.ascontiguousarray(pixels).tobytes())
        else:
            image = library().fromarray(pixels)
        if palette is not None:
            image.putpalette(palette.colours)
            if palette.transparency is not None:
                options["transparency"] = palette.transparency
        image.save(out, format=encoding, **options)
    except MissingLibraryError:
        raise
    # An encoder that a build of Pillow lacks is a KeyError.
    except (OSError, ValueError, KeyError, TypeError, SystemError) as error:
        raise EncodeError(f"{encoding}: {error}") from None
    return out.getvalue()
