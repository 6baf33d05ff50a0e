"""Writing Lance: rows are kept until all are there, then one transaction of pylance adds them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...codecs import arrow
from ...codecs.arrow.types import is_binary
from ...data.writer import WriteOptions
from ...errors import OptionError
from ...schema import Schema, Video
from ...storage import join, tree
from ...storage.remote.obstore_client import options_for
from ..base.lake import LakeWriter, check_same_fields, conflict, wrapped
from .reader import BLOB, NAME, VERSIONS, LanceReader, library, name_of, open_table

if TYPE_CHECKING:
    import pyarrow as pa

# Blobs of later versions lie in files of their own, under names that the library alone knows.
FILE_VERSION = "2.1"
# The property of a transaction that has its name.
TRANSACTION = "batchplant"


class LanceWriter(LakeWriter):
    """``mode``: ``create`` a table; ``append`` rows to one; ``overwrite`` its rows, the older versions stay.

    The last two are one transaction: all rows appear at once, or none. ``blobs``: fields of bytes that are
    stored as blobs, which pylance reads by range and batchplant in place (default: videos). ``file_size``:
    bytes of a fragment.
    """

    title = "Lance"

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        mode: str = "create",
        blobs: str | Iterable[str] | None = None,
        file_size: int = 4 << 30,
    ) -> None:
        library()
        names = blobs.split(",") if isinstance(blobs, str) else blobs
        if names is None:
            names = [name for name, field in schema.items() if isinstance(field, Video)]
        self._blobs = frozenset(name for name in names if name)
        super().__init__(path, schema, options, mode=mode, file_size=file_size)

    def _described(self) -> pa.Schema:
        pa = arrow.pyarrow()
        self.schema.select(list(self._blobs))
        fields = []
        for field in arrow.arrow_schema(self.schema):
            metadata, kind = dict(field.metadata or {}), field.type
            if field.name in self._blobs:
                if not is_binary(kind):
                    raise OptionError(
                        f"blobs are fields of bytes; {field.name!r} is {self.schema[field.name]}"
                    )
                metadata[BLOB], kind = b"true", pa.large_binary()
            fields.append(pa.field(field.name, kind, field.nullable, metadata))
        return pa.schema(fields)

    def _exists(self) -> bool:
        return tree.is_folder(join(self.path, VERSIONS))

    def _existing(self) -> tuple[Schema, Any, list[str]]:
        with LanceReader(self.path) as reader:
            return reader.schema, reader.version, []

    def _create(self, folder: Path) -> None:
        self._save(str(folder), "create", _without_dots(self._arrow), data_storage_version=FILE_VERSION)

    def _save(self, target: Any, mode: str, described: pa.Schema, **options: Any) -> None:
        reader = arrow.pyarrow().RecordBatchReader.from_batches(described, self._batches(described))
        with wrapped(self.path):
            library().write_dataset(
                reader, target, mode=mode, max_bytes_per_file=self._file_size,
                transaction_properties={TRANSACTION: self._id}, **options,
            )  # fmt: skip

    def _batches(self, described: pa.Schema) -> Iterator[pa.RecordBatch]:
        """All rows with the columns of the table; those that the rows lack are null."""
        pa = arrow.pyarrow()
        for group in self._row_groups():
            # A copy: the library takes only aligned decimals, and those of rows in a file need not be.
            group = group.take(pa.array(range(len(group))))
            columns = [
                group.column(name).cast(field.type)
                if (name := name_of(field)) in group.column_names
                else pa.nulls(len(group), field.type)
                for field in described
            ]
            yield from pa.Table.from_arrays(columns, schema=described).to_batches()

    def _is_committed(self, id: str) -> bool:
        table = open_table(self.path)
        with wrapped(self.path):
            for transaction in table.get_transactions(table.version):
                properties = getattr(transaction, "transaction_properties", None) or {}
                if properties.get(TRANSACTION) == id:
                    return True
        return False

    def _commit(self) -> None:
        storage = options_for(self.path) or None
        if not self._exists():
            self._save(
                self.path, "create", _without_dots(self._arrow), data_storage_version=FILE_VERSION,
                storage_options=storage,
            )  # fmt: skip
            return
        table = open_table(self.path)
        if self.mode == "overwrite":
            if table.version != self._base:
                raise conflict(self.path)
            self._save(table, "overwrite", _without_dots(self._arrow), data_storage_version=FILE_VERSION)
            return
        with LanceReader(self.path) as reader:
            fresh = check_same_fields(reader.schema, self.schema)
        if fresh:
            added = {name: dataclasses.replace(self.schema[name], optional=True) for name in fresh}
            with wrapped(self.path):
                table.add_columns(_without_dots(arrow.arrow_schema(Schema(added))))
            table = open_table(self.path)
        self._save(table, "append", table.schema)


def _without_dots(described: pa.Schema) -> pa.Schema:
    """Rename columns with dots, which Lance reserves for structs; metadata keep the names of fields."""
    for number, field in enumerate(described):
        if "." in field.name:
            name = field.name.replace(".", "_")
            while name in described.names:
                name += "_"
            metadata = {**(field.metadata or {}), NAME: field.name.encode()}
            described = described.set(number, field.with_name(name).with_metadata(metadata))
    return described
