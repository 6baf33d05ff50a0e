"""Pictures through Pillow (extra ``images``): opened as the encoding that we found, and as no other."""

from __future__ import annotations

import importlib
import io
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..columns import U8
from ..errors import DecodeError, EncodeError, MissingLibraryError
from . import exif

PLUGINS = {"jpeg": "Jpeg", "png": "Png", "webp": "WebP", "gif": "Gif", "bmp": "Bmp", "tiff": "Tiff"}
# (from, to) of conversions that keep every value.
EXACT = {("L", "RGB"), ("RGB", "RGBA"), ("L", "RGBA"), ("L", "LA"), ("LA", "RGBA")}

Pixels = npt.NDArray[Any]


class Palette(NamedTuple):
    """The colours of a palette picture, and which of them are transparent."""

    colours: bytes
    transparency: int | bytes | None


def library() -> ModuleType:
    try:
        import PIL.Image
    except ImportError:
        raise MissingLibraryError('this picture needs Pillow: pip install "batchplant[images]"') from None
    return PIL.Image


def own_limit() -> float:
    """The pixels from which on Pillow warns, or refuses to decode."""
    found = library().MAX_IMAGE_PIXELS
    return float("inf") if found is None else float(found)


def open_image(view: U8, encoding: str, most: int) -> Any:
    """A PIL image, nothing of it decoded yet, of at most so many pixels.

    Pillow's own ``open`` would try other formats too, and warns or raises by a limit of its own.
    """
    opened = library()
    data = view.tobytes()
    if encoding == "tiff" and exif.orientation(data) != 1:
        # Pillow would turn the pixels of a TIFF, and of nothing else.
        data = exif.upright(exif.Metadata(data)).exif
    try:
        importlib.import_module(f"PIL.{PLUGINS[encoding]}ImagePlugin")
        image = opened.OPEN[encoding.upper()][0](io.BytesIO(data), "")
        size = image.size
    # Pillow's decoders raise many kinds on damaged bytes (OSError, SyntaxError, struct.error, …).
    except Exception as error:
        raise DecodeError(f"{type(error).__name__}: {error}") from None
    if size[0] * size[1] > most:
        raise DecodeError(f"the picture has {size[0]}×{size[1]} pixels, and the limit is {most}")
    return image


def load(view: U8, encoding: str, most: int, frame: int = 0) -> Any:
    """A decoded PIL image."""
    image = open_image(view, encoding, most)
    try:
        if frame:
            image.seek(frame)
        image.load()
    # As above.
    except Exception as error:
        raise DecodeError(f"{type(error).__name__}: {error}") from None
    return image


def pixels_of(image: Any, mode: str | None = None, *, indices: bool = False) -> Pixels:
    """The pixels of a PIL image, converted to ``mode`` where that loses nothing.

    Palettes are looked up; with ``indices`` the numbers of the colours are what is wanted.
    """
    transparent = "transparency" in image.info
    if image.mode == "P":
        if indices:
            return np.asarray(image)
        image = image.convert("RGBA" if transparent else "RGB")
    elif image.mode == "1":
        image = image.convert("L")
    if mode not in (None, image.mode):
        if (image.mode, mode) not in EXACT or transparent:
            raise DecodeError(f"the picture is {image.mode}; making it {mode} would change its pixels")
        image = image.convert(mode)
    found = np.asarray(image)
    return found.astype(found.dtype.newbyteorder("="), copy=False)


def palette_of(image: Any) -> Palette | None:
    """The palette of a PIL image that has one."""
    if image.mode != "P":
        return None
    return Palette(bytes(image.getpalette("RGB")), image.info.get("transparency"))


def save(pixels: Pixels, encoding: str, mode: str, palette: Palette | None = None, **options: Any) -> bytes:
    """An encoded picture of these pixels, one channel without its axis."""
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
