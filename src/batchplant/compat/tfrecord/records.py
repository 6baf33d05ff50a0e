"""Files of records, read one after the other and written."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np

from ... import _native
from ...errors import DamagedError, OptionError
from ...schema.columns import I64, U8, starts_of
from ...storage import MappedSource, Partial, Source, limits, open_source
from .values import String, as_bytes, as_text

# Bytes that are looked at in one go, and those that a writer collects.
STEP = 1 << 20

_WINDOWS = {"GZIP": 31, "ZLIB": 15}
# The native scanner's numbers.
_SHORT = (1, 3)
_FAULTS = {
    1: "the file ends inside a record's length",
    2: "the checksum of a record's length is wrong",
    3: "the file ends inside a record",
    4: "the checksum of a record is wrong",
}


def compression_of(given: Any) -> str:
    """GZIP, ZLIB or nothing, out of what a user may say."""
    name = "" if given is None else as_text(given).upper()
    if name not in ("", *_WINDOWS):
        raise OptionError(f"compression_type is '', 'GZIP' or 'ZLIB', not {name!r}")
    return name


def read_records(path: str, compression: str) -> Iterator[String]:
    """The records of a file; both checksums of each are checked."""
    source = open_source(path)
    try:
        if compression or not isinstance(source, MappedSource):
            yield from _streamed(path, _chunks(source, compression), source.size)
        else:
            yield from _mapped(source)
    finally:
        source.close()


def _mapped(source: MappedSource) -> Iterator[String]:
    data, at = source.data, 0
    while at < source.size:
        starts, sizes, at, fault = _native.tfrecord_scan(data, at, at + STEP, True)
        yield from _cut(data, starts, sizes)
        if fault:
            raise _damaged(source.path, fault, at, data[at : at + 2])


def _cut(data: U8, starts: I64, sizes: I64) -> Iterator[String]:
    view = data.data
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        yield String(view[start : start + size])


def _damaged(path: str, fault: int, at: int, head: U8) -> DamagedError:
    message = _FAULTS[fault]
    if at == 0 and bytes(head) == b"\x1f\x8b":
        message += "; it looks compressed: compression_type='GZIP'"
    elif at == 0 and len(head) == 2 and head[0] == 0x78 and (0x7800 | int(head[1])) % 31 == 0:
        message += "; it looks compressed: compression_type='ZLIB'"
    return DamagedError(message, path=path, offset=at)


def _chunks(source: Source, compression: str) -> Iterator[bytes]:
    """The file's bytes, unpacked, in pieces of limited size."""
    pieces = (source.view(at, min(STEP, source.size - at)) for at in range(0, source.size, STEP))
    if not compression:
        yield from (piece.tobytes() for piece in pieces)
        return
    unpacker = zlib.decompressobj(_WINDOWS[compression])
    begun = False
    for piece in pieces:
        packed = piece.tobytes()
        while packed:
            begun = True
            try:
                yield unpacker.decompress(packed, STEP)
            except zlib.error as error:
                raise DamagedError(f"{compression}: {error}", path=source.path) from None
            packed = unpacker.unconsumed_tail
            if unpacker.eof:
                # Several streams may follow each other, as when files were joined.
                packed = unpacker.unused_data
                unpacker = zlib.decompressobj(_WINDOWS[compression])
                begun = bool(packed)
    if begun:
        yield unpacker.flush()
        if not unpacker.eof:
            raise DamagedError(
                f"{compression}: the stream ends too early", path=source.path, offset=source.size
            )


def _streamed(path: str, chunks: Iterator[bytes], stored: int) -> Iterator[String]:
    held: list[bytes] = []
    size = needed = before = 0
    ended = False
    while not ended:
        chunk = next(chunks, None)
        ended = chunk is None
        held.append(chunk or b"")
        size += len(held[-1])
        # Twice what is left over, so that a large record is not gone through again and again.
        if size < needed and size <= limits.allowed(stored) and not ended:
            continue
        data = np.frombuffer(b"".join(held), dtype=np.uint8)
        starts, sizes, at, fault = _native.tfrecord_scan(data, 0, len(data), True)
        yield from _cut(data, starts, sizes)
        if fault and (ended or fault not in _SHORT):
            raise _damaged(path, fault, before + at, data[at : at + 2])
        held, size, before = [data[at:].tobytes()], len(data) - at, before + at
        needed = 2 * size
        if size > limits.allowed(stored):
            raise DamagedError(limits.too_large("a record", None, stored), path=path, offset=before)


class TFRecordOptions:
    """How a file of records is compressed; the other settings steer TensorFlow's buffers."""

    def __init__(
        self,
        compression_type: Any = None,
        flush_mode: Any = None,
        input_buffer_size: Any = None,
        output_buffer_size: Any = None,
        window_bits: Any = None,
        compression_level: int | None = None,
        compression_method: Any = None,
        mem_level: Any = None,
        compression_strategy: Any = None,
    ) -> None:
        if isinstance(compression_type, TFRecordOptions):
            compression_type = compression_type.compression_type
        self.compression_type: str = compression_of(compression_type)
        self.compression_level = -1 if compression_level is None else int(compression_level)
        if not -1 <= self.compression_level <= 9:
            raise OptionError(f"compression_level is -1 to 9, not {self.compression_level}")


class Frames:
    """Records on their way into a file: collected, framed, packed."""

    def __init__(self, write: Callable[[Any], Any], options: TFRecordOptions) -> None:
        self._write = write
        self._packer: Any = None
        if options.compression_type:
            wanted = options.compression_level, zlib.DEFLATED, _WINDOWS[options.compression_type]
            self._packer = zlib.compressobj(*wanted)
        self._held: list[bytes] = []
        self._size = 0

    def add(self, data: bytes) -> None:
        self._held.append(data)
        self._size += len(data)
        if self._size >= STEP:
            self.flush()

    def flush(self) -> None:
        if not self._held:
            return
        sizes = np.fromiter(map(len, self._held), dtype=np.int64, count=len(self._held))
        data = np.frombuffer(b"".join(self._held), dtype=np.uint8)
        framed = _native.tfrecord_frame(data, starts_of(sizes)[:-1], sizes)
        self._write(framed if self._packer is None else self._packer.compress(framed))
        self._held, self._size = [], 0

    def end(self) -> None:
        self.flush()
        if self._packer is not None:
            self._write(self._packer.flush())


class TFRecordWriter:
    """Writes records to a file, which appears under its name when the writer is closed."""

    def __init__(self, path: Any, options: Any = None) -> None:
        if not isinstance(options, TFRecordOptions):
            options = TFRecordOptions(options)
        self._partial: Partial | None = None
        partial = Partial(as_text(path), overwrite=True)
        self._frames = Frames(partial.spool("records").write, options)
        self._partial = partial

    def write(self, record: Any) -> None:
        self._check_open()
        self._frames.add(as_bytes(record))

    def _check_open(self) -> Partial:
        if self._partial is None:
            raise OptionError("the writer is closed")
        return self._partial

    def flush(self) -> None:
        """Hand over what is collected; readers see it when the writer is closed."""
        self._check_open()
        self._frames.flush()

    def close(self) -> None:
        """Finish the file and give it its name."""
        if self._partial is None:
            return
        partial, self._partial = self._partial, None
        try:
            self._frames.end()
            partial.commit("records")
        except BaseException:
            partial.discard()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
        elif self._partial is not None:
            # A file that lacks records must not look like a whole one.
            partial, self._partial = self._partial, None
            partial.discard()

    def __del__(self) -> None:
        # As TensorFlow does for a writer that a script forgot to close.
        if getattr(self, "_partial", None) is not None:
            self.close()
