"""MessagePack, a stream of values, one for each sample; also packed with gzip.

A sample is a map with text for keys: the fields. The file is one such map after the other, or a single array
of them. Values that are no maps make a dataset with the one field ``data``.

What we write is a stream of maps, laid out as codecs/msgpack.py says; ``NAME.schema.json`` beside it keeps
the schema, so that any MessagePack reader sees samples and nothing else. With gzip every MiB or so is a
member of its own. Without the schema the fields are inferred from the first records: numbers, text, bytes,
images, lists of numbers and arrays of msgpack-numpy as tensors, times as ``datetime64[ns]``, anything nested
as JSON, and what JSON cannot hold as bytes, the MessagePack itself.
"""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from .. import _native
from ..codecs.msgpack import BOOLEAN, extension_of, field_of, infer, is_sample, key_of, pack
from ..data.writer import WriteOptions
from ..errors import (
    BatchplantError,
    DamagedError,
    DecodeError,
    OptionError,
    Problem,
    SchemaError,
    check_choice,
    on_error,
)
from ..schema import EVERY_KIND, Schema
from ..schema.columns import I64, U8, Columns, Ragged
from ..storage import Source, limits, open_source
from ..storage import index as index_of
from ..storage.compressed import CHECKED, GzipSource, check_gzip, inflate, kind_of
from .base.format import Capabilities, Format
from .base.records import GivenSchema, Note, RecordReader, RecordWriter, given_schema

SPEC = "https://github.com/msgpack/msgpack/blob/master/spec.md"
PLAIN = "data"
READ_BYTES = 4 << 20
# The fields are inferred from so many records, or from fewer where those are large.
PROBED_SAMPLES, PROBED_BYTES = 1000, 16 << 20
MEMBER_BYTES = 1 << 20
# How long a stream of unknown length may be.
ENDLESS = 2**62
ENDS_EARLY = "the file ends inside of a value"


class MsgpackReader(RecordReader):
    """Reads .msgpack files.

    ``schema``: the fields (``{"label": Int(), "image": "image"}``), where they should not be inferred.
    ``index``: auto, write, memory or rebuild; where the index of the file is kept.
    """

    raw = False

    def __init__(self, path: str, *, schema: GivenSchema | None = None, index: str = "auto") -> None:
        self.path = path
        self.source = open_source(path)
        self._gzip = is_gzip(self.source)
        self._probed_records = 0
        with on_error(self.source.close, path=path):
            loaded = index_of.load(
                self.source, "msgpack", build, mode=index, check=self._makes_sense, grow=build_rest
            )
            self._offsets = loaded.arrays["offsets"]
            self._is_array = bool(loaded.facts.get("array"))
            self.length = len(self._offsets) - 1
            if self._gzip:
                self.source = GzipSource(self.source, int(loaded.facts["size"]), loaded.arrays["points"])
            self._choose(None if schema is None else given_schema(schema))

    def _makes_sense(self, loaded: index_of.Index) -> bool:
        points = {"points": "u1"} if self._gzip else {}
        return loaded.has(offsets="i8", **points) and 0 <= loaded.arrays["offsets"][-1] <= loaded.size

    def _choose(self, schema: Schema | None) -> None:
        """The schema: as given, or as it was written, or inferred."""
        note = Note.beside(self.path)
        self.foreign = note is None
        self.noted = None if note is None else note.samples
        chosen = schema or (None if note is None else note.schema)
        if chosen is not None:
            self.bare = self.foreign and self.length > 0 and not self._begins_with_map(chosen)
            if self.bare and len(chosen) != 1:
                raise SchemaError("the records are no maps, so there can be only one field")
        elif not self.length:
            raise SchemaError("there is no record to tell the fields by; give a schema")
        else:
            records = self._first_records()
            self._probed_records = len(records)
            self.bare = not all(map(is_sample, records))
            chosen = Schema({PLAIN: field_of(records)}) if self.bare else infer(records)
        self.schema = chosen

    def _begins_with_map(self, schema: Schema) -> bool:
        """True if the first record is a map of fields, and not a value such as an array of msgpack-numpy."""
        first = self.source.gather(*self._runs(np.zeros(1, dtype=np.int64)))
        info, _, _, failure = _native.msgpack_find(first.data, first.starts, first.sizes, [b"nd"])
        return failure is None and ("nd" in schema or info[0, 0] & 0xFF != BOOLEAN)

    def _first_records(self) -> list[Any]:
        limit = np.searchsorted(self._offsets[: PROBED_SAMPLES + 1], self._offsets[0] + PROBED_BYTES)
        rows = np.arange(max(1, min(PROBED_SAMPLES, self.length, int(limit))))
        starts, sizes = self._runs(rows)
        data = self.source.gather(starts, sizes)
        first_records = []
        for row in rows:
            try:
                offset, size = int(data.offsets[row]), int(sizes[row])
                first_records.append(_native.msgpack_load(data.data, offset, size, extension_of))
            except (ValueError, OverflowError) as error:
                raise DamagedError(str(error), sample=int(row), offset=int(starts[row])) from None
        return first_records

    def _runs(self, indices: I64) -> tuple[I64, I64]:
        starts = self._offsets[indices]
        return self._inside(indices, starts, self._offsets[indices + 1] - starts)

    def _placed(self, error: BatchplantError, indices: I64, positions: I64, starts: I64) -> BatchplantError:
        if self._probed_records and isinstance(error, DecodeError):
            count = self._probed_records
            error.message += (
                f" (the fields were inferred from {count} records; say what they are with schema)"
            )
        return super()._placed(error, indices, positions, starts)

    def own_checks(self) -> tuple[str, ...]:
        return (CHECKED,) if self._gzip else ()

    def _verify(self) -> Iterator[Problem]:
        if self._gzip:
            check_gzip(self.path)
        yield from super()._verify()

    def facts(self) -> dict[str, object]:
        return {
            "compressed": self._gzip,
            "records": "one array" if self._is_array else "a stream",
            "schema": "inferred" if self._probed_records else "given" if self.foreign else "beside",
        }


