"""Packing and unpacking of chunks, with a bound: what comes out is never more than the chunk can hold.

GZIP, bzip2 and xz are Python's own. Zstandard, Blosc and LZ4 come from numcodecs, the codecs of the Zarr
project. It trusts the sizes in their headers (a Blosc chunk that was cut is read beyond its end), so they
are checked here first.
"""

from __future__ import annotations

import bz2
import ctypes
import functools
import lzma
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np

from .... import _native
from ....errors import DamagedError, MissingLibraryError, OptionError, needs
from ....storage import limits

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
BLOSC_HEADER = 16
# What xz may take for its dictionary; its highest preset takes a quarter of this.
MAX_XZ_BYTES = 256 << 20


def numcodecs(extra: str = "zarr") -> Any:
    """The library, imported when it is needed; ``extra``: what a user installs to have it."""
    with needs("Zstandard, Blosc and the filters of Zarr need numcodecs", extra):
        import numcodecs as found
        import numcodecs.blosc
        import numcodecs.lz4
        import numcodecs.zstd
    return found


# Larger chunks are decoded one by one, with a look at their header before memory is taken.
MAX_NATIVE_BYTES = 64 << 20
_FUNCTIONS = {"blosc": "blosc_decompress_ctx", "zstd": "ZSTD_decompress", "lz4": "LZ4_decompress_safe"}


class Coding(NamedTuple):
    """Steps from the bytes of whole chunks to their values, for native threads.

    ``steps`` in the order in which they are undone, shuffle with the size of values; ``prefix`` stands before
    a chunk; ``swap``: the size of values whose bytes are stored the other way round.
    """

    steps: tuple[tuple[str, int], ...] = ()
    prefix: bytes = b""
    swap: int = 1

    def native(self, size: int) -> _native.ChunkCoding | None:
        """The same for chunks of so many bytes; None where a step has no native decoder."""
        steps = [(kind, _function(kind) if kind in _FUNCTIONS else number) for kind, number in self.steps]
        good = 0 < size <= MAX_NATIVE_BYTES and all(kind in _NATIVE for kind, _ in steps)
        if not good or None in dict(steps).values():
            return None
        return _native.ChunkCoding(cast(list[tuple[str, int]], steps), size, self.prefix, self.swap)


_NATIVE = {"crc32c", "fletcher32", "gzip", "shuffle", *_FUNCTIONS}


def _function(kind: str) -> int | None:
    """The address of numcodecs' decoder, which native threads call without the GIL; None: not exported."""
    try:
        library = ctypes.CDLL(getattr(numcodecs(), kind).__file__)
        return ctypes.cast(getattr(library, _FUNCTIONS[kind]), ctypes.c_void_p).value
    except (MissingLibraryError, OSError, AttributeError):
        return None


class _TooMuchError(ValueError):
    """More than was asked for."""


