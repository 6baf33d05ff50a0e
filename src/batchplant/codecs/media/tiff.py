"""TIFF images that Pillow cannot hold: more than 8 bits in colour, floats, any number of channels, pages.

Read and written by tifffile, with imagecodecs for what is compressed (extra ``tiff``). The directories of
TIFF files, which EXIF data are too, are read and written here: values are little-endian, whatever the file's
byte order is, and what points outside of the bytes is left out.
"""

from __future__ import annotations

import io
import logging
import math
import struct
from collections.abc import Container, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from ...errors import DecodeError, EncodeError, exceptions_as, needs
from ...schema.columns import U8, AnyArray, AnyDType

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
    order = order_of(data)
    offset = first_offset(data, order) if order else 0
    seen: set[int] = set()
    while order and offset:
        if offset in seen:
            raise DecodeError("its pages lead back to an earlier one", offset=offset)
        if len(seen) == max_pages:
            raise DecodeError(f"it has more than {max_pages} pages", offset=offset)
        seen.add(offset)
        yield _page(read_directory(data, offset, order, _TAGS, 1 << 20))
        offset = next_offset(data, offset, order)


def _page(directory: Directory) -> Page:
    def numbers(tag: int) -> list[int]:
        value = directory.get(tag)
        return value.numbers() if isinstance(value, Value) else []

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


# Bytes of one value, and of the numbers it is made of, by type.
SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}
UNITS = {**SIZES, 5: 4, 10: 4}
_LETTERS = {1: "B", 3: "H", 4: "I", 6: "b", 8: "h", 9: "i", 13: "I"}
ASCII, SHORT, LONG, UNDEFINED = 2, 3, 4, 7
ORIENTATION = 274
ICC = 34675
# Tags whose value is the place of another directory: EXIF, GPS, interoperability.
SUBDIRECTORIES = (34665, 34853, 40965)
# Tags of the layout of pixels in one file; they are not carried into another.
STRUCTURE = frozenset(
    tag
    for first, last in (
        (254, 259), (262, 263), (266, 266), (273, 273), (277, 281), (284, 284), (288, 293), (297, 297),
        (301, 301), (317, 325), (330, 334), (336, 347), (512, 532), (700, 700), (32997, 32998), (ICC, ICC),
        (50838, 50839),
    )
    for tag in range(first, last + 1)
)  # fmt: skip


class Value(NamedTuple):
    """The type of a tag's values, and their bytes."""

    kind: int
    data: bytes

    def numbers(self) -> list[int]:
        """As whole numbers; empty where they are none."""
        if self.kind not in _LETTERS:
            return []
        return list(struct.unpack(f"<{len(self.data) // UNITS[self.kind]}{_LETTERS[self.kind]}", self.data))


Directory = dict[int, "Value | Directory"]


def order_of(data: Any) -> str | None:
    """struct's sign of the byte order; None where this is no TIFF."""
    return {b"II*\0": "<", b"MM\0*": ">"}.get(bytes(data[:4])) if len(data) >= 8 else None


def first_offset(data: Any, order: str) -> int:
    return int(struct.unpack_from(order + "I", data, 4)[0])


def entries(data: Any, offset: int, order: str) -> Iterator[tuple[int, int, int, int, int]]:
    """(tag, type, count, offset of the entry, offset of the value), of values inside the data."""
    if not 8 <= offset <= len(data) - 2:
        return
    (count,) = struct.unpack_from(order + "H", data, offset)
    for entry in range(offset + 2, min(offset + 2 + 12 * count, len(data) - 11), 12):
        tag, kind, values = struct.unpack_from(order + "HHI", data, entry)
        size = SIZES.get(kind, 0) * values
        value_offset = entry + 8 if size <= 4 else struct.unpack_from(order + "I", data, entry + 8)[0]
        if size and value_offset + size <= len(data):
            yield tag, kind, values, entry, value_offset


def next_offset(data: Any, offset: int, order: str) -> int:
    """The place of the directory that follows; 0 where there is none."""
    if not 8 <= offset <= len(data) - 2:
        return 0
    end = offset + 2 + 12 * struct.unpack_from(order + "H", data, offset)[0]
    return int(struct.unpack_from(order + "I", data, end)[0]) if end + 4 <= len(data) else 0


def read_directory(
    data: Any, offset: int, order: str, tags: Container[int] | None = None, max_bytes: int = 1 << 30
) -> Directory:
    """The directory at a place with those below it; only some tags where they are named.

    All values together have at most ``max_bytes`` bytes: entries may point to the same bytes again and again.
    """
    return _read(data, offset, order, tags, [min(max_bytes, len(data))], 0)


def _read(
    data: Any, offset: int, order: str, tags: Container[int] | None, budget: list[int], depth: int
) -> Directory:
    directory: Directory = {}
    for tag, kind, count, _, where in entries(data, offset, order):
        if (tags is not None and tag not in tags) or tag in directory:
            continue
        size = SIZES[kind] * count
        budget[0] -= size
        if budget[0] < 0:
            break
        if tag in SUBDIRECTORIES and kind in (LONG, 13) and depth < 3:
            below = struct.unpack_from(order + "I", data, where)[0]
            directory[tag] = _read(data, below, order, None, budget, depth + 1)
            continue
        raw = bytes(data[where : where + size])
        if order == ">" and UNITS[kind] > 1:
            raw = np.frombuffer(raw, f">u{UNITS[kind]}").astype(f"<u{UNITS[kind]}").tobytes()
        directory[tag] = Value(kind, raw)
    return directory


def write_directory(directory: Directory, offset: int) -> bytes:
    """The bytes of a directory and of those below it, to stand at a place of a little-endian file."""
    fixed = 2 + 12 * len(directory) + 4
    table = [struct.pack("<H", len(directory))]
    payloads: list[bytes] = []
    used = offset + fixed

    def put(data: bytes) -> int:
        nonlocal used
        position = used
        data += b"\0" * (len(data) % 2)
        payloads.append(data)
        used += len(data)
        return position

    for tag in sorted(directory):
        value = directory[tag]
        if not isinstance(value, Value):
            table.append(struct.pack("<HHII", tag, LONG, 1, put(write_directory(value, used))))
        elif len(value.data) <= 4:
            count = len(value.data) // SIZES[value.kind]
            table.append(struct.pack("<HHI", tag, value.kind, count) + value.data.ljust(4, b"\0"))
        else:
            count = len(value.data) // SIZES[value.kind]
            table.append(struct.pack("<HHII", tag, value.kind, count, put(value.data)))
    return b"".join([*table, bytes(4), *payloads])
