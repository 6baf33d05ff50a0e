"""Random access into GZIP, ZLIB and Zstandard files.

A GZIP file is read from seek points, which indexed_gzip finds: each has the 32 KiB of unpacked data before
it, so that decompression can begin there. There is one every MiB; a read costs half of that on average. The
points can be saved (:meth:`GzipSource.points`), and a reader that has them opens at once.

No library does this for ZLIB and Zstandard files. They are unpacked once when they are opened: into memory,
or, from 64 MiB on, into an unnamed temporary file.
"""

from __future__ import annotations

import io
import mmap
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .. import _native
from ..errors import BatchplantError, DamagedError, OptionError, exceptions_as, needs
from ..schema.columns import I64, U8, Ragged, as_bytes
from . import Source, limits, open_source, plan_ranges
from .cache import ChunkCache

# The wbits argument of zlib.
WBITS = {"gzip": 31, "zlib": 15}
# Name of the check of :func:`check_gzip` in a report of `verify`.
CHECKED = "CRC of gzip"
PIECE_BYTES = 1 << 20
# Small, because in a file of very many tiny members the rest of the input is copied per member.
INPUT_BYTES = 16 << 10
SEEK_POINT_BYTES = 1 << 20
# Runs that lie closer are unpacked together.
MAX_GAP_BYTES, MAX_RUN_BYTES = 128 << 10, 8 << 20
MAX_MEMORY_BYTES = 64 << 20


def kind_of(head: bytes) -> str | None:
    """Return the compression of a file that begins like this: gzip, zlib, or None."""
    if head[:3] == b"\x1f\x8b\x08":
        return "gzip"
    # Deflate with a window of at most 32 KiB, and a check of the two bytes; no preset dictionary.
    zlib_head = len(head) > 1 and head[0] & 15 == 8 and head[0] >> 4 <= 7 and not head[1] & 32
    return "zlib" if zlib_head and (head[0] << 8 | head[1]) % 31 == 0 else None


def is_zstd(head: bytes) -> bool:
    """Return whether a file that begins like this is compressed with Zstandard."""
    return head[:4] == b"\x28\xb5\x2f\xfd"


def unzstd(source: Source) -> Iterator[U8]:
    """Yield the unpacked data in pieces of at most 1 MiB; damage is a DamagedError."""
    pyarrow = _pyarrow()
    with exceptions_as(DamagedError, "not sound zstd", OSError, ValueError, path=source.path):
        stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(source.file(), mode="r"), "zstd")
        while piece := stream.read(PIECE_BYTES):
            yield np.frombuffer(piece, dtype=np.uint8)


def zstd_compress(level: int | None = None) -> Callable[[U8], bytes]:
    """Return a function that compresses bytes to a Zstandard frame."""
    pyarrow = _pyarrow()
    if not 1 <= (3 if level is None else level) <= 22:
        raise OptionError(f"level is 1 to 22 for zstd, not {level}")
    codec = pyarrow.Codec("zstd", compression_level=level or 3)

    def compress(data: U8) -> bytes:
        return codec.compress(data.data, asbytes=True)

    return compress


def inflate(source: Source, kind: str = "gzip", report: Callable[[int], None] | None = None) -> Iterator[U8]:
    """Yield the unpacked data in pieces of at most 1 MiB; damage is a DamagedError.

    ``report`` is called with the number of compressed bytes done. Zeros behind the end count as padding.
    """
    if kind not in WBITS:
        raise OptionError(f"the compression is gzip or zlib, not {kind!r}", path=source.path)
    unpack: Any = None
    members = 0
    for offset in range(0, source.size, INPUT_BYTES):
        data: Any = source.view(offset, min(INPUT_BYTES, source.size - offset)).data
        end = offset + len(data)
        while len(data):
            if unpack is None:
                if members and not any(data):
                    break
                unpack = zlib.decompressobj(WBITS[kind])
            try:
                out = unpack.decompress(data, PIECE_BYTES)
            except zlib.error as error:
                message = f"not sound {kind}: {error}"
                raise DamagedError(message, path=source.path, offset=end - len(data)) from None
            if out:
                yield np.frombuffer(out, dtype=np.uint8)
            data = memoryview(unpack.unused_data if unpack.eof else unpack.unconsumed_tail)
            if unpack.eof:
                # Another member may follow, in a file that was put together of several.
                unpack, members = None, members + 1
        if report is not None:
            report(end)
    if unpack is not None or not members:
        raise DamagedError(f"the {kind} data ends too early", path=source.path, offset=source.size)


