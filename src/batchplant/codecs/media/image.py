"""Images: look at the header, decode, encode, resize, turn.

JPEG, PNG and WebP are decoded natively and without the GIL; the rest goes through Pillow (extra ``images``),
and what Pillow cannot hold (colour of more than 8 bits, floats, many channels) through tifffile and
imagecodecs (extra ``tiff``). Pixels are arrays, (height, width) for one channel and else (height, width,
channels).

Modes: L, LA, RGB, RGBA, P, CMYK and 1 have 8 bits at the most; I;16, LA;16, RGB;16 and RGBA;16 are uint16;
I is int32 and F float32 in one channel. Everything else goes by its dtype and channels: float32x3, uint8x5.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np

from ... import _native
from ...errors import DecodeError, EncodeError, exceptions_as, needs
from ...schema.columns import U8
from ...storage import limits
from . import exif, pillow, tiff
from .header import ENCODINGS as ENCODINGS
from .header import MODES as MODES
from .header import Header as Header
from .header import check as check
from .header import check_bytes, too_large
from .header import header as header
from .header import modes as modes
from .header import probe as probe
from .pixels import Pixels as Pixels
from .pixels import expand as expand
from .pixels import fit as fit
from .pixels import fitted_size
from .pixels import mode_name as mode_name
from .pixels import mode_of as mode_of
from .pixels import orient as orient
from .pixels import pixels_to_rgb as pixels_to_rgb
from .pixels import squeeze as squeeze

SUFFIXES = {
    ".jpg": "jpeg",
    ".jpeg": "jpeg",
    ".jpe": "jpeg",
    ".png": "png",
    ".webp": "webp",
    ".gif": "gif",
    ".bmp": "bmp",
    ".tif": "tiff",
    ".tiff": "tiff",
}
# The native decoder of JPEG has a limit of its own.
MAX_NATIVE_JPEG_PIXELS = 1 << 28
LOSSLESS = ("png", "webp", "tiff", "bmp")
# The modes that an encoding holds; TIFF holds all of them.
LOSSLESS_MODES = {
    "jpeg": ("L", "RGB", "CMYK"),
    "png": ("L", "LA", "RGB", "RGBA", "P", "I;16", "LA;16", "RGB;16", "RGBA;16"),
    "webp": ("L", "LA", "RGB", "RGBA"),
    "bmp": ("L", "RGB", "P"),
    "raw": ("L", "LA", "RGB", "RGBA"),
}

_LOCAL = threading.local()

orientation = exif.orientation
from_pillow = pillow.pixels_of
palette_of = pillow.palette_of


def holds(encoding: str, mode: str) -> bool:
    """True if this encoding stores pixels of this mode without loss."""
    return encoding == "tiff" or mode in LOSSLESS_MODES.get(encoding, ())


def decode(data: Any, mode: str | None = None, *, mask: bool = False) -> Pixels:
    """The pixels of an encoded image, of its first page; ``mode`` converts only where nothing is lost.

    Palettes are looked up. In mode P, and of a mask, the indices of its palette are the pixels.
    """
    indices = mode == "P" or (mask and mode in (None, "L"))
    view, head = _view_and_header(data, indices=indices)
    if indices:
        mode = "P" if head.mode == "P" else None if mode is None else "L"
    pixels = _native_decode(view, head, mode)
    if pixels is None:
        pixels = _library_decode(view, head, mode, indices=indices)
    return pixels


def _view_and_header(data: Any, *, indices: bool = False) -> tuple[U8, Header]:
    """The bytes and their header, whose claims are checked before anything is decoded."""
    view = np.frombuffer(data, dtype=np.uint8)
    head = header(view)
    if not head.encoding:
        raise DecodeError("these bytes are not an image that batchplant knows")
    check(head, view, indices=indices)
    return view, head


def _native_decode(view: U8, head: Header, mode: str | None) -> Pixels | None:
    """The pixels, where the native code decodes such an image."""
    try:
        if head.encoding == "jpeg":
            if head.width * head.height > MAX_NATIVE_JPEG_PIXELS:
                return None
            if head.mode in ("L", "RGB", "") and mode in (None, "RGB", head.mode):
                return squeeze(_native.jpeg_decode(view.data, "RGB" if mode == "RGB" else None))
        elif head.bits <= 8 and head.encoding in ("png", "webp"):
            codec = _native.png_decode if head.encoding == "png" else _native.webp_decode
            pixels = codec(view, mode, limits.max_pixels())
            return None if pixels is None else squeeze(pixels)
    except ValueError as error:
        raise DecodeError(str(error)) from None
    return None


def _engine() -> _native.Engine:
    """Return an engine of this thread; one that was made before a fork has lost its own."""
    if getattr(_LOCAL, "process", None) != os.getpid():
        _LOCAL.engine, _LOCAL.process = _native.Engine(1), os.getpid()
    return _LOCAL.engine


def decode_shrunk(data: Any, longest: int) -> Pixels | None:
    """Decode a JPEG in color and shrink it as ``fit`` does, at once; None for other or damaged images.

    That takes half the time. Levels differ from those of two steps by one at most.
    """
    view, head = _view_and_header(data)
    is_color_jpeg = head.encoding == "jpeg" and head.mode == "RGB"
    is_larger = max(head.height, head.width) > longest
    if not is_color_jpeg or not is_larger or head.width * head.height > MAX_NATIVE_JPEG_PIXELS:
        return None
    zero, size = np.zeros(1, dtype=np.int64), np.array([len(view)], dtype=np.int64)
    box = np.array([[0, 0, head.width, head.height]], dtype=np.float64)
    pixels = np.empty((1, *fitted_size(head.height, head.width, longest), 3), dtype=np.uint8)
    status, _, warnings = _engine().decode(
        [view], zero.astype(np.int32), zero, size, None, box, np.zeros(1, dtype=np.bool_), pixels,
        layout="nhwc", filter="area",
    )  # fmt: skip
    return None if status.any() or warnings else pixels[0]


def _library_decode(view: U8, head: Header, mode: str | None, *, indices: bool) -> Pixels:
    if _is_deep(view, head):
        if mode not in (None, head.mode):
            raise DecodeError(f"the image is {head.mode}; making it {mode} would change its pixels")
        return _png16_decode(view) if head.encoding == "png" else squeeze(tiff.read(view)[0])
    image = pillow.load(view, head.encoding)
    return pillow.pixels_of(image, None if mode == "P" else mode, indices=indices)


def _is_deep(view: U8, head: Header) -> bool:
    """True if Pillow would reduce it to 8 bits, or cannot read it."""
    if head.encoding == "png":
        return head.bits == 16 and head.mode != "I;16"
    page = next(tiff.pages(view), None) if head.encoding == "tiff" else None
    if page is None or not page.width * page.height:
        return False
    # Beyond a limit of its own Pillow decodes nothing.
    return not page.plain or (page.direct and page.width * page.height > pillow.own_limit())


def _png16_decode(view: U8) -> Pixels:
    library = _imagecodecs()
    with pillow.decoding():
        pixels: Pixels = library.png_decode(view.data)
    return pixels


def _imagecodecs() -> Any:
    with needs("a PNG with colours of 16 bits needs imagecodecs", "tiff"):
        import imagecodecs
    return imagecodecs


def to_rgb(data: Any) -> Pixels:
    """The pixels as RGB whatever the image is: alpha dropped, CMYK and 16 bits converted."""
    view, head = _view_and_header(data)
    if head.encoding == "tiff" and _is_deep(view, head):
        pixels = squeeze(tiff.read(view)[0])
        if mode_of(pixels).endswith(";16"):
            pixels = (pixels >> 8).astype(np.uint8)
        if mode_of(pixels) not in LOSSLESS_MODES["raw"]:
            raise DecodeError(f"the image is {head.mode}, and there is no known conversion of it to RGB")
        return pixels_to_rgb(pixels)
    native = _native_decode(view, head, None) if head.encoding in ("png", "webp") else None
    if native is not None:
        return pixels_to_rgb(native)
    image = pillow.load(view, head.encoding)
    if image.mode.startswith("I;16"):
        return pixels_to_rgb((np.asarray(image) >> 8).astype(np.uint8))
    return pillow.array_of(image, "RGB")


def decode_palette(data: Any) -> tuple[Pixels, pillow.Palette | None]:
    """The indices of a palette image, and the palette."""
    view, head = _view_and_header(data, indices=True)
    image = pillow.load(view, head.encoding)
    return pillow.pixels_of(image, indices=True), pillow.palette_of(image)


def page_count(data: Any) -> int:
    """Number of images in an encoded image: pages of a TIFF, images of an animation."""
    view = np.frombuffer(data, dtype=np.uint8)
    encoding = header(view).encoding
    if encoding == "tiff":
        return sum(1 for _ in tiff.pages(view))
    if encoding not in ("gif", "webp", "png"):
        return 1
    if encoding == "webp" and b"ANIM" not in view[:64].tobytes():
        return 1
    if encoding == "png" and b"acTL" not in view[:4096].tobytes():
        return 1
    image = pillow.open_image(_view_and_header(view)[0], encoding)
    with pillow.decoding():
        return int(getattr(image, "n_frames", 1))


def pages(data: Any) -> Pixels:
    """All pages of a TIFF, (pages, height, width[, channels]); all images of an animation, as RGB."""
    view = np.frombuffer(data, dtype=np.uint8)
    head = header(view)
    if head.encoding != "tiff":
        return decode(view)[None] if page_count(view) == 1 else np.stack(frames(view))
    cost = size = count = 0
    deep = _is_deep(view, head)
    for count, page in enumerate(tiff.pages(view), 1):
        cost, size = cost + page.cost, size + page.size
        if cost > limits.max_pixels():
            raise too_large(f"its first {count} pages have {cost} pixels")
        check_bytes(f"a TIFF of {count} pages or more", size, view)
    images = [squeeze(image) for image in tiff.read(view, 0, count)] if deep else _plain_pages(view, count)
    if len({(image.shape, image.dtype) for image in images}) != 1:
        raise DecodeError("its pages differ in size or kind")
    return np.stack(images)


def _plain_pages(view: U8, count: int) -> list[Pixels]:
    image = pillow.open_image(view, "tiff")
    images = []
    for number in range(count):
        with pillow.decoding():
            image.seek(number)
            image.load()
        images.append(pillow.pixels_of(image))
    return images


def frames(data: Any) -> list[Pixels]:
    """All images of an animation, as RGB."""
    view, head = _view_and_header(data)
    image = pillow.load(view, head.encoding)
    images: list[Pixels] = []
    for number in range(1, getattr(image, "n_frames", 1) + 1):
        with pillow.decoding():
            # It may grow on the way.
            image.seek(number - 1)
        description = f"an animation whose first {number} images are {image.width}×{image.height}"
        pixels = number * image.width * image.height
        if pixels > limits.max_pixels():
            raise too_large(description)
        check_bytes(description, 3 * pixels, view)
        with pillow.decoding():
            images.append(pillow.array_of(image, "RGB"))
    return images


def encode(
    pixels: Pixels,
    encoding: str,
    *,
    quality: int = 90,
    lossless: bool = True,
    mode: str | None = None,
    palette: pillow.Palette | None = None,
) -> bytes:
    """An encoded image. WebP is lossless unless told otherwise; JPEG takes L, RGB and CMYK only.

    ``mode`` tells CMYK from RGBA, which look alike. With a ``palette`` the pixels are indices of it.
    """
    mode = "P" if palette is not None else mode or mode_of(pixels)
    if not holds(encoding, mode):
        if encoding == "jpeg":
            raise EncodeError(f"JPEG cannot hold {mode} pixels exactly; use png, or to_rgb=True")
        raise EncodeError(f"{encoding} cannot hold {mode} pixels; use {'png or ' * holds('png', mode)}tiff")
    if encoding == "jpeg" and mode != "CMYK":
        with exceptions_as(EncodeError, "jpeg", ValueError):
            return _native.jpeg_encode(np.ascontiguousarray(expand(pixels)), quality)
    if encoding == "png" and mode in ("LA;16", "RGB;16", "RGBA;16"):
        return _imagecodecs().png_encode(np.ascontiguousarray(pixels))
    if encoding == "tiff" and mode not in ("L", "LA", "RGB", "RGBA", "CMYK", "P", "I;16"):
        return tiff.write(squeeze(pixels))
    options: dict[str, Any] = {}
    if encoding == "webp":
        options = {"lossless": True, "exact": True} if lossless else {"quality": quality}
    elif encoding == "jpeg":
        options = {"quality": quality}
    return pillow.save(squeeze(pixels), encoding, mode, palette, **options)
