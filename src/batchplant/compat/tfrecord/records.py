"""TFRecord files: found by pattern, read record by record, and written."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import numpy as np

from ... import _native
from ...errors import DamagedError, NotFoundError, OptionError
from ...formats.tfrecord import FAULTS, SHORT
from ...schema.columns import I64, U8, starts_of
from ...storage import MappedSource, Partial, Source, is_remote, limits, open_source, tree
from ...storage.compressed import WBITS, inflate, kind_of
from .values import String, as_bytes, as_text, as_texts

SCAN_BYTES = 1 << 20
WRITE_BUFFER_BYTES = 1 << 20


def expand(pattern: str) -> list[str]:
    """Return the paths that match, sorted."""
    # A URL without a pattern is not looked up: opening it shows whether it exists.
    return sorted(tree.glob(pattern)) if not is_remote(pattern) or tree.has_magic(pattern) else [pattern]


def list_paths(patterns: object) -> list[str]:
    """Return the paths that match any of the patterns, sorted; NotFoundError if there are none."""
    paths = [path for pattern in as_texts(patterns) for path in expand(pattern)]
    if not paths:
        raise NotFoundError(f"no file matches {', '.join(as_texts(patterns))}")
    return sorted(paths)


def parse_compression(compression_type: object) -> str:
    """Return GZIP, ZLIB or an empty string."""
    name = "" if compression_type is None else as_text(compression_type).upper()
    if name not in ("", "GZIP", "ZLIB"):
        raise OptionError(f"compression_type is '', 'GZIP' or 'ZLIB', not {name!r}")
    return name


def read_records(path: str, compression: str) -> Iterator[String]:
    """Yield the records of a file; both checksums of each are checked."""
    source = open_source(path)
    try:
        if compression or not isinstance(source, MappedSource):
            yield from _read_stream(source, compression)
        else:
            yield from _read_mapped(source)
    finally:
        source.close()


def _read_mapped(source: MappedSource) -> Iterator[String]:
    data, offset = source.data, 0
    while offset < source.size:
        starts, sizes, offset, fault = _native.tfrecord_scan(data, offset, offset + SCAN_BYTES, True)
        yield from _split(data, starts, sizes)
        if fault:
            raise _damaged(source.path, fault, offset, data[offset : offset + 3])


def _split(data: U8, starts: I64, sizes: I64) -> Iterator[String]:
    view = data.data
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        yield String(view[start : start + size])


def _damaged(path: str, fault: int, offset: int, head: U8) -> DamagedError:
    message = FAULTS[fault]
    if offset == 0 and (kind := kind_of(head.tobytes())):
        message += f"; it looks compressed: compression_type={kind.upper()!r}"
    return DamagedError(message, path=path, offset=offset)


def _read_stream(source: Source, compression: str) -> Iterator[String]:
    path, stored_bytes = source.path, source.size
    chunks: Iterator[U8] = (
        source.view(start, min(SCAN_BYTES, stored_bytes - start))
        for start in range(0, stored_bytes, SCAN_BYTES)
    )
    if compression and stored_bytes:
        chunks = inflate(source, compression.lower())
    pending: list[U8] = []
    pending_bytes = bytes_to_scan = scanned_bytes = 0
    ended = False
    while not ended:
        chunk = next(chunks, None)
        ended = chunk is None
        if chunk is not None:
            pending.append(chunk)
            pending_bytes += len(chunk)
        # Wait for twice the incomplete record, so that a large record is not scanned again and again.
        if pending_bytes < bytes_to_scan and pending_bytes <= limits.allowed(stored_bytes) and not ended:
            continue
        data = np.concatenate([np.empty(0, dtype=np.uint8), *pending])
        starts, sizes, offset, fault = _native.tfrecord_scan(data, 0, len(data), True)
        yield from _split(data, starts, sizes)
        if fault and (ended or fault not in SHORT):
            raise _damaged(path, fault, scanned_bytes + offset, data[offset : offset + 3])
        pending, pending_bytes = [data[offset:]], len(data) - offset
        scanned_bytes += offset
        bytes_to_scan = 2 * pending_bytes
        if pending_bytes > limits.allowed(stored_bytes):
            raise DamagedError(
                limits.too_large("a record", None, stored_bytes), path=path, offset=scanned_bytes
            )


class TFRecordOptions:
    """Compression of a TFRecord file; the other settings concern TensorFlow's buffers and have no effect."""

    def __init__(
        self,
        compression_type: object = None,
        flush_mode: object = None,
        input_buffer_size: object = None,
        output_buffer_size: object = None,
        window_bits: object = None,
        compression_level: int | None = None,
        compression_method: object = None,
        mem_level: object = None,
        compression_strategy: object = None,
    ) -> None:
        if isinstance(compression_type, TFRecordOptions):
            compression_type = compression_type.compression_type
        self.compression_type: str = parse_compression(compression_type)
        self.compression_level = -1 if compression_level is None else int(compression_level)
        if not -1 <= self.compression_level <= 9:
            raise OptionError(f"compression_level is -1 to 9, not {self.compression_level}")


class TFRecordWriter:
    """Writes records to a file, which appears under its name when the writer is closed."""

    def __init__(self, path: object, options: object = None) -> None:
        if not isinstance(options, TFRecordOptions):
            options = TFRecordOptions(options)
        self._partial: Partial | None = None
        self._buffer: list[bytes] = []
        self._buffer_bytes = 0
        self._compressor = None
        if kind := options.compression_type.lower():
            self._compressor = zlib.compressobj(options.compression_level, zlib.DEFLATED, WBITS[kind])
        partial = Partial(as_text(path), overwrite=True)
        self._file = partial.spool("records")
        self._partial = partial

    def write(self, record: object) -> None:
        self._check_open()
        data = as_bytes(record)
        self._buffer.append(data)
        self._buffer_bytes += len(data)
        if self._buffer_bytes >= WRITE_BUFFER_BYTES:
            self._write_buffer()

    def flush(self) -> None:
        """Write the buffered records; readers see them when the writer is closed."""
        self._check_open()
        self._write_buffer()

    def close(self) -> None:
        """Finish the file and give it its name."""
        if self._partial is None:
            return
        partial, self._partial = self._partial, None
        try:
            self._write_buffer()
            if self._compressor is not None:
                self._file.write(self._compressor.flush())
            partial.commit("records")
        except BaseException:
            partial.discard()
            raise

    def _check_open(self) -> None:
        if self._partial is None:
            raise OptionError("the writer is closed")

    def _write_buffer(self) -> None:
        if not self._buffer:
            return
        sizes = np.fromiter(map(len, self._buffer), dtype=np.int64, count=len(self._buffer))
        data = np.frombuffer(b"".join(self._buffer), dtype=np.uint8)
        framed = _native.tfrecord_frame(data, starts_of(sizes)[:-1], sizes)
        self._file.write(framed if self._compressor is None else self._compressor.compress(framed.data))
        self._buffer, self._buffer_bytes = [], 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error_type is None:
            self.close()
        elif self._partial is not None:
            # A file that lacks records must not look like a complete one.
            partial, self._partial = self._partial, None
            partial.discard()

    def __del__(self) -> None:
        # TensorFlow also finishes the file of a writer that a script forgot to close.
        if getattr(self, "_partial", None) is not None:
            self.close()
