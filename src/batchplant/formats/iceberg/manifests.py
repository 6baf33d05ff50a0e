"""Manifests, read with care: pyiceberg's own decoder follows a damaged length beyond the end of the file.

What was read here once, pyiceberg can read as well. This module imports pyiceberg, and is itself imported
only when it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyiceberg.avro.decoder import StreamingBinaryDecoder
from pyiceberg.avro.file import AvroFile
from pyiceberg.avro.resolver import resolve_reader
from pyiceberg.io import FileIO
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
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from ...errors import DamagedError
from ..base.lake import wrapped

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
