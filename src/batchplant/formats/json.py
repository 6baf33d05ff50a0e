"""JSON Lines, and JSON files that are an array, or a stream of values.

A record is an object whose keys are the fields; records that are no objects have one field, ``data``. Besides
what RFC 8259 has, the numbers NaN, Infinity and -Infinity are read and written, as Python does. Half of a
surrogate pair (``\\ud800``) is U+FFFD in names and Text; in Json it stays what it is. How each kind is
written stands in codecs/text.py.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import _native
from ..codecs import text
from ..codecs.cells import encode_samples
from ..codecs.nested import json_text
from ..data.writer import WriteOptions
from ..errors import (
    BatchplantError,
    DamagedError,
    DecodeError,
    EncodeError,
    OptionError,
    check_choice,
    on_error,
)
from ..schema import EVERY_KIND, Bool, Decimal, Duration, Field, Float, Int, Json, Schema, Tensor, Text, Time
from ..schema.columns import I64, U8, Columns
from ..storage import check_regular, index, put_file, side_car
from ..storage.platform import lock
from .base.format import Capabilities, Format
from .base.records import SCHEMA_SIDE_CAR, GivenSchema, Note, given_schema, note_of
from .base.text import BOM, Content, TextReader, TextWriter, joined

__all__ = ["FORMAT", "JsonReader", "JsonWriter", "append"]

SPEC = "https://jsonlines.org"
PLAIN = "data"
LAYOUTS = ("lines", "stream", "array")
LINES, STREAM, ARRAY = range(3)
# The bytes at the end of a file in which that of its array is looked for.
ENDING = 1 << 12
# A first line that is longer is taken for a stream of values.
FIRST_LINE = 1 << 20
SEVERAL = 7
# What native/text/json.hpp calls the kinds of values.
ABSENT, NULL, TRUE, FALSE, NUMBER, STRING, ESCAPED, LIST, OBJECT = range(9)
SHOWN = ("nothing", "null", "true", "false", "a number", "a string", "a string", "a list", "an object")


class JsonReader(TextReader):
    """Reads .jsonl and .json files, also packed (.gz, .zst).

    ``schema``: the fields to read; ``types``: those of some keys, in place of what the values look like.
    ``layout``: lines, array (one, of all records) or stream (values one after another), where the content
    does not tell. ``encoding``: that of the text, where it is not UTF-8 and has no byte order mark.
    ``bad_rows``: raise, or skip records that cannot be read. ``outside``: whether paths of images may lead
    out of the folder of the file. ``index``: auto, write, memory or rebuild; where the index is kept.
    """

    def __init__(
        self,
        path: str,
        *,
        schema: GivenSchema | str | None = None,
        types: GivenSchema | str | None = None,
        layout: str | None = None,
        encoding: str | None = None,
        bad_rows: str = "raise",
        outside: bool = False,
        index: str = "auto",
    ) -> None:
        if layout is not None:
            check_choice("layout", layout, LAYOUTS)
        self._given = layout
        self.path = path
        self.note = Note.beside(path)
        facts = self._load(path, f"json {layout}", index, bad_rows, encoding, version=2)
        with on_error(self.close, path=path):
            self._choose(facts, schema, types)
            if self.bare and len(self.schema) != 1:
                raise DamagedError("the records are not all objects, so there can be only one field")
            self._open_files(outside)

    # -- opening ---------------------------------------------------------------------------------------

    def _accept(self, cached: index.Index) -> None:
        super()._accept(cached)
        facts = cached.facts
        self.layout = LAYOUTS[int(facts["layout"])]
        self._left_out = [name for name in facts["names"] if not _is_name(name)]
        # Objects have keys; what is left of the file is no table, and each record is a value.
        self.bare = self.length > 0 and bool(facts["objects"] < self.length or facts["too_many"])

    def _scan(self, content: Content) -> tuple[index.Arrays, index.Facts]:
        head = content.head(FIRST_LINE).tobytes()
        start = len(BOM) if head.startswith(BOM) else 0
        layout = self._likely(head[start:])
        scanner = _native.JsonScanner(layout)
        content.scan(scanner, start)
        if scanner.broken:
            offset, line, column, reason, _ = scanner.bad[-1].tolist()
            if reason == SEVERAL and self._given is None:
                # The first record was an array itself.
                layout = _first_line(head[start:])
                scanner = _native.JsonScanner(layout)
                content.size = 0
                content.scan(scanner, start)
            else:
                message = "the array is never closed" if reason == 6 else "this is no JSON array"
                raise DamagedError(f"line {line}, column {column}: {message}", offset=offset)
        keys = [_facts(*key) for key in scanner.keys]
        facts = {
            "layout": layout, "objects": scanner.objects, "too_many": scanner.too_many,
            "names": [key["name"] for key in keys], "keys": keys, "bare": _facts(*scanner.bare),
        }  # fmt: skip
        return {"starts": scanner.starts, "bad": scanner.bad.reshape(-1)}, facts

    def _scan_rest(
        self, content: Content, scanned: index.Index, offset: int
    ) -> tuple[index.Arrays, index.Facts] | None:
        facts = scanned.facts
        if facts["layout"] != LINES or content.before(offset) != b"\n":
            return None
        scanner = _native.JsonScanner(LINES)
        content.scan(scanner, offset)
        if scanner.too_many or facts["too_many"]:
            return None
        keys = {key["name"]: key for key in facts["keys"]}
        for key in (_facts(*key_facts) for key_facts in scanner.keys):
            keys[key["name"]] = joined(keys[key["name"]], key) if key["name"] in keys else key
        return {"starts": scanner.starts, "bad": scanner.bad.reshape(-1)}, {
            **facts, "objects": facts["objects"] + scanner.objects, "names": list(keys),
            "keys": list(keys.values()), "bare": joined(facts["bare"], _facts(*scanner.bare)),
        }  # fmt: skip

    def _likely(self, head: bytes) -> int:
        if self._given is not None:
            return LAYOUTS.index(self._given)
        stem = self.path.lower().removesuffix(".gz").removesuffix(".zst")
        if stem.endswith((".jsonl", ".ndjson")):
            return LINES
        return ARRAY if head.lstrip()[:1] == b"[" else _first_line(head)

    def _inferred(self, facts: index.Facts) -> dict[str, Field]:
        if self.bare:
            sound = not facts["objects"] and not facts["too_many"]
            return {PLAIN: _field(facts["bare"], self.length) if sound else Json()}
        return {key["name"]: _field(key, self.length) for key in facts["keys"] if _is_name(key["name"])}

    # -- reading ---------------------------------------------------------------------------------------

    def _cells(self, fields: Sequence[str], data: U8, starts: I64, sizes: I64) -> Columns:
        keys = None if self.bare else [name.encode(errors="surrogatepass") for name in fields]
        kind, start, size, failure = _native.json_find(data, starts, sizes, keys)
        if failure is not None:
            raise DamagedError(failure[2], sample=failure[0], offset=failure[1])
        columns = Columns()
        for number, name in enumerate(fields):
            field = self._stored[name]
            try:
                cells = _texts(field, data, kind[number], start[number], size[number], self.note is None)
                columns[name] = text.column(field, cells)
            except BatchplantError as error:
                row = error.sample
                offset = None if row is None or kind[number][row] == ABSENT else start[number][row]
                raise error.at(field=name, offset=offset) from None
        return columns

    def facts(self) -> dict[str, object]:
        facts = {**super().facts(), "layout": self.layout}
        return {**facts, "keys left out": self._left_out} if self._left_out else facts


def _first_line(head: bytes) -> int:
    """Lines, where the first one is a whole value; else values that go over several."""
    line, newline, _ = head.lstrip().partition(b"\n")
    if not newline:
        return STREAM
    data = np.frombuffer(line, dtype=np.uint8)
    is_complete = _native.json_check(data, np.zeros(1, dtype=np.int64), np.array([len(data)]))[0] == 0
    return LINES if is_complete else STREAM


def _is_name(name: str) -> bool:
    return bool(name) and "\0" not in name


def _facts(
    name: bytes, classes: int, records: int, elements: int, dims: list[int], irregular: bool, empty: bool
) -> dict[str, Any]:
    """Return the statistics of a key, for the index."""
    return {
        "name": name.decode(), "classes": classes, "records": records, "elements": elements, "dims": dims,
        "irregular": irregular, "empty": empty,
    }  # fmt: skip


def _field(key: dict[str, Any], length: int) -> Field:
    classes = int(key["classes"])
    optional = bool(classes & text.MISSING) or (bool(key["name"]) and key["records"] < length)
    classes &= ~text.MISSING
    field: Field = Json()
    if classes == text.QUOTED:
        field = Text()
    elif classes == text.ARRAY and not key["irregular"] and key["dims"]:
        number = text.field_of(int(key["elements"]))
        if number is not None:
            first, *inner_dims = key["dims"]
            shape = (None if first < 0 or key["empty"] else first, *inner_dims)
            field = Tensor(getattr(number, "dtype", "bool"), shape)
    else:
        field = text.field_of(classes) or field
    kind: Any = type(field)
    described = {**field.__dict__, "optional": optional}
    return kind(**described)


def _texts(field: Field, data: U8, kind: U8, start: I64, size: I64, foreign: bool) -> text.Texts:
    """The text of values, where they are of the field's kind."""
    missing = kind == ABSENT
    # In a Json field a null is a value, unless others wrote it and some are missing.
    if not isinstance(field, Json) or (foreign and field.optional):
        missing |= kind == NULL
    if isinstance(field, Json):
        quoted = ((kind == STRING) | (kind == ESCAPED)).astype(np.int64)
        return text.Texts(data, start - quoted, np.where(missing, -1, size + 2 * quoted))
    allowed = np.zeros(len(SHOWN), dtype=np.bool_)
    allowed[list(_kinds(field))] = True
    fits = missing | allowed[kind]
    if not fits.all():
        row = int(np.argmin(fits))
        raise DecodeError(f"{SHOWN[kind[row]]} where {field} is needed", sample=row)
    size = np.where(missing, -1, size)
    if (kind == ESCAPED).any():
        plain, offsets = _native.json_unescape(data, start, size, (kind == ESCAPED).view(np.uint8))
        return text.Texts(plain, offsets[:-1], np.where(missing, -1, np.diff(offsets)))
    return text.Texts(data, start, size)


