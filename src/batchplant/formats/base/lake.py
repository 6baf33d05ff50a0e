"""Base classes of Delta Lake and Iceberg: Parquet files, and a log that says which of them are live."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import datetime
import errno
import os
import random
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...codecs import arrow
from ...codecs.arrow.infer import is_whole_list
from ...codecs.arrow.types import is_binary, is_file_struct
from ...data.expressions import Bound, Bounds, Condition, can_match, loosely
from ...data.filters import Pruned
from ...data.writer import WriteOptions, Writer
from ...errors import (
    BatchplantError,
    BusyError,
    DamagedError,
    EncodeError,
    ExistsError,
    NotFoundError,
    OptionError,
    SchemaError,
    located,
)
from ...schema import (
    Bool,
    Bytes,
    Decimal,
    Duration,
    Field,
    Int,
    List,
    Schema,
    Struct,
    Tensor,
    Text,
    Time,
    Uuid,
)
from ...schema.columns import I64, Columns, starts_of
from ...storage import Entry, Partial, is_remote, sync, tree
from ...storage.index import FileGroup
from .tables import ParquetFile, ParquetRows, cell_bounds
from .tables.parquet import first_line

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Compacted", "LakeReader", "LakeWriter", "Part", "State", "Upkeep", "Vacuumed", "as_time",
    "check_same_fields", "conflict", "first_line", "stored_schema", "wrapped",
]  # fmt: skip

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

    # Those that are read; with those that a filter left out when the table was opened.
    _parts: tuple[Part, ...]
    _all_parts: tuple[Part, ...]
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
        self._parts = self._all_parts = tuple(parts)
        if where is not None:
            plain = Schema({**arrow.schema_of(described), **(overrides or {})})
            self._parts = tuple(matching_parts(parts, where, plain))
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
        read, total = (sum(part.size or 0 for part in parts) for parts in (self._parts, self._all_parts))
        if pruned is None:
            return None
        left_out = total - read
        return dataclasses.replace(
            pruned, bytes=pruned.bytes + left_out, skipped_bytes=pruned.skipped_bytes + left_out
        )

    def facts(self) -> dict[str, object]:
        left_out = len(self._all_parts) - len(self._parts)
        skipped = {"files skipped": f"{left_out:,} of {len(self._all_parts):,}"} if left_out else {}
        return {"files": len(self._parts), **skipped, **super().facts()}


@contextlib.contextmanager
def wrapped(path: str) -> Iterator[None]:
    """Turn whatever a library says about damaged bytes into one of our errors."""
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


MODES = ("create", "append", "overwrite")
BUFFERED_ROWS_NAME = "rows.arrow"
# Of an append that another process came before, beyond those of the library.
MAX_COMMIT_TRIES, RETRY_WAIT_SECONDS = 5, 0.2


class LakeWriter(Writer):
    """``mode``: ``create`` a table; ``append`` rows to one; ``overwrite`` its rows, the older versions stay.

    The last two are one transaction: all rows appear at once, or none. ``partition_by``: fields by whose
    values the files of a new table are told apart. ``row_group`` and ``file_size``: bytes before compression.
    """

    appends: ClassVar[bool] = True
    # What a table of this format is called in messages.
    title: ClassVar[str]
    # Whether rows that overwrite others may have other fields.
    replaces_fields: ClassVar[bool] = True

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        mode: str = "create",
        partition_by: str | Iterable[str] = (),
        compression: str = "zstd",
        row_group: int = 32 << 20,
        file_size: int = 512 << 20,
    ) -> None:
        if mode not in MODES:
            raise OptionError(f"mode is one of {', '.join(MODES)}, not {mode!r}", path=path)
        if row_group < 1 or file_size < 1:
            raise OptionError("row_group and file_size are at least 1 byte", path=path)
        if mode != "create" and options.checksums:
            raise OptionError("checksums can be taken only of a table that is created", path=path)
        self.mode = mode
        keys = partition_by.split(",") if isinstance(partition_by, str) else partition_by
        self._keys = [name for name in dict.fromkeys(keys) if name]
        _check_keys(schema, self._keys)
        self._compression, self._row_group, self._file_size = compression, row_group, file_size
        # The state of the table that an overwriting transaction replaces.
        self._base: Any = None
        # Names the transaction in the table's own log: a resumed writer sees whether it was carried out.
        self._id = f"batchplant-{uuid.uuid4()}"
        super().__init__(path, schema, options)

    # -- what a format implements ----------------------------------------------------------------------

    def _described(self) -> pa.Schema:
        """The Arrow schema that rows are stored with."""
        raise NotImplementedError

    def _exists(self) -> bool:
        """True if there is a table at the target."""
        raise NotImplementedError

    def _existing(self) -> tuple[Schema, Any, list[str]]:
        """The fields of the table that is there, a name for its state, as JSON, and what it is parted by."""
        raise NotImplementedError

    def _create(self, folder: Path) -> None:
        """Make a table with all rows in a folder."""
        raise NotImplementedError

    def _is_committed(self, id: str) -> bool:
        """True if the table that is there has the transaction of this name."""
        raise NotImplementedError

    def _commit(self) -> None:
        """Append the rows to the table that is there, or replace its own; on a conflict a BusyError."""
        raise NotImplementedError

    # -- what the base asks for ------------------------------------------------------------------------

    @classmethod
    def refuses(cls, field: Field) -> str | None:
        return arrow.refuses(field)

    def _open_partial(self) -> Partial:
        if self.mode == "create":
            return super()._open_partial()
        # Several may append at a time; the table itself says who comes first.
        return Partial(self.path, overwrite=True, resume=self.options.resume, shared=True)

    def _begin(self, state: dict[str, Any] | None) -> None:
        if state is not None:
            self._id = state["id"]
            if self._exists() and self._is_committed(self._id):
                self.abort()
                raise ExistsError("all rows are in the table, there is nothing to resume", path=self.path)
        if self.mode != "create":
            if self._exists():
                fields, base, keys = self._existing()
                if self._keys and self._keys != keys:
                    partitioning = f"partitioned by {', '.join(keys)}" if keys else "not partitioned"
                    raise OptionError(f"the table is {partitioning}; leave partition_by out", path=self.path)
                self._base = base if state is None else state["base"]
                if self.mode == "append" or not self.replaces_fields:
                    check_same_fields(fields, self.schema)
            elif tree.exists(self.path):
                raise ExistsError(f"it is no {self.title} table", path=self.path)
        self._arrow = self._described()
        self._spool = self.partial.spool(BUFFERED_ROWS_NAME)
        if not self._spool.size:
            self._spool.write(self._arrow.serialize())

    def _state(self) -> dict[str, Any]:
        return {"base": self._base, "id": self._id}

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        return arrow.unfit(self.schema, columns)

    def _write(self, columns: Columns) -> None:
        pa = arrow.pyarrow()
        try:
            rows = arrow.to_arrow(self._as_text(), columns)
            self._spool.write(rows.cast(self._arrow).serialize())
        except pa.ArrowException as error:
            raise EncodeError(f"the table cannot hold it: {error}", path=self.path) from None

    def _as_text(self) -> Schema:
        """The fields; UUIDs and decimals are text where the table keeps them so, for no cast writes it."""
        text = arrow.pyarrow().types.is_string
        return Schema(
            (name, Text(optional=field.optional))
            if isinstance(field, Uuid | Decimal) and text(self._arrow.field(name).type)
            else (name, field)
            for name, field in self.schema.items()
        )

    def _finish(self) -> str | None:
        staged = self.partial.folder / "table"
        if is_remote(self.path) and self.mode != "create":
            self._commit_patiently()
            return None
        if self.mode == "create" or not self._exists():
            # Of a writer that was killed here.
            shutil.rmtree(staged, ignore_errors=True)
            self._create(staged)
            if self.mode == "create":
                return staged.name
            os.sync()
            try:
                os.rename(staged, self.path)
                sync(Path(self.path).absolute().parent)
                return None
            # Another process has made the table meanwhile.
            except OSError:
                if not self._exists():
                    raise
        self._commit_patiently()
        return None

    def _commit_patiently(self) -> None:
        """Commit; rows that are appended come after whatever another process did meanwhile."""
        for attempt in range(MAX_COMMIT_TRIES):
            try:
                self._commit()
                return
            except BusyError:
                if self.mode != "append" or attempt == MAX_COMMIT_TRIES - 1:
                    raise
            # Waits of equal length would collide again.
            time.sleep(random.uniform(0, RETRY_WAIT_SECONDS * 2**attempt))
            if self._is_committed(self._id):
                return

    def remarks(self) -> list[str]:
        if not self._keys:
            return []
        return [f"the samples are ordered by {', '.join(self._keys)}, for each value has files of its own"]

    # -- rows ------------------------------------------------------------------------------------------

    def _row_groups(self) -> Iterator[pa.Table]:
        """All rows, as tables of about the size of a row group."""
        pa = arrow.pyarrow()
        with pa.memory_map(str(self._spool.path)) as file, pa.ipc.open_stream(file) as stream:
            batches, size = [], 0
            pieces = (
                batch.slice(first, rows)
                for batch in stream
                for rows in [batch.num_rows * self._row_group // max(batch.nbytes, 1) + 1]
                for first in range(0, batch.num_rows, rows)
            )
            for piece in pieces:
                batches.append(piece)
                size += piece.nbytes
                if size >= self._row_group:
                    yield pa.Table.from_batches(batches)
                    batches, size = [], 0
            if batches:
                yield pa.Table.from_batches(batches)

    def _files(self, described: pa.Schema) -> Iterator[Iterator[pa.Table]]:
        """The row groups of one file after another; each has to be taken before the next."""
        groups = self._row_groups()
        following = next(groups, None)

        def one() -> Iterator[pa.Table]:
            nonlocal following
            size = 0
            while following is not None and (not size or size + following.nbytes <= self._file_size):
                size += max(following.nbytes, 1)
                yield following.cast(described)
                following = next(groups, None)

        while following is not None:
            yield one()

    def _write_file(self, groups: Iterable[pa.Table], described: pa.Schema, file: str) -> int:
        """One Parquet file of these row groups; returns how many rows it has."""
        import pyarrow.parquet as pq

        rows = 0
        with pq.ParquetWriter(file, described, compression=self._compression, write_page_index=True) as out:
            for group in groups:
                out.write_table(group, row_group_size=max(len(group), 1))
                rows += len(group)
        return rows


def _check_keys(schema: Schema, keys: Sequence[str]) -> None:
    for key in keys:
        field = schema.select([key])[key]
        if type(field) not in (Int, Text, Bool, Time):
            raise OptionError(
                f"partition_by needs a field of whole numbers, text, booleans or times; {key!r} is {field}"
            )
    if keys and len(keys) >= len(schema):
        raise OptionError("partition_by names every field; at least one has to stay in the files")


def conflict(path: str, error: BaseException | None = None) -> BusyError:
    """The error of a transaction that another one came before."""
    message = "another process changed the table meanwhile, and nothing was written; try again"
    return BusyError(message if error is None else f"{message} ({first_line(error)})", path=path)


def check_same_fields(table: Schema, rows: Schema) -> list[str]:
    """SchemaError where rows with these fields cannot be appended; else the fields that the table lacks."""
    for name, field in table.items():
        if name not in rows:
            if not field.optional:
                raise SchemaError("the table needs this field, and the rows do not have it", field=name)
            continue
        new_field = rows[name]
        if new_field.optional and not field.optional:
            raise SchemaError("it is optional, and the table allows no missing values", field=name)
        if not _fits(field, dataclasses.replace(new_field, optional=field.optional)):
            raise SchemaError(f"it is {new_field}, and in the table {field}", field=name)
    return [name for name in rows if name not in table]


def _fits_inside(table: Field, field: Field) -> bool:
    wider = table.optional or not field.optional
    return wider and _fits(table, dataclasses.replace(field, optional=table.optional))


def _fits(table: Field, field: Field) -> bool:
    if isinstance(table, List) and isinstance(field, List):
        return _fits_inside(table.of, field.of)
    if isinstance(table, Struct) and isinstance(field, Struct):
        names = [[name for name, _ in struct.fields] for struct in (table, field)]
        pairs = zip(table.fields, field.fields, strict=False)
        return names[0] == names[1] and all(_fits_inside(mine[1], theirs[1]) for mine, theirs in pairs)
    if isinstance(table, Time | Duration) and isinstance(field, Tensor):
        bare = dataclasses.replace(table, tz=None) if isinstance(table, Time) else table
        return bool(arrow.storage(field) == arrow.storage(bare))
    # What its description does not say, a kind of bytes may be.
    parts = [attribute.name for attribute in dataclasses.fields(table)]
    if isinstance(table, Bytes) or type(table) is not type(field):
        return isinstance(table, Bytes) and arrow.storage(table) == arrow.storage(field)
    open_parts = {"encoding", "mode", "names"}
    return all(
        getattr(table, part) == getattr(field, part) or (part in open_parts and getattr(table, part) is None)
        for part in parts
    )


# States that `info` shows.
MAX_SHOWN_STATES = 10
# Files of this many bytes are worth opening; smaller ones are put together.
FILE_BYTES = 512 << 20

Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class State:
    """A version of a Delta table, a snapshot of an Iceberg table.

    rows: how many the transaction added, where it says so. refs: branches and tags that name it.
    """

    id: int
    at: datetime.datetime
    operation: str
    rows: int | None = None
    current: bool = False
    refs: tuple[str, ...] = ()


def shown(states: Sequence[State], name: str) -> dict[str, str]:
    """The latest states, as `info` shows them."""
    return {
        f"{name} {state.id}": f"{state.at:%Y-%m-%d %H:%M:%S}Z {state.operation}"
        + ("" if state.rows is None else f", {state.rows} rows added")
        for state in states[:MAX_SHOWN_STATES]
    }


@dataclasses.dataclass(frozen=True)
class Vacuumed:
    """Files that no state needs which is kept, and states that are not kept; ``done``: they are gone."""

    files: list[str]
    bytes: int
    states: list[int]
    done: bool


@dataclasses.dataclass(frozen=True)
class Compacted:
    """Files that were put together, and those that came of it; ``left``: small ones that had to stay."""

    removed: int
    added: int
    bytes: int
    left: int
    done: bool


class Upkeep:
    """Maintenance of a table: history, compaction, clean-up."""

    # What a state is called.
    state: ClassVar[str] = "version"

    def __init__(self, path: str) -> None:
        self.path = path

    def history(self) -> list[State]:
        """Every state, the latest first."""
        raise NotImplementedError

    def vacuum(self, older_than: datetime.timedelta, *, dry_run: bool) -> Vacuumed:
        """Remove files that nobody needs who opened the table no longer ago than ``older_than``."""
        raise NotImplementedError

    def restore(self, state: State) -> None:
        """Make an older state the current one, in one transaction."""
        raise NotImplementedError

    def compact(self, file_size: int, *, dry_run: bool, progress: Progress | None) -> Compacted:
        """Put small files together, in one transaction; older states stay as they are."""
        raise NotImplementedError

    def find(self, state: int | None, at: str | datetime.datetime | None) -> State:
        """The state with a number, or that was current at a time."""
        history = self.history()
        if (state is None) == (at is None):
            raise OptionError(f"say which {self.state} to go back to, or a time", path=self.path)
        if at is not None:
            when = as_time(at)
            match = next((entry for entry in history if entry.at <= when), None)
            if match is None:
                raise OptionError(f"at {when.isoformat()} there was no {self.state} yet", path=self.path)
            return match
        match = next((entry for entry in history if entry.id == state), None)
        if match is None:
            ids = ", ".join(str(entry.id) for entry in history[:5])
            raise OptionError(f"there is no {self.state} {state}; the latest are {ids}", path=self.path)
        return match


def stored_size(path: str) -> int:
    """Bytes of a file; 0 if it is gone."""
    try:
        return tree.size_below(path)
    except (BatchplantError, OSError):
        return 0


def utc(milliseconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)


def count(value: Any) -> int | None:
    """A number out of a log, which may have it as text."""
    try:
        return None if value is None else int(value)
    except (TypeError, ValueError):
        return None
