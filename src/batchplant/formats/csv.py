"""CSV and TSV: rows of text with a header, as RFC 4180 has them.

A field may be quoted, and then hold delimiters and line ends; two quotes in it stand for one. A field that is
empty and not quoted is a missing value; ``""`` is empty text. codecs/text.py says how each kind is written.
What other programs write besides is read: an escape, a first line that names the delimiter, other encodings.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from collections.abc import Sequence
from typing import Literal

import numpy as np

from .. import _native
from ..codecs import text
from ..data.writer import WriteOptions
from ..errors import (
    BatchplantError,
    DamagedError,
    FieldNameError,
    OptionError,
    SchemaError,
    check_choice,
    no_such,
    on_error,
)
from ..schema import EVERY_KIND, Bool, Decimal, Field, Float, Int, Schema, Tensor, Text, Uuid
from ..schema.columns import I64, U8, Columns
from ..storage import index
from .base.format import Capabilities, Format
from .base.records import GivenSchema, Note
from .base.text import BOM, REASONS, Content, ScanEndsError, TextReader, TextWriter

SPEC = "https://www.rfc-editor.org/rfc/rfc4180"
# A header that is longer is none.
MAX_HEADER_BYTES = 16 << 20
OTHERS = ";\t|"
NO_DELIMITER = "\"'\r\n\0.+-"
# The line that tells Excel the delimiter of the file.
SEPARATOR = re.compile(rb"sep=([\t !#$%&()*,/:;<=>?@\[\\\]^_`{|}~])\r?(?:\n|\Z)", re.IGNORECASE)
# What stands for a missing value behind an escape, as MySQL and PostgreSQL write it.
NULL = "N"
# Unquoted words that other programs write for a missing value. Text may mean them; numbers, truth values and
# times never do.
MISSING_WORDS = ("NA", "N/A", "n/a", "#N/A", "<NA>", "null", "NULL", "None", "-")


class CsvReader(TextReader):
    """Reads .csv and .tsv files, also packed (.gz, .zst).

    ``schema``: the fields to read; ``types``: those of some columns, in place of what the cells look like.
    ``header``: whether the first row has the names. ``delimiter``: one character, where the suffix and the
    first row do not tell. ``escape``: the character, mostly a backslash, behind which a delimiter, quote or
    line end is plain text. ``encoding``: that of the text, where it is not UTF-8 and has no byte order mark.
    ``missing``: what stands, unquoted, for a missing value in every column; without it an empty cell, and in
    columns of numbers, truth values and times also NA, N/A, null, None and -. ``duplicates``: raise, or
    rename columns of one name. ``bad_rows``: raise, or skip rows that cannot be read. ``outside``: whether
    paths of images may lead out of the folder of the file. ``index``: auto, write, memory or rebuild; where
    the index of the file is kept.
    """

    _titles: list[str]

    def __init__(
        self,
        path: str,
        *,
        schema: GivenSchema | str | None = None,
        types: GivenSchema | str | None = None,
        header: bool = True,
        delimiter: str | None = None,
        escape: str | None = None,
        encoding: str | None = None,
        missing: str | Sequence[str] | None = None,
        duplicates: str = "raise",
        bad_rows: str = "raise",
        outside: bool = False,
        index: str = "auto",
    ) -> None:
        check_choice("duplicates", duplicates, ("raise", "rename"))
        self._given = None if delimiter is None else checked_delimiter(delimiter)
        self._words = list(MISSING_WORDS) if missing is None else []
        markers_given = [""] if missing is None else [missing] if isinstance(missing, str) else missing
        self._missing = [str(marker) for marker in markers_given]
        self._escape = checked_escape(escape, self._given)
        if self._escape:
            self._missing.append(self._escape + NULL)
        self._header = bool(header)
        self.path = path
        self.note = Note.beside(path)
        # How it was scanned: a scan with other options is another one.
        blank = self.note is not None and len(self.note.schema) == 1
        markers = self._missing + self._words
        index_kind = f"csv {self._given!r} {markers!r} {self._header} {blank} {self._escape!r}"
        self._blank = blank
        self._duplicates = duplicates
        facts = self._load(path, index_kind, index, bad_rows, encoding, version=3)
        with on_error(self.close, path=path):
            self._choose(facts, schema, types)
            if schema is not None and not header and not set(self.schema) & set(self._titles):
                # A given schema names the columns of a file without a header.
                if len(self.schema) != len(self._titles):
                    count = len(self._titles)
                    raise SchemaError(f"the schema has {len(self.schema)} fields, and a row {count}")
                self._titles = list(self.schema)
            for name, field in self.schema.items():
                if name not in self._titles and not field.optional:
                    raise FieldNameError(no_such("column", name, self._titles))
            self._open_files(outside)

    # -- opening ---------------------------------------------------------------------------------------

    def _accept(self, cached: index.Index) -> None:
        super()._accept(cached)
        self._delimiter = str(cached.facts["delimiter"])
        self._titles = self._named([str(name) for name in cached.facts["names"]])
        # Columns with a missing cell: only in these can a word stand for one.
        self._marked = frozenset(cached.facts["marked"])

    def _makes_sense(self, cached: index.Index) -> bool:
        marked = cached.facts["marked"]
        numbers = isinstance(marked, list) and all(isinstance(number, int) for number in marked)
        sound = super()._makes_sense(cached) and numbers
        return sound and len(self._delimiter) == 1 and self._delimiter.isascii()

    def _scan(self, content: Content) -> tuple[index.Arrays, index.Facts]:
        start = len(BOM) if content.head(len(BOM))[:3].tobytes() == BOM else 0
        names, delimiter, begin, line = self._first(content, start)
        self._width = len(names)
        return self._scan_rows(content, begin, {"delimiter": delimiter, "names": names}, line)

    def _scan_rows(
        self, content: Content, begin: int, facts: index.Facts, line: int = 1
    ) -> tuple[index.Arrays, index.Facts]:
        """Scan the rows from ``begin`` on, the first of which begins in this line."""
        delimiter, columns = facts["delimiter"], len(facts["names"])
        scanner = self._scanner(delimiter, columns, self._missing + self._words, line)
        content.scan(scanner, begin)
        classes = self._settled(content, begin, delimiter, scanner.classes or [0] * columns)
        marked = [number for number, bits in enumerate(scanner.classes) if bits & text.MISSING]
        arrays = {"starts": scanner.starts, "bad": scanner.bad.reshape(-1)}
        return arrays, {**facts, "classes": classes, "marked": marked}

    def _scanner(self, delimiter: str, columns: int, markers: list[str], line: int = 1) -> _native.CsvScanner:
        return _native.CsvScanner(delimiter, columns, self._blank, markers, line, self._escape)

    def _scan_rest(
        self, content: Content, scanned: index.Index, offset: int
    ) -> tuple[index.Arrays, index.Facts] | None:
        facts = scanned.facts
        if content.before(offset) != b"\n":
            return None
        arrays, appended = self._scan_rows(content, offset, facts)
        pairs = zip(facts["classes"], appended["classes"], strict=True)
        appended["classes"] = [int(before) | int(after) for before, after in pairs]
        appended["marked"] = sorted({*facts["marked"], *appended["marked"]})
        return arrays, appended

    def _settled(self, content: Content, begin: int, delimiter: str, classes: list[int]) -> list[int]:
        """Return the classes of the columns, in text of which NA and the like are words.

        Whether a cell of such a column is missing nevertheless, a second pass finds. It ends with the first
        missing cell, which most often comes soon.
        """
        unsure = [
            number
            for number, bits in enumerate(classes)
            if self._words and bits & text.MISSING and text.field_of(bits) is None
        ]
        if not unsure:
            return classes
        scanner = self._scanner(delimiter, len(classes), self._missing)
        content.scan_again(_UntilMissing(scanner, unsure), begin)
        sure = scanner.classes or classes
        return [sure[number] if number in unsure else bits for number, bits in enumerate(classes)]

    def _first(self, content: Content, start: int) -> tuple[list[str], str, int, int]:
        """The names of the columns, the delimiter, and where the rows begin."""
        size, above, usual = 64 << 10, 0, self._given
        while True:
            head = content.head(start + size)[start:]
            final = len(head) < size
            # In what we wrote there is no such line, but maybe a cell that looks like one.
            separator = SEPARATOR.match(head[:8].tobytes()) if self.note is None and not above else None
            if separator is not None:
                start, above = start + separator.end(), 1
                head = head[separator.end() :]
                usual = usual or separator[1].decode()
            # Blank lines before it are no header.
            blank = len(head) - len(head.tobytes().lstrip(b"\r\n"))
            delimiter = usual or self._likely(head[blank:])
            parsed = _native.csv_first(np.ascontiguousarray(head[blank:]), delimiter, final, self._escape)
            if parsed is not None or final:
                break
            if size > MAX_HEADER_BYTES:
                raise DamagedError(f"the first row is longer than {MAX_HEADER_BYTES >> 20} MiB", offset=start)
            size *= 4
        if parsed is None or len(head) == blank:
            raise DamagedError("the file is empty; a header is needed", offset=start)
        cells, end, fault, offset_in_row = parsed
        line = 1 + above + head[:blank].tobytes().count(b"\n")
        if fault:
            raise DamagedError(f"line {line}: {REASONS[fault]}", offset=start + blank + offset_in_row)
        if not self._header:
            return [f"column_{number + 1}" for number in range(len(cells))], delimiter, start + blank, line
        try:
            names = [cell.decode() or f"column_{number + 1}" for number, cell in enumerate(cells)]
        except UnicodeDecodeError:
            message = f"line {line}: the header is no UTF-8; {text.ENCODING_HINT}"
            raise DamagedError(message, offset=start + blank) from None
        if any("\0" in name for name in names):
            message = f"line {line}: the header holds zero bytes, as UTF-16 without a byte order mark does"
            raise DamagedError(f"{message}; encoding='utf-16-le' reads that", offset=start + blank)
        line += head[blank : blank + end].tobytes().count(b"\n")
        return names, delimiter, start + blank + end, line

    def _likely(self, head: U8) -> str:
        """That of the suffix, unless the first row has none of it but another."""
        name = self.path.lower()
        usual = "\t" if any(part in name[-9:] for part in (".tsv", ".tab")) else ","
        row = head.tobytes().split(b"\n", 1)[0].decode(errors="replace")
        counts = {delimiter: row.count(delimiter) for delimiter in OTHERS + ","}
        likely = max(counts, key=lambda delimiter: counts[delimiter])
        return usual if counts[usual] or not counts[likely] else likely

    def _named(self, names: list[str]) -> list[str]:
        """Names of their own for all columns."""
        self._width = len(names)
        numbers: dict[str, int] = {}
        for number, name in enumerate(names):
            if name in numbers and self._duplicates == "raise":
                raise SchemaError(
                    f"columns {numbers[name] + 1} and {number + 1} have one name;"
                    " duplicates='rename' gives the second another",
                    field=name,
                )
            count, free = 2, name
            while free in numbers:
                free, count = f"{name}_{count}", count + 1
            numbers[free] = number
        return list(numbers)

    def _inferred(self, facts: index.Facts) -> dict[str, Field]:
        inferred: dict[str, Field] = {}
        for name, classes in zip(self._titles, facts["classes"], strict=True):
            field = text.field_of(int(classes)) or Text()
            inferred[name] = dataclasses.replace(field, optional=bool(int(classes) & text.MISSING))
        return inferred

    def _is_missing_as(self, facts: index.Facts, name: str, field: Field) -> bool:
        return has_no_words(field) and name in self._titles and self._titles.index(name) in facts["marked"]

    # -- reading ---------------------------------------------------------------------------------------

    def _cells(self, fields: Sequence[str], data: U8, starts: I64, sizes: I64) -> Columns:
        places = {name: number for number, name in enumerate(self._titles)}
        numbers = [places.get(name, -1) for name in fields]
        # Where nothing may be missing, an empty field is empty text.
        kinds = [self._stored[name] for name in fields]
        empty = [isinstance(kind, Text) and not kind.optional for kind in kinds]
        layout = self._delimiter, self._missing, len(self._titles), numbers, empty, self._escape
        start, size, special, failure = _native.csv_find(data, starts, sizes, *layout)
        if failure is not None:
            raise DamagedError(failure[2], sample=failure[0], offset=failure[1])
        columns = Columns()
        for number, name in enumerate(fields):
            cells = text.Texts(data, start[number], size[number])
            if self._words and numbers[number] in self._marked and has_no_words(kinds[number]):
                cells.sizes[text.equal_to(cells, self._words)] = -1
            if special[number].any():
                plain, offsets = _native.csv_unquote(*cells, special[number], self._escape)
                cells = text.Texts(plain, offsets[:-1], np.where(size[number] < 0, -1, np.diff(offsets)))
            try:
                columns[name] = text.column(kinds[number], cells)
            except BatchplantError as error:
                row = error.sample
                raise error.at(field=name, offset=None if row is None else start[number][row]) from None
        return columns

    def facts(self) -> dict[str, object]:
        shown = {"\t": "tab"}.get(self._delimiter, self._delimiter)
        return {**super().facts(), "delimiter": shown, "header": self._header}


class _UntilMissing:
    """Hands pieces to a scanner until each of some columns has a missing cell."""

    def __init__(self, scanner: _native.CsvScanner, columns: list[int]) -> None:
        self._scanner, self._columns = scanner, columns

    @property
    def starts(self) -> I64:
        return np.asarray(self._scanner.starts)

    def feed(self, piece: U8, base: int, final: bool) -> int:
        used = self._scanner.feed(piece, base, final)
        classes = self._scanner.classes
        if classes and all(classes[number] & text.MISSING for number in self._columns):
            raise ScanEndsError
        return used


def has_no_words(field: Field) -> bool:
    """True if no cell of a field is a word, so that one such as NA stands for a missing value."""
    if isinstance(field, Decimal | Uuid):
        return True
    return isinstance(field, Int | Float | Bool | Tensor)


def checked_delimiter(delimiter: str) -> str:
    result = {"tab": "\t", "\\t": "\t"}.get(delimiter, delimiter)
    if len(result) != 1 or result in NO_DELIMITER or result.isalnum() or not result.isascii():
        raise OptionError(f"a delimiter is one sign such as ',' or ';' or 'tab', not {delimiter!r}")
    return result


def checked_escape(escape: str | None, delimiter: str | None) -> str:
    """The escape, empty where there is none. Two quotes for one are read anyway."""
    if escape in (None, "", '"'):
        return ""
    assert escape is not None
    if (
        len(escape) != 1
        or escape in "\r\n\0 \t"
        or escape.isalnum()
        or not escape.isascii()
        or escape == delimiter
    ):
        raise OptionError(f"an escape is one sign such as '\\\\', and not the delimiter, not {escape!r}")
    return escape


class CsvWriter(TextWriter):
    """Writes .csv and .tsv files, packed where the name ends with .gz or .zst.

    ``delimiter``: one character; a tab for .tsv, else a comma. ``header``: whether the names come first.
    ``level``: how hard the packer tries.
    """

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        delimiter: str | None = None,
        header: bool = True,
        level: int | None = None,
    ) -> None:
        usual = "\t" if any(part in path.lower()[-9:] for part in (".tsv", ".tab")) else ","
        self._delimiter = usual if delimiter is None else checked_delimiter(delimiter)
        self._header = bool(header)
        super().__init__(path, schema, options, level=level)

    def _head(self) -> bytes:
        if not self._header:
            return b""
        header = self._header_row(csv.QUOTE_MINIMAL)
        # A name is quoted where it could be taken for a blank line, a byte order mark, or Excel's own line.
        odd = header[:1] in ("\ufeff", " ") or not header.strip() or SEPARATOR.match(header.encode())
        return (self._header_row(csv.QUOTE_ALL) if odd else header).encode()

    def _header_row(self, quoting: Literal[0, 1]) -> str:
        out = io.StringIO()
        csv.writer(out, delimiter=self._delimiter, lineterminator="\n", quoting=quoting).writerow(self.schema)
        return out.getvalue()

    def _check_base(self, base: TextReader) -> None:
        super()._check_base(base)
        assert isinstance(base, CsvReader)
        self._delimiter = base._delimiter
        if list(self.schema) != base._titles:
            raise self.cannot_append(f"its columns are {', '.join(base._titles)}")

    def _rows(self, columns: Columns) -> U8:
        return text.pack(self.schema, columns, delimiter=self._delimiter)


FORMAT = Format(
    name="csv",
    title="CSV and TSV",
    suffixes=tuple(
        f"{suffix}{packed}" for suffix in (".csv", ".tsv", ".tab") for packed in ("", ".gz", ".zst")
    ),
    spec=SPEC,
    reader=CsvReader,
    writer=CsvWriter,
    kinds=EVERY_KIND,
    optional=True,
    describes=True,
    notes="types found in all rows; bytes as base64, tensors as JSON text; random access, also into gzip",
    can=Capabilities(
        random_access=True,
        compression=("gzip", "zstd"),
        compressed="file",
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        human_readable=True,
        ecosystem=("pandas", "Polars", "DuckDB", "R", "spreadsheets"),
    ),
)