def _kinds(field: Field) -> tuple[int, ...]:
    if isinstance(field, Tensor) and field.shape:
        return (LIST, OBJECT)
    if isinstance(field, Bool) or getattr(field, "dtype", None) == "bool":
        return (TRUE, FALSE)
    if isinstance(field, Time | Duration | Decimal):
        # Text, or a bare number: of units, of any digits.
        return (NUMBER, STRING, ESCAPED)
    return (NUMBER,) if isinstance(field, Int | Float | Tensor) else (STRING, ESCAPED)


# -- writing -----------------------------------------------------------------------------------------------


class JsonWriter(TextWriter):
    """Writes .jsonl and .json files, packed where the name ends with .gz or .zst.

    ``layout``: lines, or array (one, of all records), which is that of .json files. ``level``: how hard the
    packer tries.
    """

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        layout: str | None = None,
        level: int | None = None,
    ) -> None:
        stem = path.lower().removesuffix(".gz").removesuffix(".zst")
        layout = layout or ("array" if stem.endswith(".json") else "lines")
        check_choice("layout", layout, ("lines", "array"))
        self._array = layout == "array"
        super().__init__(path, schema, options, level=level)

    def _head(self) -> bytes:
        return b"[\n" if self._array else b""

    def _tail(self) -> bytes:
        return b"" if not self._array else b"\n]\n" if self.before + self.written else b"]\n"

    def _check_base(self, base: TextReader) -> None:
        super()._check_base(base)
        assert isinstance(base, JsonReader)
        self._array = base.layout == LAYOUTS[ARRAY]
        if base.bare:
            raise self.cannot_append("its records are no objects")
        if not self._array:
            return
        if base.compression is not None:
            raise self.cannot_append("it is one array, and packed: nothing goes before its end; use .jsonl")
        size = min(self.end, ENDING)
        last = base.source.view(self.end - size, size).tobytes()
        inside = last.rstrip()[:-1]
        if not last.rstrip().endswith(b"]"):
            raise self.cannot_append("the end of its array is not found")
        # It goes on where its last record ends.
        self.end -= len(last) - len(inside.rstrip())

    def _joint(self, base: TextReader) -> bytes:
        return super()._joint(base) if not self._array else b"" if self.before else b"\n"

    def _rows(self, columns: Columns) -> U8:
        if not self._array:
            return text.pack(self.schema, columns, delimiter=None)
        rows = text.pack(self.schema, columns, delimiter=None, before=b",\n", after=b"")
        return rows if self.before + self.written else rows[2:]


