"""Pictures: look at the header, decode, encode, resize, turn.

JPEG, PNG and WebP are decoded natively and without the GIL; the rest goes through Pillow (extra ``images``),
and what Pillow cannot hold (colour of more than 8 bits, floats, many channels) through tifffile and
imagecodecs (extra ``tiff``). Pixels are arrays, (height, width) for one channel and else (height, width,
channels).

Modes: L, LA, RGB, RGBA, P, CMYK and 1 have 8 bits at the most; I;16, LA;16, RGB;16 and RGBA;16 are uint16;
I is int32 and F float32 in one channel. Everything else goes by its dtype and channels: float32x3, uint8x5.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _native
from ..columns import U8, Ragged, column_runs
from ..errors import DecodeError, EncodeError, MissingLibraryError, OptionError
from . import exif, pillow, tiff
from .pixels import Pixels as Pixels
from .pixels import expand as expand
from .pixels import fit as fit
from .pixels import mode_name as mode_name
from .pixels import mode_of as mode_of
from .pixels import orient as orient
from .pixels import pixels_to_rgb as pixels_to_rgb
from .pixels import squeeze as squeeze

ENCODINGS = ("", "jpeg", "png", "webp", "gif", "bmp", "tiff")
MODES = ("", "L", "LA", "RGB", "RGBA", "P", "CMYK", "1")
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
# Of a picture, of all pages of a TIFF and of all pictures of an animation together; see limit.
MOST_PIXELS = 1 << 28
LIMIT = "BATCHPLANT_MAX_PIXELS"
LOSSLESS = ("png", "webp", "tiff", "bmp")
# The modes that an encoding holds; TIFF holds all of them.
HELD = {
    "jpeg": ("L", "RGB", "CMYK"),
    "png": ("L", "LA", "RGB", "RGBA", "P", "I;16", "LA;16", "RGB;16", "RGBA;16"),
    "webp": ("L", "LA", "RGB", "RGBA"),
    "bmp": ("L", "RGB", "P"),
    "raw": ("L", "LA", "RGB", "RGBA"),
}

orientation = exif.orientation
from_pillow = pillow.pixels_of
palette_of = pillow.palette_of

_limit: int | None = None


class Header(NamedTuple):
    """What an encoded picture says about itself."""

    encoding: str
    width: int
    height: int
    mode: str
    bits: int


def limit(pixels: int | None = None) -> int:
    """The most pixels that a picture may have; a number sets it, for this process and from now on.

    At first it is the number in the environment variable BATCHPLANT_MAX_PIXELS, or 2**28.
    """
    global _limit
    if pixels is None and _limit is None:
        given = os.environ.get(LIMIT, "")
        if given and not given.isdecimal():
            raise OptionError(f"{LIMIT} is a number of pixels, not {given!r}")
        pixels = int(given or MOST_PIXELS)
    if pixels is not None:
        if isinstance(pixels, bool) or not isinstance(pixels, int) or pixels < 1:
            raise OptionError(f"the limit is a number of pixels from 1 on, not {pixels!r}")
        _limit = pixels
    assert _limit is not None
    return _limit


def probe(cells: Ragged) -> npt.NDArray[np.int32]:
    """Headers of many cells: columns encoding, width, height, mode (numbers into the tables above), bits.

    Raw pixels have encoding 0 and their true size.
    """
    found = _native.probe(*column_runs(cells))
    if cells.shape is not None:
        raw = cells.raw
        found[raw, 0] = 0
        found[raw, 1:3] = cells.shape[raw][:, 1::-1]
        found[raw, 3] = cells.shape[raw, 2]
        found[raw, 4] = 8
    return found


def modes(cells: Ragged) -> list[str]:
    """The name of the mode of every cell, as ``header`` gives it."""
    headers = probe(cells)
    names = [MODES[code] for code in headers[:, 3]]
    odd = (headers[:, 4] > 8) | (headers[:, 0] == ENCODINGS.index("tiff"))
    for row in np.flatnonzero(odd).tolist():
        cell = cells[row]
        assert cell is not None
        names[row] = header(cell).mode
    return names


def header(data: U8) -> Header:
    """The header of one encoded picture; all empty where it is none."""
    row = _native.probe(data, np.zeros(1, np.int64), np.array([len(data)], np.int64))[0]
    found = Header(ENCODINGS[row[0]], int(row[1]), int(row[2]), MODES[row[3]], int(row[4]))
    if found.encoding == "tiff":
        page = next(tiff.pages(data), None)
        if page is not None and page.dtype is not None and page.width and page.height and not page.plain:
            return Header("tiff", page.width, page.height, mode_name(page.dtype, page.channels), page.bits)
    if found.bits == 16:
        return found._replace(mode={"L": "I;16"}.get(found.mode, f"{found.mode};16"))
    return found


def holds(encoding: str, mode: str) -> bool:
    """Whether pixels of this mode can be stored so without losing any of their values."""
    return encoding == "tiff" or mode in HELD.get(encoding, ())


def decode(data: Any, mode: str | None = None, *, mask: bool = False) -> Pixels:
    """The pixels of an encoded picture, of its first page; ``mode`` converts only where nothing is lost.

    Palettes are looked up. In mode P, and of a mask, the indices of its palette are the pixels.
    """
    view = np.frombuffer(data, dtype=np.uint8)
    found = header(view)
    if not found.encoding:
        raise DecodeError("these bytes are no picture that batchplant knows")
    _check_size(found, view)
    indices = mode == "P" or (mask and mode in (None, "L"))
    if indices:
        mode = "P" if found.mode == "P" else None if mode is None else "L"
    pixels = _native_decode(view, found, mode)
    if pixels is None:
        pixels = _library_decode(view, found, mode, indices=indices)
    return pixels


def _check_size(found: Header, view: U8) -> None:
    cost = found.width * found.height
    if found.encoding == "tiff":
        page = next(tiff.pages(view), None)
        cost = page.cost if page is not None else 0
    # Deflate packs a thousand bytes into one at the most.
    elif found.encoding == "png" and cost > 8 * 1040 * len(view):
        raise DecodeError(f"it claims {found.width}×{found.height} pixels and ends after {len(view)} bytes")
    if cost > limit():
        raise _too_large(f"the picture has {found.width}×{found.height} pixels")


def _too_large(what: str) -> DecodeError:
    return DecodeError(f"{what}, and the limit is {limit()}; raise it with {LIMIT} or batchplant.max_pixels")


def _native_decode(view: U8, found: Header, mode: str | None) -> Pixels | None:
    """The pixels, where the native code decodes such a picture."""
    try:
        if found.encoding == "jpeg":
            # The native decoder has a limit of its own.
            if found.width * found.height > MOST_PIXELS:
                return None
            if found.mode in ("L", "RGB", "") and mode in (None, "RGB", found.mode):
                return squeeze(_native.jpeg_decode(view.data, "RGB" if mode == "RGB" else None))
        elif found.bits <= 8 and found.encoding in ("png", "webp"):
            codec = _native.png_decode if found.encoding == "png" else _native.webp_decode
            pixels = codec(view, mode, limit())
            return None if pixels is None else squeeze(pixels)
    except ValueError as error:
        raise DecodeError(str(error)) from None
    return None


def _library_decode(view: U8, found: Header, mode: str | None, *, indices: bool) -> Pixels:
    if _is_deep(view, found):
        if mode not in (None, found.mode):
            raise DecodeError(f"the picture is {found.mode}; making it {mode} would change its pixels")
        return _png16_decode(view) if found.encoding == "png" else squeeze(tiff.read(view)[0])
    return pillow.pixels_of(
        pillow.load(view, found.encoding, limit()), None if mode == "P" else mode, indices=indices
    )


def _is_deep(view: U8, found: Header) -> bool:
    """Whether Pillow would cut it to 8 bits or not know it."""
    if found.encoding == "png":
        return found.bits == 16 and found.mode != "I;16"
    page = next(tiff.pages(view), None) if found.encoding == "tiff" else None
    if page is None or not page.width * page.height:
        return False
    # Beyond a limit of its own Pillow decodes nothing.
    return not page.plain or (page.direct and page.width * page.height > pillow.own_limit())


def _png16_decode(view: U8) -> Pixels:
    library = _imagecodecs()
    try:
        pixels: Pixels = library.png_decode(view.data)
    # As Pillow's, its decoders raise what they like.
    except Exception as error:
        raise DecodeError(f"{type(error).__name__}: {error}") from None
    return pixels


def _imagecodecs() -> Any:
    try:
        import imagecodecs
    except ImportError:
        needed = 'a PNG with colours of 16 bits needs imagecodecs: pip install "batchplant[tiff]"'
        raise MissingLibraryError(needed) from None
    return imagecodecs


def to_rgb(data: Any) -> Pixels:
    """The pixels as RGB whatever the picture is: alpha dropped, CMYK and 16 bits converted."""
    view = np.frombuffer(data, dtype=np.uint8)
    found = header(view)
    if not found.encoding:
        raise DecodeError("these bytes are no picture that batchplant knows")
    _check_size(found, view)
    if found.encoding == "tiff" and _is_deep(view, found):
        pixels = squeeze(tiff.read(view)[0])
        if mode_of(pixels).endswith(";16"):
            pixels = (pixels >> 8).astype(np.uint8)
        if mode_of(pixels) not in HELD["raw"]:
            raise DecodeError(f"the picture is {found.mode}, and what its values are as RGB is not known")
        return pixels_to_rgb(pixels)
    native = _native_decode(view, found, None) if found.encoding in ("png", "webp") else None
    if native is not None:
        return pixels_to_rgb(native)
    image = pillow.load(view, found.encoding, limit())
    if image.mode.startswith("I;16"):
        return pixels_to_rgb((np.asarray(image) >> 8).astype(np.uint8))
    return np.asarray(image.convert("RGB"))


def decode_palette(data: Any) -> tuple[Pixels, pillow.Palette | None]:
    """The indices of a palette picture, and the palette."""
    view = np.frombuffer(data, dtype=np.uint8)
    found = header(view)
    _check_size(found, view)
    image = pillow.load(view, found.encoding, limit())
    return pillow.pixels_of(image, indices=True), pillow.palette_of(image)


def page_count(data: Any) -> int:
    """How many pictures an encoded picture has: pages of a TIFF, pictures of an animation."""
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
    image = pillow.open_image(view, encoding, limit())
    try:
        return int(getattr(image, "n_frames", 1))
    # Pillow reads on to count, and may meet damage.
    except Exception as error:
        raise DecodeError(f"{type(error).__name__}: {error}") from None


def pages(data: Any) -> Pixels:
    """All pages of a TIFF, (pages, height, width[, channels]); all pictures of an animation, as RGB."""
    view = np.frombuffer(data, dtype=np.uint8)
    found = header(view)
    if found.encoding != "tiff":
        return decode(view)[None] if page_count(view) == 1 else np.stack(frames(view))
    cost = count = 0
    deep = _is_deep(view, found)
    for count, page in enumerate(tiff.pages(view), 1):
        cost += page.cost
        if cost > limit():
            raise _too_large(f"its first {count} pages have {cost} pixels")
    made = [squeeze(one) for one in tiff.read(view, 0, count)] if deep else _plain_pages(view, count)
    if len({(one.shape, one.dtype) for one in made}) != 1:
        raise DecodeError("its pages differ in size or kind")
    return np.stack(made)


def _plain_pages(view: U8, count: int) -> list[Pixels]:
    image = pillow.open_image(view, "tiff", limit())
    made = []
    for number in range(count):
        try:
            image.seek(number)
            image.load()
        # As Pillow's decoders do.
        except Exception as error:
            raise DecodeError(f"{type(error).__name__}: {error}") from None
        made.append(pillow.pixels_of(image))
    return made


def frames(data: Any) -> list[Pixels]:
    """All pictures of an animation, as RGB."""
    view = np.frombuffer(data, dtype=np.uint8)
    image = pillow.load(view, header(view).encoding or "gif", limit())
    found: list[Pixels] = []
    for number in range(getattr(image, "n_frames", 1)):
        if (number + 1) * image.width * image.height > limit():
            raise _too_large(
                f"an animation whose first {number + 1} pictures are {image.width}×{image.height}"
            )
        try:
            image.seek(number)
            found.append(np.asarray(image.convert("RGB")))
        # As Pillow's decoders do.
        except Exception as error:
            raise DecodeError(f"{type(error).__name__}: {error}") from None
    return found


def encode(
    pixels: Pixels,
    encoding: str,
    *,
    quality: int = 90,
    lossless: bool = True,
    mode: str | None = None,
    palette: pillow.Palette | None = None,
) -> bytes:
    """An encoded picture. WebP is lossless unless told otherwise; JPEG takes L, RGB and CMYK only.

    ``mode`` tells CMYK from RGBA, which look alike. With a ``palette`` the pixels are indices of it.
    """
    mode = "P" if palette is not None else mode or mode_of(pixels)
    if not holds(encoding, mode):
        if encoding == "jpeg":
            raise EncodeError(f"JPEG cannot hold {mode} pixels exactly; use png, or to_rgb=True")
        raise EncodeError(f"{encoding} cannot hold {mode} pixels; use {'png or ' * holds('png', mode)}tiff")
    if encoding == "jpeg" and mode != "CMYK":
        try:
            return _native.jpeg_encode(np.ascontiguousarray(expand(pixels)), quality)
        except ValueError as error:
            raise EncodeError(f"jpeg: {error}") from None
    if encoding == "png" and mode in ("LA;16", "RGB;16", "RGBA;16"):
        packed: bytes = _imagecodecs().png_encode(np.ascontiguousarray(pixels))
        return packed
    if encoding == "tiff" and mode not in ("L", "LA", "RGB", "RGBA", "CMYK", "P", "I;16"):
        return tiff.write(squeeze(pixels))
    options: dict[str, Any] = {}
    if encoding == "webp":
        options = {"lossless": True, "exact": True} if lossless else {"quality": quality}
    elif encoding == "jpeg":
        options = {"quality": quality}
    return pillow.save(squeeze(pixels), encoding, mode, palette, **options)
