"""LakeReader: the rows of Parquet files in the order in which a table lists them."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import datetime
import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from ....codecs import arrow
from ....codecs.arrow.infer import is_whole_list
from ....codecs.arrow.types import is_binary, is_file_struct
from ....data.expressions import Bound, Bounds, Condition, can_match, loosely
from ....data.filters import Pruned
from ....errors import BatchplantError, DamagedError, NotFoundError, OptionError, located
from ....schema import Field, Schema
from ....schema.columns import I64, Columns, starts_of
from ....storage import Entry
from ....storage.index import FileGroup
from ..tables import ParquetFile, ParquetRows, cell_bounds
from ..tables.parquet_file import first_line

if TYPE_CHECKING:
    import pyarrow as pa

# What is looked at to see what bytes are.
SAMPLE_FILES, SAMPLE_ROWS = 4, 8
# Samples of a file that cannot be read are listed one by one, unless there are more.
MAX_COUNTED_ROWS = 1_000_000
# Least and greatest value as Arrow scalars, and how many are missing; None where unknown.
ColumnStats = tuple["pa.Scalar", "pa.Scalar", int | None]
# Times in the log of a table are cut off at milliseconds.
SLACK = {"s": 1, "ms": 1, "us": 1_000, "ns": 1_000_000, "D": 0}


@dataclasses.dataclass(frozen=True)
class Part:
    """One file of a table.

    rows, size: what the table says about it, None where it says nothing. constants: Arrow scalars of fields
    that lie in no file. names: field → column, where they differ. deleted: rows that do not count any more.
    scan: the library's own reading of one field, for files that do not tell by themselves what counts.
    stats: what the table says about the values of a field.
    """

    path: str
    rows: int | None = None
    size: int | None = None
    constants: Mapping[str, pa.Scalar] = dataclasses.field(default_factory=dict)
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    deleted: I64 | None = None
    scan: Callable[[str], pa.ChunkedArray] | None = None
    stats: Callable[[str], ColumnStats] | None = None


class LakeReader(ParquetRows):
    """The subclass finds the parts and the Arrow schema in its ``__init__``, and calls ``_set_parts``."""

    _left_out: _LeftOut | None = None
    # What it was opened with, where _init_args names the version that was the latest then; and what names a
    # version of this table among all of all tables.
    _options: Mapping[str, Any]
    _state: Mapping[str, Any]

    def _set_parts(
        self,
        parts: Sequence[Part],
        described: pa.Schema,
        overrides: Mapping[str, Field] | None,
        where: Condition | None = None,
    ) -> None:
        """``where``: files in which it cannot be true are left out."""
        self._parts = tuple(parts)
        if where is not None:
            plain = Schema({**arrow.schema_of(described), **(overrides or {})})
            self._parts = tuple(matching_parts(parts, where, plain))
            self._left_out = _LeftOut(parts, self._parts)
        # An error stands for a file that cannot be read: only its own samples are lost.
        with ThreadPoolExecutor(8, thread_name_prefix="batchplant-open") as pool:
            self._files = list(pool.map(self._open_file, self._parts))
        rows = [self._rows_of(number) for number in range(len(self._parts))]
        self._firsts = np.cumsum([0, *map(len, rows)])
        fields = dict(arrow.schema_of(described, self._sample(described), gaps=self._gaps(described)))
        self.schema = Schema({**fields, **(overrides or {})}).select([*fields])
        self._set_units(np.concatenate([np.zeros(0, np.int64), *rows]))
        self._set_window()

    @staticmethod
    def _open_file(part: Part) -> ParquetFile | BatchplantError | None:
        if part.scan is not None:
            return None
        try:
            with wrapped(part.path):
                try:
                    file = ParquetFile(part.path)
                except NotFoundError:
                    raise DamagedError("the table lists it, but it is not there") from None
                if part.size not in (None, file.size):
                    raise DamagedError(f"it has {file.size} bytes, and the table says {part.size}")
        except BatchplantError as error:
            if part.rows is None or part.rows > MAX_COUNTED_ROWS:
                raise
            return error
        have = file.footer.rows
        if part.rows not in (None, have):
            raise DamagedError(f"it has {have} rows, and the table says {part.rows}", path=part.path)
        return file

    def _rows_of(self, number: int) -> I64:
        """The rows of each row group that are not deleted."""
        part, file = self._parts[number], self._files[number]
        every = file.rows if isinstance(file, ParquetFile) else np.array([part.rows or 0], dtype=np.int64)
        if part.deleted is None:
            return every
        ends = starts_of(every)
        return every - np.diff(np.searchsorted(part.deleted, ends))

    def _sample(self, described: pa.Schema) -> pa.Table:
        """The first rows of columns of bytes that no description explains."""
        columns: dict[str, pa.ChunkedArray] = {}
        for field in described:
            if arrow.KEY in (field.metadata or {}) or not (
                is_binary(field.type) or is_file_struct(field.type)
            ):
                continue
            for number in range(min(len(self._parts), SAMPLE_FILES)):
                # Whoever reads it will meet the same damage, and say where.
                with contextlib.suppress(Exception):
                    column = self._arrow_columns(number, 0, [field.name])[field.name]
                    if field.name not in columns and column.null_count < len(column):
                        columns[field.name] = column.drop_null()[:SAMPLE_ROWS]
        # Columns of a table are equally long.
        rows = min((len(column) for column in columns.values()), default=0)
        return arrow.pyarrow().table({name: column[:rows] for name, column in columns.items()})

    def _gaps(self, described: pa.Schema) -> set[str]:
        """The lists of whole numbers inside of which some are missing, as the first files show."""
        names = set()
        for field in described:
            looked = is_whole_list(field.type) and arrow.KEY not in (field.metadata or {})
            for number in range(min(len(self._parts), SAMPLE_FILES) if looked else 0):
                file = self._files[number]
                if isinstance(file, ParquetFile):
                    column = self._column_in(file.schema, self._parts[number], field.name)
                    if column is not None and file.gaps([column]):
                        names.add(field.name)
        return names

    def _column_in(self, file: pa.Schema, part: Part, name: str) -> str | None:
        """Return a field's column in a file of this Arrow schema; None if the file lacks it."""
        column = part.names.get(name, name)
        return column if column in file.names else None

    def _arrow_columns(
        self, number: int, group: int, fields: Sequence[str], rows: I64 | None = None
    ) -> dict[str, pa.ChunkedArray]:
        """The rows of a row group that count, or some of them; fields that the file lacks are left out."""
        part, file = self._parts[number], self._files[number]
        if isinstance(file, BatchplantError):
            raise copy.copy(file)
        if file is None:
            assert part.scan is not None
            scanned = {name: part.scan(name) for name in fields}
            return scanned if rows is None else {name: column.take(rows) for name, column in scanned.items()}
        columns = self._columns_in(number, fields)
        live_rows = (
            self._live_rows(number, group) if rows is None else self._rows_in_file(number, group, rows)
        )
        arrow_columns = {}
        if columns:
            names = list(dict.fromkeys(columns.values()))
            read = file.load(group, names) if live_rows is None else file.load_rows(group, names, live_rows)
            arrow_columns = {name: read.column(column) for name, column in columns.items()}
        count = int(file.rows[group]) if live_rows is None else len(live_rows)
        for name, value in part.constants.items():
            if name in fields:
                arrow_columns[name] = arrow.pyarrow().repeat(value, count)
        return arrow_columns

    def _columns_in(self, number: int, fields: Sequence[str]) -> dict[str, str]:
        part, file = self._parts[number], self._parquet(number)
        if file is None:
            return {}
        inside = {
            name: self._column_in(file.schema, part, name) for name in fields if name not in part.constants
        }
        return {name: column for name, column in inside.items() if column is not None}

    def _live_rows(self, number: int, group: int) -> I64 | None:
        deleted, file = self._parts[number].deleted, self._parquet(number)
        if deleted is None or file is None:
            return None
        start, end = starts_of(file.rows)[group : group + 2]
        first, last = np.searchsorted(deleted, [start, end])
        return np.delete(np.arange(end - start), deleted[first:last] - start)

    def _load_rows(self, unit: int, rows: I64 | None, fields: Sequence[str]) -> Columns:
        number, group = self._file_of(unit)
        arrow_columns = self._arrow_columns(number, group, fields, rows)
        count = int(self._starts[unit + 1] - self._starts[unit]) if rows is None else len(rows)
        columns = Columns()
        for name in fields:
            field = self.schema[name]
            cells = (
                arrow_columns[name]
                if name in arrow_columns
                else arrow.pyarrow().nulls(count, arrow.storage(field))
            )
            with located(field=name):
                columns[name] = arrow.column_of(field, cells)
        return columns

    def _fingerprint_source(self, fields: Sequence[str]) -> FileGroup:
        """The version; and the files, lest somebody replaced one against the rules."""
        tags = (file.tag if isinstance(file, ParquetFile) else "" for file in self._files)
        files = [Entry(part.path, part.size or 0, tag) for part, tag in zip(self._parts, tags, strict=True)]
        return FileGroup(self._place_of_table(), files, state=self._state, options=self._options)

    def _place_of_table(self) -> str:
        """The folder of the table."""
        return self.path

    def _fixed_bounds(self, number: int, fields: Sequence[str]) -> dict[str, Bounds]:
        constants = self._parts[number].constants
        fixed = {name: _of(self.schema[name], constants[name]) for name in fields if name in constants}
        if self._parquet(number) is not None:
            inside = self._columns_in(number, fields)
            fixed |= {name: Bounds(1, 1) for name in fields if name not in inside and name not in fixed}
        return fixed

    def _path_of(self, unit: int) -> str:
        return self._parts[self._file_of(unit)[0]].path

    def _prune(self, bound: Bound) -> Pruned | None:
        pruned = super()._prune(bound)
        if pruned is None or self._left_out is None:
            return pruned
        total, skipped = (size + self._left_out.bytes for size in (pruned.bytes, pruned.skipped_bytes))
        return dataclasses.replace(pruned, bytes=total, skipped_bytes=skipped)

    def facts(self) -> dict[str, object]:
        left_out = self._left_out
        skipped = (
            {} if left_out is None else {"files skipped": f"{left_out.files:,} of {left_out.all_files:,}"}
        )
        return {"files": len(self._parts), **skipped, **super().facts()}