class _PackedSource(Source):
    """A source whose bytes are unpacked when they are read: runs that lie close are unpacked together."""

    max_gap_bytes = MAX_GAP_BYTES

    def _gather(self, starts: I64, sizes: I64, out: U8, out_starts: I64) -> None:
        nonempty = np.flatnonzero(sizes)
        ranges, where = plan_ranges(
            starts[nonempty], sizes[nonempty], gap=self.max_gap_bytes, most=MAX_RUN_BYTES
        )
        for number, (first, end) in enumerate(ranges):
            rows = nonempty[where == number]
            data = self._view(first, end - first)
            _native.copy_runs(data, starts[rows] - first, sizes[rows], out, out_starts[rows])


class GzipSource(_PackedSource):
    """The unpacked content of a GZIP file; ``size`` is the number of unpacked bytes.

    ``points``: the result of :meth:`points` for the very same file.
    """

    def __init__(self, packed: Source, size: int, points: U8 | None = None) -> None:
        super().__init__(packed.path, size)
        self.packed = packed
        self._lock = threading.Lock()
        # Its own exceptions derive from these. Reads have their size; a buffer would unpack beyond it.
        self._errors = (OSError, ValueError)
        self._file = _indexed_gzip().IndexedGzipFile(
            fileobj=packed.file(), spacing=SEEK_POINT_BYTES, buffer_size=1, readbuf_size=INPUT_BYTES
        )
        if points is not None:
            with exceptions_as(DamagedError, "the seek points are damaged", *self._errors, path=self.path):
                self._file.import_index(fileobj=io.BytesIO(points.tobytes()))

    def points(self) -> U8:
        """Return the seek points, for a later open of the file; takes a pass over it."""
        out = io.BytesIO()
        with self._lock:
            try:
                self._file.build_full_index()
                self._file.export_index(fileobj=out)
            except self._errors as error:
                raise self._unsound(error) from None
        return np.frombuffer(out.getvalue(), dtype=np.uint8)

    def _unsound(self, error: Exception) -> BatchplantError:
        """Return the error: the server did not deliver the bytes, or the bytes are damaged."""
        return self.packed.failure() or DamagedError(f"not sound gzip: {error}", path=self.path)

    def _view(self, start: int, size: int) -> U8:
        if size == 0:
            return np.empty(0, dtype=np.uint8)
        with self._lock:
            try:
                data = self._file.pread(size, start)
            except self._errors as error:
                raise self._unsound(error) from None
        if len(data) != size:
            raise DamagedError(f"{len(data)} of {size} bytes are packed here", path=self.path, offset=start)
        return np.frombuffer(data, dtype=np.uint8)

    def gather(self, starts: I64, sizes: I64) -> Ragged:
        self.check(starts, sizes)
        return super().gather(starts, sizes)

    def check(self, starts: I64, sizes: I64) -> None:
        """Raise a DamagedError if a run is longer than so few compressed bytes may unpack to."""
        largest = int(sizes.max(initial=0))
        if largest > limits.allowed(self.packed.size):
            offset = int(starts[int(np.argmax(sizes))])
            raise DamagedError(
                limits.too_large("it", largest, self.packed.size), path=self.path, offset=offset
            )

    def close(self) -> None:
        with self._lock:
            self._file.close()
            self.packed.close()
        super().close()


