"""SQLite, one table of a database as samples, in the order of its rowids. Read only.

Python's own sqlite3 reads the pages of a local file, which is opened as immutable; a file of a server is
fetched whole. Nothing that the database says is run: no extension, no view, no virtual table, no computed
column. The declared type of a column tells its kind (INT, CHAR and TEXT, REAL and DOUBLE); of others and of
blobs, which may be images, the first rows do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..codecs.cells import encode_value
from ..codecs.infer import infer_image
from ..data.reader import Reader
from ..errors import (
    BusyError,
    DamagedError,
    DecodeError,
    OptionError,
    SchemaError,
    exceptions_as,
    no_such,
    on_error,
)
from ..schema import Bool, Bytes, Field, Float, Image, Int, Json, Schema, Text
from ..schema.columns import I64, Column, Columns, Ragged
from ..storage import beside, read_whole
from .base.format import Capabilities, Format, Probe
from .base.records import GivenSchema, given_schema

MAGIC = b"SQLite format 3\0"
# Bytes of the header that say whether changes go to a write-ahead log: 2, or 1.
JOURNAL_MODES = slice(18, 20)
# Where changes lie that are not in the file yet.
JOURNALS = ("{name}-wal", "{name}-journal")
PROBED_ROWS = 64
ROWIDS_AT_ONCE = 1 << 16
ROWID_NAMES = ("rowid", "_rowid_", "oid")
# SQLite's rule of affinity, in its order, after two types that programs declare.
KINDS = (
    ("BOOL", Bool()), ("JSON", Json()), ("INT", Int()), ("CHAR|CLOB|TEXT", Text()), ("BLOB", Bytes()),
    ("REAL|FLOA|DOUB", Float()),
)  # fmt: skip
# All that statements may do.
ALLOWED = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_PRAGMA)
# PRAGMA table_xinfo: columns that rows hold; others are computed.
STORED = (0, 3)
FAILURES = sqlite3.Error, ValueError, OverflowError


class _Text(bytes):
    """A value of text; other bytes are a blob."""


class SqliteReader(Reader):
    """Reads a table of an SQLite database.

    ``table``: needed where there are several. ``fields``: only these columns. ``schema``: the kinds of some
    columns, in place of those that types and values tell (``{"photo": "image"}``).
    """

    def __init__(
        self,
        path: str,
        *,
        table: str | None = None,
        fields: Iterable[str] | None = None,
        schema: GivenSchema | str | None = None,
    ) -> None:
        self.path = path
        self._process, self._lock = os.getpid(), threading.Lock()
        with exceptions_as(DamagedError, "the database cannot be read", *FAILURES, path=path):
            self._connection = _connect(path)
        with on_error(self.close, path=path):
            self._table, self._tables = self._choose(table)
            columns = self._columns()
            self._rowid = self._rowid_name(columns)
            self._rowids = self._read_rowids()
            self.length = len(self._rowids)
            self.schema = Schema(self._infer(columns))
            if fields is not None:
                self.schema = self.schema.select(list(fields))
            overrides = {} if schema is None else given_schema(schema)
            self.schema.select(list(overrides))
            self.schema = Schema({**self.schema, **overrides})

    @contextlib.contextmanager
    def _cursor(self) -> Iterator[sqlite3.Cursor]:
        if self._process != os.getpid():
            # A thread of the process that was forked may have held it.
            self._process, self._lock = os.getpid(), threading.Lock()
        with self._lock, exceptions_as(DamagedError, "the database is damaged", *FAILURES, path=self.path):
            yield self._connection.cursor()

    def _query(self, text: str, *values: int) -> list[tuple[Any, ...]]:
        with self._cursor() as cursor:
            return cursor.execute(text, values).fetchall()

    def _choose(self, table: str | None) -> tuple[str, list[str]]:
        tables = [
            _name(row[0])
            for row in self._query("SELECT name FROM sqlite_schema WHERE type = 'table' AND rootpage > 0")
            if not row[0].lower().startswith(b"sqlite_")
        ]
        if table is None:
            if len(tables) != 1:
                why = f"it has {len(tables)} tables; table=… is one of" if tables else "it has no table"
                raise OptionError(f"{why} {', '.join(map(repr, tables[:30]))}".rstrip())
            table = tables[0]
        if table not in tables:
            raise OptionError(no_such("table", table, tables))
        return table, tables

    def _columns(self) -> dict[str, tuple[str, bool]]:
        """Return (declared type, whether it may be NULL) of the columns."""
        rows = self._query(f"PRAGMA table_xinfo({_quoted(self._table)})")
        keys = sum(row[5] > 0 for row in rows)
        columns = {}
        for _, name, declared, not_null, _, key, hidden in rows:
            kind = (declared or b"").decode("utf-8", "replace").upper()
            if hidden in STORED:
                columns[_name(name)] = kind, not (not_null or (key and keys == 1 and kind == "INTEGER"))
        if not columns:
            raise SchemaError(f"the table {self._table!r} has no column")
        return columns

    def _rowid_name(self, columns: Iterable[str]) -> str:
        taken = {name.lower() for name in columns}
        for name in ROWID_NAMES:
            with contextlib.suppress(DamagedError):
                if name not in taken:
                    self._query(f"SELECT {name} FROM {_quoted(self._table)} LIMIT 0")
                    return name
        raise SchemaError(f"the rows of {self._table!r} have no rowid, which would number them")

    def _read_rowids(self) -> Sequence[int] | I64:
        """Return the rowids: a range if there is no gap. They ascend, or the database is damaged."""
        parts: list[I64] = []
        last: int | None = None
        with self._cursor() as cursor:
            cursor.execute(f"SELECT {self._rowid} FROM {_quoted(self._table)} ORDER BY {self._rowid}")
            while rows := cursor.fetchmany(ROWIDS_AT_ONCE):
                part = np.fromiter((row[0] for row in rows), np.int64, len(rows))
                if (part[1:] <= part[:-1]).any() or (last is not None and part[0] <= last):
                    raise DamagedError(f"the rowids of {self._table!r} do not ascend")
                last = int(part[-1])
                parts.append(part)
        if not parts:
            return range(0)
        rowids = np.concatenate(parts)
        first, last = int(rowids[0]), int(rowids[-1])
        return range(first, last + 1) if last - first + 1 == len(rowids) else rowids

    def _infer(self, columns: dict[str, tuple[str, bool]]) -> Iterator[tuple[str, Field]]:
        names = ", ".join(map(_quoted, columns))
        table = _quoted(self._table)
        rows = self._query(f"SELECT {names} FROM {table} LIMIT {PROBED_ROWS}")
        for number, (name, (declared, optional)) in enumerate(columns.items()):
            values = [row[number] for row in rows if row[number] is not None]
            has_gaps = optional and bool(
                self._query(f"SELECT 1 FROM {table} WHERE {_quoted(name)} IS NULL LIMIT 1")
            )
            yield name, dataclasses.replace(_infer_kind(declared, values), optional=has_gaps)

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        unique, inverse = np.unique(indices, return_inverse=True)
        names = ", ".join([self._rowid, *map(_quoted, fields)])
        query = f"SELECT {names} FROM {_quoted(self._table)} WHERE {self._rowid} BETWEEN ? AND ? ORDER BY 1"
        rows: list[tuple[Any, ...]] = []
        for run in np.split(unique, np.flatnonzero(np.diff(unique) > 1) + 1) if len(unique) else []:
            rowids = [int(self._rowids[row]) for row in run]
            answer = self._query(query, rowids[0], rowids[-1])
            if [row[0] for row in answer] != rowids:
                raise DamagedError("rows are missing in the table", path=self.path, sample=int(run[0]))
            rows += answer
        columns = Columns()
        for number, name in enumerate(fields, 1):
            field, cells = self.schema[name], []
            for position, row in enumerate(rows):
                try:
                    cells.append(_cell(field, row[number]))
                except SchemaError as error:
                    message = f"{error.message}; schema=… names other kinds"
                    sample = int(unique[position])
                    raise DecodeError(message, path=self.path, sample=sample, field=name) from None
            columns[name] = _column(field, cells)
        return columns.take(inverse.reshape(-1))

    def facts(self) -> dict[str, object]:
        return {"table": self._table, "tables": self._tables}

    def close(self) -> None:
        with self._lock:
            self._connection.close()


def _connect(path: str) -> sqlite3.Connection:
    """Open a database so that nothing changes it, and nothing in it is run."""
    if os.path.isfile(path):
        for name in JOURNALS:
            journal = Path(beside(path, name))
            if journal.exists() and journal.stat().st_size and journal.read_bytes()[:1] != b"\0":
                raise BusyError(
                    f"changes lie in {journal.name}: close its writers, or open and close it", path=path
                )
        name = f"{Path(path).absolute().as_uri()}?mode=ro&immutable=1"
        connection = sqlite3.connect(name, uri=True, check_same_thread=False)
    else:
        data = bytearray(read_whole(path))
        # In memory there is no log.
        data[JOURNAL_MODES] = b"\1\1"
        connection = sqlite3.connect(":memory:", check_same_thread=False)
        connection.deserialize(bytes(data))
    for pragma in ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON", "mmap_size = 0"):
        connection.execute(f"PRAGMA {pragma}")
    connection.set_authorizer(_authorize)
    connection.text_factory = _Text
    return connection


def _authorize(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_OK if action in ALLOWED else sqlite3.SQLITE_DENY


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _name(name: bytes) -> str:
    with exceptions_as(DamagedError, "a name is no UTF-8", ValueError):
        return name.decode()


def _infer_kind(declared: str, values: list[Any]) -> Field:
    """Return the kind of a column by its declared type, and where that says nothing by values."""
    kind = next((kind for pattern, kind in KINDS if re.search(pattern, declared)), None)
    if values and all(type(value) is bytes for value in values):
        return infer_image(Ragged.from_cells(values)) or Bytes()
    if kind is not None or not values:
        return kind or Text()
    types = set(map(type, values))
    if types <= {int, float}:
        return Float() if float in types else Int()
    return Text()


def _cell(field: Field, value: Any) -> Any:
    """Return the cell of a value of SQLite; SchemaError if the field cannot hold it."""
    if isinstance(value, bytes) and field.cell is None and not isinstance(field, Bool | Int | Float):
        return value
    if isinstance(field, Text) and isinstance(value, int | float):
        value = str(value)
    if isinstance(field, Bool) and value in (0, 1):
        value = bool(value)
    return encode_value(field, value)[0]


def _column(field: Field, cells: list[Any]) -> Column:
    return Ragged.from_cells(cells) if field.cell is None else np.array(cells, dtype=field.cell[0])


def sniff(probe: Probe) -> bool:
    return probe.head.startswith(MAGIC)


FORMAT = Format(
    name="sqlite",
    title="SQLite",
    suffixes=(".sqlite", ".sqlite3", ".db"),
    spec="https://www.sqlite.org/fileformat2.html",
    reader=SqliteReader,
    sniff=sniff,
    kinds=(Bool, Bytes, Float, Image, Int, Json, Text),
    optional=True,
    notes="one table, in the order of its rowids; local files by pages, others whole",
    can=Capabilities(random_access=True, ecosystem=("SQLite", "Python", "DuckDB", "pandas")),
)
