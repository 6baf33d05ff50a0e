"""Compression and hashes of shards: Streaming's names, and their implementations."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from ...errors import BatchplantError, DamagedError, MissingLibraryError, OptionError
from ...schema.columns import U8
from ...storage import Source
from ...storage.compressed import UnpackedSource, collect, inflate

# Name → the levels that there are, and the usual one.
ALGORITHMS: dict[str, tuple[range, int | None]] = {
    "br": (range(12), 11),
    "bz2": (range(1, 10), 9),
    "gz": (range(10), 9),
    "snappy": (range(0), None),
    "zstd": (range(1, 23), 3),
}
ARROW = {"br": "brotli", "zstd": "zstd", "snappy": "snappy"}
XXHASH = ("xxh32", "xxh64", "xxh128", "xxh3_64", "xxh3_128")
PIECE = 1 << 20


def pack(compression: str) -> Callable[[bytes], bytes]:
    """Compressor of a shard by name: ``zstd``, ``zstd:7``."""
    name, colon, given = compression.partition(":")
    levels, usual = ALGORITHMS.get(name, (range(0), None))
    if name not in ALGORITHMS or (colon and not (given.isdecimal() and int(given) in levels)):
        raise OptionError(
            f"compression is one of {', '.join(ALGORITHMS)}, with a level as in zstd:7, not {compression!r}"
        )
    level = int(given) if given else usual
    if name == "gz":
        # No date, so that the same samples are the same bytes.
        return lambda data: gzip.compress(data, level or 0, mtime=0)
    if name == "bz2":
        return lambda data: bz2.compress(data, level or 9)
    codec = _pyarrow().Codec(ARROW[name], **({} if level is None else {"compression_level": level}))

    def compress(data: bytes) -> bytes:
        compress: bytes = codec.compress(data, asbytes=True)
        return compress

    return compress


def unpack(source: Source, compression: str, size: int) -> UnpackedSource:
    """Decompress a file, which has ``size`` bytes according to the index."""
    result = collect(source.path, _pieces(source, compression, size), source.size)
    if result.size != size:
        raise DamagedError(
            f"{result.size} bytes are packed in it, and the index says {size}", path=source.path
        )
    return result


def _pieces(source: Source, compression: str, size: int) -> Iterator[U8]:
    pieces = inflate(source) if compression == "gz" else map(_as_array, _unpacked(source, compression, size))
    left = size
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise DamagedError(f"more than the {size} bytes of the index are packed in it", path=source.path)
        yield piece


def _as_array(data: bytes) -> U8:
    return np.frombuffer(data, dtype=np.uint8)


def _unpacked(source: Source, compression: str, size: int) -> Iterable[bytes]:
    try:
        if compression == "bz2":
            with bz2.open(source.file()) as file:
                while piece := file.read(PIECE):
                    yield piece
            return
        pyarrow = _pyarrow()
        if compression == "snappy":
            # One block, which says its size by itself: it has to be that of the index.
            data = source.view(0, source.size).tobytes()
            if _varint(data) == size:
                yield pyarrow.Codec("snappy").decompress(data, decompressed_size=size, asbytes=True)
            return
        stream = pyarrow.CompressedInputStream(
            pyarrow.PythonFile(source.file(), mode="r"), ARROW[compression]
        )
        while piece := stream.read(PIECE):
            yield piece
    except BatchplantError:
        raise
    except (OSError, EOFError, ValueError, zlib.error) as error:
        failed = source.failure() or DamagedError(f"not sound {compression}: {error}", path=source.path)
        raise failed from None


def _varint(data: bytes) -> int:
    varint = 0
    for shift, byte in enumerate(data[:5]):
        varint |= (byte & 127) << 7 * shift
        if byte < 128:
            return varint
    return -1


def hasher(name: str) -> Callable[[], Any] | None:
    """Return the function of a hash; None if it is unknown."""
    if name in XXHASH:
        try:
            import xxhash
        except ImportError:
            return None
        return getattr(xxhash, name, None)
    if name not in hashlib.algorithms_available or name.startswith("shake_") or not hasattr(hashlib, name):
        return None
    return lambda: hashlib.new(name, usedforsecurity=False)


def check_hashes(names: Iterable[str]) -> list[str]:
    """The names of hashes to write, in order; an error for one that cannot be made."""
    hashes = sorted(set(names))
    for name in hashes:
        if hasher(name) is None:
            if name in XXHASH:
                raise MissingLibraryError(f"the hash {name} needs xxhash: pip install xxhash")
            raise OptionError(f"there is no hash {name!r}; there are sha1, sha256, md5, xxh64 and others")
    return hashes


def digest(name: str, data: Any) -> str | None:
    """The hash of these bytes, in small letters; None where nobody can make it here."""
    made = hasher(name)
    if made is None:
        return None
    found = made()
    found.update(data)
    return str(found.hexdigest())


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        message = 'shards packed with zstd, br or snappy need pyarrow: pip install "batchplant[arrow]"'
        raise MissingLibraryError(message) from None
    return pyarrow
