"""Files of text whose rows are samples: what CSV and JSON share.

One pass over a file finds where its rows begin, which of them are bad, and what their cells could be; the
index remembers that. A row that is asked for is parsed where it lies. GZIP files are read from seek points;
Zstandard files, and text that is no UTF-8, are unpacked or recoded once. The schema stands in
``NAME.schema.json`` where we wrote the file; else the fields are what the pass over all rows says.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gzip
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from ...codecs import text
from ...data.layout import Layout
from ...data.reader import Reader
from ...data.writer import WriteOptions, Writer
from ...errors import (
    BatchplantError,
    DamagedError,
    FieldNameError,
    OptionError,
    Problem,
    SchemaError,
    no_such,
    on_error,
)
from ...schema import Audio, Field, Image, Schema, Text, Video
from ...schema.columns import I64, U8, Columns, Ragged
from ...storage import MappedSource, RemoteSource, Source, compressed, index, limits, open_source
from ...storage.compressed import (
    CachedSource,
    GzipSource,
    collect,
    inflate,
    is_zstd,
    kind_of,
    unpack,
    zstd_compress,
)
from ...storage.spans import Spans, concat_spans
from .manifest import Manifest
from .records import SCHEMA_SIDE_CAR, GivenSchema, Note, given_schema, note_of

__all__ = ["TextReader", "TextWriter"]

MEMBER_BYTES = 1 << 20
BLOCK_BYTES = 8 << 20
BOM = b"\xef\xbb\xbf"
# What native/text/text.hpp calls a reason.
REASONS = {
    1: f"the bytes are no UTF-8; {text.ENCODING_HINT}",
    3: "a quote is never closed",
    4: "something stands between a closing quote and the next field",
    5: "this is no JSON",
    6: "it ends inside of a value",
    7: "something stands behind the value",
    8: "a control character in a string",
    9: "an escape that stands for no character",
    10: "values are nested too deep",
}
BAD_ROWS = ("raise", "skip")
# Rows that are looked at for paths, the longest path, and rows of which paths are read at once.
PROBED_ROWS, MAX_PATH_BYTES, NAMED_ROWS = 8, 4096, 1 << 16
SCAN_BLOCK_BYTES = 4 << 20
# Rows are counted when so many bytes were unpacked, or as many as the limit allows, and twice as many, and so
# on.
FIRST_COUNT_BYTES = 64 << 20


class Scanner(Protocol):
    """Common part of the native text scanners."""

    @property
    def starts(self) -> I64: ...

    def feed(self, piece: U8, base: int, final: bool) -> int: ...


class ScanEndsError(Exception):
    """Raised by a scanner that needs no more of the file."""


class Content:
    """The unpacked bytes of a file, for a pass over them in blocks."""

    def __init__(
        self, source: Source, packed: bool, report: index.Report, block_bytes: int = SCAN_BLOCK_BYTES
    ) -> None:
        self._source = source
        self._packed = packed
        self._report = report
        self._block_bytes = block_bytes
        # Known after a pass.
        self.size = 0

    def pieces(self) -> Iterator[U8]:
        if self._packed:
            yield from inflate(self._source, "gzip", self._report)
            return
        for offset in range(0, self._source.size, self._block_bytes):
            yield self._source.view(offset, min(self._block_bytes, self._source.size - offset))

    def head(self, size: int) -> U8:
        """The first bytes, at least so many unless there are fewer."""
        if not self._packed:
            return self._source.view(0, min(size, self._source.size))
        head: list[U8] = [np.empty(0, dtype=np.uint8)]
        for piece in self.pieces():
            head.append(piece)
            if sum(map(len, head)) >= size:
                break
        return np.concatenate(head)

    def before(self, offset: int) -> bytes:
        """The byte before a place of a file that is not packed."""
        return self._source.view(offset - 1, 1).tobytes()

    def scan(self, scanner: Scanner, start: int) -> None:
        """Hand everything from ``start`` on to a scanner."""
        self.size = 0
        (self._scan_packed if self._packed else self._scan_plain)(scanner, start)

    def scan_again(self, scanner: Scanner, start: int) -> None:
        """Hand the bytes to a second scanner, until it raises ScanEndsError."""
        size = self.size
        try:
            self.scan(scanner, start)
        except ScanEndsError:
            pass
        finally:
            self.size = size

    def _scan_plain(self, scanner: Scanner, offset: int) -> None:
        self.size = self._source.size
        size = self._block_bytes
        while offset < self.size:
            piece = self._source.view(offset, min(size, self.size - offset))
            final = offset + len(piece) == self.size
            used = scanner.feed(piece, offset, final)
            offset += used
            self._report(offset)
            if final:
                return
            # A long row is not looked at over and over again.
            size = max(self._block_bytes, 2 * (len(piece) - used))
        scanner.feed(np.empty(0, dtype=np.uint8), offset, True)

    def _scan_packed(self, scanner: Scanner, start: int) -> None:
        offset, skip, waiting, have = start, start, [np.empty(0, dtype=np.uint8)], 0
        stored, next_count = self._source.size, min(FIRST_COUNT_BYTES, limits.allowed(self._source.size))
        for piece in self.pieces():
            self.size += len(piece)
            piece, skip = piece[skip:], max(0, skip - len(piece))
            waiting.append(piece)
            have += len(piece)
            # A long row is not looked at over and over again.
            if have <= len(waiting[0]) and len(waiting[0]) + have <= limits.allowed(stored):
                continue
            data = np.concatenate(waiting)
            used = scanner.feed(data, offset, False)
            if len(data) - used > limits.allowed(stored):
                raise DamagedError(limits.too_large("a row", None, stored), offset=offset + used)
            offset, waiting, have = offset + used, [data[used:]], 0
            if self.size >= next_count:
                next_count = 2 * self.size
                limits.check_rows(len(scanner.starts), stored)
        scanner.feed(np.concatenate(waiting), offset, True)


def joined(first: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    """Merge the statistics of a JSON key in the first record with those of the others."""
    dims, later_dims = first["dims"] or later["dims"], later["dims"] or first["dims"]
    uneven = dims[1:] != later_dims[1:]
    return {
        "name": first["name"], "classes": first["classes"] | later["classes"],
        "records": first["records"] + later["records"], "elements": first["elements"] | later["elements"],
        "dims": [-1, *dims[1:]] if dims[:1] != later_dims[:1] else dims,
        "irregular": first["irregular"] or later["irregular"] or uneven,
        "empty": first["empty"] or later["empty"],
    }  # fmt: skip


class TextReader(Reader):
    """One row of a file for each sample. A subclass calls :meth:`_load` and :meth:`_choose`."""

    source: Source
    note: Note | None
    # That of the file, where it is not UTF-8.
    encoding: str | None
    # How the schema was found: given, beside or inferred.
    _origin: str
    own_spans = False

    # -- what a format implements ----------------------------------------------------------------------

    def _scan(self, content: Content) -> tuple[index.Arrays, index.Facts]:
        """Pass over the file: arrays ``starts`` and ``bad`` (rows of native/bind/text.cpp), and facts."""
        raise NotImplementedError

    def _scan_rest(
        self, content: Content, scanned: index.Index, offset: int
    ) -> tuple[index.Arrays, index.Facts] | None:
        """The same of the rows from ``at`` on, with the facts of all; None where only a whole pass tells."""
        return None

    def _inferred(self, facts: index.Facts) -> dict[str, Field]:
        """The fields that the facts of a scan tell of."""
        raise NotImplementedError

    def _cells(self, fields: Sequence[str], data: U8, starts: I64, sizes: I64) -> Columns:
        """The cells of these fields in these rows of data."""
        raise NotImplementedError

    # -- what it gets ----------------------------------------------------------------------------------

    def _load(
        self, path: str, kind: str, mode: str, bad_rows: str, encoding: str | None, version: int = 1
    ) -> index.Facts:
        """Open the file and scan it, or take what an earlier scan found."""
        if bad_rows not in BAD_ROWS:
            raise OptionError(f"bad_rows is raise or skip, not {bad_rows!r}")
        stated_encoding = text.normalize_encoding(encoding)
        self.path = path
        self.source = packed = open_source(path)
        with on_error(self.source.close, path=path):
            head = packed.view(0, min(16, packed.size)).tobytes()
            gzipped = kind_of(head) == "gzip"
            self.compression = "gzip" if gzipped else "zstd" if is_zstd(head) else None
            if self.compression == "zstd":
                self.source = unpack(packed, "zstd")
            stored = Content(packed if gzipped else self.source, gzipped, lambda done: None)
            self.encoding = stated_encoding or text.marked(stored.head(4).tobytes())
            if self.encoding is not None:
                self.source = collect(path, text.to_utf8(stored.pieces(), self.encoding), packed.size)
                gzipped = False

            def build(source: Source, report: index.Report) -> tuple[index.Arrays, index.Facts]:
                content = Content(source if gzipped else self.source, gzipped, report)
                arrays, facts = self._scan(content)
                facts["size"] = content.size
                if gzipped:
                    # Not closed, for that would close the source too.
                    arrays["points"] = GzipSource(source, content.size).points()
                return arrays, facts

            index_kind = kind if stated_encoding is None else f"{kind} {stated_encoding}"

            def build_rest(
                source: Source, report: index.Report, scanned: index.Index, offset: int
            ) -> tuple[index.Arrays, index.Facts]:
                plain = self.compression is None and self.encoding is None
                scanned_rest = (
                    self._scan_rest(Content(source, False, report), scanned, offset) if plain else None
                )
                if scanned_rest is None or len(scanned.arrays["bad"]) or len(scanned_rest[0]["bad"]):
                    # Nobody knows which line it is.
                    return build(source, report)
                arrays, facts = scanned_rest
                starts = np.concatenate([scanned.arrays["starts"], arrays["starts"]])
                return {**arrays, "starts": starts}, {**facts, "size": source.size}

            index_found = index.load(
                packed,
                index_kind,
                build,
                mode=mode,
                version=version,
                check=self._makes_sense,
                grow=build_rest,
            )
            self._accept(index_found)
            if gzipped:
                size = int(index_found.facts["size"])
                self.source = CachedSource(GzipSource(packed, size, index_found.arrays.get("points")))
            if len(self._bad) and bad_rows == "raise":
                raise self._bad_row(0)
            return index_found.facts

    def _accept(self, cached: index.Index) -> None:
        """Take what a scan found."""
        self._starts = cached.arrays["starts"]
        self._bad = cached.arrays["bad"].reshape(-1, 5)
        self.length = len(self._starts)

    def _makes_sense(self, cached: index.Index) -> bool:
        """True if a side-car says what a scan says; an error of notes is a no, too."""
        self._accept(cached)
        self._inferred(cached.facts)
        points = {"points": "u1"} if "points" in cached.arrays else {}
        return cached.has(starts="i8", bad="i8", **points) and cached.size >= 0

    def _bad_row(self, number: int) -> DamagedError:
        offset, line, column, reason, extra = self._bad[number].tolist()
        message = REASONS.get(reason) or f"the row has {extra} fields, and the header has {self._width}"
        total = f" ({len(self._bad)} bad rows in all)" if len(self._bad) > 1 else ""
        return DamagedError(
            f"line {line}, column {column}: {message}{total}; bad_rows='skip' leaves such rows out",
            path=self.path,
            offset=offset,
        )

    # Where a line begins, and its number.
    _line: tuple[int, int] = (0, 1)
    # How many fields a row should have, where that is fixed.
    _width: int = 0
    # The columns of paths, and the fields as their text stands in the rows.
    _manifests: dict[str, Manifest] = {}  # noqa: RUF012
    _stored: Schema

    def _choose(
        self, facts: index.Facts, schema: GivenSchema | str | None, types: GivenSchema | str | None
    ) -> None:
        """The schema: given, or as it was written, or as the scan found it; ``types`` in place of some."""
        self._origin = "given" if schema is not None else "beside" if self.note is not None else "inferred"
        if schema is not None:
            fields = dict(given_schema(schema))
        else:
            fields = dict(self.note.schema) if self.note is not None else self._inferred(facts)
        if types is not None:
            for name, field in given_schema(types).items():
                if name not in fields:
                    raise FieldNameError(no_such("field", name, fields) + " (types)")
                # A bare kind says nothing about missing values; the scan did.
                keeps = fields[name].optional or self._is_missing_as(facts, name, field)
                fields[name] = dataclasses.replace(field, optional=True) if keeps else field
        if not fields:
            raise SchemaError("there is no row to tell the fields by; give a schema")
        for name, field in fields.items():
            reason = text.refuses(field, self.format)
            if reason is not None:
                raise SchemaError(reason, field=name)
        self._stored = self.schema = Schema(fields)

    def _open_files(self, outside: bool) -> None:
        """Take the paths in columns of images, sounds and videos for those of files."""
        self._manifests = {}
        for name, field in self.schema.items():
            if isinstance(field, Image | Audio | Video) and self._has_paths(name, field):
                self._manifests[name] = Manifest(
                    self.path, name, functools.partial(self._names_in, name), outside=outside
                )
        kinds = dict(self.schema)
        for name, manifest in self._manifests.items():
            bare = dataclasses.replace(kinds[name], optional=False) == Image()
            inferred = manifest.infer_image() if bare else None
            kinds[name] = dataclasses.replace(inferred or kinds[name], optional=kinds[name].optional)
        self.schema = Schema(kinds)

    def _has_paths(self, name: str, field: Field) -> bool:
        """True if the cells of a column are paths: base64 has no point, and a file's name has one."""
        stored = self._stored
        self._stored = Schema({**stored, name: Text(optional=field.optional)})
        # What is wrong with a row is told to whoever reads it.
        with contextlib.suppress(BatchplantError):
            for row in range(min(PROBED_ROWS, self.length)):
                cell = self._rows_at(np.array([row]), [name])[name][0]
                if cell is not None:
                    if b"." in cell[:MAX_PATH_BYTES].tobytes():
                        return True
                    break
        self._stored = stored
        return False

    def _names_in(self, name: str) -> Ragged:
        parts = [
            self._rows_at(np.arange(first, min(first + NAMED_ROWS, self.length)), [name])[name]
            for first in range(0, self.length, NAMED_ROWS)
        ]
        return Ragged.concat([part for part in parts if isinstance(part, Ragged)])

    def _is_missing_as(self, facts: index.Facts, name: str, field: Field) -> bool:
        """True if cells are missing where a column is read as this field, though not as what was inferred."""
        return False

    def with_schema(self, schema: Schema) -> Reader | None:
        if self._origin != "inferred":
            return None
        args, options = self._init_args
        return type(self)(*args, **{**options, "schema": schema, "types": None})

    def _runs(self, indices: I64) -> tuple[I64, I64]:
        starts = self._starts[indices]
        following = indices + 1
        last = following == self.length
        following[last] = 0
        sizes = np.where(last, self.source.size, self._starts[following]) - starts
        row = self.source.outside(starts, sizes)
        if row is not None:
            raise DamagedError(
                "the row does not lie in the file", path=self.path, sample=indices[row], offset=starts[row]
            )
        return starts, sizes

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        inside = [name for name in fields if name not in self._manifests]
        rows = self._rows_at(indices, inside) if inside else Columns()
        if len(inside) == len(fields):
            return rows
        return Columns(
            (name, rows[name] if name in rows else self._manifests[name].read(indices)) for name in fields
        )

    def _rows_at(self, indices: I64, fields: Sequence[str]) -> Columns:
        """The cells as they stand in the rows."""
        starts, sizes = self._runs(indices)
        if isinstance(self.source, MappedSource):
            data, offsets = self.source.placed(starts, sizes)
            if data is self.source.data:
                self.source.request(starts, sizes)
        else:
            rows = self.source.gather(starts, sizes)
            data, offsets = rows.data, rows.starts
        try:
            return self._cells(fields, data, np.ascontiguousarray(offsets), np.ascontiguousarray(sizes))
        except BatchplantError as error:
            row, error.sample = error.sample, None
            if row is not None and 0 <= row < len(indices):
                error.sample = int(indices[row])
                inside = 0 if error.offset is None else error.offset - int(offsets[row])
                error.offset = int(starts[row]) + inside
                error.message = "line {}, column {}: {}".format(*self._place(error.offset), error.message)
            raise error.at(path=self.path) from None

    def _place(self, offset: int) -> tuple[int, int]:
        """Line and column of a byte, both from 1; counted from the last one that was asked for."""
        begin, line = self._line if self._line[0] <= offset else (0, 1)
        for start in range(begin, offset, SCAN_BLOCK_BYTES):
            ends = np.flatnonzero(self.source.view(start, min(SCAN_BLOCK_BYTES, offset - start)) == ord("\n"))
            line += len(ends)
            begin = start + int(ends[-1]) + 1 if len(ends) else begin
        self._line = begin, line
        before = self.source.view(begin, offset - begin)
        return line, 1 + int(np.count_nonzero((before & 0xC0) != 0x80))

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        if not isinstance(self.source, MappedSource | RemoteSource):
            return None
        named = [self._manifests[name].ahead(indices) for name in fields if name in self._manifests]
        parts = [spans for spans in named if spans is not None]
        if len(parts) < len(named):
            return None
        if len(named) < len(fields):
            parts.append(Spans([self.source], *self._runs(indices)))
        return concat_spans(parts)

    def _spans(self, field: str, indices: I64) -> Spans | None:
        return self._manifests[field].spans(indices) if field in self._manifests else None

    def where(self, sample: int) -> str:
        files = (manifest.path_of(sample) for manifest in self._manifests.values())
        return next((path for path in files if path is not None), self.path)

    def _layout(self) -> Layout:
        return Layout(blocks=lambda: self._starts // BLOCK_BYTES)

    @property
    def skipped(self) -> list[Problem]:
        """The rows that were left out."""
        return [Problem.of(self._bad_row(number)) for number in range(len(self._bad))]

    def facts(self) -> dict[str, object]:
        facts: dict[str, object] = {"compression": self.compression or "none", "schema": self._origin}
        if self.encoding is not None:
            facts["encoding"] = self.encoding
        return {**facts, "bad rows left out": len(self._bad)} if len(self._bad) else facts

    def own_checks(self) -> tuple[str, ...]:
        return (compressed.CHECKED,) if self.compression == "gzip" else ()

    def _verify(self) -> Iterator[Problem]:
        """A cut between two rows leaves a sound file; only the side-car knows."""
        if self.compression == "gzip":
            compressed.check_gzip(self.path)
        if self.note is None:
            return
        if self.note.samples not in (None, self.length):
            yield Problem(f"there are {self.length} samples, and {self.note.samples} were written", self.path)
        end = self.source.size
        if end and self.source.view(end - 1, 1)[0] != ord("\n"):
            yield Problem("the last line has no end", self.path, offset=end)

    def close(self) -> None:
        self.source.close()
        for manifest in self._manifests.values():
            manifest.close()


class TextWriter(Writer):
    """Writes rows, packed where the name ends with .gz or .zst. A subclass implements ``_rows``."""

    side_cars: ClassVar[tuple[str, ...]] = (SCHEMA_SIDE_CAR,)
    appends: ClassVar[bool] = True

    def __init__(self, path: str, schema: Schema, options: WriteOptions, *, level: int | None) -> None:
        suffix = path.lower().rpartition(".")[2]
        self._compress: Callable[[U8], bytes] | None = None
        if suffix == "gz":
            if not 0 <= (6 if level is None else level) <= 9:
                raise OptionError(f"level is 0 to 9 for gzip, not {level}")
            self._compress = lambda data: gzip.compress(data.data, 6 if level is None else level, mtime=0)
        elif suffix == "zst":
            self._compress = zstd_compress(level)
        self._waiting_bytes: list[U8] = []
        super().__init__(path, schema, options)

    def _rows(self, columns: Columns) -> U8:
        """The text of these samples."""
        raise NotImplementedError

    def _begin(self, state: dict[str, Any] | None) -> None:
        self._file = self.partial.spool("text")
        if self.base is not None:
            assert isinstance(self.base, TextReader)
            self._check_base(self.base)
        if state is None:
            head = self._head() if self.base is None else self._joint(self.base)
            self._put(np.frombuffer(head, dtype=np.uint8))

    def _check_base(self, base: TextReader) -> None:
        """True if rows can be added to a file, and how it writes them."""
        if base.encoding is not None:
            raise self.cannot_append(f"it is {base.encoding}, and what we write is UTF-8")
        if (base.compression is None) != (self._compress is None):
            raise self.cannot_append("its name does not say what it is packed with")

    def _joint(self, base: TextReader) -> bytes:
        """Return the separator between existing rows and new ones."""
        size = base.source.size
        return b"\n" if size and base.source.view(size - 1, 1)[0] != ord("\n") else b""

    def _head(self) -> bytes:
        """Return the bytes before the rows."""
        return b""

    def _tail(self) -> bytes:
        """Return the bytes after the rows."""
        return b""

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        return text.unfit(self.schema, columns)

    def _encode(self, first: int, columns: Columns, rows: Any = None) -> Any:
        return super()._encode(first, text.with_usual_nans(self.schema, columns), rows)

    def _write(self, columns: Columns) -> None:
        self._put(self._rows(columns))

    def _put(self, data: U8) -> None:
        if self._compress is None:
            self._file.write(data)
            return
        self._waiting_bytes.append(data)
        if sum(map(len, self._waiting_bytes)) >= MEMBER_BYTES:
            self._write_member()

    def _write_member(self, min_bytes: int = 1) -> None:
        """Compress the buffered bytes as a member of their own, so that writing can resume without state."""
        if self._compress is not None and sum(map(len, self._waiting_bytes)) >= min_bytes:
            data, self._waiting_bytes = np.concatenate(self._waiting_bytes), []
            self._file.write(self._compress(data))

    def _state(self) -> dict[str, Any]:
        self._write_member()
        return {}

    def _finish(self) -> str:
        self._put(np.frombuffer(self._tail(), dtype=np.uint8))
        # A packed file of no bytes is none.
        self._write_member(0 if not self._file.size else 1)
        return "text"

    def _beside(self) -> list[tuple[str, str]]:
        (self.partial.folder / "schema.json").write_bytes(note_of(self.schema, self.before + self.written))
        return [("schema.json", SCHEMA_SIDE_CAR)]

    @classmethod
    def refuses(cls, field: Field) -> str | None:
        return text.refuses(field, cls.format)

    def remarks(self) -> list[str]:
        return text.remarks(self.schema, self.format)
