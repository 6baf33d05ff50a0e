"""Pictures: look at the header, decode, encode, resize.

JPEG runs natively and without the GIL; every other encoding goes through Pillow (extra ``images``).
Pixels are uint8 arrays, (height, width) for one channel and (height, width, channels) otherwise; 16-bit
grayscale is uint16.
"""

from __future__ import annotations

import io
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _native
from ..columns import U8, Ragged, column_runs
from ..errors import DecodeError, EncodeError, MissingLibraryError

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
# Of all pictures of an animation together.
MOST_PIXELS = 1 << 28
LOSSLESS = ("png", "webp", "tiff", "bmp")

Pixels = npt.NDArray[Any]


class Header(NamedTuple):
    """What an encoded picture says about itself."""

    encoding: str
    width: int
    height: int
    mode: str
    bits: int


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


def header(data: U8) -> Header:
    """The header of one encoded picture; all empty where it is none."""
    row = _native.probe(data, np.zeros(1, np.int64), np.array([len(data)], np.int64))[0]
    mode = MODES[row[3]]
    if row[4] == 16:
        mode = {"L": "I;16"}.get(mode, f"{mode};16")
    return Header(ENCODINGS[row[0]], int(row[1]), int(row[2]), mode, int(row[4]))


def mode_of(pixels: Pixels) -> str:
    """The mode that an array of pixels has; EncodeError where it is none."""
    channels = 1 if pixels.ndim == 2 else pixels.shape[2] if pixels.ndim == 3 else 0
    if 0 in pixels.shape or channels not in (1, 2, 3, 4):
        raise EncodeError(
            f"an image of shape {pixels.shape} has no picture format; store it in a Tensor field instead"
        )
    if pixels.dtype == np.uint8:
        return ("L", "LA", "RGB", "RGBA")[channels - 1]
    if pixels.dtype == np.uint16 and channels == 1:
        return "I;16"
    raise EncodeError(f"an image of {pixels.dtype} has no picture format; store it in a Tensor field instead")


def decode(data: Any, mode: str | None = None) -> Pixels:
    """The pixels of an encoded picture; ``mode`` converts only where no information is lost."""
    view = np.frombuffer(data, dtype=np.uint8)
    found = header(view)
    if found.encoding == "jpeg" and found.mode in ("L", "RGB", "") and mode in (None, "RGB", found.mode):
        try:
            return squeeze(_native.jpeg_decode(view.data, "RGB" if mode == "RGB" else None))
        except ValueError as error:
            raise DecodeError(str(error)) from None
    if not found.encoding:
        raise DecodeError("these bytes are no picture that batchplant knows")
    if found.bits == 16 and found.mode != "I;16":
        raise DecodeError(f"the picture is {found.mode}, and decoding it would cut its 16 bits to 8")
    image = _pillow_open(view)
    return from_pillow(image, mode)


def _pillow() -> ModuleType:
    try:
        import PIL.Image
    except ImportError:
        raise MissingLibraryError('this picture needs Pillow: pip install "batchplant[images]"') from None
    return PIL.Image


def _pillow_open(view: U8) -> Any:
    try:
        image = _pillow().open(io.BytesIO(view.data))
        image.load()
    except MissingLibraryError:
        raise
    # Pillow's decoders raise many kinds on damaged bytes (OSError, SyntaxError, struct.error, …).
    except Exception as error:
        raise DecodeError(f"{type(error).__name__}: {error}") from None
    return image


def from_pillow(image: Any, mode: str | None = None) -> Pixels:
    """The pixels of a PIL image, palettes looked up, converted to ``mode`` where that loses nothing."""
    transparent = "transparency" in image.info
    if image.mode == "P":
        image = image.convert("RGBA" if transparent else "RGB")
    elif image.mode == "1":
        image = image.convert("L")
    if mode not in (None, image.mode):
        exact = {("L", "RGB"), ("RGB", "RGBA"), ("L", "RGBA"), ("L", "LA"), ("LA", "RGBA")}
        if (image.mode, mode) not in exact or transparent:
            raise DecodeError(f"the picture is {image.mode}; making it {mode} would change its pixels")
        image = image.convert(mode)
    return np.asarray(image)


def to_rgb(data: Any) -> Pixels:
    """The pixels as RGB whatever the picture is: alpha dropped, CMYK and 16 bits converted, by Pillow."""
    image = _pillow_open(np.frombuffer(data, dtype=np.uint8))
    if image.mode.startswith("I;16"):
        image = _pillow().fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return np.asarray(image.convert("RGB"))


def frames(data: Any) -> list[Pixels]:
    """All pictures of an animation, as RGB."""
    image = _pillow_open(np.frombuffer(data, dtype=np.uint8))
    found: list[Pixels] = []
    for number in range(getattr(image, "n_frames", 1)):
        if (number + 1) * image.width * image.height > MOST_PIXELS:
            raise DecodeError(f"an animation of more than {MOST_PIXELS} pixels")
        try:
            image.seek(number)
            found.append(np.asarray(image.convert("RGB")))
        # As above.
        except Exception as error:
            raise DecodeError(f"{type(error).__name__}: {error}") from None
    return found


def pixels_to_rgb(pixels: Pixels) -> Pixels:
    """Pixels of 8 bits as RGB: grayscale three times, alpha dropped."""
    colour = expand(pixels)[:, :, : pixels.shape[2] - 1 if mode_of(pixels) in ("LA", "RGBA") else None]
    return colour if colour.shape[2] == 3 else np.repeat(colour, 3, axis=2)


def encode(pixels: Pixels, encoding: str, *, quality: int = 90, lossless: bool = True) -> bytes:
    """An encoded picture. WebP is lossless unless told otherwise; JPEG takes L and RGB only."""
    mode = mode_of(pixels)
    if encoding == "jpeg":
        if mode not in ("L", "RGB"):
            raise EncodeError(f"JPEG cannot hold {mode} pixels exactly; use png, or to_rgb=True")
        try:
            return _native.jpeg_encode(np.ascontiguousarray(expand(pixels)), quality)
        except ValueError as error:
            raise EncodeError(f"jpeg: {error}") from None
    if mode == "I;16" and encoding not in ("png", "tiff"):
        raise EncodeError(f"{encoding} cannot hold 16-bit pixels; use png or tiff")
    image = _pillow().fromarray(squeeze(pixels))
    out = io.BytesIO()
    options: dict[str, Any] = {}
    if encoding == "webp":
        options = {"lossless": True, "exact": True} if lossless else {"quality": quality}
    try:
        image.save(out, format=encoding, **options)
    except (OSError, ValueError, KeyError) as error:
        raise EncodeError(f"{encoding}: {error}") from None
    return out.getvalue()


def fit(pixels: Pixels, longest: int | None) -> Pixels:
    """Area-averaged down until the longer side is at most ``longest`` (sizes rounded as FFCV does)."""
    height, width = pixels.shape[:2]
    if longest is None or max(height, width) <= longest:
        return pixels
    if pixels.dtype != np.uint8:
        raise EncodeError(f"{pixels.dtype} pixels cannot be resized here")
    ratio = longest / max(height, width)
    size = max(1, int(ratio * width)), max(1, int(ratio * height))
    return squeeze(_native.resize_area(np.ascontiguousarray(expand(pixels)), *size))


def expand(pixels: Pixels) -> Pixels:
    """With a channel axis."""
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def squeeze(pixels: Pixels) -> Pixels:
    """Without the channel axis where there is one channel."""
    return pixels[:, :, 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels
