"""Apache Arrow IPC and Feather, columns as they lie in memory.

A file holds record batches of some thousand samples. In one that is not compressed, numbers, tensors, text,
bytes and images are used where they lie, without decoding anything; of compressed batches the columns that
are asked for are unpacked. Feather (version 2) is the same format under another name. A stream has no footer,
and its messages are walked through once. The folders that `save_to_disk` of Hugging Face's datasets leaves
hold streams, and are opened as they are.

What a field is stands in the metadata of its column, as in Parquet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...codecs.arrow import arrow_schema, featured_schema, pyarrow, refuses, to_arrow, unfit
from ...data.writer import WriteOptions, Writer
from ...errors import BatchplantError, OptionError
from ...schema import EVERY_KIND, Field, Schema
from ...schema.columns import Columns
from ..base.format import Capabilities, Format
from ..base.ipc import BLOCK, END, MAGIC, make_footer
from ..base.tables.buffered import RowBuffer, SavedRows, row_sizes
from .reader import ArrowReader, sniff

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES = 4 << 20
STREAM_SUFFIX = ".arrows"


class ArrowWriter(Writer):
    """Writes .arrow and .feather files (usable in place), and .arrows streams.

    ``compression``: none (used where it lies), lz4 or zstd. ``batch_size``: bytes of cells in a record batch.
    ``hugging_face``: with the features of Hugging Face's datasets, for which an image is a struct of its
    bytes and a path; False: a column of bytes.
    """

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        compression: str = "none",
        batch_size: int = BATCH_BYTES,
        hugging_face: bool = True,
    ) -> None:
        if compression not in ("none", "lz4", "zstd"):
            raise OptionError(f"compression is none, lz4 or zstd, not {compression!r}")
        if batch_size < 1:
            raise OptionError(f"batch_size must be at least 1 byte, not {batch_size}")
        pa = pyarrow()
        self._arrow = featured_schema(schema, arrays=False) if hugging_face else arrow_schema(schema)
        packed = None if compression == "none" else compression
        self._options = pa.ipc.IpcWriteOptions(compression=packed)
        self._stream = path.lower().endswith(STREAM_SUFFIX)
        self._batch_size = batch_size
        super().__init__(path, schema, options)

    @classmethod
    def refuses(cls, field: Field) -> str | None:
        return refuses(field)

    def _begin(self, state: dict[str, Any] | None) -> None:
        self._file = self.partial.spool("messages")
        self._blocks = self.partial.spool("blocks")
        self._schema = self._arrow.serialize().to_pybytes()
        self._buffer = RowBuffer(self._arrow)
        self._saved = SavedRows(self.partial.folder, self._arrow)
        if state is not None:
            self._saved.restore(state["rows"], [self._buffer])
        if not self._file.size:
            self._file.write((b"" if self._stream else MAGIC + b"\0\0") + self._schema)

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        return unfit(self.schema, columns)

    def _write(self, columns: Columns) -> None:
        batch = to_arrow(self.schema, columns, self._arrow)
        for table in self._buffer.fill(batch, row_sizes(columns), self._batch_size):
            self._write_table(table)

    def _write_table(self, table: pa.Table) -> None:
        """Write a record batch: the message as a stream of its own would have it."""
        pa = pyarrow()
        for batch in table.to_batches():
            out = pa.BufferOutputStream()
            with pa.ipc.new_stream(out, self._arrow, options=self._options) as stream:
                stream.write_batch(batch)
            stream_bytes = np.frombuffer(out.getvalue(), np.uint8)
            message = stream_bytes[len(self._schema) : -len(END)]
            metadata = 8 + int(message[4:8].view("<u4")[0])
            block = (self._file.size, metadata, 0, len(message) - metadata)
            self._blocks.write(np.array([block], dtype=BLOCK))
            self._file.write(message)

    def _state(self) -> dict[str, Any]:
        return {"rows": self._saved.save([self._buffer])}

    def _finish(self) -> str:
        if self._buffer.batches:
            self._write_table(self._buffer.take())
        if self._stream:
            self._file.write(END)
            return "messages"
        blocks = np.frombuffer(self._blocks.read_at(self._blocks.size, 0), BLOCK)
        self._file.write(make_footer(self._schema[8:], blocks))
        return "messages"


FORMAT = Format(
    name="arrow",
    title="Apache Arrow IPC, Feather",
    suffixes=(".arrow", ".feather", ".ipc", ".arrows"),
    spec="https://arrow.apache.org/docs/format/Columnar.html",
    reader=ArrowReader,
    writer=ArrowWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    folder=None,
    extra="arrow",
    notes="uncompressed files are used in place; streams; folders of Hugging Face's save_to_disk",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        compression=("lz4", "zstd"),
        compressed="column",
        column_pruning=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        ecosystem=("pyarrow", "pandas", "Polars", "DuckDB", "Hugging Face"),
    ),
)