# -- where the records lie ---------------------------------------------------------------------------------


def build(source: Source, report: index_of.Report) -> tuple[index_of.Arrays, index_of.Facts]:
    """Scan a file: the n + 1 offsets of its records, and for gzip the points to begin unpacking at."""
    packed = is_gzip(source)

    def pieces(skip: int) -> Iterator[U8]:
        if packed:
            for piece in inflate(source, "gzip", report):
                yield piece[skip:]
                skip = max(0, skip - len(piece))
            return
        for offset in range(skip, source.size, READ_BYTES):
            yield source.view(offset, min(READ_BYTES, source.size - offset))
            report(offset)

    size, stored = (ENDLESS, source.size) if packed else (source.size, None)
    count, body = _array_head(next((piece[:5].tobytes() for piece in pieces(0) if len(piece)), b""))
    offsets = None
    # One array of all samples, or a stream whose first sample is an array: only its end tells.
    if count is not None:
        with contextlib.suppress(DamagedError):
            offsets = _offsets(pieces(body), body, size, count, stored)
    array = offsets is not None
    if offsets is None:
        offsets = _offsets(pieces(0), 0, size, None, stored)
        assert offsets is not None
    arrays: index_of.Arrays = {"offsets": offsets}
    facts: index_of.Facts = {"array": array, "size": int(offsets[-1])}
    if packed:
        # Not closed, for that would close the source too.
        arrays["points"] = GzipSource(source, facts["size"]).points()
    return arrays, facts


def build_rest(
    source: Source, report: index_of.Report, before: index_of.Index, offset: int
) -> tuple[index_of.Arrays, index_of.Facts]:
    """The same for a stream that goes on at ``at``."""
    if before.facts["array"] or is_gzip(source):
        return build(source, report)

    def pieces() -> Iterator[U8]:
        for start in range(offset, source.size, READ_BYTES):
            yield source.view(start, min(READ_BYTES, source.size - start))
            report(start)

    added = _offsets(pieces(), offset, source.size, None, None)
    assert added is not None
    offsets = np.concatenate([before.arrays["offsets"][:-1], added])
    return {"offsets": offsets}, {"array": False, "size": int(offsets[-1])}


def is_gzip(source: Source) -> bool:
    return kind_of(source.view(0, min(16, source.size)).tobytes()) == "gzip"


def _array_head(head: bytes) -> tuple[int | None, int]:
    """Number of values an array has that begins like this, and where they begin; None for no array."""
    if head and 0x90 <= head[0] <= 0x9F:
        return head[0] & 15, 1
    width = {0xDC: 2, 0xDD: 4}.get(head[0] if head else 0)
    if width is None or len(head) <= width:
        return None, 0
    return int.from_bytes(head[1 : 1 + width], "big"), 1 + width


