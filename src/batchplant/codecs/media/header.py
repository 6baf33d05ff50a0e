"""Headers of encoded images, checked for plausibility before memory is allocated."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ... import _native
from ...errors import DecodeError
from ...schema.columns import U8, Ragged, column_runs
from ...storage import limits
from . import tiff
from .pixels import mode_name

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

    def size_as(self, channels: int) -> int:
        """Bytes that its pixels take in memory."""
        return self.width * self.height * channels * max(1, self.bits // 8)


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
    size = header.size_as(1 if indices and header.mode == "P" else header.channels)
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
