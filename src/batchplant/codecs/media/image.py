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
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ... import _native
from ...errors import DecodeError, EncodeError, exceptions_as, needs
from ...schema.columns import U8, AnyArray, AnyDType, Ragged, column_runs
from ...storage import limits
from . import exif, pillow, tiff

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
        if head.encoding == "tiff":
            return squeeze(tiff.read(view)[0])
        library = _imagecodecs()
        with pillow.decoding():
            return library.png_decode(view.data)
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
    mark, within = {"gif": (b"GIF", 3), "webp": (b"ANIM", 64), "png": (b"acTL", 4096)}.get(encoding, (b"", 0))
    if not mark or mark not in view[:within].tobytes():
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
    if deep:
        images = [squeeze(image) for image in tiff.read(view, 0, count)]
    else:
        image = pillow.open_image(view, "tiff")
        images = []
        for number in range(count):
            with pillow.decoding():
                image.seek(number)
                image.load()
            images.append(pillow.pixels_of(image))
    if len({(image.shape, image.dtype) for image in images}) != 1:
        raise DecodeError("its pages differ in size or kind")
    return np.stack(images)


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


ENCODINGS = ("", "jpeg", "png", "webp", "gif", "bmp", "tiff")
MODES = ("", "L", "LA", "RGB", "RGBA", "P", "CMYK", "1")
# Values of a pixel; those of palettes are looked up.
CHANNELS = {"1": 1, "L": 1, "I": 1, "F": 1, "LA": 2, "RGB": 3, "P": 3, "RGBA": 4, "CMYK": 4}
# A byte cannot become more values than this: two bits of deflate are 258; no real JPEG has a thousand.
MOST_GAIN = {"png": 1040, "jpeg": 4096}
# So much may be claimed by the smallest file.
ALWAYS = 1 << 16


class Header(NamedTuple):
    """Header of an encoded image."""

    encoding: str
    width: int
    height: int
    mode: str
    bits: int

    @property
    def channels(self) -> int:
        return CHANNELS.get(self.mode.partition(";")[0], 4)


def probe(cells: Ragged) -> npt.NDArray[np.int32]:
    """Headers of many cells: columns encoding, width, height, mode (numbers into the tables above), bits.

    Raw pixels have encoding 0 and their true size.
    """
    headers = _native.probe(*column_runs(cells))
    if cells.shape is not None:
        raw = cells.raw
        headers[raw, 0] = 0
        headers[raw, 1:3] = cells.shape[raw][:, 1::-1]
        headers[raw, 3] = cells.shape[raw, 2]
        headers[raw, 4] = 8
    return headers


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
    """The header of one encoded image; all empty where it is none."""
    row = _native.probe(data, np.zeros(1, np.int64), np.array([len(data)], np.int64))[0]
    read_header = Header(ENCODINGS[row[0]], int(row[1]), int(row[2]), MODES[row[3]], int(row[4]))
    if read_header.encoding == "tiff":
        page = next(tiff.pages(data), None)
        if page is not None and page.dtype is not None and page.width and page.height and not page.plain:
            return Header("tiff", page.width, page.height, mode_name(page.dtype, page.channels), page.bits)
    if read_header.bits == 16:
        return read_header._replace(mode={"L": "I;16"}.get(read_header.mode, f"{read_header.mode};16"))
    return read_header


def check(header: Header, view: U8, *, indices: bool = False) -> None:
    """A DecodeError where an image claims more than its bytes can hold, or than is allowed.

    ``indices``: of a palette, which is not looked up.
    """
    pixels = header.width * header.height
    size = pixels * (1 if indices and header.mode == "P" else header.channels) * max(1, header.bits // 8)
    if header.encoding == "tiff":
        page = next(tiff.pages(view), None)
        pixels = page.cost if page is not None else 0
        size = 0 if page is None else max(size, page.size) if page.plain else page.size
    elif _claims(header, view):
        raise DecodeError(f"it claims {header.width}×{header.height} pixels and ends after {len(view)} bytes")
    if pixels > limits.max_pixels():
        raise too_large(f"the image has {header.width}×{header.height} pixels")
    check_bytes(f"the image of {header.width}×{header.height} pixels", size, view)


def _claims(header: Header, view: U8) -> bool:
    """True if these bytes cannot unpack to so many pixels."""
    if header.encoding == "bmp":
        return _bitmap_size(view) > len(view)
    if header.encoding not in MOST_GAIN:
        return False
    channels = 1 if header.mode == "P" else header.channels
    values = header.width * header.height * channels * header.bits // 8
    return values > MOST_GAIN[header.encoding] * len(view) + ALWAYS


def _bitmap_size(view: U8) -> int:
    """The bytes of all lines of a BMP that is not packed; 0 of one that is."""
    # The short header has shorter numbers, and never packs.
    head = view[:34].tobytes().ljust(34, b"\0")
    if int.from_bytes(head[14:18], "little") == 12:
        width, height, bits = (int.from_bytes(head[offset : offset + 2], "little") for offset in (18, 20, 24))
        packing = 0
    else:
        width, height = (
            abs(int.from_bytes(head[offset : offset + 4], "little", signed=True)) for offset in (18, 22)
        )
        bits, packing = int.from_bytes(head[28:30], "little"), int.from_bytes(head[30:34], "little")
    return 0 if packing in (1, 2) else (width * bits + 7) // 8 * height


def check_bytes(description: str, size: int, view: U8) -> None:
    """A DecodeError where so many bytes are more than these may become."""
    if size > limits.allowed(len(view)):
        raise DecodeError(limits.too_large(description, size, len(view)))


def too_large(description: str) -> DecodeError:
    """For more pixels than are allowed."""
    max_pixels = limits.max_pixels()
    return DecodeError(
        f"{description}, and the limit is {max_pixels}; raise it with {limits.PIXELS_VARIABLE} or "
        "batchplant.max_pixels"
    )


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