class _LeftOut:
    """The files that a filter left out when the table was opened."""

    def __init__(self, parts: Sequence[Part], remaining: Sequence[Part]) -> None:
        self.all_files, self.files = len(parts), len(parts) - len(remaining)
        self.bytes = sum(part.size or 0 for part in parts) - sum(part.size or 0 for part in remaining)


@contextlib.contextmanager
def wrapped(path: str) -> Iterator[None]:
    """Whatever a library says about damaged bytes is one of our errors."""
    try:
        yield
    except BatchplantError as error:
        raise error.at(path=path) from None
    except FileNotFoundError:
        raise DamagedError("the table lists it, but it is not there", path=path) from None
    except Exception as error:
        # A full disk says nothing about the bytes that are there.
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        raise DamagedError(first_line(error), path=path) from None
    except BaseException as error:
        # A panic of a library in Rust is no Exception.
        if type(error).__name__ != "PanicException":
            raise
        raise DamagedError(first_line(error), path=path) from None


def as_time(value: str | datetime.datetime) -> datetime.datetime:
    """A point in time; one without a zone is UTC."""
    try:
        time = value if isinstance(value, datetime.datetime) else datetime.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise OptionError(f"at is a time as 2025-01-31T12:00:00, not {value!r}") from None
    return time if time.tzinfo else time.replace(tzinfo=datetime.UTC)