def _offsets(
    pieces: Iterable[U8], start: int, size: int, count: int | None, stored: int | None
) -> I64 | None:
    """The offsets of the values in a stream that begins at ``start``; None unless there are ``count``.

    ``stored``: the bytes of the file where the stream is packed.
    """
    batches: list[I64] = []
    total = todo = skip = 0
    offset, carry = start, np.empty(0, dtype=np.uint8)
    limit = ENDLESS if count is None else count
    for piece in pieces:
        piece = np.concatenate([carry, piece]) if len(carry) else piece
        starts, used, todo, skip, fault = _native.msgpack_scan(
            piece, offset, size - offset, limit - total, todo, skip
        )
        batches.append(starts)
        total += len(starts)
        if stored is not None:
            limits.check_rows(total, stored)
        offset, carry = offset + used, piece[used:]
        if fault:
            reason = ENDS_EARLY if fault == 1 else f"the byte 0x{piece[used]:02x} begins no value"
            raise DamagedError(reason, sample=total - (todo > 0), offset=offset)
        if total == count and todo == skip == 0 and len(carry):
            return None
    if todo or skip or len(carry):
        raise DamagedError(ENDS_EARLY, sample=total - (todo > 0 or skip > 0), offset=offset)
    return np.concatenate([*batches, np.array([offset])]) if count in (None, total) else None


# -- writing -----------------------------------------------------------------------------------------------


class MsgpackWriter(RecordWriter):
    """Writes .msgpack files, packed where the name ends with .gz.

    ``numpy``: how arrays are written, ``ext`` (our extension) or ``msgpack-numpy`` (that package's maps).
    ``level``: how hard gzip tries, 0 to 9.
    """

    raw = False
    appends = True

    def __init__(
        self, path: str, schema: Schema, options: WriteOptions, *, numpy: str = "ext", level: int = 6
    ) -> None:
        check_choice("numpy", numpy, ("ext", "msgpack-numpy"))
        if not 0 <= level <= 9:
            raise OptionError(f"level is 0 to 9, not {level}")
        for name in schema:
            key_of(name)
        self._numpy = numpy == "msgpack-numpy"
        self._level = level
        self._gzip = path.lower().endswith(".gz")
        self._waiting_bytes: list[U8] = []
        super().__init__(path, schema, options)

    def _begin(self, state: dict[str, Any] | None) -> None:
        if self.base is not None:
            assert isinstance(self.base, MsgpackReader)
            if self.base._is_array:
                raise self.cannot_append("it is one array, which says at its begin how many values it has")
            if self.base.bare:
                raise self.cannot_append("its records are no maps")
            self._gzip = self.base._gzip
        self._file = self.partial.spool("records")

    def _pack(self, columns: Columns) -> Ragged:
        return pack(self.schema, columns, numpy=self._numpy)

    def _write_records(self, records: Ragged) -> None:
        if not self._gzip:
            self._file.write(records.data)
            return
        self._waiting_bytes.append(records.data)
        if sum(map(len, self._waiting_bytes)) >= MEMBER_BYTES:
            self._write_member()

    def _write_member(self) -> None:
        """Compress the buffered bytes as a gzip member of their own, so that writing can be resumed."""
        if self._waiting_bytes:
            member, self._waiting_bytes = np.concatenate(self._waiting_bytes), []
            self._file.write(gzip.compress(member.data, self._level, mtime=0))

    def _state(self) -> dict[str, Any]:
        self._write_member()
        return {}

    def _finish(self) -> str:
        self._write_member()
        if self._gzip and not self._file.size:
            self._file.write(gzip.compress(b"", mtime=0))
        return "records"


FORMAT = Format(
    name="msgpack",
    title="MessagePack",
    suffixes=(".msgpack", ".mpk", ".msgpack.gz", ".mpk.gz"),
    spec=SPEC,
    reader=MsgpackReader,
    writer=MsgpackWriter,
    kinds=EVERY_KIND,
    optional=True,
    notes="streams of maps, or one array of them; arrays also by msgpack-numpy; random access into gzip",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        compression=("gzip",),
        compressed="file",
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        ecosystem=("msgpack", "libraries of most languages"),
    ),
)
