"""Limits on unpacked sizes: the most that a cell, chunk, line or image may unpack to.

Data that is stored uncompressed needs no limit: a file cannot hold more than its own size. Data that is
compressed, or that is only a claim in a header, is refused before memory is allocated for it.
:func:`max_bytes` sets the limit, and so does the environment variable BATCHPLANT_MAX_BYTES for all processes.
"""

from __future__ import annotations

import os

from ..errors import DamagedError, OptionError

VARIABLE = "BATCHPLANT_MAX_BYTES"
DEFAULT = 512 << 20
# For an image, all pages of a TIFF and all frames of an animation together.
PIXELS_VARIABLE = "BATCHPLANT_MAX_PIXELS"
DEFAULT_PIXELS = 1 << 28
# Highest plausible compression ratio of real data that is larger than the limit.
PLAUSIBLE = 16

_most: int | None = None
_most_pixels: int | None = None


def max_bytes(size: int | None = None) -> int:
    """Return the size a cell, chunk, line or image may always unpack to; a number sets it, for this process.

    The default is the environment variable BATCHPLANT_MAX_BYTES, or 512 MiB. Data that is stored in
    more than a sixteenth of that may unpack to sixteen times its stored size.
    """
    global _most
    if size is not None or _most is None:
        _most = _stated(size, VARIABLE, DEFAULT, "bytes")
    return _most


def max_pixels(pixels: int | None = None) -> int:
    """Return the largest number of pixels of an image; a number sets it, for this process and from now on.

    The default is the environment variable BATCHPLANT_MAX_PIXELS, or 2**28. The memory of the pixels is
    subject to :func:`max_bytes` besides.
    """
    global _most_pixels
    if pixels is not None or _most_pixels is None:
        _most_pixels = _stated(pixels, PIXELS_VARIABLE, DEFAULT_PIXELS, "pixels")
    return _most_pixels


def _stated(number: int | None, variable: str, default: int, unit: str) -> int:
    """Return the number, else that of the environment variable, else the default."""
    if number is None:
        number = from_environment(variable, default, unit)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise OptionError(f"the limit is a number of {unit} from 1 on, not {number!r}")
    return number


def from_environment(variable: str, default: int, unit: str) -> int:
    """Return the number that an environment variable sets, else the default."""
    setting = os.environ.get(variable, "")
    if setting and not setting.isdecimal():
        raise OptionError(f"{variable} is a number of {unit}, not {setting!r}")
    return int(setting or default)


def allowed(stored: int = 0) -> int:
    """Return the bytes that ``stored`` bytes may unpack to; without a number, the limit for a bare claim."""
    return max(max_bytes(), PLAUSIBLE * stored)


def check(subject: str, size: int, stored: int = 0) -> None:
    """Raise a DamagedError if ``stored`` bytes claim to unpack to more than they may."""
    if size > allowed(stored):
        raise DamagedError(too_large(subject, size, stored))


def check_rows(rows: int, stored: int = 0) -> None:
    """Raise a DamagedError for more rows than ``stored`` bytes may hold: each takes a number to find it."""
    check(f"the list of {rows:,} rows", 8 * rows, stored)


def too_large(subject: str, size: int | None, stored: int = 0) -> str:
    """Return the message: ``a line unpacks to 4,294,967,296 bytes from 4,203, and the limit is …``."""
    claimed = f"{size:,} bytes" if size is not None else "too many bytes"
    source = f" from {stored:,}" if stored else ""
    return (
        f"{subject} unpacks to {claimed}{source}, and the limit is {allowed(stored):,}; "
        f"raise it with {VARIABLE} or batchplant.max_bytes"
    )


def human_size(size: float | None) -> str:
    """Return a number of bytes as people read it: ``"17 B"``, ``"3.2 kB"``, ``"4.1 GB"``."""
    if size is None:
        return "unknown"
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
