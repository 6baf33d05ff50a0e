"""How much one small file may make of itself: the most that a cell, chunk, line or picture may unpack to.

What is stored as it is needs no limit: a file cannot hold more than its own size. What is packed, or is only
a claim in a header, is refused before memory is taken for it. :func:`max_bytes` sets the limit, and so does the
environment variable BATCHPLANT_MAX_BYTES for all processes.
"""

from __future__ import annotations

import os

from .errors import DamagedError, OptionError

VARIABLE = "BATCHPLANT_MAX_BYTES"
DEFAULT = 512 << 20
# Real data that is larger than the limit shrinks by less than this when it is packed.
PLAUSIBLE = 16

_most: int | None = None


def max_bytes(size: int | None = None) -> int:
    """What a cell, chunk, line or picture may always unpack to; a number sets it, for this process and from now on.

    At first it is the number in the environment variable BATCHPLANT_MAX_BYTES, or 512 MiB. What is stored in more
    than a sixteenth of that may unpack to sixteen times its stored size.
    """
    global _most
    if size is None and _most is None:
        given = os.environ.get(VARIABLE, "")
        if given and not given.isdecimal():
            raise OptionError(f"{VARIABLE} is a number of bytes, not {given!r}")
        size = int(given or DEFAULT)
    if size is not None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise OptionError(f"the limit is a number of bytes from 1 on, not {size!r}")
        _most = size
    assert _most is not None
    return _most


def allowed(stored: int = 0) -> int:
    """The most bytes that ``stored`` bytes may unpack to; without a number, what nothing at all may claim."""
    return max(max_bytes(), PLAUSIBLE * stored)


def check(what: str, size: int, stored: int = 0) -> None:
    """Raise a DamagedError where ``stored`` bytes claim to unpack to more than they may."""
    if size > allowed(stored):
        raise DamagedError(too_large(what, size, stored))


def too_large(what: str, size: int | None, stored: int = 0) -> str:
    """The message for it: ``a line unpacks to 4,294,967,296 bytes from 4,203, and the limit is …``."""
    found = f"{size:,} bytes" if size is not None else "too many bytes"
    source = f" from {stored:,}" if stored else ""
    return (
        f"{what} unpacks to {found}{source}, and the limit is {allowed(stored):,}; "
        f"raise it with {VARIABLE} or batchplant.max_bytes"
    )
