"""FFRecord, little-endian: one run of bytes for each sample, and a checksum of each.

u32 CRC-32 of the rest of the header, i64 N, u32 CRC-32 of each of the N samples, i64 offset of each of them;
then the samples, one after another. CRC-32 is zlib's. Offsets count from the start of the file; a sample ends
where the next begins, the last one at the end of the file. There is no magic.

Older files have 0 in place of the header's CRC: it cannot be checked. The original writer fills the header at
the very end, so that one which died leaves zeros: no samples, but a file longer than its header.

A sample is the bytes that somebody wrote; what they mean the file does not say. A dataset with fields is kept
as MessagePack, with its schema in ``NAME.ffr.schema.json`` beside it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from .. import _native
from ..data.writer import WriteOptions
from ..errors import DamagedError, Problem, on_error
from ..schema import EVERY_KIND, Schema
from ..schema.columns import I64, U8, Ragged, as_bytes
from ..storage import Spool, open_source
from .base.format import Capabilities, Format, Probe
from .base.records import GivenSchema, RecordReader, RecordWriter

# A header of more bytes than this is not summed to recognise a file.
SNIFF_BYTES = 1 << 20
CHUNK = 1 << 20

_warned = False


def header_size(samples: int) -> int:
    return 12 + 12 * samples


def _ascending(offsets: I64) -> bool:
    # Compared, not subtracted: the difference of two wild offsets can wrap around and look right.
    return bool((offsets[1:] >= offsets[:-1]).all())


class FFRecordReader(RecordReader):
    """Reads .ffr files.

    ``check``: compare the checksums, of the header now and of every sample that is read. (Spans name places
    and read nothing: what is decoded in place is not checked.) Without it a file with a damaged header opens
    too, and the samples that it tells the place of can be read. ``schema``: what the samples are, where no
    file beside says it.
    """

    def __init__(self, path: str, *, check: bool = True, schema: GivenSchema | str | None = None) -> None:
        self.path = path
        self.source = open_source(path)
        self._check_sums = check
        with on_error(self.source.close, path=path):
            self._open()
            if check:
                self.check_header()
            self._set_schema(path, given=schema)

    def _open(self) -> None:
        self.header_sum = int(self.source.array("<u4", 0, 1)[0])
        self.length = int(self.source.array("<i8", 4, 1)[0])
        size = self.source.size
        if self.length == 0 and size > header_size(0):
            raise DamagedError("it has bytes but no samples: it was not written to the end", offset=4)
        if not 0 <= self.length <= (size - header_size(0)) // 12:
            raise DamagedError(f"its header says {self.length} samples, more than fit into it", offset=4)
        self.sums = self.source.array("<u4", 12, self.length)
        # A copy, for in the file they are not aligned; behind the last sample stands the end of the file.
        self.offsets = np.empty(self.length + 1, dtype=np.int64)
        self.offsets[:-1] = self.source.array("<i8", 12 + 4 * self.length, self.length)
        self.offsets[-1] = size
        self._in_order = self.offsets[0] >= header_size(self.length) and _ascending(self.offsets)

    def check_header(self) -> None:
        """Raise DamagedError where the header is damaged; a warning, once, where it has no checksum."""
        for problem in self._verify():
            raise DamagedError(problem.message, path=self.path, offset=problem.offset)
        if not self.header_sum:
            _warn_once(self.path)

    def gather(self, indices: I64) -> Ragged:
        """The bytes of these samples (numbers that are there), checked where the reader checks."""
        starts, sizes = self._runs(indices)
        if not self._check_sums:
            return self.source.gather(starts, sizes)
        records, bad = self.source.gather_checked(starts, sizes, self.sums, indices)
        if bad >= 0:
            raise self._wrong_sum(int(indices[bad]))
        return records

    _gather = gather

    def _verify(self) -> Iterator[Problem]:
        """The header; samples are checked when they are read."""
        header = self.source.view(4, header_size(self.length) - 4)
        if self.header_sum and _native.crc32(header) != self.header_sum:
            yield Problem("the checksum of the header is wrong", self.path, offset=0)
        if not self._in_order:
            floors = np.maximum.accumulate(np.append(header_size(self.length), self.offsets[:-1]))
            sample = min(int(np.argmax(self.offsets < floors)), self.length - 1)
            message = f"sample {sample} begins at {self.offsets[sample]}, before the one in front of it ends"
            yield Problem(message, self.path, offset=12 + 4 * self.length + 8 * sample)

    def _runs(self, indices: I64) -> tuple[I64, I64]:
        starts = self.offsets[indices]
        sizes = self.offsets[indices + 1] - starts
        if self._in_order:
            return starts, sizes
        message = "the header says that it ends before it begins, or lies outside of the file"
        return self._inside(indices, starts, sizes, message)

    def _check_records(self, indices: I64, data: U8, starts: I64, sizes: I64) -> None:
        if self._check_sums:
            bad = _native.crc32_runs(data, np.ascontiguousarray(starts), sizes) != self.sums[indices]
            if bad.any():
                raise self._wrong_sum(int(indices[int(np.argmax(bad))]))

    def _wrong_sum(self, sample: int) -> DamagedError:
        return DamagedError(
            "its bytes do not have the checksum that stands in the header",
            path=self.path,
            sample=sample,
            offset=int(self.offsets[sample]),
        )

    def own_checks(self) -> tuple[str, ...]:
        samples = ("CRC of every sample",) if self._check_sums else ()
        return (*samples, "CRC of the header") if self.header_sum else samples

    def facts(self) -> dict[str, object]:
        return {"header_checksum": bool(self.header_sum), "checked": self._check_sums}


def _warn_once(path: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        message = "an old file without a checksum of its header, which is therefore not checked"
        warnings.warn(f"{path}: {message}; so are others, perhaps", stacklevel=4)


class FFRecordWriter(RecordWriter):
    """Writes .ffr files."""

    count_inside: ClassVar[bool] = True

    def __init__(self, path: str, schema: Schema, options: WriteOptions) -> None:
        # Where the number of samples is known, the header's room is left free, and no byte moves again.
        self._room = header_size(options.length or 0)
        super().__init__(path, schema, options)

    def _begin(self, state: dict[str, Any] | None) -> None:
        self._room = state["room"] if state else self._room
        self._data = self.partial.spool("data")
        self._sums = self.partial.spool("sums")
        self._starts = self.partial.spool("starts")
        if not self._data.size:
            self._data.resize(self._room)

    def _state(self) -> dict[str, Any]:
        return {"room": self._room}

    def _write_records(self, records: Ragged) -> None:
        packed = records.take(slice(None))
        starts = np.ascontiguousarray(packed.starts)
        self._sums.write(_native.crc32_runs(packed.data, starts, packed.sizes))
        self._starts.write(starts + (self._data.size - self._room))
        self._data.write(packed.data)

    def _finish(self) -> str:
        count = self._sums.size // 4
        size = header_size(count)
        if size == self._room:
            self._write_header(self._data, count)
            return "data"
        out = self.partial.spool("file")
        out.resize(size)
        self._write_header(out, count)
        for done in range(self._room, self._data.size, CHUNK):
            out.write(self._data.read_at(CHUNK, done))
        return "file"

    def _write_header(self, out: Spool, count: int) -> None:
        number = np.array([count], dtype="<i8")
        out.write_at(number, 4)
        offset, crc = 12, _native.crc32(as_bytes(number))
        for spool, dtype, add in ((self._sums, "<u4", 0), (self._starts, "<i8", header_size(count))):
            for done in range(0, spool.size, CHUNK):
                part = np.frombuffer(spool.read_at(CHUNK, done), dtype=dtype)
                part = part + np.array(add, dtype=dtype)
                out.write_at(part, offset)
                offset, crc = offset + part.nbytes, _native.crc32(as_bytes(part), crc)
        out.write_at(np.array([crc], dtype="<u4"), 0)


def sniff(probe: Probe) -> bool:
    """No magic, but hardly any other file has such offsets, and a CRC that fits."""
    head, size = probe.head, probe.size
    if len(head) < 12:
        return False
    crc, count = int.from_bytes(head[:4], "little"), int.from_bytes(head[4:12], "little", signed=True)
    if count == 0:
        return size == 12 and crc == _native.crc32(head[4:12])
    if not 0 < count <= (size - 12) // 12:
        return False
    first = probe.source.array("<i8", 12 + 4 * count, 1)[0]
    if first != header_size(count):
        return False
    if crc and header_size(count) <= SNIFF_BYTES:
        return bool(_native.crc32(probe.source.view(4, header_size(count) - 4)) == crc)
    offsets = probe.source.array("<i8", 12 + 4 * count, min(count, SNIFF_BYTES // 8)).astype(np.int64)
    return _ascending(offsets) and bool(offsets[-1] <= size)


FORMAT = Format(
    name="ffrecord",
    title="FFRecord",
    suffixes=(".ffr",),
    spec="https://github.com/HFAiLab/ffrecord",
    reader=FFRecordReader,
    writer=FFRecordWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    notes="a CRC of every sample; fields as MessagePack, their schema beside the file",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        checksums="record",
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        ecosystem=("ffrecord",),
    ),
)