def matching_parts(parts: Sequence[Part], condition: Condition, schema: Schema) -> list[Part]:
    """The files in which it can be true; one at least, for a table needs a file to see what its bytes are."""
    bound = loosely(condition, schema)

    def can(part: Part) -> bool:
        return can_match(bound, lambda name: _known(part, name, schema[name]))

    return [part for part in parts if can(part)] or list(parts[:1])


def _known(part: Part, name: str, field: Field) -> Bounds:
    """Return the bounds of a field in a file; empty if the table has none, or nonsense."""
    # Whatever a library says about a value that it cannot convert.
    with contextlib.suppress(Exception):
        if name in part.constants:
            return _of(field, part.constants[name])
        if part.stats is not None:
            low, high, missing = part.stats(name)
            lowest, highest = _of(field, low).low, _of(field, high).high
            if highest is not None and hasattr(field, "unit"):
                highest += SLACK[field.unit]
            if lowest is None or highest is None or lowest <= highest:
                return Bounds(part.rows, missing, lowest, highest)
    return Bounds()


def _of(field: Field, value: pa.Scalar) -> Bounds:
    if value is None or not value.is_valid:
        return Bounds(1, 1)
    return cell_bounds(field, arrow.column_of(field, arrow.pyarrow().repeat(value, 1)))


def stored_schema(schema: Schema, *, small: bool, zone: str | None) -> pa.Schema:
    """The Arrow schema that a table gets.

    ``small``: it has integers of 8 and 16 bits, and no times of day or UUIDs. ``zone``: of times without one.
    """
    pa = arrow.pyarrow()
    fields = [arrow.arrow_field(name, field) for name, field in schema.items()]
    return pa.schema([field.with_type(_stored(field.type, small, zone)) for field in fields])


def _stored(kind: pa.DataType, small: bool, zone: str | None) -> pa.DataType:
    pa = arrow.pyarrow()
    types = pa.types
    if types.is_fixed_size_list(kind) or types.is_large_list(kind):
        return pa.list_(pa.field("element", _stored(kind.value_type, small, zone)))
    if types.is_struct(kind):
        return pa.struct([field.with_type(_stored(field.type, small, zone)) for field in kind])
    if types.is_timestamp(kind) and kind.unit != "ns":
        return pa.timestamp("us", zone if kind.tz is None else "UTC")
    if kind == pa.time64("us") and not small:
        return kind
    # Finer times, other times of day and spans of time are counted in their own unit.
    if types.is_timestamp(kind) or types.is_duration(kind) or types.is_time(kind):
        return pa.int64() if kind.bit_width == 64 else pa.int32()
    # UUIDs where there are none, and decimals of more digits than such tables have, are text.
    if types.is_decimal256(kind) or (small and isinstance(kind, pa.BaseExtensionType)):
        return pa.string()
    if small and types.is_fixed_size_binary(kind):
        return pa.binary()
    if not small and types.is_integer(kind) and kind.bit_width < 32:
        return pa.int32()
    wider = {
        pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0), pa.float16(): pa.float32(),
        pa.large_string(): pa.string(), pa.large_binary(): pa.binary(),
    }  # fmt: skip
    return wider.get(kind, kind)
