"""LakeWriter: rows are kept in the hidden folder until all are there, then one transaction adds them."""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ....codecs import arrow
from ....data.writer import WriteOptions, Writer
from ....errors import BatchplantError, BusyError, EncodeError, ExistsError, OptionError, SchemaError
from ....schema import (
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
from ....schema.columns import Columns
from ....storage import Partial, is_remote, sync, tree
from ..tables.parquet_file import first_line

if TYPE_CHECKING:
    import pyarrow as pa

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