def unpack(kind: str, data: Any, max_bytes: int) -> Any:
    """At most ``most`` bytes out of these; DamagedError for more, and for what is no such data.

    0: as many as the limit allows.
    """
    limit = limits.allowed(len(data))
    try:
        return _UNPACK[kind](data, min(max_bytes or limit, limit))
    except _TooMuchError as error:
        if not 0 < max_bytes <= limit:
            raise DamagedError(limits.too_large("the chunk", None, len(data))) from None
        raise DamagedError(f"the chunk is damaged ({kind}): {error}") from None
    # numcodecs raises RuntimeError, and others for strange arguments.
    except (ValueError, RuntimeError, TypeError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise DamagedError(f"the chunk is damaged ({kind}): {error}") from None


def _stream(make: Callable[[], Any], data: Any, max_bytes: int) -> bytes:
    """One stream after another."""
    parts: list[bytes] = []
    remaining, data = max_bytes, memoryview(data)
    while len(data) or not parts:
        stream = make()
        part = stream.decompress(data, remaining + 1)
        remaining -= len(part)
        if remaining < 0:
            raise _TooMuchError(f"it holds more than the {max_bytes} bytes of its chunk")
        if not stream.eof:
            raise ValueError("it is cut short")
        parts.append(part)
        data = memoryview(stream.unused_data)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _zstd(data: Any, max_bytes: int) -> Any:
    head = bytes(data[:18])
    if head[:4] != ZSTD_MAGIC or len(head) < 6:
        raise ValueError("it is no Zstandard frame")
    flags = head[4]
    single = flags >> 5 & 1
    width = (single, 2, 4, 8)[flags >> 6]
    if not width:
        # The header does not say the size; the library wants the very size then.
        out = np.empty(max_bytes, dtype=np.uint8)
        return numcodecs().zstd.decompress(data, out)
    offset = 5 + (1 - single) + (0, 1, 2, 4)[flags & 3]
    size = int.from_bytes(head[offset : offset + width], "little") + (256 if width == 2 else 0)
    if size > max_bytes:
        raise _TooMuchError(f"it claims {size} bytes, and its chunk has {max_bytes}")
    return numcodecs().zstd.decompress(data) if size else b""


def _blosc(data: Any, max_bytes: int) -> Any:
    head = bytes(data[:BLOSC_HEADER])
    size, packed = (int.from_bytes(head[offset : offset + 4], "little") for offset in (4, 12))
    if len(head) < BLOSC_HEADER or packed != len(data):
        raise ValueError(f"{len(data)} bytes, and its header says {packed}")
    if not head[3]:
        raise ValueError("it has values of no size")
    if size > max_bytes:
        raise _TooMuchError(f"it claims {size} bytes, and its chunk has {max_bytes}")
    return numcodecs().blosc.decompress(data) if size else b""


def _lz4(data: Any, max_bytes: int) -> Any:
    size = int.from_bytes(bytes(data[:4]), "little")
    if len(data) < 5:
        raise ValueError("it is cut short")
    if size > max_bytes:
        raise _TooMuchError(f"it claims {size} bytes, and its chunk has {max_bytes}")
    return numcodecs().lz4.decompress(data)


_UNPACK: dict[str, Callable[[Any, int], Any]] = {
    # GZIP or zlib, as the header says.
    "gzip": functools.partial(_stream, functools.partial(zlib.decompressobj, 47)),
    "bzip2": functools.partial(_stream, bz2.BZ2Decompressor),
    "xz": functools.partial(_stream, functools.partial(lzma.LZMADecompressor, memlimit=MAX_XZ_BYTES)),
    "zstd": _zstd,
    "blosc": _blosc,
    "lz4": _lz4,
}

# Packings that keep a checksum.
SUMS = {
    "crc32c": "CRC", "crc32": "CRC", "gzip": "CRC", "bzip2": "CRC", "bz2": "CRC", "zlib": "Adler-32",
    "adler32": "Adler-32", "fletcher32": "Fletcher-32", "jenkins_lookup3": "checksum",
}  # fmt: skip


def sums_of(packing: str) -> list[str]:
    """The checksums that chunks packed so have, as `verify` names them."""
    words = packing.replace("numcodecs.", "").split()
    return [f"{label} of every chunk" for word, label in SUMS.items() if word in words]


# The level where none is given, and the highest.
LEVELS = {"zstd": (3, 22), "gzip": (6, 9), "bzip2": (9, 9), "xz": (6, 9), "blosc": (5, 9)}
KINDS = ("none", *LEVELS)


def level_of(kind: str, level: int | None, codecs: tuple[str, ...]) -> int:
    """The level to pack with; OptionError where there is no such compression or level."""
    if kind not in codecs:
        raise OptionError(f"compression is one of {', '.join(codecs)}; not {kind!r}")
    default, max_level = LEVELS.get(kind, (0, 0))
    if level is None:
        return default
    if not isinstance(level, int) or not 0 <= level <= max_level:
        raise OptionError(f"the level of {kind} is 0 to {max_level}, not {level!r}")
    return level


def pack(kind: str, level: int, data: Any, itemsize: int = 1, checksum: bool = False) -> Any:
    """These bytes, compressed; ``itemsize``: of the values, for Blosc's shuffle; ``checksum``: for
    Zstandard."""
    if kind == "gzip":
        stream = zlib.compressobj(level, wbits=31)
        return stream.compress(data) + stream.flush()
    if kind == "bzip2":
        return bz2.compress(data, max(1, level))
    if kind == "xz":
        return lzma.compress(data, preset=level)
    if kind == "zstd":
        return numcodecs().zstd.compress(data, level, checksum)
    if kind == "blosc":
        return numcodecs().blosc.compress(data, b"zstd", level, 1, typesize=itemsize)
    return data