class CachedSource(_PackedSource):
    """A GzipSource with a cache of pieces, because unpacking them again costs more than caching them."""

    max_gap_bytes = 0

    def __init__(self, source: GzipSource) -> None:
        super().__init__(source.path, source.size)
        self._source = source
        self._pieces = ChunkCache()

    def gather(self, starts: I64, sizes: I64) -> Ragged:
        self._source.check(starts, sizes)
        return super().gather(starts, sizes)

    def _piece(self, number: int) -> U8:
        start = number * PIECE_BYTES
        return self._pieces.get(
            number,
            lambda: self._source.view(start, min(PIECE_BYTES, self.size - start)),
            lambda piece: piece.nbytes,
        )

    def _view(self, start: int, size: int) -> U8:
        first, last = start // PIECE_BYTES, max(start, start + size - 1) // PIECE_BYTES
        if first * PIECE_BYTES >= self.size:
            return np.empty(0, dtype=np.uint8)
        pieces = [self._piece(number) for number in range(first, last + 1)]
        data = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return data[start - first * PIECE_BYTES :][:size]

    def close(self) -> None:
        self._source.close()
        self._pieces.clear()
        super().close()


def check_gzip(path: str) -> None:
    """Check the checksums of a GZIP file by a pass over it; reading parts of it does not."""
    source = open_source(path)
    try:
        for _ in inflate(source):
            pass
    finally:
        source.close()


class UnpackedSource(Source):
    """Unpacked data, in memory or mapped."""

    def __init__(self, path: str, data: U8) -> None:
        super().__init__(path, len(data))
        self._data = data

    def _view(self, start: int, size: int) -> U8:
        return self._data[start : start + size]

    def _gather(self, starts: I64, sizes: I64, out: U8, out_starts: I64) -> None:
        _native.copy_runs(self._data, starts, sizes, out, out_starts)

    def close(self) -> None:
        self._data = np.empty(0, dtype=np.uint8)
        super().close()


def limited(pieces: Iterator[U8], path: str, stored: int) -> Iterator[U8]:
    """Yield the pieces, up to the size that a file of ``stored`` bytes may unpack to; then a DamagedError."""
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > limits.allowed(stored):
            raise DamagedError(limits.too_large("the file", None, stored), path=path)
        yield piece


def unpack(packed: Source, kind: str) -> UnpackedSource:
    """Unpack a source into memory or into a temporary file."""
    pieces = unzstd(packed) if kind == "zstd" else inflate(packed, kind)
    return collect(packed.path, pieces, packed.size)


def collect(
    path: str, pieces: Iterator[U8], stored: int, *, max_memory_bytes: int = MAX_MEMORY_BYTES
) -> UnpackedSource:
    """Collect the pieces of a file of ``stored`` bytes in memory, or in a temporary file if they are many."""
    pieces = limited(pieces, path, stored)
    memory: list[U8] = []
    size = 0
    for piece in pieces:
        memory.append(piece)
        size += len(piece)
        if size >= max_memory_bytes:
            break
    else:
        return UnpackedSource(path, np.concatenate(memory) if memory else np.empty(0, np.uint8))
    # Unnamed: it is gone with the last view of it, however this process ends.
    with tempfile.TemporaryFile(prefix="batchplant-") as file:
        while memory:
            file.write(memory.pop(0).data)
        for piece in pieces:
            file.write(piece.data)
        file.flush()
        return UnpackedSource(path, as_bytes(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))


def open_gzip(
    path: str | Source, kind: str = "gzip", *, size: int | None = None, points: U8 | None = None
) -> Source:
    """Open a compressed file for random access. A pass over the file checks it, and finds its size.

    With the ``size`` (and the ``points``) of an earlier reader, GZIP files are opened without one.
    """
    packed = path if isinstance(path, Source) else open_source(path)
    if kind != "gzip":
        return unpack(packed, kind)
    if size is None:
        size = sum(len(piece) for piece in inflate(packed, kind))
    return GzipSource(packed, size, points)


def _indexed_gzip() -> Any:
    with needs("gzip files need indexed_gzip", "gzip"):
        import indexed_gzip
    return indexed_gzip


def _pyarrow() -> Any:
    with needs("zst files need pyarrow", "arrow"):
        import pyarrow
    return pyarrow