def append(
    path: str | os.PathLike[str], samples: Iterable[Mapping[str, Any]], *, schema: GivenSchema | None = None
) -> int:
    """Add samples to a .jsonl file, which is made where there is none; gives how many.

    Safe from many processes at a time, on one machine: each call locks the file and writes whole lines in one
    go. The fields are those of ``schema``, or of NAME.schema.json beside the file; without either, samples
    are written as json.dumps writes them. A last line that was left unfinished is cut off, with a warning.
    """
    name = os.fspath(path)
    if not name.lower().endswith((".jsonl", ".ndjson")):
        raise OptionError("only a .jsonl file that is not packed can be appended to", path=name)
    beside = side_car(name, SCHEMA_SIDE_CAR)
    note = Note.beside(name)
    fields = given_schema(schema) if schema is not None else None if note is None else note.schema
    if note is not None and fields != note.schema:
        raise OptionError(f"the file has other fields: {note.schema}", path=name)
    rows = list(samples)
    lines = _lines(rows, fields)
    check_regular(name)
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        lock(fd)
        _mend(fd, name)
        # From now on nobody knows how many there should be.
        if fields is not None and (note is None or note.samples is not None):
            put_file(beside, note_of(fields))
        view = memoryview(lines)
        while view:
            view = view[os.write(fd, view) :]
    finally:
        os.close(fd)
    return len(rows)


