"""TIFF images that Pillow cannot hold: more than 8 bits in colour, floats, any number of channels, pages.

Read and written by tifffile, with imagecodecs for what is compressed (extra ``tiff``).
"""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from ...errors import DecodeError, EncodeError, exceptions_as, needs
from ...schema.columns import U8, AnyArray, AnyDType
from . import ifd

# A chain of directories may be as long as the file.
MAX_PAGES = 1 << 16
# None, LZW, Deflate, PackBits, LZMA, Zstandard: what unpacks to the size that the directory says, and how
# many bytes a byte can become at the most. Codecs with a size of their own inside (JPEG and its kin) are not
# read here: it may be any size.
BOUNDED = {1: 1, 5: 4096, 8: 1040, 32773: 64, 32946: 1040, 34925: 1 << 40, 50000: 1 << 40}
FORMATS = {1: "uint", 2: "int", 3: "float", 4: "uint"}
RGB, PALETTE, SEPARATED, YCBCR = 2, 3, 5, 6
_TAGS = {256, 257, 258, 259, 262, 277, 284, 322, 323, 338, 339, 32997, 32998}


class Page(NamedTuple):
    """Layout of a page, from its directory."""

    width: int
    height: int
    channels: int
    bits: int
    kind: str
    photometric: int
    compression: int
    # Meaning of channels beyond the colours: 1 and 2 are alpha, 0 is unspecified.
    extra: int | None
    # Largest number of values of a tile or strip.
    tile_values: int

    @property
    def dtype(self) -> AnyDType | None:
        """Dtype of its values; None if NumPy has none."""
        sizes = (16, 32, 64) if self.kind == "float" else (8, 16, 32, 64)
        room = next((size for size in sizes if size >= self.bits > 0), None)
        return None if room is None or not self.kind else np.dtype(f"{self.kind}{room}")

    @property
    def size(self) -> int:
        """In bytes, once it is unpacked."""
        itemsize = 1 if self.dtype is None else self.dtype.itemsize
        return max(self.width * self.height * self.channels, self.tile_values) * itemsize

    @property
    def cost(self) -> int:
        """In pixels: four bytes count as one at least."""
        return max(self.width * self.height, math.ceil(self.size / 4))

    @property
    def plain(self) -> bool:
        """True if Pillow can hold it: 8 bits and less with up to four channels, or 16 bits in gray."""
        if self.kind != "uint":
            return False
        if self.photometric in (0, 1) and self.channels == 1:
            return self.bits in (1, 2, 4, 8, 16)
        if self.photometric in (0, 1):
            return self.channels == 2 and self.bits == 8 and self.extra in (1, 2)
        if self.photometric == PALETTE:
            return self.channels == 1 and self.bits in (1, 2, 4, 8)
        # Pillow drops a fourth channel that is not alpha.
        max_channels = 4 if self.extra in (None, 1, 2) else 3
        channel_counts = {RGB: (3, max_channels), SEPARATED: (4,), YCBCR: (3,)}.get(self.photometric, ())
        return self.bits == 8 and self.channels in channel_counts

    @property
    def direct(self) -> bool:
        """True if its values are its colours, so that tifffile gives the same as Pillow."""
        simple = self.photometric in (1, RGB) and self.bits in (8, 16) and self.extra in (None, 2)
        return simple and self.compression in BOUNDED


def pages(view: U8, max_pages: int = MAX_PAGES) -> Iterator[Page]:
    """Read the directories of all pages; a chain that is circular or too long is an error."""
    data = view.data
    order = ifd.order_of(data)
    offset = ifd.first_offset(data, order) if order else 0
    seen: set[int] = set()
    while order and offset:
        if offset in seen:
            raise DecodeError("its pages lead back to an earlier one", offset=offset)
        if len(seen) == max_pages:
            raise DecodeError(f"it has more than {max_pages} pages", offset=offset)
        seen.add(offset)
        yield _page(ifd.read(data, offset, order, _TAGS, 1 << 20))
        offset = ifd.next_offset(data, offset, order)


def _page(directory: ifd.Directory) -> Page:
    def numbers(tag: int) -> list[int]:
        value = directory.get(tag)
        return value.numbers() if isinstance(value, ifd.Value) else []

    def number(tag: int, default: int) -> int:
        return next(iter(numbers(tag)), default)

    width, height, channels = number(256, 0), number(257, 0), number(277, 1)
    depth = max(1, number(32997, 1))
    bits, formats = set(numbers(258)) or {1}, set(numbers(339)) or {1}
    # Channels of differing kinds have no common dtype; widths differ in RGB of 5, 6 and 5 bits.
    kind = FORMATS.get(formats.pop(), "") if len(formats) == 1 else ""
    separate = number(284, 1) == 2
    tile_values = number(322, 0) * number(323, 0) * max(1, number(32998, 1)) * (1 if separate else channels)
    tile_values = max(tile_values, width * height * depth * channels)
    extra = next(iter(numbers(338)), None)
    return Page(width, height, channels, max(bits), kind, number(262, -1), number(259, 1), extra, tile_values)


def read(view: U8, first: int = 0, count: int = 1) -> list[AnyArray]:
    """Pages of an image; sizes have been compared with what is allowed."""
    tifffile = library()
    images: list[AnyArray] = []
    try:
        with tifffile.TiffFile(io.BytesIO(view.data)) as file:
            for page in file.pages[first : first + count]:
                images.append(_pixels(page, view))
    except DecodeError:
        raise
    # The library raises many kinds on damaged bytes.
    except Exception as error:
        raise DecodeError(f"{type(error).__name__}: {error}") from None
    if len(images) != count:
        raise DecodeError(f"it has {len(images)} pages where {count} were counted")
    return images


def _pixels(page: Any, view: U8) -> AnyArray:
    if page.compression not in BOUNDED:
        raise DecodeError(f"images of this kind are not read with compression {page.compression}")
    # A bit may become a byte.
    if page.nbytes > 8 * BOUNDED[page.compression] * len(view):
        raise DecodeError(f"it claims {page.nbytes} bytes of pixels, and the file has {len(view)}")
    pixels: AnyArray = page.asarray(maxworkers=1)
    if page.axes.startswith("S") and pixels.ndim == 3:
        pixels = np.moveaxis(pixels, 0, -1)
    if pixels.ndim not in (2, 3) or pixels.shape[:2] != (page.imagelength, page.imagewidth):
        raise DecodeError(f"its pixels have the shape {pixels.shape}")
    return np.ascontiguousarray(pixels).astype(pixels.dtype.newbyteorder("="), copy=False)


def write(pixels: AnyArray) -> bytes:
    """Pixels (height, width[, channels]) of any kind of number, losslessly."""
    tifffile = library()
    colour = pixels.ndim == 3 and pixels.shape[2] in (3, 4)
    out = io.BytesIO()
    with exceptions_as(EncodeError, "tiff", Exception):
        tifffile.imwrite(
            out, pixels, byteorder="<", photometric="rgb" if colour else "minisblack", metadata=None,
            planarconfig="contig" if pixels.ndim == 3 else None, compression="zlib", software=False,
        )  # fmt: skip
    return out.getvalue()


def library() -> ModuleType:
    """tifffile, imported when it is needed."""
    with needs("this image needs tifffile and imagecodecs", "tiff"):
        import tifffile
    # It also logs what it raises, and without any handler that goes to the terminal.
    logger = logging.getLogger("tifffile")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return tifffile
