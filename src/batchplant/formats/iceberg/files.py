"""A table in a local folder. This module imports pyiceberg, and is itself imported only when it is needed.

Metadata names every file by its absolute path. :class:`FolderIO` looks for those below the table's location
in the folder where the table really lies, so that a table can be made in a hidden folder and renamed, and one
that was moved or copied can be read and added to.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import uuid
from collections.abc import Iterable, Iterator
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import PythonFile
from pyarrow.fs import LocalFileSystem
from pyiceberg.avro.decoder import StreamingBinaryDecoder
from pyiceberg.avro.file import AvroFile
from pyiceberg.avro.resolver import resolve_reader
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.io import FileIO, InputFile
from pyiceberg.io.pyarrow import (
    PyArrowFile,
    PyArrowFileIO,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
)
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform, TimeTransform, VoidTransform
from pyiceberg.typedef import Record

from ...errors import DamagedError, OptionError, UnknownFormatError, UnsafeError
from ...storage import absolute, check_regular, is_remote, like, open_source, tree
from ..base.lake import wrapped
from .table import CATALOG, CATALOG_NAME, NAME, local, newest, transaction

# -- data files ---------------------------------------------------------------------------------------
# The Parquet files of a table: rows sorted into those of their partitions, and what a manifest says of them.
#
# This module imports pyiceberg, and is itself imported only when it is needed.

# Rows of all partitions that wait for a row group, and files that are written at a time.
WAITING_BYTES = 256 << 20
OPEN_FILES = 64


def _data_file(metadata: Any, path: str, size: int, written: pq.FileMetaData, partition: Record) -> DataFile:
    """Manifest entry of a file; ``written``: its Parquet metadata."""
    schema = metadata.schema()
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=written,
        stats_columns=compute_statistics_plan(schema, metadata.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        file_size_in_bytes=size,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


@dataclasses.dataclass
class _Open:
    """A partition: the file that is being written, and rows that wait."""

    key: _Key
    path: str = ""
    out: Any = None
    writer: pq.ParquetWriter | None = None
    bytes: int = 0
    waiting: list[pa.Table] = dataclasses.field(default_factory=list)
    waiting_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class _Key:
    """A partition: the values of its fields, as manifests hold them, and the folder of its files."""

    partition: Record
    spec: Any
    schema: Any

    def to_path(self) -> str:
        return str(self.spec.partition_to_path(self.partition, self.schema))


def transformed(transform: Any, kind: Any, column: pa.Array) -> pa.Array:
    """The values of a column as a partition has them, dates and times as numbers; ``kind``: pyiceberg's."""
    types = pa.types
    if types.is_date(column.type):
        column = column.cast(pa.int32())
    elif types.is_timestamp(column.type):
        hour = 3600 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[column.type.unit]
        column = column.cast(pa.int64())
        if isinstance(transform, TimeTransform):
            # No span of time is shorter, and there are fewer hours than times.
            numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
            column = pa.array(numbers // hour * hour, mask=column.is_null().to_numpy(zero_copy_only=False))
    elif types.is_time(column.type):
        column = column.cast(pa.int64())
    if isinstance(transform, IdentityTransform):
        return column
    # In Python, value by value: the vectorised forms need another library.
    encoded, convert = column.dictionary_encode(), transform.transform(kind)
    return pa.array([convert(value) for value in encoded.dictionary.to_pylist()]).take(encoded.indices)


class TableFiles:
    """Writes rows to files of their partitions (or of the one that a table without any is).

    Each has one file after another, of at most ``file_size`` bytes before compression, in row groups of about
    ``row_group`` bytes. ``stored``: the bytes of files are those after compression. An error inside of
    ``with`` removes them.
    """

    def __init__(
        self, table: Any, metadata: Any, described: pa.Schema, *, row_group: int, file_size: int,
        compression: str, stored: bool = False,
    ) -> None:  # fmt: skip
        self._table, self._metadata, self._described = table, metadata, described
        self._row_group, self._file_size, self._compression = row_group, file_size, compression
        self._stored = stored
        self._partitions: dict[Any, _Open] = {}
        self._waiting_bytes = 0
        self._unique = uuid.uuid4()
        self._paths: list[str] = []
        self._files: list[DataFile] = []

    def add(self, rows: pa.Table) -> None:
        for key, part in self._split(rows):
            partition = self._partitions.setdefault(key.partition, _Open(key))
            partition.waiting.append(part)
            partition.waiting_bytes += part.nbytes
            self._waiting_bytes += part.nbytes
            if partition.waiting_bytes >= self._row_group:
                self._flush(partition)
        while self._waiting_bytes > WAITING_BYTES:
            self._flush(max(self._partitions.values(), key=lambda partition: partition.waiting_bytes))

    def finish(self) -> list[DataFile]:
        """The files, as manifests describe them."""
        for partition in self._partitions.values():
            self._flush(partition)
            self._close(partition)
        return self._files

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.give_up()

    def commit(self, change: Any) -> None:
        """Commit the transaction that has the files."""
        # Ctrl-C may come after the commit: then the files belong to the table, else nobody sees them.
        try:
            change.commit_transaction()
        except (CommitFailedException, ValidationException):
            # Only these say that it did not happen.
            self.give_up()
            raise

    def give_up(self) -> None:
        """Remove what was written."""
        for partition in self._partitions.values():
            with contextlib.suppress(Exception):
                if partition.out is not None:
                    partition.out.close()
        for path in self._paths:
            with contextlib.suppress(Exception):
                self._table.io.delete(path)

    def _split(self, rows: pa.Table) -> Iterator[tuple[_Key, pa.Table]]:
        """The rows of each partition, in order."""
        spec, schema = self._metadata.spec(), self._metadata.schema()
        if spec.is_unpartitioned():
            yield _Key(Record(), spec, schema), rows
            return
        columns = [self._column(field, schema, rows) for field in spec.fields]
        code = np.zeros(len(rows), dtype=np.int64)
        for column in columns:
            encoded = column.dictionary_encode()
            numbers = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(zero_copy_only=False)
            code = np.unique(code, return_inverse=True)[1] * (len(encoded.dictionary) + 1) + numbers
        _, first, number = np.unique(code, return_index=True, return_inverse=True)
        order = np.argsort(number, kind="stable")
        ends = np.cumsum(np.bincount(number, minlength=len(first))).tolist()
        for start, end, row in zip([0, *ends], ends, first.tolist(), strict=False):
            values = [column[row].as_py() for column in columns]
            yield _Key(Record(*values), spec, schema), rows.take(pa.array(order[start:end]))

    def _column(self, field: Any, schema: Any, rows: pa.Table) -> pa.Array:
        """Values of a partition field in each row."""
        source = schema.find_field(field.source_id)
        if source not in schema.fields:
            raise UnknownFormatError(
                f"the table is partitioned by {field.name}, a part of a field; rows cannot be added to it yet"
            )
        if source.name not in rows.column_names or isinstance(field.transform, VoidTransform):
            return pa.nulls(len(rows))
        return transformed(field.transform, source.field_type, rows.column(source.name).combine_chunks())

    def _flush(self, partition: _Open) -> None:
        """Write what waits as a row group."""
        if not partition.waiting:
            return
        rows = pa.concat_tables(partition.waiting).cast(self._described)
        if partition.writer is not None and self._is_full(partition, rows.nbytes):
            self._close(partition)
        if partition.writer is None:
            self._open(partition)
        assert partition.writer is not None
        partition.writer.write_table(rows, row_group_size=max(len(rows), 1))
        partition.bytes += rows.nbytes
        self._waiting_bytes -= partition.waiting_bytes
        partition.waiting, partition.waiting_bytes = [], 0

    def _is_full(self, partition: _Open, extra_bytes: int) -> bool:
        if self._stored:
            return bool(partition.out.tell() >= self._file_size)
        return partition.bytes + extra_bytes > self._file_size

    def _open(self, partition: _Open) -> None:
        opened = [entry for entry in self._partitions.values() if entry.writer is not None]
        if len(opened) >= OPEN_FILES:
            self._close(max(opened, key=lambda entry: entry.bytes))
        name = f"{len(self._paths):05d}-{self._unique}.parquet"
        key = partition.key if len(partition.key.partition) else None
        partition.path = self._table.location_provider().new_data_location(name, key)
        self._paths.append(partition.path)
        partition.out = self._table.io.new_output(partition.path).create()
        partition.writer = pq.ParquetWriter(
            partition.out, self._described, compression=self._compression, write_page_index=True
        )
        partition.bytes = 0

    def _close(self, partition: _Open) -> None:
        if partition.writer is None:
            return
        partition.writer.close()
        partition.out.close()
        written = partition.writer.writer.metadata
        size = len(self._table.io.new_input(partition.path))
        self._files.append(_data_file(self._metadata, partition.path, size, written, partition.key.partition))
        partition.writer = partition.out = None


def commit_files(change: Any, files: Iterable[DataFile], message: dict[str, str]) -> None:
    """Files as a snapshot of the transaction."""
    with change.update_snapshot(snapshot_properties=message).fast_append() as append:
        for file in files:
            append.append_data_file(file)


# -- manifests ----------------------------------------------------------------------------------------
# Manifests, read with care: pyiceberg's own decoder follows a damaged length beyond the end of the file.
#
# What was read here once, pyiceberg can read as well. This module imports pyiceberg, and is itself imported
# only when it is needed.

SYNC_BYTES = 16


def files_of(table: Table, snapshot: Snapshot) -> tuple[list[tuple[int, DataFile]], bool]:
    """The data files of a snapshot, each with the number of its commit; whether rows of them were deleted."""
    files: list[tuple[int, DataFile]] = []
    deletes = False
    for manifest in _manifests(table.io, snapshot.manifest_list):
        holds = manifest.content == ManifestContent.DATA
        for entry in _entries(table.io, manifest):
            if entry.status == ManifestEntryStatus.DELETED:
                continue
            if holds:
                number = manifest.sequence_number if entry.sequence_number is None else entry.sequence_number
                entry.data_file.spec_id = manifest.partition_spec_id
                files.append((number or 0, entry.data_file))
            deletes = deletes or not holds
    message = None if snapshot.summary is None else snapshot.summary.get("total-data-files")
    if message is not None and message != str(len(files)):
        raise DamagedError(f"the manifests list {len(files)} files, and the snapshot says {message}")
    return sorted(files, key=lambda entry: (entry[0], entry[1].file_path)), deletes


def names_of(table: Table, snapshot: Snapshot) -> Iterator[str]:
    """Every file that reading a snapshot takes."""
    yield snapshot.manifest_list
    for manifest in _manifests(table.io, snapshot.manifest_list):
        yield manifest.manifest_path
        for entry in _entries(table.io, manifest):
            if entry.status != ManifestEntryStatus.DELETED:
                yield entry.data_file.file_path


def _manifests(io: FileIO, path: str) -> list[ManifestFile]:
    types, enums = {-1: ManifestFile, 508: PartitionFieldSummary}, {517: ManifestContent}
    return list(_records(io, path, None, MANIFEST_LIST_FILE_SCHEMAS[DEFAULT_READ_VERSION], types, enums))


def _entries(io: FileIO, manifest: ManifestFile) -> Iterator[ManifestEntry]:
    types = {-1: ManifestEntry, 2: DataFile}
    enums = {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent}
    schema = MANIFEST_ENTRY_SCHEMAS[DEFAULT_READ_VERSION]
    yield from _records(io, manifest.manifest_path, manifest.manifest_length, schema, types, enums)


class _Decoder(StreamingBinaryDecoder):  # type: ignore[misc]
    def skip(self, n: int) -> None:
        self.read(n)


def _records(
    io: FileIO, path: str, size: int | None, schema: Schema, types: dict[int, type], enums: dict[int, type]
) -> Iterator[Any]:
    """The records of an Avro file."""
    with wrapped(path):
        file = AvroFile(io.new_input(path))
        with file.input_file.open() as opened:
            data = opened.read()
        if size not in (None, len(data)):
            raise DamagedError(f"it has {len(data)} bytes, and the table says {size}")
        file.decoder = decoder = _Decoder(data)
        header = file._read_header()
        codec = header.compression_codec()
        reader = resolve_reader(header.get_schema(), schema, types, enums)
        while decoder.tell() < len(data):
            count, block = decoder.read_int(), decoder.read_bytes()
            block = codec.decompress(block) if codec else block
            # A record has at least a byte, so that no count makes us wait.
            if not 0 <= count <= len(block):
                raise DamagedError(f"a block of {len(block)} bytes has {count} records")
            inner = _Decoder(block)
            yield from (reader.read(inner) for _ in range(count))
            if inner.tell() != len(block) or decoder.read(SYNC_BYTES) != header.sync:
                raise DamagedError("a block does not end where it should", offset=decoder.tell())


# -- folder -------------------------------------------------------------------------------------------

# Properties that name code to be run.
CODE = ("py-io-impl", "write.py-location-provider.impl", "py-catalog-impl")


class RemoteFile(InputFile):  # type: ignore[misc]
    """A file of a table on a server."""

    def __init__(self, location: str, path: str) -> None:
        super().__init__(location)
        self._place = path

    def __len__(self) -> int:
        return tree.size_below(self._place)

    def exists(self) -> bool:
        return tree.is_file(self._place)

    def open(self, seekable: bool = True) -> PythonFile:
        return PythonFile(open_source(self._place).file(), mode="r")


class FolderIO(PyArrowFileIO):  # type: ignore[misc]
    """Properties: ``location``, what the table calls its folder; ``folder``, where that is; ``outside``,
    ``yes`` where its files may lie anywhere."""

    def __init__(self, properties: dict[str, str]) -> None:
        super().__init__(properties)
        folder = absolute(properties["folder"])
        self._location, self._folder = local(properties["location"]), like(folder, folder.rstrip("/"))

    def place(self, location: str) -> str:
        """Resolve the location of a file of the table."""
        path = local(location)
        up = is_remote(path) and ".." in path.split("/")
        if path.startswith(self._location + "/") and not up:
            return like(self._folder, self._folder + path[len(self._location) :])
        if (path.startswith(self._folder + "/") and not up) or self.properties.get("outside") == "yes":
            return like(self._folder, path)
        raise UnsafeError(
            f"the table lists {path}, which lies outside its folder; outside=True reads it anyway",
            path=self._folder,
        )

    def new_input(self, location: str) -> InputFile:
        path = self.place(location)
        if is_remote(path):
            return RemoteFile(location, path)
        check_regular(path)
        return PyArrowFile(location, path, LocalFileSystem())

    def new_output(self, location: str) -> InputFile:
        os.makedirs(os.path.dirname(self.place(location)), exist_ok=True)
        return self.new_input(location)

    def delete(self, location: object) -> None:
        os.unlink(self.place(str(getattr(location, "location", location))))


class FolderCatalog(SqlCatalog):  # type: ignore[misc]
    """The catalog of one table, in its folder."""

    def __init__(self, name: str, file: str, files: FolderIO) -> None:
        properties = {**files.properties, "py-io-impl": f"{FolderIO.__module__}.{FolderIO.__qualname__}"}
        super().__init__(name, uri=f"sqlite:///{file}", **properties)
        self._files = files

    def _load_file_io(self, properties: object = None, location: str | None = None) -> FolderIO:
        """Never a class that the table's own properties name."""
        return self._files


def from_folder(folder: str, outside: bool = False) -> Table:
    """The table in a folder, to be read."""
    file = newest(folder)
    where = {"folder": folder, "outside": "yes" if outside else "no"}
    with wrapped(file):
        table_metadata = FromInputFile.table_metadata(FolderIO({**where, "location": folder}).new_input(file))
        # Not StaticTable: it would import whatever class the metadata names.
        files = FolderIO({**where, "location": table_metadata.location})
        return Table(NAME, table_metadata, file, files, NoopCatalog(CATALOG_NAME))


@contextlib.contextmanager
def writable(path: str, catalog: Catalog | None = None) -> Iterator[Table]:
    """A table to commit to: of a catalog, or of the one in its folder."""
    with transaction(path), contextlib.ExitStack() as stack:
        if catalog is None:
            yield stack.enter_context(contextlib.closing(folder_catalog(path))).load_table(NAME)
        else:
            yield catalog.load_table(path)


def folder_catalog(folder: str, location: str | None = None) -> FolderCatalog:
    """The catalog in a table's folder, to write to; ``location``: what a new table calls the folder."""
    if "?" in folder:
        raise OptionError("the path of an SQLite catalog cannot have a question mark", path=folder)
    if location is None:
        metadata = from_folder(folder).metadata
        location = metadata.location
        for name in CODE:
            if name in metadata.properties:
                raise UnsafeError(f"the table's property {name} names code to be run", path=folder)
    os.makedirs(folder, exist_ok=True)
    file = os.path.join(os.path.abspath(folder), CATALOG)
    return FolderCatalog(CATALOG_NAME, file, FolderIO({"location": location, "folder": folder}))