def _lines(rows: list[Mapping[str, Any]], fields: Schema | None) -> bytes:
    if fields is None:
        try:
            return b"".join(json_text(row) + b"\n" for row in rows)
        except (TypeError, ValueError, RecursionError) as error:
            raise EncodeError(f"{error}; give a schema") from None
    FORMAT.check(fields)
    columns = encode_samples(fields, rows)
    for row, unfit in text.unfit(fields, columns).items():
        raise unfit.at(sample=row)
    return text.pack(fields, columns, delimiter=None).tobytes() if rows else b""


def _mend(fd: int, name: str) -> None:
    """See to it that the file ends with a line's end."""
    size = os.fstat(fd).st_size
    if not size or os.pread(fd, 1, size - 1) == b"\n":
        return
    begin, step = size, 1 << 16
    while begin > 0:
        offset = max(0, begin - step)
        newline = os.pread(fd, begin - offset, offset).rfind(b"\n")
        if newline >= 0:
            begin = offset + newline + 1
            break
        begin = offset
    last = np.frombuffer(os.pread(fd, size - begin, begin), dtype=np.uint8)
    if _native.json_check(last, np.zeros(1, dtype=np.int64), np.array([len(last)]))[0] == 0:
        os.write(fd, b"\n")
        return
    os.ftruncate(fd, begin)
    warnings.warn(f"{name}: the last line was not finished; its {len(last)} bytes are cut off", stacklevel=3)


CAN = Capabilities(
    random_access=True, remote_ranges=True, keeps_schema=True, streaming_write=True, human_readable=True,
    compression=("gzip", "zstd"), compressed="file", ecosystem=("pandas", "Polars", "DuckDB", "Hugging Face"),
)  # fmt: skip
FORMAT = Format(
    name="json",
    title="JSON and JSON Lines",
    suffixes=tuple(
        f"{suffix}{packed}" for suffix in (".jsonl", ".ndjson", ".json") for packed in ("", ".gz", ".zst")
    ),
    spec=SPEC,
    reader=JsonReader,
    writer=JsonWriter,
    kinds=EVERY_KIND,
    optional=True,
    describes=True,
    notes="lines, arrays, streams; types found in all records; bytes as base64; random access, gzip too",
    can=CAN,
)
