"""ArrayRecord, little-endian: chunks of Riegeli/records, and an index of them at the end.

A chunk holds the sizes of ``group_size`` records as varints, then the records, both compressed on their own.
It has a hash of its header and of its data. Every 64 KiB a block header interrupts the chunk that lies there:
a record is not always one run of bytes. native/records/riegeli.hpp has the details.

The last 64 KiB hold a chunk that names the offset of the footer. The footer is a chunk of protobuf messages:
one of the whole file, then one for each chunk with its offset, the bytes of its records and their number.

A record is any bytes. A dataset with fields is kept as MessagePack, with its schema in
``NAME.array_record.schema.json`` beside it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from .. import _native
from ..codecs import protobuf
from ..data.layout import Layout
from ..data.reader import Reader
from ..data.writer import WriteOptions
from ..errors import DamagedError, DataError, OptionError, check_choice, needs, on_error
from ..schema import EVERY_KIND, Schema
from ..schema.columns import I64, U8, Ragged, starts_of
from ..storage import MappedSource, limits, open_source
from ..storage.cache import ChunkCache, ChunkKeys
from ..storage.spans import Spans
from .base.format import Capabilities, Format
from .base.records import GivenSchema, RecordReader, RecordWriter

BLOCK_BYTES = 1 << 16
MAGIC = 0x71930E704FDAE05E
SIGNATURE = bytes.fromhex("83af70d10d884a3f" + 16 * "0" + "40" + 14 * "0" + "91bac23c9287e1a9")
VERSION = 1
RECORDS, TRANSPOSED = ord("r"), ord("t")
NAMES = {0: "none", ord("b"): "brotli", ord("z"): "zstd", ord("s"): "snappy"}
CODES = {name: code for code, name in NAMES.items()}
# The messages of the footer that are made at a time.
FOOTER_CHUNKS = 1 << 16
# Tags of the three numbers of a chunk in the footer: its offset, bytes of its records, number of them.
TAGS = (8, 16, 24)


@functools.cache
def _codec(name: str) -> Any:
    with needs("ArrayRecord files packed with zstd, brotli or snappy need pyarrow", "arrow"):
        import pyarrow
    if name != "brotli":
        return pyarrow.Codec(name)
    return lambda packed: pyarrow.CompressedInputStream(pyarrow.BufferReader(packed), "brotli")


def unpack(view: memoryview, start: int, end: int, code: int) -> memoryview:
    """Return the unpacked bytes of a buffer, which begins with its size."""
    if code == 0:
        return view[start:end]
    if code not in NAMES:
        raise DamagedError(f"a chunk is compressed with {code}, which is not known")
    stored = end - start
    size, start = protobuf.read_varint(view, start, end)
    limits.check("a chunk", size, stored)
    codec, unpacked = _codec(NAMES[code]), None
    try:
        # Brotli and Snappy say nothing where there are fewer bytes than that.
        if code == CODES["brotli"]:
            unpacked = codec(view[start:end]).read(size + 1)
        elif code == CODES["zstd"] or protobuf.read_varint(view, start, end)[0] == size:
            unpacked = codec.decompress(view[start:end], decompressed_size=size)
        if unpacked is not None and len(unpacked) == size:
            return memoryview(unpacked)
    except (OSError, ValueError):
        pass
    raise DamagedError(f"a chunk is not sound {NAMES[code]}, or not of the size that it says")


def _packer(name: str) -> Callable[[bytes], bytes]:
    check_choice("compression", name, CODES)
    if name == "none":
        return lambda data: data
    with needs("packing ArrayRecord files needs pyarrow", "arrow"):
        import pyarrow
    codec = pyarrow.Codec(name)
    return lambda data: protobuf.varint(len(data)) + codec.compress(data, asbytes=True)


class ArrayRecordReader(RecordReader):
    """Reads .array_record files.

    ``schema``: what the records are, where no file beside says it. ``cache``: bytes of unpacked chunks
    that are kept where a chunk holds several records (default: BATCHPLANT_CHUNK_CACHE).
    """

    def __init__(
        self, path: str, *, schema: GivenSchema | str | None = None, cache: int | None = None
    ) -> None:
        self.path = path
        self.source = open_source(path)
        self._cache = ChunkCache(cache)
        with on_error(self.source.close, path=path):
            self._open()
            self._set_schema(path, given=schema)

    def _open(self) -> None:
        end = self.source.size - BLOCK_BYTES
        if end < BLOCK_BYTES or end % BLOCK_BYTES or self.source.peek([(0, len(SIGNATURE))]) != SIGNATURE:
            raise DamagedError("it is not an ArrayRecord file, or not whole", offset=0)
        last = self._unpacked(np.array([end]), np.array([BLOCK_BYTES])).take(slice(1)).data
        numbers = {part.number: part.value for part in protobuf.parts(last.data, 0, len(last))}
        footer = numbers.get(1, 0)
        if numbers.get(2) != MAGIC or not len(SIGNATURE) <= footer < end:
            raise DamagedError("its end does not name a footer", offset=end)
        messages = self._unpacked(np.array([footer]), np.array([end - footer]))
        chunks, records, self.written_with = self._about(messages.take(slice(1)).data, footer)
        table = protobuf.unpack(messages.take(slice(1, None)).data, 0)
        if len(table) != 6 * chunks or (table.reshape(-1, 6)[:, ::2] != TAGS).any():
            raise DamagedError("the footer does not list the chunks that it promises", offset=footer)
        table = table.reshape(-1, 6)[:, 1::2]
        self._starts = np.append(table[:, 0], footer)
        self._counts = np.ascontiguousarray(table[:, 2])
        # A record takes a byte of the file at least. Compared, since a difference may wrap around.
        rising = (self._starts[1:] > self._starts[:-1]).all() and self._starts[0] >= len(SIGNATURE)
        if not rising or ((self._counts < 1) | (self._counts > np.diff(self._starts))).any():
            raise DamagedError("the footer lists chunks that cannot be", offset=footer)
        self._firsts = starts_of(self._counts)
        self.length = int(self._firsts[-1])
        if self.length != records:
            raise DamagedError(f"the footer has {self.length} records, and says {records}", offset=footer)

    def _about(self, record: U8, offset: int) -> tuple[int, int, str]:
        """Return what the footer says of the whole file: numbers of chunks and records, and the options."""
        view = record.data
        for start, end in protobuf.messages(view, 0, len(view), 1):
            fields = {part.number: part for part in protobuf.parts(view, start, end)}
            version, chunks, records = (fields[n].value if n in fields else 0 for n in (1, 2, 3))
            if version == VERSION:
                return chunks, records, protobuf.text(view, fields[4]) if 4 in fields else ""
        raise DamagedError("the footer is not that of ArrayRecord 1", offset=offset)

    def _chunks(self, starts: I64, sizes: I64) -> tuple[U8, I64, I64]:
        """Return checked chunks without block headers: their bytes, where each begins, and its header.

        Errors have the row as ``sample``.
        """
        if isinstance(self.source, MappedSource) and self.source.is_warm():
            stored, places = self.source.placed(starts, sizes)
        else:
            chunks = self.source.gather(starts, sizes)
            stored, places = chunks.data, chunks.starts
        data, chunk_starts, heads, failure = _native.riegeli_read(
            stored, np.ascontiguousarray(places), sizes, np.ascontiguousarray(starts)
        )
        row, reason = failure or (-1, "")
        kinds = heads[:, 0] if failure is None else heads[:0, 0]
        if (kinds != RECORDS).any():
            row = int(np.argmax(kinds != RECORDS))
            reason = (
                "is transposed, which batchplant does not read"
                if kinds[row] == TRANSPOSED
                else "has no records"
            )
            reason = f"a chunk {reason}"
        elif len(kinds) and heads[:, 1].min() < 2:
            row, reason = int(heads[:, 1].argmin()), "a chunk ends inside its sizes"
        if row >= 0:
            raise DamagedError(reason, sample=row, offset=int(starts[row]))
        return data, chunk_starts, heads

    def _single(self, numbers: I64) -> tuple[U8, I64, I64]:
        """Return the records of chunks that hold one each: bytes, starts and sizes."""
        starts = self._starts[numbers]
        data, firsts, heads = self._chunks(starts, self._starts[numbers + 1] - starts)
        ends, decoded = firsts + heads[:, 1], np.ascontiguousarray(heads[:, 3])
        codes = data[firsts]
        wrong = (heads[:, 2] != 1) | ((codes == 0) & (decoded > heads[:, 1] - 2))
        row = int(np.argmax(wrong))
        try:
            if wrong.any():
                raise DamagedError("a chunk has not the one record that the footer says")
            if not codes.any():
                return data, ends - decoded, decoded
            view = data.data
            cells: list[memoryview] = []
            for first, end, code in zip(firsts.tolist(), ends.tolist(), codes.tolist(), strict=True):
                row = len(cells)
                # The sizes are passed over: the header, whose hash was compared, has that of the only record.
                size, start = protobuf.read_varint(view, first + 1, end)
                cells.append(unpack(view, min(start + size, end), end, code))
            row = int(np.argmax(np.fromiter(map(len, cells), np.int64, len(cells)) != decoded))
            if len(cells[row]) != decoded[row]:
                raise DamagedError("a chunk has another size than its header says")
        except DamagedError as error:
            error.sample = row
            raise error.at(offset=int(starts[row])) from None
        return np.frombuffer(b"".join(cells), dtype=np.uint8), starts_of(decoded)[:-1], decoded

    def _unpacked(self, starts: I64, sizes: I64) -> Ragged:
        """Return the records of one chunk."""
        data, _, [[_, size, records, _]] = self._chunks(starts, sizes)
        view = data.data
        size, code = int(size), int(data[0])
        sizes_size, first = protobuf.read_varint(view, 1, size)
        middle = min(first + sizes_size, size)
        cells = np.frombuffer(unpack(view, middle, size, code), dtype=np.uint8)
        cell_sizes = protobuf.unpack(np.frombuffer(unpack(view, first, middle, code), dtype=np.uint8), first)
        too_large = ((cell_sizes < 0) | (cell_sizes > len(cells))).any()
        if len(cell_sizes) != records or too_large or cell_sizes.sum() != len(cells):
            raise DamagedError("the sizes of a chunk's records are not those of its bytes")
        return Ragged(cells, starts_of(cell_sizes))

    def _group(self, number: int) -> Ragged | DamagedError:
        """Return the records of a chunk; an error in place of a damaged one, for the cache."""
        start, end, count = self._starts[number], self._starts[number + 1], self._counts[number]
        try:
            records = self._unpacked(np.array([start]), np.array([end - start]))
            if len(records) != count:
                raise DamagedError(f"a chunk has {len(records)} records, and the footer says {count}")
        except DamagedError as error:
            error.sample = None
            return error.at(path=self.path, offset=int(start))
        return records

    def _found(self, indices: I64, *, check: bool) -> tuple[U8, I64, I64, I64]:
        if not len(indices):
            return np.empty(0, dtype=np.uint8), indices, indices, indices
        numbers = self._numbers(indices)
        file_starts = self._starts[numbers]
        if (self._counts[numbers] == 1).all():
            try:
                return *self._single(numbers), file_starts
            except DamagedError as error:
                row, error.sample = error.sample, None
                raise error.at(path=self.path, sample=int(indices[row or 0])) from None
        distinct, where = np.unique(numbers, return_inverse=True)
        groups = self._cache.get_all(
            distinct.tolist(),
            lambda missing: [self._group(int(distinct[number])) for number in missing],
            lambda records: records.data.nbytes + records.offsets.nbytes,
        )
        rows = indices - self._firsts[numbers]
        cells: list[U8 | None] = [None] * len(indices)
        for row, (number, cell) in enumerate(zip(where.tolist(), rows.tolist(), strict=True)):
            group = groups[number]
            if isinstance(group, DataError):
                raise group.at(sample=int(indices[row]))
            cells[row] = group[cell]
        records = Ragged.from_cells(cells)
        return records.data, np.ascontiguousarray(records.starts), records.sizes, file_starts

    def _gather(self, indices: I64) -> Ragged:
        data, starts, sizes, _ = self._found(indices, check=True)
        offsets = starts_of(sizes)
        if np.array_equal(starts, offsets[:-1]):
            return Ragged(data, offsets)
        out = np.empty(offsets[-1], dtype=np.uint8)
        _native.copy_runs(data, starts, sizes, out, offsets[:-1])
        return Ragged(out, offsets)

    def _numbers(self, indices: I64) -> I64:
        """Return the numbers of the chunks that these samples lie in."""
        return np.searchsorted(self._firsts, indices, side="right") - 1

    def _runs(self, indices: I64) -> tuple[I64, I64]:
        numbers = self._numbers(indices)
        return self._starts[numbers], self._starts[numbers + 1] - self._starts[numbers]

    # A block header may lie in any record.
    _spans = Reader._spans

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        numbers = np.unique(self._numbers(indices))
        starts = self._starts[numbers]
        return Spans([self.source], starts, self._starts[numbers + 1] - starts)

    def _chunk_keys(self, fields: Sequence[str], indices: I64) -> list[ChunkKeys]:
        numbers = np.unique(self._numbers(indices))
        numbers = numbers[self._counts[numbers] > 1]
        return [(self._cache, numbers.tolist())] if len(numbers) else []

    def _layout(self) -> Layout:
        block_sizes = self._counts if len(self._counts) < self.length else None
        return dataclasses.replace(super()._layout(), block_sizes=block_sizes, chunk_keys=self._chunk_keys)

    def own_checks(self) -> tuple[str, ...]:
        return ("HighwayHash of every chunk",)

    def facts(self) -> dict[str, object]:
        return {"chunks": len(self._counts), "written_with": self.written_with}


class ArrayRecordWriter(RecordWriter):
    """Writes .array_record files.

    ``group_size``: records in a chunk; 1 is best for reading in any order. ``compression``: none, zstd,
    brotli or snappy, of each chunk; images, sound and videos are compressed already.
    """

    count_inside: ClassVar[bool] = True

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        group_size: int = 1,
        compression: str = "none",
    ) -> None:
        if group_size < 1:
            raise OptionError(f"group_size is a number from 1 on, not {group_size!r}")
        self._group, self._compression = group_size, compression
        self._pack_bytes = _packer(compression)
        super().__init__(path, schema, options)

    def _begin(self, state: dict[str, Any] | None) -> None:
        self._file = self.partial.spool("chunks")
        self._table = self.partial.spool("table")
        # Records of a chunk that is not full, as far as a checkpoint needed them.
        self._unfilled = self.partial.spool("unfilled")
        sizes, start = (state["sizes"], state["start"]) if state else ([], 0)
        offsets = starts_of(np.array(sizes, dtype=np.int64))
        data = self._unfilled.read_at(int(offsets[-1]), start)
        self._waiting_records = [bytes(data[a:b]) for a, b in itertools.pairwise(offsets)]
        if not self._file.size:
            self._frame([b""], [(0, 0)], kind=ord("s"))

    def _state(self) -> dict[str, Any]:
        start = self._unfilled.size
        self._unfilled.write(b"".join(self._waiting_records))
        return {"start": start, "sizes": [len(record) for record in self._waiting_records]}

    def _frame(self, chunks: Sequence[bytes], heads: Sequence[tuple[int, int]], kind: int = RECORDS) -> I64:
        """Write chunks, of which (records, bytes of them) are known; return where they begin."""
        cells = Ragged.from_cells(chunks)
        records, decoded = np.array(heads, dtype=np.int64).reshape(-1, 2).T.copy()
        framed, places = _native.riegeli_frame(
            cells.data,
            np.ascontiguousarray(cells.starts),
            cells.sizes,
            records,
            decoded,
            position=self._file.size,
            kind=kind,
        )
        self._file.write(framed)
        return places

    def _write_records(self, records: Ragged) -> None:
        self._waiting_records += [record.tobytes() for record in records if record is not None]
        groups = len(self._waiting_records) // self._group
        self._write_chunks(
            [self._waiting_records[n * self._group : (n + 1) * self._group] for n in range(groups)]
        )
        del self._waiting_records[: groups * self._group]

    def _write_chunks(self, groups: Sequence[list[bytes]]) -> None:
        heads = [(len(group), sum(map(len, group))) for group in groups]
        code = CODES[self._compression]
        offsets = self._frame([_body(group, self._pack_bytes, code) for group in groups], heads)
        rows = [(offset, size, count) for offset, (count, size) in zip(offsets.tolist(), heads, strict=True)]
        self._table.write(np.array(rows, dtype="<i8"))

    def _finish(self) -> str:
        if self._waiting_records:
            self._write_chunks([self._waiting_records])
            self._waiting_records = []
        chunks = self._table.size // 24
        options = f"group_size:{self._group},transpose:false,"
        options += "uncompressed" if self._compression == "none" else self._compression
        numbers = ((1, VERSION), (2, chunks), (3, self.before + self.written))
        about = b"".join(protobuf.number(*pair) for pair in numbers) + protobuf.block(4, options.encode())
        messages = [protobuf.block(1, about)]
        for first in range(0, chunks, FOOTER_CHUNKS):
            rows = min(FOOTER_CHUNKS, chunks - first)
            table = np.frombuffer(self._table.read_at(24 * rows, 24 * first), dtype="<i8").reshape(-1, 3)
            messages += [b"".join(map(protobuf.number, (1, 2, 3), row)) for row in table.tolist()]
        footer = self._frame_padded(messages)
        self._frame_padded(3 * [protobuf.number(1, footer) + protobuf.number(2, MAGIC)])
        return "chunks"

    def _frame_padded(self, messages: list[bytes]) -> int:
        """Write a chunk of these records, and a chunk of padding up to the next block; return its offset."""
        head = (len(messages), sum(map(len, messages)))
        offset = int(self._frame([_body(messages, bytes, 0)], [head])[0])
        room = -self._file.size % BLOCK_BYTES
        if room:
            # Where no header fits before the end of this block, the padding reaches to that of the next.
            room += BLOCK_BYTES - 24 if room < 40 else 0
            self._frame([bytes(room - 40)], [(0, 0)], kind=ord("p"))
        return offset


def _body(records: Sequence[bytes], pack: Callable[[bytes], bytes], code: int) -> bytes:
    sizes = pack(b"".join(map(_varint, map(len, records))))
    return bytes([code]) + protobuf.varint(len(sizes)) + sizes + pack(b"".join(records))


_varint = functools.lru_cache(maxsize=1 << 12)(protobuf.varint)


FORMAT = Format(
    name="arrayrecord",
    title="ArrayRecord",
    suffixes=(".array_record", ".arrayrecord"),
    spec="https://github.com/google/array_record",
    reader=ArrayRecordReader,
    writer=ArrayRecordWriter,
    sniff=lambda probe: probe.head.startswith(SIGNATURE),
    kinds=EVERY_KIND,
    optional=True,
    notes="the format of Grain; a hash of every chunk; fields as MessagePack, their schema beside the file",
    can=Capabilities(
        random_access=True,
        checksums="chunk",
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        compression=("zstd", "brotli", "snappy"),
        compressed="chunk",
        ecosystem=("ArrayRecord", "Grain"),
    ),
)
